"""From one stream and one policy to arrays: the only place that calls the kernels.

Results are dicts of arrays named as in `sweep.variables`, shaped (slack, heterogeneity, ...), where slack has
length 1 for a policy that does not read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweep import block_cells, token_cells
from sweep.block_cells import CacheScratch, ChainedStream, block_variables, routed_blocks, uses_blocks
from sweep.columns import by_appearance
from sweep.errors import InputError, number, whole
from sweep.events import Events
from sweep.kernels import statistics, timeline
from sweep.kernels.beliefs import Fates
from sweep.kernels.block_cell import Totals
from sweep.kernels.block_view import sum_up
from sweep.kernels.replicas import Traffic
from sweep.policies import Policy
from sweep.requests import Requests
from sweep.routing import check_policy, needs_router, outcome_statistics, ring_of, run_cell, tokens_held
from sweep.variables import FAILURES, MIGRATIONS, VARIABLES

Array = NDArray[Any]
Arrays = dict[str, Array]

_TIMELINE_RULES = {
    "round_robin": timeline.ROUND_ROBIN,
    "queue_aware": timeline.QUEUE_AWARE,
    "locality_aware": timeline.LOCALITY_AWARE,
}

# Scratch of one call: long streams and many replicas advance fewer lanes at a time.
_SCRATCH_BYTES = 128 * 2**20


class Stopped(Exception):
    """Raised between kernel calls when the caller asked to stop."""


@dataclass(frozen=True)
class Settings:
    """The scalars of a run, checked.

    Raises
    ------
    InputError
        For a value out of range.
    """

    cache_hit_speedup: float = 0.30
    warmup: int = 0
    slo_ms: float | None = None
    steps: int | None = None
    step_ms: float = 1.0
    adapter_speedup: float = 0.0
    #: Capacities [blocks] of a replica's cache; () = not given. They are a dimension if ``cache_axis``.
    cache_blocks: tuple[float, ...] = ()
    cache_axis: bool = False
    eviction: str = "lru"
    cache_visible: str = "dispatch"

    def __post_init__(self) -> None:
        block_cells.check(self.eviction, self.cache_visible)
        number("cache_hit_speedup", self.cache_hit_speedup, at_least=0, at_most=1)
        number("adapter_speedup", self.adapter_speedup, at_least=0, at_most=1)
        whole("warmup", self.warmup)
        number("step_ms", self.step_ms, above=0)
        if self.slo_ms is not None:
            number("slo_ms", self.slo_ms, at_least=0)
        if self.steps is not None:
            whole("steps", self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-safe values; those of caches and adapters only where they are not the default.

        A grid without them keeps its fingerprint.
        """
        found = asdict(self)
        found["cache_blocks"] = ["inf" if np.isinf(size) else int(size) for size in self.cache_blocks]
        for name in ("adapter_speedup", "cache_blocks", "cache_axis", "eviction", "cache_visible"):
            if getattr(self, name) == getattr(type(self), name):
                del found[name]
        return found

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Settings:
        """Return the settings that `to_dict` wrote."""
        capacities = tuple(float(size) for size in content.get("cache_blocks", ()))
        return cls(**{**content, "cache_blocks": capacities})


