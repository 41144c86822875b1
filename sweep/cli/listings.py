"""What the commands print: a comparison, the summary of a grid, a replay, the catalogue."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from sweep.console import Column, label_text, number_column, table, unit_text
from sweep.rule import Rule, shown
from sweep.variables import FAILURES, MIGRATIONS, VARIABLES

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from sweep.requests import Requests

#: What `sweep compare` shows of the variables of the timeline engine.
_COMPARED = (
    "mean_queue_wait_ms",
    "p95_queue_wait_ms",
    "p99_queue_wait_ms",
    "p99_latency_ms",
    "throughput_requests_per_s",
    "cache_hit_rate",
    "block_hit_rate",
    "token_hit_rate",
    "session_moves",
    "max_offered_load",
    "load_variance",
    *MIGRATIONS,
    *FAILURES,
)
#: What `sweep run` recommends for, and shows of the variables that an engine has.
_OBJECTIVE = "p99_queue_wait_ms"
_SUMMARISED = (
    _OBJECTIVE,
    "load_variance",
    "cache_hit_rate",
    "block_hit_rate",
    "finished_requests",
    "lost_requests",
    "retried_requests",
)
_MOST_ROWS = 40
#: Beside the reasons of a replay, where requests were lost.
_LOST = "(lost)"


def comparison_table(frame: pd.DataFrame) -> str:
    """Return the result of `sweep.compare` as a table, one row per policy in the order given."""
    columns = [Column("policy", [str(label) for label in frame.index], left=True)]
    known = VARIABLES["timeline"] | MIGRATIONS | FAILURES
    for name in (name for name in _COMPARED if name in frame):
        variable = known[name]
        columns.append(number_column(variable.long_name, frame[name], unit_text(variable.units)))
    return table(columns, title_width=10)


def summary(ds: xr.Dataset) -> str:
    """Return what a result says: the recommendation at each point, then every policy at its best slack."""
    from sweep.analysis import recommend
    from sweep.tables import chosen_cells

    variable = VARIABLES[str(ds.attrs["engine"])][_OBJECTIVE]
    chosen = recommend(ds, _OBJECTIVE)
    shown = chosen.head(_MOST_ROWS)
    seeds = ds.sizes["seed"]
    taken = "one seed, so no interval" if seeds == 1 else f"mean over {seeds:,} seeds [95 % interval]"
    lines = [f"Choose, for the smallest {variable.long_name} ({taken}):", ""]
    lines += [table(chosen_cells(ds, shown, _OBJECTIVE)), ""]
    points = [str(name) for name in chosen.columns[: chosen.columns.get_loc("policy")]]
    for row in shown.to_dict("records"):
        place = ", ".join(f"{name} {label_text(row[name])}" for name in points)
        lines.append(f"{place}: {row['certainty']}")
    lines += ["", "Every policy, at the slack that is best for it:", "", table(_policies_at_their_best(ds))]
    rows = len(chosen) * ds.sizes["policy"]
    if rows > _MOST_ROWS:
        lines.append(f"... and {rows - _MOST_ROWS:,} more rows; --output keeps every cell.")
    return "\n".join(lines)


def _policies_at_their_best(ds: xr.Dataset) -> list[Column]:
    from sweep.cells import points
    from sweep.intervals import t_interval
    from sweep.tables import estimates

    found = {name: list(points(ds, name)) for name in _SUMMARISED if name in ds}
    rows = []
    for place, point in enumerate(found[_OBJECTIVE]):
        means = t_interval(point.values, 0.95)[0]
        for _, group in groupby(range(len(point.cells)), key=lambda cell: point.cells[cell].policy):
            rows.append((place, min(group, key=lambda cell: (math.isnan(means[cell]), means[cell]))))
    rows = rows[:_MOST_ROWS]
    labels = [found[_OBJECTIVE][place].labels for place, _ in rows]
    cells = [found[_OBJECTIVE][place].cells[cell] for place, cell in rows]
    columns = [Column(name, [label_text(label[name]) for label in labels]) for name in labels[0]]
    columns.append(Column("policy", [cell.policy for cell in cells], left=True))
    columns.append(Column("slack", [label_text(cell.slack) for cell in cells], "ms"))
    for name, all_points in found.items():
        bounds = [t_interval(all_points[place].values[cell], 0.95)[:3] for place, cell in rows]
        title, unit = str(ds[name].attrs["long_name"]), unit_text(str(ds[name].attrs["units"]))
        columns.append(estimates(title, [[float(end) for end in ends] for ends in bounds], unit))
    return columns


def reason_table(ds: xr.Dataset, reasons: Sequence[str]) -> str:
    """Return how many requests of a replay went for each reason, and how long those waited."""
    lost = ds["lost"].values if "lost" in ds else np.zeros(ds.sizes["request"], np.bool_)
    named = np.where(lost, _LOST, ds["route_reason"].values)
    waits = {
        reason: ds["queue_wait_ms"].values[named == reason] for reason in (*reasons, *([_LOST] if lost.any() else []))
    }
    total = max(ds.sizes["request"], 1)
    return table(
        [
            Column("reason", list(waits), left=True),
            number_column("requests", [len(found) for found in waits.values()]),
            number_column("share", [100 * len(found) / total for found in waits.values()], "%"),
            number_column(
                "mean queue wait", [found.mean() if len(found) else math.nan for found in waits.values()], "ms"
            ),
        ]
    )


def request_table(ds: xr.Dataset, requests: Requests, slack: float, limit: int) -> str:
    """Return the first `limit` requests of a replay, each with where it went and why."""
    from sweep.explain import explain_requests

    first = ds.isel(request=slice(limit))
    columns = [Column("request", [label_text(label) for label in first["request_id"].values])]
    columns.append(number_column("arrival", first["arrival_ms"].values, "ms"))
    for name in ("session", "prefix"):
        ids = getattr(requests, name)[:limit]
        if (ids >= 0).any():
            labels = getattr(requests, f"{name}_labels")
            columns.append(Column(name, ["-" if i < 0 else label_text(labels[i]) for i in ids]))
    if "tokens" in first:
        columns.append(number_column("size", first["tokens"].values, "tokens"))
    columns.append(Column("replica", ["-" if r < 0 else str(r) for r in first["replica_id"].values.tolist()]))
    columns.append(number_column("wait", first["queue_wait_ms"].values, "ms"))
    if "effective_service_ms" in first:
        columns.append(number_column("served in", first["effective_service_ms"].values, "ms"))
        columns.append(Column("cached", ["yes" if hit else "" for hit in first["cache_hit"].values]))
    reasons = first["route_reason"].values
    if "lost" in first:
        reasons = np.where(first["lost"].values, _LOST, reasons)
    columns.append(Column("reason", [str(reason) for reason in reasons], left=True))
    if "finish_ms" in ds:
        columns.append(Column("why (waits in ms)", explain_requests(ds, requests, slack, limit), left=True))
    return table(columns)


def rule_text(rule: Rule, width: int) -> str:
    """Return a catalogue entry as a paragraph of at most `width` columns."""
    parameters = [f"{name}={shown(spec.default)} ({spec.sentence})" for name, spec in rule.parameters.items()]
    if rule.reads_slack:
        parameters.insert(0, "slack (the dimension of that name)")
    facts = {
        "parameters": ", ".join(parameters) or "none",
        "signals": rule.signals,
        "ties": rule.ties,
        "engines": ", ".join(rule.engines),
        "reasons": ", ".join(rule.reasons),
        "source": rule.source,
    }
    lines = [rule.name, *textwrap.wrap(rule.sentence, width, initial_indent="  ", subsequent_indent="  ")]
    for name, fact in facts.items():
        lines += textwrap.wrap(fact, width, initial_indent=f"    {name:<12}", subsequent_indent=" " * 16)
    return "\n".join(lines)
