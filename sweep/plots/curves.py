"""Curves with intervals: one quantity against another along slack, and quantities along one dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from sweep.analysis import frontier, interval, recommend
from sweep.cells import Cell, points
from sweep.console import label_text
from sweep.errors import InputError
from sweep.intervals import Floats, t_interval
from sweep.plots.style import (
    FAINT,
    INK,
    caption,
    caption_height,
    log_limits,
    new_figure,
    palette,
    sentence,
    set_log_ticks,
    short,
    styled,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A policy that reads no slack and lies farther than this factor from all that do is named in a corner, not drawn.
_FAR = 1.6
#: Policies in a row of the key.
_KEY_COLUMNS = 4
_MARKERS = "sD^vPX*<>h"


class _Panel(NamedTuple):
    """One point of the grid: its labels, its cells and the estimates (mean, lower, upper; cell) of both axes."""

    labels: dict[str, Any]
    cells: list[Cell]
    x: Floats
    y: Floats


class _Axis(NamedTuple):
    """What all panels share along one axis."""

    title: str
    low: float
    high: float
    log: bool


def tradeoff(
    ds: xr.Dataset, x: str = "load_variance", y: str = "p99_queue_wait_ms", level: float = 0.95, columns: int = 4
) -> Figure:
    """Return the curve of one quantity against another along slack, one panel per heterogeneity.

    A policy that reads slack is a line through its slacks, another one is a single mark; crosses are the t intervals of
    both means. Filled points are on the frontier (`sweep.analysis.frontier`), the ring is what
    `sweep.analysis.recommend` chooses for `y`. All panels share their axes, logarithmic where all values are positive;
    a mark far outside the range of the lines is named in a corner instead.

    Parameters
    ----------
    ds
        A result of `sweep.run`; further workload dimensions multiply the panels.
    x, y
        The variables of the two axes.
    level
        The confidence level of each interval.
    columns
        How many panels stand side by side.

    Raises
    ------
    InputError
        For an unknown variable, one per replica or reason, or one that has no better direction.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Workload.poisson(requests=100, utilisation=0.8, replicas=2, sessions=20, prefixes=20)
    >>> fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.4])
    >>> ds = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 10], seed=4)
    >>> figure = tradeoff(ds)
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['heterogeneity 0', 'heterogeneity 0.4']
    """
    panels = [
        _Panel(first.labels, first.cells, *(np.stack(t_interval(point.values, level)[:3]) for point in (first, second)))
        for first, second in zip(points(ds, x), points(ds, y), strict=True)
    ]
    across = _axis(panels, "x", sentence(title_of(ds, x)))
    up = _axis(panels, "y", sentence(title_of(ds, y)))
    best, chosen = frontier(ds, x, y), recommend(ds, y, level)
    basis = f"{100 * level:g} % t intervals of both means, per cell and not simultaneous"
    notes = [
        f"Points: means over n = {ds.sizes['seed']:,} seeds, the same streams in every cell. "
        f"{f'Crosses: {basis}' if ds.sizes['seed'] > 1 else 'One seed gives no intervals'}. Numbers: slack [ms]. "
        "Filled: no other cell is as good in both and better in one. Ring: the recommendation for the "
        f"{ds[y].attrs.get('long_name', y)}."
    ]
    columns = min(columns, len(panels))
    side, space, left, top, step = 2.45, 0.2, 0.75, 0.9, 2.85
    width = max(left + columns * (side + space) + 0.1, 6.4)
    below = caption_height(notes, width, 0.3) + 0.15
    height = top + math.ceil(len(panels) / columns) * step + 0.2 + below
    with styled():
        figure = new_figure(width, height)
        heading = f"{up.title} against {title_of(ds, x)}, along slack"
        figure.text(left / width, (height - 0.3) / height, heading, fontsize=11, weight="bold")
        lone = {cell.policy: math.isnan(cell.slack) for cell in panels[0].cells}
        styles = {
            policy: (colour, marker if lone[policy] else "o")
            for policy, (colour, marker) in _styles(list(lone)).items()
        }
        for index, panel in enumerate(panels):
            row, column = divmod(index, columns)
            place = (left + column * (side + space), height - top - row * step - side)
            axes = figure.add_axes((place[0] / width, place[1] / height, side / width, side / height))
            axes.set_title(", ".join(f"{dim} {label_text(value)}" for dim, value in panel.labels.items()), pad=4)
            _set_axes(axes, across, up, index + columns >= len(panels), column == 0)
            group = best[(best[list(panel.labels)] == list(panel.labels.values())).all(axis=1)]
            kept = {Cell(policy, slack).label for policy, slack in zip(group["policy"], group["slack"], strict=True)}
            _draw_panel(axes, panel, styles, kept, chosen.iloc[index])
        _key(figure, styles, (left / width, (height - 0.42) / height), without_line=[p for p in lone if lone[p]])
        caption(figure, notes, 0.3, below)
    return figure


def lines(ds: xr.Dataset, along: str, quantities: Sequence[str], level: float = 0.95, title: str = "") -> Figure:
    """Return quantities along one dimension, a line per policy with the t interval of each mean as a band.

    An axis whose values are positive and span a factor of eight or more is logarithmic, that of a share never is.
    Hollow marks are cells where a replica does not keep up.

    Parameters
    ----------
    ds
        A result of `sweep.run`, or several joined along a new dimension.
    along
        The dimension of the horizontal axis.
    quantities
        The variables to draw, one panel each.
    level
        The confidence level of each interval.
    title
        A heading.

    Raises
    ------
    InputError
        For an unknown variable, or more than one value along a dimension other than `along`, ``policy`` and ``seed``.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Workload.poisson(requests=100, utilisation=0.8, replicas=2, sessions=20, prefixes=20)
    >>> fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.4])
    >>> ds = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 10], seed=4)
    >>> figure = lines(ds.isel(slack=[1]), "heterogeneity", ["p99_queue_wait_ms"])
    >>> [axes.get_title(loc="left") for axes in figure.axes]
    ['P99 queue wait [ms]']
    """
    spreads = {name: _along(ds, name, along, level) for name in quantities}
    labels = [str(label) for label in ds["policy"].values]
    overloaded = np.zeros((len(labels), ds.sizes[along]), dtype=bool)
    if "max_offered_load" in ds.data_vars:
        overloaded = _along(ds, "max_offered_load", along, level)["mean"].values >= 1
    basis = f"Bands: {100 * level:g} % t intervals, per cell and not simultaneous"
    notes = [
        f"Means over n = {ds.sizes['seed']:,} seeds, the same streams for every policy. "
        f"{basis if ds.sizes['seed'] > 1 else 'One seed gives no intervals'}."
    ]
    if overloaded.any():
        notes.append("Hollow: a replica does not keep up (mean offered load >= 1), so waits depend on the run length.")
    key_height = 0.2 * math.ceil(len(labels) / _KEY_COLUMNS)
    panel, space, left, top = (3.5, 2.7), 0.75, 0.75, key_height + (0.85 if title else 0.55)
    width = max(left + len(spreads) * (panel[0] + space) - space + 0.3, 6.4)
    below = caption_height(notes, width, 0.3) + 0.15
    height = top + panel[1] + 0.6 + below
    with styled():
        figure = new_figure(width, height)
        figure.text(left / width, (height - 0.3) / height, title, fontsize=11, weight="bold")
        styles = _styles(labels)
        for index, (name, spread) in enumerate(spreads.items()):
            x = left + index * (panel[0] + space)
            axes = figure.add_axes((x / width, (below + 0.6) / height, panel[0] / width, panel[1] / height))
            axes.set_title(sentence(title_of(ds, name)), pad=6)
            axes.set_xlabel(str(ds[along].attrs.get("long_name", along)))
            _draw_lines(axes, ds[along].values.astype(float), spread, styles, overloaded)
        _key(figure, styles, (left / width, (height - (0.42 if title else 0.15)) / height))
        caption(figure, notes, 0.3, below)
    return figure


def _along(ds: xr.Dataset, name: str, along: str, level: float) -> xr.Dataset:
    """Return the interval of a variable as (policy, along); a variable that lacks one of them has it repeated."""
    spread = interval(ds, name, level)
    rest = [str(dim) for dim in spread["mean"].dims if dim not in ("policy", along)]
    for dim in rest:
        if spread.sizes[dim] > 1:
            raise InputError(
                f"Lines along {along!r} need one value of {dim!r}, the result has {spread.sizes[dim]}; select one, for "
                f"example ds.isel({dim}=[0])."
            )
    spread = spread.isel(dict.fromkeys(rest, 0), drop=True)
    missing = {dim: ds[dim] for dim in ("policy", along) if dim not in spread["mean"].dims}
    return spread.expand_dims(missing).transpose("policy", along)


def _styles(labels: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Return the colour and marker of each policy."""
    colours = palette(len(labels))
    return {label: (colours[i], _MARKERS[i % len(_MARKERS)]) for i, label in enumerate(labels)}


