"""What serves: one vector of replica speeds per value of heterogeneity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweep.errors import InputError, distinct, number, whole
from sweep.events import Breaker, Event, Events

FloatArray = NDArray[np.float64]
Levels = float | Sequence[float] | NDArray[Any]


class Fleet:
    """Replica speeds along heterogeneity. A replica of speed 2 serves a request in half its nominal time.

    The named constructors keep the total speed at the number of replicas along heterogeneity, so that the
    axis changes how unequal the replicas are and not how loaded they are.

    Parameters
    ----------
    speeds
        Shaped (heterogeneity, replica), or (replica,) for one vector; used as given.
    heterogeneity
        A number per row that names it; the coefficient of variation of its speeds when left out.

    Raises
    ------
    InputError
        For speeds that are not positive and finite or not a rectangle, and for heterogeneities that do not
        number the rows or are not distinct.

    Examples
    --------
    >>> import sweep
    >>> sweep.Fleet.one_slow(replicas=4, heterogeneity=[0.0, 0.5]).speeds.round(3).tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.143, 1.143, 1.143, 0.571]]
    >>> sweep.Fleet.fixed([1.0, 0.5])
    Fleet(2 replicas, heterogeneity=[0.3333333333333333])
    """

    __slots__ = ("_events", "_heterogeneity", "_speeds")

    _speeds: FloatArray
    _heterogeneity: FloatArray
    _events: Events | None

    def __init__(self, speeds: ArrayLike, heterogeneity: Levels | None = None) -> None:
        self._speeds = _checked_speeds(speeds)
        if heterogeneity is None:
            levels = _variation(self._speeds)
            if len(set(levels)) < len(levels):
                raise InputError("Two rows of speeds are equally unequal; give heterogeneity, a number per row.")
        else:
            levels = _levels(heterogeneity, number)
        if len(levels) != len(self._speeds):
            raise InputError(
                f"heterogeneity has {len(levels)} values for {len(self._speeds)} rows of speeds; give one per row."
            )
        self._heterogeneity = np.array(levels)
        self._speeds.flags.writeable = self._heterogeneity.flags.writeable = False
        self._events = None

    @property
    def speeds(self) -> FloatArray:
        """Return the speeds, float64 (heterogeneity, replica), read-only."""
        return self._speeds

    @property
    def heterogeneity(self) -> FloatArray:
        """Return the value that names each row of `speeds`, float64 (heterogeneity,), read-only."""
        return self._heterogeneity

    @property
    def replicas(self) -> int:
        """Return the number of replicas."""
        return int(self._speeds.shape[1])

    @classmethod
    def one_slow(cls, replicas: int, heterogeneity: Levels, *, constant_capacity: bool = True) -> Fleet:
        """Return a fleet whose last replica runs at (1 - h) times the speed of the others.

        Parameters
        ----------
        replicas
            How many, N >= 1.
        heterogeneity
            One h or several, 0 <= h < 1.
        constant_capacity
            Scale all speeds by N / (N - h), so that they sum to N.

        Raises
        ------
        InputError
            For an h out of range or given twice, or no replicas.
        """
        count = whole("replicas", replicas, at_least=1)
        levels = _levels(heterogeneity, partial(number, at_least=0.0, below=1.0))
        speeds = np.ones((len(levels), count))
        speeds[:, -1] = 1.0 - np.array(levels)
        if constant_capacity:
            speeds *= count / (count - np.array(levels))[:, None]
        return cls(speeds, levels)

    @classmethod
    def spread(cls, replicas: int, heterogeneity: Levels, *, constant_capacity: bool = True) -> Fleet:
        """Return a fleet whose speeds fall geometrically from 1 to 1/ratio, the last replica being the slowest.

        Parameters
        ----------
        replicas
            How many, N >= 1.
        heterogeneity
            One ratio of the fastest to the slowest or several, each >= 1.
        constant_capacity
            Scale the speeds to sum to N.

        Raises
        ------
        InputError
            For a ratio out of range or given twice, or no replicas.
        """
        count = whole("replicas", replicas, at_least=1)
        levels = _levels(heterogeneity, partial(number, at_least=1.0, at_most=1e9))
        speeds = np.array(levels)[:, None] ** -np.linspace(0.0, 1.0, count)
        return cls(_scaled(speeds) if constant_capacity else speeds, levels)

    @classmethod
    def lognormal(cls, replicas: int, heterogeneity: Levels, *, seed: int = 0, constant_capacity: bool = True) -> Fleet:
        """Return a fleet with speeds drawn from a lognormal distribution of mean 1, one draw per replica.

        Parameters
        ----------
        replicas
            How many, N >= 1.
        heterogeneity
            One coefficient of variation of the distribution or several, 0 <= CV <= 100. All are made from the
            same draws, so that the axis stretches one fleet.
        seed
            Of the draws.
        constant_capacity
            Scale the speeds to sum to N.

        Raises
        ------
        InputError
            For a CV out of range or given twice, a bad seed, or no replicas.
        """
        count = whole("replicas", replicas, at_least=1)
        levels = _levels(heterogeneity, partial(number, at_least=0.0, at_most=100.0))
        normal = np.random.default_rng(whole("seed", seed)).standard_normal(count)
        variance = np.log1p(np.square(levels))[:, None]
        speeds = np.exp(np.sqrt(variance) * normal - variance / 2.0)
        return cls(_scaled(speeds) if constant_capacity else speeds, levels)

    @classmethod
    def fixed(cls, speeds: ArrayLike) -> Fleet:
        """Return one vector of speeds as given, (replica,); its heterogeneity is its coefficient of variation.

        Raises
        ------
        InputError
            For speeds that are not one row of positive finite numbers.
        """
        fleet = cls(speeds)
        if len(fleet.speeds) != 1:
            raise InputError(f"speeds must be one row, got {len(fleet.speeds)}; Fleet(speeds) takes several.")
        return fleet

    @property
    def events(self) -> Events | None:
        """Return what happens to the replicas in a run, if anything does."""
        return self._events

    def with_events(
        self,
        events: Iterable[Event],
        *,
        heartbeat_ms: float = 100.0,
        misses: int = 3,
        retries: int = 1,
        breaker: Breaker | None = None,
        no_replica: str = "wait",
        window_ms: float = 1000.0,
    ) -> Fleet:
        """Return this fleet with replicas that fail, drain or slow down in every run, in place of events it had.

        Nobody foresees an event. Routers learn of its start, and of its end, ``heartbeat_ms * misses`` later and keep
        sending until then. Work lost with a replica is retried elsewhere when the failure is detected, work refused by
        a draining replica at once.

        The engine ``token_step`` knows whole steps only: times are rounded down to the step they fall into, as arrivals
        are, and spans (until an event is known, a cool-down) up. Tokens served of work that was lost stay counted, and
        an end of a trial of the breaker shows in the step in which it comes.

        Parameters
        ----------
        events
            `sweep.Down`, `sweep.Drain` and `sweep.Slow`, at most one at a time per replica.
        heartbeat_ms, misses
            How often replicas report that they are there, and how many reports must be missed.
        retries
            How often a request is sent again; then it counts as lost.
        breaker
            A `sweep.Breaker` that each router keeps for each replica.
        no_replica
            What a request does when its router holds no replica to be up: ``"wait"`` until one may be, or ``"lose"``.
        window_ms
            Length of the sliding window over which ``recovery_ms`` measures the P95 wait.

        Raises
        ------
        InputError
            For an event of a replica that does not exist or that overlaps another, or a setting out of range.

        Examples
        --------
        >>> import sweep
        >>> fleet = sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(1, 500.0, 900.0)], heartbeat_ms=50)
        >>> fleet.events.delay_ms
        150.0
        """
        fleet = Fleet(self.speeds, self.heterogeneity)
        fleet._events = Events.of(
            events,
            self.replicas,
            breaker,
            heartbeat_ms=heartbeat_ms,
            misses=misses,
            retries=retries,
            no_replica=no_replica,
            window_ms=window_ms,
        )
        return fleet

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-safe dict from which `from_dict` rebuilds the fleet exactly."""
        content: dict[str, Any] = {"speeds": self.speeds.tolist(), "heterogeneity": self.heterogeneity.tolist()}
        return content if self.events is None else content | {"events": self.events.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Fleet:
        """Return the fleet that `to_dict` wrote; `InputError` for anything else."""
        if not isinstance(content, Mapping) or set(content) - {"events"} != {"speeds", "heterogeneity"}:
            raise InputError(f"A stored fleet has the keys 'speeds' and 'heterogeneity', got {content!r:.80}.")
        fleet = cls(content["speeds"], content["heterogeneity"])
        if "events" in content:
            fleet._events = Events.from_dict(content["events"], fleet.replicas)
        return fleet

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) of the speeds, heterogeneities and events."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fleet) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle would not keep the read-only flags.
        return (Fleet.from_dict, (self.to_dict(),))

    def __repr__(self) -> str:
        happening = f", {len(self.events.events)} events" if self.events else ""
        noun = "replica" if self.replicas == 1 else "replicas"
        return f"Fleet({self.replicas} {noun}, heterogeneity={self.heterogeneity.tolist()}{happening})"


