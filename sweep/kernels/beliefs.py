"""What the routers of the router engine believe beside loads: the work of requests, reports, and who holds a key.

Axis letters: i request, r replica, k router.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.codes import WORK_ERRORS
from sweep.kernels.failures import cold_since
from sweep.kernels.jit import inlined, kernel
from sweep.kernels.random import uniform
from sweep.kernels.replicas import FOLLOWING, HEAD, REQUEST, ROUTER, own_unseen_load


class Fates(NamedTuple):
    """Of every request: how often it failed and was sent, whether it was lost, was misrouted, copied a cache."""

    attempts: np.ndarray
    sent: np.ndarray
    lost: np.ndarray
    misrouted: np.ndarray
    migrated: np.ndarray


def new_fates(requests: int) -> Fates:
    """Return room for the fates of a stream; the engine fills it."""
    return Fates(*(np.empty(requests, np.int64) for _ in range(2)), *(np.empty(requests, np.bool_) for _ in range(3)))


@kernel
def work_errors(seed, count, cv):
    """Return the factor by which a router errs about the work of each request: lognormal with mean 1."""
    error = np.ones(count, np.float64)
    if cv > 0.0:
        variance = np.log(1.0 + cv * cv)
        for i in range(count):
            # Box and Muller's normal deviate of two uniforms, the first of which must not be 0.
            radius = np.sqrt(-2.0 * np.log(1.0 - uniform(seed, WORK_ERRORS, 2 * i)))
            normal = radius * np.cos(2.0 * np.pi * uniform(seed, WORK_ERRORS, 2 * i + 1))
            error[i] = np.exp(np.sqrt(variance) * normal - variance / 2.0)
    return error


@kernel
def newest_report(ordinal, now, offset, period):
    """Return the number of the newest report at `now`; number k reaches the routers at k * period + offset."""
    k = max(ordinal, np.int64((now - offset) / period))
    while k * period + offset > now:
        k -= 1
    while (k + 1) * period + offset <= now:
        k += 1
    return k


@kernel
def put_back_unseen(r, own, rules, known_speed, index, link, tokens, service, error):
    """Put back into every router's view what the report of a replica does not include yet."""
    e = index[HEAD, r]
    e = link[FOLLOWING, e] if e >= 0 else -1
    while e >= 0:
        i = link[REQUEST, e]
        own[link[ROUTER, e], r] += own_unseen_load(service[i] * error[i], tokens[i], rules, known_speed)
        e = link[FOLLOWING, e]


@inlined
def fill_holders(key, k, now, cached_at, sent_by, reported_at, stale, corrected, outages, known):
    """Fill which replicas a router believes to hold a key: by report, or because it sent the key there itself."""
    for r in range(known.size):
        at = cached_at[key, r]
        known[r] = at > -np.inf
        if known[r] and outages.total > 0:
            known[r] = at > cold_since(outages, r, now, outages.delay)
        if known[r] and stale and at >= reported_at[r]:
            known[r] = corrected and (sent_by[key, r] >> k) & 1


@inlined
def hold(key, r, k, now, held, cached_at, sent_by, tracked):
    """Let a replica hold a key from now on, or go on holding it."""
    if not held:
        cached_at[key, r] = now
    if tracked:
        bit = np.int64(1) << k
        sent_by[key, r] = sent_by[key, r] | bit if held else bit
