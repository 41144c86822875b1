"""What the router engine knows of its replicas: their queues, the load signals, and how fast they were seen to work.

A replica serves first come, first served, so the start and finish of a request are known when it is queued. What has
finished is taken off a queue when somebody looks: times at which one replica is looked at never go back.

State stands in four arrays with named rows, which are cheap to hand from function to function: ``state`` and ``index``
by replica, ``span`` and ``link`` by entry of a queue (a request that was sent somewhere). ``seen`` [row, router,
replica] is what a router saw, and (``first``, ``piece``) the speed of every replica over time: pieces ``first[r]`` to
``first[r + 1] - 1``, each from its start on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.codes import REQUESTS, SPEED_NONE, WORK
from sweep.kernels.jit import inlined, kernel

#: Rows of ``state``: when a replica is free; of the entry in service its begin, its finish (infinity: none) and the
#: error about its work; the believed work behind it; the time the replica was busy with finished entries, up to now and
#: up to the start of the window; and the begin and finish of the first entry not finished by then (infinity: none).
AVAILABLE, NEXT_BEGIN, NEXT_FINISH, NEXT_ERROR, BELIEVED, BUSY, LAG_BUSY, LAG_BEGIN, LAG_FINISH = range(9)
#: Rows of ``index``: a replica's first, last and lagging entry, how many entries and tokens it holds.
HEAD, TAIL, LAG, COUNT, HELD = range(5)
#: Rows of ``span`` and of ``link``.
BEGIN, FINISH, BELIEF = range(3)
FOLLOWING, REQUEST, ROUTER = range(3)
#: Rows of ``seen``: believed work and time in service of what finished, both fading, and since when; and the breaker:
#: failures in a row, until when it is open, until when the fate of a trial is unknown, and which request is the trial.
SEEN_WORK, SEEN_TIME, SEEN_AT, FAILURES, OPEN_UNTIL, TRIAL_UNTIL, TRIAL = range(7)
#: Rows of ``piece``.
START, SPEED = range(2)


class Traffic(NamedTuple):
    """A stream: arrays by request, and how many ids of each kind there are; -1 = none."""

    arrival: np.ndarray
    service: np.ndarray
    prefix: np.ndarray
    session: np.ndarray
    adapter: np.ndarray
    prompt: np.ndarray
    tokens: np.ndarray
    prefixes: int
    sessions: int
    adapters: int


@kernel
def new_queues(replicas, entries, routers):
    """Return (state, index, span, link, seen) of replicas that hold nothing."""
    state = np.zeros((9, replicas), np.float64)
    state[NEXT_FINISH] = np.inf
    state[LAG_BEGIN:] = np.inf
    index = np.zeros((5, replicas), np.int64)
    index[HEAD : LAG + 1] = -1
    seen = np.zeros((7, routers, replicas), np.float64)
    seen[OPEN_UNTIL:] = -np.inf
    return state, index, np.empty((3, entries), np.float64), np.empty((3, entries), np.int64), seen


# --- Speed over time --------------------------------------------------------------------------------------------------


@inlined
def _piece_at(first, piece, r, t):
    j = first[r]
    while j + 1 < first[r + 1] and piece[START, j + 1] <= t:
        j += 1
    return j


@inlined
def speed_at(first, piece, r, t):
    """Return the speed of a replica at a time."""
    return piece[SPEED, _piece_at(first, piece, r, t)]


@kernel
def service_time(first, piece, r, begin, work):
    """Return how long `work` (ms at speed 1) takes from `begin` on; a change of speed keeps what is left of it."""
    j = _piece_at(first, piece, r, begin)
    took = 0.0
    since = begin
    while j + 1 < first[r + 1] and begin + (took + work / piece[SPEED, j]) > piece[START, j + 1]:
        left = piece[START, j + 1] - since
        work -= left * piece[SPEED, j]
        took += left
        since = piece[START, j + 1]
        j += 1
    return took + work / piece[SPEED, j]


@inlined
def drain_time(first, piece, r, now, until):
    """Return how long what keeps a replica busy from `now` to `until` would take at its speed of now."""
    j = _piece_at(first, piece, r, now)
    if j + 1 == first[r + 1] or until <= piece[START, j + 1]:
        return until - now
    present = piece[SPEED, j]
    work = 0.0
    begin = now
    while j + 1 < first[r + 1] and piece[START, j + 1] < until:
        work += (piece[START, j + 1] - begin) * piece[SPEED, j]
        begin = piece[START, j + 1]
        j += 1
    return (work + (until - begin) * piece[SPEED, j]) / present


# --- Queues -----------------------------------------------------------------------------------------------------------


@inlined
def append(e, r, i, router, begin, took, tokens, error, belief, state, index, span, link):
    """Queue entry `e` for request `i` on a replica."""
    finish = begin + took
    link[FOLLOWING, e] = -1
    link[REQUEST, e] = i
    link[ROUTER, e] = router
    span[BEGIN, e] = begin
    span[FINISH, e] = finish
    span[BELIEF, e] = belief
    state[AVAILABLE, r] = finish
    if index[HEAD, r] < 0:
        index[HEAD, r] = e
        state[NEXT_BEGIN, r] = begin
        state[NEXT_FINISH, r] = finish
        state[NEXT_ERROR, r] = error
    else:
        state[BELIEVED, r] += belief
    # The tail stays when a queue empties, so that the lagging end of the window finds what follows.
    if index[TAIL, r] >= 0:
        link[FOLLOWING, index[TAIL, r]] = e
    if index[LAG, r] < 0:
        index[LAG, r] = e
        state[LAG_BEGIN, r] = begin
        state[LAG_FINISH, r] = finish
    index[TAIL, r] = e
    index[COUNT, r] += 1
    index[HELD, r] += tokens


@inlined
def count_success(seen, k, r, i):
    """Let the breaker of a router count that request `i` finished at a replica: an open one waits for its trial's."""
    if seen[OPEN_UNTIL, k, r] == -np.inf or seen[TRIAL, k, r] == i:
        seen[FAILURES, k, r] = 0.0
        seen[OPEN_UNTIL, k, r] = -np.inf


