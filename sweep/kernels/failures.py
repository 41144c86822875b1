"""Replicas that fail, drain or slow down; what routers know of it, and when.

The times of all events are given, but nothing here tells a router of one before the heartbeats are missed. Kinds of
time: an event happens at its start; routers know `delay` later, of its end as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.jit import inlined, kernel
from sweep.kernels.replicas import FAILURES, OPEN_UNTIL, TRIAL, TRIAL_UNTIL, advance, crash
from sweep.kernels.statistics import _select


class Outages(NamedTuple):
    """Outages ``first[r]`` to ``first[r + 1] - 1`` of each replica in order of time; and how routers deal with them.

    ``changes`` are the times at which the knowledge of any router changes. ``total`` is 0 for a fleet without events.
    """

    total: int
    first: np.ndarray
    start: np.ndarray
    end: np.ndarray
    drain: np.ndarray
    changes: np.ndarray
    delay: float
    retries: int
    breaker_failures: int
    breaker_ms: float
    wait: int


@kernel
def settle(r, t, outages, outage, state, index, span, link, seen, fading, tokens, service, error):
    """Bring a replica to `t` and return its clock, which stands still while it is down.

    ``outage[r]`` is its present or next outage.
    """
    while outage[r] < outages.first[r + 1]:
        j = outage[r]
        if outages.start[j] > t:
            break
        if not outages.drain[j]:
            advance(r, outages.start[j], state, index, span, link, seen, fading, tokens, service, error)
            if t < outages.end[j]:
                return outages.start[j]
            crash(r, outages.start[j], outages.end[j], state, index, span, link)
        elif t < outages.end[j]:
            break
        outage[r] += 1
    advance(r, t, state, index, span, link, seen, fading, tokens, service, error)
    return t


@kernel
def known_up(outages, t, up):
    """Fill which replicas routers hold to be up at `t`."""
    for r in range(up.size):
        up[r] = True
        for j in range(outages.first[r], outages.first[r + 1]):
            if outages.start[j] + outages.delay <= t < outages.end[j] + outages.delay:
                up[r] = False


@kernel
def cold_since(outages, r, t, delay):
    """Return when a replica last lost its caches, of the outages that started `delay` before `t` or earlier."""
    since = -np.inf
    for j in range(outages.first[r], outages.first[r + 1]):
        if not outages.drain[j] and outages.start[j] + delay <= t:
            since = outages.start[j]
    return since


@kernel
def is_down(outages, r, t):
    """Return whether a replica is down at `t`."""
    for j in range(outages.first[r], outages.first[r + 1]):
        if not outages.drain[j] and outages.start[j] <= t < outages.end[j]:
            return True
    return False


@kernel
def next_crash(outages, r, t):
    """Return the start of the first time that a replica goes down after `t`, infinity if it never does."""
    for j in range(outages.first[r], outages.first[r + 1]):
        if not outages.drain[j] and outages.start[j] > t:
            return outages.start[j]
    return np.inf


@inlined
def count_failure(outages, seen, k, r, i, t):
    """Let the breaker of a router count that request `i` failed at a replica; one that is open waits for its trial."""
    if outages.breaker_failures > 0:
        if seen[OPEN_UNTIL, k, r] == -np.inf:
            seen[FAILURES, k, r] += 1
            opens = seen[FAILURES, k, r] >= outages.breaker_failures
        else:
            opens = seen[TRIAL, k, r] == i
        if opens:
            seen[OPEN_UNTIL, k, r] = t + outages.breaker_ms
            seen[TRIAL_UNTIL, k, r] = -np.inf
            seen[TRIAL, k, r] = -np.inf


@inlined
def fill_up(alive, seen, k, failed, t, up):
    """Fill which replicas a router holds to be up at `t`, and return how many.

    The one that `failed` (-1: none) is left out if there is another.
    """
    found = 0
    for r in range(up.size):
        open_until = seen[OPEN_UNTIL, k, r]
        up[r] = alive[r] and (open_until == -np.inf or (t >= open_until and t >= seen[TRIAL_UNTIL, k, r]))
        found += up[r]
    if found > 1 and failed >= 0:
        found -= up[failed]
        up[failed] = False
    return found


@kernel
def next_chance(outages, seen, k, t):
    """Return the first time after `t` at which a router may hold another replica to be up; infinity: never."""
    soonest = np.inf
    for j in range(outages.end.size):
        if t < outages.end[j] + outages.delay:
            soonest = min(soonest, outages.end[j] + outages.delay)
    for r in range(seen.shape[2]):
        for chance in (seen[OPEN_UNTIL, k, r], seen[TRIAL_UNTIL, k, r]):
            if t < chance:
                soonest = min(soonest, chance)
    return soonest


# --- What is to be done later: a heap of (time, failure before waiting, request) --------------------------------------


class Later(NamedTuple):
    """A binary heap of what happens to requests later; its length stands in ``length[0]``."""

    time: np.ndarray
    waiting: np.ndarray
    request: np.ndarray
    length: np.ndarray


@kernel
def new_later(size):
    """Return an empty heap with room for `size` requests."""
    return Later(np.empty(size, np.float64), np.empty(size, np.bool_), np.empty(size, np.int64), np.zeros(1, np.int64))


@kernel
def _before(heap, a, b):
    if heap.time[a] != heap.time[b]:
        return heap.time[a] < heap.time[b]
    if heap.waiting[a] != heap.waiting[b]:
        return heap.waiting[b]
    return heap.request[a] < heap.request[b]


@kernel
def _swap(heap, a, b):
    heap.time[a], heap.time[b] = heap.time[b], heap.time[a]
    heap.waiting[a], heap.waiting[b] = heap.waiting[b], heap.waiting[a]
    heap.request[a], heap.request[b] = heap.request[b], heap.request[a]


@kernel
def push(heap, time, waiting, request):
    """Add what happens to a request at a time."""
    a = heap.length[0]
    heap.time[a] = time
    heap.waiting[a] = waiting
    heap.request[a] = request
    heap.length[0] += 1
    while a > 0 and _before(heap, a, (a - 1) // 2):
        _swap(heap, a, (a - 1) // 2)
        a = (a - 1) // 2


@kernel
def pop(heap):
    """Take off what happens first: (time, whether the request was waiting, request)."""
    first = (heap.time[0], heap.waiting[0], heap.request[0])
    heap.length[0] -= 1
    n = heap.length[0]
    _swap(heap, 0, n)
    a = 0
    while True:
        b = 2 * a + 1
        if b >= n:
            break
        if b + 1 < n and _before(heap, b + 1, b):
            b += 1
        if not _before(heap, b, a):
            break
        _swap(heap, a, b)
        a = b
    return first


# --- Recovery ---------------------------------------------------------------------------------------------------------


@kernel
def _p95(values, n):
    return _select(values, n, (95 * n + 99) // 100 - 1)


@kernel
def recovery_ms(arrival, wait, start, detected, window):
    """Return how long after `detected` the P95 wait of a window is within 10 % of that before `start`; NaN if never.

    A window holds the requests that arrived in the last `window` ms up to and including one arrival; that before
    `start` only those in service by then, as the event may have delayed the others.
    """
    values = np.empty(arrival.size, np.float64)
    n = 0
    for i in range(arrival.size):
        if start - window <= arrival[i] < start and arrival[i] + wait[i] < start:
            values[n] = wait[i]
            n += 1
    if n == 0:
        return np.nan
    limit = 1.1 * _p95(values, n)
    low = 0
    for i in range(arrival.size):
        if arrival[i] < detected:
            continue
        while arrival[low] <= arrival[i] - window:
            low += 1
        n = i + 1 - low
        values[:n] = wait[low : i + 1]
        if _p95(values, n) <= limit:
            return arrival[i] - detected
    return np.nan
