"""When the least loaded replica is the wrong one: freshness of the view, local correction, several routers.

``python studies/herd.py [options]`` is ``sweep study herd [options]``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import sweep
from sweep import plots, tables
from sweep.analysis import interval
from sweep.console import Column, label_text, table
from sweep.plots.maps import axis_map, crossing, unfolded
from sweep.report import Picture, Section, facts_of, replacing, write_report

REPLICAS, UTILISATION, SERVICE_MS = 8, 0.8, 10.0
WAIT, TAIL = "mean_queue_wait_ms", "p99_queue_wait_ms"
FRESHNESS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0)
LEAST, CORRECTED, TWO, WEIGHTED, RANDOM = (
    "least load",
    "least load, corrected",
    "power of two",
    "weighted random",
    "random",
)
#: Each policy as a label to be completed with the freshness.
RULES = {
    LEAST: "least_load(signal=requests, freshness_ms={})",
    CORRECTED: "least_load(signal=requests, correction=own, freshness_ms={})",
    TWO: "power_of_d(signal=requests, freshness_ms={})",
    WEIGHTED: "weighted_random(signal=requests, freshness_ms={})",
}
ROUTERS = (1, 2, 4, 8)


def main(
    output: Path = Path("reports/herd"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study, print its tables, and write its pictures and report to `output`."""
    requests = 3_000 if quick else 10_000
    freshness = FRESHNESS[::2] if quick else FRESHNESS
    count = seeds if seeds is not None else 8 if quick else 64
    common: dict[str, Any] = {
        "requests": requests,
        "utilisation": UTILISATION,
        "replicas": REPLICAS,
        "mean_service_ms": SERVICE_MS,
    }
    traffics = {
        "Poisson arrivals": sweep.Workload.poisson(**common),
        "batches of 8": sweep.Workload.poisson(**common, batch=8),
        "bursts": sweep.Workload.bursty(**common, peak_to_mean=1.2, burst_ms=500.0, burst_share=0.5),
    }
    fleet = sweep.Fleet.fixed([1.0] * REPLICAS)

    def run(work: sweep.Workload, rules: dict[str, str]) -> xr.Dataset:
        policies = [sweep.Policy.parse(rule.format(value)) for rule in rules.values() for value in freshness]
        ds = sweep.run(work, fleet, policy=[*policies, "random"], seed=count, workers=workers, progress=progress)
        last = ds.isel(policy=[-1] * len(freshness))
        rows = unfolded(ds.isel(policy=slice(-1)), list(rules), "freshness", freshness, "freshness of the view [ms]")
        return xr.concat(
            [rows, unfolded(last, [RANDOM], "freshness", freshness, "freshness of the view [ms]")],
            "policy",
            combine_attrs="override",
        )

    found = {name: run(work, RULES) for name, work in traffics.items()}
    many = {
        f"{routers} router{'s' if routers > 1 else ''}": RULES[CORRECTED].replace("own", f"own, routers={routers}")
        for routers in ROUTERS
    }
    shared = run(traffics["Poisson arrivals"], many)
    crossings = crossing_columns(found)
    parts = sections(found, shared, crossings)
    print(f"Least load on a stale view becomes worse at a freshness of\n\n{table(crossings)}\n")
    print(f"Mean queue wait, Poisson arrivals\n\n{table(wait_columns(found['Poisson arrivals']))}\n")
    said = answer(found["Poisson arrivals"], shared)
    print("\n".join(said))
    with replacing(output) as new:
        write_report(
            new,
            "When does the least loaded replica become the wrong one?",
            "Routers see loads as they were at the last report. All requests between two reports see the same least "
            "loaded replica and run to it together. How old may a view be before a rule that looks at less is better?",
            said,
            parts,
            facts_of(sweep.run(traffics["Poisson arrivals"], fleet, policy="random", seed=1))
            | {
                "Sample": f"n = {count:,} seeds of {requests:,} requests",
                "Policies": "; ".join(rule.format("T") for rule in RULES.values()),
            },
        )
    print(f"\nWrote {output}: report.html and its pictures.")


