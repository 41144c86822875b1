"""What slack and which cache buy on recorded traffic, for each public trace that is here.

``python studies/real_traces.py [options]`` is ``sweep study real_traces [options]``. Traces are looked for in the
folder that ``SWEEP_TRACES`` names, then in ``traces`` and ``../shared/traces``. With ``--quick`` the study runs on the
small invented files in ``example_traces``, which show its form and from which nothing can be concluded.

Two published slices are left out, as too short to estimate a P99 from: 400 rows of BurstGPT 1, which have no sessions
that could be drawn anew, and 190 rows of Mooncake's arXiv trace.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

import sweep
from sweep import plots, shaping, tables
from sweep.analysis import BASELINE, interval, ratio, recommend
from sweep.chains import Blocks
from sweep.console import Column, label_text, number_text, table
from sweep.policies import Policy
from sweep.report import Picture, Section, facts_of, replacing, write_report
from sweep.traces import report, statistics

POLICIES = ("round_robin", "queue_aware", "sticky_session", "bounded_hash", "locality_aware")
#: The policy that balances and stays close to nothing: what locality buys is measured against it.
OTHER = "queue_aware"
WAIT, VARIANCE, REUSE = "p99_queue_wait_ms", "load_variance", "token_hit_rate"
REPLICAS = 8
#: Capacity of a replica, as a share of the different blocks of the trace; None = unbounded.
SHARES = (0.005, 0.05, 0.2, None)
#: Slack, in mean service times.
SLACKS = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0)
#: How much slower one replica is, for traces on which no capacity matters.
HETEROGENEITY = (0.0, 0.2, 0.4, 0.6)


class Trace(NamedTuple):
    """A trace: where it is, the mean load it is sped up or slowed down to, where it is from, what to know of it."""

    name: str
    path: str
    load: float
    source: str
    remark: str
    ticks: str = "keep"

    @property
    def slug(self) -> str:
        """Return the name for files."""
        return self.name.split(",")[0].lower().replace(" ", "-")


TRACES = (
    Trace(
        "Mooncake conversation",
        "mooncake/conversation_trace.jsonl",
        0.8,
        "github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl, Apache-2.0",
        "There are no sessions, and all prompts begin with the same block: sticky_session only balances here, and "
        "bounded_hash, which goes by the first block, sends all one way round its ring. The trace's clock ticks every "
        "three seconds; requests of a tick are spread over it at random, and what the order within a tick was is not "
        "known.",
        ticks="spread",
    ),
    Trace(
        "RAGPulse",
        "ragpulse/0_trace.jsonl",
        0.3,
        "github.com/flashserve/RAGPulse, data/, MIT",
        "Nearly all that requests share is the system prompt, which every replica has after a few requests, so that "
        "it does not matter where one goes; a cache of prefixes does not find a passage that stands behind another "
        "one. A week is replayed in less than an hour, and the load of its busiest hours is three times the mean.",
    ),
    Trace(
        "kv-cache-tester, ten small sessions",
        "kv-cache-tester",
        0.8,
        "github.com/callanjfox/kv-cache-tester, traces/, Apache-2.0",
        "These are ten of 739 sessions, and among the shortest; when they begin is drawn. Files do not say what "
        "sessions share, so nothing is shared here (--shared-prompt assumes otherwise), and requests come when they "
        "came then, whether or not the answer before is there.",
    ),
    Trace(
        "BurstGPT 3, first 400 rows",
        "burstgpt/BurstGPT_3_first400.csv",
        0.8,
        "github.com/HPMLL/BurstGPT, data/BurstGPT_3.csv, CC-BY-4.0",
        "The trace has sessions, but does not say what their prompts share, so that nothing is gained here by staying "
        "with a replica, and waiting for it only costs.",
    ),
    Trace(
        "Azure 2023 conversation",
        "azure/AzureLLMInferenceTrace_conv.csv",
        0.8,
        "github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv, CC-BY-4.0",
        "The trace has neither sessions nor prompts in common: policies differ by balance alone, no unit can be drawn "
        "anew, and one stream gives no interval.",
    ),
)
LEFT_OUT = (
    "Not studied are two slices, too short to estimate a P99 from: burstgpt/BurstGPT_1_first400.csv (n = 400, without "
    "sessions that could be drawn anew for an interval) and mooncake/arxiv_trace_window_190rows.jsonl (n = 190)."
)
_INVENTED = "made by studies/make_example_traces.py"
EXAMPLES = tuple(
    Trace(f"Example of {name}", path, 0.8, _INVENTED, "This traffic is invented: nothing follows from it.")
    for name, path in (
        ("Mooncake", "mooncake.jsonl"),
        ("RAGPulse", "ragpulse/0_trace.jsonl"),
        ("kv-cache-tester", "kv-cache-tester"),
        ("BurstGPT", "burstgpt.csv"),
        ("Azure", "azure.csv"),
    )
)


class Result(NamedTuple):
    """A trace as it was simulated: its stream, the result over seeds, and that of the trace itself."""

    trace: Trace
    requests: sweep.Requests
    ds: xr.Dataset
    own: xr.Dataset

    @property
    def across(self) -> str:
        """Return the dimension along which something is chosen."""
        return "cache_blocks" if "cache_blocks" in self.ds.dims else "heterogeneity"

    def where(self, value: float) -> str:
        """Return a value of that dimension in words."""
        if self.across == "heterogeneity":
            return f"with one replica {100 * value:g} % slower" if value else "with equal replicas"
        return "with unbounded caches" if math.isinf(value) else f"with {value:,.0f} blocks a replica"


def main(
    output: Path = Path("reports/real_traces"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Run the study on every trace found, print what to choose, and write pictures and report to `output`."""
    count = seeds if seeds is not None else 4 if quick else 32
    places = examples() if quick else found()
    results = [simulated(trace, path, count, quick, workers, progress) for trace, path in places]
    for result in results:
        print(f"\n{result.trace.name}\n")
        print(table(choices(result)))
        print("\n" + conclusion(result))
    with replacing(output) as new:
        for result in results:
            sweep.write(result.ds, new / f"{result.trace.slug}.zarr")
        write_report(
            new,
            "Recorded traffic: what do slack and cache size buy?",
            "Requests of a trace share prompts with those before them. How much queue wait is it worth to send a "
            "request where its prompt is cached, when caches are finite?",
            [f"{result.trace.name}. {conclusion(result)}" for result in results],
            [overview(results, quick), *(section for result in results for section in sections(result))],
            facts(results),
        )
    print(f"\nWrote {output}: report.html, its pictures and one Dataset per trace.")


