"""The router model in plain Python: every built-in policy on every axis, with failures.

Things happen in order of time; at one time, what finishes comes first, then crashes and restarts, then reports, then
work lost with a replica, then requests that waited for one, then arrivals.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweep.events import Down, Drain, Events
from sweep.policies import Policy
from sweep.reference.replicas import COLD, Job, Server, servers_of
from sweep.reference.statistics import nearest_rank, sample_variance, total
from sweep.reference.user_rules import uniform
from sweep.router_rules import signal_weights

SIGNALS = ("work", "requests", "tokens", "kv", "utilisation")
#: Streams of uniforms.
TIES, ERRORS, ROUTERS, CHOICES, RING, KEYS = range(2, 8)

Record = dict[str, Any]


@dataclass
class Outcome:
    """What became of a stream: a record per finished request in order of arrival, and the others by index."""

    records: list[Record]
    variances: list[float]
    lost: set[int] = field(default_factory=set)
    retried: set[int] = field(default_factory=set)
    misrouted: set[int] = field(default_factory=set)
    migrated: set[int] = field(default_factory=set)


class Router:
    """One router: what it believes, remembers and counts."""

    def __init__(self, number: int, routers: int, replicas: int) -> None:
        self.number = number
        self.own = [0.0] * replicas
        self.owners: dict[Any, int] = {}
        self.turn = 0
        self.start = replicas * number // routers
        self.current = [0.0] * replicas
        self.work, self.time, self.at = [0.0] * replicas, [0.0] * replicas, [0.0] * replicas
        self.failures = [0] * replicas
        self.open_until: list[float | None] = [None] * replicas
        self.trial_until: list[float | None] = [None] * replicas

    def measured(self, r: int) -> float:
        """Return the speed of a replica as this router measured it."""
        return self.work[r] / self.time[r] if self.work[r] > 0.0 and self.time[r] > 0.0 else 1.0

    def holds_up(self, r: int, now: float) -> bool:
        """Return whether the breaker lets a request through to a replica."""
        opened, trial = self.open_until[r], self.trial_until[r]
        return opened is None or (now >= opened and (trial is None or now >= trial))


class Simulation:
    """One stream under one policy."""

    def __init__(
        self,
        requests: Iterable[Mapping[str, Any]],
        speeds: Sequence[float],
        policy: Policy,
        slack_ms: float,
        speedup: float,
        seed: int,
        events: Events | None = None,
        adapter_speedup: float = 0.0,
    ) -> None:
        self.requests = sorted(requests, key=lambda request: (request["arrival_ms"], request.get("request_id", 0)))
        self.policy = policy
        self.given: dict[str, Any] = dict(policy.parameters)
        self.slack, self.speedup, self.adapter_speedup, self.seed = slack_ms, speedup, adapter_speedup, seed
        self.events = events if events and events.events else None
        self.delay = self.events.delay_ms if self.events else 0.0
        self.servers = servers_of(speeds, self.events)
        self.outages: list[Down | Drain] = [event for server in self.servers for event in server.outages]
        count = int(self.given.get("routers", 1))
        self.routers = [Router(k, count, len(speeds)) for k in range(count)]
        signal = "requests" if policy.name == "bounded_hash" else self.given.get("signal", "work")
        self.weights = dict(zip(SIGNALS, signal_weights("signal", signal), strict=True))
        self.period = self.given.get("freshness_ms", 0.0)
        self.correction = self.given.get("correction", "none") if self.period else "none"
        self.dividing = self.given.get("speed", "none")
        self.reported = [0.0] * len(speeds)
        self.reported_at = [COLD] * len(speeds)
        self.reports = [0] * len(speeds)  # how many are over
        self.errors = [self._error(i) for i in range(len(self.requests))]
        self.attempts = [0] * len(self.requests)
        self.assigned = [0] * len(self.requests)
        self.sent_to: dict[int, int] = {}  # where each request was sent last
        self.rows: list[Record | None] = [None] * len(self.requests)
        self.later: list[tuple[float, bool, int]] = []
        self.ring = self._ring(int(self.given.get("virtual_nodes", 0)))
        self.keys: dict[str, dict[Any, int]] = {"session": {}, "prefix": {}}
        for request in self.requests:
            for kind, name in (("session", "session_id"), ("prefix", "prefix_key")):
                if request.get(name) is not None:
                    self.keys[kind].setdefault(request[name], len(self.keys[kind]))
        self.outcome = Outcome([], [])

    def _error(self, i: int) -> float:
        cv = self.given.get("work_error_cv", 0.0)
        if cv == 0.0:
            return 1.0
        variance = math.log(1.0 + cv * cv)
        radius = math.sqrt(-2.0 * math.log(1.0 - uniform(self.seed, ERRORS, 2 * i)))
        normal = radius * math.cos(2.0 * math.pi * uniform(self.seed, ERRORS, 2 * i + 1))
        return math.exp(math.sqrt(variance) * normal - variance / 2.0)

    def _ring(self, nodes: int) -> list[tuple[float, int]]:
        count = nodes * len(self.servers)
        return sorted((uniform(self.seed, RING, j), j // nodes) for j in range(count))

    # --- The course of events -----------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Return what becomes of every request."""
        following = 0
        while following < len(self.requests) or self.later:
            arrival = self.requests[following]["arrival_ms"] if following < len(self.requests) else math.inf
            if self.later and self.later[0][0] <= arrival:
                now, waited, i = heapq.heappop(self.later)
                self._to(now)
                if waited:
                    self._send(i, now, None)
                else:
                    self._fail(i, now, self.sent_to[i])
                continue
            i, now = following, float(arrival)
            following += 1
            self.assigned[i] = i % len(self.routers)
            if self.given.get("router_assignment") == "random":
                self.assigned[i] = int(uniform(self.seed, ROUTERS, i) * len(self.routers))
            self._to(now)
            waits = [server.wait(clock) for server, clock in zip(self.servers, self.clocks, strict=True)]
            self.outcome.variances.append(sample_variance(waits))
            self._send(i, now, None)
        self.outcome.records = [row for row in self.rows if row is not None]
        return self.outcome

    def _to(self, now: float) -> None:
        """Let the reports that are due arrive, then bring every replica to now."""
        for r, server in enumerate(self.servers):
            offset = r * self.period / len(self.servers) if self.given.get("phase") == "spread" else 0.0
            newest = None
            while self.period and self.reports[r] * self.period + offset <= now:
                at = self.reports[r] * self.period + offset
                newest = newest if server.down_at(at) else at
                self.reports[r] += 1
            if newest is not None:
                server.look(newest, self._finished)
                self.reported[r] = self._load(server, newest)
                self.reported_at[r] = newest
                for router in self.routers:
                    router.own[r] = 0.0
                if self.correction == "own_until_seen":
                    for job in list(server.jobs)[1:]:
                        self.routers[job.router].own[r] += self._unseen(job, server.speed_at(newest - self.delay))
        self.clocks = [server.look(now, self._finished) for server in self.servers]

    def _finished(self, job: Job, r: int) -> None:
        router = self.routers[job.router]
        if "measured" in (self.dividing, self.given.get("weights")):
            fading = math.log(2.0) / self.given["half_life_ms"]
            kept = math.exp(-(job.finish - router.at[r]) * fading)
            router.work[r] = router.work[r] * kept + job.guess
            router.time[r] = router.time[r] * kept + (job.finish - job.begin)
            router.at[r] = job.finish
        router.failures[r] = 0
        router.open_until[r] = None

    # --- What a router believes ---------------------------------------------------------------------------------------

    def _load(self, server: Server, t: float) -> float:
        load = 0.0
        for name in SIGNALS:
            if self.weights[name] > 0.0:
                value = server.signal(name, t, self.given)
                if name == "work" and self.dividing != "none":
                    value = value * server.speed_at(t)
                load += self.weights[name] * value
        return load

    def _unseen(self, job: Job, speed: float) -> float:
        kv = self.weights["kv"] * (job.tokens / self.given["kv_capacity_tokens"]) if self.weights["kv"] else 0.0
        if not self.weights["utilisation"]:
            return float(kv)
        return float(kv + self.weights["utilisation"] * (job.guess / speed / self.given["window_ms"]))

    def _own(self, job: Job, speed: float) -> float:
        load = self.weights["work"] * (job.guess if self.dividing != "none" else job.guess / speed)
        load += self.weights["requests"]
        load += self.weights["tokens"] * job.tokens
        return load + self._unseen(job, speed)

    def _believed(self, router: Router, now: float) -> list[float]:
        if self.period:
            loads = [report + own for report, own in zip(self.reported, router.own, strict=True)]
        else:
            loads = [self._load(server, clock) for server, clock in zip(self.servers, self.clocks, strict=True)]
        if self.dividing == "known":
            return [load / server.speed_at(now - self.delay) for load, server in zip(loads, self.servers, strict=True)]
        if self.dividing == "measured":
            return [load / router.measured(r) for r, load in enumerate(loads)]
        return loads

    def _holders(self, router: Router, key: Any, now: float) -> list[int]:
        found = []
        for r, server in enumerate(self.servers):
            at = server.cached.get(key, COLD)
            if at <= server.cold_since(now, self.delay):
                continue
            seen = not self.period or at < self.reported_at[r]
            if seen or (self.correction != "none" and router.number in server.senders[key]):
                found.append(r)
        return found

    def _up(self, router: Router, now: float) -> list[int]:
        known = {
            event.replica for event in self.outages if event.start_ms + self.delay <= now < event.end_ms + self.delay
        }
        return [r for r in range(len(self.servers)) if r not in known and router.holds_up(r, now)]

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _send(self, i: int, now: float, failed: int | None) -> None:
        router = self.routers[self.assigned[i]]
        up = self._up(router, now)
        if failed in up and len(up) > 1:
            up.remove(failed)
        if not up:
            self._no_replica(i, now, router)
            return
        chosen, reason = self._choose(i, now, router, up)
        server = self.servers[chosen]
        self.sent_to[i] = chosen
        down = server.down_at(now)
        if down or server.draining_at(now):
            self.outcome.misrouted.add(i)
        request = self.requests[i]
        if server.draining_at(now):
            if request.get("session_id") is not None:
                router.owners[request["session_id"]] = chosen
            self._fail(i, now, chosen)
            return
        self._serve(i, now, router, server, reason, down is not None)

    def _no_replica(self, i: int, now: float, router: Router) -> None:
        assert self.events is not None
        chances = [event.end_ms + self.delay for event in self.outages] + [
            time for times in (router.open_until, router.trial_until) for time in times if time is not None
        ]
        later = min((chance for chance in chances if chance > now), default=math.inf)
        if self.events.no_replica == "wait" and later < math.inf:
            heapq.heappush(self.later, (later, True, i))
        else:
            self.rows[i] = None
            self.outcome.lost.add(i)

    def _fail(self, i: int, now: float, failed: int) -> None:
        """Request i failed at a replica, and its router hears of it now."""
        assert self.events is not None
        router, breaker = self.routers[self.assigned[i]], self.events.breaker
        self.rows[i] = None
        if breaker:
            router.failures[failed] += 1
            if router.open_until[failed] is not None or router.failures[failed] >= breaker.failures:
                router.open_until[failed] = now + breaker.cooldown_ms
                router.trial_until[failed] = None
        if self.attempts[i] >= self.events.retries:
            self.outcome.lost.add(i)
            return
        self.attempts[i] += 1
        self.outcome.retried.add(i)
        self._send(i, now, failed)

    def _serve(self, i: int, now: float, router: Router, server: Server, reason: str, dead: bool) -> None:
        request, r = self.requests[i], server.number
        prefix, session, adapter = (request.get(name) for name in ("prefix_key", "session_id", "adapter_id"))
        cold = server.cold_since(now)
        hit = prefix is not None and not dead and server.cached.get(("prefix", prefix), COLD) > cold
        warm = adapter is not None and not dead and server.cached.get(("adapter", adapter), COLD) > cold
        begin = max(self.clocks[r], server.available)
        copied, transfer = False, 0.0
        if reason == "migrated" and not hit and not dead:
            copied = any(other.cached.get(("prefix", prefix), COLD) > other.cold_since(now) for other in self.servers)
            if copied:
                transfer = self.given["transfer_ms"] + self.given["transfer_ms_per_token"] * request.get(
                    "prompt_tokens", 0
                )
        service = float(request["service_ms"])
        amount = service * (1.0 - self.speedup) if hit or copied else service
        if warm:
            amount = amount * (1.0 - self.adapter_speedup)
        took = server.service_time(begin + transfer, amount)
        if transfer > 0.0:
            took = transfer + took
        tokens = int(request.get("prompt_tokens", 0)) + int(request.get("output_tokens", 0))
        job = Job(
            i,
            router.number,
            tokens,
            service * self.errors[i],
            self.errors[i],
            self.errors[i] * amount,
            begin,
            begin + took,
        )
        server.accept(job)
        if self.correction != "none":
            router.own[r] += self._own(job, server.speed_at(now - self.delay))
        for key, held in ((("prefix", prefix), hit), (("adapter", adapter), warm)):
            if key[1] is not None and not dead:
                if not held:
                    server.cached[key] = now
                    server.senders[key] = set()
                server.senders[key].add(router.number)
        if session is not None:
            router.owners[session] = r
        (self.outcome.migrated.add if copied else self.outcome.migrated.discard)(i)
        self.rows[i] = {
            **request,
            "replica_id": r,
            "route_reason": reason,
            "cache_hit": hit or copied,
            "start_ms": begin,
            "finish_ms": begin + took,
            "queue_wait_ms": begin - float(request["arrival_ms"]),
            "effective_service_ms": took,
        }
        if self.events is None:
            return
        down = server.down_at(now)
        crash = down.start_ms if down else min((e.start_ms for e in server.downs if e.start_ms > now), default=math.inf)
        resolved = job.finish
        if down or job.finish > crash:
            resolved = max(now, crash + self.delay)
            heapq.heappush(self.later, (resolved, False, i))
        if router.open_until[r] is not None:
            router.trial_until[r] = resolved

    # --- The rules ----------------------------------------------------------------------------------------------------

    def _choose(self, i: int, now: float, router: Router, up: list[int]) -> tuple[int, str]:
        """Return the replica chosen among those up, and the reason."""
        name, request = self.policy.name, self.requests[i]
        number = self.attempts[i] * len(self.requests) + i
        start, router.start = router.start, (router.start + 1) % len(self.servers)

        def draw(stream: int, index: int) -> float:
            return uniform(self.seed, stream, index)

        def least(loads: Sequence[float], among: Iterable[int]) -> int:
            candidates = sorted(among)
            smallest = min(loads[r] for r in candidates)
            ties = [r for r in candidates if loads[r] == smallest]
            tie = self.given.get("tie", "first")
            if tie == "random":
                return ties[int(draw(TIES, number) * len(ties))]
            if tie == "rotate":
                return min(ties, key=lambda r: (r - start) % len(self.servers))
            return ties[0]

        if name == "round_robin":
            while router.turn % len(self.servers) not in up:
                router.turn += 1
            router.turn += 1
            return (router.turn - 1) % len(self.servers), name
        if name == "random":
            return up[int(draw(CHOICES, number) * len(up))], name
        if name == "weighted_round_robin":
            return self._smooth(now, router, up), name

        loads = self._believed(router, now)
        session, prefix = request.get("session_id"), request.get("prefix_key")
        owner = router.owners.get(session)
        if name == "weighted_random":
            return self._inversely(loads, up, draw(CHOICES, number)), name
        if name == "power_of_d":
            d = int(self.given["d"])
            order = list(up)
            if self.given["draws"] == "replacement":
                return least(loads, {order[int(draw(CHOICES, number * d + j) * len(up))] for j in range(d)}), name
            for j in range(min(d, len(up))):
                other = j + int(draw(CHOICES, number * d + j) * (len(up) - j))
                order[j], order[other] = order[other], order[j]
            return least(loads, order[:d]), name
        if name == "shortest_expected_delay":
            guess = float(request["service_ms"]) * self.errors[i]
            delays = [
                load + guess / server.speed_at(now - self.delay)
                for load, server in zip(loads, self.servers, strict=True)
            ]
            return least(delays, up), name
        if name in ("consistent_hash", "bounded_hash"):
            kind = "session" if session is not None else "prefix"
            key = session if session is not None else prefix
            if key is None:
                return least(loads, up), "no_key"
            return self._on_ring(kind, key, loads, up)

        shortest = least(loads, up)
        if name in ("queue_aware", "least_load"):
            return shortest, "shortest_queue" if name == "queue_aware" else name
        if name in ("sticky_session", "soft_sticky"):
            if session is None:
                return shortest, "no_key"
            if owner in up and name == "sticky_session":
                return owner, "sticky_session"
            if owner in up and name == "soft_sticky":
                limit = max(loads[shortest] + self.given["threshold"], self.given["relative"] * loads[shortest])
                if loads[owner] <= limit:
                    return owner, "sticky_session"
            return shortest, "session_moved" if owner is not None and name == "soft_sticky" else "new_session"
        if name == "migrate":
            held = self._holders(router, ("prefix", prefix), now) if prefix is not None else []
            if shortest in held:
                return shortest, "in_place"
            return shortest, "migrated" if set(held) & set(up) else "least_load"

        assert name == "locality_aware"
        limit = loads[shortest] + self.slack
        if owner in up and loads[owner] <= limit:
            return owner, "sticky_session"
        for kind, key in (("prefix", prefix), ("adapter", request.get("adapter_id"))):
            holders = set(self._holders(router, (kind, key), now)) & set(up) if key is not None else set()
            if holders:
                nearest = least(loads, holders)
                if loads[nearest] <= limit:
                    return nearest, f"{kind}_locality"
        return shortest, "queue_fallback"

    def _inversely(self, loads: Sequence[float], up: Sequence[int], draw: float) -> int:
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

    def _smooth(self, now: float, router: Router, up: Sequence[int]) -> int:
        weights = str(self.given["weights"])
        if weights == "speed":
            weight = [server.speed_at(now - self.delay) for server in self.servers]
        elif weights == "measured":
            weight = [router.measured(r) for r in range(len(self.servers))]
        else:
            weight = [float(part) for part in weights.split(":")]
        for r in up:
            router.current[r] += weight[r]
        best = max(up, key=lambda r: (router.current[r], -r))
        router.current[best] -= total([weight[r] for r in up])
        return best

    def _on_ring(self, kind: str, key: Any, loads: Sequence[float], up: Sequence[int]) -> tuple[int, str]:
        place = uniform(self.seed, KEYS, 2 * self.keys[kind][key] + (kind == "prefix"))
        at = bisect.bisect_left(self.ring, (place, -1)) % len(self.ring)
        clockwise = [r for _, r in self.ring[at:] + self.ring[:at]]
        limit = math.inf
        if self.policy.name == "bounded_hash":
            limit = self.given["bound"] * (total([loads[r] for r in up]) + 1.0) / len(up)
        chosen = next(r for r in clockwise if r in up and loads[r] <= limit)
        return chosen, "consistent_hash" if chosen == clockwise[0] else "next_on_ring"


def recovery_ms(records: Sequence[Record], events: Events) -> float:
    """Return how long after an event's detection the P95 wait is back within 10 %, the longest over events.

    Windows hold the requests that arrived in the last ``events.window_ms``: before the event started, and then up to
    and including each arrival from the detection on. NaN where it never is.
    """
    longest = 0.0 if events.events else math.nan
    waits = [(record["arrival_ms"], record["queue_wait_ms"]) for record in records]
    for event in events.events:
        start, detected = event.start_ms, event.start_ms + events.delay_ms
        before = [wait for arrival, wait in waits if start - events.window_ms <= arrival < start]
        limit = 1.1 * nearest_rank(before, 0.95) if before else math.nan
        recovered = math.nan
        for i, (arrival, _) in enumerate(waits):
            window = [wait for at, wait in waits[: i + 1] if at > arrival - events.window_ms]
            if arrival >= detected and nearest_rank(window, 0.95) <= limit:
                recovered = arrival - detected
                break
        longest = math.nan if math.isnan(recovered) or math.isnan(longest) else max(longest, recovered)
    return longest
