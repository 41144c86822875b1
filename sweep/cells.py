"""The cells of a result as rows of plain numbers: which there are, their labels, their values over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sweep.errors import InputError, unknown
from sweep.intervals import Floats

_CELL_DIMS = ("policy", "slack", "heterogeneity")


class Cell(NamedTuple):
    """A policy with a slack [ms]; the slack is NaN where the policy reads none."""

    policy: str
    slack: float

    @property
    def label(self) -> str:
        """Return the cell in words, such as ``locality_aware, slack 5 ms``."""
        return self.policy if math.isnan(self.slack) else f"{self.policy}, slack {plain(self.slack)} ms"


class Point(NamedTuple):
    """One heterogeneity (and further workload values): its labels, its cells and their values (cell, seed)."""

    labels: dict[str, Any]
    cells: list[Cell]
    values: Floats


def plain(value: float) -> str:
    """Return a coordinate value as a person writes it.

    Examples
    --------
    >>> plain(0.1 + 0.2), plain(15.0), plain(float("nan"))
    ('0.3', '15', '-')
    """
    return "-" if math.isnan(value) else f"{value:.10g}"


def known(ds: xr.Dataset, var: str) -> None:
    """Raise `InputError` with the nearest name when `var` is no data variable of `ds`."""
    if var not in ds.data_vars:
        raise unknown("variable", var, [str(name) for name in ds.data_vars])


def over_seeds(ds: xr.Dataset, var: str) -> xr.DataArray:
    """Return a variable with ``seed`` as its last dimension; raise `InputError` when it has none."""
    known(ds, var)
    if "seed" not in ds[var].dims:
        raise InputError(f"Variable {var!r} has no dimension 'seed'; pass the result before any mean over seeds.")
    return ds[var].transpose(..., "seed")


def whole(ds: xr.Dataset, var: str) -> xr.DataArray:
    """Return a variable as (policy, slack, heterogeneity, further workload dimensions, seed).

    A dimension that one value was selected from comes back with length one.

    Raises
    ------
    InputError
        For an unknown variable, a Dataset without one of these dimensions, or a variable per replica or reason.
    """
    array = over_seeds(ds, var)
    for dim in _CELL_DIMS:
        if dim not in array.dims:
            if dim not in array.coords:
                raise InputError(f"Variable {var!r} has no dimension {dim!r}; pass a result of sweep.run.")
            array = array.expand_dims(dim)
    inner = [dim for dim in ("replica", "reason") if dim in array.dims]
    if inner:
        raise InputError(f"Variable {var!r} has a value per {inner[0]}; choose one that has a single value per cell.")
    return array.transpose(*_CELL_DIMS, ..., "seed")


def lower_is_better(ds: xr.Dataset, var: str) -> bool:
    """Return whether smaller values of a variable are better, from its attribute ``better``.

    Examples
    --------
    >>> lower_is_better(xr.Dataset({"wait": ("seed", [1.0], {"better": "lower"})}), "wait")
    True
    """
    known(ds, var)
    better = ds[var].attrs.get("better")
    if better not in ("lower", "higher"):
        raise InputError(
            f"Variable {var!r} has no better direction; set ds[{var!r}].attrs['better'] to 'lower' or 'higher'."
        )
    return bool(better == "lower")


def reads_slack(array: xr.DataArray) -> list[bool]:
    """Return for each policy whether it reads slack (all do where the result does not say)."""
    found = array["reads_slack"].values if "reads_slack" in array.coords else True
    return [bool(reads) for reads in np.broadcast_to(found, array.sizes["policy"])]


def points(ds: xr.Dataset, var: str) -> Iterator[Point]:
    """Yield, for each heterogeneity and further workload value, the distinct cells and their values.

    A policy that reads no slack is one cell. The cells of every point are the same, in the same order.
    """
    array = whole(ds, var)
    slacks = np.asarray(array["slack"].values, dtype=np.float64)
    found = [
        (Cell(str(policy), float(slack) if reads else math.nan), i, j)
        for i, (policy, reads) in enumerate(zip(array["policy"].values, reads_slack(array), strict=True))
        for j, slack in enumerate(slacks)
        if reads or j == int(np.argmin(slacks))
    ]
    cells = [cell for cell, _, _ in found]
    values = np.asarray(array.to_numpy(), dtype=np.float64)
    values = values[np.array([i for _, i, _ in found]), np.array([j for _, _, j in found])]
    dims = group_dims(array)
    for place in itertools.product(*(range(array.sizes[dim]) for dim in dims)):
        labels = {dim: array[dim].values[index].item() for dim, index in zip(dims, place, strict=True)}
        yield Point(labels, cells, values[(slice(None), *place)])


def group_dims(array: xr.DataArray) -> list[str]:
    """Return heterogeneity and the further workload dimensions of what `whole` returned."""
    return [str(dim) for dim in array.dims[2:-1]]