@inlined
def advance(r, t, state, index, span, link, seen, fading, tokens, service, error):
    """Take off a queue what has finished by `t`; its routers see it finish."""
    while state[NEXT_FINISH, r] <= t:
        e = index[HEAD, r]
        i = link[REQUEST, e]
        took = span[FINISH, e] - span[BEGIN, e]
        following = link[FOLLOWING, e]
        state[BUSY, r] += took
        index[COUNT, r] -= 1
        index[HELD, r] -= tokens[i]
        index[HEAD, r] = following
        if following >= 0:
            state[NEXT_BEGIN, r] = span[BEGIN, following]
            state[NEXT_FINISH, r] = span[FINISH, following]
            state[NEXT_ERROR, r] = error[link[REQUEST, following]]
            state[BELIEVED, r] -= span[BELIEF, following]
        else:
            state[NEXT_FINISH, r] = np.inf
            state[BELIEVED, r] = 0.0
        k = link[ROUTER, e]
        if fading > 0.0:
            kept = np.exp(-(span[FINISH, e] - seen[SEEN_AT, k, r]) * fading)
            seen[SEEN_WORK, k, r] = seen[SEEN_WORK, k, r] * kept + service[i] * error[i]
            seen[SEEN_TIME, k, r] = seen[SEEN_TIME, k, r] * kept + took
            seen[SEEN_AT, k, r] = span[FINISH, e]
        count_success(seen, k, r, i)


@kernel
def crash(r, at, back, state, index, span, link):
    """Drop all that a replica holds at `at`; it is free and empty again at `back`."""
    e = index[HEAD, r]
    while e >= 0:
        # What was in service was busy until now; the rest never began.
        span[BEGIN, e] = min(span[BEGIN, e], at)
        span[FINISH, e] = at
        if e == index[LAG, r]:
            state[LAG_BEGIN, r] = span[BEGIN, e]
            state[LAG_FINISH, r] = at
        state[BUSY, r] += at - span[BEGIN, e]
        e = link[FOLLOWING, e]
    index[HEAD, r] = -1
    index[COUNT, r] = 0
    index[HELD, r] = 0
    state[NEXT_FINISH, r] = np.inf
    state[BELIEVED, r] = 0.0
    state[AVAILABLE, r] = back


@kernel
def measured_speed(seen, k, r):
    """Return the speed of a replica as a router measured it: believed work done per time in service, 1 at first."""
    work, time = seen[SEEN_WORK, k, r], seen[SEEN_TIME, k, r]
    return work / time if work > 0.0 and time > 0.0 else 1.0


# --- Signals, at times up to which the queues have been advanced ------------------------------------------------------


