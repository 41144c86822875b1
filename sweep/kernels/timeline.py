"""The timeline engine: an event-driven FIFO per replica, many cells of one stream at a time.

All cells of a seed that share a policy see the same requests, so they advance together as *lanes*: state
arrays are shaped (replica, lane) with the lane innermost, a request is broadcast, and a rule is written
with selections instead of branches. The compiler turns the loops over lanes into SIMD, while each lane
keeps the arithmetic order of a run of its own.

Axis letters: i request, r replica, l lane, w word of 64 replicas.
"""

from __future__ import annotations

import numpy as np

from sweep.kernels.jit import kernel

ROUND_ROBIN, QUEUE_AWARE, LOCALITY_AWARE = range(3)

STICKY_SESSION, PREFIX_LOCALITY, QUEUE_FALLBACK = range(3)

#: Lanes that advance together: enough to hide the loops' overhead, few enough for the state to stay in cache.
LANES = 64


@kernel
def _closer(wait, r, best, best_r):
    return (wait, r) if wait < best else (best, best_r)


@kernel
def _scan_queues(available, t, least, shortest, total):
    """Per lane: the smallest wait, its replica (lowest index on ties) and the sum of waits in index order."""
    replicas, lanes = available.shape
    least[:] = np.inf
    shortest[:] = 0
    total[:] = 0.0
    r = 0
    # Four replicas a pass keep the running minimum in registers.
    while r + 4 <= replicas:
        a0, a1, a2, a3 = available[r], available[r + 1], available[r + 2], available[r + 3]
        for lane in range(lanes):
            w0 = max(0.0, a0[lane] - t)
            w1 = max(0.0, a1[lane] - t)
            w2 = max(0.0, a2[lane] - t)
            w3 = max(0.0, a3[lane] - t)
            total[lane] = (((total[lane] + w0) + w1) + w2) + w3
            best, best_r = _closer(w0, r, least[lane], shortest[lane])
            best, best_r = _closer(w1, r + 1, best, best_r)
            best, best_r = _closer(w2, r + 2, best, best_r)
            best, best_r = _closer(w3, r + 3, best, best_r)
            least[lane] = best
            shortest[lane] = best_r
        r += 4
    while r < replicas:
        a0 = available[r]
        for lane in range(lanes):
            w0 = max(0.0, a0[lane] - t)
            total[lane] += w0
            least[lane], shortest[lane] = _closer(w0, r, least[lane], shortest[lane])
        r += 1


@kernel
def _scan_holders(available, t, holders, owner, near, nearest, owner_wait):
    """Per lane: the smallest wait among replicas that hold the prefix, its replica (-1: none), the owner's wait."""
    replicas, lanes = available.shape
    near[:] = np.inf
    nearest[:] = -1
    owner_wait[:] = np.inf
    r = 0
    while r + 4 <= replicas:
        a0, a1, a2, a3 = available[r], available[r + 1], available[r + 2], available[r + 3]
        word = holders[r >> 6]
        shift = r & 63
        for lane in range(lanes):
            w0 = max(0.0, a0[lane] - t)
            w1 = max(0.0, a1[lane] - t)
            w2 = max(0.0, a2[lane] - t)
            w3 = max(0.0, a3[lane] - t)
            held = word[lane] >> shift
            best, best_r = _closer(w0 if held & 1 else np.inf, r, near[lane], nearest[lane])
            best, best_r = _closer(w1 if held & 2 else np.inf, r + 1, best, best_r)
            best, best_r = _closer(w2 if held & 4 else np.inf, r + 2, best, best_r)
            best, best_r = _closer(w3 if held & 8 else np.inf, r + 3, best, best_r)
            near[lane] = best
            nearest[lane] = best_r
            ahead = owner[lane] - r
            wait = owner_wait[lane]
            wait = w0 if ahead == 0 else wait
            wait = w1 if ahead == 1 else wait
            wait = w2 if ahead == 2 else wait
            wait = w3 if ahead == 3 else wait
            owner_wait[lane] = wait
        r += 4
    while r < replicas:
        a0 = available[r]
        word = holders[r >> 6]
        shift = r & 63
        for lane in range(lanes):
            w0 = max(0.0, a0[lane] - t)
            held = word[lane] >> shift
            near[lane], nearest[lane] = _closer(w0 if held & 1 else np.inf, r, near[lane], nearest[lane])
            owner_wait[lane] = w0 if owner[lane] == r else owner_wait[lane]
        r += 1


