"""The routing rules of the router engine: which replica, given what one router believes of each.

A rule sees the replicas that its router holds to be up (at least one) and returns an index and the code of a reason.
All randomness is a counter-based uniform of the request and its attempt, so no rule shifts the draws of another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.codes import CHOICE_DRAWS, KEY_DRAWS, RING_DRAWS, TIE_RANDOM, TIE_ROTATE
from sweep.kernels.jit import inlined, kernel
from sweep.kernels.random import uniform


class Rules(NamedTuple):
    """A policy as the engine takes it, codes and numbers only: arrays in it would slow every call that it is handed to.

    ``work`` to ``utilisation`` are the weights of the signals, ``single`` the only one of weight 1 (-1: a sum), and
    ``exact`` says that work is simply the time until a replica is free.
    """

    rule: int
    work: float
    requests: float
    tokens: float
    kv: float
    utilisation: float
    single: int
    exact: bool
    in_service: float
    error_cv: float
    freshness: float
    spread: bool
    correction: int
    tie: int
    routers: int
    random_router: bool
    window: float
    kv_capacity: float
    draws: int
    replacement: bool
    speed: int
    fading: float
    threshold: float
    relative: float
    bound: float
    transfer: float
    transfer_per_token: float
    slack: float
    speedup: float
    adapter_speedup: float


class Tables(NamedTuple):
    """The arrays of a policy.

    The weight of each replica (empty: its speed), the hash ring in order of position, and the factor by which routers
    err about the work of each request.
    """

    weight: np.ndarray
    ring: np.ndarray
    ring_replica: np.ndarray
    error: np.ndarray


class Choice(NamedTuple):
    """What decides ties and draws of a decision: seed, its number, rotating start, how ties go and their uniform."""

    seed: np.uint64
    number: int
    start: int
    tie: int
    tie_draw: float


@kernel
def least(load, among, choice):
    """Return the replica of smallest load among those marked; -1 if none is."""
    replicas = load.size
    best = -1
    smallest = np.inf
    start = choice.start if choice.tie == TIE_ROTATE else 0
    ties = 0
    for j in range(replicas):
        r = start + j
        if r >= replicas:
            r -= replicas
        if among[r] and (load[r] < smallest or best < 0):
            best = r
            smallest = load[r]
            ties = 0
        ties += among[r] and load[r] == smallest
    if choice.tie == TIE_RANDOM and ties > 1:
        left = np.int64(choice.tie_draw * ties)
        for r in range(replicas):
            if among[r] and load[r] == smallest:
                if left == 0:
                    return r
                left -= 1
    return best


@kernel
def _before(a, b, replicas, choice):
    """Return whether a replica comes before another one of the same load."""
    if choice.tie == TIE_ROTATE:
        return (a - choice.start) % replicas < (b - choice.start) % replicas
    return a < b


@kernel
def nth_marked(among, position):
    """Return the replica at `position` among those marked, in order of their index."""
    for r in range(among.size):
        if among[r]:
            if position == 0:
                return r
            position -= 1
    return -1


@kernel
def at_random(up, choice):
    """Return a uniformly random replica of those that are up."""
    return nth_marked(up, np.int64(uniform(choice.seed, CHOICE_DRAWS, choice.number) * up.sum()))


@inlined
def inversely(load, up, choice):
    """Return a replica with probability proportional to 1 / load; uniform among those of load 0 if there are any."""
    draw = uniform(choice.seed, CHOICE_DRAWS, choice.number)
    idle = 0
    total = 0.0
    for r in range(load.size):
        if up[r]:
            if load[r] > 0.0:
                total += 1.0 / load[r]
            else:
                idle += 1
    if idle > 0:
        return nth_marked(up & (load <= 0.0), np.int64(draw * idle))
    target = draw * total
    reached = 0.0
    last = -1
    for r in range(load.size):
        if up[r]:
            reached += 1.0 / load[r]
            last = r
            if reached > target:
                break
    return last


@inlined
def of_some(load, up, drawn, order, count, replacement, choice):
    """Return the least loaded of a few replicas drawn at random; `drawn` and `order` are scratch, one per replica."""
    replicas = load.size
    available = 0
    for r in range(replicas):
        order[available] = r
        available += up[r]
    if choice.tie == TIE_RANDOM:
        drawn[:] = False
    best = -1
    for j in range(count if replacement else min(count, available)):
        draw = uniform(choice.seed, CHOICE_DRAWS, choice.number * count + j)
        if replacement:
            r = order[np.int64(draw * available)]
        else:
            # The front of the order holds what was drawn, as in a shuffle that stops early.
            other = j + np.int64(draw * (available - j))
            r = order[other]
            order[other] = order[j]
            order[j] = r
        if choice.tie == TIE_RANDOM:
            drawn[r] = True
        elif best < 0 or load[r] < load[best] or (load[r] == load[best] and _before(r, best, replicas, choice)):
            best = r
    return least(load, drawn, choice) if choice.tie == TIE_RANDOM else best


@kernel
def smooth(current, weight, up):
    """Return the choice of smooth weighted round robin and update the running weights of this router."""
    best = -1
    total = 0.0
    for r in range(current.size):
        if up[r]:
            current[r] += weight[r]
            total += weight[r]
            if best < 0 or current[r] > current[best]:
                best = r
    current[best] -= total
    return best


@kernel
def fill_ring(seed, nodes, position, replica):
    """Fill the positions of every replica's virtual nodes on the ring, in order of replica."""
    for j in range(position.size):
        replica[j] = j // nodes
        position[j] = uniform(seed, RING_DRAWS, j)


@kernel
def first_on_ring(ring, seed, kind, key):
    """Return the index on the ring of the first point at or after a key (kind 0 session, 1 prefix)."""
    at = np.searchsorted(ring, uniform(seed, KEY_DRAWS, 2 * key + kind))
    return at if at < ring.size else 0


@inlined
def walk_ring(ring_replica, point, load, up, bound):
    """Return the first replica from a point on that is up and, if `bound` > 0, within its bound; and the owner."""
    limit = np.inf
    if bound > 0.0:
        total = 0.0
        for r in range(load.size):
            if up[r]:
                total += load[r]
        limit = bound * (total + 1.0) / up.sum()
    owner = ring_replica[point]
    for j in range(ring_replica.size):
        r = ring_replica[point + j if point + j < ring_replica.size else point + j - ring_replica.size]
        if up[r] and (bound == 0.0 or load[r] <= limit):
            return r, owner
    return -1, owner
