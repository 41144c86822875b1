"""The statistics of a cell, from the record of its requests.

Cells stand side by side as *lanes*, the last axis of a record. Each loop does one simple thing, so that the
compiler turns those over lanes into SIMD and keeps the others short; every lane's sums still run in arrival
order and are never reassociated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.jit import kernel


class Record(NamedTuple):
    """What happened to every request in every lane; filled by an engine.

    ``start`` and ``effective`` (service time) are float64 ms, ``replica`` is uint32 and ``route`` is uint8, the
    code ``2 * reason + hit``; all are [request, lane], with columns to spare. Per lane stands what only the
    engine sees: ``moves`` (session moves), and ``variance`` and ``peak`` (sum over arrivals and largest variance
    of outstanding work).
    """

    start: np.ndarray
    effective: np.ndarray
    replica: np.ndarray
    route: np.ndarray
    moves: np.ndarray
    variance: np.ndarray
    peak: np.ndarray


class Tile(NamedTuple):
    """Scratch of the statistics: the queue waits, latencies and reasons of a few lanes, [lane, request]."""

    wait: np.ndarray
    latency: np.ndarray
    reason: np.ndarray


class Statistics(NamedTuple):
    """The results, lane first: `COLUMNS`, then per replica (requests, busy ms), then per reason."""

    scalars: np.ndarray
    requests: np.ndarray
    busy: np.ndarray
    reasons: np.ndarray
    mean_by: np.ndarray
    p99_by: np.ndarray


def new_record(requests: int, lanes: int) -> tuple[Record, Tile]:
    """Return the scratch memory that `requests` in `lanes` need; reuse it, since fresh pages cost time."""
    shape = (requests, -(-lanes // _TILE) * _TILE)
    columns = (np.empty(lanes) for _ in range(3))
    record = Record(np.empty(shape), np.empty(shape), np.empty(shape, np.uint32), np.empty(shape, np.uint8), *columns)
    tile = (_TILE, requests)
    return record, Tile(np.empty(tile), np.empty(tile), np.empty(tile, np.uint8))


def new_statistics(lanes: int, replicas: int, reasons: int) -> Statistics:
    """Return room for the statistics of `lanes` cells."""
    return Statistics(
        np.empty((lanes, len(COLUMNS))),
        np.empty((lanes, replicas), np.int64),
        np.empty((lanes, replicas)),
        np.empty((lanes, reasons), np.int64),
        np.empty((lanes, reasons)),
        np.empty((lanes, reasons)),
    )


#: The scalar statistics, in the order of the columns that `cell_statistics` fills.
COLUMNS = (
    "request_count",
    "mean_queue_wait_ms",
    "p50_queue_wait_ms",
    "p95_queue_wait_ms",
    "p99_queue_wait_ms",
    "max_queue_wait_ms",
    "mean_latency_ms",
    "p95_latency_ms",
    "p99_latency_ms",
    "throughput_requests_per_s",
    "cache_hit_rate",
    "load_skew_ratio",
    "makespan_ms",
    "session_moves",
    "max_offered_load",
    "load_variance",
    "peak_load_variance",
    "slo_attainment",
)
(
    _COUNT,
    _MEAN_WAIT,
    _P50_WAIT,
    _P95_WAIT,
    _P99_WAIT,
    _MAX_WAIT,
    _MEAN_LATENCY,
    _P95_LATENCY,
    _P99_LATENCY,
    _THROUGHPUT,
    _HIT_RATE,
    _SKEW,
    _MAKESPAN,
    _MOVES,
    _OFFERED,
    _VARIANCE,
    _PEAK_VARIANCE,
    _SLO,
) = range(len(COLUMNS))

# Quantiles come from a histogram over the high bits of the float (exponent and 4 bits of mantissa, so
# 16 bins per octave), then a selection inside the one bin that holds the rank: exact, without a sort.
_BINS = 1024
_SHIFT = 48
_FIRST = (1023 - 20) << 4  # bin 0 holds zero alone, bin 1 what is below 2**-20 ms, the last what is above 2**44


# Lanes transposed together: one cache line of float64.
_TILE = 8


@kernel
def _bin(bits):
    # Unsigned, so that no index has to be checked for being negative.
    return np.uint64(min(max((bits >> _SHIFT) - _FIRST, np.int64(bits != 0)), _BINS - 1))


@kernel
def _select(values, n, rank):
    """Return the element of `rank` of ``values[:n]``, reordering them (Hoare's selection)."""
    low = 0
    high = n - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i = low
        j = high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return values[rank]


@kernel
def _quantiles(values, group, histogram, row, count, per_cent, near, bucket, out):
    """Fill ``out[s]`` with the nearest-rank quantile ``per_cent[s]`` of the values counted in ``histogram[row[s]]``.

    A row of the histogram counts the values of one group; the last row, at the index of the number of groups, all.
    ``count[s]`` is how many values the row holds; `near` and `bucket` are scratch of the length of `values`.
    """
    bits = values.view(np.int64)
    groups = histogram.shape[0] - 1
    slots = row.size
    slot_bin = np.zeros(slots, np.uint64)
    slot_rank = np.zeros(slots, np.int64)
    wanted = np.zeros(_BINS, np.int64)
    lowest = 0
    while lowest < _BINS - 1 and histogram[groups, lowest] == 0:
        lowest += 1
    for s in range(slots):
        out[s] = np.nan
        if count[s] == 0:
            continue
        # Element ceil(q * n) - 1 of the sorted values, in whole numbers: 0.95 is not a binary fraction.
        rank = (per_cent[s] * count[s] + 99) // 100 - 1
        counts = histogram[row[s]]
        b = lowest
        below = 0
        while below + counts[b] <= rank:
            below += counts[b]
            b += 1
        out[s] = 0.0
        slot_bin[s] = b
        slot_rank[s] = rank - below
        if b > 0:
            wanted[b] = 1
    found = 0
    for i in range(values.size):
        near[found] = i
        found += wanted[_bin(bits[i])]
    for s in range(slots):
        if count[s] == 0 or slot_bin[s] == 0:
            continue
        size = 0
        for j in range(found):
            i = near[j]
            bucket[size] = values[i]
            size += _bin(bits[i]) == slot_bin[s] and (row[s] == groups or row[s] == group[i])
        out[s] = _select(bucket, size, slot_rank[s])


@kernel
def _count_bins(values, group, histogram):
    bits = values.view(np.int64)
    for i in range(bits.size):
        histogram[np.uint64(group[i]), _bin(bits[i])] += 1


@kernel
def _count_bins_of_all(values, counts):
    bits = values.view(np.int64)
    for i in range(bits.size):
        counts[_bin(bits[i])] += 1


@kernel
def _wait_sums(first, arrival, start, slo, total, longest, within):
    for i in range(first, arrival.size):
        t = arrival[i]
        begin = start[i]
        for lane in range(total.size):
            wait = begin[lane] - t
            total[lane] += wait
            longest[lane] = max(longest[lane], wait)
            within[lane] += 1.0 if wait <= slo else 0.0


@kernel
def _latency_sums(first, arrival, start, effective, total, last):
    for i in range(first, arrival.size):
        t = arrival[i]
        begin = start[i]
        took = effective[i]
        for lane in range(total.size):
            finish = begin[lane] + took[lane]
            total[lane] += finish - t
            last[lane] = max(last[lane], finish)


@kernel
def _per_replica_and_reason(first, arrival, record, hits, requests, busy, reasons, wait_by):
    for i in range(first, arrival.size):
        t = arrival[i]
        begin = record.start[i]
        took = record.effective[i]
        replica = record.replica[i]
        route = record.route[i]
        # Neighbouring lanes write to different cells, which hides the latency of sums kept in memory.
        for lane in range(hits.size):
            r = np.uint64(replica[lane])
            k = np.uint64(route[lane] >> 1)
            hits[lane] += np.float64(route[lane] & 1)
            requests[lane, r] += 1
            busy[lane, r] += took[lane]
            reasons[lane, k] += 1
            wait_by[lane, k] += begin[lane] - t


@kernel
def _transpose(first, arrival, start, effective, route, tile):
    for i in range(first, arrival.size):
        t = arrival[i]
        # A constant number of columns, which the compiler unrolls; a record is padded to hold them.
        for lane in range(_TILE):
            begin = start[i, lane]
            tile.wait[lane, i - first] = begin - t
            tile.latency[lane, i - first] = begin + effective[i, lane] - t
            tile.reason[lane, i - first] = route[i, lane] >> 1


@kernel
def _fill_quantiles(tile, lane, n, reasons, of_wait, of_latency, row, per_cent, near, bucket, found, scalars, p99_by):
    groups = p99_by.size
    count = np.full(groups + 3, n)
    count[:groups] = reasons
    wait = tile.wait[lane, :n]
    latency = tile.latency[lane, :n]
    reason = tile.reason[lane, :n]
    of_wait[:] = 0
    of_latency[:] = 0
    _count_bins(wait, reason, of_wait)
    _count_bins_of_all(latency, of_latency[0])
    for k in range(groups):
        for b in range(_BINS):
            of_wait[groups, b] += of_wait[k, b]
    _quantiles(wait, reason, of_wait, row, count, per_cent, near, bucket, found)
    for k in range(groups):
        p99_by[k] = found[k]
    scalars[_P50_WAIT] = found[groups]
    scalars[_P95_WAIT] = found[groups + 1]
    scalars[_P99_WAIT] = found[groups + 2]
    # The latency's histogram has the one row 0, for all.
    _quantiles(latency, reason, of_latency, np.zeros(2, np.int64), count[-2:], per_cent[-2:], near, bucket, found)
    scalars[_P95_LATENCY] = found[0]
    scalars[_P99_LATENCY] = found[1]


@kernel
def cell_statistics(arrival, record, tile, warmup, slo, out):
    """Fill `out` with the statistics of every lane of `record`.

    Parameters
    ----------
    arrival : float64[request]
    record : Record
    tile : Tile
        Scratch.
    warmup : int
        First arrivals left out.
    slo : float
        Objective for the queue wait, ms.
    out : Statistics
    """
    lanes = out.scalars.shape[0]
    replicas = out.requests.shape[1]
    groups = out.reasons.shape[1]
    n = max(arrival.size - warmup, 0)
    out.requests[:] = 0
    out.busy[:] = 0.0
    out.reasons[:] = 0
    out.mean_by[:] = 0.0
    if n == 0:
        out.scalars[:] = np.nan
        out.mean_by[:] = np.nan
        out.p99_by[:] = np.nan
        for lane in range(lanes):
            out.scalars[lane, _COUNT] = 0.0
            out.scalars[lane, _MOVES] = 0.0
        return
    total_wait = np.zeros(lanes, np.float64)
    longest = np.zeros(lanes, np.float64)
    within = np.zeros(lanes, np.float64)
    total_latency = np.zeros(lanes, np.float64)
    last = np.zeros(lanes, np.float64)  # no finish is below 0
    hits = np.zeros(lanes, np.float64)
    _wait_sums(warmup, arrival, record.start, slo, total_wait, longest, within)
    _latency_sums(warmup, arrival, record.start, record.effective, total_latency, last)
    _per_replica_and_reason(warmup, arrival, record, hits, out.requests, out.busy, out.reasons, out.mean_by)
    window = arrival[-1] - arrival[warmup]
    for lane in range(lanes):
        cell = out.scalars[lane]
        most = out.requests[lane, 0]
        fewest = most
        busiest = out.busy[lane, 0]
        for r in range(replicas):
            most = max(most, out.requests[lane, r])
            fewest = min(fewest, out.requests[lane, r])
            busiest = max(busiest, out.busy[lane, r])
        makespan = last[lane] - arrival[warmup]
        cell[_COUNT] = n
        cell[_MEAN_WAIT] = total_wait[lane] / n
        cell[_MEAN_LATENCY] = total_latency[lane] / n
        cell[_MAX_WAIT] = longest[lane]
        cell[_MAKESPAN] = makespan
        cell[_THROUGHPUT] = n * 1000.0 / makespan if makespan > 0.0 else np.nan
        cell[_HIT_RATE] = hits[lane] / n
        cell[_SLO] = within[lane] / n
        cell[_SKEW] = (most - fewest) / (n / replicas)
        cell[_OFFERED] = busiest / window if window > 0.0 else np.nan
        cell[_MOVES] = record.moves[lane]
        cell[_VARIANCE] = record.variance[lane] / n
        cell[_PEAK_VARIANCE] = record.peak[lane]
        for k in range(groups):
            out.mean_by[lane, k] = out.mean_by[lane, k] / out.reasons[lane, k]

    of_wait = np.empty((groups + 1, _BINS), np.int32)
    of_latency = np.empty((1, _BINS), np.int32)
    near = np.empty(n, np.int64)
    bucket = np.empty(n, np.float64)
    found = np.empty(groups + 3, np.float64)
    row = np.empty(groups + 3, np.int64)
    per_cent = np.empty(groups + 3, np.int64)
    for slot in range(groups + 3):
        row[slot] = min(slot, groups)
        per_cent[slot] = 99
    per_cent[groups] = 50
    per_cent[groups + 1] = 95
    for low in range(0, lanes, _TILE):
        high = min(low + _TILE, lanes)
        _transpose(warmup, arrival, record.start[:, low:], record.effective[:, low:], record.route[:, low:], tile)
        for lane in range(low, high):
            _fill_quantiles(
                tile, lane - low, n, out.reasons[lane], of_wait, of_latency, row, per_cent, near, bucket, found,
                out.scalars[lane], out.p99_by[lane],
            )  # fmt: skip
