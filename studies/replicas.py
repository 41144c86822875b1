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

ROUND_ROBIN, QUEUE_AWARE, LOCALITY = POLICIES = ("round_robin", "queue_aware", "locality_aware")
THROUGHPUT, WAIT, HITS, LOAD = "throughput_requests_per_s", "p99_queue_wait_ms", "cache_hit_rate", "max_offered_load"
#: Small and about what the trade-off study recommends for four replicas under this traffic.
SLACKS_MS = (5.0, 15.0)
#: How much slower the slow replica is than the others, where there is one.
UNEQUAL = 0.5
#: The fixed traffic keeps this many replicas of speed 1 busy, before any cache hit.
BUSY = 3.6


def main(
    output: Path = Path("reports/replicas"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study, print its tables, and write its pictures and report to `output`."""
    each = 100 if quick else 500
    count = seeds if seeds is not None else 32 if quick else 128

    def along(counts: Sequence[int], heterogeneity: float, work: Callable[[int], sweep.Workload]) -> xr.Dataset:
        """Join one run per number of replicas; the policy with each slack is a policy of its own."""
        parts = [
            by_slack(
                sweep.run(
                    work(replicas),
                    sweep.Fleet.one_slow(replicas=replicas, heterogeneity=heterogeneity),
                    policy=POLICIES,
                    slack=SLACKS_MS,
                    seed=count,
                    workers=workers,
                    progress=progress,
                )
            )
            for replicas in counts
        ]
        return xr.concat(parts, pd.Index(counts, name="replicas"), combine_attrs="override")

    def growing(replicas: int) -> sweep.Workload:
        n = each * replicas
        return sweep.Workload.poisson(
            requests=n, utilisation=0.9, replicas=replicas, mean_service_ms=10.0, sessions=n // 4, prefixes=n // 4
        )

    def constant(replicas: int) -> sweep.Workload:
        return sweep.Workload.poisson(
            requests=4 * each, rate_per_s=100 * BUSY, mean_service_ms=10.0, sessions=each, prefixes=each
        )

    many = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16, 32)
    few = (3, 4, 6) if quick else (2, 3, 4, 5, 6, 8)
    fixed, equal, unequal = along(few, 0.0, constant), along(many, 0.0, growing), along(many, UNEQUAL, growing)
    parts = [
        section(
            "The same traffic on more replicas",
            "fixed",
            fixed,
            f"{4 * each:,} requests at {100 * BUSY:g} per second; without a cache hit they keep {BUSY:g} replicas "
            "busy.",
        ),
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
            f"The same with one replica at {1 - UNEQUAL:g} times the speed of the others and the total speed "
            "unchanged.",
        ),
    ]
    for part in parts:
        print(f"{part.title}\n")
        for columns in part.tables:
            print(f"{table(columns)}\n")
    said = answer(fixed, equal)
    print("\n".join(said))
    with replacing(output) as new:
        write_report(
            new,
            "How many replicas, under which policy?",
            "What does another replica buy in throughput and in the slowest 1 % of waits, and how much of that would "
            "another policy have bought?",
            said,
            parts,
            facts_of(fixed)
            | {"Workload": "as said with each table", "Slack [ms]": f"{SLACKS_MS[0]:g}, {SLACKS_MS[1]:g}"},
        )
    print(f"\nWrote {output}: report.html and its pictures.")


def by_slack(ds: xr.Dataset) -> xr.Dataset:
    """Return a result with a policy for each slack of the policy that reads it, in place of the dimension slack."""
    ds = ds.drop_dims(["replica", "reason"]).drop_vars("reads_slack")
    parts = [ds.sel(policy=[ROUND_ROBIN, QUEUE_AWARE]).isel(slack=0, drop=True)]
    for slack in SLACKS_MS:
        part = ds.sel(policy=[LOCALITY]).sel(slack=slack, drop=True)
        parts.append(part.assign_coords(policy=[f"{LOCALITY}, slack {slack:g} ms"]))
    return xr.concat(parts, "policy", combine_attrs="override")


def section(title: str, name: str, ds: xr.Dataset, setting: str) -> Section:
    """Return a part of the report: the tables and the picture of one setting."""
    return Section(
        title,
        [
            f"{setting} Means over n = {ds.sizes['seed']:,} seeds [95 % interval]; n.s.: cannot be told from "
            "round_robin on the same streams."
        ],
        tables=[columns(ds, "P99 wait", WAIT, "ms"), columns(ds, "throughput", THROUGHPUT, "requests/s")],
        picture=Picture(
            name,
            plots.lines(ds, "replicas", (THROUGHPUT, WAIT, HITS), title=title),
            "Throughput, P99 queue wait and cache hit rate against the number of replicas, one line per policy",
        ),
    )


def columns(ds: xr.Dataset, title: str, var: str, unit: str) -> list[Column]:
    """Return a variable per number of replicas, a column per policy."""
    means, pairs = interval(ds, var), paired(ds, var)
    found = [Column("replicas", [str(count) for count in ds["replicas"].values])]
    for policy in ds["policy"].values:
        mean, difference = (part.sel(policy=policy) for part in (means, pairs))
        unclear = (difference["lower"] <= 0) & (difference["upper"] >= 0) & (policy != ROUND_ROBIN)
        rows = zip(*(mean[name].values.ravel() for name in ("mean", "lower", "upper")), strict=True)
        cells = [tables.estimate(*row) for row in rows]
        marked = [cell + " n.s." * bool(mark) for cell, mark in zip(cells, unclear.values.ravel(), strict=True)]
        found.append(Column(f"{title} {policy}", marked, unit))
    return found


def answer(fixed: xr.Dataset, equal: xr.Dataset) -> list[str]:
    """Return the result in a few sentences."""
    waits = interval(fixed, WAIT).squeeze("heterogeneity")
    keeps_up = (interval(fixed, LOAD)["mean"] < 1).all("policy").squeeze("heterogeneity")
    enough = [int(count) for count in fixed["replicas"].values if bool(keeps_up.sel(replicas=count))]
    said = []
    if enough:
        here = waits.sel(replicas=enough[0])
        best = here.isel(policy=int(here["mean"].argmin("policy")))
        base = waits.sel(policy=ROUND_ROBIN)
        as_good = [int(count) for count in waits["replicas"].values if base["mean"].sel(replicas=count) <= best["mean"]]
        reach = (
            f"needs {as_good[0]} replicas for as little"
            if as_good
            else f"is slower even with {int(waits['replicas'].max())}"
        )
        said.append(
            f"Under the fixed traffic all policies keep up from {enough[0]} replicas. There {best['policy'].item()} "
            f"has a P99 queue wait of {estimate(best)} ms [95 % interval] against "
            f"{estimate(base.sel(replicas=enough[0]))} ms under round_robin, which {reach}."
        )
    ends = interval(equal, WAIT).squeeze("heterogeneity").isel(replicas=[0, -1])
    first, last = (int(count) for count in ends["replicas"].values)
    grown = [
        f"{estimate(ends.sel(policy=policy, replicas=last))} ms under {policy}" for policy in equal["policy"].values
    ]
    said.append(
        f"When traffic grows with the fleet, from {first} to {last} equal replicas, the P99 wait goes from "
        f"{estimate(ends.sel(policy=ROUND_ROBIN, replicas=first))} ms to {', '.join(grown)}."
    )
    worse = paired(equal, WAIT, QUEUE_AWARE).squeeze("heterogeneity")["lower"] > 0
    for policy in equal["policy"].values[2:]:
        counts = [
            str(int(count)) for count in equal["replicas"].values if bool(worse.sel(policy=policy, replicas=count))
        ]
        if counts:
            said.append(
                f"Slack does not scale with the fleet: {policy} waits longer than queue_aware at {', '.join(counts)} "
                "replicas, where queues are shorter than the slack."
            )
    return said


def estimate(found: xr.Dataset) -> str:
    """Return a single estimate in words."""
    return tables.estimate(*(found[name].item() for name in ("mean", "lower", "upper")))


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "replicas", *sys.argv[1:]])
