"""Caches of blocks in the router engine: what a cell hands in, what routers believe of them, and replicas that fail.

A live router sees the caches themselves. Where views are reported, ``known`` is what the last report of a replica said,
and ``sent`` what a router sent there itself since. A replica that went down comes back empty; until it is back or known
to be down, its cache is left alone, which is what a live router sees.

Axis letters: i request, p place in the flat chains, b block, r replica, w word of 64 replicas, k router.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.block_cache import (
    BLOCKS,
    EVICTIONS,
    MATCHED,
    MATCHED_TOKENS,
    PROMPT,
    RECOMPUTED,
    Caches,
    News,
    note,
    reveal,
)
from sweep.kernels.block_match import Chained, Costs, longest, longest_believed
from sweep.kernels.jit import inlined, kernel


class Views(NamedTuple):
    """What routers believe: ``known`` [b, w], by report, and ``sent`` [k, b, w]; no rows where it is not needed."""

    known: np.ndarray
    sent: np.ndarray
    news: News


class Blocks(NamedTuple):
    """The caches of a cell: a stream, its costs and caches of a kind; filled per request: blocks and tokens matched.

    ``evicted`` [i] counts for every time that a request was sent. ``totals`` are the sums at the end, by the columns of
    `sweep.kernels.block_cache`.
    """

    stream: Chained
    costs: Costs
    kind: int
    capacity: int
    late: bool
    caches: Caches
    views: Views
    matched: np.ndarray
    tokens: np.ndarray
    evicted: np.ndarray
    totals: np.ndarray


def new_views(blocks: int, replicas: int, routers: int) -> Views:
    """Return room for views; 0 blocks where routers see the caches themselves, 0 routers where none counts its own."""
    words = (replicas + 63) // 64
    shape = (blocks, words)
    news = News(np.zeros(shape, np.int64), np.empty((replicas, blocks), np.int32), np.zeros(replicas, np.int64))
    return Views(np.zeros(shape, np.int64), np.zeros((routers, *shape), np.int64), news)


@kernel
def clear_views(views):
    """Let all routers know nothing."""
    views.known[:] = 0
    views.sent[:] = 0
    views.news.dirty[:] = 0
    views.news.size[:] = 0


# --- What is there, by time -------------------------------------------------------------------------------------------


@kernel
def empty(r, caches, news):
    """Empty the cache of a replica."""
    word = r >> 6
    bit = np.int64(1) << (r & 63)
    for b in range(caches.holders.shape[0]):
        if caches.holders[b, word] & bit != 0:
            caches.holders[b, word] &= ~bit
            note(b, r, word, bit, news)
    caches.mark[r] = -1
    caches.residents[r] = 0
    caches.last[r] = -1
    caches.hidden[r] = -1
    caches.ends[r] = -1
    caches.least[r] = 1


@kernel
def empty_lost(r, t, outages, emptied, caches, news):
    """Empty the cache of a replica that went down and by `t` is back or known to be down; ``emptied[r]`` moves on."""
    while emptied[r] < outages.first[r + 1]:
        j = emptied[r]
        if not outages.drain[j]:
            if min(outages.end[j], outages.start[j] + outages.delay) > t:
                break
            empty(r, caches, news)
        emptied[r] += 1


@inlined
def reveal_noting(t, r, chain, offsets, caches, news):
    """Make the blocks of a replica visible whose prefill has ended by `t`."""
    i = caches.hidden[r]
    caches.hidden[r] = reveal(
        t, r, i, caches.visible, caches.follow, caches.mark[r], caches.born[r], caches.holders, chain, offsets
    )
    while i != caches.hidden[r]:
        note_all(i, r, chain, offsets, news)
        i = caches.follow[i]


@inlined
def note_all(i, r, chain, offsets, news):
    """Note that the blocks of a request may have changed on a replica."""
    if news.dirty.shape[0] > 0:
        for p in range(offsets[i], offsets[i + 1]):
            if chain[p] >= 0:
                note(chain[p], r, r >> 6, np.int64(1) << (r & 63), news)


# --- What routers believe ---------------------------------------------------------------------------------------------


@inlined
def report(r, until_seen, router, chain, offsets, caches, views):
    """Tell the routers what a replica holds; ``router[i]`` sent a request.

    With `until_seen` they still count on what they sent there and no report includes.
    """
    news = views.news
    word = r >> 6
    bit = np.int64(1) << (r & 63)
    for c in range(news.size[r]):
        b = news.changed[r, c]
        news.dirty[b, word] &= ~bit
        views.known[b, word] = (views.known[b, word] & ~bit) | (caches.holders[b, word] & bit)
        for k in range(views.sent.shape[0]):
            views.sent[k, b, word] &= ~bit
    news.size[r] = 0
    if until_seen:
        i = caches.hidden[r]
        while i >= 0:
            note_sent(i, r, router[i], chain, offsets, views)
            i = caches.follow[i]


@inlined
def note_sent(i, r, k, chain, offsets, views):
    """Let a router count on the blocks of a request that it sent to a replica."""
    for p in range(offsets[i], offsets[i + 1]):
        if chain[p] >= 0:
            views.sent[k, chain[p], r >> 6] |= np.int64(1) << (r & 63)
    note_all(i, r, chain, offsets, views.news)


@kernel
def notice(r, t, outages, noticed, reported_at, views):
    """Let the routers forget a replica that they know by `t` to have gone down, unless a later report told them."""
    word = r >> 6
    bit = np.int64(1) << (r & 63)
    while noticed[r] < outages.first[r + 1]:
        j = noticed[r]
        if outages.start[j] + outages.delay > t:
            break
        if not outages.drain[j] and reported_at <= outages.start[j]:
            for b in range(views.known.shape[0]):
                views.known[b, word] &= ~bit
                for k in range(views.sent.shape[0]):
                    views.sent[k, b, word] &= ~bit
        noticed[r] += 1


@kernel
def believed_longest(i, k, up, stale, corrected, chain, offsets, holders, views, alive, some):
    """Fill which replicas, of those up, a router believes to match most of a request's chain; return how much."""
    alive[:] = 0
    for r in range(up.size):
        alive[r >> 6] |= np.int64(up[r]) << (r & 63)
    if corrected:
        depth = longest_believed(views.known, views.sent[k], chain, offsets[i], offsets[i + 1], alive)
    else:
        depth = longest(views.known if stale else holders, chain, offsets[i], offsets[i + 1], alive)
    for r in range(up.size):
        some[r] = (alive[r >> 6] >> (r & 63)) & 1 != 0
    return depth