def _axis(panels: Sequence[_Panel], name: str, title: str) -> _Axis:
    """Return an axis that holds all cells that read slack, and those that read none but lie near them."""
    bounds = np.concatenate([getattr(panel, name) for panel in panels], axis=1)
    lone = np.array([math.isnan(cell.slack) for panel in panels for cell in panel.cells])
    log = bool((bounds[0] > 0).all())
    core = bounds[:, ~lone] if not lone.all() else bounds
    values = core[np.isfinite(core) & (core > 0 if log else True)]
    if not values.size:
        return _Axis(title, 0.0, 1.0, log=False)
    low, high = values.min(), values.max()
    reach = (low / _FAR, high * _FAR) if log else (2 * low - high, 2 * high - low)
    near = bounds[:, lone & (bounds[0] >= reach[0]) & (bounds[0] <= reach[1])]
    values = np.concatenate([values, near[np.isfinite(near) & (near > 0 if log else True)]])
    if log:
        return _Axis(title, *log_limits(values), log=True)
    pad = 0.06 * (values.max() - values.min()) or 0.5
    return _Axis(title, float(values.min() - pad), float(values.max() + pad), log=False)


def _set_axes(axes: Axes, across: _Axis, up: _Axis, bottom: bool, left: bool) -> None:
    for axis, shared, labelled in ((axes.xaxis, across, bottom), (axes.yaxis, up, left)):
        getattr(axes, f"set_{axis.axis_name}lim")(shared.low, shared.high)
        if shared.log:
            getattr(axes, f"set_{axis.axis_name}scale")("log")
            set_log_ticks(axis, shared.low, shared.high)
        if labelled:
            axis.set_label_text(shared.title)
    axes.tick_params(length=0, labelbottom=bottom, labelleft=left)
    axes.grid(visible=True)