@inlined
def _work(r, t, rules, state, first, piece):
    """Return the outstanding work of a replica [ms at its present speed] as the router believes it."""
    if rules.error_cv == 0.0 and rules.in_service == 1.0:
        return drain_time(first, piece, r, t, state[AVAILABLE, r]) if state[AVAILABLE, r] > t else 0.0
    if state[NEXT_FINISH, r] == np.inf:
        return 0.0
    serving = drain_time(first, piece, r, t, state[NEXT_FINISH, r])
    if rules.error_cv == 0.0:
        return (drain_time(first, piece, r, t, state[AVAILABLE, r]) - serving) + rules.in_service * serving
    waiting = state[BELIEVED, r] / speed_at(first, piece, r, t)
    return waiting + rules.in_service * (state[NEXT_ERROR, r] * serving)


@inlined
def _busy_before(r, t, state, index, span, link):
    """Return the time that a replica was busy before `t`, the lagging end of a window."""
    while state[LAG_FINISH, r] <= t:
        e = link[FOLLOWING, index[LAG, r]]
        state[LAG_BUSY, r] += state[LAG_FINISH, r] - state[LAG_BEGIN, r]
        state[LAG_BEGIN, r] = span[BEGIN, e] if e >= 0 else np.inf
        state[LAG_FINISH, r] = span[FINISH, e] if e >= 0 else np.inf
        index[LAG, r] = e
    return state[LAG_BUSY, r] + (t - state[LAG_BEGIN, r] if state[LAG_BEGIN, r] < t else 0.0)


@inlined
def busy_share(r, t, window, state, index, span, link):
    """Return the share of the window before `t` that a replica was busy; its queue has been advanced to `t`."""
    busy = state[BUSY, r] + (t - state[NEXT_BEGIN, r] if index[HEAD, r] >= 0 else 0.0)
    return (busy - _busy_before(r, t - window, state, index, span, link)) / window


@inlined
def fill_loads(low, high, clock, load, rules, state, index, span, link, first, piece, tokens):
    """Fill the load of replicas `low` to ``high - 1`` at their clocks: the signal, or the weighted sum of signals."""
    if rules.single == REQUESTS and rules.in_service == 1.0:
        for r in range(low, high):
            load[r] = index[COUNT, r]
        return
    for r in range(low, high):
        load[r] = 0.0
    if rules.work > 0.0:
        if rules.single == WORK and rules.exact:
            for r in range(low, high):
                load[r] = max(0.0, state[AVAILABLE, r] - clock[r])
        elif (
            rules.single == WORK and rules.error_cv > 0.0 and rules.speed == SPEED_NONE and piece.shape[1] == load.size
        ):
            # As `_work`, without a branch, where no speed ever changes.
            for r in range(low, high):
                serving = state[NEXT_ERROR, r] * (state[NEXT_FINISH, r] - clock[r])
                work = state[BELIEVED, r] / piece[SPEED, r] + rules.in_service * serving
                load[r] = work if state[NEXT_FINISH, r] < np.inf else 0.0
        else:
            for r in range(low, high):
                work = _work(r, clock[r], rules, state, first, piece)
                # Divided by a speed later on, work must be in ms at speed 1.
                load[r] += rules.work * (work * speed_at(first, piece, r, clock[r]) if rules.speed else work)
    if rules.requests > 0.0:
        for r in range(low, high):
            if index[COUNT, r] > 0:
                load[r] += rules.requests * ((index[COUNT, r] - 1) + rules.in_service)
    if rules.tokens > 0.0:
        for r in range(low, high):
            if index[COUNT, r] > 0:
                serving = tokens[link[REQUEST, index[HEAD, r]]]
                load[r] += rules.tokens * ((index[HELD, r] - serving) + rules.in_service * serving)
    if rules.kv > 0.0:
        for r in range(low, high):
            if index[COUNT, r] > 0:
                load[r] += rules.kv * (tokens[link[REQUEST, index[HEAD, r]]] / rules.kv_capacity)
    if rules.utilisation > 0.0:
        for r in range(low, high):
            load[r] += rules.utilisation * busy_share(r, clock[r], rules.window, state, index, span, link)


@kernel
def own_unseen_load(guess, tokens, rules, known_speed):
    """Return the part of `own_load` that a report includes only once the request is in service."""
    busy = guess / known_speed / rules.window
    return rules.kv * (tokens / rules.kv_capacity) + rules.utilisation * busy


@kernel
def own_load(guess, tokens, rules, known_speed):
    """Return what a router adds to its view of a replica for a request, of this believed work, that it sent there."""
    total = rules.work * (guess if rules.speed else guess / known_speed)
    total += rules.requests
    total += rules.tokens * tokens
    return total + own_unseen_load(guess, tokens, rules, known_speed)
