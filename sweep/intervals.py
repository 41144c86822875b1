"""Student's t and Fieller's intervals over the last axis of plain arrays; NaN is left out.

No labels and no validation here: `sweep.analysis` holds the functions a user calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """An estimate with the bounds of its interval and the number of values it rests on."""

    mean: Floats
    lower: Floats
    upper: Floats
    n: npt.NDArray[np.int64]


def t_interval(values: Floats, level: float) -> Estimate:
    """Return the mean over the last axis and Student's t interval around it.

    The bounds are NaN for fewer than two values, and equal the mean exactly where all values are equal.

    Examples
    --------
    >>> found = t_interval(np.array([1.0, 2.0, 3.0, np.nan]), 0.95)
    >>> float(found.mean), round(float(found.lower), 3), round(float(found.upper), 3), int(found.n)
    (2.0, -0.484, 4.484, 3)
    """
    from scipy.special import stdtrit

    # In one memory order the sum of a cell does not depend on the cells around it.
    values = np.ascontiguousarray(values)
    present = ~np.isnan(values)
    n = np.asarray(present.sum(axis=-1))
    smallest = np.where(present, values, np.inf).min(axis=-1, initial=np.inf)
    largest = np.where(present, values, -np.inf).max(axis=-1, initial=-np.inf)
    constant = (n > 0) & (smallest == largest)
    with np.errstate(invalid="ignore", divide="ignore"):
        # The sum of equal numbers divided by their count need not be that number.
        mean = np.where(constant, smallest, np.where(present, values, 0.0).sum(axis=-1) / n)
        squares = np.where(present, (values - mean[..., None]) ** 2, 0.0).sum(axis=-1)
        half = np.where(n < 2, np.nan, stdtrit(n - 1.0, 0.5 + level / 2) * np.sqrt(squares / (n - 1.0) / n))
        return Estimate(mean, np.asarray(mean - half), np.asarray(mean + half), n)


def fieller(ours: Floats, theirs: Floats, level: float) -> Estimate:
    """Return the ratio of two paired means over the last axis and Fieller's interval.

    A ratio r is inside exactly when the t interval of ``ours - r * theirs`` contains 0. The bounds are NaN for fewer
    than two pairs, and where the t interval of `theirs` contains 0: no finite interval holds the ratio then.

    Examples
    --------
    >>> found = fieller(np.array([4.0, 5.0, 6.0]), np.array([8.0, 10.0, 12.0]), 0.95)
    >>> float(found.mean), float(found.lower), float(found.upper)
    (0.5, 0.5, 0.5)
    """
    from scipy.special import stdtrit

    gone = np.isnan(ours) | np.isnan(theirs)
    a = t_interval(np.where(gone, np.nan, ours), level)
    b = t_interval(np.where(gone, np.nan, theirs), level)
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = ours - a.mean[..., None], theirs - b.mean[..., None]
        share = stdtrit(a.n - 1.0, 0.5 + level / 2) ** 2 / a.n / (a.n - 1.0)
        xx, xy, yy = (share * np.where(gone, 0.0, product).sum(axis=-1) for product in (x * x, x * y, y * y))
        # The bounds are the roots of square * r^2 - 2 * middle * r + (a^2 - xx); equal roots may lie a rounding apart.
        square, middle = b.mean**2 - yy, a.mean * b.mean - xy
        root = np.sqrt(np.maximum(middle**2 - square * (a.mean**2 - xx), 0.0))
        bounded = (a.n > 1) & ((b.lower > 0) | (b.upper < 0))
        lower, upper = (np.where(bounded, (middle + sign * root) / square, np.nan) for sign in (-1.0, 1.0))
        return Estimate(np.asarray(a.mean / b.mean), lower, upper, a.n)


def correlation(ours: Floats, theirs: Floats) -> Floats:
    """Return the Pearson correlation of two sides over the last axis, NaN where a side does not vary.

    Examples
    --------
    >>> round(float(correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 7.0]))), 4)
    0.9934
    """
    gone = np.isnan(ours) | np.isnan(theirs)
    with np.errstate(invalid="ignore", divide="ignore"):
        x, y = (
            np.where(gone, 0.0, side - t_interval(np.where(gone, np.nan, side), 0.5).mean[..., None])
            for side in (ours, theirs)
        )
        found = (x * y).sum(axis=-1) / np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    return np.asarray(np.clip(found, -1.0, 1.0), dtype=np.float64)
