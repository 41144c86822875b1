"""From one stream with chains of blocks and one policy to arrays: the caller of the block-cache kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweep.chains import Blocks
from sweep.errors import InputError, distinct, number, one_of
from sweep.kernels import block_cache, block_cell, block_view, statistics, timeline
from sweep.kernels.block_cell import Totals
from sweep.kernels.block_match import Chained, Costs
from sweep.policies import Policy
from sweep.requests import Requests

if TYPE_CHECKING:
    from sweep.engines import Settings

Array = NDArray[Any]

EVICTIONS = {"lru": block_cache.LRU, "lfu": block_cache.LFU}
VISIBLE = ("dispatch", "prefill_end")
RULES = {
    "round_robin": timeline.ROUND_ROBIN,
    "queue_aware": timeline.QUEUE_AWARE,
    "locality_aware": timeline.LOCALITY_AWARE,
}


def as_cache_blocks(given: Any) -> tuple[float, ...]:
    """Return the capacities [blocks] asked for, infinity for an unbounded cache, checked and distinct; () for None.

    Raises
    ------
    InputError
        For a capacity that is not a whole number >= 0, None or infinity, or one given twice.

    Examples
    --------
    >>> as_cache_blocks([1000, None])
    (1000.0, inf)
    """
    if given is None:
        return ()
    many: Iterable[Any] = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    values = tuple(math.inf if one is None else number("cache_blocks", one, at_least=0, finite=False) for one in many)
    if not values:
        raise InputError("cache_blocks is empty; give a capacity [blocks], or None for an unbounded cache.")
    for value in values:
        if math.isfinite(value) and value != int(value):
            raise InputError(f"cache_blocks must be a whole number of blocks, got {value:g}.")
    distinct("cache_blocks", values)
    return values


def check(eviction: str, cache_visible: str) -> None:
    """Raise `InputError` for an unknown way to evict, or moment at which blocks become visible."""
    one_of("eviction", eviction, tuple(EVICTIONS))
    one_of("cache_visible", cache_visible, VISIBLE)


class ChainedStream(NamedTuple):
    """A stream as the block-cache kernel takes it, prepared once for all of its cells."""

    requests: Requests
    arrays: Chained
    sessions: int
    distinct: int
    most_touches: int
    by_tokens: bool
    sized: bool

    @classmethod
    def of(cls, requests: Requests) -> ChainedStream:
        """Return the stream of `requests`; without chains of blocks, its prefixes are chains of one block."""
        blocks = Blocks.single(requests.prefix) if requests.blocks is None else requests.blocks
        touches = np.bincount(blocks.ids, minlength=blocks.distinct)
        # What occurs once is never found again.
        again = touches >= 2
        dense = np.where(again, np.cumsum(again) - 1, -1)
        arrays = Chained(
            requests.arrival_ms,
            requests.service_ms,
            requests.prompt_tokens,
            requests.output_tokens,
            requests.session,
            dense[blocks.ids].astype(np.int32),
            blocks.offsets,
            blocks.reach[again],
            blocks.tokens_of(blocks.seen_before(), requests.prompt_tokens),
        )
        by_tokens = requests.blocks is not None and requests.service_model is not None
        most = int(touches.max(initial=0))
        return cls(requests, arrays, requests.session_count, blocks.distinct, most, by_tokens, blocks.sized)

    @property
    def first_blocks(self) -> Array:
        """Return the block that each chain starts with, -1 for none."""
        blocks = self.requests.blocks
        if blocks is None:
            return self.requests.prefix
        first = np.full(len(blocks), -1)
        first[blocks.lengths > 0] = blocks.ids[blocks.offsets[:-1][blocks.lengths > 0]]
        return first

    def costs(self, speedup: float) -> Costs:
        """Return what requests cost."""
        model = self.requests.service_model
        if not self.by_tokens or model is None:
            return Costs(False, 0.0, 0.0, 0.0, speedup)
        return Costs(True, model.base_ms, model.prefill_ms_per_token, model.decode_ms_per_token, speedup)


class CacheScratch:
    """The caches of the last cells, kept for the next ones of the same kind."""

    def __init__(self, stream: ChainedStream, replicas: int, settings: Settings) -> None:
        self.stream, self.replicas = stream, replicas
        self.late = settings.cache_visible == "prefill_end"
        self.eviction = EVICTIONS[settings.eviction]
        self._kept: tuple[tuple[int, int], block_cache.Caches] | None = None

    def caches(self, capacity: float) -> tuple[int, int, block_cache.Caches]:
        """Return the kind of cells of a capacity, the capacity as the kernel takes it, and their scratch."""
        # A cache that holds every block evicts none; one that tells late blocks apart still has to mark them.
        everything = capacity >= self.stream.distinct
        kind = self.eviction if not everything else block_cache.LRU if self.late else block_cache.UNBOUNDED
        size = self.stream.distinct if everything else int(capacity)
        key = (kind, size if kind == block_cache.LFU else 0)
        if self._kept is None or self._kept[0] != key:
            arrays = self.stream.arrays
            self._kept = None
            caches = block_cache.new_caches(
                len(arrays.arrival), len(arrays.reach), self.replicas, kind, self.late, size, self.stream.most_touches
            )
            self._kept = key, caches
        return kind, size, self._kept[1]


def block_cells(
    stream: ChainedStream,
    speeds: Array,
    policy: Policy,
    slack: Array,
    settings: Settings,
    out: statistics.Statistics,
    records: Callable[[int], tuple[statistics.Record, statistics.Tile]],
    stop: Callable[[], bool],
) -> tuple[dict[str, Array], bool]:
    """Simulate one stream for every slack, row of `speeds` and capacity; fill `out`, those three varying in that order.

    Returns
    -------
    The variables of blocks by name, cell first, and whether the run came to its end.
    """
    capacities = settings.cache_blocks or (math.inf,)
    cells = [(s, h, capacity) for s in slack for h in range(len(speeds)) for capacity in capacities]
    replicas = speeds.shape[1]
    totals = Totals(np.zeros((len(cells), replicas, 4), np.int64), np.zeros((len(cells), 4), np.int64))
    scratch = CacheScratch(stream, replicas, settings)
    slo = np.inf if settings.slo_ms is None else float(settings.slo_ms)
    together = 8
    for low in range(0, len(cells), together):
        if stop():
            return {}, False
        high = min(low + together, len(cells))
        record, tile = records(high - low)
        # Cells of one capacity one after the other keep their scratch.
        for cell in sorted(range(low, high), key=lambda cell: cells[cell][2]):
            s, h, capacity = cells[cell]
            part = Totals(totals.replica[cell], totals.cell[cell])
            _run(stream, speeds[h], policy, float(s), capacity, settings, scratch, record, cell - low, part)
        statistics.cell_statistics(
            stream.arrays.arrival,
            record,
            tile,
            settings.warmup,
            slo,
            statistics.Statistics(*(array[low:high] for array in out)),
        )
    return block_variables(totals, stream.sized), True


def block_record_of(
    stream: ChainedStream, speeds: Array, policy: Policy, slack: float, settings: Settings
) -> statistics.Record:
    """Return the record of one cell."""
    record, _ = statistics.new_record(len(stream.requests), 1)
    capacity = (settings.cache_blocks or (math.inf,))[0]
    totals = Totals(np.zeros((len(speeds), 4), np.int64), np.zeros(4, np.int64))
    scratch = CacheScratch(stream, len(speeds), settings)
    _run(stream, speeds, policy, slack, capacity, settings, scratch, record, 0, totals)
    return record


def _run(
    stream: ChainedStream,
    speed: Array,
    policy: Policy,
    slack: float,
    capacity: float,
    settings: Settings,
    scratch: CacheScratch,
    record: statistics.Record,
    lane: int,
    totals: Totals,
) -> None:
    kind, size, caches = scratch.caches(capacity)
    block_cell.run_block_cell(
        RULES[policy.name],
        stream.arrays,
        stream.costs(float(settings.cache_hit_speedup)),
        stream.sessions,
        np.ascontiguousarray(speed),
        slack,
        kind,
        size,
        scratch.late,
        settings.warmup,
        caches,
        record,
        lane,
        totals,
    )


def block_variables(totals: Totals, sized: bool) -> dict[str, Array]:
    """Return the variables of blocks by name, from the sums of cells, cell first; tokens are NaN unless `sized`."""
    known = 1.0 if sized else np.nan

    def rate(part: Array, whole: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = part / whole
        return found

    per_replica = totals.replica
    whole = per_replica.sum(axis=1)
    cell = totals.cell
    return {
        "block_hit_rate": rate(whole[:, block_cache.MATCHED], whole[:, block_cache.BLOCKS]),
        "token_hit_rate": rate(whole[:, block_cache.MATCHED_TOKENS], whole[:, block_cache.PROMPT]) * known,
        "evictions": cell[:, block_cache.EVICTIONS],
        "duplicate_residency": rate(cell[:, block_cache.COPIES], cell[:, block_cache.DISTINCT]),
        "recomputed_prefill_tokens": cell[:, block_cache.RECOMPUTED] * known,
        "replica_block_hit_rate": rate(per_replica[..., block_cache.MATCHED], per_replica[..., block_cache.BLOCKS]),
        "replica_token_hit_rate": rate(
            per_replica[..., block_cache.MATCHED_TOKENS], per_replica[..., block_cache.PROMPT]
        )
        * known,
    }


def routed_blocks(scratch: CacheScratch, policy: Policy, capacity: float, settings: Settings) -> block_view.Blocks:
    """Return the caches of a cell as the router engine takes them."""
    stream = scratch.stream
    kind, size, caches = scratch.caches(capacity)
    given = {} if policy.rule.function else policy.parameters
    stale = float(given.get("freshness_ms", 0.0)) > 0.0
    corrected = stale and given.get("correction", "none") != "none"
    count = len(stream.requests)
    return block_view.Blocks(
        stream.arrays,
        stream.costs(float(settings.cache_hit_speedup)),
        kind,
        size,
        scratch.late,
        caches,
        block_view.new_views(
            caches.holders.shape[0] if stale else 0, scratch.replicas, int(given.get("routers", 1)) if corrected else 0
        ),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(4, np.int64),
    )


def uses_blocks(requests: Requests, settings: Settings) -> bool:
    """Return whether caches of blocks are simulated: there are chains, or a capacity was given."""
    return bool(settings.cache_blocks) or requests.blocks is not None
