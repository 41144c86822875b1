"""From a policy, a stream and the events of a fleet to one cell of the router engine."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweep.errors import InputError
from sweep.events import Down, Drain, Events, Slow
from sweep.kernels import beliefs, codes, failures, own_view, replicas, router, rules, statistics, user_rule
from sweep.kernels.beliefs import Fates, new_fates
from sweep.kernels.block_view import Blocks
from sweep.policies import Policy
from sweep.requests import Requests
from sweep.router_rules import signal_weights
from sweep.rules_api import KV_CAPACITY_TOKENS, WINDOW_MS

if TYPE_CHECKING:
    from sweep.engines import Settings

Array = NDArray[Any]

#: The rules that the lane engine of `sweep.kernels.timeline` knows, where nothing is stale, guessed or shared.
_LANE_RULES = ("round_robin", "queue_aware", "locality_aware")
# Below it, times of reports are more than 64 bits count, and the last digits of an arrival.
_LEAST_FRESHNESS_MS = 1e-6
_HASHING = (codes.CONSISTENT_HASH, codes.BOUNDED_HASH)


def needs_router(policy: Policy, events: Events | None, requests: Requests) -> bool:
    """Return whether a cell needs the router engine: another rule than the first three, an axis, events or adapters."""
    turned = policy.name not in _LANE_RULES or bool(policy.changed)
    return turned or events is not None or requests.adapter is not None


def check_policy(policy: Policy, requests: Requests, count: int, settings: Settings) -> None:
    """Raise `InputError` when a policy cannot route a stream to so many replicas."""
    if policy.rule.function:
        return
    given = policy.parameters
    freshness = float(given.get("freshness_ms", 0.0))
    if 0.0 < freshness < _LEAST_FRESHNESS_MS:
        raise InputError(
            f"Parameter 'freshness_ms' of policy {policy.name!r} must be 0, a live view, or at least "
            f"{_LEAST_FRESHNESS_MS:g} ms, got {freshness:g}."
        )
    weights = signal_weights("signal", given["signal"]) if "signal" in given else []
    if weights and weights[codes.TOKENS] + weights[codes.KV] > 0 and len(requests) and not requests.tokens.any():
        raise InputError(
            f"The signal {given['signal']!r} of policy {policy.name!r} counts tokens, but the stream has none; give "
            "prompt_tokens or output_tokens, or use signal='requests'."
        )
    finite = [capacity for capacity in settings.cache_blocks if np.isfinite(capacity)]
    if finite and "kv_capacity_tokens" in policy.changed:
        raise InputError(
            f"Parameter 'kv_capacity_tokens' of policy {policy.name!r} has no say where cache_blocks={finite[0]:g} is "
            "the capacity; leave out the one or the other."
        )
    if finite and weights and weights[codes.KV] > 0:
        if not block_tokens_of(requests) and (requests.blocks is None or len(requests.blocks.ids)):
            raise InputError(
                f"The signal {given['signal']!r} of policy {policy.name!r} needs the tokens of a block where "
                f"cache_blocks={finite[0]:g} is the capacity, but the stream has none; give block_tokens, or another "
                "signal."
            )
        if 0 in finite:
            raise InputError(
                f"The signal {given['signal']!r} of policy {policy.name!r} is a share of the cache, and cache_blocks=0 "
                "leaves none; give another capacity or signal."
            )
    numbers = str(given.get("weights", "")).split(":")
    if "weights" in given and given["weights"] not in ("speed", "measured") and len(numbers) != count:
        raise InputError(
            f"Parameter 'weights' of policy {policy.name!r} has {len(numbers)} numbers for {count} replicas; "
            "give one per replica."
        )


class Ring(NamedTuple):
    """The hash ring of a seed: positions in ascending order, and whose they are."""

    position: Array
    replica: Array


def ring_of(policy: Policy, count: int, seed: int) -> Ring:
    """Return the ring that a policy walks, empty for one that hashes nothing."""
    nodes = int(policy.parameters["virtual_nodes"]) if policy.rule.code in _HASHING else 0
    position, owner = np.empty(nodes * count), np.empty(nodes * count, np.int64)
    if nodes:
        rules.fill_ring(np.uint64(seed), nodes, position, owner)
        order = np.argsort(position, kind="stable")
        position, owner = position[order], owner[order]
    return Ring(position, owner)


def block_tokens_of(requests: Requests) -> int:
    """Return the tokens that fill a block: the most of any, as the last of a chain may be part-filled; 0 = unknown."""
    return 0 if requests.blocks is None else int(requests.blocks.tokens.max(initial=0))


def tokens_held(requests: Requests, capacity: float) -> float | None:
    """Return the tokens that a cache of so many blocks holds; None without a bound, or where they are unknown."""
    tokens = capacity * block_tokens_of(requests) if np.isfinite(capacity) else 0.0
    return tokens if tokens > 0.0 else None


def run_cell(
    traffic: replicas.Traffic,
    policy: Policy,
    speed: Array,
    slack: float,
    seed: int,
    settings: Settings,
    record: Any,
    ring: Ring,
    events: Events | None,
    blocks: Blocks | None = None,
    capacity_tokens: float | None = None,
) -> Fates:
    """Run one cell of the router engine; fill lane 0 of `record` and return what became of each request.

    Parameters
    ----------
    blocks
        Its caches of blocks, filled; None for caches of one key without bound.
    capacity_tokens
        The tokens that such a cache holds, where that is known.

    Raises
    ------
    InputError
        When a user's rule does not compile, or chooses a replica that does not exist or is not up.
    """
    fates = new_fates(len(traffic.arrival))
    rule, values = (None, None) if policy.rule.function is None else _own_rule(policy, slack)
    wrong, chosen = router.run_router(
        traffic,
        *speed_pieces(speed, events),
        rules_of(policy, slack, settings, events, capacity_tokens),
        tables_of(policy, ring, seed, len(traffic.arrival)),
        outages_of(len(speed), events),
        np.uint64(seed),
        settings.warmup,
        record,
        fates,
        blocks,
        rule,
        values,
    )
    if wrong >= 0:
        raise _wrong_choice(policy, wrong, chosen, len(speed))
    return fates


def _own_rule(policy: Policy, slack: float) -> tuple[Any, Array]:
    """Return a user's rule as the kernel takes it, and what it is given."""
    from numba.core.errors import NumbaError

    assert policy.rule.function is not None
    values = np.array([slack, *policy.parameters.values(), 0.0], dtype=np.float64)
    try:
        return user_rule.compiled(policy.rule.function, tuple(policy.parameters)), values
    except NumbaError as error:
        # Of the many lines that Numba writes, the first says what is wrong and the first "File" where.
        lines = [line.strip() for line in str(error).splitlines() if not line.startswith(("Failed in", "During"))]
        said = next(filter(None, lines), "no reason given")
        where = next((f" ({line.rstrip(':')})" for line in lines if line.startswith("File ")), "")
        if "setitem" in said:
            said = "it writes into what it sees, which is read-only"
        if "Function(int64)" in said or "Function(<class 'numpy.int64'>)" in said:
            said, where = "what it returns is not a number on every path", ""
        raise InputError(f"The rule of policy {policy.name!r} cannot be compiled by Numba: {said}{where}.") from error


