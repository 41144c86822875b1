"""How a description becomes a stream: all the random draws, one function of the seed per scalar workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from sweep.columns import NONE, FloatArray, IntArray
from sweep.requests import Requests

# Part of every fingerprint: raise it whenever the same description and seed come to give another stream.
STREAM_VERSION = 1

# Each component of a stream draws from a generator of its own, so that changing one never shifts another's draws.
ARRIVALS, SERVICE, SESSION, PREFIX, PHASES, ADAPTER = range(6)


def mean_gap_ms(parameters: Mapping[str, Any]) -> float:
    """Return the mean time between arrivals [ms]."""
    if "rate_per_s" in parameters:
        return 1000.0 / float(parameters["rate_per_s"])
    return float(parameters["mean_service_ms"] / (parameters["utilisation"] * parameters["replicas"]))


def _generator(seed: int, component: int) -> Generator:
    return default_rng(SeedSequence(entropy=seed, spawn_key=(component,)))


class Synthetic:
    """A scalar Poisson or bursty workload as a function of the seed. All randomness is vectorised."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.requests: int = parameters["requests"]
        self.gap_ms = mean_gap_ms(parameters)
        self.bursts = _Bursts(parameters, self.gap_ms) if "burst_ms" in parameters else None
        self.batch: int = parameters.get("batch", 1)
        self.service = _service_draws(parameters)
        self.sessions, self.prefixes = parameters["sessions"], parameters["prefixes"]
        zipf = parameters["zipf_exponent"] if parameters["popularity"] == "zipf" else 0.0
        self.draw_session = _draws(self.sessions, zipf)
        self.draw_prefix = _draws(self.prefixes, zipf)
        self.adapters: int = parameters.get("adapters", 0)
        self.draw_adapter = _draws(self.adapters, zipf)
        self.own = self.sessions > 0 and parameters["session_prefix"] == "own"
        # Shared by the streams of all seeds; a stream's arrays are read-only.
        self.numbers = np.arange(self.requests)
        self.zeros = np.zeros(self.requests, np.int64)
        self.none = np.full(self.requests, NONE)

    def __call__(self, seed: int) -> Requests:
        """Return the stream of a seed."""
        session = self._drawn(self.draw_session, seed, SESSION) if self.sessions else self.none
        return Requests(
            arrival_ms=self._arrivals(seed),
            service_ms=self.service(seed),
            prompt_tokens=self.zeros,
            output_tokens=self.zeros,
            prefix=self._prefix(seed, session),
            session=session,
            request_id=self.numbers,
            prefix_labels=range(self.prefixes),
            session_labels=range(self.sessions),
            adapter=self._adapter(seed, session),
            adapter_labels=range(self.adapters),
        )

    def _arrivals(self, seed: int) -> FloatArray:
        # Arrivals of a Poisson process of rate 1, then stretched: a list of rates shares them.
        unit = _generator(seed, ARRIVALS).standard_exponential(-(-self.requests // self.batch))
        np.cumsum(unit, out=unit)
        if self.batch > 1:
            unit = np.repeat(unit * self.batch, self.batch)[: self.requests]
        if self.bursts is not None:
            return self.bursts.stretched(unit, _generator(seed, PHASES))
        unit *= self.gap_ms
        return unit

    def _prefix(self, seed: int, session: IntArray) -> IntArray:
        if not self.prefixes:
            return self.none
        if not self.own:
            return self._drawn(self.draw_prefix, seed, PREFIX)
        return session if self.sessions <= self.prefixes else session % self.prefixes

    def _adapter(self, seed: int, session: IntArray) -> IntArray | None:
        if not self.adapters:
            return None
        return session % self.adapters if self.own else self._drawn(self.draw_adapter, seed, ADAPTER)

    def _drawn(self, draw: Callable[[Generator, int], IntArray], seed: int, component: int) -> IntArray:
        return draw(_generator(seed, component), self.requests)


class _Bursts:
    """The intensity of a two-state Markov-modulated Poisson process, which stretches unit arrivals."""

    def __init__(self, parameters: Mapping[str, Any], gap_ms: float) -> None:
        peak, self.share = parameters["peak_to_mean"], parameters["burst_share"]
        calm = max(0.0, 1.0 - peak * self.share) / (1.0 - self.share)
        burst_ms = parameters["burst_ms"]
        # Indexed by state, 1 = burst.
        self.mean_ms = np.array([burst_ms * (1.0 - self.share) / self.share, burst_ms])
        self.rate_per_ms = np.array([calm, peak]) / gap_ms
        self.phases_per_arrival = 2.0 * gap_ms * self.share / burst_ms

    def stretched(self, unit: FloatArray, random: Generator) -> FloatArray:
        """Return the times [ms] at which the integral of the intensity reaches each value of `unit`.

        Arrivals of a Poisson process of rate 1, mapped through the inverse of the integrated intensity, are those
        of a process with that intensity (E. Cinlar, Introduction to Stochastic Processes, 1975, chapter 4).
        """
        first = int(random.random() < self.share)
        needed = float(unit[-1]) if len(unit) else 0.0
        # The draws are one sequence, so that how many are taken at a time does not show in the stream.
        sojourns = random.standard_exponential(16 + int(1.25 * self.phases_per_arrival * needed))
        while True:
            states = (np.arange(len(sojourns)) + first) % 2
            durations = sojourns * self.mean_ms[states]
            reached = np.concatenate(([0.0], np.cumsum(durations * self.rate_per_ms[states])))
            if reached[-1] >= needed:
                break
            sojourns = np.concatenate((sojourns, random.standard_exponential(len(sojourns))))
        return np.interp(unit, reached, np.concatenate(([0.0], np.cumsum(durations))))


def _service_draws(parameters: Mapping[str, Any]) -> Callable[[int], FloatArray]:
    """Return the function of a seed that gives the service times [ms]: the mean times a variable of mean 1."""
    n, mean, cv = parameters["requests"], parameters["mean_service_ms"], parameters.get("service_cv", 1.0)
    if parameters["service"] == "deterministic":
        constant = np.full(n, mean)
        return lambda seed: constant
    if parameters["service"] == "exponential":
        return lambda seed: _generator(seed, SERVICE).standard_exponential(n) * mean
    if parameters["service"] == "gamma":
        shape = 1.0 / (cv * cv)
        return lambda seed: _generator(seed, SERVICE).standard_gamma(shape, n) * (mean / shape)
    variance = np.log1p(cv * cv)
    deviation = np.sqrt(variance)
    return lambda seed: np.exp(_generator(seed, SERVICE).standard_normal(n) * deviation - variance / 2.0) * mean


def _draws(count: int, exponent: float) -> Callable[[Generator, int], IntArray]:
    """Return the function that draws n of `count` things, the k-th with a share proportional to k**-exponent."""
    # Both forms invert the distribution at the same uniforms: the draws stay close along a list of exponents.
    if exponent == 0.0:
        return lambda random, n: (random.random(n) * count).astype(np.int64)
    cumulative = np.cumsum(np.arange(1.0, count + 1.0) ** -exponent)
    cumulative /= cumulative[-1:]  # the last becomes exactly 1, which is above every uniform
    return lambda random, n: np.searchsorted(cumulative, random.random(n), side="right")


def dplb_burst(seed: int) -> Requests:
    """Return the DPLB stream of a seed; the order of the draws is the published one."""
    random = Random(seed)
    steps: list[int] = []
    tokens: list[int] = []
    for step in range(100):
        burst = 10 <= step < 40
        for _ in range(random.randint(4, 6) if burst else random.randint(0, 1)):
            steps.append(step)
            tokens.append(random.randint(40, 60) if burst else random.randint(20, 40))
    none = np.full(len(steps), NONE)
    sizes = np.array(tokens, dtype=np.int64)
    return Requests(
        arrival_ms=np.array(steps, dtype=np.float64),
        service_ms=sizes / 100.0,
        prompt_tokens=sizes,
        output_tokens=np.zeros_like(sizes),
        prefix=none,
        session=none,
        request_id=np.arange(len(steps)),
        steps=100,
    )
