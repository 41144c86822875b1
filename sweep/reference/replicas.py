"""The replicas of the router model in plain Python: queues, signals, caches, and what happens to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sweep.events import Down, Drain, Events, Slow
from sweep.reference.statistics import total

COLD = float("-inf")


@dataclass
class Job:
    """A request on a replica: when it begins and finishes there, and what its router believes of its work."""

    index: int
    router: int
    tokens: int
    guess: float  # believed work, ms at speed 1
    error: float
    belief: float  # the same after any cache hit
    begin: float
    finish: float


@dataclass
class Server:
    """One replica. Its state is looked at at times that never go back."""

    number: int
    speed: float
    events: Events | None
    jobs: deque[Job] = field(default_factory=deque)  # not finished, the first in service
    history: list[Job] = field(default_factory=list)  # all of them, in order
    available: float = 0.0
    believed: float = 0.0
    cached: dict[Any, float] = field(default_factory=dict)  # key -> since when
    senders: dict[Any, set[int]] = field(default_factory=dict)  # key -> the routers that sent it
    restarts: int = 0

    def __post_init__(self) -> None:
        mine = [event for event in self.events.events if event.replica == self.number] if self.events else []
        self.downs = [event for event in mine if isinstance(event, Down)]
        self.drains = [event for event in mine if isinstance(event, Drain)]
        self.outages: list[Down | Drain] = [*self.downs, *self.drains]
        self.pieces = [(0.0, self.speed)]
        for event in mine:
            if isinstance(event, Slow):
                if len(self.pieces) > 1 and self.pieces[-1][0] == event.start_ms:
                    self.pieces.pop()
                self.pieces += [(event.start_ms, self.speed * event.factor), (event.end_ms, self.speed)]

    # --- Time ---------------------------------------------------------------------------------------------------------

    def down_at(self, t: float) -> Down | None:
        """Return the outage in which the replica is down at `t`."""
        return next((event for event in self.downs if event.start_ms <= t < event.end_ms), None)

    def draining_at(self, t: float) -> bool:
        """Return whether the replica refuses work at `t`."""
        return any(event.start_ms <= t < event.end_ms for event in self.drains)

    def cold_since(self, t: float, delay: float = 0.0) -> float:
        """Return when the caches were last lost, of the outages that started `delay` before `t`."""
        return max((event.start_ms for event in self.downs if event.start_ms + delay <= t), default=COLD)

    def look(self, t: float, finished: Any) -> float:
        """Bring the replica to `t` and return its clock, which stands still while it is down."""
        for event in self.downs[self.restarts :]:
            if event.start_ms > t:
                break
            self._finish(event.start_ms, finished)
            if t < event.end_ms:
                return event.start_ms
            for job in self.jobs:
                job.begin, job.finish = min(job.begin, event.start_ms), event.start_ms
            self.jobs.clear()
            self.believed = 0.0
            self.available = event.end_ms
            self.restarts += 1
        self._finish(t, finished)
        return t

    def _finish(self, t: float, finished: Any) -> None:
        while self.jobs and self.jobs[0].finish <= t:
            job = self.jobs.popleft()
            self.believed = self.believed - self.jobs[0].belief if self.jobs else 0.0
            finished(job, self.number)

    # --- Speed --------------------------------------------------------------------------------------------------------

    def _pieces_from(self, t: float) -> list[tuple[float, float]]:
        at = max(k for k, (start, _) in enumerate(self.pieces) if start <= t or k == 0)
        return self.pieces[at:]

    def speed_at(self, t: float) -> float:
        """Return the speed at `t`."""
        return self._pieces_from(t)[0][1]

    def service_time(self, begin: float, work: float) -> float:
        """Return how long `work` takes from `begin` on."""
        took, since = 0.0, begin
        pieces = self._pieces_from(begin)
        for (_, speed), (change, _) in pairwise(pieces):
            if begin + (took + work / speed) <= change:
                return took + work / speed
            work -= (change - since) * speed
            took += change - since
            since = change
        return took + work / pieces[-1][1]

    def drain_time(self, now: float, until: float) -> float:
        """Return how long what lasts from `now` to `until` would take at the speed of now."""
        pieces = self._pieces_from(now)
        if len(pieces) == 1 or until <= pieces[1][0]:
            return until - now
        work, since = 0.0, now
        speed = pieces[0][1]
        for change, after in pieces[1:]:
            if change >= until:
                break
            work += (change - since) * speed
            since, speed = change, after
        return (work + (until - since) * speed) / pieces[0][1]

    # --- Signals ------------------------------------------------------------------------------------------------------

    def wait(self, t: float) -> float:
        """Return how long until the replica could start another request."""
        return self.drain_time(t, self.available) if self.available > t else 0.0

    def signal(self, name: str, t: float, given: Mapping[str, Any]) -> float:
        """Return a load signal at `t`, up to which the replica has been brought."""
        weight = float(given.get("in_service_weight", 1.0))
        if name == "utilisation":
            window = float(given["window_ms"])
            return (self._busy_until(t) - self._busy_until(t - window)) / window
        if name == "work":
            return self._work(t, weight, given.get("work_error_cv", 0.0))
        if not self.jobs:
            return 0.0
        if name == "requests":
            return (len(self.jobs) - 1) + weight
        serving = self.jobs[0].tokens
        if name == "tokens":
            return sum(job.tokens for job in list(self.jobs)[1:]) + weight * serving
        return serving / float(given["kv_capacity_tokens"])

    def _work(self, t: float, weight: float, error_cv: float) -> float:
        if weight == 1.0 and error_cv == 0.0:
            return self.wait(t)
        if not self.jobs:
            return 0.0
        serving = self.drain_time(t, self.jobs[0].finish)
        if error_cv == 0.0:
            return (self.drain_time(t, self.available) - serving) + weight * serving
        return self.believed / self.speed_at(t) + weight * (self.jobs[0].error * serving)

    def _busy_until(self, t: float) -> float:
        return busy_until([(job.begin, job.finish) for job in self.history], t)

    def accept(self, job: Job) -> None:
        """Queue a job."""
        if self.jobs:
            self.believed += job.belief
        self.jobs.append(job)
        self.history.append(job)
        self.available = job.finish


def servers_of(speeds: Sequence[float], events: Events | None) -> list[Server]:
    """Return idle replicas of these speeds."""
    return [Server(number, speed, events) for number, speed in enumerate(speeds)]


def busy_until(spans: Sequence[tuple[float, float]], t: float) -> float:
    """Return how long a replica that served from `begin` to `finish`, in order, was busy before `t`."""
    over = total([finish - begin for begin, finish in spans if finish <= t])
    now = next((begin for begin, finish in spans if finish > t), t)
    return over + (t - now if now < t else 0.0)
