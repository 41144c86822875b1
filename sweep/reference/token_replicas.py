"""The replicas of the token-step model with routers, what became of a stream on them, and its statistics."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sweep.events import Down, Drain, Event, Events, Slow
from sweep.reference.statistics import mean, nearest_rank, sample_variance
from sweep.reference.token_step import Record

NEVER = float("-inf")


@dataclass
class StepReplica:
    """A replica in steps: requests in service and waiting, and the counters that routers see."""

    number: int
    speed: float
    slows: list[tuple[int, float, float]]  # first step, first step after it, factor
    downs: list[tuple[int, float]]
    drains: list[tuple[int, float]]
    serving: deque[int] = field(default_factory=deque)
    waiting: deque[int] = field(default_factory=deque)
    left: dict[int, int] = field(default_factory=dict)  # tokens of what is in service
    #: Of a replica that is down: (tokens in service, tokens queued, requests in service, requests queued).
    frozen: list[int] | None = None

    def speed_at(self, step: float) -> float:
        """Return the speed in a step."""
        for first, end, factor in self.slows:
            if first <= step < end:
                return self.speed * factor
        return self.speed

    def outage_at(self, step: int, kind: str) -> int | None:
        """Return the first step of the outage of a kind ("downs" or "drains") that holds in a step."""
        return next((first for first, end in getattr(self, kind) if first <= step < end), None)

    def cold_since(self, step: int) -> float:
        """Return when the replica last lost what it held."""
        return max((first for first, _ in self.downs if first <= step), default=NEVER)

    def counters(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens in service and queued, and the requests in service and queued."""
        if self.frozen is not None:
            return self.frozen
        queued = sum(tokens[i] for i in self.waiting)
        return [sum(self.left.values()), queued, len(self.serving), len(self.waiting)]

    def load(self, tokens: Sequence[int]) -> int:
        """Return the tokens in service and queued."""
        return sum(self.counters(tokens)[:2])


@dataclass
class StepOutcome:
    """What became of a stream: a record per request that arrived and was not lost, the loads, and the others."""

    records: list[Record]
    loads: list[list[int]]
    finished: set[int]
    served_tokens: int
    lost: set[int] = field(default_factory=set)
    retried: set[int] = field(default_factory=set)
    misrouted: set[int] = field(default_factory=set)
    migrated: set[int] = field(default_factory=set)


def step_replicas(speeds: Sequence[float], events: Events | None, step_ms: float) -> list[StepReplica]:
    """Return empty replicas of these speeds, with what happens to them in steps."""

    def step_of(time: float) -> float:
        return math.floor(time / step_ms) if math.isfinite(time) else time

    def spans(mine: Sequence[Event], kind: type[Event]) -> list[tuple[int, float]]:
        return [(int(step_of(e.start_ms)), step_of(e.end_ms)) for e in mine if isinstance(e, kind)]

    replicas = []
    for number, speed in enumerate(speeds):
        mine = [event for event in events.events if event.replica == number] if events else []
        factors = [event.factor for event in mine if isinstance(event, Slow)]
        slows = [(*span, factor) for span, factor in zip(spans(mine, Slow), factors, strict=True)]
        replicas.append(StepReplica(number, speed, slows, spans(mine, Down), spans(mine, Drain)))
    return replicas


def summarize_steps(outcome: StepOutcome) -> dict[str, Any]:
    """Return the statistics of a run of `StepSimulation`, named as in the Dataset; zeros for an empty run."""
    waits = [record["queue_wait_ms"] for record in outcome.records]
    variances = [sample_variance(load) for load in outcome.loads]
    return {
        "request_count": len(outcome.records),
        "mean_queue_wait_ms": mean(waits),
        "p95_queue_wait_ms": nearest_rank(waits, 0.95),
        "p99_queue_wait_ms": nearest_rank(waits, 0.99),
        "load_variance": mean(variances),
        "peak_load_variance": max(variances, default=0.0),
        "unstarted_requests": sum(math.isnan(record["start_ms"]) for record in outcome.records),
        "finished_tokens": outcome.served_tokens,
        "finished_requests": len(outcome.finished),
        "cumulative_load_tokens": [sum(load) for load in zip(*outcome.loads, strict=True)],
    }
