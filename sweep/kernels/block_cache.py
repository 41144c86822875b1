"""Finite caches of prefix blocks: what each replica holds, and what goes when it is full.

Which replicas hold a block is a mask of bits, words of 64 replicas. Blocks that occur once in the whole stream can
never match; they carry the id -1 and only take up room.

Least recently used without lists: the stream's own order of blocks is the log of touches. A replica keeps the place
of its last touch of each block, and a cursor that runs over the chains of the requests it served. The block under
the cursor is the oldest if its last touch was there; otherwise it was touched again later, and the cursor moves on.
Each cursor passes each block it served once. A request comes to a replica once at most before that loses its cache.

Axis letters: i request, p place in the flat chains, b block, r replica, w word of 64 replicas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.jit import inlined, kernel

UNBOUNDED, LRU, LFU = range(3)

#: Columns of the sums of a cell: per replica, and of all.
BLOCKS, MATCHED, PROMPT, MATCHED_TOKENS = range(4)
EVICTIONS, COPIES, DISTINCT, RECOMPUTED = range(4)


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


class News(NamedTuple):
    """What changed on each replica since its last report: ``changed`` [r], the first ``size`` [r] of it.

    ``dirty`` [b, w] marks the same, and has no rows where nobody reports.
    """

    dirty: np.ndarray
    changed: np.ndarray
    size: np.ndarray


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


@kernel
def note(b, r, word, bit, news):
    """Note that a block may have changed on a replica."""
    if news.dirty.shape[0] > 0 and news.dirty[b, word] & bit == 0:
        news.dirty[b, word] |= bit
        news.changed[r, news.size[r]] = b
        news.size[r] += 1


_BLOCK, _PREVIOUS, _NEXT, _COUNT = range(4)
_FIRST, _LAST = range(2)


# --- Least recently used ----------------------------------------------------------------------------------------------


@kernel
def touch_lru(mark, born, holders, r, word, bit, follow, cursor, at, count, i, chain, offsets, capacity, late, news):
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
                    if news is not None:
                        note(old, r, word, bit, news)
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
def touch_lfu(mark, born, holders, r, word, bit, slots, ends, least, count, i, chain, offsets, capacity, late, news):
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
                if news is not None:
                    note(old, r, word, bit, news)
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
def touch_unbounded(holders, word, bit, count, i, chain, offsets):
    """Insert the blocks of request i on one replica; return the residents."""
    for p in range(offsets[i], offsets[i + 1]):
        b = chain[p]
        if b < 0:
            count += 1
        elif holders[np.uint64(b), word] & bit == 0:
            holders[np.uint64(b), word] |= bit
            count += 1
    return count


@inlined
def reveal(t, r, hidden, visible, follow, mark, born, holders, chain, offsets):
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
def touch(i, r, kind, capacity, late, prefilled, chain, offsets, caches, news):
    """Let replica r touch or insert the blocks of request i; return how many were evicted for them."""
    caches.follow[i] = -1
    if caches.last[r] >= 0:
        caches.follow[caches.last[r]] = i
    else:
        caches.cursor[r] = i
        caches.at[r] = offsets[i]
    caches.last[r] = i
    if late:
        caches.visible[i] = prefilled
        if caches.hidden[r] < 0:
            caches.hidden[r] = i
    evicted = 0
    word = r >> 6
    bit = np.int64(1) << (r & 63)
    if kind == UNBOUNDED:
        caches.residents[r] = touch_unbounded(caches.holders, word, bit, caches.residents[r], i, chain, offsets)
    elif capacity > 0:
        if kind == LRU:
            evicted, count, cursor, at = touch_lru(
                caches.mark[r], caches.born[r], caches.holders, r, word, bit, caches.follow, caches.cursor[r],
                caches.at[r], caches.residents[r], i, chain, offsets, capacity, late, news,
            )  # fmt: skip
            caches.residents[r] = count
            caches.cursor[r] = cursor
            caches.at[r] = at
        else:
            evicted, count, least_often = touch_lfu(
                caches.mark[r], caches.born[r], caches.holders, r, word, bit, caches.slot[r], caches.ends[r],
                caches.least[r], caches.residents[r], i, chain, offsets, capacity, late, news,
            )  # fmt: skip
            caches.residents[r] = count
            caches.least[r] = least_often
    return evicted


@kernel
def _bits(word):
    """Return how many bits of a word are set."""
    w = np.uint64(word)
    w = w - ((w >> np.uint64(1)) & np.uint64(0x5555555555555555))
    w = (w & np.uint64(0x3333333333333333)) + ((w >> np.uint64(2)) & np.uint64(0x3333333333333333))
    w = (w + (w >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((w * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def count_copies(count, mark, holders, late, cell):
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
def clear(caches):
    """Empty the caches of all replicas."""
    caches.mark[:] = -1
    caches.holders[:] = 0
    caches.residents[:] = 0
    caches.last[:] = -1
    caches.cursor[:] = 0
    caches.at[:] = 0
    caches.hidden[:] = -1
    caches.ends[:] = -1
    caches.least[:] = 1