def _wrong_choice(policy: Policy, request: int, chosen: int, count: int) -> InputError:
    rule = f"The rule of policy {policy.name!r}"
    if chosen == own_view.RAISED:
        return InputError(
            f"{rule} raised an error at request {request}; sweep.reference.Simulation runs it as plain Python and "
            "shows which."
        )
    if 0 <= chosen < count:
        return InputError(
            f"{rule} sent request {request} to replica {chosen}, which its router does not hold to be up; it must "
            "choose among view.up."
        )
    return InputError(
        f"{rule} sent request {request} to a replica that does not exist; it must return a whole number from 0 to "
        f"{count - 1}."
    )


def rules_of(
    policy: Policy, slack: float, settings: Settings, events: Events | None, capacity_tokens: float | None = None
) -> rules.Rules:
    """Return a policy as the kernel takes it; `capacity_tokens` takes the place of its ``kv_capacity_tokens``."""
    given: dict[str, Any] = dict(policy.parameters)
    if policy.rule.function is not None:
        # Its parameters are its own; what its view is measured by is fixed.
        given = {"window_ms": WINDOW_MS, "kv_capacity_tokens": KV_CAPACITY_TOKENS}
    weights = given.get("weights")
    code = policy.rule.code
    name = "requests" if code == codes.BOUNDED_HASH else given.get("signal", "work")
    signal = signal_weights("signal", name)
    used = [at for at, weight in enumerate(signal) if weight > 0.0]
    single = used[0] if len(used) == 1 and signal[used[0]] == 1.0 else -1
    measured = given.get("speed") == "measured" or weights == "measured"
    in_service, error_cv = float(given.get("in_service_weight", 1.0)), float(given.get("work_error_cv", 0.0))
    plain = in_service == 1.0 and error_cv == 0.0 and given.get("speed", "none") == "none" and events is None
    return rules.Rules(
        rule=code,
        work=signal[codes.WORK],
        requests=signal[codes.REQUESTS],
        tokens=signal[codes.TOKENS],
        kv=signal[codes.KV],
        utilisation=signal[codes.UTILISATION],
        single=single,
        exact=single == codes.WORK and plain,
        in_service=in_service,
        error_cv=error_cv,
        freshness=float(given.get("freshness_ms", 0.0)),
        spread=given.get("phase") == "spread",
        correction=codes.CORRECTIONS.index(given.get("correction", "none")),
        tie=codes.TIES.index(given.get("tie", "first")),
        routers=int(given.get("routers", 1)),
        random_router=given.get("router_assignment") == "random",
        window=float(given.get("window_ms", 1.0)),
        kv_capacity=float(capacity_tokens or given.get("kv_capacity_tokens", 1.0)),
        draws=int(given.get("d", 1)),
        replacement=given.get("draws") == "replacement",
        speed=codes.SPEEDS.index(given.get("speed", "none")),
        fading=float(np.log(2.0) / given["half_life_ms"]) if measured else 0.0,
        threshold=float(given.get("threshold", 0.0)),
        relative=float(given.get("relative", 1.0)),
        bound=float(given.get("bound", 0.0)),
        transfer=float(given.get("transfer_ms", 0.0)),
        transfer_per_token=float(given.get("transfer_ms_per_token", 0.0)),
        slack=float(slack),
        speedup=float(settings.cache_hit_speedup),
        adapter_speedup=float(settings.adapter_speedup),
    )