# Far beyond any fleet, and near enough to 1 that no service time or number of tokens overflows.
_SLOWEST, _FASTEST = 1e-9, 1e9


def _checked_speeds(speeds: ArrayLike) -> FloatArray:
    try:
        table = np.asarray(speeds)
    except ValueError:  # rows of unequal length
        table = np.empty(())
    if table.ndim == 1:
        table = table[None, :]
    if table.ndim != 2:
        raise InputError(
            f"speeds must be one row of numbers, one per replica, or rows of equal length, got {speeds!r:.60}."
        )
    if not table.size:
        raise InputError("speeds is empty; give at least one replica.")
    place = " in row {}" if len(table) > 1 else ""
    return np.array(
        [
            [
                number(f"Speed of replica {i}{place.format(row)}", speed, at_least=_SLOWEST, at_most=_FASTEST)
                for i, speed in enumerate(speeds_of)
            ]
            for row, speeds_of in enumerate(table.tolist())
        ]
    )


def _levels(heterogeneity: Levels, check: Callable[[str, Any], float]) -> list[float]:
    """Return the heterogeneities given, one or several, each checked and none twice."""
    given = heterogeneity.tolist() if isinstance(heterogeneity, np.ndarray) else heterogeneity
    values = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not values:
        raise InputError("heterogeneity is empty; give at least one value.")
    levels = [check("heterogeneity", value) for value in values]
    distinct("heterogeneity", levels)
    return levels


def _variation(speeds: FloatArray) -> list[float]:
    # Equal speeds are made exactly 0: the rounding of their mean would leave 1e-17.
    return [0.0 if np.ptp(row) == 0.0 else float(row.std() / row.mean()) for row in speeds]


def _scaled(speeds: FloatArray) -> FloatArray:
    scaled: FloatArray = speeds * (speeds.shape[1] / speeds.sum(axis=1, keepdims=True))
    return scaled