@kernel
def longest_elsewhere(i, now, outages, outage, chain, offsets, holders, alive):
    """Return the longest match of a request's chain on any replica that is not down."""
    alive[:] = -1
    for r in range(outage.size):
        j = outage[r]
        if j < outages.first[r + 1] and outages.start[j] <= now and not outages.drain[j]:
            alive[r >> 6] &= ~(np.int64(1) << (r & 63))
    return longest(holders, chain, offsets[i], offsets[i + 1], alive)


@kernel
def sum_up(blocks, replica, lost, warmup, per_replica, cell):
    """Fill the sums of a cell over requests from `warmup` on, of those that were not lost; `replica` served each."""
    stream = blocks.stream
    per_replica[:] = 0
    cell[:] = blocks.totals
    cell[EVICTIONS] = 0
    cell[RECOMPUTED] = 0
    for i in range(warmup, stream.prompt.size):
        cell[EVICTIONS] += blocks.evicted[i]
        if not lost[i]:
            sums = per_replica[replica[i]]
            sums[BLOCKS] += stream.offsets[i + 1] - stream.offsets[i]
            sums[MATCHED] += blocks.matched[i]
            sums[PROMPT] += stream.prompt[i]
            sums[MATCHED_TOKENS] += blocks.tokens[i]
            cell[RECOMPUTED] += stream.seen[i] - blocks.tokens[i]
