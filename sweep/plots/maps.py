"""Results over one axis of the policies, such as freshness: rearranged, and drawn as one map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from sweep.analysis import interval
from sweep.cells import known
from sweep.console import label_text
from sweep.intervals import t_interval
from sweep.plots.style import (
    HEADING,
    caption,
    caption_height,
    colour_map,
    colour_scale,
    heading,
    new_figure,
    readable,
    sentence,
    set_log_ticks,
    short,
    styled,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTHING = (0.84, 0.86, 0.88)


def unfolded(ds: xr.Dataset, names: Sequence[str], along: str, values: Sequence[float], title: str) -> xr.Dataset:
    """Return a result whose policies are `names` x `values` with the values as a dimension of their own.

    Parameters
    ----------
    ds
        A result whose policies stand in order: the first name with each value, then the second.
    names
        What to call the policies.
    along, values, title
        The new dimension, its labels and its long name.
    """
    parts = [
        ds.isel(policy=slice(place, None, len(values))).assign_coords(policy=list(names)).drop_vars("reads_slack")
        for place in range(len(values))
    ]
    whole = xr.concat(parts, pd.Index(list(values), name=along), coords="minimal", compat="override", join="override")
    whole[along].attrs = {"long_name": title}
    for name in whole.data_vars:
        whole[name].attrs = ds[name].attrs
    return whole.transpose("policy", along, ..., "seed", *[dim for dim in ("replica", "reason") if dim in whole.dims])


def axis_map(
    ds: xr.Dataset,
    along: str,
    quantities: Sequence[str],
    against: str | None = None,
    names: dict[float, str] | None = None,
    title: str = "",
) -> Figure:
    """Return heatmaps of quantities side by side, policies downward and one of their axes across.

    A quantity in ms has a logarithmic scale. With `against`, a dot marks the cells that are clearly worse than that
    policy in the same column (paired 95 % t interval).

    Parameters
    ----------
    ds
        A result of `unfolded` with one value along every other dimension.
    along
        The dimension across.
    quantities
        The variables, one map each.
    against
        A policy of the result.
    names
        What to write for some of the labels of `along`.
    title
        A heading.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.patheffects import withStroke

    policies = [str(label) for label in ds["policy"].values]
    ticks = [(names or {}).get(float(value), label_text(value)) for value in ds[along].values]
    cell = (0.62, 0.34)
    left = 0.35 + 0.078 * max(map(len, policies))
    middle, top, bars = 0.4, 0.45, 0.95
    column, tall = cell[0] * len(ticks), cell[1] * len(policies)
    width = left + len(quantities) * (column + middle)
    notes = [f"Mean over n = {ds.sizes['seed']:,} seeds, the same request streams in every cell."]
    if against is not None:
        notes.append(
            f"Dot: worse than {against} in the same column (paired 95 % t interval, per cell and not simultaneous)."
        )
    if any(bool(ds[name].isnull().any()) for name in quantities):
        notes.append("Seeds without a value are left out of a mean.")
    below = caption_height(notes, width, 0.3) + 0.15
    edge = top + tall + bars + below
    height = edge + (HEADING if title else 0.0)
    with styled():
        colours = colour_map("lower")
        figure = new_figure(width, height)
        for place, name in enumerate(quantities):
            known(ds, name)
            array = ds[name].transpose("policy", along, ..., "seed")
            values = array.values.reshape(len(policies), len(ticks), ds.sizes["seed"])
            means = interval(xr.Dataset({name: array}), name)["mean"].values.reshape(len(policies), len(ticks))
            timed = ds[name].attrs.get("units") == "ms"
            scale: Any = colour_scale(means, timed)
            x = left + place * (column + middle)
            figure.text(x / width, (edge - 0.26) / height, sentence(title_of(ds, name)), fontsize=11, weight="bold")
            axes = figure.add_axes((x / width, (edge - top - tall) / height, column / width, tall / height))
            axes.set_facecolor(_NOTHING)
            axes.pcolormesh(
                np.ma.masked_invalid(np.clip(means, scale.vmin, scale.vmax)),
                norm=scale, cmap=colours, edgecolors="white", linewidth=0.6,
            )  # fmt: skip
            axes.invert_yaxis()
            worse = _worse(values, policies.index(against)) if against is not None else np.zeros(means.shape, bool)
            for (row, at), mean in np.ndenumerate(means):
                fill = _NOTHING if math.isnan(mean) else colours(scale(np.clip(mean, scale.vmin, scale.vmax)))
                text = axes.text(at + 0.5, row + 0.53, short(float(mean)), ha="center", va="center", fontsize=8)
                text.set(color=readable(fill), path_effects=[withStroke(linewidth=2, foreground=fill)])
                if worse[row, at]:
                    axes.plot(at + 0.9, row + 0.2, marker="o", ms=3, color="#1d2733", mec="white", mew=0.4)
            axes.set_xticks(np.arange(len(ticks)) + 0.5, ticks)
            axes.set_yticks(np.arange(len(policies)) + 0.5, policies if place == 0 else [""] * len(policies))
            axes.set_xlabel(str(ds[along].attrs["long_name"]))
            axes.tick_params(length=0)
            for spine in axes.spines.values():
                spine.set_visible(False)
            bar_axes = figure.add_axes((x / width, (below + 0.3) / height, column / width, 0.11 / height))
            bar = figure.colorbar(ScalarMappable(scale, colours), cax=bar_axes, orientation="horizontal")
            bar.outline.set_visible(False)
            bar.ax.tick_params(length=2, labelsize=8)
            if timed:
                bar.ax.minorticks_off()
                set_log_ticks(bar.ax.xaxis, *bar.ax.get_xlim())
        heading(figure, title, left)
        caption(figure, notes, 0.3, below)
    return figure


def _worse(values: np.ndarray[Any, Any], base: int) -> np.ndarray[Any, Any]:
    """Return where (policy, along, seed) is clearly above the policy at index `base`."""
    lower: np.ndarray[Any, Any] = t_interval(values - values[base], 0.95).lower > 0
    return lower


def crossing(ds: xr.Dataset, var: str, along: str, policy: str, other: str) -> tuple[float, float, float]:
    """Return where `policy` comes to be worse than `other` along an axis: mean over seeds and its 95 % t interval.

    Each seed's crossing lies where the logarithm of the ratio of its two values, linear between the labels of the axis,
    first goes above 0. NaN where a seed has no crossing.
    """
    places = ds[along].values.astype(float)
    ours, theirs = (ds[var].sel(policy=name).transpose(along, ..., "seed") for name in (policy, other))
    logs = np.log(ours.values.reshape(len(places), -1) / theirs.values.reshape(len(places), -1))
    found = np.full(logs.shape[1], np.nan)
    for seed in range(logs.shape[1]):
        above = np.flatnonzero(logs[:, seed] > 0)
        if above.size and above[0] > 0:
            at = above[0]
            share = -logs[at - 1, seed] / (logs[at, seed] - logs[at - 1, seed])
            found[seed] = places[at - 1] + share * (places[at] - places[at - 1])
    row = interval(xr.Dataset({"place": ("seed", found, {"better": "lower"})}), "place")
    return row["mean"].item(), row["lower"].item(), row["upper"].item()
