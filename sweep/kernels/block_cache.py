"""The timeline engine around finite caches of prefix blocks, one cell at a time.

A request brings a chain of block ids. A replica that holds the first k of them has a match of k, and saves their
prefill. Which replicas hold a block is a mask of bits, words of 64 replicas, so that one walk along the chain
matches it against all of them. Blocks that occur once in the whole stream can never match; they carry the id -1 and
only take up room.

Least recently used without lists: the stream's own order of blocks is the log of touches. A replica keeps the place
of its last touch of each block, and a cursor that runs over the chains of the requests it served. The block under
the cursor is the oldest if its last touch was there; otherwise it was touched again later, and the cursor moves on.
Each cursor passes each block it served once.

Axis letters: i request, p place in the flat chains, b block, r replica, w word of 64 replicas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.jit import kernel
from sweep.kernels.timeline import LOCALITY_AWARE, PREFIX_LOCALITY, QUEUE_AWARE, QUEUE_FALLBACK, STICKY_SESSION

UNBOUNDED, LRU, LFU = range(3)

#: Columns of `Totals.replica`, and of `Totals.cell`.
BLOCKS, MATCHED, PROMPT, MATCHED_TOKENS = range(4)
EVICTIONS, COPIES, DISTINCT, RECOMPUTED = range(4)


class Chained(NamedTuple):
    """A stream of requests with chains of blocks.

    ``chain`` [p] holds block ids from 0 and -1 for those that occur once; request i has ``offsets[i]`` to
    ``offsets[i + 1]``. ``reach`` [b]: tokens of a block and all before it. ``seen`` [i]: tokens that an earlier
    request had.
    """

    arrival: np.ndarray
    service: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    session: np.ndarray
    chain: np.ndarray
    offsets: np.ndarray
    reach: np.ndarray
    seen: np.ndarray


class Costs(NamedTuple):
    """What a request costs: by tokens [ms] if ``by_tokens``, else the share ``speedup`` that a whole match saves."""

    by_tokens: bool
    base: float
    prefill: float
    decode: float
    speedup: float


class Caches(NamedTuple):
    """The caches of all replicas: scratch, made by `new_caches` and used again from cell to cell.

    ``mark`` [r, b]: for LRU the place of the last touch, for LFU the slot, -1 = not resident. ``born`` [r, b]: the
    place of insertion. ``holders`` [b, w]: bits of the replicas where it is visible. ``residents`` [r]: how many.
    ``follow`` [i]: next request of the same replica; ``last``, ``cursor``, ``at``, ``hidden`` [r]: its last request,
    the request and place of the cursor, and the first request whose blocks are not visible yet. ``visible`` [i]: when
    they are. ``slot`` [r, s, 4]: block, previous and next slot of the same count, count. ``ends`` [r, count, 2]: first
    and last slot of a count; ``least`` [r]: the smallest count.
    """

    mark: np.ndarray
    born: np.ndarray
    holders: np.ndarray
    residents: np.ndarray
    follow: np.ndarray
    last: np.ndarray
    cursor: np.ndarray
    at: np.ndarray
    hidden: np.ndarray
    visible: np.ndarray
    slot: np.ndarray
    ends: np.ndarray
    least: np.ndarray


class Totals(NamedTuple):
    """Sums of a cell: per replica the columns `BLOCKS` ..., and for the cell `EVICTIONS` ...; filled."""

    replica: np.ndarray
    cell: np.ndarray


def new_caches(requests: int, blocks: int, replicas: int, kind: int, late: bool, capacity: int, most: int) -> Caches:
    """Return the scratch that cells of one kind need; `most` is how often a block can be touched."""
    words = (replicas + 63) // 64
    marks = blocks if kind != UNBOUNDED else 0
    slots = capacity if kind == LFU else 0
    counts = most + 2 if kind == LFU else 0
    return Caches(
        np.empty((replicas, marks), np.int32),
        np.empty((replicas, blocks if late else 0), np.int32),
        np.empty((blocks, words), np.int64),
        np.empty(replicas, np.int64),
        np.empty(requests, np.int64),
        np.empty(replicas, np.int64),
        np.empty(replicas, np.int64),
        np.empty(replicas, np.int64),
        np.empty(replicas, np.int64),
        np.empty(requests),
        np.empty((replicas, slots, 4), np.int32),
        np.empty((replicas, counts, 2), np.int32),
        np.empty(replicas, np.int64),
    )


_BLOCK, _PREVIOUS, _NEXT, _COUNT = range(4)
_FIRST, _LAST = range(2)


# --- Least recently used ----------------------------------------------------------------------------------------------


@kernel
def _touch_lru(mark, born, holders, word, bit, follow, cursor, at, count, i, chain, offsets, capacity, late):
    """Touch or insert the blocks of request i on one replica, front to back.

    Returns the evictions, the residents and where the cursor stands now.
    """
    evicted = 0
    end = offsets[cursor + 1]
    p = offsets[i] - 1
    for b in chain[offsets[i] : offsets[i + 1]]:
        p += 1
        if b >= 0 and mark[np.uint64(b)] >= 0:
            mark[np.uint64(b)] = p
            continue
        if count < capacity:
            count += 1
        else:
            # A full cache holds a block at least, so that the cursor finds one before it comes to p.
            while True:
                while at == end:
                    cursor = follow[cursor]
                    at = offsets[cursor]
                    end = offsets[cursor + 1]
                old = chain[np.uint64(at)]
                at += 1
                if old < 0:
                    break
                if mark[np.uint64(old)] == at - 1:
                    mark[np.uint64(old)] = -1
                    holders[np.uint64(old), word] &= ~bit
                    break
            evicted += 1
        if b >= 0:
            mark[np.uint64(b)] = p
            if late:
                born[b] = p
            else:
                holders[np.uint64(b), word] |= bit
    return evicted, count, cursor, at


# --- Least frequently used --------------------------------------------------------------------------------------------


@kernel
def _unlink(slots, ends, s):
    count = slots[s, _COUNT]
    before = slots[s, _PREVIOUS]
    after = slots[s, _NEXT]
    if before >= 0:
        slots[before, _NEXT] = after
    else:
        ends[count, _FIRST] = after
    if after >= 0:
        slots[after, _PREVIOUS] = before
    else:
        ends[count, _LAST] = before


@kernel
def _append(slots, ends, s, count):
    before = ends[count, _LAST]
    slots[s, _PREVIOUS] = before
    slots[s, _NEXT] = -1
    slots[s, _COUNT] = count
    if before >= 0:
        slots[before, _NEXT] = s
    else:
        ends[count, _FIRST] = s
    ends[count, _LAST] = s


@kernel
def _touch_lfu(mark, born, holders, word, bit, slots, ends, least, count, i, chain, offsets, capacity, late):
    """Touch or insert the blocks of request i on one replica, front to back.

    Returns the evictions, the residents and the smallest count.
    """
    evicted = 0
    for p in range(offsets[i], offsets[i + 1]):
        b = chain[p]
        if b >= 0 and mark[np.uint64(b)] >= 0:
            s = np.int64(mark[np.uint64(b)])
            times = np.int64(slots[s, _COUNT])
            _unlink(slots, ends, s)
            if times == least and ends[times, _FIRST] < 0:
                least = times + 1
            _append(slots, ends, s, times + 1)
            continue
        if count < capacity:
            s = count
            count += 1
        else:
            # Of those touched least often, the one at the front of the list was touched longest ago.
            s = np.int64(ends[least, _FIRST])
            _unlink(slots, ends, s)
            old = slots[s, _BLOCK]
            if old >= 0:
                mark[np.uint64(old)] = -1
                holders[np.uint64(old), word] &= ~bit
            evicted += 1
        slots[s, _BLOCK] = b
        _append(slots, ends, s, np.int64(1))
        least = np.int64(1)
        if b >= 0:
            mark[np.uint64(b)] = s
            if late:
                born[b] = p
            else:
                holders[np.uint64(b), word] |= bit
    return evicted, count, least


# --- All kinds --------------------------------------------------------------------------------------------------------


@kernel
def _touch_unbounded(holders, word, bit, count, i, chain, offsets):
    for p in range(offsets[i], offsets[i + 1]):
        b = chain[p]
        if b < 0:
            count += 1
        elif holders[np.uint64(b), word] & bit == 0:
            holders[np.uint64(b), word] |= bit
            count += 1
    return count


@kernel
def _reveal(t, r, hidden, visible, follow, mark, born, holders, chain, offsets):
    """Make the blocks of replica r visible whose prefill has ended by t; return its first request that has not."""
    i = hidden
    while i >= 0 and visible[i] <= t:
        for p in range(offsets[i], offsets[i + 1]):
            b = chain[p]
            # Resident still, and since this very insertion.
            if b >= 0 and mark[b] >= 0 and born[b] == p:
                holders[b, r >> 6] |= np.int64(1) << (r & 63)
        i = follow[i]
    return i


@kernel
def _longest(holders, chain, low, high, alive):
    """Fill `alive` with the replicas of the longest match of a chain; return its length."""
    words = alive.size
    depth = 0
    if words == 1:
        # The usual case, kept in a register.
        mask = np.int64(-1)
        for b in chain[low:high]:
            both = holders[np.uint64(b), 0] & mask if b >= 0 else np.int64(0)
            if both == 0:
                break
            mask = both
            depth += 1
        alive[0] = mask if depth > 0 else np.int64(0)
        return depth
    alive[:] = 0
    for p in range(low, high):
        b = chain[p]
        if b < 0:
            break
        some = np.int64(0)
        for w in range(words):
            some |= holders[b, w] & (alive[w] if depth > 0 else np.int64(-1))
        if some == 0:
            break
        for w in range(words):
            alive[w] = holders[b, w] & (alive[w] if depth > 0 else np.int64(-1))
        depth += 1
    return depth


@kernel
def _match_of(holders, chain, low, high, r):
    """Return how many blocks from the front replica r holds."""
    word = r >> 6
    bit = np.int64(1) << (r & 63)
    for p in range(low, high):
        b = chain[p]
        if b < 0 or holders[b, word] & bit == 0:
            return p - low
    return high - low


@kernel
def _bits(word):
    """Return how many bits of a word are set."""
    w = np.uint64(word)
    w = w - ((w >> np.uint64(1)) & np.uint64(0x5555555555555555))
    w = (w & np.uint64(0x3333333333333333)) + ((w >> np.uint64(2)) & np.uint64(0x3333333333333333))
    w = (w + (w >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((w * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _count_copies(count, mark, holders, late, cell):
    """Fill in how many blocks are resident at the end, and how many different ones."""
    shared = np.int64(0)
    distinct = np.int64(0)
    for b in range(holders.shape[0]):
        here = np.int64(0)
        if late:
            # Some are resident, but not visible yet.
            for r in range(count.size):
                here += mark[r, b] >= 0
        else:
            for w in range(holders.shape[1]):
                here += _bits(holders[b, w])
        shared += here
        distinct += here > 0
    # Whatever occurs once in the stream is on one replica at most.
    cell[COPIES] = count.sum()
    cell[DISTINCT] = distinct + count.sum() - shared


@kernel
def _clear(caches):
    caches.mark[:] = -1
    caches.holders[:] = 0
    caches.residents[:] = 0
    caches.last[:] = -1
    caches.cursor[:] = 0
    caches.at[:] = 0
    caches.hidden[:] = -1
    caches.ends[:] = -1
    caches.least[:] = 1


@kernel
def run_block_cell(
    rule, stream, costs, sessions, speed, slack, kind, capacity, late, warmup, caches, record, lane, totals
):  # fmt: skip
    """Route and serve every request; record what happened in one lane of a record.

    Parameters
    ----------
    rule : int
        ``ROUND_ROBIN``, ``QUEUE_AWARE`` or ``LOCALITY_AWARE`` of the timeline engine.
    stream : Chained
    costs : Costs
    sessions : int
        Session ids lie below it, -1 = none.
    speed : float64[replica]
    slack : float
    kind : int
        ``UNBOUNDED``, ``LRU`` or ``LFU``; the first cannot be late.
    capacity : int
        Blocks that a replica holds.
    late : bool
        Whether blocks become visible when their prefill ends, and not at dispatch.
    warmup : int
        First arrivals left out of all sums.
    caches : Caches
        Scratch.
    record : Record
    lane : int
    totals : Totals
    """
    arrival = stream.arrival
    chain = stream.chain
    offsets = stream.offsets
    replicas = speed.size
    available = np.zeros(replicas, np.float64)
    wait = np.empty(replicas, np.float64)
    owners = np.full(sessions + 1, -1, np.int64)
    alive = np.zeros((replicas + 63) >> 6, np.int64)
    totals.replica[:] = 0
    totals.cell[:] = 0
    _clear(caches)
    moves = 0.0
    variance = 0.0
    peak = 0.0
    for i in range(arrival.size):
        t = arrival[i]
        low = offsets[i]
        high = offsets[i + 1]
        if late:
            for r in range(replicas):
                caches.hidden[r] = _reveal(
                    t, r, caches.hidden[r], caches.visible, caches.follow, caches.mark[r], caches.born[r],
                    caches.holders, chain, offsets,
                )  # fmt: skip
        total = 0.0
        least = np.inf
        shortest = 0
        for r in range(replicas):
            w = max(0.0, available[r] - t)
            wait[r] = w
            total += w
            if w < least:
                least = w
                shortest = r
        owner = owners[stream.session[i]]
        chosen = shortest
        why = 0
        matched = -1
        if rule == LOCALITY_AWARE:
            limit = least + slack
            why = QUEUE_FALLBACK
            depth = _longest(caches.holders, chain, low, high, alive)
            near = np.inf
            if depth > 0:
                nearest = -1
                for r in range(replicas):
                    if (alive[r >> 6] >> (r & 63)) & 1 and wait[r] < near:
                        near = wait[r]
                        nearest = r
                if near <= limit:
                    chosen = nearest
                    why = PREFIX_LOCALITY
            if owner >= 0 and wait[owner] <= limit:
                chosen = owner
                why = STICKY_SESSION
            if (alive[chosen >> 6] >> (chosen & 63)) & 1:
                matched = depth
        elif rule != QUEUE_AWARE:
            chosen = i % replicas
        if matched < 0:
            matched = _match_of(caches.holders, chain, low, high, chosen)

        tokens = np.int64(0)
        if matched > 0:
            tokens = min(stream.reach[chain[low + matched - 1]], stream.prompt[i])
        # Multiply, then divide: a reciprocal of the speed would route some ties differently.
        begin = max(t, available[chosen])
        prefilled = begin
        if costs.by_tokens:
            prefill = costs.base + costs.prefill * np.float64(stream.prompt[i] - tokens)
            took = (prefill + costs.decode * np.float64(stream.output[i])) / speed[chosen]
            prefilled = begin + prefill / speed[chosen]
        else:
            share = matched / (high - low) if matched > 0 else 0.0
            took = (stream.service[i] * (1.0 - costs.speedup * share)) / speed[chosen]
            prefilled = begin + took
        available[chosen] = begin + took

        caches.follow[i] = -1
        if caches.last[chosen] >= 0:
            caches.follow[caches.last[chosen]] = i
        else:
            caches.cursor[chosen] = i
            caches.at[chosen] = low
        caches.last[chosen] = i
        if late:
            caches.visible[i] = prefilled
            if caches.hidden[chosen] < 0:
                caches.hidden[chosen] = i
        evicted = 0
        word = chosen >> 6
        bit = np.int64(1) << (chosen & 63)
        if kind == UNBOUNDED:
            caches.residents[chosen] = _touch_unbounded(
                caches.holders, word, bit, caches.residents[chosen], i, chain, offsets
            )
        elif capacity > 0:
            if kind == LRU:
                evicted, count, cursor, at = _touch_lru(
                    caches.mark[chosen], caches.born[chosen], caches.holders, word, bit, caches.follow,
                    caches.cursor[chosen], caches.at[chosen],
                    caches.residents[chosen], i, chain, offsets, capacity, late,
                )  # fmt: skip
                caches.residents[chosen] = count
                caches.cursor[chosen] = cursor
                caches.at[chosen] = at
            else:
                evicted, count, least_often = _touch_lfu(
                    caches.mark[chosen], caches.born[chosen], caches.holders, word, bit, caches.slot[chosen],
                    caches.ends[chosen], caches.least[chosen], caches.residents[chosen],
                    i, chain, offsets, capacity, late,
                )  # fmt: skip
                caches.residents[chosen] = count
                caches.least[chosen] = least_often

        if i >= warmup:
            if replicas > 1:
                mean = total / replicas
                squares = 0.0
                for r in range(replicas):
                    squares += (wait[r] - mean) * (wait[r] - mean)
                squares /= replicas - 1
                variance += squares
                peak = max(peak, squares)
            if owner >= 0 and owner != chosen:
                moves += 1.0
            sums = totals.replica[chosen]
            sums[BLOCKS] += high - low
            sums[MATCHED] += matched
            sums[PROMPT] += stream.prompt[i]
            sums[MATCHED_TOKENS] += tokens
            totals.cell[EVICTIONS] += evicted
            totals.cell[RECOMPUTED] += stream.seen[i] - tokens
        if stream.session[i] >= 0:
            owners[stream.session[i]] = chosen
        record.start[i, lane] = begin
        record.effective[i, lane] = took
        record.replica[i, lane] = chosen
        record.route[i, lane] = np.uint8(2 * why + (matched > 0))
    record.moves[lane] = moves
    record.variance[lane] = variance
    record.peak[lane] = peak
    _count_copies(caches.residents, caches.mark, caches.holders, late, totals.cell)