def found() -> list[tuple[Trace, Path]]:
    """Return the public traces that are here."""
    named = os.environ.get("SWEEP_TRACES")
    if named and not Path(named).is_dir():
        raise sweep.InputError(f"SWEEP_TRACES must name a folder, got {named!r}.")
    places = [named, "traces", Path(__file__).parents[2] / "shared" / "traces"]
    folder = next((Path(place) for place in places if place and Path(place).is_dir()), None)
    here = [(trace, folder / trace.path) for trace in TRACES if folder and (folder / trace.path).exists()]
    if not here:
        raise sweep.InputError(
            "No public trace is here; put some into the folder 'traces', or name a folder in SWEEP_TRACES "
            f"({', '.join(trace.path for trace in TRACES)}). With --quick the study takes its own small examples."
        )
    return here


def examples() -> list[tuple[Trace, Path]]:
    """Return the invented traces, which come with the study."""
    folder = Path(__file__).parent / "example_traces"
    return [(trace, folder / trace.path) for trace in EXAMPLES]


def simulated(trace: Trace, path: Path, seeds: int, quick: bool, workers: int | None, progress: bool) -> Result:
    """Return a trace sped up or slowed down to its load, simulated over resampled seeds."""
    requests = sweep.traces.read(path, ticks=trace.ticks)
    requests = shaping.rate_scaled(requests, float(f"{trace.load / requests.offered_load(REPLICAS):.3g}"))
    mean = float(requests.service_ms.mean())
    blocks = requests.blocks
    whole = blocks is not None or requests.session_count > 0
    settings: dict[str, Any] = {
        # Where nothing is shared, a policy that stays close has nothing to stay close to.
        "policy": POLICIES if whole else (BASELINE, OTHER),
        "slack": [round_number(mean * factor) for factor in (SLACKS[::3] if quick else SLACKS)],
        "workers": workers,
        "progress": progress,
    }
    if blocks is not None:
        settings["cache_blocks"] = capacities(blocks, SHARES[1::2] if quick else SHARES)
    # Without blocks no capacity matters, and unequal replicas are what policies differ on.
    fleet = sweep.Fleet.one_slow(REPLICAS, HETEROGENEITY[:1] if blocks is not None else HETEROGENEITY)
    fixed = sweep.Workload.fixed(requests)
    own = sweep.run(fixed, fleet, seed=1, **settings)
    ds = sweep.run(sweep.Workload.resampled(requests), fleet, seed=seeds, **settings) if whole else own
    return Result(trace, requests, ds, own)