@kernel
def _spread(available, t, total, squares):
    """Per lane: the sample variance of the waits over replicas, in `squares`; `total` becomes their mean."""
    replicas, lanes = available.shape
    squares[:] = 0.0
    for lane in range(lanes):
        total[lane] = total[lane] / replicas
    r = 0
    while r + 4 <= replicas:
        a0, a1, a2, a3 = available[r], available[r + 1], available[r + 2], available[r + 3]
        for lane in range(lanes):
            mean = total[lane]
            d0 = max(0.0, a0[lane] - t) - mean
            d1 = max(0.0, a1[lane] - t) - mean
            d2 = max(0.0, a2[lane] - t) - mean
            d3 = max(0.0, a3[lane] - t) - mean
            squares[lane] = (((squares[lane] + d0 * d0) + d1 * d1) + d2 * d2) + d3 * d3
        r += 4
    while r < replicas:
        a0 = available[r]
        for lane in range(lanes):
            d0 = max(0.0, a0[lane] - t) - total[lane]
            squares[lane] += d0 * d0
        r += 1
    for lane in range(lanes):
        squares[lane] = squares[lane] / (replicas - 1)


@kernel
def run_lanes(rule, arrival, service, prefix, session, prefixes, sessions, speed, slack, speedup, warmup, record):
    """Route and serve every request in every lane; record what happened.

    Parameters
    ----------
    rule : int
        ``ROUND_ROBIN``, ``QUEUE_AWARE`` or ``LOCALITY_AWARE``.
    arrival, service : float64[request]
        In ms, sorted by arrival; service at speed 1.
    prefix, session : int64[request]
        Ids below `prefixes` and `sessions`, -1 = none.
    speed : float64[replica, lane]
    slack : float64[lane]
    speedup : float
        Share of the service time that a cache hit saves.
    warmup : int
        First arrivals left out of the record's moves, variance and peak.
    record : Record
        Filled.
    """
    start, effective, replica, route, moves, variance, peak = record
    replicas, lanes = speed.shape
    words = (replicas + 63) >> 6
    available = np.zeros((replicas, lanes), np.float64)
    # The last row of each, which index -1 reaches, stands for "none" and is never written.
    holders = np.zeros((prefixes + 1, words, lanes), np.int64)
    owners = np.full((sessions + 1, lanes), -1, np.int64)
    least = np.empty(lanes, np.float64)
    total = np.empty(lanes, np.float64)
    near = np.empty(lanes, np.float64)
    owner_wait = np.empty(lanes, np.float64)
    squares = np.zeros(lanes, np.float64)
    shortest = np.zeros(lanes, np.int64)
    nearest = np.empty(lanes, np.int64)
    moves[:] = 0.0
    variance[:] = 0.0
    peak[:] = 0.0
    for i in range(arrival.size):
        t = arrival[i]
        held = holders[prefix[i]]
        owner = owners[session[i]]
        chosen = replica[i, :lanes]
        reason = route[i, :lanes]

        _scan_queues(available, t, least, shortest, total)
        if rule == LOCALITY_AWARE:
            _scan_holders(available, t, held, owner, near, nearest, owner_wait)
            for lane in range(lanes):
                limit = least[lane] + slack[lane]
                r = shortest[lane]
                why = QUEUE_FALLBACK
                if nearest[lane] >= 0 and near[lane] <= limit:
                    r = nearest[lane]
                    why = PREFIX_LOCALITY
                if owner[lane] >= 0 and owner_wait[lane] <= limit:
                    r = owner[lane]
                    why = STICKY_SESSION
                chosen[lane] = r
                reason[lane] = why
        else:
            for lane in range(lanes):
                chosen[lane] = shortest[lane] if rule == QUEUE_AWARE else i % replicas
                reason[lane] = 0

        if i >= warmup:
            if replicas > 1:
                _spread(available, t, total, squares)
            for lane in range(lanes):
                variance[lane] += squares[lane]
                peak[lane] = max(peak[lane], squares[lane])
                if owner[lane] >= 0 and owner[lane] != chosen[lane]:
                    moves[lane] += 1.0

        whole = service[i]
        shortened = whole * (1.0 - speedup)
        cached = prefix[i] >= 0
        owned = session[i] >= 0
        for lane in range(lanes):
            r = np.int64(chosen[lane])
            bit = np.int64(1) << (r & 63)
            hit = held[r >> 6, lane] & bit != 0
            begin = max(t, available[r, lane])
            # Multiply, then divide: a reciprocal of the speed would route some ties differently.
            took = (shortened if hit else whole) / speed[r, lane]
            available[r, lane] = begin + took
            if cached:
                held[r >> 6, lane] |= bit
            if owned:
                owner[lane] = r
            start[i, lane] = begin
            effective[i, lane] = took
            reason[lane] = 2 * reason[lane] + hit
