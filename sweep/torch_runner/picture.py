"""The picture of predicted against measured: one mark per point or pair, with its interval over repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sweep.errors import InputError
from sweep.plots.style import (
    FAINT,
    INK,
    caption,
    caption_height,
    log_limits,
    new_figure,
    palette,
    set_log_ticks,
    styled,
)
from sweep.torch_runner import decision

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {
    decision.CONFIRMED: ("o", True),
    decision.INCONCLUSIVE: ("o", False),
    decision.NOT_CONFIRMED: ("X", True),
    decision.NOT_JUDGED: ("s", False),
}


class Mark(NamedTuple):
    """One comparison: the run it is of, predicted and measured with the bounds of its interval, and the verdict."""

    run: str
    predicted: float
    measured: float
    lower: float
    upper: float
    verdict: str


def marks(run: str, compared: Sequence[dict[str, Any]]) -> list[Mark]:
    """Return the comparisons of a result that a logarithmic scale can show."""
    found = []
    for item in compared:
        values = [item["predicted"], *(item["measured"][name] for name in ("mean", "lower", "upper"))]
        predicted, mean, lower, upper = (math.nan if value is None else float(value) for value in values)
        if predicted > 0 and mean > 0:
            found.append(Mark(run, predicted, mean, lower, upper, item["verdict"]))
    return found


def against_prediction(points: Sequence[Mark], pairs: Sequence[Mark], tolerance: float) -> Figure:
    """Return predicted against measured: times of points to the left, ratios of pairs to the right.

    The line is where both are equal, the band the tolerance around it.

    Raises
    ------
    InputError
        When there is nothing to draw.
    """
    panels = [
        (title, unit, found)
        for title, unit, found in (("Points", " [ms]", points), ("Ratios of pairs", "", pairs))
        if found
    ]
    if not panels:
        raise InputError("There is no comparison to draw; a run that failed compares nothing.")
    runs = list(dict.fromkeys(mark.run for _, _, found in panels for mark in found))
    notes = [
        f"Bars: {100 * decision.LEVEL:g} % t intervals over repeats (Fieller's for ratios), cut off at the edge of the "
        f"picture. Band: within {100 * tolerance:g} % of the prediction. Filled: confirmed; hollow circle: "
        "inconclusive; cross: not confirmed; square: shown, not judged."
    ]
    side, space, left, top = 3.3, 0.8, 0.8, 0.95 + 0.17 * math.ceil(len(runs) / 2)
    width = max(left + len(panels) * (side + space), 6.4)
    below = caption_height(notes, width, 0.3) + 0.15
    height = top + side + 0.6 + below
    with styled():
        figure = new_figure(width, height)
        figure.text(left / width, (height - 0.3) / height, "Predicted against measured", fontsize=11, weight="bold")
        colours = dict(zip(runs, palette(len(runs)), strict=True))
        for index, (title, unit, found) in enumerate(panels):
            x = left + index * (side + space)
            axes = figure.add_axes((x / width, (below + 0.6) / height, side / width, side / height))
            axes.set_title(title, pad=5)
            axes.set_xlabel(f"predicted{unit}")
            axes.set_ylabel(f"measured{unit}")
            _draw(axes, found, colours, tolerance)
        _key(figure, colours, (left / width, (height - 0.42) / height))
        caption(figure, notes, 0.3, below)
    return figure


def _draw(axes: Axes, found: Sequence[Mark], colours: dict[str, Any], tolerance: float) -> None:
    limits = log_limits(np.array([[mark.predicted, mark.measured] for mark in found]), margin=0.15)
    ends = np.array(limits)
    axes.fill_between(ends, ends * (1 - tolerance), ends * (1 + tolerance), color="#e3e7ec", linewidth=0)
    axes.plot(ends, ends, color=FAINT, linewidth=0.8)
    for mark in found:
        shape, filled = _MARKERS[mark.verdict]
        colour = colours[mark.run]
        if math.isfinite(mark.lower):
            axes.vlines(mark.predicted, max(mark.lower, limits[0]), min(mark.upper, limits[1]), color=colour, lw=1.2)
        face = colour if filled else "white"
        axes.plot(mark.predicted, mark.measured, marker=shape, ms=6.5, mec=colour, mfc=face, linestyle="", zorder=3)
    axes.set(xlim=limits, ylim=limits, xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        set_log_ticks(axis, *limits)
    axes.tick_params(length=0, labelcolor=INK)
    axes.grid(visible=True)


def _key(figure: Figure, colours: dict[str, Any], at: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    marks = [Patch(color=colour) for colour in colours.values()]
    figure.legend(marks, list(colours), loc="upper left", bbox_to_anchor=at, ncols=2, borderaxespad=0, borderpad=0)