def capacities(blocks: Blocks, shares: Sequence[float | None]) -> list[float | None]:
    """Return capacities of a replica [blocks]; the smallest one holds a prompt of mean length."""
    least = len(blocks.ids) / len(blocks)
    sizes = [None if share is None else round_number(max(blocks.distinct * share, least)) for share in shares]
    return list(dict.fromkeys(sizes))


def round_number(value: float) -> float:
    """Return a number with one digit that counts, a whole one where it is 1 or more."""
    return float(f"{value:.0e}")


def choices(result: Result) -> list[Column]:
    """Return what to choose at each capacity, how good it is and what it reuses."""
    chosen = recommend(result.ds, WAIT)
    rows = chosen.to_dict("records")
    columns = tables.chosen_cells(result.ds, chosen, WAIT)
    if result.across == "cache_blocks":
        columns = [column for column in columns if column.title != "heterogeneity"]
    others = [(math.nan,) * 3 if row["policy"] == OTHER else against(result, row, WAIT, OTHER) for row in rows]
    columns.append(tables.estimates(f"ratio to {OTHER}", others, no_effect=1.0))
    if REUSE in result.ds:
        for title, cells in (("tokens reused", rows), (f"{BASELINE}'s", [baseline(row) for row in rows])):
            columns.append(tables.estimates(title, [bounds(interval(at(result.ds, cell), REUSE)) for cell in cells]))
    return columns


