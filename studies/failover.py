"""A replica goes down: what is lost, what is sent again, and how long until the tail is back, over heartbeats.

``python studies/failover.py [options]`` is ``sweep study failover [options]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xarray as xr

import sweep
from sweep import plots, tables
from sweep.analysis import interval
from sweep.console import Column, label_text, table
from sweep.plots.maps import axis_map, unfolded
from sweep.report import Picture, Section, facts_of, replacing, write_report

REPLICAS, UTILISATION, SERVICE_MS = 8, 0.6, 10.0
DOWN_MS, BACK_MS = 3_000.0, 6_000.0
MISSES = 3
HEARTBEATS = (10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
RECOVERY, LOST, RETRIED = "recovery_ms", "lost_requests", "retried_requests"
RULES = {
    "round robin": "round_robin",
    "power of two": "power_of_d(signal=requests)",
    "least load": "least_load(signal=requests)",
    "sticky session": "sticky_session(signal=requests)",
    "consistent hash": "consistent_hash(signal=requests)",
}


def main(
    output: Path = Path("reports/failover"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study, print its tables, and write its pictures and report to `output`."""
    heartbeats = HEARTBEATS[::2] if quick else HEARTBEATS
    count = seeds if seeds is not None else 16 if quick else 128
    work = sweep.Workload.poisson(
        requests=7_000, utilisation=UTILISATION, replicas=REPLICAS, mean_service_ms=SERVICE_MS, sessions=400
    )

    def run(retries: int) -> xr.Dataset:
        parts = []
        for heartbeat in heartbeats:
            fleet = sweep.Fleet.fixed([1.0] * REPLICAS).with_events(
                [sweep.Down(0, DOWN_MS, BACK_MS)], heartbeat_ms=heartbeat, misses=MISSES, retries=retries
            )
            parts.append(
                sweep.run(
                    work, fleet, policy=list(RULES.values()), seed=count, workers=workers, progress=progress
                ).drop_dims("reason")
            )
        return unfolded(
            xr.concat(parts, "policy", combine_attrs="override").isel(policy=order(len(heartbeats))),
            list(RULES),
            "heartbeat",
            heartbeats,
            "heartbeat [ms]",
        )

    again, never = run(1), run(0)
    parts = [
        Section(
            "Recovery and work sent again, one retry",
            [
                f"Means over n = {count:,} seeds [95 % interval]; {recovered(again)} Recovery is counted from the "
                "detection on. Each policy is held against its own P95 wait before the failure: the shorter that was, "
                "the less of a wait is 10 % more."
            ],
            [columns(again, RECOVERY, "recovery"), columns(again, RETRIED, "sent again")],
            Picture(
                "map",
                axis_map(again, "heartbeat", (RECOVERY, RETRIED), title="One replica of eight goes down, one retry"),
                "Heatmaps of recovery time and retried requests over heartbeat and policy",
            ),
        ),
        Section(
            "As curves",
            picture=Picture(
                "curve",
                plots.lines(again, "heartbeat", (RECOVERY, RETRIED), title="One replica of eight goes down"),
                "Recovery time and retried requests against the heartbeat, one line per policy",
            ),
        ),
        Section(
            "Without a retry: lost requests",
            ["Every request that the failed replica held or was sent until the failure was detected is lost."],
            [columns(never, LOST, "lost")],
            Picture(
                "lost",
                axis_map(
                    never, "heartbeat", (LOST, "misrouted_requests"), title="One replica of eight goes down, no retry"
                ),
                "Heatmaps of lost and misrouted requests over heartbeat and policy",
            ),
        ),
    ]
    for part in parts:
        for shown in part.tables:
            print(f"{part.title}\n\n{table(shown)}\n")
    said = answer(again, never)
    print("\n".join(said))
    with replacing(output) as new:
        write_report(
            new,
            "A replica goes down: what does it cost?",
            f"One of {REPLICAS} replicas is down from {DOWN_MS / 1000:g} to {BACK_MS / 1000:g} s. Routers learn of it "
            f"{MISSES} heartbeats later. What does the time until then cost under each policy?",
            said,
            parts,
            facts_of(sweep.run(work, sweep.Fleet.fixed([1.0] * REPLICAS), policy="random", seed=1))
            | {
                "Sample": f"n = {count:,} seeds of 7,000 requests",
                "Policies": "; ".join(RULES.values()),
                "Events": f"Down(0, {DOWN_MS:g}, {BACK_MS:g}), misses = {MISSES}",
            },
        )
    print(f"\nWrote {output}: report.html and its pictures.")


def order(heartbeats: int) -> list[int]:
    """Return the places of (heartbeat, policy) results in the order (policy, heartbeat)."""
    return [policy + len(RULES) * place for policy in range(len(RULES)) for place in range(heartbeats)]


def recovered(ds: xr.Dataset) -> str:
    """Return how many runs never recovered, in words."""
    never = int(np.isnan(ds[RECOVERY].values).sum())
    total = ds[RECOVERY].size
    return (
        f"{never:,} of {total:,} runs never recovered and have no recovery time." if never else "every run recovered."
    )


def answer(again: xr.Dataset, never: xr.Dataset) -> list[str]:
    """Return the result in a few sentences."""

    def at(ds: xr.Dataset, var: str, policy: str, heartbeat: float) -> str:
        row = interval(ds, var).sel(policy=policy, heartbeat=heartbeat)
        return tables.estimate(*(row[name].item() for name in ("mean", "lower", "upper")))

    short, long = (float(again["heartbeat"].values[at]) for at in (0, -1))
    means = interval(never, LOST)["mean"].sel(heartbeat=long).squeeze()
    ranked = [str(means["policy"].values[place]) for place in np.argsort(means.values)]
    worst, best = ranked[-1], ranked[0]
    return [
        f"With a heartbeat of {long:g} ms {worst} loses {at(never, LOST, worst, long)} of 7,000 requests when there is "
        f"no retry, {best} {at(never, LOST, best, long)}; with {short:g} ms they lose {at(never, LOST, worst, short)} "
        f"and {at(never, LOST, best, short)} [95 % intervals over n = {again.sizes['seed']:,} seeds].",
        f"With one retry {int(again[LOST].sum()):,} of {again[LOST].size * 7_000:,} requests are lost. The P95 wait is "
        f"back within 10 % {at(again, RECOVERY, best, long)} ms after the detection under {best} and "
        f"{at(again, RECOVERY, worst, long)} ms under {worst} with the heartbeat of {long:g} ms; with {short:g} ms it "
        f"is back within {SERVICE_MS:g} ms in {soon(again, worst, short)} of the runs under {worst}.",
    ]


def soon(ds: xr.Dataset, policy: str, heartbeat: float) -> str:
    """Return in how many runs the wait was back to normal a service time after the detection, in words."""
    found = ds[RECOVERY].sel(policy=policy, heartbeat=heartbeat).values.ravel()
    return f"{int((found <= SERVICE_MS).sum())} of {found.size}"


def columns(ds: xr.Dataset, var: str, title: str) -> list[Column]:
    """Return a variable over heartbeats, a column per policy."""
    means = interval(ds, var)
    unit = "ms" if var.endswith("_ms") else ""
    found = [Column("heartbeat", [label_text(value) for value in ds["heartbeat"].values], "ms")]
    for policy in RULES:
        rows = zip(*(means[name].sel(policy=policy).values.ravel() for name in ("mean", "lower", "upper")), strict=True)
        found.append(tables.estimates(f"{title}, {policy}", rows, unit))
    return found


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "failover", *sys.argv[1:]])
