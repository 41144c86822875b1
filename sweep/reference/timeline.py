"""The event timeline: each replica serves its share of the requests one at a time, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweep.errors import InputError, number, one_of, whole
from sweep.policies import Policy, names_for
from sweep.reference.router import Simulation
from sweep.reference.statistics import mean, nearest_rank, ratio, sample_variance
from sweep.reference.user_rules import waits_at

STRATEGIES = ("round_robin", "queue_aware", "locality_aware")

Record = dict[str, Any]

# --- The router -------------------------------------------------------------------------------------------------------


def select_replica(
    request: Mapping[str, Any],
    replicas: Sequence[Mapping[str, Any]],
    strategy: str,
    round_robin_index: int,
    session_owner: Mapping[Any, int],
    locality_slack_ms: float,
) -> tuple[int, str]:
    """Return the replica that a built-in strategy chooses for a request, and the reason.

    Parameters
    ----------
    request
        Needs ``arrival_ms``; ``prefix_key`` and ``session_id`` may be None or missing.
    replicas
        Each needs ``available_at_ms`` and ``cached_prefixes``.
    strategy
        One of ``round_robin``, ``queue_aware`` and ``locality_aware``.
    round_robin_index
        Position of the request in the stream.
    session_owner
        Session -> replica that served its last request.
    locality_slack_ms
        Extra wait [ms] that ``locality_aware`` accepts to reach a session's owner or a prefix.

    Raises
    ------
    InputError
        For an unknown strategy or an empty list of replicas.

    Examples
    --------
    >>> busy = {"available_at_ms": 20.0, "cached_prefixes": {"a"}}
    >>> idle = {"available_at_ms": 0.0, "cached_prefixes": set()}
    >>> select_replica({"arrival_ms": 12.0, "prefix_key": "a"}, [busy, idle], "locality_aware", 0, {}, 8.0)
    (0, 'prefix_locality')
    >>> select_replica({"arrival_ms": 12.0, "prefix_key": "a"}, [busy, idle], "locality_aware", 0, {}, 7.0)
    (1, 'queue_fallback')
    """
    one_of("strategy", strategy, STRATEGIES)
    if not replicas:
        raise InputError("There are no replicas to choose from; give at least 1.")
    if strategy == "round_robin":
        return round_robin_index % len(replicas), "round_robin"

    waits = waits_at(float(request["arrival_ms"]), replicas)
    shortest = min(range(len(waits)), key=waits.__getitem__)  # the first of equals
    if strategy == "queue_aware":
        return shortest, "shortest_queue"

    limit = waits[shortest] + locality_slack_ms
    owner = session_owner.get(request.get("session_id"))
    if owner is not None and waits[owner] <= limit:
        return owner, "sticky_session"
    prefix = request.get("prefix_key")
    holders = [index for index, replica in enumerate(replicas) if prefix in replica["cached_prefixes"]]
    if holders:
        nearest = min(holders, key=waits.__getitem__)
        if waits[nearest] <= limit:
            return nearest, "prefix_locality"
    return shortest, "queue_fallback"


# --- The replicas -----------------------------------------------------------------------------------------------------


def simulate_replica_routing(
    requests: Iterable[Mapping[str, Any]],
    num_replicas: int,
    strategy: str | Policy,
    locality_slack_ms: float = 5.0,
    cache_hit_speedup: float = 0.30,
    speeds: Sequence[float] | None = None,
    seed: int = 0,
    adapter_speedup: float = 0.0,
) -> list[Record]:
    """Route a stream of requests and serve each replica's share in order of arrival.

    Parameters
    ----------
    requests
        Dicts with ``request_id``, ``arrival_ms``, ``service_ms`` (at speed 1) and optionally ``prefix_key`` and
        ``session_id``, in any order; they are served in order of (``arrival_ms``, ``request_id``) and never changed.
    num_replicas
        Number of replicas.
    strategy
        One of ``round_robin``, ``queue_aware`` and ``locality_aware``, or a rule given to `sweep.register`
        (as name, label or `Policy`).
    locality_slack_ms
        Extra wait [ms] accepted to reach a session's owner or a prefix.
    cache_hit_speedup
        Share of the service time that a request saves on a replica that already holds its prefix.
    speeds
        Service rate of each replica, 1.0 where None.
    seed
        Seed of the uniforms that a registered rule may read.
    adapter_speedup
        Share of the service time that a request saves on a replica that already has its ``adapter_id`` loaded.

    Returns
    -------
    list of dict
        One per request in order of arrival: the request's own keys and ``replica_id``, ``route_reason``, ``cache_hit``,
        ``start_ms``, ``finish_ms``, ``queue_wait_ms`` and ``effective_service_ms``.

    Raises
    ------
    InputError
        For an unknown strategy, no replicas, or another number of speeds than replicas.

    Examples
    --------
    >>> first = {"request_id": 0, "arrival_ms": 0.0, "service_ms": 10.0, "prefix_key": "a"}
    >>> second = {"request_id": 1, "arrival_ms": 4.0, "service_ms": 10.0, "prefix_key": "a"}
    >>> records = simulate_replica_routing([first, second], 2, "locality_aware", locality_slack_ms=6.0)
    >>> [(record["replica_id"], record["route_reason"], record["finish_ms"]) for record in records]
    [(0, 'queue_fallback', 10.0), (0, 'prefix_locality', 17.0)]
    """
    policy = policy_of(strategy, "timeline")
    whole("num_replicas", num_replicas, at_least=1)
    speeds = _speeds([1.0] * num_replicas if speeds is None else speeds)
    if len(speeds) != num_replicas:
        raise InputError(f"speeds must hold one speed per replica: {len(speeds)} given for {num_replicas} replicas.")
    requests = list(requests)
    turned = policy.name not in STRATEGIES or bool(policy.changed)
    adapters = any(request.get("adapter_id") is not None for request in requests)
    if turned or adapters:
        options = (locality_slack_ms, cache_hit_speedup, seed)
        return Simulation(requests, speeds, policy, *options, adapter_speedup=adapter_speedup).run().records

    replicas: list[dict[str, Any]] = [
        {"replica_id": r, "available_at_ms": 0.0, "cached_prefixes": set(), "speed": speed}
        for r, speed in enumerate(speeds)
    ]
    session_owner: dict[Any, int] = {}
    records: list[Record] = []
    ordered = sorted(requests, key=lambda request: (request["arrival_ms"], request.get("request_id", 0)))
    for index, request in enumerate(ordered):
        chosen, reason = select_replica(request, replicas, policy.name, index, session_owner, locality_slack_ms)
        replica = replicas[chosen]
        arrival, service = float(request["arrival_ms"]), float(request["service_ms"])
        prefix, session = request.get("prefix_key"), request.get("session_id")

        start = max(arrival, replica["available_at_ms"])
        hit = prefix in replica["cached_prefixes"]
        if hit:
            service = service * (1.0 - cache_hit_speedup)
        effective = service / replica["speed"]
        finish = start + effective
        records.append(
            {
                **request,
                "replica_id": chosen,
                "route_reason": reason,
                "cache_hit": hit,
                "start_ms": start,
                "finish_ms": finish,
                "queue_wait_ms": start - arrival,
                "effective_service_ms": effective,
            }
        )
        replica["available_at_ms"] = finish
        if prefix is not None:
            replica["cached_prefixes"].add(prefix)
        if session is not None:
            session_owner[session] = chosen
    return records


def policy_of(strategy: str | Policy, engine: str) -> Policy:
    """Return the policy that a name, a label or a `Policy` stands for, checked to run on an engine."""
    name = strategy.name if isinstance(strategy, Policy) else str(strategy).partition("(")[0].strip()
    one_of("strategy", name, names_for(engine))
    return strategy if isinstance(strategy, Policy) else Policy.parse(strategy)


def _speeds(speeds: Sequence[float]) -> list[float]:
    if len(speeds) == 0:
        raise InputError("There are no replicas; give at least 1.")
    return [number(f"speed of replica {r}", speed, above=0.0) for r, speed in enumerate(speeds)]


# --- The statistics ---------------------------------------------------------------------------------------------------


def summarize_replica_service(records: Sequence[Record], num_replicas: int, warmup: int = 0) -> dict[str, Any]:
    """Return the statistics of a run, named as in the Dataset; load variance is `load_variance_of`.

    Variables per replica are lists, variables per reason are dicts of the reasons that occur. The first `warmup`
    records are left out. Where no record is left every number is zero; a window of zero length makes a rate NaN.

    Examples
    --------
    >>> request = {"request_id": 0, "arrival_ms": 0.0, "service_ms": 10.0}
    >>> records = simulate_replica_routing([request, request | {"request_id": 1}], 1, "queue_aware")
    >>> summary = summarize_replica_service(records, 1)
    >>> summary["mean_queue_wait_ms"], summary["p99_latency_ms"], summary["throughput_requests_per_s"]
    (5.0, 20.0, 100.0)
    """
    counted = records[warmup:]
    waits = [record["queue_wait_ms"] for record in counted]
    latencies = [record["finish_ms"] - record["arrival_ms"] for record in counted]
    requests_of, busy_of = [0] * num_replicas, [0.0] * num_replicas
    waits_by_reason: dict[str, list[float]] = {}
    hits = 0
    for record in counted:
        requests_of[record["replica_id"]] += 1
        busy_of[record["replica_id"]] += record["effective_service_ms"]
        waits_by_reason.setdefault(record["route_reason"], []).append(record["queue_wait_ms"])
        hits += record["cache_hit"]
    arrivals = [record["arrival_ms"] for record in counted] or [0.0]
    makespan = max((record["finish_ms"] for record in counted), default=0.0) - arrivals[0]
    return {
        "request_count": len(counted),
        "mean_queue_wait_ms": mean(waits),
        "p50_queue_wait_ms": nearest_rank(waits, 0.50),
        "p95_queue_wait_ms": nearest_rank(waits, 0.95),
        "p99_queue_wait_ms": nearest_rank(waits, 0.99),
        "max_queue_wait_ms": max(waits, default=0.0),
        "mean_latency_ms": mean(latencies),
        "p95_latency_ms": nearest_rank(latencies, 0.95),
        "p99_latency_ms": nearest_rank(latencies, 0.99),
        "throughput_requests_per_s": ratio(len(counted) * 1000.0, makespan) if counted else 0.0,
        "cache_hit_rate": hits / len(counted) if counted else 0.0,
        "load_skew_ratio": (max(requests_of) - min(requests_of)) / (len(counted) / num_replicas) if counted else 0.0,
        "makespan_ms": makespan,
        "session_moves": _session_moves(records, warmup),
        "max_offered_load": ratio(max(busy_of), arrivals[-1] - arrivals[0]) if counted else 0.0,
        "replica_requests": requests_of,
        "replica_busy_ms": busy_of,
        "reason_count": {reason: len(values) for reason, values in waits_by_reason.items()},
        "mean_queue_wait_ms_by_reason": {reason: mean(values) for reason, values in waits_by_reason.items()},
        "p99_queue_wait_ms_by_reason": {
            reason: nearest_rank(values, 0.99) for reason, values in waits_by_reason.items()
        },
    }


def load_variance_of(records: Sequence[Record], num_replicas: int, warmup: int = 0) -> tuple[float, float]:
    """Return mean and peak over arrivals of the variance across replicas of the outstanding work [ms^2].

    Each arriving request sees, on each replica, the time until that replica has finished what was routed to it before;
    the sample variance of these is taken over replicas (0 with one replica). No records give zeros.

    Examples
    --------
    >>> requests = [{"request_id": i, "arrival_ms": 0.0, "service_ms": 10.0} for i in range(2)]
    >>> load_variance_of(simulate_replica_routing(requests, 2, "round_robin"), 2)
    (25.0, 50.0)
    """
    available = [0.0] * num_replicas
    variances = []
    for record in records:
        arrival = record["arrival_ms"]
        variances.append(sample_variance([max(0.0, finish - arrival) for finish in available]))
        available[record["replica_id"]] = record["finish_ms"]
    variances = variances[warmup:]
    return mean(variances), max(variances, default=0.0)


def compare_replica_strategies(
    requests: Sequence[Mapping[str, Any]], num_replicas: int, locality_slack_ms: float = 5.0
) -> list[dict[str, Any]]:
    """Return ``{"strategy", "metrics"}`` of each strategy on one stream, best first.

    Ordered by P95 queue wait, then by throughput (descending), then as in ``STRATEGIES``.
    """
    compared = []
    for strategy in STRATEGIES:
        records = simulate_replica_routing(requests, num_replicas, strategy, locality_slack_ms)
        compared.append({"strategy": strategy, "metrics": summarize_replica_service(records, num_replicas)})
    return sorted(
        compared,
        key=lambda item: (item["metrics"]["p95_queue_wait_ms"], -item["metrics"]["throughput_requests_per_s"]),
    )


def _session_moves(records: Sequence[Record], warmup: int) -> int:
    moves = 0
    owner: dict[Any, int] = {}
    for index, record in enumerate(records):
        session, replica = record.get("session_id"), record["replica_id"]
        if session is not None:
            moves += index >= warmup and owner.get(session, replica) != replica
            owner[session] = replica
    return moves
