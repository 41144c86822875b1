"""Columns of the tables that a study prints and reports: estimates, choices, the frontier, differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import pandas as pd
import xarray as xr

from sweep.analysis import BASELINE, paired
from sweep.cells import group_dims, whole
from sweep.console import Column, label_text, number_text, unit_text


def estimate(mean: float, lower: float, upper: float) -> str:
    """Return a mean with its interval, to the second digit of the half width and the fourth of the mean.

    The mean stands alone where there is no interval.

    Examples
    --------
    >>> estimate(37.8677, 35.9552, 39.7802), estimate(0.0058, 0.00552, 0.00609), estimate(12.0, math.nan, math.nan)
    ('37.9 [36.0, 39.8]', '0.00580 [0.00552, 0.00609]', '12.0')
    >>> estimate(14.60571, 14.5969, 14.6145), estimate(-0.02, -1.5, 1.46), estimate(0.0, 0.0, 0.0)
    ('14.61 [14.60, 14.61]', '0.0 [-1.5, 1.5]', '0 [0, 0]')
    """
    half = (upper - lower) / 2
    sizes = [(half, 1), (abs(mean), 3)] if half > 0 else [(abs(mean), 2)]
    wanted = [digits - math.floor(math.log10(size)) for size, digits in sizes if 0 < size < math.inf]
    decimals = max(0, min([*wanted, 8])) if wanted else 0
    # Adding 0 turns what rounds to -0 into 0.
    texts = [number_text(round(value, decimals) + 0.0, decimals) for value in (mean, lower, upper)]
    return texts[0] if math.isnan(half) else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def estimates(title: str, rows: Iterable[Sequence[float]], unit: str = "", no_effect: float | None = None) -> Column:
    """Return a column of estimates (mean, lower, upper), marked n.s. where the interval holds `no_effect`.

    Examples
    --------
    >>> estimates("difference", [(-2.0, -3.0, -1.0), (-2.0, -4.5, 0.5)], "ms", no_effect=0.0).cells
    ['-2.0 [-3.0, -1.0]', '-2.0 [-4.5, 0.5] n.s.']
    """
    cells = []
    for mean, lower, upper in rows:
        unclear = no_effect is not None and lower <= no_effect <= upper
        cells.append(estimate(mean, lower, upper) + (" n.s." if unclear else ""))
    return Column(title, cells, unit)


def chosen_cells(ds: xr.Dataset, chosen: pd.DataFrame, objective: str) -> list[Column]:
    """Return what `sweep.analysis.recommend` chose, how good it is and how it compares with round_robin."""
    columns = [
        *_where(ds, chosen, objective),
        *_what(chosen),
        estimates(_title(ds, objective), chosen[["mean", "lower", "upper"]].to_numpy(), _unit(ds, objective)),
    ]
    if "ratio" in chosen:
        # A cell of the baseline has nothing to be compared with.
        other = chosen[["policy"]].to_numpy() != BASELINE
        ratios = np.where(other, chosen[["ratio", "ratio_lower", "ratio_upper"]].to_numpy(), np.nan)
        columns.append(estimates(f"ratio to {BASELINE}", ratios, no_effect=1.0))
    return columns


def tied_cells(chosen: pd.DataFrame) -> Column:
    """Return the cells that cannot be told apart from the best one in few words, - where there are no others."""
    found = []
    for labels in chosen["tied"]:
        parts = [label.removesuffix(" ms").split(", slack ") for label in labels]
        named = []
        for policy, group in groupby(parts, lambda part: part[0]):
            slacks = ", ".join(part[1] for part in group if part[1:])
            named.append(f"{policy}, slack {slacks}" if slacks else policy)
        found.append("; ".join(named) if len(labels) > 1 else "-")
    return Column("cannot be told apart", found, left=True)


def frontier_cells(ds: xr.Dataset, found: pd.DataFrame) -> list[Column]:
    """Return the cells and the two means that `sweep.analysis.frontier` found."""
    x, y = (str(name) for name in found.columns[-2:])
    means = [estimates(_title(ds, name), _alone(found[name]), _unit(ds, name)) for name in (x, y)]
    return [*_where(ds, found, x), *_what(found), *means]


def against(ds: xr.Dataset, chosen: pd.DataFrame, objective: str, policy: str) -> list[Column]:
    """Return the chosen cells minus a policy, seed by seed, and the correlation of both over seeds."""
    pairs = paired(ds, objective, policy)
    rows, correlations = [], []
    for row in chosen.to_dict("records"):
        place = {dim: row[dim] for dim in group_dims(whole(ds, objective)) if dim in pairs.dims}
        cell = pairs.sel(place)
        if row["policy"] is None:
            cell = cell.isel(policy=0, slack=0).where(False)
        else:
            cell = cell.sel(policy=row["policy"])
            cell = cell.isel(slack=0) if pd.isna(row["slack"]) else cell.sel(slack=row["slack"])
        rows.append([float(cell[name]) for name in ("mean", "lower", "upper")])
        correlations.append(float(cell["correlation"]))
    return [
        estimates(f"minus {policy}", rows, _unit(ds, objective), no_effect=0.0),
        Column("correlation", [number_text(value, 2) for value in correlations]),
    ]


def _alone(values: Iterable[float]) -> list[tuple[float, float, float]]:
    return [(float(value), math.nan, math.nan) for value in values]


def _title(ds: xr.Dataset, name: str) -> str:
    return str(ds[name].attrs.get("long_name", name))


def _unit(ds: xr.Dataset, name: str) -> str:
    return unit_text(str(ds[name].attrs.get("units", "1")))


def _where(ds: xr.Dataset, frame: pd.DataFrame, name: str) -> list[Column]:
    return [Column(dim, [label_text(value) for value in frame[dim]]) for dim in group_dims(whole(ds, name))]


def _what(frame: pd.DataFrame) -> list[Column]:
    return [
        Column("policy", [policy or "-" for policy in frame["policy"]], left=True),
        Column("slack", [label_text(slack) for slack in frame["slack"]], "ms"),
    ]
