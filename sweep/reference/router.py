"""The router model in plain Python: every policy on every axis, with failures and caches of blocks.

Things happen in order of time; at one time, what finishes comes first, then crashes and restarts, then reports, then
work lost with a replica, then requests that waited for one, then arrivals.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sweep.events import Down, Drain, Events
from sweep.policies import Policy
from sweep.reference.cached_blocks import CachedBlocks, Caching
from sweep.reference.replicas import COLD, Job, Server, servers_of
from sweep.reference.rules import ERRORS, RING, ROUTERS, choose
from sweep.reference.statistics import nearest_rank, sample_variance
from sweep.reference.user_rules import UserRule, uniform
from sweep.router_rules import signal_weights
from sweep.rules_api import KV_CAPACITY_TOKENS, WINDOW_MS, View

SIGNALS = ("work", "requests", "tokens", "kv", "utilisation")

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
    blocks: CachedBlocks | None = None


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
        self.trial: list[int | None] = [None] * replicas  # the request let through to see whether the replica is back

    def measured(self, r: int) -> float:
        """Return the speed of a replica as this router measured it."""
        return self.work[r] / self.time[r] if self.work[r] > 0.0 and self.time[r] > 0.0 else 1.0

    def holds_up(self, r: int, now: float) -> bool:
        """Return whether the breaker lets a request through to a replica."""
        opened, trial = self.open_until[r], self.trial_until[r]
        return opened is None or (now >= opened and (trial is None or now >= trial))

    def sends(self, i: int, r: int) -> None:
        """Note that a request goes to a replica; where the breaker is open, it is the trial."""
        if self.open_until[r] is not None:
            self.trial[r] = i

    def succeeds(self, i: int, r: int) -> None:
        """Close the breaker if that was the trial; where it is closed, begin to count anew."""
        if self.open_until[r] is None or self.trial[r] == i:
            self.failures[r], self.open_until[r], self.trial[r] = 0, None, None

    def fails(self, i: int, r: int, most: int, until: float) -> None:
        """Open the breaker `until` then at `most` failures in a row, and again where that was the trial."""
        if self.open_until[r] is None:
            self.failures[r] += 1
        if self.trial[r] == i or (self.open_until[r] is None and self.failures[r] >= most):
            self.open_until[r], self.trial_until[r], self.trial[r] = until, None, None


class Simulation:
    """One stream under one policy, with all that the router engine knows.

    Parameters
    ----------
    requests
        Records as `sweep.Requests.to_records` gives them.
    speeds
        One per replica.
    policy
        A policy of the engine ``timeline``, or a rule of one's own.
    slack_ms, speedup, seed, adapter_speedup
        As ``slack``, ``cache_hit_speedup``, ``seed`` and ``adapter_speedup`` of `sweep.simulate`.
    events
        What happens to the replicas: ``fleet.events``.
    caching
        Caches of blocks, for requests with chains of blocks.

    Examples
    --------
    >>> import sweep
    >>> from sweep.reference import Simulation
    >>> work = sweep.Workload.poisson(requests=50, utilisation=0.8, replicas=2).realise(0)
    >>> fleet = sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(0, 50, 100)])
    >>> outcome = Simulation(work.to_records(), [1.0, 1.0], sweep.Policy("random"), 0.0, 0.3, 0, fleet.events).run()
    >>> ds = sweep.simulate(work, fleet, policy="random")
    >>> [record["replica_id"] for record in outcome.records] == ds.replica_id.values[~ds.lost.values].tolist()
    True
    """

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
        caching: Caching | None = None,
    ) -> None:
        self.requests = sorted(requests, key=lambda request: (request["arrival_ms"], request.get("request_id", 0)))
        self.policy = policy
        self.own_rule = UserRule(policy, slack_ms, seed) if policy.rule.function else None
        # What a user's rule is given is its own; the axes are for the built-in ones.
        self.given: dict[str, Any] = {} if self.own_rule else dict(policy.parameters)
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
        self.blocks: CachedBlocks | None = None
        if caching is not None:
            self.blocks = CachedBlocks(
                caching, self.requests, self.servers, count, self.delay, self.correction, self.period > 0.0
            )
            if 0 < self.blocks.capacity_tokens < math.inf:
                self.given["kv_capacity_tokens"] = self.blocks.capacity_tokens
        self.served = [0] * len(speeds)
        self.asked = []
        self.keys: dict[str, dict[Any, int]] = {"session": {}, "prefix": {}}
        for i, request in enumerate(self.requests):
            for kind, key in (("session", request.get("session_id")), ("prefix", self.prefix_of(i))):
                if key is not None:
                    self.keys[kind].setdefault(key, len(self.keys[kind]))
            if self.own_rule:
                chain = self.blocks.chains[i] if self.blocks else ()
                self.asked.append(self.own_rule.asked(request, i, self.prefix_of(i), len(chain)))
        self.outcome = Outcome([], [], blocks=self.blocks)

    def prefix_of(self, i: int) -> Any:
        """Return the key by which the prefix of a request is known: the first block of its chain, if there are any."""
        if self.blocks is None:
            return self.requests[i].get("prefix_key")
        return self.blocks.chains[i][0] if self.blocks.chains[i] else None

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
        if self.blocks and self.requests:
            for server in self.servers:
                if server.down_at(now):
                    self.blocks.to(server.number, math.inf)
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
                if self.blocks:
                    self.blocks.report(r, newest)
                for router in self.routers:
                    router.own[r] = 0.0
                if self.correction == "own_until_seen":
                    for job in list(server.jobs)[1:]:
                        self.routers[job.router].own[r] += self._unseen(job, server.speed_at(newest - self.delay))
        self.clocks = [server.look(now, self._finished) for server in self.servers]
        if self.blocks:
            for r in range(len(self.servers)):
                self.blocks.to(r, now)
                self.blocks.notice(r, now, self.reported_at[r])

    def _finished(self, job: Job, r: int) -> None:
        router = self.routers[job.router]
        if "measured" in (self.dividing, self.given.get("weights")):
            fading = math.log(2.0) / self.given["half_life_ms"]
            kept = math.exp(-(job.finish - router.at[r]) * fading)
            router.work[r] = router.work[r] * kept + job.guess
            router.time[r] = router.time[r] * kept + (job.finish - job.begin)
            router.at[r] = job.finish
        router.succeeds(job.index, r)

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

    def believed(self, router: Router, now: float) -> list[float]:
        """Return the load of every replica as a router believes it."""
        if self.period:
            loads = [report + own for report, own in zip(self.reported, router.own, strict=True)]
        else:
            loads = [self._load(server, clock) for server, clock in zip(self.servers, self.clocks, strict=True)]
        if self.dividing == "known":
            return [load / server.speed_at(now - self.delay) for load, server in zip(loads, self.servers, strict=True)]
        if self.dividing == "measured":
            return [load / router.measured(r) for r, load in enumerate(loads)]
        return loads

    def holders(self, router: Router, key: tuple[str, Any], now: float) -> list[int]:
        """Return the replicas that a router believes to hold a key, of a kind and a name."""
        found: list[int] = []
        if key[1] is None:
            return found
        for r, server in enumerate(self.servers):
            at = server.cached.get(key, COLD)
            if at <= server.cold_since(now, self.delay):
                continue
            seen = not self.period or at < self.reported_at[r]
            if seen or (self.correction != "none" and router.number in server.senders[key]):
                found.append(r)
        return found

    def nearest(self, router: Router, i: int, now: float, up: Sequence[int]) -> list[int]:
        """Return the replicas, of those up, that a router believes to hold most of the prefix of request i."""
        if self.blocks is None:
            return [r for r in self.holders(router, ("prefix", self.prefix_of(i)), now) if r in up]
        matches = [self.blocks.believed(i, r, router.number, self.clocks[r]) for r in up]
        return [r for r, match in zip(up, matches, strict=True) if match == max(matches) > 0]

    def view(self, i: int, now: float, router: Router, up: Sequence[int]) -> View:
        """Return what a user's rule sees."""
        count, request = len(self.servers), self.requests[i]
        looked = list(zip(self.servers, self.clocks, strict=True))
        prefix = self.holders(router, ("prefix", self.prefix_of(i)), now)
        adapter = self.holders(router, ("adapter", request.get("adapter_id")), now)
        matched = [int(r in prefix) for r in range(count)]
        if self.blocks:
            matched = [self.blocks.match(i, r, self.clocks[r]) for r in range(count)]
        signals = {"window_ms": WINDOW_MS, "kv_capacity_tokens": KV_CAPACITY_TOKENS} | self.given

        def signal(name: str) -> list[float]:
            return [server.signal(name, clock, signals) for server, clock in looked]

        assert self.own_rule is not None
        return View(
            now_ms=now,
            wait_ms=np.array([server.wait(clock) for server, clock in looked]),
            holds_prefix=np.array([match > 0 for match in matched]),
            owner=router.owners.get(request.get("session_id"), -1),
            speed=np.array([server.speed_at(now - self.delay) for server in self.servers]),
            served=np.array(self.served, dtype=np.int64),
            uniform=self.own_rule.uniforms(self.attempts[i] * len(self.requests) + i),
            requests=np.array(signal("requests")).astype(np.int64),
            tokens=np.array(signal("tokens")).astype(np.int64),
            kv=np.array(signal("kv")),
            utilisation=np.array(signal("utilisation")),
            up=np.array([r in up for r in range(count)]),
            holds_adapter=np.array([r in adapter for r in range(count)]),
            matched_blocks=np.array(matched, dtype=np.int64),
            matched_tokens=np.array(
                [self.blocks.tokens(i, match) if self.blocks else 0 for match in matched], dtype=np.int64
            ),
        )

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
        chosen, reason = choose(self, i, now, router, up)
        self.served[chosen] += 1
        server = self.servers[chosen]
        if i in self.sent_to:
            self.outcome.retried.add(i)
        self.sent_to[i] = chosen
        router.sends(i, chosen)
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
            router.fails(i, failed, breaker.failures, now + breaker.cooldown_ms)
        if self.attempts[i] >= self.events.retries:
            self.outcome.lost.add(i)
            return
        self.attempts[i] += 1
        self._send(i, now, failed)

    def _serve(self, i: int, now: float, router: Router, server: Server, reason: str, dead: bool) -> None:
        request, r = self.requests[i], server.number
        prefix, session, adapter = self.prefix_of(i), request.get("session_id"), request.get("adapter_id")
        cold = server.cold_since(now)
        warm = adapter is not None and not dead and server.cached.get(("adapter", adapter), COLD) > cold
        begin = max(self.clocks[r], server.available)
        copied, transfer, matched = False, 0.0, 0
        service = float(request["service_ms"])
        migrating = reason == "migrated" and not dead
        if self.blocks is None:
            hit = prefix is not None and not dead and server.cached.get(("prefix", prefix), COLD) > cold
            if migrating and not hit:
                key = ("prefix", prefix)
                copied = any(other.cached.get(key, COLD) > other.cold_since(now) for other in self.servers)
            tokens_copied = float(request.get("prompt_tokens", 0))
            amount = service * (1.0 - self.speedup) if hit or copied else service
            prefill = amount
        else:
            matched = 0 if dead else self.blocks.match(i, r, now)
            if migrating:
                longest = max(self.blocks.match(i, o.number, now) for o in self.servers if not o.down_at(now))
                copied = longest > matched
                tokens_copied = self.blocks.copied(i, matched, longest) if copied else 0.0
                matched = longest
            hit = matched > 0
            amount, prefill = self.blocks.work(i, matched, self.speedup)
        if copied:
            transfer = self.given["transfer_ms"] + self.given["transfer_ms_per_token"] * tokens_copied
        if warm:
            amount, prefill = (part * (1.0 - self.adapter_speedup) for part in (amount, prefill))
        took, prefilled = (server.service_time(begin + transfer, part) for part in (amount, prefill))
        if transfer > 0.0:
            took, prefilled = transfer + took, transfer + prefilled
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
        if self.blocks and not dead:
            self.blocks.store(i, r, router.number, begin + prefilled)
        for key, held in ((("prefix", prefix), hit), (("adapter", adapter), warm)):
            # Of chains of blocks the caches themselves keep count.
            if key[1] is not None and not dead and not (self.blocks and key[0] == "prefix"):
                if not held:
                    server.cached[key] = now
                    server.senders[key] = set()
                server.senders[key].add(router.number)
        if session is not None:
            router.owners[session] = r
        (self.outcome.migrated.add if copied else self.outcome.migrated.discard)(i)
        of_blocks: Record = {}
        if self.blocks:
            of_blocks = {
                "matched_blocks": matched,
                "matched_tokens": math.nan if self.blocks.unsized else self.blocks.tokens(i, matched),
                "evictions": self.blocks.evictions[i],
                "seen_tokens": math.nan if self.blocks.unsized else self.blocks.tokens(i, self.blocks.seen[i]),
            }
        self.rows[i] = {
            **request,
            **of_blocks,
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


def recovery_ms(records: Sequence[Record], events: Events) -> float:
    """Return how long after an event's detection the P95 wait is back within 10 %, the longest over events.

    Windows hold the requests that arrived in the last ``events.window_ms``: those that entered service before the event
    started, and then all up to and including each arrival from the detection on. NaN where it never is.
    """
    longest = 0.0 if events.events else math.nan
    waits = [(record["arrival_ms"], record["queue_wait_ms"]) for record in records]
    for event in events.events:
        start, detected = event.start_ms, event.start_ms + events.delay_ms
        before = [
            wait for arrival, wait in waits if start - events.window_ms <= arrival < start and arrival + wait < start
        ]
        limit = 1.1 * nearest_rank(before, 0.95) if before else math.nan
        recovered = math.nan
        for i, (arrival, _) in enumerate(waits):
            window = [wait for at, wait in waits[: i + 1] if at > arrival - events.window_ms]
            if arrival >= detected and nearest_rank(window, 0.95) <= limit:
                recovered = arrival - detected
                break
        longest = math.nan if math.isnan(recovered) or math.isnan(longest) else max(longest, recovered)
    return longest
