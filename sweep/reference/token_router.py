"""The token-step model under any rule: routers with a view, replicas that fail. Serving is that of `token_step`.

A time belongs to the step that it falls into, as an arrival does; spans (heartbeats times misses, a breaker's
cool-down, a transfer) are rounded up to whole steps. In a step happens, in this order: replicas go down or come back,
reports reach the routers, work lost with a replica is sent again, requests that waited for a replica are sent,
requests arrive, every replica serves and admits.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweep.events import Events
from sweep.policies import Policy
from sweep.reference.router import Router
from sweep.reference.rules import CHOICES, KEYS, RING, ROUTERS, TIES
from sweep.reference.statistics import total
from sweep.reference.token_replicas import StepOutcome, StepReplica, step_replicas
from sweep.reference.token_step import BATCH_TOKENS
from sweep.reference.user_rules import uniform
from sweep.router_rules import signal_weights


class StepSimulation:
    """One stream under one policy in steps.

    Parameters
    ----------
    requests
        As for `sweep.reference.simulate_token_step`.
    speeds
        One per replica.
    policy
        A policy of the engine ``token_step``.
    seed
        Of the draws.
    events
        What happens to the replicas.
    steps
        Number of steps; None runs until every request has arrived and every replica that is up is empty.
    step_ms
        Length of a step [ms].
    """

    def __init__(
        self,
        requests: Iterable[Mapping[str, Any]],
        speeds: Sequence[float],
        policy: Policy,
        seed: int = 0,
        events: Events | None = None,
        steps: int | None = None,
        step_ms: float = 1.0,
    ) -> None:
        self.requests = sorted(requests, key=lambda request: (request["arrival_ms"], request.get("request_id", 0)))
        self.tokens = [int(r.get("prompt_tokens", 0)) + int(r.get("output_tokens", 0)) for r in self.requests]
        self.arrival = [math.floor(float(request["arrival_ms"]) / step_ms) for request in self.requests]
        self.policy, self.seed, self.steps, self.step_ms = policy, seed, steps, step_ms
        self.given: dict[str, Any] = dict(policy.parameters)
        self.events = events if events and events.events else None
        self.delay = math.ceil(self.events.delay_ms / step_ms) if self.events else 0
        self.replicas = step_replicas(speeds, self.events, step_ms)
        count = int(self.given.get("routers", 1))
        self.routers = [Router(k, count, len(speeds)) for k in range(count)]
        self.homes: list[dict[Any, tuple[int, int]]] = [{} for _ in range(count)]  # session -> (replica, step)
        signal = "requests" if policy.name == "bounded_hash" else self.given.get("signal", "work")
        self.weights = dict(zip(("work", "requests", "tokens", "kv"), signal_weights("signal", signal), strict=False))
        self.period = round(self.given.get("freshness_ms", 0.0) / step_ms)
        self.correction = self.given.get("correction", "none") if self.period else "none"
        self.reported = [0.0] * len(speeds)
        self.ring = sorted(
            (uniform(seed, RING, j), j // int(self.given["virtual_nodes"]))
            for j in range(int(self.given.get("virtual_nodes", 0)) * len(speeds))
        )
        self.keys: dict[str, dict[Any, int]] = {"session_id": {}, "prefix_key": {}}
        for request in self.requests:
            for name, numbers in self.keys.items():
                if request.get(name) is not None:
                    numbers.setdefault(request[name], len(numbers))
        size = len(self.requests)
        self.attempts, self.assigned, self.ready = [0] * size, [0] * size, [0] * size
        self.sent_to: dict[int, int] = {}
        self.reason: dict[int, str] = {}
        self.entered: dict[int, int] = {}
        self.later: list[tuple[float, bool, int]] = []
        self.outcome = StepOutcome([], [], set(), 0)

    # --- The course of steps ------------------------------------------------------------------------------------------

    def run(self) -> StepOutcome:
        """Return what becomes of every request."""
        following = step = 0
        while step < self.steps if self.steps is not None else following < len(self.requests) or self._busy():
            self._events(step)
            self._reports(step)
            while self.later and self.later[0][0] <= step:
                _, waited, i = heapq.heappop(self.later)
                if waited:
                    self._send(i, step, None)
                else:
                    self._fail(i, step, self.sent_to[i])
            while following < len(self.requests) and self.arrival[following] <= step:
                self.assigned[following] = following % len(self.routers)
                if self.given.get("router_assignment") == "random":
                    self.assigned[following] = int(uniform(self.seed, ROUTERS, following) * len(self.routers))
                following += 1
                self._send(following - 1, step, None)
            for replica in self.replicas:
                if replica.frozen is None:
                    self._serve(replica, step)
            self.outcome.loads.append([replica.load(self.tokens) for replica in self.replicas])
            step += 1
        for i in range(following):
            if i in self.outcome.lost:
                continue
            entered = self.entered.get(i)
            self.outcome.records.append(
                {
                    **self.requests[i],
                    "replica_id": self.sent_to.get(i, -1),
                    "route_reason": self.reason.get(i, ""),
                    "start_ms": math.nan if entered is None else entered * self.step_ms,
                    "queue_wait_ms": ((step if entered is None else entered) - self.arrival[i]) * self.step_ms,
                    "finished": i in self.outcome.finished,
                }
            )
        return self.outcome

    def _busy(self) -> bool:
        return bool(self.later) or any(replica.serving or replica.waiting for replica in self.replicas)

    def _events(self, step: int) -> None:
        for replica in self.replicas:
            # An outage within one step loses what the replica holds, and is over.
            for first, end in replica.downs:
                if end == step and replica.frozen is not None:
                    replica.frozen = None
                if first == step:
                    for i in (*replica.serving, *replica.waiting):
                        heapq.heappush(self.later, (first + self.delay, False, i))
                        self.entered.pop(i, None)
                    replica.frozen = replica.counters(self.tokens) if end > step else None
                    replica.serving.clear()
                    replica.waiting.clear()
                    replica.left.clear()

    def _reports(self, step: int) -> None:
        for r, replica in enumerate(self.replicas):
            offset = r * self.period // len(self.replicas) if self.given.get("phase") == "spread" else 0
            if not self.period or step < offset or (step - offset) % self.period or replica.frozen is not None:
                continue
            self.reported[r] = self._load(replica)
            for router in self.routers:
                router.own[r] = 0.0
            if self.correction == "own_until_seen":
                for i in replica.waiting:
                    self.routers[self.assigned[i]].own[r] += self._kv(self.tokens[i])

    def _serve(self, replica: StepReplica, step: int) -> None:
        budget = int(replica.speed_at(step) * 1.0 * BATCH_TOKENS)
        for i in replica.serving:
            served = min(budget, replica.left[i])
            replica.left[i] -= served
            budget -= served
            self.outcome.served_tokens += served
        while replica.waiting and sum(replica.left.values()) < BATCH_TOKENS and self.ready[replica.waiting[0]] <= step:
            i = replica.waiting.popleft()
            replica.serving.append(i)
            replica.left[i] = self.tokens[i]
            self.entered[i] = step
        while replica.serving and replica.left[replica.serving[0]] == 0:
            i = replica.serving.popleft()
            del replica.left[i]
            self.outcome.finished.add(i)
            router = self.routers[self.assigned[i]]
            router.succeeds(i, replica.number)

    # --- What a router believes ---------------------------------------------------------------------------------------

    def _kv(self, tokens: int) -> float:
        return float(self.weights["kv"] * (tokens / self.given["kv_capacity_tokens"])) if self.weights["kv"] else 0.0

    def _load(self, replica: StepReplica) -> float:
        weight = float(self.given.get("in_service_weight", 1.0))
        in_flight, queued, serving, waiting = replica.counters(self.tokens)
        load = self.weights["work"] * (queued + weight * in_flight)
        load += self.weights["requests"] * (waiting + weight * serving)
        load += self.weights["tokens"] * (queued + weight * in_flight)
        return float(load + self._kv(in_flight))

    def _own(self, tokens: int) -> float:
        load = self.weights["work"] * tokens
        load += self.weights["requests"]
        load += self.weights["tokens"] * tokens
        return load + self._kv(tokens)

    def _believed(self, router: Router, step: int) -> list[float]:
        if self.period:
            loads = [report + own for report, own in zip(self.reported, router.own, strict=True)]
        else:
            loads = [self._load(replica) for replica in self.replicas]
        if self.given.get("speed") == "known":
            return [
                load / replica.speed_at(step - self.delay) for load, replica in zip(loads, self.replicas, strict=True)
            ]
        return loads

    def _up(self, router: Router, step: int) -> list[int]:
        return [
            r
            for r, replica in enumerate(self.replicas)
            if replica.outage_at(step - self.delay, "downs") is None
            and replica.outage_at(step - self.delay, "drains") is None
            and router.holds_up(r, step)
        ]

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _send(self, i: int, step: int, failed: int | None) -> None:
        router = self.routers[self.assigned[i]]
        up = self._up(router, step)
        if failed in up and len(up) > 1:
            up.remove(failed)
        if not up:
            self._no_replica(i, step, router)
            return
        session = self.requests[i].get("session_id")
        chosen, reason = self._choose(i, step, router, up)
        replica = self.replicas[chosen]
        if i in self.sent_to:
            self.outcome.retried.add(i)
        self.sent_to[i], self.reason[i] = chosen, reason
        router.sends(i, chosen)
        if session is not None:
            router.owners[session] = chosen
        down = replica.outage_at(step, "downs")
        draining = replica.outage_at(step, "drains") is not None
        if down is not None or draining:
            self.outcome.misrouted.add(i)
        if draining:
            self._fail(i, step, chosen)
            return
        self.ready[i] = step
        self.outcome.migrated.discard(i)
        if self.policy.name == "migrate" and session is not None and down is None:
            self._migrate(i, step, session, chosen, reason)
        if self.correction != "none":
            router.own[chosen] += self._own(self.tokens[i])
        if down is not None:
            assert replica.frozen is not None
            frozen = replica.frozen
            replica.frozen = [frozen[0], frozen[1] + self.tokens[i], frozen[2], frozen[3] + 1]
            heapq.heappush(self.later, (down + self.delay, False, i))
        else:
            replica.waiting.append(i)
        if router.open_until[chosen] is not None:
            router.trial_until[chosen] = math.inf

    def _migrate(self, i: int, step: int, session: Any, chosen: int, reason: str) -> None:
        homes = self.homes[self.assigned[i]]
        if reason == "migrated":
            home, at = homes[session]
            if at > self.replicas[home].cold_since(step):
                self.outcome.migrated.add(i)
                per_token = self.given["transfer_ms_per_token"] * self.requests[i].get("prompt_tokens", 0)
                self.ready[i] = step + math.ceil((self.given["transfer_ms"] + per_token) / self.step_ms)
        homes[session] = (chosen, step)

    def _no_replica(self, i: int, step: int, router: Router) -> None:
        assert self.events is not None
        ends = [end for replica in self.replicas for _, end in (*replica.downs, *replica.drains)]
        chances = [end + self.delay for end in ends]
        chances += [time for times in (router.open_until, router.trial_until) for time in times if time is not None]
        trial = any(
            opened is not None and until == math.inf
            for opened, until in zip(router.open_until, router.trial_until, strict=True)
        )
        chance = step + 1 if trial else min((time for time in chances if time > step), default=math.inf)
        if self.events.no_replica == "wait" and chance < math.inf:
            heapq.heappush(self.later, (chance, True, i))
        else:
            self.outcome.lost.add(i)

    def _fail(self, i: int, step: int, failed: int) -> None:
        """Request i failed at a replica, and its router hears of it now."""
        assert self.events is not None
        router, breaker = self.routers[self.assigned[i]], self.events.breaker
        if breaker:
            router.fails(i, failed, breaker.failures, step + math.ceil(breaker.cooldown_ms / self.step_ms))
        if self.attempts[i] >= self.events.retries:
            self.outcome.lost.add(i)
            return
        self.attempts[i] += 1
        self._send(i, step, failed)

    # --- The rules ----------------------------------------------------------------------------------------------------

    def _choose(self, i: int, step: int, router: Router, up: list[int]) -> tuple[int, str]:
        """Return the replica chosen among those up, and the reason."""
        name, request = self.policy.name, self.requests[i]
        number = self.attempts[i] * len(self.requests) + i
        start, router.start = router.start, (router.start + 1) % len(self.replicas)

        def least(loads: Sequence[float], among: Iterable[int]) -> int:
            candidates = sorted(among)
            smallest = min(loads[r] for r in candidates)
            ties = [r for r in candidates if loads[r] == smallest]
            tie = self.given.get("tie", "first")
            if tie == "random":
                return ties[int(uniform(self.seed, TIES, number) * len(ties))]
            return min(ties, key=lambda r: (r - start) % len(self.replicas)) if tie == "rotate" else ties[0]

        if name == "round_robin":
            while router.turn % len(self.replicas) not in up:
                router.turn += 1
            router.turn += 1
            return (router.turn - 1) % len(self.replicas), name
        if name == "random":
            return up[int(uniform(self.seed, CHOICES, number) * len(up))], name
        if name == "weighted_round_robin":
            return self._smooth(step, router, up), name

        loads = self._believed(router, step)
        session, prefix = request.get("session_id"), request.get("prefix_key")
        if name == "weighted_random":
            return self._inversely(loads, up, uniform(self.seed, CHOICES, number)), name
        if name == "power_of_d":
            d = int(self.given["d"])
            draws = [uniform(self.seed, CHOICES, number * d + j) for j in range(d)]
            if self.given["draws"] == "replacement":
                return least(loads, {up[int(draw * len(up))] for draw in draws}), name
            order = list(up)
            for j, draw in enumerate(draws[: len(up)]):
                other = j + int(draw * (len(up) - j))
                order[j], order[other] = order[other], order[j]
            return least(loads, order[:d]), name
        if name in ("consistent_hash", "bounded_hash"):
            if session is None and prefix is None:
                return least(loads, up), "no_key"
            return self._on_ring(request, loads, up)
        shortest = least(loads, up)
        if name == "migrate":
            if session is None:
                return shortest, "no_key"
            if session not in self.homes[router.number]:
                return shortest, "least_load"
            return shortest, "in_place" if self.homes[router.number][session][0] == shortest else "migrated"
        if name in ("sticky_session", "soft_sticky"):
            owner = router.owners.get(session)
            if session is None:
                return shortest, "no_key"
            limit = max(
                loads[shortest] + self.given.get("threshold", 0.0), self.given.get("relative", 1.0) * loads[shortest]
            )
            if owner in up and (name == "sticky_session" or loads[owner] <= limit):
                return owner, "sticky_session"
            return shortest, "session_moved" if owner is not None and name == "soft_sticky" else "new_session"
        assert name == "least_load"
        return shortest, name

    def _inversely(self, loads: Sequence[float], up: Sequence[int], draw: float) -> int:
        idle = [r for r in up if loads[r] <= 0.0]
        if idle:
            return idle[int(draw * len(idle))]
        target, reached = draw * total([1.0 / loads[r] for r in up]), 0.0
        for r in up:
            reached += 1.0 / loads[r]
            if reached > target:
                return r
        return up[-1]

    def _smooth(self, step: int, router: Router, up: Sequence[int]) -> int:
        weights = str(self.given["weights"])
        if weights == "speed":
            weight = [replica.speed_at(step - self.delay) for replica in self.replicas]
        else:
            weight = [float(part) for part in weights.split(":")]
        for r in up:
            router.current[r] += weight[r]
        best = max(up, key=lambda r: (router.current[r], -r))
        router.current[best] -= total([weight[r] for r in up])
        return best

    def _on_ring(self, request: Mapping[str, Any], loads: Sequence[float], up: Sequence[int]) -> tuple[int, str]:
        name = "session_id" if request.get("session_id") is not None else "prefix_key"
        place = uniform(self.seed, KEYS, 2 * self.keys[name][request[name]] + (name == "prefix_key"))
        at = bisect.bisect_left(self.ring, (place, -1)) % len(self.ring)
        clockwise = [r for _, r in self.ring[at:] + self.ring[:at]]
        limit = math.inf
        if self.policy.name == "bounded_hash":
            limit = self.given["bound"] * (total([loads[r] for r in up]) + 1.0) / len(up)
        chosen = next(r for r in clockwise if r in up and loads[r] <= limit)
        return chosen, "consistent_hash" if chosen == clockwise[0] else "next_on_ring"
