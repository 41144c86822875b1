"""The timeline engine around caches of prefix blocks under the three live rules, one cell at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.block_cache import (
    BLOCKS,
    EVICTIONS,
    LRU,
    MATCHED,
    MATCHED_TOKENS,
    PROMPT,
    RECOMPUTED,
    UNBOUNDED,
    clear,
    count_copies,
    reveal,
    touch_lfu,
    touch_lru,
    touch_unbounded,
)
from sweep.kernels.block_match import holds, longest, match_of, tokens_of
from sweep.kernels.jit import kernel
from sweep.kernels.timeline import LOCALITY_AWARE, PREFIX_LOCALITY, QUEUE_AWARE, QUEUE_FALLBACK, STICKY_SESSION


class Totals(NamedTuple):
    """Sums of a cell: by the columns of `sweep.kernels.block_cache`, per replica and of the cell; filled."""

    replica: np.ndarray
    cell: np.ndarray


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
    clear(caches)
    moves = 0.0
    variance = 0.0
    peak = 0.0
    for i in range(arrival.size):
        t = arrival[i]
        low = offsets[i]
        high = offsets[i + 1]
        if late:
            for r in range(replicas):
                caches.hidden[r] = reveal(
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
            alive[:] = -1
            depth = longest(caches.holders, chain, low, high, alive)
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
            if holds(alive, chosen):
                matched = depth
        elif rule != QUEUE_AWARE:
            chosen = i % replicas
        if matched < 0:
            matched = match_of(caches.holders, chain, low, high, chosen)

        tokens = tokens_of(matched, low, chain, stream.reach, stream.prompt[i])
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

        # As `touch` does, which Numba would hand all arrays of the caches, counting their references.
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
            caches.residents[chosen] = touch_unbounded(
                caches.holders, word, bit, caches.residents[chosen], i, chain, offsets
            )
        elif capacity > 0:
            if kind == LRU:
                evicted, count, cursor, at = touch_lru(
                    caches.mark[chosen], caches.born[chosen], caches.holders, chosen, word, bit, caches.follow,
                    caches.cursor[chosen], caches.at[chosen],
                    caches.residents[chosen], i, chain, offsets, capacity, late, None,
                )  # fmt: skip
                caches.residents[chosen] = count
                caches.cursor[chosen] = cursor
                caches.at[chosen] = at
            else:
                evicted, count, least_often = touch_lfu(
                    caches.mark[chosen], caches.born[chosen], caches.holders, chosen, word, bit, caches.slot[chosen],
                    caches.ends[chosen], caches.least[chosen], caches.residents[chosen],
                    i, chain, offsets, capacity, late, None,
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
    count_copies(caches.residents, caches.mark, caches.holders, late, totals.cell)
