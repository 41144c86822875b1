"""The statistics of a replayed stream, by the code that makes those of a simulated one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweep.kernels import statistics

Array = NDArray[Any]

#: What is predicted and measured of a replay, the one that is judged first.
QUANTITIES = (
    "p95_queue_wait_ms",
    "p50_queue_wait_ms",
    "p99_queue_wait_ms",
    "mean_queue_wait_ms",
    "load_variance",
    "makespan_ms",
)
JUDGED = QUANTITIES[0]


class Served(NamedTuple):
    """What happened to each request, in order of arrival: [request], in simulated ms."""

    arrival: Array
    start: Array
    effective: Array
    replica: Array
    hit: Array


def statistics_of(served: Served, replicas: int, warmup: int) -> dict[str, float]:
    """Return the scalar statistics of a stream by name, as `sweep.run` computes them.

    Parameters
    ----------
    served
        A simulated stream or a measured one.
    replicas
        How many there are.
    warmup
        First requests left out.
    """
    record, tile = statistics.new_record(len(served.arrival), 1)
    record.start[:, 0], record.effective[:, 0] = served.start, served.effective
    record.replica[:, 0], record.route[:, 0] = served.replica, served.hit
    record.variance[0], record.peak[0] = _load_variance(served, replicas, warmup)
    # What depends on sessions is not compared.
    record.moves[0] = np.nan
    out = statistics.new_statistics(1, replicas, 1)
    statistics.cell_statistics(served.arrival, record, tile, warmup, np.inf, out)
    found = dict(zip(statistics.COLUMNS, out.scalars[0].tolist(), strict=True))
    return {name: value for name, value in found.items() if name not in ("session_moves", "slo_attainment")}


def first_in_first_out(arrival: Array, effective: Array, replica: Array, replicas: int) -> Array:
    """Return when each request starts, where every replica serves its own in order of arrival.

    Examples
    --------
    >>> first_in_first_out(np.array([0.0, 1.0, 2.0]), np.array([5.0, 5.0, 5.0]), np.array([0, 0, 1]), 2).tolist()
    [0.0, 5.0, 2.0]
    """
    available = [0.0] * replicas
    start = np.empty(len(arrival))
    for i, (t, took, r) in enumerate(zip(arrival.tolist(), effective.tolist(), replica.tolist(), strict=True)):
        start[i] = max(t, available[r])
        available[r] = start[i] + took
    return start


def _load_variance(served: Served, replicas: int, warmup: int) -> tuple[float, float]:
    """Return the sum over arrivals and the peak of the variance of outstanding work."""
    if replicas == 1:
        return 0.0, 0.0
    finish = served.start + served.effective
    available = np.zeros(replicas)
    total = peak = 0.0
    for i, t in enumerate(served.arrival):
        if i >= warmup:
            variance = float(np.maximum(available - t, 0.0).var(ddof=1))
            total += variance
            peak = max(peak, variance)
        available[served.replica[i]] = finish[i]
    return total, peak