def _draw_panel(
    axes: Axes, panel: _Panel, styles: dict[str, tuple[Any, str]], kept: set[str], winner: pd.Series[Any]
) -> None:
    far = []
    for policy, (colour, marker) in styles.items():
        at = [index for index, cell in enumerate(panel.cells) if cell.policy == policy]
        at.sort(key=lambda index: panel.cells[index].slack)
        x, y = panel.x[:, at], panel.y[:, at]
        slacks = [panel.cells[index].slack for index in at]
        if len(at) == 1 and not _inside(axes, x[0, 0], y[0, 0]):
            far.append((policy, x[0, 0], y[0, 0]))
            continue
        axes.plot(x[0], y[0], color=colour, linewidth=1.3, zorder=2)
        axes.hlines(y[0], x[1], x[2], color=colour, linewidth=0.9, alpha=0.55, zorder=2)
        axes.vlines(x[0], y[1], y[2], color=colour, linewidth=0.9, alpha=0.55, zorder=2)
        lone = math.isnan(slacks[0])
        for place, index in enumerate(at):
            cell = panel.cells[index]
            fill = colour if cell.label in kept else "white"
            size = 6.5 if lone else 4.5
            axes.plot(x[0, place], y[0, place], linestyle="", marker=marker, ms=size, mfc=fill, mec=colour, zorder=3)
            is_winner = policy == winner["policy"] and (lone or slacks[place] == winner["slack"])
            if is_winner:
                axes.plot(x[0, place], y[0, place], marker="o", ms=11, mfc="none", mec=INK, mew=1.3, zorder=4)
            if not lone and (is_winner or place in (0, len(at) - 1)):
                axes.annotate(
                    label_text(cell.slack),
                    (x[0, place], y[0, place]),
                    xytext=(0, -8) if is_winner else (-5, 2),
                    textcoords="offset points",
                    ha="center" if is_winner else "right",
                    va="top" if is_winner else "bottom",
                    fontsize=8,
                    weight="bold" if is_winner else "normal",
                    color=INK if is_winner else FAINT,
                )
    if far:
        text = "\n".join(["beyond this scale", *(f"{policy} at {short(x)}, {short(y)}" for policy, x, y in far)])
        across, up = _emptiest_corner(axes, panel)
        note = axes.text(across, up, text, transform=axes.transAxes, fontsize=7.5, color=FAINT)
        note.set(ha="left" if across < 0.5 else "right", va="bottom" if up < 0.5 else "top")


