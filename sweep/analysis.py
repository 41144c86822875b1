"""From a result to an answer: intervals over seeds, paired differences, the frontier, the recommendation.

Seeds are the sample: the requests of one run depend on each other, the runs of different seeds do not. Every interval
stands for one cell (or one difference) on its own; among many cells some miss, so a map of them is exploratory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sweep.cells import Cell, group_dims, lower_is_better, over_seeds, points, whole
from sweep.choice import certainty, choose
from sweep.errors import InputError, number, unknown
from sweep.intervals import Estimate, Floats, correlation, fieller, t_interval

BASELINE = "round_robin"
NOT_SIMULTANEOUS = "Intervals are per cell, not simultaneous: the map is exploratory."


def interval(ds: xr.Dataset, var: str, level: float = 0.95) -> xr.Dataset:
    """Return the mean over seeds of a variable and Student's t interval around it.

    Parameters
    ----------
    ds
        A result of `sweep.run`, or any Dataset with a dimension ``seed``.
    var
        The variable; it keeps all its dimensions but ``seed``.
    level
        The confidence level of each interval, between 0 and 1.

    Returns
    -------
    Dataset
        ``mean``, ``lower`` and ``upper`` in the units of the variable, and ``n``, the seeds that have a value (NaN is
        left out). The bounds are NaN for fewer than two seeds and equal the mean where all seeds are equal.

    Raises
    ------
    InputError
        For an unknown variable, a Dataset without seeds, or a level outside (0, 1).

    Examples
    --------
    >>> ds = xr.Dataset({"wait": (("slack", "seed"), [[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]])})
    >>> found = interval(ds, "wait")
    >>> found["mean"].values, found["lower"].values.round(3), found["upper"].values.round(3)
    (array([2., 4.]), array([-0.484,  4.   ]), array([4.484, 4.   ]))
    """
    level = number("level", level, above=0, below=1)
    array = over_seeds(ds, var)
    attrs = {key: value for key, value in array.attrs.items() if key in ("units", "long_name")}
    return _labelled(array, t_interval(_floats(array), level), attrs, {"variable": var, "level": level})


def paired(ds: xr.Dataset, var: str, against: str | xr.Dataset = BASELINE, level: float = 0.95) -> xr.Dataset:
    """Return the difference of every cell to a baseline on the same streams, with its t interval over seeds.

    Both sides of a difference saw the same request stream under each seed, so what the streams do to both cancels;
    ``correlation`` says how much that is.

    Parameters
    ----------
    ds
        A result of `sweep.run`.
    var
        The variable to compare.
    against
        The label of a policy of `ds`; or another result on the same streams. Along each dimension that has the values
        of `ds` or a single value, which is then compared with every cell.
    level
        The confidence level of each interval, between 0 and 1.

    Returns
    -------
    Dataset
        ``mean``, ``lower``, ``upper`` of ``ds[var] - baseline`` per cell, ``n`` (seeds with a value on both sides) and
        the Pearson ``correlation`` of both sides over seeds (NaN where a side does not vary).

    Raises
    ------
    InputError
        For an unknown variable or policy, or a Dataset of other streams, seeds, cells or units (it says which).

    Examples
    --------
    >>> values = [[10.0, 20.0, 33.0], [9.0, 18.0, 30.0]]
    >>> ds = xr.Dataset({"wait": (("policy", "seed"), values)}, {"policy": ["round_robin", "queue_aware"]})
    >>> found = paired(ds, "wait").sel(policy="queue_aware")
    >>> float(found["mean"]), round(float(found["lower"]), 2), round(float(found["correlation"]), 5)
    (-2.0, -4.48, 0.99997)
    """
    level = number("level", level, above=0, below=1)
    array = over_seeds(ds, var)
    ours, theirs = _pair(ds, array, var, against)
    attrs = {"units": array.attrs["units"]} if "units" in array.attrs else {}
    found = _labelled(array, t_interval(ours - theirs, level), attrs, _notes(var, level, against))
    return found.assign(correlation=(found["mean"].dims, correlation(ours, theirs)))


def ratio(ds: xr.Dataset, var: str, against: str | xr.Dataset = BASELINE, level: float = 0.95) -> xr.Dataset:
    """Return the mean of every cell divided by that of a baseline on the same streams, with Fieller's interval.

    A ratio r is inside the interval exactly when the paired t interval of ``ds[var] - r * baseline`` contains 0.
    Arguments and errors are those of `paired`.

    Returns
    -------
    Dataset
        ``mean`` (the ratio of the means), ``lower``, ``upper`` and ``n``. The bounds are NaN for fewer than two seeds
        and where the baseline cannot be told from 0, since no finite interval holds the ratio then.

    Notes
    -----
    E. C. Fieller, "Some problems in interval estimation", J. R. Stat. Soc. B 16 (1954).

    Examples
    --------
    >>> values = [[10.0, 11.0, 12.0], [5.0, 5.6, 6.0]]
    >>> ds = xr.Dataset({"wait": (("policy", "seed"), values)}, {"policy": ["round_robin", "queue_aware"]})
    >>> found = ratio(ds, "wait").sel(policy="queue_aware")
    >>> round(float(found["mean"]), 3), round(float(found["lower"]), 3), round(float(found["upper"]), 3)
    (0.503, 0.49, 0.517)
    """
    level = number("level", level, above=0, below=1)
    array = over_seeds(ds, var)
    ours, theirs = _pair(ds, array, var, against)
    return _labelled(array, fieller(ours, theirs, level), {"units": "1"}, _notes(var, level, against))


def frontier(ds: xr.Dataset, x: str = "load_variance", y: str = "p99_queue_wait_ms") -> pd.DataFrame:
    """Return the cells that no other cell beats: as good in `x` and in `y`, and better in one of them.

    Cells are compared by their means over seeds, separately for each heterogeneity and each further workload value,
    in the direction of the variables' attribute ``better``. A cell without a value in `x` or `y` is left out.

    Returns
    -------
    DataFrame
        One row per cell: the heterogeneity, further workload dimensions, ``policy``, ``slack`` [ms] (NaN where the
        policy reads none) and the two means; in each group from the best `x` to the best `y`.

    Raises
    ------
    InputError
        For an unknown variable, one per replica or reason, or one that has no better direction.

    Examples
    --------
    >>> dims, better = ("policy", "slack", "heterogeneity", "seed"), {"better": "lower"}
    >>> variance, wait = np.reshape([1.0, 2.0, 3.0], (1, 3, 1, 1)), np.reshape([9.0, 5.0, 6.0], (1, 3, 1, 1))
    >>> coords = {"policy": ["locality_aware"], "slack": [0.0, 5.0, 10.0], "heterogeneity": [0.3]}
    >>> ds = xr.Dataset({"variance": (dims, variance, better), "wait": (dims, wait, better)}, coords)
    >>> frontier(ds, "variance", "wait")
       heterogeneity          policy  slack  variance  wait
    0            0.3  locality_aware    0.0       1.0   9.0
    1            0.3  locality_aware    5.0       2.0   5.0
    """
    if x == y:
        raise InputError(f"The frontier needs two different variables, got {x!r} twice.")
    signs = np.array([[1.0 if lower_is_better(ds, var) else -1.0] for var in (x, y)])
    rows: list[dict[str, Any]] = []
    for first, second in zip(points(ds, x), points(ds, y), strict=True):
        means = np.stack([t_interval(point.values, 0.95).mean for point in (first, second)])
        cost = means * signs
        here = ~np.isnan(cost).any(axis=0)
        theirs, ours = cost[:, None, :], cost[:, :, None]
        beaten = ((theirs <= ours).all(axis=0) & (theirs < ours).any(axis=0) & here).any(axis=1)
        kept = sorted(np.flatnonzero(here & ~beaten), key=lambda index: (cost[0, index], cost[1, index]))
        for index in kept:
            cell = first.cells[index]
            both = {x: means[0, index], y: means[1, index]}
            rows.append({**first.labels, "policy": cell.policy, "slack": cell.slack, **both})
    return pd.DataFrame(rows, columns=[*group_dims(whole(ds, x)), "policy", "slack", x, y])


def recommend(ds: xr.Dataset, objective: str = "p99_queue_wait_ms", level: float = 0.95) -> pd.DataFrame:
    """Return which policy and slack to choose at each heterogeneity, and how sure that is.

    The best cell is the one with the best mean over seeds. Every cell whose paired interval against it contains 0
    cannot be told apart from it; among those the smallest slack is chosen, then the first in catalogue order. A policy
    that reads no slack is one cell and stands at the smallest slack. A cell that lacks a finite value of a seed where
    another cell has one is left out.

    Parameters
    ----------
    ds
        A result of `sweep.run`.
    objective
        The variable to optimise, in the direction of its attribute ``better``.
    level
        The confidence level of each interval, between 0 and 1; the intervals are not simultaneous.

    Returns
    -------
    DataFrame
        One row per heterogeneity and further workload value: ``policy``, ``slack`` [ms] (NaN where the policy reads
        none), its ``mean``, ``lower``, ``upper`` and ``n``; ``best_policy`` and ``best_slack``; ``tied``, the labels of
        the cells that cannot be told apart; where the result has round_robin, ``difference`` (chosen minus round_robin,
        paired) and ``ratio``, each with ``_lower`` and ``_upper``; and ``certainty``, a sentence or more.

    Raises
    ------
    InputError
        For an unknown variable, one per replica or reason, one without a better direction, or a level outside (0, 1).

    Examples
    --------
    >>> dims = ("policy", "slack", "heterogeneity", "seed")
    >>> wait = np.reshape([[9.0, 9.5, 9.9], [5.0, 5.3, 5.1], [5.1, 5.2, 5.0]], (1, 3, 1, 3))
    >>> coords = {"policy": ["locality_aware"], "slack": [0.0, 5.0, 10.0], "heterogeneity": [0.3]}
    >>> row = recommend(xr.Dataset({"wait": (dims, wait, {"better": "lower"})}, coords), "wait").iloc[0]
    >>> row.policy, float(row.slack), float(row.best_slack)
    ('locality_aware', 5.0, 10.0)
    >>> row.certainty
    'locality_aware is clear; slack 5 to 10 ms cannot be told apart (95 %, n = 3).'
    """
    level = number("level", level, above=0, below=1)
    lower = lower_is_better(ds, objective)
    load = "max_offered_load" if "max_offered_load" in ds.data_vars else objective
    rows: list[dict[str, Any]] = []
    for point, loads in zip(points(ds, objective), points(ds, load), strict=True):
        choice = choose(point.cells, point.values, lower, level)
        used = point.values[:, choice.seeds]
        own = used[choice.chosen]
        none = Cell("", math.nan)
        chosen, best = (point.cells[index] if choice.tied else none for index in (choice.chosen, choice.best))
        row = {**point.labels, "policy": chosen.policy or None, "slack": chosen.slack}
        row |= _row("", t_interval(own, level))
        row |= {"best_policy": best.policy or None, "best_slack": best.slack}
        row["tied"] = tuple(point.cells[index].label for index in choice.tied)
        for cell, base in zip(point.cells, used, strict=True):
            if cell.policy == BASELINE:
                row |= _row("difference", t_interval(own - base, level)) | _row("ratio", fieller(own, base, level))
        row["certainty"] = certainty(choice, point.cells, point.values, lower, level)
        if choice.tied and load != objective and t_interval(loads.values, level).mean[choice.chosen] >= 1:
            row["certainty"] += " A replica does not keep up there, so the value depends on the run length."
        rows.append(row)
    return pd.DataFrame(rows)


def _row(name: str, found: Estimate) -> dict[str, float | int]:
    """Return a single estimate as columns: mean, lower, upper and n, or ``name`` with its bounds."""
    keys = (name, f"{name}_lower", f"{name}_upper") if name else ("mean", "lower", "upper", "n")
    return {key: value.item() for key, value in zip(keys, found, strict=False)}


def _floats(array: xr.DataArray) -> Floats:
    return np.asarray(array.to_numpy(), dtype=np.float64)


def _notes(var: str, level: float, against: str | xr.Dataset) -> dict[str, Any]:
    other = against if isinstance(against, str) else "another result on the same streams"
    return {"variable": var, "level": level, "against": other}


def _labelled(array: xr.DataArray, found: Estimate, attrs: dict[str, Any], notes: dict[str, Any]) -> xr.Dataset:
    """Return an estimate with the dimensions and coordinates of `array` but for ``seed``."""
    cell = array.isel(seed=0, drop=True)
    variables: dict[str, Any] = {name: (cell.dims, values, attrs) for name, values in found._asdict().items()}
    variables["n"] = (cell.dims, found.n, {"long_name": "seeds with a value"})
    return xr.Dataset(variables, cell.coords, {**notes, "comment": NOT_SIMULTANEOUS})


def _pair(ds: xr.Dataset, array: xr.DataArray, var: str, against: str | xr.Dataset) -> tuple[Floats, Floats]:
    """Return a variable and its baseline, broadcast to one shape with seeds last."""
    if isinstance(against, str):
        if "policy" not in array.dims:
            raise InputError(f"Variable {var!r} has no dimension 'policy', so there is no {against!r} to compare with.")
        labels = [str(label) for label in array["policy"].values]
        if against not in labels:
            raise unknown("policy to compare with", against, labels)
        other = array.isel(policy=labels.index(against), drop=True)
    else:
        _check_streams(ds, against)
        other = _matched(array, over_seeds(against, var), var)
    ours, theirs = xr.broadcast(array.reset_coords(drop=True), other.reset_coords(drop=True))
    return _floats(ours.transpose(*array.dims)), _floats(theirs.transpose(*array.dims))


def _check_streams(ds: xr.Dataset, against: xr.Dataset) -> None:
    streams = [side.attrs.get("stream_fingerprint") for side in (ds, against)]
    if None in streams:
        raise InputError(
            "A result without the attribute 'stream_fingerprint' has unknown streams and cannot be paired."
        )
    if streams[0] != streams[1]:
        workloads = [side.attrs.get("workload", "unknown") for side in (ds, against)]
        raise InputError(f"The two results are of different request streams: {workloads[0]} against {workloads[1]}.")


def _matched(array: xr.DataArray, other: xr.DataArray, var: str) -> xr.DataArray:
    """Return the baseline with its seeds in our order, after checking that its values pair with those of `array`."""
    units = [side.attrs.get("units") for side in (array, other)]
    if None not in units and units[0] != units[1]:
        raise InputError(f"Variable {var!r} is in {units[0]!r} in one result and in {units[1]!r} in the other.")
    ours, theirs = (set(side["seed"].values.tolist()) for side in (array, other))
    if ours != theirs:
        raise InputError(
            f"The two results have different seeds ({len(ours)} and {len(theirs)}); only one of them has, for example, "
            f"seed {min(ours ^ theirs)}."
        )
    other = other.sel(seed=array["seed"])
    for dim in other.dims:
        if dim != "seed" and other.sizes[dim] == 1:
            other = other.isel({dim: 0}, drop=True)
        elif dim not in array.dims or array[dim].values.tolist() != other[dim].values.tolist():
            found = array[dim].values.tolist() if dim in array.dims else "no such dimension"
            raise InputError(
                f"The two results differ along {dim!r}: {found} against {other[dim].values.tolist()}; select the same "
                "values in both, or one value in the second."
            )
    return other