def answer(ds: xr.Dataset, shared: xr.Dataset) -> list[str]:
    """Return the result in a few sentences."""
    oldest = float(ds["freshness"].max())

    def at(data: xr.Dataset, policy: str, freshness: float) -> str:
        row = interval(data, WAIT).sel(policy=policy, freshness=freshness)
        return tables.estimate(*(row[name].item() for name in ("mean", "lower", "upper")))

    places = {other: place(ds, other) for other in (RANDOM, TWO, WEIGHTED)}
    return [
        f"Least load on a view refreshed every T ms becomes worse than weighted random at T = {places[WEIGHTED]} ms, "
        f"than power of two at {places[TWO]} ms and than random at {places[RANDOM]} ms [95 % intervals over "
        f"n = {ds.sizes['seed']:,} seeds]; the mean service takes {SERVICE_MS:g} ms.",
        f"At T = {oldest:g} ms it waits {at(ds, LEAST, oldest)} ms on average; adding its own dispatches to the view "
        f"brings that back to {at(ds, CORRECTED, oldest)} ms, against {at(ds, LEAST, 0.0)} ms live and "
        f"{at(ds, RANDOM, 0.0)} ms at random.",
        f"Own dispatches are less of the load with more routers: at T = {oldest:g} ms, {ROUTERS[-1]} routers that each "
        f"correct for their own wait {at(shared, f'{ROUTERS[-1]} routers', oldest)} ms, one waits "
        f"{at(shared, '1 router', oldest)} ms.",
    ]


def crossing_columns(found: dict[str, xr.Dataset]) -> list[Column]:
    """Return where least load comes to be worse than each other policy, per traffic."""
    columns = [Column("traffic", list(found), left=True)]
    for other in (WEIGHTED, TWO, RANDOM):
        columns.append(Column(f"than {other}", [place(ds, other) for ds in found.values()], "ms"))
    return columns


def place(ds: xr.Dataset, other: str) -> str:
    """Return the freshness at which least load comes to be worse than another policy, in words.

    Between a live view and the newest one that is stale there is nothing to interpolate: requests of one instant tell
    apart the one from the other, however new the latter.
    """
    found = crossing(ds, WAIT, "freshness", LEAST, other)
    newest = float(np.sort(ds["freshness"].values)[1])
    return f"below {newest:g}" if found[0] < newest else tables.estimate(*found)


def wait_columns(ds: xr.Dataset) -> list[Column]:
    """Return the mean wait over freshness, a column per policy."""
    means = interval(ds, WAIT)
    columns = [Column("freshness", [label_text(value) for value in ds["freshness"].values], "ms")]
    for policy in ds["policy"].values:
        rows = zip(*(means[name].sel(policy=policy).values.ravel() for name in ("mean", "lower", "upper")), strict=True)
        columns.append(tables.estimates(str(policy), rows, "ms"))
    return columns


def sections(found: dict[str, xr.Dataset], shared: xr.Dataset, crossings: Sequence[Column]) -> list[Section]:
    """Return the parts of the report."""
    parts = [
        Section(
            "Where least load comes to be worse",
            [
                "The freshness at which the mean wait of least load passes that of another policy on the same stream, "
                "interpolated seed by seed; mean [95 % interval]. Requests of a batch arrive at one instant, so that "
                "any report is too old for the second one. Bursts alternate between 1.2 and 0.8 of the mean rate."
            ],
            [crossings],
        )
    ]
    for number, (name, ds) in enumerate({**found, "several routers, Poisson arrivals": shared}.items()):
        parts.append(
            Section(
                name[:1].upper() + name[1:],
                ["Means over seeds [95 % interval]. Freshness 0 is a live view."],
                [wait_columns(ds)],
                Picture(
                    f"map{number}",
                    axis_map(
                        ds,
                        "freshness",
                        (WAIT, TAIL),
                        against=RANDOM,
                        names={0.0: "live"},
                        title=f"Queue wait over the freshness of the view, {name}",
                    ),
                    f"Heatmaps of mean and P99 queue wait over freshness and policy, {name}",
                ),
            )
        )
        curve = ds.isel(freshness=slice(1, None))
        parts.append(
            Section(
                f"{name[:1].upper() + name[1:]}, as curves",
                picture=Picture(
                    f"curve{number}",
                    plots.lines(curve, "freshness", (WAIT, TAIL), title=f"Queue wait against freshness, {name}"),
                    f"Mean and P99 queue wait against freshness, one line per policy, {name}",
                ),
            )
        )
    return parts


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "herd", *sys.argv[1:]])