class Scratch:
    """The memory of the last records, kept for the next ones: fresh pages cost as much as the simulation."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[statistics.Record, statistics.Tile]] = {}

    def record(self, requests: int, lanes: int) -> tuple[statistics.Record, statistics.Tile]:
        """Return a record of that size, its content left over from earlier use."""
        size = (requests, lanes)
        if size not in self._kept:
            if len(self._kept) >= 4:
                self._kept.clear()
            self._kept[size] = statistics.new_record(requests, lanes)
        return self._kept[size]


class Stream(NamedTuple):
    """A stream as the lane engine takes it, prepared once for all of its cells.

    That engine only asks whether an id was seen before, so ids that occur once are dropped.
    """

    requests: Requests
    arrival: Array
    service: Array
    prefix: Array
    session: Array
    prefixes: int
    sessions: int

    @classmethod
    def of(cls, requests: Requests) -> Stream:
        """Return the stream of `requests`."""
        prefix, prefixes = _recurring(requests.prefix)
        session, sessions = _recurring(requests.session)
        return cls(requests, requests.arrival_ms, requests.service_ms, prefix, session, prefixes, sessions)


def prepared(requests: Requests, settings: Settings) -> Stream | ChainedStream:
    """Return the stream as the kernels of its kind take it: with caches of blocks or without."""
    return ChainedStream.of(requests) if uses_blocks(requests, settings) else Stream.of(requests)


def check_stream(
    requests: Requests, speeds: Array, engine: str, settings: Settings, events: Events | None = None
) -> None:
    """Raise `InputError` when the stream cannot run on the engine."""
    if engine == "timeline":
        return
    if settings.cache_blocks:
        raise InputError("cache_blocks is a setting of the engine 'timeline'; 'token_step' has no caches.")
    if settings.warmup:
        raise InputError(f"warmup must be 0 on the engine 'token_step', which measures steps, got {settings.warmup}.")
    if settings.slo_ms is not None:
        raise InputError(f"slo_ms is a setting of the engine 'timeline', got {settings.slo_ms:g} for 'token_step'.")
    if len(requests) and not requests.tokens.any():
        raise InputError(
            "The engine 'token_step' serves tokens, but the stream has none; give prompt_tokens or output_tokens, "
            "or use engine='timeline'."
        )
    token_cells.check_steps(requests, speeds, settings, events)


def cells(
    stream: Stream | ChainedStream,
    speeds: Array,
    policy: Policy,
    slack: Array,
    seed: int,
    engine: str,
    settings: Settings,
    scratch: Scratch | None = None,
    stop: Callable[[], bool] = lambda: False,
    events: Events | None = None,
) -> Arrays:
    """Simulate one stream under one policy for every slack and row of `speeds`.

    Parameters
    ----------
    speeds
        (heterogeneity, replica).
    slack
        (slack,) [ms]; only the first is used when the policy does not read it.
    seed
        Of the uniforms that a rule may use.
    scratch
        Memory to use again between calls of one thread.
    stop
        Asked between kernel calls.
    events
        What happens to the replicas.

    Raises
    ------
    Stopped
        When `stop` says so.
    InputError
        When a user's rule does not compile or returns a replica that does not exist.
    """
    slack = slack if policy.rule.reads_slack else slack[:1]
    if engine == "token_step":
        return _token_cells(stream.requests, speeds, policy, seed, settings, stop, events)
    scratch = scratch or Scratch()
    check_policy(policy, stream.requests, speeds.shape[1], settings)
    if needs_router(policy, events, stream.requests):
        return _routed_cells(stream, speeds, policy, slack, seed, settings, scratch, stop, events)
    if isinstance(stream, ChainedStream):
        return _block_cells(stream, speeds, policy, slack, settings, scratch, stop)
    return _lane_cells(stream, speeds, policy, slack, settings, scratch, stop)


def _lane_cells(
    stream: Stream,
    speeds: Array,
    policy: Policy,
    slack: Array,
    settings: Settings,
    scratch: Scratch,
    stop: Callable[[], bool],
) -> Arrays:
    shape = (len(slack), len(speeds))
    lane_slack = np.repeat(slack, len(speeds))
    lane_speed = np.tile(speeds, (len(slack), 1))
    out = statistics.new_statistics(len(lane_slack), speeds.shape[1], len(policy.rule.reasons))
    slo = np.inf if settings.slo_ms is None else float(settings.slo_ms)
    for low, high in _lane_groups(stream, speeds.shape[1], len(lane_slack)):
        if stop():
            raise Stopped
        record, tile = scratch.record(len(stream.arrival), high - low)
        _run_lanes(stream, policy, lane_speed[low:high], lane_slack[low:high], settings, record)
        part = statistics.Statistics(*(array[low:high] for array in out))
        statistics.cell_statistics(stream.arrival, record, tile, settings.warmup, slo, part)
    return _named(out, shape, settings)


def _routed_cells(
    stream: Stream | ChainedStream,
    speeds: Array,
    policy: Policy,
    slack: Array,
    seed: int,
    settings: Settings,
    scratch: Scratch,
    stop: Callable[[], bool],
    events: Events | None,
) -> Arrays:
    """Run cells of the router engine one by one, those of one capacity of the caches one after the other."""
    traffic = traffic_of(stream)
    ring = ring_of(policy, speeds.shape[1], seed)
    capacities = settings.cache_blocks or (np.inf,)
    shape: tuple[int, ...] = (len(slack), len(speeds), len(capacities))
    reasons = len(policy.reasons(stream.requests.adapter is not None))
    out = statistics.new_statistics(int(np.prod(shape)), speeds.shape[1], reasons)
    slo = np.inf if settings.slo_ms is None else float(settings.slo_ms)
    caches = CacheScratch(stream, speeds.shape[1], settings) if isinstance(stream, ChainedStream) else None
    sums = (len(out.scalars), speeds.shape[1], 4)
    totals = Totals(np.zeros(sums, np.int64), np.zeros((sums[0], 4), np.int64))
    extras: dict[tuple[int, ...], dict[str, float]] = {}
    for c, s, h in np.ndindex(shape[2], *shape[:2]):
        if stop():
            raise Stopped
        record, tile = scratch.record(len(stream.requests), 1)
        blocks = routed_blocks(caches, policy, capacities[c], settings) if caches is not None else None
        full = tokens_held(stream.requests, capacities[c])
        fates = run_cell(
            traffic, policy, speeds[h], float(slack[s]), seed, settings, record, ring, events, blocks, full
        )
        lane = int(np.ravel_multi_index((s, h, c), shape))
        if blocks is not None:
            sum_up(blocks, record.replica[:, 0], fates.lost, settings.warmup, totals.replica[lane], totals.cell[lane])
        part = statistics.Statistics(*(array[lane : lane + 1] for array in out))
        extras[s, h, c] = outcome_statistics(traffic.arrival, policy, record, tile, fates, settings, slo, events, part)
    ordered = [extras[place] for place in np.ndindex(shape)]
    extra = {name: np.array([found[name] for found in ordered]) for name in (ordered[0] if ordered else ())}
    if caches is not None:
        extra |= block_variables(totals, caches.stream.sized)
    shape = shape if settings.cache_axis else shape[:2]
    return _named(out, shape, settings) | _typed(extra, "timeline", shape)


def _block_cells(
    stream: ChainedStream,
    speeds: Array,
    policy: Policy,
    slack: Array,
    settings: Settings,
    scratch: Scratch,
    stop: Callable[[], bool],
) -> Arrays:
    shape: tuple[int, ...] = (len(slack), len(speeds), max(len(settings.cache_blocks), 1))
    out = statistics.new_statistics(int(np.prod(shape)), speeds.shape[1], len(policy.rule.reasons))
    found, ended = block_cells.block_cells(
        stream, speeds, policy, slack, settings, out, lambda lanes: scratch.record(len(stream.requests), lanes), stop
    )
    if not ended:
        raise Stopped
    shape = shape if settings.cache_axis else shape[:2]
    return _named(out, shape, settings) | _typed(found, "timeline", shape)


def record_of(
    requests: Requests,
    speeds: Array,
    policy: Policy,
    slack: float,
    seed: int,
    settings: Settings,
    events: Events | None = None,
) -> tuple[statistics.Record, Array, Fates | None]:
    """Return the record of one cell of the timeline engine, per request whether it was a cache hit, and its fate."""
    check_policy(policy, requests, len(speeds), settings)
    stream = prepared(requests, settings)
    fates = None
    if needs_router(policy, events, requests):
        record, _ = statistics.new_record(len(requests), 1)
        ring = ring_of(policy, len(speeds), seed)
        blocks = None
        capacity = (settings.cache_blocks or (np.inf,))[0]
        if isinstance(stream, ChainedStream):
            blocks = routed_blocks(CacheScratch(stream, len(speeds), settings), policy, capacity, settings)
        full, traffic = tokens_held(requests, capacity), traffic_of(stream)
        fates = run_cell(traffic, policy, speeds, slack, seed, settings, record, ring, events, blocks, full)
    elif isinstance(stream, ChainedStream):
        record = block_cells.block_record_of(stream, speeds, policy, slack, settings)
    else:
        record, _ = statistics.new_record(len(requests), 1)
        _run_lanes(stream, policy, speeds[np.newaxis], np.array([slack]), settings, record)
    return record, (record.route[:, 0] & 1).astype(bool), fates


def _recurring(ids: Array) -> tuple[Array, int]:
    """Return dense ids of the keys that occur at least twice, -1 for all others, and how many there are."""
    again = np.bincount(ids + 1) >= 2
    again[:1] = False
    dense = np.where(again, np.cumsum(again) - 1, -1)
    return dense[ids + 1], int(again.sum())


def traffic_of(stream: Stream | ChainedStream) -> Traffic:
    """Return a stream as the router engine takes it, ids numbered in order of first appearance.

    A chain of blocks is known by its first; what replicas hold of it is not for this engine to tell by that key.
    """
    requests = stream.requests
    blocks = isinstance(stream, ChainedStream)
    prefix, prefixes = by_appearance(stream.first_blocks if isinstance(stream, ChainedStream) else requests.prefix)
    session, sessions = by_appearance(requests.session)
    adapter, adapters = by_appearance(np.full(len(requests), -1) if requests.adapter is None else requests.adapter)
    return Traffic(
        requests.arrival_ms, requests.service_ms, prefix, session, adapter, requests.prompt_tokens, requests.tokens,
        0 if blocks else prefixes, sessions, adapters,
    )  # fmt: skip


def _lane_groups(stream: Stream, replicas: int, lanes: int) -> list[tuple[int, int]]:
    words = (replicas + 63) // 64
    per_lane = 8 * (3 * len(stream.arrival) + stream.prefixes * words + stream.sessions + 2 * replicas)
    together = int(np.clip(_SCRATCH_BYTES // max(per_lane, 1), 1, timeline.LANES))
    return list(pairwise([*range(0, lanes, together), lanes]))


def _run_lanes(
    stream: Stream, policy: Policy, speed: Array, slack: Array, settings: Settings, record: statistics.Record
) -> None:
    timeline.run_lanes(
        _TIMELINE_RULES[policy.name],
        *stream[1:],
        np.ascontiguousarray(speed.T),
        slack,
        float(settings.cache_hit_speedup),
        settings.warmup,
        record,
    )


def _named(out: statistics.Statistics, shape: tuple[int, ...], settings: Settings) -> Arrays:
    per_cell = {name: out.scalars[:, column] for column, name in enumerate(statistics.COLUMNS)}
    if settings.slo_ms is None:
        del per_cell["slo_attainment"]
    per_cell |= {
        "replica_requests": out.requests,
        "replica_busy_ms": out.busy,
        "reason_count": out.reasons,
        "mean_queue_wait_ms_by_reason": out.mean_by,
        "p99_queue_wait_ms_by_reason": out.p99_by,
    }
    return _typed(per_cell, "timeline", shape)


def _typed(per_cell: Arrays, engine: str, shape: tuple[int, ...]) -> Arrays:
    """Return the arrays with the integer variables as integers and the leading axis split into `shape`."""
    known = VARIABLES[engine] | MIGRATIONS | FAILURES
    return {
        name: array.astype(np.int64 if known[name].integer else np.float64).reshape(*shape, *array.shape[1:])
        for name, array in per_cell.items()
    }


def _token_cells(
    requests: Requests,
    speeds: Array,
    policy: Policy,
    seed: int,
    settings: Settings,
    stop: Callable[[], bool],
    events: Events | None,
) -> Arrays:
    def check() -> None:
        if stop():
            raise Stopped

    cell = token_cells.TokenCell(requests, policy, speeds.shape[1], seed, settings, events)
    return _typed(cell.statistics(speeds, check), "token_step", (1, len(speeds)))