def _inside(axes: Axes, x: float, y: float) -> bool:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    return bool(left <= x <= right and low <= y <= high)


def _emptiest_corner(axes: Axes, panel: _Panel) -> tuple[float, float]:
    """Return the corner, in shares of the axes, that the points of a panel leave the most room."""
    seen = np.stack([panel.x[0], panel.y[0]], axis=1)
    seen = seen[[_inside(axes, x, y) for x, y in seen]]
    shares = axes.transAxes.inverted().transform(axes.transData.transform(seen)) if seen.size else np.empty((0, 2))
    # Text is wider than tall, so nearness counts more along the height.
    corners = [(0.97, 0.03), (0.97, 0.97), (0.03, 0.97), (0.03, 0.03)]
    return max(corners, key=lambda at: min((np.hypot(x - at[0], 2 * (y - at[1])) for x, y in shares), default=9.0))


def _draw_lines(
    axes: Axes, along: Floats, spread: xr.Dataset, styles: dict[str, tuple[Any, str]], overloaded: np.ndarray[Any, Any]
) -> None:
    order = np.argsort(along)
    for i, (policy, (colour, marker)) in enumerate(styles.items()):
        mean, lower, upper = (spread[name].values[i][order] for name in ("mean", "lower", "upper"))
        axes.fill_between(along[order], lower, upper, color=colour, alpha=0.2, linewidth=0)
        axes.plot(along[order], mean, color=colour, linewidth=1.5, label=policy)
        for x, y, hollow in zip(along[order], mean, overloaded[i][order], strict=True):
            axes.plot(x, y, marker=marker, ms=5, mec=colour, mfc="white" if hollow else colour, linestyle="")
    if _spans_decade(along):
        axes.set_xscale("log")
        set_log_ticks(axes.xaxis, *log_limits(along))
        axes.set_xlim(*log_limits(along))
    if along.size <= 10:
        axes.set_xticks(along, [label_text(value) for value in along])
        axes.minorticks_off()
    means = spread["mean"].values
    shown = not np.nanmin(spread["lower"].values) <= 0  # an interval that reaches 0 has no place on a log axis
    if spread["mean"].attrs.get("units") != "1" and _spans_decade(means) and shown:
        axes.set_yscale("log")
        set_log_ticks(axes.yaxis, *log_limits(means))
        axes.set_ylim(*log_limits(means))
    else:
        axes.yaxis.set_major_formatter("{x:,g}")
        if np.nanmin(means) >= 0 and axes.get_ylim()[0] < 0:
            # The normal form of an interval knows nothing of what cannot be negative.
            axes.set_ylim(bottom=0)
    axes.tick_params(length=0)
    axes.grid(visible=True)


def _spans_decade(values: Floats) -> bool:
    """Return whether values are positive and their largest is eight times their smallest or more."""
    return bool(np.nanmin(values) > 0 and np.nanmax(values) >= 8 * np.nanmin(values))


def _key(
    figure: Figure, styles: dict[str, tuple[Any, str]], at: tuple[float, float], without_line: Sequence[str] = ()
) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=colour, marker=marker, ms=6, lw=0 if label in without_line else 1.3)
        for label, (colour, marker) in styles.items()
    ]
    rows = -(-len(styles) // _KEY_COLUMNS)
    columns = -(-len(styles) // rows)  # columns of equal length, and no more of them than are needed
    figure.legend(marks, list(styles), loc="upper left", bbox_to_anchor=at, ncols=columns, borderaxespad=0, borderpad=0)
