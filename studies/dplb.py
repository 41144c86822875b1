"""Round robin against least load over token steps: the published table, then what one run could not say.

``python studies/dplb.py [options]`` is ``sweep study dplb [options]``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import xarray as xr

import sweep
from sweep import plots, tables
from sweep.analysis import interval, paired, ratio
from sweep.console import Column, label_text, table
from sweep.report import Picture, Section, facts_of, replacing, write_report

ROUND_ROBIN, LEAST_LOAD, DISCOUNTED = POLICIES = ("round_robin", "least_load", "least_load(in_service_weight=0.5)")
SPEEDS = (1.0, 0.3, 1.2)
PUBLISHED_SEED = 42
VARIANCE, PEAK, WAIT = "load_variance", "peak_load_variance", "p99_queue_wait_ms"


def main(
    output: Path = Path("reports/dplb"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study, print its three tables, and write its pictures and report to `output`."""
    work = sweep.Workload.dplb_burst()
    count = seeds if seeds is not None else 50 if quick else 1_000
    heterogeneity = [k / 10 for k in ((0, 4, 8) if quick else range(10))]
    equal = sweep.Fleet.one_slow(replicas=len(SPEEDS), heterogeneity=heterogeneity)
    # The total speed of the published fleet, so that along heterogeneity only the inequality changes.
    unequal = sweep.Fleet(equal.speeds * (sum(SPEEDS) / len(SPEEDS)), heterogeneity)

    def run(fleet: sweep.Fleet, seed: int | list[int]) -> xr.Dataset:
        return sweep.run(
            work, fleet, policy=POLICIES, seed=seed, engine="token_step", workers=workers, progress=progress
        )

    one = run(sweep.Fleet.fixed(SPEEDS), [PUBLISHED_SEED])
    many = run(sweep.Fleet.fixed(SPEEDS), count)
    along = run(unequal, count)
    stream = work.realise(PUBLISHED_SEED)
    replays = {
        policy: sweep.simulate(stream, SPEEDS, policy=policy, engine="token_step", seed=PUBLISHED_SEED)
        for policy in POLICIES
    }
    parts = [published(one, replays), over_seeds(many), over_heterogeneity(along)]
    for part in parts:
        print(f"{part.title}\n\n{table(part.tables[0])}\n")
    said = answer(one, many, along)
    print("\n".join(said))
    with replacing(output) as new:
        write_report(
            new,
            "Round robin or least load, when one replica is slow?",
            "The published comparison is one run: a burst of requests onto three replicas, one of them at 0.3 of the "
            "nominal speed. Is its figure typical, and how much of it is that one slow replica?",
            said,
            parts,
            facts_of(many),
        )
    print(f"\nWrote {output}: report.html and its pictures.")


def answer(one: xr.Dataset, many: xr.Dataset, along: xr.Dataset) -> list[str]:
    """Return the result in a few sentences."""
    here = single(ratio(many, VARIANCE).sel(policy=LEAST_LOAD))
    found = ratio(along, VARIANCE).sel(policy=LEAST_LOAD)
    first, last = (single(found.isel(heterogeneity=at)) for at in (0, -1))
    ends = [label_text(along["heterogeneity"].values[at]) for at in (0, -1)]
    low, high = spread(many)
    return [
        f"In the published run least load has a {reduction(one, LEAST_LOAD)} % lower load variance than round robin. "
        f"Over n = {many.sizes['seed']:,} seeds it is {low:.2f} to {high:.2f} % lower (5th to 95th percentile); the "
        f"ratio of the means is {here} [95 % interval].",
        f"The slow replica makes the figure. With the same total speed the ratio is {first} at heterogeneity {ends[0]} "
        f"and {last} at {ends[1]}.",
    ]


def published(one: xr.Dataset, replays: Mapping[str, xr.Dataset]) -> Section:
    """Return the published table, from the run that it shows."""
    loads = one["cumulative_load_tokens"].squeeze().transpose("policy", "replica").values
    columns = [Column("policy", POLICIES, left=True)]
    for replica, (name, speed) in enumerate(zip("ABC", SPEEDS, strict=True)):
        cells = [f"{load:,}" for load in loads[:, replica]]
        columns.append(Column(f"cumulative load {name}, speed {label_text(speed)}", cells, "tokens"))
    for title, var in (("mean variance", VARIANCE), ("peak variance", PEAK)):
        columns.append(Column(title, [f"{value:,.5f}" for value in one[var].values.ravel()], "tokens²"))
    columns.insert(-1, Column("lower than round_robin by", ["-", *(reduction(one, p) for p in POLICIES[1:])], "%"))
    return Section(
        f"The published run: seed {PUBLISHED_SEED}",
        ["Each replica's load (tokens in service and queued) summed over 100 steps, and its variance across replicas."],
        [columns],
        Picture("loads", plots.loads(replays), "Load of each replica over 100 steps under each policy"),
    )


