"""Pictures of one replayed cell: which replica was busy when and why, who waited, and loads step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from sweep.errors import InputError
from sweep.plots.style import caption, caption_height, new_figure, palette, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Above this many requests the bars of a timeline have no edges, which would hide them.
_MANY = 150


def timeline(ds: xr.Dataset) -> Figure:
    """Return the picture of one replayed cell.

    For the timeline engine: a row per replica with a bar per request from start to finish, coloured by the reason it
    went there (paler: its prefix was cached), and below it how long each request waited. For the token engine: the load
    of each replica, step by step.

    Parameters
    ----------
    ds
        A result of `sweep.simulate`; select requests with ``ds.isel(request=slice(0, 100))`` to look closer.

    Raises
    ------
    InputError
        For a Dataset that holds no request, or no replay.

    Examples
    --------
    >>> import sweep
    >>> stream = sweep.Requests.from_arrays([0.0, 1.0, 2.0], [10.0, 10.0, 10.0], session=["a", "a", "b"])
    >>> figure = timeline(sweep.simulate(stream, [1.0, 1.0], policy="locality_aware", slack=20.0))
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['queue_fallback', 'sticky_session']
    """
    if "replica_id" not in ds or ds.sizes.get("request", 0) == 0:
        raise InputError("A timeline needs a result of sweep.simulate with at least one request.")
    label = str(ds.attrs.get("policy", ""))
    if "load" in ds:
        return loads({label: ds})
    lost = int(ds["lost"].sum()) if "lost" in ds else 0
    if lost == ds.sizes["request"]:
        raise InputError("Every request was lost, so there is no service to draw.")
    if lost:
        ds = ds.isel(request=~ds["lost"].values)
    replicas, reasons = (
        ds.sizes.get("replica", int(ds["replica_id"].max()) + 1),
        list(dict.fromkeys(ds["route_reason"].values)),
    )
    colours = dict(zip(sorted(map(str, reasons)), palette(len(reasons)), strict=True))
    hits = int(ds["cache_hit"].sum())
    requests = ds.sizes["request"]
    notes = [
        f"{requests:,} requests, one bar each from start to finish; colour: why it went there. Paler: its prefix was "
        f"cached on the replica ({hits:,} requests). One stream: it explains a policy and measures nothing."
        + (f" Not drawn: {lost:,} that were lost." if lost else "")
    ]
    width, left, row = 11.0, 0.85, min(max(3.2 / replicas, 0.09), 0.42)
    below = caption_height(notes, width, 0.3) + 0.15
    bars, waits = replicas * row + 0.2, 1.5
    height = 0.85 + bars + 0.25 + waits + 0.55 + below
    with styled():
        figure = new_figure(width, height)
        figure.text(
            left / width, (height - 0.3) / height, f"{label}: who served what, and why", fontsize=11, weight="bold"
        )
        span = (width - left - 0.3) / width
        upper = figure.add_axes((left / width, (height - 0.85 - bars) / height, span, bars / height))
        lower = figure.add_axes((left / width, (below + 0.55) / height, span, waits / height), sharex=upper)
        _bars(upper, ds, colours, replicas)
        for reason, colour in colours.items():
            at = ds["route_reason"].values == reason
            arrival, wait = ds["arrival_ms"].values[at], ds["queue_wait_ms"].values[at]
            lower.vlines(arrival, 0, wait, color=colour, linewidth=0.8 if requests <= _MANY else 0.4)
            lower.plot(arrival, wait, linestyle="", marker="o", ms=2.5 if requests <= _MANY else 1.2, color=colour)
        lower.set(xlabel="time [ms]", ylabel="queue wait [ms]")
        lower.set_ylim(bottom=0)
        lower.xaxis.set_major_formatter("{x:,g}")
        lower.tick_params(length=2)
        _key(figure, colours, (left / width, (height - 0.42) / height))
        caption(figure, notes, 0.3, below)
    return figure


def loads(replays: Mapping[str, xr.Dataset]) -> Figure:
    """Return the load of each replica, step by step, one panel per replay of the token engine.

    Parameters
    ----------
    replays
        A title for each result of ``sweep.simulate(..., engine="token_step")``.

    Raises
    ------
    InputError
        For no replay, or one without ``load``.

    Examples
    --------
    >>> import sweep
    >>> stream = sweep.Workload.dplb_burst().realise(42)
    >>> replay = sweep.simulate(stream, [1.0, 0.3, 1.2], policy="least_load", engine="token_step")
    >>> figure = loads({"least load": replay})
    >>> figure.legends[0].get_texts()[1].get_text()
    'replica 1, speed 0.3'
    """
    if not replays or not all("load" in ds for ds in replays.values()):
        raise InputError("Loads need one or more results of sweep.simulate(..., engine='token_step').")
    replicas = max(ds.sizes["replica"] for ds in replays.values())
    notes = ["Load: tokens in service and queued, at the end of each step. The panels share their axes."]
    side, space, left, top, tall = (6.4 if len(replays) == 1 else 3.4), 0.25, 0.85, 0.9, 2.5
    width = left + len(replays) * (side + space) + 0.1
    below = caption_height(notes, width, 0.3) + 0.15
    height = top + tall + 0.6 + below
    with styled():
        figure = new_figure(width, height)
        figure.text(left / width, (height - 0.3) / height, "Load of each replica [tokens]", fontsize=11, weight="bold")
        colours = palette(replicas)
        first = None
        for index, (title, ds) in enumerate(replays.items()):
            x = left + index * (side + space)
            box = (x / width, (below + 0.6) / height, side / width, tall / height)
            axes = figure.add_axes(box, sharex=first, sharey=first)
            for replica in range(ds.sizes["replica"]):
                axes.plot(ds["step"].values, ds["load"].values[:, replica], color=colours[replica], linewidth=1.5)
            axes.set_title(title, fontsize=9, pad=4)
            axes.set_xlabel("step")
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.grid(visible=True)
            axes.tick_params(length=0, labelleft=first is None)
            first = first or axes
        names = [_name(ds, replica) for ds in list(replays.values())[:1] for replica in range(replicas)]
        _key(figure, dict(zip(names[:12], colours, strict=False)), (left / width, (height - 0.42) / height))
        caption(figure, notes, 0.3, below)
    return figure


def _name(ds: xr.Dataset, replica: int) -> str:
    speed = f", speed {ds['speed'].values[replica]:.3g}" if "speed" in ds.coords else ""
    return f"replica {replica}{speed}"


def _bars(axes: Axes, ds: xr.Dataset, colours: dict[str, tuple[float, float, float]], replicas: int) -> None:
    from matplotlib.collections import PolyCollection

    start, finish, replica = (ds[name].values for name in ("start_ms", "finish_ms", "replica_id"))
    base = np.array([colours[str(reason)] for reason in ds["route_reason"].values])
    fill = np.where(ds["cache_hit"].values[:, None], 1 - 0.5 * (1 - base), base)
    low, high = replica - 0.4, replica + 0.4
    corners = np.stack(
        [np.stack(pair, axis=1) for pair in ((start, low), (start, high), (finish, high), (finish, low))], axis=1
    )
    few = ds.sizes["request"] <= _MANY
    axes.add_collection(
        PolyCollection(list(corners), facecolors=fill, edgecolors="white" if few else "none", linewidths=0.5)
    )
    axes.set_xlim(float(ds["arrival_ms"].min()), float(finish.max()))
    axes.set_ylim(replicas - 0.4, -0.6)
    every = max(1, replicas // 16)
    names = [f"replica {i}" for i in range(replicas)][::every]
    axes.set_yticks(np.arange(replicas)[::every], names)
    axes.tick_params(length=0, labelbottom=False)
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)


def _key(figure: Figure, colours: dict[str, tuple[float, float, float]], at: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    marks = [Patch(color=colour) for colour in colours.values()]
    figure.legend(marks, list(colours), loc="upper left", bbox_to_anchor=at, ncols=6, borderaxespad=0, borderpad=0)
