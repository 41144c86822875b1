"""What slack and which cache buy on recorded traffic, for each public trace that is here.

``python studies/real_traces.py [options]`` is ``sweep study real_traces [options]``. Traces are looked for in the
folder that ``SWEEP_TRACES`` names, then in ``traces`` and ``../shared/traces``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

import sweep
from sweep import plots, shaping, tables
from sweep.analysis import interval, recommend
from sweep.console import Column, label_text, table
from sweep.report import Picture, Section, facts_of, replacing, write_report
from sweep.traces import report, statistics

POLICIES = ("round_robin", "queue_aware", "locality_aware")
WAIT, VARIANCE = "p99_queue_wait_ms", "load_variance"
REPLICAS = 8
#: Capacity of a replica, as a share of the different blocks of the trace; None = unbounded.
SHARES = (0.005, 0.05, 0.2, None)
#: Slack, in mean service times.
SLACKS = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0)
#: Where a trace is, and the mean load that it is sped up or slowed down to: RAGPulse's days peak at three times it.
TRACES = {
    "Mooncake conversation": ("mooncake/conversation_trace.jsonl", 0.8),
    "RAGPulse": ("ragpulse/0_trace.jsonl", 0.3),
    "kv-cache-tester, ten small sessions": ("kv-cache-tester", 0.8),
    "BurstGPT 3, first 400 rows": ("burstgpt/BurstGPT_3_first400.csv", 0.8),
    "Azure 2023 conversation": ("azure/AzureLLMInferenceTrace_conv.csv", 0.8),
}


class Result(NamedTuple):
    """A trace as it was simulated: its name, its stream, the result over seeds, and that of the trace itself."""

    name: str
    requests: sweep.Requests
    ds: xr.Dataset
    own: xr.Dataset

    @property
    def across(self) -> str:
        """Return the dimension along which something is chosen."""
        return "cache_blocks" if "cache_blocks" in self.ds.dims else "heterogeneity"


def main(
    output: Path = Path("reports/real_traces"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study on every trace found, print what to choose, and write pictures and report to `output`."""
    count = seeds if seeds is not None else 4 if quick else 32
    results = [simulated(name, path, load, count, quick, workers, progress) for name, path, load in found()]
    for result in results:
        print(f"\n{result.name}\n")
        print(table(choices(result)))
        print("\n" + conclusion(result))
    with replacing(output) as new:
        for result in results:
            sweep.write(result.ds, new / f"{slug(result)}.zarr")
        write_report(
            new,
            "Recorded traffic: what do slack and cache size buy?",
            "Requests of a trace share prompts with those before them. How much queue wait is it worth to send a "
            "request where its prompt is cached, when caches are finite?",
            [f"{result.name}. {conclusion(result)}" for result in results],
            [section for result in results for section in sections(result)],
            facts_of(results[0].ds),
        )
    print(f"\nWrote {output}: report.html, its pictures and one Dataset per trace.")


def found() -> Iterator[tuple[str, Path, float]]:
    """Yield the traces that are here, each with its load."""
    places = [os.environ.get("SWEEP_TRACES"), "traces", Path(__file__).parents[2] / "shared" / "traces"]
    folder = next((Path(place) for place in places if place and Path(place).is_dir()), None)
    here = [(name, folder / path, load) for name, (path, load) in TRACES.items() if folder and (folder / path).exists()]
    if not here:
        raise sweep.InputError(
            "No public trace is here; put some into the folder 'traces', or name a folder in SWEEP_TRACES "
            f"({', '.join(path for path, _ in TRACES.values())})."
        )
    yield from here


def simulated(
    name: str, path: Path, load: float, seeds: int, quick: bool, workers: int | None, progress: bool
) -> Result:
    """Return a trace sped up or slowed down to a load, simulated over resampled seeds."""
    requests = sweep.traces.read(path)
    requests = shaping.rate_scaled(requests, float(f"{load / requests.offered_load(REPLICAS):.3g}"))
    mean = float(requests.service_ms.mean())
    blocks = requests.blocks
    settings: dict[str, Any] = {
        "policy": POLICIES,
        "slack": [round_number(mean * factor) for factor in (SLACKS[::3] if quick else SLACKS)],
        "workers": workers,
        "progress": progress,
    }
    if blocks is not None:
        shares = SHARES[1::2] if quick else SHARES
        settings["cache_blocks"] = [share and max(1.0, round_number(blocks.distinct * share)) for share in shares]
    # Without blocks no capacity matters, and unequal replicas are what policies differ on.
    fleet = sweep.Fleet.one_slow(REPLICAS, [0.0] if blocks is not None else [0.0, 0.2, 0.4, 0.6])
    fixed = sweep.Workload.fixed(requests)
    whole = blocks is not None or requests.session_count
    work = sweep.Workload.resampled(requests) if whole else fixed
    own = sweep.run(fixed, fleet, seed=1, **settings)
    ds = sweep.run(work, fleet, seed=seeds, **settings) if whole else own
    return Result(name, requests, ds, own)


def round_number(value: float) -> float:
    """Return a number with one digit that counts."""
    return float(f"{value:.0e}")


def choices(result: Result) -> list[Column]:
    """Return what to choose at each capacity, how good it is and what it reuses."""
    chosen = recommend(result.ds, WAIT)
    columns = tables.chosen_cells(result.ds, chosen, WAIT)
    if result.across == "cache_blocks":
        columns = [column for column in columns if column.title != "heterogeneity"]
    if "block_hit_rate" in result.ds:
        rows = [interval(at(result.ds, row), "block_hit_rate") for row in chosen.to_dict("records")]
        columns.append(tables.estimates("block hit rate", [bounds(row) for row in rows]))
        rows = [
            interval(at(result.ds, row | {"policy": "round_robin", "slack": math.nan}), "block_hit_rate")
            for row in chosen.to_dict("records")
        ]
        columns.append(tables.estimates("round_robin's", [bounds(row) for row in rows]))
    return columns


