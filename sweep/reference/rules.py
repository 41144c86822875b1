"""The rules of the router model in plain Python: which replica of those up, and why."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sweep.reference.statistics import total
from sweep.reference.user_rules import uniform

if TYPE_CHECKING:
    from sweep.reference.router import Router, Simulation

#: Streams of uniforms.
TIES, ERRORS, ROUTERS, CHOICES, RING, KEYS = range(2, 8)


def choose(run: Simulation, i: int, now: float, router: Router, up: list[int]) -> tuple[int, str]:
    """Return the replica chosen among those up, and the reason."""
    name, request = run.policy.name, run.requests[i]
    number = run.attempts[i] * len(run.requests) + i
    start, router.start = router.start, (router.start + 1) % len(run.servers)

    def draw(stream: int, index: int) -> float:
        return uniform(run.seed, stream, index)

    def least(loads: Sequence[float], among: Iterable[int]) -> int:
        candidates = sorted(among)
        smallest = min(loads[r] for r in candidates)
        ties = [r for r in candidates if loads[r] == smallest]
        tie = run.given.get("tie", "first")
        if tie == "random":
            return ties[int(draw(TIES, number) * len(ties))]
        if tie == "rotate":
            return min(ties, key=lambda r: (r - start) % len(run.servers))
        return ties[0]

    if name == "round_robin":
        while router.turn % len(run.servers) not in up:
            router.turn += 1
        router.turn += 1
        return (router.turn - 1) % len(run.servers), name
    if name == "random":
        return up[int(draw(CHOICES, number) * len(up))], name
    if name == "weighted_round_robin":
        return _smooth(run, now, router, up), name

    if run.own_rule is not None:
        return run.own_rule.choose(run.view(i, now, router, up), run.asked[i]), name

    loads = run.believed(router, now)
    session, prefix = request.get("session_id"), run.prefix_of(i)
    owner = router.owners.get(session)
    if name == "weighted_random":
        return _inversely(loads, up, draw(CHOICES, number)), name
    if name == "power_of_d":
        d = int(run.given["d"])
        order = list(up)
        if run.given["draws"] == "replacement":
            return least(loads, {order[int(draw(CHOICES, number * d + j) * len(up))] for j in range(d)}), name
        for j in range(min(d, len(up))):
            other = j + int(draw(CHOICES, number * d + j) * (len(up) - j))
            order[j], order[other] = order[other], order[j]
        return least(loads, order[:d]), name
    if name == "shortest_expected_delay":
        guess = float(request["service_ms"]) * run.errors[i]
        delays = [
            load + guess / server.speed_at(now - run.delay) for load, server in zip(loads, run.servers, strict=True)
        ]
        return least(delays, up), name
    if name in ("consistent_hash", "bounded_hash"):
        kind = "session" if session is not None else "prefix"
        key = session if session is not None else prefix
        if key is None:
            return least(loads, up), "no_key"
        return _on_ring(run, kind, key, loads, up)

    shortest = least(loads, up)
    if name in ("queue_aware", "least_load"):
        return shortest, "shortest_queue" if name == "queue_aware" else name
    if name in ("sticky_session", "soft_sticky"):
        if session is None:
            return shortest, "no_key"
        if owner in up and name == "sticky_session":
            return owner, "sticky_session"
        if owner in up and name == "soft_sticky":
            limit = max(loads[shortest] + run.given["threshold"], run.given["relative"] * loads[shortest])
            if loads[owner] <= limit:
                return owner, "sticky_session"
        return shortest, "session_moved" if owner is not None and name == "soft_sticky" else "new_session"
    if name == "migrate":
        if run.prefix_of(i) is None:
            return shortest, "no_key"
        held = run.nearest(router, i, now, up)
        if shortest in held:
            return shortest, "in_place"
        return shortest, "migrated" if held else "least_load"

    assert name == "locality_aware"
    limit = loads[shortest] + run.slack
    if owner in up and loads[owner] <= limit:
        return owner, "sticky_session"
    warm = set(run.holders(router, ("adapter", request.get("adapter_id")), now)) & set(up)
    for kind, holders in (("prefix", run.nearest(router, i, now, up)), ("adapter", warm)):
        if holders:
            nearest = least(loads, holders)
            if loads[nearest] <= limit:
                return nearest, f"{kind}_locality"
    return shortest, "queue_fallback"


def _inversely(loads: Sequence[float], up: Sequence[int], draw: float) -> int:
    idle = [r for r in up if loads[r] <= 0.0]
    if idle:
        return idle[int(draw * len(idle))]
    target = draw * total([1.0 / loads[r] for r in up])
    reached = 0.0
    for r in up:
        reached += 1.0 / loads[r]
        if reached > target:
            return r
    return up[-1]


def _smooth(run: Simulation, now: float, router: Router, up: Sequence[int]) -> int:
    weights = str(run.given["weights"])
    if weights == "speed":
        weight = [server.speed_at(now - run.delay) for server in run.servers]
    elif weights == "measured":
        weight = [router.measured(r) for r in range(len(run.servers))]
    else:
        weight = [float(part) for part in weights.split(":")]
    for r in up:
        router.current[r] += weight[r]
    best = max(up, key=lambda r: (router.current[r], -r))
    router.current[best] -= total([weight[r] for r in up])
    return best


def _on_ring(run: Simulation, kind: str, key: Any, loads: Sequence[float], up: Sequence[int]) -> tuple[int, str]:
    place = uniform(run.seed, KEYS, 2 * run.keys[kind][key] + (kind == "prefix"))
    at = bisect.bisect_left(run.ring, (place, -1)) % len(run.ring)
    clockwise = [r for _, r in run.ring[at:] + run.ring[:at]]
    limit = math.inf
    if run.policy.name == "bounded_hash":
        limit = run.given["bound"] * (total([loads[r] for r in up]) + 1.0) / len(up)
    chosen = next(r for r in clockwise if r in up and loads[r] <= limit)
    return chosen, "consistent_hash" if chosen == clockwise[0] else "next_on_ring"
