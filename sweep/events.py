"""What happens to replicas in a run, and how routers learn of it and deal with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from sweep.errors import InputError, number, one_of, whole

NO_REPLICA = ("wait", "lose")


@dataclass(frozen=True)
class Down:
    """A replica stops at `start_ms`, losing its queue and its caches, and comes back at `end_ms`."""

    replica: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Drain:
    """A replica finishes what it has from `start_ms` on and refuses new work until `end_ms`."""

    replica: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Slow:
    """A replica runs at `factor` times its speed from `start_ms` to `end_ms`, within a service too."""

    replica: int
    start_ms: float
    end_ms: float
    factor: float


@dataclass(frozen=True)
class Breaker:
    """A router's circuit breaker: `failures` in a row at one replica open it for `cooldown_ms`, then one trial request.

    The trial's success closes it; its failure opens it for another cool-down.
    """

    failures: int = 3
    cooldown_ms: float = 1000.0


Event = Down | Drain | Slow
_KINDS: dict[str, type[Event]] = {"Down": Down, "Drain": Drain, "Slow": Slow}


@dataclass(frozen=True)
class Events:
    """The events of a fleet, in order of time, and how routers deal with them; see `sweep.Fleet.with_events`."""

    events: tuple[Event, ...]
    heartbeat_ms: float = 100.0
    misses: int = 3
    retries: int = 1
    breaker: Breaker | None = None
    no_replica: str = "wait"
    window_ms: float = 1000.0

    @classmethod
    def of(cls, events: Iterable[Event], replicas: int, breaker: Breaker | None, **settings: Any) -> Events:
        """Return the events checked against a number of replicas.

        Raises
        ------
        InputError
            For an event of a replica that does not exist, of no length, or that overlaps another of its replica; and
            for a setting out of range.
        """
        if isinstance(events, (Down, Drain, Slow)) or not isinstance(events, Iterable):
            raise InputError(f"events must be a list of sweep.Down, sweep.Drain and sweep.Slow, got {events!r:.80}.")
        checked = [_checked(event, replicas) for event in events]
        checked.sort(key=lambda event: (event.start_ms, event.replica))
        for replica in range(replicas):
            mine = [event for event in checked if event.replica == replica]
            for before, after in pairwise(mine):
                if after.start_ms < before.end_ms:
                    raise InputError(f"Events of replica {replica} overlap: {before} and {after}; give one at a time.")
        if breaker is not None:
            if not isinstance(breaker, Breaker):
                raise InputError(f"breaker must be None or a sweep.Breaker, got {breaker!r:.80}.")
            breaker = Breaker(
                whole("failures of the breaker", breaker.failures, at_least=1),
                number("cooldown_ms of the breaker", breaker.cooldown_ms, above=0.0),
            )
        return cls(
            tuple(checked),
            number("heartbeat_ms", settings["heartbeat_ms"], at_least=0.0, at_most=1e12),
            _few("misses", settings["misses"], 10**6),
            _few("retries", settings["retries"], 100),
            breaker,
            one_of("no_replica", settings["no_replica"], NO_REPLICA),
            number("window_ms", settings["window_ms"], above=0.0),
        )

    @property
    def delay_ms(self) -> float:
        """Return how long after an event routers learn of it."""
        return self.heartbeat_ms * self.misses

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-safe dict that `from_dict` reads back."""
        kinds = [{"kind": type(event).__name__, **asdict(event)} for event in self.events]
        return {**asdict(self), "events": kinds}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], replicas: int) -> Events:
        """Return the events that `to_dict` wrote; `InputError` for anything else."""
        try:
            settings = dict(content)
            events = [
                _KINDS[item["kind"]](**{k: v for k, v in item.items() if k != "kind"})
                for item in settings.pop("events")
            ]
            breaker = settings.pop("breaker")
            return cls.of(events, replicas, None if breaker is None else Breaker(**breaker), **settings)
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(f"These are not stored events ({type(error).__name__}: {error}).") from error


def _few(what: str, found: Any, most: int) -> int:
    if whole(what, found) > most:
        raise InputError(f"{what} must be a whole number from 0 to {most}, got {found!r:.80}.")
    return int(found)


def _checked(event: Any, replicas: int) -> Event:
    if not isinstance(event, (Down, Drain, Slow)):
        raise InputError(f"An event must be a sweep.Down, sweep.Drain or sweep.Slow, got {event!r:.80}.")
    if isinstance(event.replica, bool) or whole(f"replica of {event}", event.replica) >= replicas:
        raise InputError(f"{event} names a replica that does not exist; there are replicas 0 to {replicas - 1}.")
    start = number(f"start_ms of {event}", event.start_ms, at_least=0.0)
    end = number(f"end_ms of {event}", event.end_ms, above=start, finite=False)
    if isinstance(event, Slow):
        return Slow(
            int(event.replica), start, end, number(f"factor of {event}", event.factor, at_least=1e-9, at_most=1e9)
        )
    return type(event)(int(event.replica), start, end)