def baseline(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the cell of round_robin beside that of a recommendation."""
    return {**row, "policy": BASELINE, "slack": math.nan}


def against(result: Result, row: Mapping[Any, Any], name: str, policy: str) -> list[float]:
    """Return the ratio of a variable of a recommended cell to that of a policy, with its interval."""
    return bounds(at(ratio(result.ds, name, policy), row))


def at(ds: xr.Dataset, row: Mapping[Any, Any]) -> xr.Dataset:
    """Return the cell of a recommendation."""
    cell = ds.sel(policy=row["policy"], heterogeneity=row["heterogeneity"])
    if "cache_blocks" in ds.dims:
        cell = cell.sel(cache_blocks=row["cache_blocks"])
    return cell.isel(slack=0) if pd.isna(row["slack"]) else cell.sel(slack=row["slack"])


def bounds(estimate: xr.Dataset) -> list[float]:
    """Return mean, lower and upper bound of an interval."""
    return [float(estimate[name]) for name in ("mean", "lower", "upper")]


def overview(results: Sequence[Result], quick: bool) -> Section:
    """Return what the traces are like, as they are recorded, and where they are from."""
    rows = [statistics.statistics(result.requests) for result in results]

    def column(title: str, name: str, decimals: int, unit: str = "") -> Column:
        return Column(title, [number_text(float(row.get(name, math.nan)), decimals) for row in rows], unit)

    return Section(
        "The traces",
        [f"{result.trace.name}: {result.trace.source}." for result in results] + ([] if quick else [LEFT_OUT]),
        [
            [
                Column("trace", [result.trace.name for result in results], left=True),
                column("requests", "n", 0),
                column("prompt, mean", "input_mean", 0, "tokens"),
                column("output, mean", "output_mean", 0, "tokens"),
                column("sessions", "sessions", 0),
                column("different blocks", "distinct_blocks", 0),
                column("tokens reused by one unbounded cache", "token_reuse", 3),
                column("CV of the times between arrivals", "cv", 2),
            ]
        ],
    )


def facts(results: Sequence[Result]) -> dict[str, str]:
    """Return how the numbers were measured; what differs from trace to trace stands in its own pictures."""
    shared = facts_of(results[0].ds)
    cells = sum(result.ds["request_count"].size for result in results)
    most = max(result.ds.sizes["seed"] for result in results)
    shared["Sample"] = (
        f"n = {most:,} seeds of resampled streams per trace, one where nothing can be drawn; {cells:,} runs in all. "
        "The requests of a run depend on each other, so seeds are counted and not requests."
    )
    shared["Service"] = "0.1 ms per prompt token that is not reused, 2 ms per output token, at speed 1."
    shared["Fleet"] = f"{REPLICAS} replicas, equal where requests have blocks; least recently used blocks are evicted."
    kept = ("Sample", "Intervals", "Pairing", "Engine", "Policies", "Service", "Fleet")
    made = ", ".join(result.ds.attrs["fingerprint"][:12] for result in results)
    return {name: shared[name] for name in kept} | {"Made by": f"sweep {sweep.__version__}, grids {made}"}


def conclusion(result: Result) -> str:
    """Return the result of a trace as a paragraph."""
    ds, requests = result.ds, result.requests
    rows = recommend(ds, WAIT).to_dict("records")
    # The second capacity is about what a replica may hold; the second heterogeneity a common one.
    main = rows[min(1, len(rows) - 1)]
    load = requests.offered_load(REPLICAS)
    said = [
        f"{len(requests):,} requests on {REPLICAS} replicas at an offered load of {load:.2f}, before any reuse.",
        _main_choice(result, main),
    ]
    others = [
        f"{result.where(row[result.across])} {'the same' if _choice(row) == _choice(main) else _choice(row)} "
        f"({_wait_ratio(row)})"
        for row in rows
        if row != main
    ]
    if others:
        said.append(f"Elsewhere, with the ratio to {BASELINE} in brackets: {'; '.join(others)}.")
    rest = [str(name) for name in ds["policy"].values if name not in (BASELINE, OTHER, main["policy"])]
    ways = [
        f"{name} {tables.estimate(*against(result, {**main, 'policy': name, 'slack': math.nan}, WAIT, BASELINE))}"
        for name in rest
        if not Policy.parse(name).rule.reads_slack
    ]
    if ways:
        said.append(f"Other ways to stay close, as ratios to {BASELINE}: {', '.join(ways)}.")
    if not pd.isna(main["slack"]):
        most = float(ds.slack[-1])
        factor = at(interval(ds, WAIT), {**main, "slack": most})["mean"] / main["mean"]
        said.append(f"A slack of {most:,g} ms would make that wait {float(factor):.2g} times as long.")
    if ds.sizes["seed"] > 1:
        own, other = (float(at(result.own, row)[WAIT].mean()) for row in (main, baseline(main)))
        said.append(
            "Copies of what is drawn arrive together, which moves the level of all waits: in the trace itself the same "
            f"cell has {number_text(own, 0)} ms and {BASELINE} {number_text(other, 0)} ms."
        )
    said += [
        result.trace.remark,
        "Left out: batching and the contention of decoding (a request has its replica to itself), what decoding holds "
        "in memory, and users who would wait or give up.",
    ]
    return " ".join(said)


def _choice(row: Mapping[Any, Any]) -> str:
    return str(row["policy"]) + ("" if pd.isna(row["slack"]) else f" with a slack of {row['slack']:,g} ms")


def _wait_ratio(row: Mapping[Any, Any]) -> str:
    return tables.estimate(row["ratio"], row["ratio_lower"], row["ratio_upper"])


def _main_choice(result: Result, row: Mapping[Any, Any]) -> str:
    """Return what to choose at one capacity and what it buys."""
    ds = result.ds
    wait = tables.estimate(row["mean"], row["lower"], row["upper"])
    times = row["slack"] / float(result.requests.service_ms.mean())
    said = (
        f"The choice {result.where(row[result.across])} is {_choice(row)}"
        f"{'' if pd.isna(times) else f', {times:.2g} mean service times'}: its P99 queue wait is {wait} ms, "
        f"{_wait_ratio(row)} times that of {BASELINE}"
    )
    if row["policy"] != OTHER:
        said += f" and {tables.estimate(*against(result, row, WAIT, OTHER))} times that of {OTHER}"
    said += f", and its load variance {tables.estimate(*against(result, row, VARIANCE, BASELINE))} times {BASELINE}'s."
    if REUSE in ds:
        mine, other = (tables.estimate(*bounds(interval(at(ds, one), REUSE))) for one in (row, baseline(row)))
        said += f" It reuses {mine} of the prompt tokens, {BASELINE} {other}."
    return said


def one_cache(result: Result) -> tuple[float, list[float]]:
    """Return the tokens that one unbounded cache reuses: of the trace itself, and of its resampled streams."""
    work = sweep.Workload.resampled(result.requests)
    seeds = [statistics.statistics(work.realise(int(seed)))["token_reuse"] for seed in result.ds["seed"].values]
    many = interval(xr.Dataset({"reuse": ("seed", seeds)}), "reuse")
    return statistics.statistics(result.requests)["token_reuse"], bounds(many)


def agreement(result: Result) -> list[Column]:
    """Return the trace's own figures beside the means over its resampled seeds."""
    rows: list[tuple[str, str, float, list[float]]] = []
    if REUSE in result.ds:
        rows.append(("tokens reused by one unbounded cache", "-", *one_cache(result)))
    for name in ("request_count", REUSE, WAIT, VARIANCE):
        for policy in POLICIES if name in result.ds else ():
            cell = {"policy": policy, "heterogeneity": 0.0}
            if "cache_blocks" in result.ds.dims:
                cell["cache_blocks"] = math.inf
            own, many = (ds.sel(cell).isel(slack=len(result.ds.slack) // 2) for ds in (result.own, result.ds))
            rows.append(
                (result.ds[name].attrs["long_name"], policy, float(own[name].mean()), bounds(interval(many, name)))
            )
    return [
        Column("quantity", [row[0] for row in rows], left=True),
        Column("policy", [row[1] for row in rows], left=True),
        Column("the trace itself", [tables.estimate(row[2], math.nan, math.nan) for row in rows]),
        tables.estimates("resampled", [row[3] for row in rows]),
    ]


def sections(result: Result) -> list[Section]:
    """Return the parts of the report about one trace."""
    ds = result.ds
    reuse = (REUSE,) if REUSE in ds else ()
    parts = [
        Section(
            result.trace.name,
            [
                " ".join(report(result.requests)),
                "At each capacity or heterogeneity, the smallest slack among the cells whose P99 queue wait cannot be "
                "told from the best one; n.s. marks a ratio that could be 1.",
            ],
            [choices(result)],
            Picture(
                f"{result.trace.slug}",
                plots.heatmaps(ds, (*reuse, WAIT, VARIANCE), WAIT, across=result.across, title=result.trace.name),
                f"Heatmaps of {'reuse, ' if reuse else ''}P99 queue wait and load variance over slack and "
                f"{'cache capacity' if reuse else 'heterogeneity'}",
            ),
        )
    ]
    if ds.sizes["seed"] > 1:
        slack = label_text(float(ds.slack[len(ds.slack) // 2]))
        parts.append(
            Section(
                f"{result.trace.name}: does drawing sessions or families shift the figures?",
                [
                    "Each seed draws whole sessions, or families of requests that share blocks, with replacement, at "
                    "their own times, so that what can be reused stays what it is. Waits do not: copies of a unit "
                    "arrive at the same moments, so that arrivals are burstier than in the trace. Take the "
                    "differences between policies and capacities from here, and the level from the trace. "
                    f"Unbounded caches; a policy that reads slack has {slack} ms."
                ],
                [agreement(result)],
            )
        )
    return parts


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "real_traces", *sys.argv[1:]])