@lru_cache(maxsize=4)
def _work_errors(seed: int, count: int, cv: float) -> Array:
    """Return what `beliefs.work_errors` gives; kept, since the cells of a seed share it."""
    errors: Array = beliefs.work_errors(np.uint64(seed), count, cv)
    return errors


def tables_of(policy: Policy, ring: Ring, seed: int, count: int) -> rules.Tables:
    """Return the arrays of a policy for so many requests as the kernel takes them."""
    weights = "speed" if policy.rule.function else str(policy.parameters.get("weights", "speed"))
    numbers = [] if weights in ("speed", "measured") else [float(part) for part in weights.split(":")]
    error = _work_errors(seed, count, float(policy.parameters.get("work_error_cv", 0.0)))
    return rules.Tables(np.array(numbers, dtype=np.float64), ring.position, ring.replica, error)


def outcome_statistics(
    arrival: Array,
    policy: Policy,
    record: statistics.Record,
    tile: statistics.Tile,
    fates: Fates,
    settings: Settings,
    slo: float,
    events: Events | None,
    out: statistics.Statistics,
) -> dict[str, float]:
    """Fill the statistics of lane 0 over the requests that finished, and return those that only this engine has."""
    warmup = settings.warmup
    extra = {"migrations": float(fates.migrated[warmup:].sum())} if policy.name == "migrate" else {}
    if events is None:
        statistics.cell_statistics(arrival, record, tile, warmup, slo, out)
        return extra
    kept = np.flatnonzero(~fates.lost)
    for array in (record.start, record.effective, record.replica, record.route):
        array[: len(kept), 0] = array[kept, 0]
    finished = record._replace(start=record.start[: len(kept)], effective=record.effective[: len(kept)])
    finished = finished._replace(replica=record.replica[: len(kept)], route=record.route[: len(kept)])
    first = int(np.searchsorted(kept, warmup))
    statistics.cell_statistics(arrival[kept], finished, tile, first, slo, out)
    if len(kept) > first:
        # What arriving requests saw, those included that were lost.
        out.scalars[0, statistics.COLUMNS.index("load_variance")] = record.variance[0] / (len(arrival) - warmup)
    wait = finished.start[:, 0] - arrival[kept]
    recoveries = [
        failures.recovery_ms(arrival[kept], wait, event.start_ms, event.start_ms + events.delay_ms, events.window_ms)
        for event in events.events
    ]
    return extra | {
        "lost_requests": float(fates.lost[warmup:].sum()),
        "retried_requests": float((fates.sent[warmup:] > 1).sum()),
        "misrouted_requests": float(fates.misrouted[warmup:].sum()),
        "recovery_ms": float(np.max(recoveries)) if recoveries else np.nan,
    }


def speed_pieces(speed: Array, events: Events | None) -> tuple[Array, Array]:
    """Return the pieces of every replica's speed as `sweep.kernels.replicas` describes them."""
    first, starts, speeds = [0], [], []
    for replica, nominal in enumerate(speed.tolist()):
        pieces = [(0.0, nominal)]
        for event in events.events if events else ():
            if event.replica == replica and isinstance(event, Slow):
                # The nominal speed stays the first piece: routers hold it for true until they learn of an event at 0.
                if len(pieces) > 1 and pieces[-1][0] == event.start_ms:
                    pieces.pop()
                pieces += [(event.start_ms, nominal * event.factor), (event.end_ms, nominal)]
        starts += [start for start, _ in pieces]
        speeds += [value for _, value in pieces]
        first.append(len(starts))
    return np.array(first), np.array([starts, speeds])


def outages_of(count: int, events: Events | None) -> failures.Outages:
    """Return the outages of so many replicas, and how routers deal with them, as the kernel takes them."""
    happening = events or Events(())
    first, found = [0], []
    for replica in range(count):
        found += [e for e in happening.events if e.replica == replica and isinstance(e, (Down, Drain))]
        first.append(len(found))
    start = np.array([event.start_ms for event in found], dtype=np.float64)
    end = np.array([event.end_ms for event in found], dtype=np.float64)
    breaker = happening.breaker
    return failures.Outages(
        total=len(happening.events),
        first=np.array(first),
        start=start,
        end=end,
        drain=np.array([isinstance(event, Drain) for event in found], dtype=np.bool_),
        changes=np.unique(np.concatenate([start, end]) + happening.delay_ms),
        delay=float(happening.delay_ms),
        retries=happening.retries if events else 0,
        breaker_failures=breaker.failures if breaker else 0,
        breaker_ms=breaker.cooldown_ms if breaker else 0.0,
        wait=int(happening.no_replica == "wait"),
    )
