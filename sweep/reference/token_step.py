"""The token-step model: each replica serves a batch of up to 100 tokens in fixed steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sweep.errors import InputError, distinct, number
from sweep.reference.statistics import mean, nearest_rank, sample_variance

BATCH_TOKENS = 100

Record = dict[str, Any]


class Replica:
    """A replica: a FIFO queue of request sizes, the tokens in service, and a speed (100 tokens per step at 1.0)."""

    def __init__(self, name: str, speed: float = 1.0) -> None:
        self.name = name
        self.speed = speed
        self.queue: list[int] = []
        self.in_flight = 0

    def load(self) -> int:
        """Return the tokens in service and queued."""
        return self.in_flight + sum(self.queue)

    def step(self, dt: float = 1.0) -> int:
        """Serve tokens, then move whole requests into service while there is room; return how many moved."""
        self.in_flight -= min(self.in_flight, int(self.speed * dt * BATCH_TOKENS))
        moved = 0
        while self.queue and self.in_flight < BATCH_TOKENS:
            self.in_flight += self.queue.pop(0)
            moved += 1
        return moved


class LoadBalancer(Protocol):
    """What `simulate` asks which replica gets a request of `req_size` tokens."""

    def route(self, replicas: Sequence[Replica], req_size: int) -> Replica:
        """Return the replica that gets the request."""
        ...


class RoundRobinLB:
    """Request i goes to replica i mod R."""

    def __init__(self) -> None:
        self.routed = 0

    def route(self, replicas: Sequence[Replica], req_size: int) -> Replica:
        """Return the next replica in turn."""
        self.routed += 1
        return replicas[(self.routed - 1) % len(replicas)]


class LeastLoadLB:
    """The smallest load gets the request, the first of equals; tokens in service count `in_service_weight` each."""

    def __init__(self, in_service_weight: float = 1.0) -> None:
        self.in_service_weight = in_service_weight

    def route(self, replicas: Sequence[Replica], req_size: int) -> Replica:
        """Return the replica with the smallest load."""
        return min(replicas, key=lambda replica: sum(replica.queue) + self.in_service_weight * replica.in_flight)


def simulate(
    replicas: Sequence[Replica], lb: LoadBalancer, arrivals: Iterable[tuple[int, int]], total_time: int = 50
) -> list[dict[str, int]]:
    """Run fresh replicas for a number of steps and return the load of each, by name, after each step.

    Parameters
    ----------
    replicas
        Replicas of different names, all empty; they are changed.
    lb
        `RoundRobinLB`, `LeastLoadLB` or anything with their ``route``.
    arrivals
        ``(step, tokens)`` of each request; those of one step are routed in the order given.
    total_time
        Number of steps.

    Raises
    ------
    InputError
        For no replicas, two of one name, or a speed that is not a finite number above 0.

    Examples
    --------
    >>> simulate([Replica("A"), Replica("B")], RoundRobinLB(), [(0, 150), (0, 80), (1, 90)], total_time=3)
    [{'A': 150, 'B': 80}, {'A': 140, 'B': 0}, {'A': 40, 'B': 0}]
    """
    requests = [
        {"request_id": index, "arrival_ms": step, "prompt_tokens": size} for index, (step, size) in enumerate(arrivals)
    ]
    return simulate_token_step(requests, replicas, lb, steps=total_time)[1]


def simulate_token_step(
    requests: Iterable[Mapping[str, Any]],
    replicas: Sequence[Replica],
    lb: LoadBalancer,
    steps: int | None = None,
    step_ms: float = 1.0,
) -> tuple[list[Record], list[dict[str, int]]]:
    """Run a stream of requests and return what became of each, and the loads as `simulate` does.

    Parameters
    ----------
    requests
        Dicts with ``request_id``, ``arrival_ms`` and ``prompt_tokens`` and ``output_tokens`` (0 where missing).
    replicas, lb
        As in `simulate`.
    steps
        Number of steps; None runs until the last request has arrived and every replica is empty.
    step_ms
        Length of a step [ms]; a request arrives in step ``floor(arrival_ms / step_ms)``.

    Returns
    -------
    list of dict
        One per request that arrived within the run: its own keys and ``replica_id``, ``start_ms`` (the step in which it
        entered service, NaN if it never did), ``queue_wait_ms`` (its wait so far if it never did) and ``finished``.
    list of dict
        The load of each replica, by name, after each step.
    """
    if not replicas:
        raise InputError("There are no replicas; give at least 1.")
    distinct("replica name", [replica.name for replica in replicas])
    for replica in replicas:
        number(f"speed of replica {replica.name!r}", replica.speed, above=0.0)

    coming = deque(sorted(requests, key=lambda request: (request["arrival_ms"], request.get("request_id", 0))))
    routed: list[list[Record]] = [[] for _ in replicas]  # to each replica, in order of routing
    entered: list[list[int]] = [[] for _ in replicas]  # the steps in which they entered service
    records: list[Record] = []
    loads: list[dict[str, int]] = []
    step = 0
    while step < steps if steps is not None else coming or any(replica.load() for replica in replicas):
        while coming and _arrival_step(coming[0], step_ms) == step:
            request = coming.popleft()
            replica = lb.route(replicas, _tokens(request))
            replica.queue.append(_tokens(request))
            replica_id = replicas.index(replica)
            records.append({**request, "replica_id": replica_id})
            routed[replica_id].append(records[-1])
        for replica_id, replica in enumerate(replicas):
            entered[replica_id] += [step] * replica.step()
        loads.append({replica.name: replica.load() for replica in replicas})
        step += 1

    for replica, its_records, its_steps in zip(replicas, routed, entered, strict=True):
        served = sum(_tokens(record) for record in its_records) - replica.load()
        needed = 0  # tokens to serve, first come first served, until a request is finished
        for index, record in enumerate(its_records):
            started = index < len(its_steps)
            needed += _tokens(record)
            entered_at = its_steps[index] if started else step
            record["start_ms"] = entered_at * step_ms if started else math.nan
            record["queue_wait_ms"] = (entered_at - _arrival_step(record, step_ms)) * step_ms
            record["finished"] = started and needed <= served
    return records, loads


def summarize_token_step(records: Sequence[Record], loads: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Return the statistics of a run of `simulate_token_step`, named as in the Dataset; zeros for an empty run."""
    waits = [record["queue_wait_ms"] for record in records]
    variances = [sample_variance(list(load.values())) for load in loads]
    left_over = sum(loads[-1].values()) if loads else 0
    return {
        "request_count": len(records),
        "mean_queue_wait_ms": mean(waits),
        "p95_queue_wait_ms": nearest_rank(waits, 0.95),
        "p99_queue_wait_ms": nearest_rank(waits, 0.99),
        "load_variance": mean(variances),
        "peak_load_variance": max(variances, default=0.0),
        "unstarted_requests": sum(math.isnan(record["start_ms"]) for record in records),
        "finished_tokens": sum(_tokens(record) for record in records) - left_over,
        "finished_requests": sum(record["finished"] for record in records),
        "cumulative_load_tokens": [sum(load[name] for load in loads) for name in (loads[0] if loads else ())],
    }


def _arrival_step(request: Mapping[str, Any], step_ms: float) -> int:
    return math.floor(float(request["arrival_ms"]) / step_ms)


def _tokens(request: Mapping[str, Any]) -> int:
    return int(request.get("prompt_tokens", 0)) + int(request.get("output_tokens", 0))
