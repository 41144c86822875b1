"""Sums, means, quantiles and variances in the order of operations that the kernels keep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def total(values: Iterable[float]) -> float:
    """Return the sum from left to right; the built-in ``sum`` compensates for rounding since Python 3.12."""
    result = 0.0
    for value in values:
        result += value
    return result


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of no values."""
    return total(values) / len(values) if values else 0.0


def nearest_rank(values: Sequence[float], quantile: float) -> float:
    """Return element ``ceil(quantile * n) - 1`` of the sorted values, 0 of no values."""
    return sorted(values)[math.ceil(quantile * len(values)) - 1] if values else 0.0


def ratio(amount: float, window: float) -> float:
    """Return ``amount / window``, NaN for an empty window."""
    return amount / window if window > 0.0 else math.nan


def sample_variance(values: Sequence[float]) -> float:
    """Return the sample variance (ddof 1), 0 of one value."""
    if len(values) == 1:
        return 0.0
    centre = mean(values)
    return total([(value - centre) * (value - centre) for value in values]) / (len(values) - 1)
