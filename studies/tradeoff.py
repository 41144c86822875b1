"""Which policy, with how much slack, at each heterogeneity: tail latency against balance.

``python studies/tradeoff.py [options]`` is ``sweep study tradeoff [options]``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import xarray as xr

import sweep
from sweep import plots, tables
from sweep.analysis import frontier, recommend
from sweep.console import Column, label_text, table
from sweep.report import Picture, Section, facts_of, replacing, write_report

POLICIES = ("round_robin", "queue_aware", "locality_aware")
WAIT, VARIANCE = "p99_queue_wait_ms", "load_variance"


def main(
    output: Path = Path("reports/tradeoff"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study, print what to choose, and write its Dataset, pictures and report to `output`."""
    requests = 500 if quick else 2_000
    work = sweep.Workload.poisson(
        requests=requests, utilisation=0.9, replicas=4, mean_service_ms=10.0, sessions=500, prefixes=500
    )
    heterogeneity = [k / 10 for k in ((0, 3, 6) if quick else range(8))]
    fleet = sweep.Fleet.one_slow(replicas=4, heterogeneity=heterogeneity)

    def run(warmup: int) -> xr.Dataset:
        return sweep.run(
            work,
            fleet,
            policy=POLICIES,
            slack=range(0, 76, 25 if quick else 5),
            seed=seeds if seeds is not None else 32 if quick else 256,
            warmup=warmup,
            workers=workers,
            progress=progress,
        )

    ds, warm = run(0), run(requests // 4)
    chosen = recommend(ds, WAIT)
    print(f"Choose, for the smallest P99 queue wait (mean over n = {ds.sizes['seed']:,} seeds [95 % interval]):\n")
    print(table([*tables.chosen_cells(ds, chosen, WAIT), tables.tied_cells(chosen)]))
    with replacing(output) as new:
        sweep.write(ds, new / "tradeoff.zarr")
        write_report(
            new,
            "Which routing policy, with how much slack?",
            "A request is cheaper where its session or prefix is cached, unless a queue stands in front of it. How "
            "much extra wait is that worth, and does it depend on how unequal the replicas are?",
            answer(ds, warm, chosen),
            sections(ds, warm, chosen),
            facts_of(ds),
        )
    print(f"\nWrote {output}: report.html, its pictures and tradeoff.zarr.")


def answer(ds: xr.Dataset, warm: xr.Dataset, chosen: pd.DataFrame) -> list[str]:
    """Return the result in a few sentences."""
    waits, ratios = (column.cells for column in tables.chosen_cells(ds, chosen, WAIT)[-2:])
    clear = sum(len(labels) == 1 for labels in chosen["tied"])
    return [
        f"Choose {in_words(chosen)}.",
        f"The P99 queue wait is then {waits[0]} ms at the first and {waits[-1]} ms at the last heterogeneity, "
        f"{ratios[0]} and {ratios[-1]} times that of round_robin (means over n = {ds.sizes['seed']:,} seeds [95 % "
        "intervals]).",
        f"At {clear} of {len(chosen)} heterogeneities one cell stands alone; at the others several cannot be told "
        "apart, and the smallest slack among them is given. Without the first quarter of the requests, when caches are "
        f"cold, the same rule gives {in_words(recommend(warm, WAIT))}.",
    ]


def in_words(chosen: pd.DataFrame) -> str:
    """Return a recommendation in words, one part per policy."""
    parts = []
    for policy, group in chosen.groupby("policy", sort=False):
        slacks = sorted({float(slack) for slack in group["slack"].dropna()})
        ends = " to ".join(dict.fromkeys(label_text(slack) for slack in slacks[:1] + slacks[-1:]))
        where = ", ".join(label_text(value) for value in group["heterogeneity"])
        parts.append(f"{policy}{f' with a slack of {ends} ms' if ends else ''} at heterogeneity {where}")
    return "; ".join(parts) or "nothing, since no cell has a value"


def sections(ds: xr.Dataset, warm: xr.Dataset, chosen: pd.DataFrame) -> list[Section]:
    """Return the parts of the report."""
    columns = tables.chosen_cells(ds, chosen, WAIT)
    return [
        Section(
            "What to choose",
            [
                "At each heterogeneity, the smallest slack among the cells whose P99 queue wait cannot be told from "
                "the best one. The ratio compares it with round_robin on the same streams; n.s. marks one that could "
                "be 1."
            ],
            [[*columns, Column("how sure", list(chosen["certainty"]), left=True)]],
        ),
        Section(
            "The map",
            ["Balance on the left, tail latency on the right. A policy that reads no slack is one strip."],
            picture=Picture(
                "heatmaps", plots.heatmaps(ds), "Heatmaps of load variance and P99 queue wait of every cell"
            ),
        ),
        Section(
            "What another choice costs",
            ["The same waits, as a surplus over the best cell of each heterogeneity."],
            picture=Picture(
                "excess", plots.excess(ds), "Heatmap of the P99 queue wait above the best cell, in percent"
            ),
        ),
        Section(
            "Tail latency against balance",
            ["The table holds the cells that no other cell beats in both. Read the curves along slack, from 0."],
            [tables.frontier_cells(ds, frontier(ds, VARIANCE, WAIT))],
            Picture("tradeoff", plots.tradeoff(ds), "Curves of P99 queue wait against load variance, along slack"),
        ),
        Section(
            "What slack buys",
            ["The share of requests that find their prefix cached, and the latency that requests see in the end."],
            picture=Picture(
                "reuse",
                plots.heatmaps(ds, ("cache_hit_rate", "p99_latency_ms")),
                "Heatmaps of cache hit rate and P99 latency of every cell",
            ),
        ),
        Section(
            "Against the other policies",
            [
                "The P99 queue wait of the chosen cell minus that of the policy, seed by seed; n.s. marks an interval "
                "that contains 0. The correlation over seeds is how much of the noise the common streams take out."
            ],
            [[columns[0], *(part for policy in POLICIES[:2] for part in tables.against(ds, chosen, WAIT, policy))]],
        ),
        Section(
            "Does the choice hold up?",
            [
                "The same rule on half of the seeds, where fewer cells can be told apart, so that the slack is rather "
                "smaller; and without the first quarter of the requests, since every run starts with empty queues and "
                "cold caches. Where only the last column differs, the choice depends on how long the traffic stays the "
                "same.",
            ],
            [[columns[0], *(choice(name, recommend(part, WAIT)) for name, part in variants(ds, warm).items())]],
        ),
    ]


def variants(ds: xr.Dataset, warm: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return the results that the choice should not depend on."""
    halves = {"even seeds": ds.isel(seed=slice(0, None, 2)), "odd seeds": ds.isel(seed=slice(1, None, 2))}
    return {"all": ds} | (halves if ds.sizes["seed"] > 1 else {}) | {"without the first quarter": warm}


def choice(title: str, chosen: pd.DataFrame) -> Column:
    """Return the chosen cells in words."""
    cells = [
        f"{policy or '-'}" + ("" if pd.isna(slack) else f", {label_text(slack)} ms")
        for policy, slack in zip(chosen["policy"], chosen["slack"], strict=True)
    ]
    return Column(title, cells, left=True)


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "tradeoff", *sys.argv[1:]])