def over_seeds(many: xr.Dataset) -> Section:
    """Return the same comparison over many seeds."""
    base = many[VARIANCE].sel(policy=ROUND_ROBIN, drop=True)
    lower = float((many[VARIANCE].sel(policy=LEAST_LOAD) < base).mean())
    columns = [
        Column("policy", POLICIES, left=True),
        column("mean variance", interval(many, VARIANCE), "tokens²"),
        column("ratio to round_robin", ratio(many, VARIANCE), no_effect=1.0, against=0),
        column("peak variance", interval(many, PEAK), "tokens²"),
        column("P99 queue wait", interval(many, WAIT), "ms"),
    ]
    low, high = spread(many)
    discount = single(paired(many, VARIANCE, LEAST_LOAD).sel(policy=DISCOUNTED))
    return Section(
        f"The same run over {many.sizes['seed']:,} seeds",
        ["Means over seeds [95 % interval]; the ratio is taken on the same streams."],
        [columns],
        after=[
            f"Least load has the lower variance in {100 * lower:.4g} % of the seeds, by {low:.2f} to {high:.2f} % "
            "(5th to 95th percentile). Counting the tokens in service by half changes its mean variance by "
            f"{discount} tokens² on the same streams."
        ],
    )


def over_heterogeneity(along: xr.Dataset) -> Section:
    """Return the comparison along heterogeneity at the total speed of the published fleet."""
    levels, ratios = interval(along, VARIANCE), ratio(along, VARIANCE).sel(policy=LEAST_LOAD)
    discount = paired(along, VARIANCE, LEAST_LOAD).sel(policy=DISCOUNTED)
    columns = [Column("heterogeneity", [label_text(value) for value in along["heterogeneity"].values])]
    for policy in (ROUND_ROBIN, LEAST_LOAD):
        columns.append(column(f"variance {policy}", levels.sel(policy=policy), "tokens²"))
    columns.append(column("ratio", ratios, no_effect=1.0))
    columns.append(column("weight 0.5 minus weight 1", discount, "tokens²", no_effect=0.0))
    return Section(
        f"Over heterogeneity, {along.sizes['seed']:,} seeds",
        [
            "One replica runs at (1 - heterogeneity) times the speed of the others, all scaled to the total speed of "
            f"the published fleet, {sum(SPEEDS):g}. n.s. marks an interval that contains no difference."
        ],
        [columns],
        Picture(
            "heterogeneity",
            plots.lines(along, "heterogeneity", (VARIANCE, WAIT), title="Round robin and least load, one slow replica"),
            "Load variance and P99 queue wait along heterogeneity, one line per policy",
        ),
    )


def spread(many: xr.Dataset) -> tuple[float, float]:
    """Return the 5th and 95th percentile over seeds of least load's reduction of the variance, in percent."""
    ours, base = (many[VARIANCE].sel(policy=policy, drop=True) for policy in (LEAST_LOAD, ROUND_ROBIN))
    low, high = (100 * (1 - ours / base)).quantile([0.05, 0.95]).values
    return float(low), float(high)


def reduction(one: xr.Dataset, policy: str) -> str:
    """Return by how many percent a policy's variance is below that of round robin in one run."""
    value, base = (float(one[VARIANCE].sel(policy=name).squeeze()) for name in (policy, ROUND_ROBIN))
    return f"{100 * (1 - value / base):.1f}"


def single(found: xr.Dataset) -> str:
    """Return a single estimate in words."""
    return tables.estimate(*(found[name].item() for name in ("mean", "lower", "upper")))


def column(
    title: str, found: xr.Dataset, unit: str = "", no_effect: float | None = None, against: int | None = None
) -> Column:
    """Return estimates along one dimension as a column; the row `against` is the baseline itself."""
    rows = zip(*(found[name].values.ravel() for name in ("mean", "lower", "upper")), strict=True)
    made = tables.estimates(title, rows, unit, no_effect)
    return Column(title, ["-" if row == against else cell for row, cell in enumerate(made.cells)], unit)


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "dplb", *sys.argv[1:]])
