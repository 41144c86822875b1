"""What arrives: a description of traffic, realised as one stream of requests per seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweep.errors import InputError, distinct, number, one_of, unknown, whole
from sweep.requests import Requests
from sweep.shaping import resampled, units
from sweep.streams import STREAM_VERSION, Synthetic, dplb_burst, mean_gap_ms

Number = float | Sequence[float] | NDArray[Any]
Count = int | Sequence[int] | NDArray[Any]
Name = str | Sequence[str]

SERVICES = ("exponential", "deterministic", "lognormal", "gamma")
POPULARITIES = ("uniform", "zipf")
SESSION_PREFIXES = ("own", "independent")

MOST = 100_000_000
# More bursts than this per arrival cannot be told from Poisson arrivals, and would cost memory.
MOST_BURSTS_PER_ARRIVAL = 100.0


def _limited(what: str, found: Any) -> int:
    if whole(what, found) > MOST:
        raise InputError(f"{what} must be a whole number from 0 to {MOST:,}, got {found!r}.")
    return int(found)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "requests": _limited,
    "utilisation": partial(number, at_least=1e-6, at_most=1e6),
    "rate_per_s": partial(number, at_least=1e-6, at_most=1e9),
    "replicas": partial(whole, at_least=1),
    "mean_service_ms": partial(number, at_least=1e-6, at_most=1e9),
    "service": partial(one_of, allowed=SERVICES),
    "service_cv": partial(number, at_least=1e-3, at_most=1e3),
    "prefixes": _limited,
    "sessions": _limited,
    "adapters": _limited,
    "batch": partial(whole, at_least=1),
    "popularity": partial(one_of, allowed=POPULARITIES),
    "zipf_exponent": partial(number, at_least=0.0, at_most=100.0),
    "session_prefix": partial(one_of, allowed=SESSION_PREFIXES),
    "peak_to_mean": partial(number, at_least=1.0),
    "burst_ms": partial(number, above=0.0, at_most=1e12),
    "burst_share": partial(number, at_least=1e-6, below=1.0),
}

_DEFAULTS: Mapping[str, Any] = {
    "mean_service_ms": 10.0,
    "service": "exponential",
    "prefixes": 0,
    "sessions": 0,
    "popularity": "uniform",
    "zipf_exponent": 1.0,
    "session_prefix": "own",
    "burst_share": 0.1,
}


@dataclass(frozen=True, eq=False, repr=False)
class Workload:
    """A description of traffic; `realise` makes the stream of a seed from it.

    Build one with `poisson`, `bursty`, `dplb_burst`, `fixed` or `resampled`. A parameter given as a list adds a
    dimension of that name to a sweep. The same seed then draws the same random numbers for each of its values, and a
    component of the stream (arrivals, service, sessions, prefixes) that the parameter does not concern is the same.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Workload.poisson(requests=1_000, utilisation=[0.5, 0.9], replicas=4, sessions=50, prefixes=50)
    >>> work
    Workload.poisson(requests=1000, utilisation=[0.5, 0.9], replicas=4, prefixes=50, sessions=50)
    >>> work.dims
    {'utilisation': (0.5, 0.9)}
    >>> point, scalar = work.points()[1]
    >>> point, scalar.realise(seed=0).arrival_ms[:3].round(2).tolist()
    ({'utilisation': 0.9}, [9.15, 11.27, 14.75])
    """

    kind: str
    parameters: Mapping[str, Any]

    @classmethod
    def poisson(
        cls,
        requests: Count,
        *,
        utilisation: Number | None = None,
        rate_per_s: Number | None = None,
        replicas: Count | None = None,
        mean_service_ms: Number = 10.0,
        service: Name = "exponential",
        service_cv: Number | None = None,
        prefixes: Count = 0,
        sessions: Count = 0,
        popularity: Name = "uniform",
        zipf_exponent: Number = 1.0,
        session_prefix: Name = "own",
        batch: Count = 1,
        adapters: Count = 0,
    ) -> Workload:
        """Return traffic with independent arrivals: exponential gaps, the first before the first request.

        Parameters
        ----------
        requests
            How many arrive.
        utilisation
            Offered load per replica of speed 1: the rate is ``utilisation * replicas / mean_service_ms``.
        rate_per_s
            The arrival rate [requests/s]; give either this or `utilisation`.
        replicas
            Replicas that `utilisation` refers to.
        mean_service_ms
            Mean service time at speed 1 [ms].
        service
            Distribution of the service time: exponential, deterministic, lognormal or gamma.
        service_cv
            Coefficient of variation of lognormal and gamma service times (1 when left out).
        prefixes, sessions
            How many there are; 0 = requests have none. With sessions every request draws a session.
        popularity
            How sessions and prefixes are drawn: uniform, or zipf, where the k-th of them has a share
            proportional to ``k ** -zipf_exponent``.
        zipf_exponent
            See `popularity`; 0 = uniform.
        session_prefix
            "own": a session keeps one prefix for life, number ``session % prefixes``. "independent": every
            request draws its prefix on its own.
        batch
            How many requests arrive at one instant; batches come at the rate divided by it.
        adapters
            How many adapters (LoRA) there are; 0 = requests have none. They go with sessions as prefixes do.

        Raises
        ------
        InputError
            For a value out of range, an unknown name, or parameters that do not go together.

        Examples
        --------
        >>> import sweep
        >>> sweep.Workload.poisson(requests=3, rate_per_s=100, service="deterministic").realise(0).service_ms.tolist()
        [10.0, 10.0, 10.0]
        """
        return cls._synthetic(
            "poisson",
            requests=requests,
            utilisation=utilisation,
            rate_per_s=rate_per_s,
            replicas=replicas,
            mean_service_ms=mean_service_ms,
            service=service,
            service_cv=service_cv,
            prefixes=prefixes,
            sessions=sessions,
            popularity=popularity,
            zipf_exponent=zipf_exponent,
            session_prefix=session_prefix,
            batch=batch,
            adapters=adapters,
        )

    @classmethod
    def bursty(
        cls,
        requests: Count,
        *,
        peak_to_mean: Number,
        burst_ms: Number,
        burst_share: Number = 0.1,
        utilisation: Number | None = None,
        rate_per_s: Number | None = None,
        replicas: Count | None = None,
        mean_service_ms: Number = 10.0,
        service: Name = "exponential",
        service_cv: Number | None = None,
        prefixes: Count = 0,
        sessions: Count = 0,
        popularity: Name = "uniform",
        zipf_exponent: Number = 1.0,
        session_prefix: Name = "own",
        batch: Count = 1,
        adapters: Count = 0,
    ) -> Workload:
        """Return traffic that alternates between bursts and calm: a two-state Markov-modulated Poisson process.

        With mean rate m, peak-to-mean ratio p and burst share b, requests arrive at rate p m in a burst and at
        (1 - p b) / (1 - b) m between bursts, so that the mean over time is m. Bursts last `burst_ms` on average
        and calms ``burst_ms * (1 - b) / b``, both exponentially distributed. The process starts in its
        stationary distribution: in a burst with probability b.

        Parameters
        ----------
        requests
            How many arrive.
        peak_to_mean
            Rate in a burst / mean rate, from 1 (no bursts) to 1 / `burst_share` (nothing arrives between bursts).
        burst_ms
            Mean duration of a burst [ms].
        burst_share
            Share of the time spent in bursts.
        utilisation, rate_per_s
            The mean rate, as in `poisson`.
        replicas, mean_service_ms, service, service_cv
            As in `poisson`.
        prefixes, sessions, popularity, zipf_exponent, session_prefix, batch, adapters
            As in `poisson`.

        Raises
        ------
        InputError
            For a value out of range, an unknown name, or parameters that do not go together.

        References
        ----------
        W. Fischer and K. Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook",
        Performance Evaluation 18(2), 1993.

        Examples
        --------
        >>> import sweep
        >>> sweep.Workload.bursty(requests=100, peak_to_mean=5, burst_ms=200, rate_per_s=50).realise(0)
        Requests(100 requests over 3447.6 ms, 0 prefixes, 0 sessions)
        """
        return cls._synthetic(
            "bursty",
            requests=requests,
            peak_to_mean=peak_to_mean,
            burst_ms=burst_ms,
            burst_share=burst_share,
            utilisation=utilisation,
            rate_per_s=rate_per_s,
            replicas=replicas,
            mean_service_ms=mean_service_ms,
            service=service,
            service_cv=service_cv,
            prefixes=prefixes,
            sessions=sessions,
            popularity=popularity,
            zipf_exponent=zipf_exponent,
            session_prefix=session_prefix,
            batch=batch,
            adapters=adapters,
        )

    @classmethod
    def dplb_burst(cls) -> Workload:
        """Return the traffic of the DPLB experiment: a burst of large requests in steps 10 to 39 of 100.

        Under seed s it draws from Python's ``random.Random(s)``: in each step t of the burst 4 to 6 requests of
        40 to 60 tokens, in any other step none or one of 20 to 40. A request arrives at t ms and takes
        tokens/100 ms at speed 1, since a replica of speed 1 serves 100 tokens per step of 1 ms.

        Examples
        --------
        >>> import sweep
        >>> len(sweep.Workload.dplb_burst().realise(42))
        170
        """
        return cls("dplb_burst", MappingProxyType({}))

    @classmethod
    def fixed(cls, requests: Requests) -> Workload:
        """Return traffic that is this one stream under every seed, such as a recorded trace.

        Raises
        ------
        InputError
            For anything but a `Requests`.
        """
        if not isinstance(requests, Requests):
            raise InputError(f"requests must be a sweep.Requests, got {type(requests).__name__}; see Requests.from_*.")
        return cls("fixed", MappingProxyType({"requests": requests}))

    @classmethod
    def resampled(cls, requests: Requests, by: str = "auto") -> Workload:
        """Return traffic that is, under every seed, the units of a stream drawn with replacement at their own times.

        A unit is a session or a prefix family: requests that share a block deeper than those that many have, such as a
        system prompt. A further copy of a unit has new ids for the sessions, prefixes and blocks that are its own, so
        that copies share no more than strangers do. The number of requests differs from seed to seed.

        Parameters
        ----------
        requests
            The stream, such as a recorded trace.
        by
            "sessions", "families", or "auto": sessions where requests have them.

        Raises
        ------
        InputError
            For anything but a `Requests`, and for a stream without sessions, blocks and prefixes.
        """
        if not isinstance(requests, Requests):
            raise InputError(f"requests must be a sweep.Requests, got {type(requests).__name__}; see Requests.from_*.")
        units(requests, by)
        return cls("resampled", MappingProxyType({"requests": requests, "by": by}))

    @classmethod
    def _synthetic(cls, kind: str, **given: Any) -> Workload:
        parameters = {name: _checked(name, value) for name, value in given.items() if value is not None}
        for name in given:
            if given[name] is None and name in ("requests", "peak_to_mean", "burst_ms", *_DEFAULTS):
                raise InputError(f"{name} must be given, got None.")
        _check_together(parameters)
        for name, absent in (("batch", 1), ("adapters", 0)):
            # Left out, so that a description without batches and adapters keeps its fingerprint.
            if parameters.get(name) == absent:
                del parameters[name]
        return cls(kind, MappingProxyType(parameters))

    def realise(self, seed: int) -> Requests:
        """Return the stream of a seed: a function of this description and the seed alone.

        Parameters
        ----------
        seed
            A whole number >= 0.

        Raises
        ------
        InputError
            For a bad seed, and when a parameter is still a list (realise one of `points` instead).
        """
        return self._stream(whole("seed", seed))

    @property
    def dims(self) -> dict[str, tuple[Any, ...]]:
        """Return the parameters given as lists and their values, in the order of the signature."""
        return {name: value for name, value in self.parameters.items() if isinstance(value, tuple)}

    @property
    def has_blocks(self) -> bool:
        """Return whether requests bring chains of cache blocks."""
        requests = self.parameters.get("requests")
        return isinstance(requests, Requests) and requests.blocks is not None

    @property
    def has_adapters(self) -> bool:
        """Return whether some request may have an adapter."""
        if self.kind == "fixed":
            return self.parameters["requests"].adapter is not None
        return bool(np.any(self.parameters.get("adapters", 0)))

    def points(self) -> list[tuple[dict[str, Any], Workload]]:
        """Return every combination of `dims`, the last varying fastest, each with its workload without lists."""
        dims = self.dims
        if not dims:
            return [({}, self)]
        points = [dict(zip(dims, values, strict=True)) for values in product(*dims.values())]
        return [(point, Workload(self.kind, MappingProxyType({**self.parameters, **point}))) for point in points]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-safe dict from which `from_dict` rebuilds the workload exactly."""
        return {"kind": self.kind, "parameters": self._plain(Requests.to_dict)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Workload:
        """Return the workload that `to_dict` wrote; `InputError` for anything else."""
        if not isinstance(content, Mapping) or set(content) != {"kind", "parameters"}:
            raise InputError(f"A stored workload has the keys 'kind' and 'parameters', got {content!r:.80}.")
        kind, parameters = content["kind"], content["parameters"]
        makers: dict[str, Callable[..., Workload]] = {
            "poisson": cls.poisson,
            "bursty": cls.bursty,
            "dplb_burst": cls.dplb_burst,
            "fixed": lambda requests: cls.fixed(Requests.from_dict(requests)),
            "resampled": lambda requests, by: cls.resampled(Requests.from_dict(requests), by),
        }
        if not isinstance(kind, str) or kind not in makers:
            raise unknown("kind of workload", kind, makers)
        try:
            return makers[kind](**parameters)
        except TypeError as error:
            raise InputError(
                f"A stored {kind} workload has other parameters than this version knows: {error}."
            ) from error

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) that identifies the streams: the description and `STREAM_VERSION`."""
        content = {"version": STREAM_VERSION, "kind": self.kind, "parameters": self._plain(Requests.fingerprint)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _plain(self, of_requests: Callable[[Requests], Any]) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            if isinstance(value, Requests):
                return of_requests(value)
            return list(value) if isinstance(value, tuple) else value

        return {name: plain(value) for name, value in self.parameters.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def __repr__(self) -> str:
        shown = self._plain(lambda requests: requests)
        inner = ", ".join(f"{k}={v!r}" for k, v in shown.items() if k not in _DEFAULTS or v != _DEFAULTS[k])
        return f"Workload.{self.kind}({inner})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.kind, dict(self.parameters)))

    @cached_property
    def _stream(self) -> Callable[[int], Requests]:
        """The function of a seed, with all that does not depend on the seed already computed."""
        if self.dims:
            raise InputError(f"{', '.join(self.dims)} holds several values; realise one of points() instead.")
        if self.kind == "fixed":
            requests: Requests = self.parameters["requests"]
            return lambda seed: requests
        if self.kind == "resampled":
            requests, unit = self.parameters["requests"], units(self.parameters["requests"], self.parameters["by"])
            return lambda seed: resampled(requests, unit, seed)
        return dplb_burst if self.kind == "dplb_burst" else Synthetic(self.parameters)


def _rebuilt(kind: str, parameters: dict[str, Any]) -> Workload:
    return Workload(kind, MappingProxyType(parameters))


def _checked(name: str, value: Any) -> Any:
    """Return a parameter checked: a scalar, or a tuple of distinct values where several were given."""
    given = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(given, Sequence) or isinstance(given, str):
        return _CHECKS[name](name, given)
    values = tuple(_CHECKS[name](name, item) for item in given)
    if not values:
        raise InputError(f"{name} is an empty list; give a value or at least one in the list.")
    distinct(name, values)
    return values


def _check_together(parameters: Mapping[str, Any]) -> None:
    """Raise `InputError` for parameters, each right by itself, that do not go together."""

    def values(name: str) -> tuple[Any, ...]:
        value = parameters[name]
        return value if isinstance(value, tuple) else (value,)

    if ("utilisation" in parameters) == ("rate_per_s" in parameters):
        found = "both" if "utilisation" in parameters else "neither"
        raise InputError(f"Give exactly one of utilisation and rate_per_s, got {found}.")
    if "utilisation" in parameters and "replicas" not in parameters:
        raise InputError("utilisation needs replicas, the number of replicas it refers to.")
    without_cv = [name for name in values("service") if name in ("exponential", "deterministic")]
    if "service_cv" in parameters and without_cv:
        raise InputError(f"service_cv is for lognormal and gamma; service {without_cv[0]!r} has no choice of it.")
    if "burst_ms" not in parameters:
        return
    for peak, share in product(values("peak_to_mean"), values("burst_share")):
        # A product such as 3 * (1 / 3) may round to just above 1.
        if peak * share > 1.0 + 1e-12:
            raise InputError(
                f"peak_to_mean must be at most 1 / burst_share = {1.0 / share:g}, got {peak:g}: "
                "bursts cannot bring more requests than arrive in all."
            )
    rates = ("rate_per_s",) if "rate_per_s" in parameters else ("utilisation", "replicas", "mean_service_ms")
    gaps = [mean_gap_ms(dict(zip(rates, point, strict=True))) for point in product(*map(values, rates))]
    shortest = max(values("burst_share")) * max(gaps) / MOST_BURSTS_PER_ARRIVAL
    if min(values("burst_ms")) < shortest:
        raise InputError(
            f"burst_ms must be at least {shortest:g} here, got {min(values('burst_ms')):g}; with more than "
            f"{MOST_BURSTS_PER_ARRIVAL:g} bursts per arrival they cannot be told from Poisson arrivals."
        )
