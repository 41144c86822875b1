"""Throughput and P99 queue wait against the number of replicas, per policy.

``python studies/replicas.py [options]`` is ``sweep study replicas [options]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import xarray as xr

import sweep
from sweep import plots, tables
from sweep.analysis import interval, paired
from sweep.console import Column, table
from sweep.report import Picture, Section, facts_of, replacing, write_report

POLICIES = ("round_robin", "queue_aware", "locality_aware")
THROUGHPUT, WAIT = "throughput_requests_per_s", "p99_queue_wait_ms"
#: What the trade-off study recommends for four replicas under this traffic.
SLACK_MS = 15.0
#: How much slower the slow replica is than the others, where there is one.
UNEQUAL = 0.5
BOUNDS = ("mean", "lower", "upper")
#: The fixed traffic keeps this many replicas of speed 1 busy, before any cache hit.
FIXED_LOAD = 3.6


def main(
    output: Path = Path("reports/replicas"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study, print its tables, and write its pictures and report to `output`."""
    each = 100 if quick else 500
    count = seeds if seeds is not None else 32 if quick else 256

    def along(counts: Sequence[int], heterogeneity: float, work: Callable[[int], sweep.Workload]) -> xr.Dataset:
        parts = [
            sweep.run(
                work(replicas),
                sweep.Fleet.one_slow(replicas=replicas, heterogeneity=heterogeneity),
                policy=POLICIES,
                slack=SLACK_MS,
                seed=count,
                workers=workers,
                progress=progress,
            ).drop_dims(["replica", "reason"])
            for replicas in counts
        ]
        index = pd.Index(counts, name="replicas")
        return xr.concat(parts, dim=index, combine_attrs="override").transpose("policy", "replicas", ..., "seed")

    def growing(replicas: int) -> sweep.Workload:
        n = each * replicas
        return sweep.Workload.poisson(
            requests=n, utilisation=0.9, replicas=replicas, mean_service_ms=10.0, sessions=n // 4, prefixes=n // 4
        )

    def constant(replicas: int) -> sweep.Workload:
        n = 4 * each
        return sweep.Workload.poisson(
            requests=n, rate_per_s=100 * FIXED_LOAD, mean_service_ms=10.0, sessions=n // 4, prefixes=n // 4
        )

    many = (1, 2, 4, 8) if quick else (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    few = (3, 4, 6) if quick else (2, 3, 4, 5, 6, 8)
    equal, unequal, fixed = along(many, 0.0, growing), along(many, UNEQUAL, growing), along(few, 0.0, constant)
    parts = [
        section(
            "Traffic grows with the fleet, equal replicas",
            "equal",
            equal,
            f"{each} requests per replica at utilisation 0.9 (cache hits not counted), four requests per session.",
        ),
        section(
            "Traffic grows with the fleet, one slow replica",
            "unequal",
            unequal,
            f"The same with one replica at {1 - UNEQUAL:g} times the speed of the others, at the same total speed.",
        ),
        section(
            "The same traffic on more replicas",
            "fixed",
            fixed,
            f"{4 * each:,} requests at {100 * FIXED_LOAD:g} per second, which keep {FIXED_LOAD:g} replicas busy without any "
            "cache hit.",
        ),
    ]
    for part in parts:
        print(f"{part.title}: P99 queue wait\n\n{table(part.table)}\n")
    with replacing(output) as new:
        write_report(
            new,
            "How many replicas, under which policy?",
            "What does another replica buy in throughput and in the slowest 1 % of waits, and how much of it could a better "
            "policy have bought instead?",
            answer(fixed, equal),
            parts,
            facts_of(fixed) | {"Workload": "as said above each table", "Slack [ms]": f"{SLACK_MS:g}"},
        )
    print(f"Wrote {output}: report.html and its pictures.")


def section(title: str, name: str, ds: xr.Dataset, setting: str) -> Section:
    """Return a part of the report: the table and the picture of one setting."""
    return Section(
        title,
        [
            f"{setting} Means over n = {ds.sizes['seed']:,} seeds [95 % interval]; n.s.: the P99 wait cannot be told from that of "
            "round_robin on the same streams."
        ],
        columns(ds),
        Picture(
            name,
            plots.lines(ds, "replicas", (THROUGHPUT, WAIT), title=title),
            "Throughput and P99 queue wait against the number of replicas, one line per policy",
        ),
    )


def columns(ds: xr.Dataset) -> list[Column]:
    """Return P99 queue wait and throughput per number of replicas, a column per policy."""
    found = [Column("replicas", [str(count) for count in ds["replicas"].values])]
    pairs = paired(ds, WAIT)
    for title, var, unit in (("P99 wait", WAIT, "ms"), ("throughput", THROUGHPUT, "requests/s")):
        means = interval(ds, var)
        for policy in POLICIES:
            rows = zip(*(means[name].sel(policy=policy).values.ravel() for name in BOUNDS), strict=True)
            cells = list(tables.estimates(title, rows).cells)
            if var == WAIT and policy != POLICIES[0]:
                low, high = (pairs[name].sel(policy=policy).values.ravel() for name in BOUNDS[1:])
                cells = [cell + (" n.s." if low[row] <= 0 <= high[row] else "") for row, cell in enumerate(cells)]
            found.append(Column(f"{title} {policy}", cells, unit))
    return found


def answer(fixed: xr.Dataset, equal: xr.Dataset) -> list[str]:
    """Return the result in a few sentences."""
    waits = interval(fixed, WAIT)["mean"].squeeze(("slack", "heterogeneity"))
    target = float(waits.sel(policy="locality_aware").max())
    return [f"{target}"]


if __name__ == "__main__":
    from sweep.cli import main as command

    command(["study", "replicas", *sys.argv[1:]])
