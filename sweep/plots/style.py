"""What every picture shares: fonts and colours, how numbers are written, logarithmic scales, saving."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sweep.cells import known
from sweep.console import unit_text

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

#: The height of a picture's title, in inches.
HEADING = 0.42
INK, FAINT, PAPER = "#1d2733", "#6b7785", "#ffffff"
_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.usetex": False,
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of this package, whatever the user's own settings are, and leave those as they were."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches that pyplot does not know of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, the same bytes for the same figure (no date, no version)."""
    figure.savefig(path, dpi=160, format="png", metadata={"Software": None})


def palette(count: int) -> list[tuple[float, float, float]]:
    """Return distinct colours, of which up to ten are told apart by colour-blind readers."""
    import seaborn

    return list(seaborn.color_palette("colorblind" if count <= 10 else "husl", count))


def colour_map(better: str | None) -> Colormap:
    """Return colours that are perceptually uniform and in order in grey, darker where a quantity is worse.

    A quantity that has no better direction is darker where it is larger.
    """
    import matplotlib
    import seaborn  # noqa: F401 - importing it registers its colour maps

    return matplotlib.colormaps["rocket" if better == "higher" else "rocket_r"]


def colour_scale(values: npt.NDArray[np.float64], log: bool) -> Normalize:
    """Return the scale of colours for values, which spans at least a tenth of the larger end.

    Else differences that nobody would act on would take all the colours.

    Examples
    --------
    >>> scale = colour_scale(np.array([0.307, 0.312]), log=False)
    >>> round(scale.vmin, 3), round(scale.vmax, 3)
    (0.281, 0.312)
    """
    from matplotlib.colors import LogNorm, Normalize

    if log:
        low, high = log_limits(values, margin=0.0)
        return LogNorm(min(low, 0.9 * high), high)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    low, high = (min(low, 0.9 * high), high) if high > 0 else (low, max(high, 0.9 * low))
    return Normalize(low, high if high > low else low + 1.0)


def heading(figure: Figure, title: str, left: float) -> None:
    """Write the title of a whole picture at its top, `left` inches from its edge; it takes `HEADING` inches."""
    width, height = figure.get_size_inches()
    figure.text(left / width, (height - 0.28) / height, title, fontsize=12, weight="bold", va="center")


def readable(colour: tuple[float, ...]) -> str:
    """Return the ink, dark or white, that stands out more on a colour (the contrast ratio of WCAG 2).

    Examples
    --------
    >>> readable((1.0, 0.9, 0.8)), readable((0.2, 0.0, 0.2))
    ('#1d2733', '#ffffff')
    """
    channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    light = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    dark = 0.020  # the luminance of the ink
    return PAPER if 1.05 / (light + 0.05) > (light + 0.05) / (dark + 0.05) else INK


def title_of(ds: xr.Dataset, var: str) -> str:
    """Return the title of a variable with its unit, such as ``P99 queue wait [ms]``."""
    known(ds, var)
    unit = unit_text(str(ds[var].attrs.get("units", "1")))
    return str(ds[var].attrs.get("long_name", var)) + (f" [{unit}]" if unit else "")


def sentence(title: str) -> str:
    """Return a title with a capital first letter."""
    return title[:1].upper() + title[1:]


def short(value: float) -> str:
    """Return a number in at most six characters, with three digits that count.

    Examples
    --------
    >>> [short(value) for value in (0.1 + 0.2, 45.0, 1234.5, 32_001.4, 4.1e6, 0.0, float("nan"), 2e-5)]
    ['0.300', '45.0', '1,234', '32.0k', '4.10M', '0', '-', '2e-05']
    """
    size = abs(value)
    if math.isnan(value) or math.isinf(value) or value == 0:
        return "-" if math.isnan(value) else "0" if value == 0 else "∞" if value > 0 else "-∞"
    if size < 0.0005:
        return f"{value:.0e}"
    for unit, factor, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if size >= least * 0.99995:
            return digits(value / factor) + unit
    return digits(value)


def digits(value: float) -> str:
    """Return a number with three digits that count, at most three of them decimals; four digits keep all.

    Examples
    --------
    >>> digits(0.25), digits(9.999), digits(99.94), digits(99.96), digits(1234.5)
    ('0.250', '10.0', '99.9', '100', '1,234')
    """
    for decimals, below in ((3, 0.9995), (2, 9.995), (1, 99.95)):
        if abs(value) < below:
            return f"{value:.{decimals}f}"
    return f"{value:,.0f}"


def log_limits(values: npt.NDArray[np.float64], margin: float = 0.06) -> tuple[float, float]:
    """Return limits around the positive values with a margin on a logarithmic axis; a span of two where all are equal.

    Examples
    --------
    >>> [round(limit, 3) for limit in log_limits(np.array([0.0, 10.0, 1000.0]), margin=0.5)]
    [1.0, 10000.0]
    """
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        return 1.0, 10.0
    low, high = math.log(positive.min()), math.log(positive.max())
    pad = (high - low) * margin if high > low else math.log(2) / 2
    return math.exp(low - pad), math.exp(high + pad)


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` round numbers between two positive limits, the same few steps in every decade.

    Where a decade holds too few of them, they are evenly spaced.

    Examples
    --------
    >>> log_ticks(36, 61), log_ticks(42, 57, most=3)
    ([40.0, 50.0, 60.0], [45.0, 50.0, 55.0])
    >>> log_ticks(20, 3_000_000)
    [100.0, 1000.0, 10000.0, 100000.0, 1000000.0]
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [float(f"{step}e{decade}") for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 3:
            # Only whole decades can be too many here, or steps within one; thinning keeps either evenly spread.
            return ticks[:: math.ceil(len(ticks) / most)]
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [float(f"{step * k:.12g}") for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def tick_text(value: float) -> str:
    """Return a round number without needless digits.

    Examples
    --------
    >>> [tick_text(value) for value in (0.1, 1.5, 40.0, 2000.0, 3e5, 1e6)]
    ['0.1', '1.5', '40', '2,000', '300k', '1M']
    """
    text = short(value)
    unit = text[-1] if text[-1] in "kMG" else ""
    number = text.removesuffix(unit)
    return (number.rstrip("0").rstrip(".") if "." in number else number) + unit


def set_log_ticks(axis: Axis, low: float, high: float, most: int = 6) -> None:
    """Label a logarithmic axis with round numbers, written as people do."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

    ticks = log_ticks(low, high, most)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([tick_text(tick) for tick in ticks]))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def caption(figure: Figure, lines: Sequence[str], left: float, top: float) -> None:
    """Write the notes of a picture below it, from `top` inches above its lower edge, broken to its width."""
    width, height = figure.get_size_inches()
    text = "\n".join(textwrap.fill(line, _characters(width, left)) for line in lines)
    figure.text(left / width, top / height, text, va="top", ha="left", fontsize=8, color=FAINT, linespacing=1.35)


def caption_height(lines: Sequence[str], width: float, left: float) -> float:
    """Return the height in inches that `caption` needs."""
    return 0.15 * sum(len(textwrap.wrap(line, _characters(width, left))) for line in lines) + 0.1


def _characters(width: float, left: float) -> int:
    """Return how many characters of a caption fit between its margins."""
    return int((width - 2 * left) / 0.0655)