def at(ds: xr.Dataset, row: Mapping[Any, Any]) -> xr.Dataset:
    """Return the cell of a recommendation."""
    cell = ds.sel(policy=row["policy"], heterogeneity=row["heterogeneity"])
    if "cache_blocks" in ds.dims:
        cell = cell.sel(cache_blocks=row["cache_blocks"])
    return cell.isel(slack=0) if pd.isna(row["slack"]) else cell.sel(slack=row["slack"])


def bounds(estimate: xr.Dataset) -> list[float]:
    """Return mean, lower and upper bound of an interval."""
    return [float(estimate[name]) for name in ("mean", "lower", "upper")]


def agreement(result: Result) -> list[Column]:
    """Return the trace's own figures beside the means over its resampled seeds."""
    rows = []
    for name in ("request_count", "block_hit_rate", "token_hit_rate", WAIT, VARIANCE):
        if name not in result.ds:
            continue
        for policy in ("round_robin", "locality_aware"):
            cell = {"policy": policy, "heterogeneity": 0.0}
            if "cache_blocks" in result.ds.dims:
                cell["cache_blocks"] = math.inf
            own, many = (ds.sel(cell).isel(slack=len(result.ds.slack) // 2) for ds in (result.own, result.ds))
            rows.append((name, policy, float(own[name].mean()), bounds(interval(many, name))))
    return [
        Column("quantity", [result.ds[row[0]].attrs["long_name"] for row in rows], left=True),
        Column("policy", [row[1] for row in rows], left=True),
        Column("the trace itself", [tables.estimate(row[2], math.nan, math.nan) for row in rows]),
        tables.estimates("resampled", [row[3] for row in rows]),
    ]


def conclusion(result: Result) -> str:
    """Return the result of a trace as a paragraph."""
    ds, requests = result.ds, result.requests
    chosen = recommend(ds, WAIT)
    row = chosen.to_dict("records")[-1]
    said = [
        f"{len(requests):,} requests on {REPLICAS} replicas at an offered load of "
        f"{requests.offered_load(REPLICAS):.2f} (before any reuse)."
    ]
    columns = {column.title: column.cells for column in choices(result)}
    for index, (size, policy, slack) in enumerate(
        zip(chosen[result.across], chosen["policy"], chosen["slack"], strict=True)
    ):
        where = "Unbounded caches: " if math.isinf(size) else f"{size:,.0f} blocks a replica: "
        if result.across == "heterogeneity":
            where = f"Heterogeneity {size:g} (one slow replica): "
        waits = next(cells for title, cells in columns.items() if title.startswith("P99"))
        text = f"{where}{policy}" + ("" if pd.isna(slack) else f" with a slack of {label_text(slack)} ms")
        text += f", P99 queue wait {waits[index]} ms"
        if policy != "round_robin":
            text += f", {columns['ratio to round_robin'][index]} times round_robin's"
        if "block hit rate" in columns:
            other = columns["round_robin's"][index]
            text += f"; {columns['block hit rate'][index]} of the blocks reused against {other}"
        said.append(text + ".")
    if ds.sizes["seed"] == 1:
        said.append("The trace has neither sessions nor blocks to draw as a whole: one stream, and no interval.")
    elif row["policy"] and len(row["tied"]) > 1:
        said.append(
            f"At the last of these, {len(row['tied'])} cells cannot be told apart; the smallest slack is given."
        )
    said.append(
        "Left out: batching (a request has its replica to itself), what decoding holds in memory, and users who would "
        "wait or give up."
    )
    return " ".join(said)


def sections(result: Result) -> list[Section]:
    """Return the parts of the report about one trace."""
    ds = result.ds
    reuse = ("block_hit_rate",) if "block_hit_rate" in ds else ()
    name = slug(result)
    parts = [
        Section(
            result.name,
            [*report(result.requests), "Over time, as it is simulated:"],
            picture=Picture(
                f"{name}-arrivals", statistics.picture(result.requests), "Arrival rate and lengths over time"
            ),
        ),
        Section(
            f"{result.name}: what to choose",
            ["The smallest slack among the cells whose P99 queue wait cannot be told from the best one."],
            [choices(result)],
            Picture(
                f"{name}-map",
                plots.heatmaps(ds, (*reuse, WAIT, VARIANCE), WAIT, across=result.across),
                "Heatmaps of reuse, P99 queue wait and load variance over slack and cache capacity",
            ),
        ),
    ]
    if ds.sizes["seed"] > 1:
        slack = label_text(float(ds.slack[len(ds.slack) // 2]))
        parts.append(
            Section(
                f"{result.name}: does drawing sessions or families shift the figures?",
                [
                    "Each seed draws whole sessions, or families of requests that share blocks, with replacement, at "
                    "their own times. Reuse agrees with the trace's own. Waits do not: copies of a unit arrive at the "
                    "same moments, so that arrivals are burstier and queues longer than in the trace. Take the "
                    "differences between policies and capacities from here, and the level from the trace. "
                    f"locality_aware with a slack of {slack} ms, unbounded caches."
                ],
                [agreement(result)],
            )
        )
    return parts


def slug(result: Result) -> str:
    """Return the name of a trace for files."""
    return result.name.split(",")[0].lower().replace(" ", "-")


if __name__ == "__main__":
    from sweep.cli import main as command

    command(["study", "real_traces", *sys.argv[1:]])
