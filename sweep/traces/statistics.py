"""What a stream is like: rate, burstiness, sizes, sessions and how much of its prompts came before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sweep.columns import FloatArray
from sweep.console import Column, number_text, table
from sweep.requests import Requests
from sweep.traces.raw import report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Widths of the bins [s] over which arrivals are counted.
BINS_S = (1, 10, 60)


def statistics(requests: Requests) -> dict[str, Any]:
    """Return the statistics of a stream.

    ``rate_per_s`` is n / duration; ``cv`` the standard deviation (ddof 0) over the mean of the times between arrivals;
    ``dispersion_<w>s`` variance (ddof 0) over mean of the arrivals in bins of w s from the first arrival, the last,
    partial one included; quantiles are linear. ``block_reuse`` and ``token_reuse`` are the shares that an unbounded
    cache shared by all would hit, the latter of the prompt tokens. NaN where there is nothing to divide, or sizes of
    blocks are unknown.

    Examples
    --------
    >>> import sweep
    >>> found = statistics(sweep.Requests.from_arrays([0.0, 1000.0, 4000.0], [1.0, 1.0, 1.0]))
    >>> found["rate_per_s"], found["cv"]
    (0.75, 0.5)
    """
    n = len(requests)
    arrival = requests.arrival_ms / 1000.0
    duration = float(arrival[-1] - arrival[0]) if n else 0.0
    gaps = np.diff(arrival)
    found: dict[str, Any] = {
        "n": n,
        "duration_s": duration,
        "rate_per_s": _ratio(n, duration),
        "cv": _ratio(float(gaps.std()), float(gaps.mean())) if len(gaps) else np.nan,
    }
    for width in BINS_S:
        counts = _counts(arrival, width)
        found[f"dispersion_{width}s"] = _ratio(float(counts.var()), float(counts.mean())) if len(counts) else np.nan
    for name, tokens in (("input", requests.prompt_tokens), ("output", requests.output_tokens)):
        found[f"{name}_mean"] = float(tokens.mean()) if n else np.nan
        for percent in (50, 99):
            found[f"{name}_p{percent}"] = float(np.percentile(tokens, percent)) if n else np.nan
        found[f"{name}_max"] = int(tokens.max()) if n else 0
    found["zero_output"] = int((requests.output_tokens == 0).sum())
    return found | _sessions(requests) | _reuse(requests)


def _counts(arrival_s: FloatArray, width: float) -> FloatArray:
    bins = np.floor((arrival_s - arrival_s[:1]) / width).astype(np.int64)
    return np.bincount(bins).astype(np.float64)


def _sessions(requests: Requests) -> dict[str, Any]:
    held = requests.session >= 0
    if not held.any():
        return {}
    turns = np.bincount(requests.session[held])
    turns = turns[turns > 0]
    order = np.lexsort((requests.arrival_ms, requests.session))
    session, arrival = requests.session[order], requests.arrival_ms[order]
    gaps = (np.diff(arrival)[(np.diff(session) == 0) & (session[1:] >= 0)]) / 1000.0
    return {
        "sessions": len(turns),
        "turns_mean": float(turns.mean()),
        "turns_max": int(turns.max()),
        "single_turn": int((turns == 1).sum()),
        "turn_gap_p50_s": float(np.percentile(gaps, 50)) if len(gaps) else np.nan,
        "turn_gap_p90_s": float(np.percentile(gaps, 90)) if len(gaps) else np.nan,
    }


def _reuse(requests: Requests) -> dict[str, Any]:
    blocks = requests.blocks
    if blocks is None or not len(blocks.ids):
        return {}
    seen = blocks.seen_before()
    tokens = float(blocks.tokens_of(seen, requests.prompt_tokens).sum()) if blocks.sized else np.nan
    return {
        "blocks": len(blocks.ids),
        "distinct_blocks": blocks.distinct,
        "block_reuse": float(seen.sum() / len(blocks.ids)),
        "token_reuse": _ratio(tokens, float(requests.prompt_tokens.sum())),
        "requests_with_reuse": float((seen > 0).mean()),
    }


def _ratio(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else np.nan


_TITLES = {
    "n": ("requests", 0),
    "duration_s": ("first to last arrival [s]", 1),
    "rate_per_s": ("rate [requests/s]", 4),
    "cv": ("CV of the times between arrivals", 2),
    "dispersion_1s": ("variance / mean of arrivals in 1 s", 2),
    "dispersion_10s": ("variance / mean of arrivals in 10 s", 2),
    "dispersion_60s": ("variance / mean of arrivals in 60 s", 2),
    "input_mean": ("prompt tokens, mean", 1),
    "input_p50": ("prompt tokens, P50", 0),
    "input_p99": ("prompt tokens, P99", 0),
    "input_max": ("prompt tokens, largest", 0),
    "output_mean": ("output tokens, mean", 1),
    "output_p50": ("output tokens, P50", 0),
    "output_p99": ("output tokens, P99", 0),
    "output_max": ("output tokens, largest", 0),
    "zero_output": ("requests without output", 0),
    "sessions": ("sessions", 0),
    "turns_mean": ("requests per session, mean", 2),
    "turns_max": ("requests per session, most", 0),
    "single_turn": ("sessions of one request", 0),
    "turn_gap_p50_s": ("time between turns [s], P50", 1),
    "turn_gap_p90_s": ("time between turns [s], P90", 1),
    "blocks": ("blocks", 0),
    "distinct_blocks": ("different blocks", 0),
    "block_reuse": ("reuse in an unbounded cache, of blocks", 4),
    "token_reuse": ("reuse in an unbounded cache, of prompt tokens", 4),
    "requests_with_reuse": ("requests with any reuse", 4),
}


def text(requests: Requests) -> str:
    """Return the report of the reader and the statistics as `sweep trace info` prints them."""
    found = statistics(requests)
    names = [name for name in _TITLES if name in found]
    columns = [
        Column("", [_TITLES[name][0] for name in names], left=True),
        Column("", [number_text(float(found[name]), _TITLES[name][1]) for name in names]),
    ]
    body = "\n".join(table(columns).splitlines()[1:])
    return "\n".join([*report(requests), "", body])


def picture(requests: Requests) -> Figure:
    """Return the picture of arrival rate and lengths over time.

    Raises
    ------
    InputError
        For a stream in which no time passes.
    """
    from sweep.errors import InputError
    from sweep.plots.style import caption, caption_height, new_figure, palette, styled

    arrival = (requests.arrival_ms - requests.arrival_ms[:1]) / 1000.0
    if not len(arrival) or arrival[-1] <= 0:
        raise InputError(
            "No time passes between the first and the last arrival, so there is nothing to draw over time."
        )
    unit, per = next(
        ((u, p) for u, p in (("days", 86400.0), ("hours", 3600.0), ("min", 60.0)) if arrival[-1] > 5 * p), ("s", 1.0)
    )
    width = float(arrival[-1]) / 120.0
    notes = [
        f"{requests.attrs.get('source', 'A stream')}: {len(requests):,} requests in bins of {width:,.3g} s. "
        "Lengths: median (line) and 10 to 90 % (band) of each bin that has requests."
    ]
    w, left = 9.5, 0.85
    below = caption_height(notes, w, 0.3) + 0.15
    tall, gap = 1.75, 0.38
    height = 0.55 + 3 * tall + 2 * gap + 0.5 + below
    with styled():
        figure = new_figure(w, height)
        figure.text(left / w, (height - 0.3) / height, "Arrivals and lengths over time", fontsize=11, weight="bold")
        colours = palette(3)
        bins = np.minimum((arrival / width).astype(np.int64), 119)
        middle = (np.arange(120) + 0.5) * width / per
        first = None
        for row, title in enumerate(("arrivals [requests/s]", "prompt [tokens]", "output [tokens]")):
            bottom = height - 0.55 - (row + 1) * tall - row * gap
            axes = figure.add_axes((left / w, bottom / height, (w - left - 0.3) / w, tall / height), sharex=first)
            first = first or axes
            if row == 0:
                axes.stairs(
                    np.bincount(bins, minlength=120) / width, np.arange(121) * width / per, color=colours[0], fill=True
                )
            else:
                _band(axes, middle, bins, (requests.prompt_tokens, requests.output_tokens)[row - 1], colours[row])
            axes.set_title(title, fontsize=9, pad=3)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.grid(visible=True, axis="y")
            axes.tick_params(length=0, labelbottom=row == 2)
        axes.set_xlim(0, arrival[-1] / per)
        axes.set_xlabel(f"time since the first arrival [{unit}]")
        caption(figure, notes, 0.3, below)
    return figure


def _band(axes: Axes, middle: Any, bins: Any, tokens: Any, colour: Any) -> None:
    order = np.argsort(bins, kind="stable")
    edges = np.searchsorted(bins[order], np.arange(121))
    quantiles = np.full((3, 120), np.nan)
    for k in range(120):
        if edges[k + 1] > edges[k]:
            quantiles[:, k] = np.percentile(tokens[order[edges[k] : edges[k + 1]]], (10, 50, 90))
    has = ~np.isnan(quantiles[1])
    axes.fill_between(middle[has], quantiles[0, has], quantiles[2, has], color=colour, alpha=0.25, linewidth=0)
    axes.plot(middle[has], quantiles[1, has], color=colour, linewidth=1.4)
