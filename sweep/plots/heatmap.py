"""Heatmaps over slack and heterogeneity, a block per policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from sweep.analysis import interval, recommend
from sweep.cells import Cell, group_dims, lower_is_better, reads_slack, whole
from sweep.console import label_text
from sweep.errors import InputError
from sweep.plots.style import (
    FAINT,
    HEADING,
    INK,
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
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

#: The colour of a cell without a value.
_NOTHING = (0.84, 0.86, 0.88)
_TIME_LIKE = ("ms", "ms2", "tokens", "tokens2")


@dataclass(frozen=True)
class _Map:
    """One column of a picture: values shaped (policy, slack, heterogeneity), their colours, title and text."""

    means: xr.DataArray
    scale: Normalize
    title: str
    subtitle: str
    colours: Colormap
    text: Callable[[float], str] = short
    open_ended: bool = False


class _Block(NamedTuple):
    """The rows that belong to one policy, from the top: all slacks downward, or one strip for any slack."""

    policy: int
    label: str
    slacks: list[int]
    rows: list[str]


class _Marks(NamedTuple):
    """Cells to frame, to dot and to hatch, each shaped (policy, slack, heterogeneity), and what to say of them."""

    chosen: npt.NDArray[np.bool_]
    tied: npt.NDArray[np.bool_]
    overloaded: npt.NDArray[np.bool_]
    notes: list[str]


def heatmaps(
    ds: xr.Dataset,
    quantities: Sequence[str] = ("load_variance", "p99_queue_wait_ms"),
    objective: str = "p99_queue_wait_ms",
    level: float = 0.95,
    across: str = "heterogeneity",
    title: str = "",
) -> Figure:
    """Return heatmaps of quantities side by side over slack (upward) and heterogeneity, one block per policy.

    Each quantity has one colour scale for all policies, darker where it is worse and logarithmic where it is a time or
    a number of tokens. A policy that reads no slack is a single strip. Framed is what `sweep.analysis.recommend`
    chooses for the objective at each heterogeneity, dotted what cannot be told apart from the best, hatched where a
    replica does not keep up.

    Parameters
    ----------
    ds
        A result of `sweep.run` with one value along every workload dimension.
    quantities
        The variables to draw, one column each.
    objective
        The variable that decides which cells are framed and dotted.
    level
        The confidence level of the intervals that decide it.
    across
        Another dimension to draw in place of the heterogeneity, such as "cache_blocks".
    title
        A heading.

    Raises
    ------
    InputError
        For an unknown variable or more than one value along a dimension that is not drawn.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Workload.poisson(requests=100, utilisation=0.8, replicas=2, sessions=20, prefixes=20)
    >>> fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.4])
    >>> ds = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 10], seed=4)
    >>> figure = heatmaps(ds)
    >>> [text.get_text() for text in figure.texts][:3:2]
    ['Load variance [ms²]', 'P99 queue wait [ms]']
    """
    ds = _turned(ds, across)
    maps = [_quantity(ds, name) for name in quantities]
    zero = any(_is_log(column.scale) and bool((column.means == 0).any()) for column in maps)
    note = (
        f"{_sample(ds)} One colour scale per quantity for all policies, darker is worse"
        f"{'; 0 has the colour of the lower end' if zero else ''}."
    )
    return _draw(maps, _marks(ds, objective, level), note, title)


def _turned(ds: xr.Dataset, across: str) -> xr.Dataset:
    """Return the result with the dimension `across` where pictures expect the heterogeneity."""
    if across == "heterogeneity":
        return ds
    if across not in ds.dims or ds.sizes["heterogeneity"] != 1:
        raise InputError(
            f"To draw {across!r} across, the result needs that dimension and one heterogeneity; "
            f"it has {', '.join(map(str, ds.sizes))} and {ds.sizes['heterogeneity']} heterogeneities."
        )
    return ds.isel(heterogeneity=0, drop=True).rename({across: "heterogeneity"})


def _name_across(array: xr.DataArray | xr.Dataset) -> str:
    return str(array["heterogeneity"].attrs.get("long_name", "heterogeneity"))


def excess(ds: xr.Dataset, objective: str = "p99_queue_wait_ms", level: float = 0.95) -> Figure:
    """Return a heatmap of how many percent each cell's mean is worse than the best one at its heterogeneity.

    The colours end at 100 %. Blocks, marks, parameters and errors are those of `heatmaps`.
    """
    from matplotlib.colors import Normalize

    means = _means(ds, objective)
    lower = lower_is_better(ds, objective)
    best = means.min(("policy", "slack")) if lower else means.max(("policy", "slack"))
    with np.errstate(divide="ignore", invalid="ignore"):
        worse = ((means / best - 1.0) * (100.0 if lower else -100.0)).where(means != best, 0.0)
    column = _Map(
        worse.where(means.notnull()),
        Normalize(0, 100),
        f"{sentence(str(ds[objective].attrs.get('long_name', objective)))}: % worse than the best",
        "each heterogeneity against its best cell",
        colour_map("lower"),
        text=_percent,
        open_ended=True,
    )
    return _draw([column], _marks(ds, objective, level), _sample(ds))


def _sample(ds: xr.Dataset) -> str:
    if ds.sizes["seed"] == 1:
        return "One seed, the same request stream in every cell."
    return f"Means over n = {ds.sizes['seed']:,} seeds, the same request streams in every cell."


def _percent(value: float) -> str:
    return short(value) if not abs(value) < 1000 else f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"


def _quantity(ds: xr.Dataset, name: str) -> _Map:
    means = _means(ds, name)
    title, better = sentence(title_of(ds, name)), ds[name].attrs.get("better")
    direction = [f"{better} is better"] if better else []
    log = ds[name].attrs.get("units") in _TIME_LIKE
    subtitle = ", ".join([*direction, *(["logarithmic colours"] if log else [])])
    return _Map(means, colour_scale(means.to_numpy(), log), title, subtitle, colour_map(better))


def _is_log(scale: Normalize) -> bool:
    from matplotlib.colors import LogNorm

    return isinstance(scale, LogNorm)


def _means(ds: xr.Dataset, name: str) -> xr.DataArray:
    """Return the mean over seeds as (policy, slack, heterogeneity)."""
    array = whole(ds, name)
    for dim in group_dims(array)[1:]:
        if array.sizes[dim] > 1:
            raise InputError(
                f"A heatmap shows one value of {dim!r} and the result has {array.sizes[dim]}; select one, for example "
                f"ds.sel({dim}={array[dim].values[0].item()!r})."
            )
        array = array.isel({dim: 0}, drop=True)
    return interval(xr.Dataset({name: array}), name)["mean"]


def _marks(ds: xr.Dataset, objective: str, level: float) -> _Marks:
    means = _means(ds, objective)
    chosen, tied = np.zeros(means.shape, dtype=bool), np.zeros(means.shape, dtype=bool)
    cells = [
        [Cell(str(policy), float(slack) if reads else math.nan) for slack in means["slack"].values]
        for policy, reads in zip(means["policy"].values, reads_slack(means), strict=True)
    ]
    # A single cell has nothing to be chosen from.
    rows = recommend(ds, objective, level).to_dict("records") if np.prod(means.shape[:2]) > 1 else []
    for column, row in enumerate(rows):
        label = Cell(row["policy"], row["slack"]).label if row["policy"] else ""
        chosen[:, :, column] = [[cell.label == label for cell in rows] for rows in cells]
        tied[:, :, column] = [[cell.label in row["tied"] for cell in rows] for rows in cells]
    tied &= ~chosen
    overloaded = np.zeros(means.shape, dtype=bool)
    if "max_offered_load" in ds.data_vars:
        overloaded = _means(ds, "max_offered_load").to_numpy() >= 1
    return _Marks(chosen, tied, overloaded, _legend(ds, objective, level, chosen.any(), tied.any(), overloaded.any()))


def _legend(ds: xr.Dataset, objective: str, level: float, *marks: np.bool_) -> list[str]:
    """Return what to say of the frames, dots and hatches that a picture has."""
    chosen, tied, overloaded = marks
    best = f"best {ds[objective].attrs.get('long_name', objective)}"
    basis = f"paired {100 * level:g} % t intervals, per cell, not simultaneous"
    notes = []
    if tied:
        notes.append(
            f"Framed: the recommendation at each {_name_across(ds)}, the smallest slack among the cells that cannot be "
            f"told from the one with the {best}; dots: the others among these ({basis})."
        )
    elif chosen and ds.sizes["seed"] > 1:
        notes.append(f"Framed: the {best} at each {_name_across(ds)}; every other cell is worse ({basis}).")
    elif chosen:
        notes.append(f"Framed: the {best} at each {_name_across(ds)}; one seed cannot say how sure that is.")
    if overloaded:
        notes.append(
            "Hatched: a replica does not keep up (mean offered load >= 1); the value depends on the run length."
        )
    return notes


def _blocks(means: xr.DataArray) -> list[_Block]:
    slacks = means["slack"].values
    downward = np.argsort(slacks)[::-1].tolist()
    blocks = []
    for i, (label, reads) in enumerate(zip(means["policy"].values, reads_slack(means), strict=True)):
        if reads:
            blocks.append(_Block(i, str(label), downward, [label_text(slacks[j]) for j in downward]))
        else:
            blocks.append(_Block(i, str(label), downward[-1:], ["any"]))
    return blocks


def _draw(maps: Sequence[_Map], marks: _Marks, note: str, title: str = "") -> Figure:
    """Draw maps side by side, laid out in inches so that cells keep their size whatever the grid."""
    blocks, labels = _blocks(maps[0].means), [label_text(value) for value in maps[0].means["heterogeneity"].values]
    across, tall = len(labels), sum(len(block.rows) for block in blocks)
    cell = (min(max(7.4 / across, 0.16), 0.66 if across > 3 else 1.1), min(max(7.0 / tall, 0.14), 0.29))
    left, right, top, gap, bars = 0.78, 0.3, 0.85, 0.36, 0.95
    column = across * cell[0]
    pitch = max(column + 0.55, 2.7)
    width = max(left + (len(maps) - 1) * pitch + max(column, 2.4) + right, 6.4)
    notes = [note, *marks.notes]
    below = caption_height(notes, width, 0.3) + 0.15
    edge = top + tall * cell[1] + (len(blocks) - 1) * gap + bars + below
    height = edge + (HEADING if title else 0.0)
    with styled():
        figure = new_figure(width, height)
        for place, one in enumerate(maps):
            x, y = left + place * pitch, edge - top
            figure.text(x / width, (edge - 0.24) / height, one.title, fontsize=11, weight="bold", va="center")
            figure.text(x / width, (edge - 0.43) / height, one.subtitle, fontsize=8, color=FAINT, va="center")
            for block in blocks:
                size = len(block.rows) * cell[1]
                axes = figure.add_axes((x / width, (y - size) / height, column / width, size / height))
                _draw_block(axes, one, block, marks, cell)
                if place == 0:
                    _label_rows(axes, block, cell[1])
                y -= size + gap
            every = max(1, math.ceil(0.075 * max(map(len, labels)) / cell[0]))
            axes.set_xticks(np.arange(across)[::every] + 0.5, labels[::every])
            unit = maps[0].means["heterogeneity"].attrs.get("units")
            axes.set_xlabel(_name_across(maps[0].means) + (f" [{unit}]" if unit else ""))
            bar = figure.add_axes((x / width, (below + 0.3) / height, column / width, 0.11 / height))
            _colour_bar(figure, bar, one, column)
        heading(figure, title, left)
        caption(figure, notes, 0.3, below)
    return figure


def _label_rows(axes: Axes, block: _Block, row_height: float) -> None:
    every = max(1, math.ceil(0.13 / row_height))
    shown = np.arange(len(block.rows))[::-1][::every]
    axes.set_yticks(shown + 0.5, [block.rows[row] for row in shown])
    if len(block.rows) > 1:
        axes.set_ylabel("slack [ms]")


def _draw_block(axes: Axes, one: _Map, block: _Block, marks: _Marks, cell: tuple[float, float]) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    here = (block.policy, block.slacks)
    values = one.means.to_numpy()[here]
    shown = np.clip(values, one.scale.vmin, one.scale.vmax)
    roomy = cell[0] >= 0.42 and cell[1] >= 0.17
    axes.pcolormesh(
        shown, norm=one.scale, cmap=one.colours, edgecolors="white" if roomy else "none", linewidth=0.6 if roomy else 0
    )
    axes.set(xlim=(0, values.shape[1]), ylim=(values.shape[0], 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_facecolor(_NOTHING)
    axes.set_title(block.label, fontsize=9, pad=4)
    axes.tick_params(length=0)
    fills = np.where(np.isnan(values)[..., None], _NOTHING, one.colours(one.scale(shown))[..., :3])
    lines: list[list[tuple[float, float]]] = []
    inks: list[str] = []
    for row, column in np.argwhere(marks.overloaded[here]):
        lines += [[(column + x, row + y) for x, y in line] for line in _hatch(*cell)]
        inks += [readable(fills[row, column])] * (len(lines) - len(inks))
    axes.add_collection(LineCollection(lines, colors=inks, linewidths=0.6, alpha=0.55, zorder=2), autolim=False)
    for (row, column), value in np.ndenumerate(values) if roomy else ():
        size, fill = min(8.0, cell[0] * 13.5, cell[1] * 30), fills[row, column]
        text = axes.text(column + 0.5, row + 0.52, one.text(float(value)), ha="center", va="center", fontsize=size)
        text.set_color(readable(fill))
        if marks.overloaded[here][row, column]:
            text.set_path_effects([withStroke(linewidth=2.5, foreground=fill)])
    for order, (ink, width) in enumerate((("white", 3.6), (INK, 2.0))):
        for row, column in np.argwhere(marks.chosen[here]):
            frame = Rectangle((column, row), 1, 1, fill=False, clip_on=False, edgecolor=ink, linewidth=width)
            axes.add_patch(frame).set_zorder(4 + order)
    rows, columns = np.nonzero(marks.tied[here])
    axes.plot(columns + 0.9, rows + 0.22, "o", ms=3, color=INK, mec="white", mew=0.4, zorder=6)


def _hatch(width: float, height: float, spacing: float = 0.11) -> list[list[tuple[float, float]]]:
    """Return lines at 45 degrees across a cell of a size in inches, in units of the cell."""
    lines = []
    for start in np.arange(spacing / 2 - height, width, spacing):
        low, high = max(0.0, start), min(width, start + height)
        lines.append([(x / width, 1 - (x - start) / height) for x in (low, high)])
    return lines


def _colour_bar(figure: Figure, axes: Axes, one: _Map, width: float) -> None:
    from matplotlib.cm import ScalarMappable

    ends = "max" if one.open_ended else "neither"
    bar = figure.colorbar(ScalarMappable(one.scale, one.colours), cax=axes, orientation="horizontal", extend=ends)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, labelsize=8)
    if _is_log(one.scale):
        bar.ax.minorticks_off()
        set_log_ticks(bar.ax.xaxis, *bar.ax.get_xlim(), most=max(3, int(width / 0.6)))
