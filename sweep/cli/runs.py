"""The commands that simulate: ``sweep compare``, ``sweep run`` and ``sweep explain``."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from sweep.cli import arguments, event_arguments, listings, trace_arguments
from sweep.cli.interrupts import terminable
from sweep.cli.options import FILE, INTEGER, PLACE, Command, Option
from sweep.cli.output import check_picture, need, save_picture
from sweep.errors import InputError
from sweep.policies import Policy, default_names

if TYPE_CHECKING:
    import numpy as np

    from sweep.fleet import Fleet
    from sweep.workload import Workload

_LIMIT = Option("--limit", group="Output", type=INTEGER, text="Requests to list, from the first.", shown="20")
_SPEEDUPS = ("cache_hit_speedup", "adapter_speedup")
_CACHES = ("cache_blocks", "eviction", "cache_visible")
_RUN_SETTINGS = (
    "policy",
    "engine",
    "slack",
    *_SPEEDUPS,
    "warmup",
    "slo_ms",
    "steps",
    "step_ms",
    "workers",
    *_CACHES,
)
#: The policy that `sweep explain` replays when none is given.
_EXPLAINED = {"timeline": "locality_aware", "token_step": "least_load"}


@click.command(
    cls=Command,
    example="sweep compare trace.csv --speeds 1,0.3,1.2 --slack 5",
    params=[
        Option("--replicas", group="Fleet", type=INTEGER, text="Number of replicas of speed 1."),
        arguments.SPEEDS,
        *event_arguments.EVENTS,
        arguments.POLICY,
        arguments.SLACK,
        arguments.CACHE_HIT_SPEEDUP,
        *trace_arguments.CACHES,
        *arguments.SERVICE_MODEL,
        *trace_arguments.READER,
        *trace_arguments.SHAPE,
        arguments.QUIET,
        trace_arguments.VERBOSE,
    ],
)
@click.argument("trace", type=FILE)
@click.pass_context
def compare(ctx: click.Context, /, **_: Any) -> None:
    """Rank policies on one recorded stream.

    Prints a table ordered by P95 queue wait. Give the fleet as --replicas or as --speeds.
    TRACE is a file in any of the formats that `sweep trace info --help` lists.
    """
    import sweep

    found = arguments.given(ctx)
    if "replicas" not in found and "speeds" not in found:
        raise InputError("Give the fleet: --replicas N or --speeds 1,0.3,1.2.")
    fleet = arguments.make_fleet(found)
    slack = arguments.only_one(found, "slack", 5.0)
    settings = {name: found[name] for name in ("policy", "cache_hit_speedup", *_CACHES) if name in found}
    if "cache_blocks" in settings:
        settings["cache_blocks"] = arguments.only_one(found, "cache_blocks")
    requests = trace_arguments.make_requests(found, arguments.make_service(found))
    frame = sweep.compare(requests, speeds=fleet, slack=slack, **settings)
    loads = [requests.offered_load(float(fleet.speeds.sum()))]
    if not found.get("quiet"):
        click.echo(f"{len(requests):,} requests, {_speeds_text(fleet.speeds[0])}. {_load_text(loads)}\n")
    _warn_of_load(loads)
    click.echo(listings.comparison_table(frame))


@click.command(
    cls=Command,
    example="sweep run --policy round_robin,locality_aware --slack 0:50:5 --heterogeneity 0,0.3,0.6 "
    "--sessions 500 --prefixes 500 --seeds 1000 -o out.zarr",
    others=[arguments.SEED, _LIMIT],
    params=[
        *arguments.GRID,
        *arguments.MANY,
        Option(
            "-o",
            "--output",
            group="Output",
            type=PLACE,
            text="Dataset to write: a .zarr path or URL, which keeps every block and which the same command goes on "
            "with, or a new .nc path.",
        ),
        arguments.BLOCK_SEEDS,
        arguments.EXTEND,
        arguments.CONFIG,
        arguments.QUIET,
        trace_arguments.VERBOSE,
    ],
)
@click.pass_context
def run(ctx: click.Context, /, **_: Any) -> None:
    """Simulate a grid of cells over seeds.

    Prints which policy and slack to choose and how sure that is; with --output it writes the Dataset
    instead. A list is written 0,5,20, an inclusive range 0:75:5 (start:stop:step), and both mix. A list
    for generated traffic adds a dimension to the result.
    """
    import sweep
    from sweep.stores import check_output, check_place, done_blocks

    found = arguments.given(ctx)
    output = found.get("output")
    store = str(output) if str(output).endswith(".zarr") else None
    if store is not None:
        check_place(store)
    elif output is not None:
        check_output(output)
        need("h5netcdf")
    quiet = bool(found.get("quiet"))
    fleet = arguments.make_fleet(found)
    workload = arguments.make_workload(found, fleet.replicas)
    settings = {name: found[name] for name in _RUN_SETTINGS if name in found}
    settings.setdefault("policy", default_names(found.get("engine", "timeline")))
    if "seeds" in found or ("trace" in found and "resample" not in found):
        # A trace is the same under every seed.
        settings["seed"] = found.get("seeds", 1)
    for name in ("block_seeds", "extend"):
        if name in found and store is not None:
            settings[name] = found[name]
        elif name in found:
            raise InputError(f"{arguments.flag(name)} needs --output with a path that ends in .zarr.")
    if store is not None:
        settings["store"] = store
    if "dask" in found:
        need("distributed")
    _introduce(workload, fleet, settings, quiet)
    started = time.monotonic()
    before = done_blocks(store) if store is not None else 0
    with terminable(), _warnings_as_notes(), arguments.executor_of(found) as executor:
        ds = sweep.run(workload, fleet, **settings, **executor, progress=not quiet and sys.stderr.isatty())
    if output is None:
        click.echo(listings.summary(ds))
        return
    if store is None:
        sweep.write(ds, output)
    if not quiet:
        sizes = " x ".join(f"{ds.sizes[str(dim)]:,} {dim}" for dim in ds["request_count"].dims)
        if store is not None and before == done_blocks(store):
            click.echo(f"{output} is complete ({sizes}); nothing was left to compute.")
        else:
            click.echo(f"Wrote {output} ({sizes}) after {time.monotonic() - started:.1f} s.")


@click.command(
    cls=Command,
    example="sweep explain --slack 5 --heterogeneity 0.3 --requests 200 --sessions 20 --prefixes 20 -o timeline.png",
    others=[*arguments.MANY, arguments.BLOCK_SEEDS, arguments.EXTEND],
    params=[
        *arguments.GRID,
        arguments.SEED,
        _LIMIT,
        Option("-o", "--output", group="Output", type=FILE, text="Picture of the timeline to write: a new .png path."),
        arguments.CONFIG,
        arguments.QUIET,
        trace_arguments.VERBOSE,
    ],
)
@click.pass_context
def explain(ctx: click.Context, /, **_: Any) -> None:
    """Replay one cell: why each request went where.

    Takes the options of `sweep run` with one value each, and the --config of a grid whose lists are
    narrowed to one value on the command line.
    """
    import sweep

    found = arguments.given(ctx)
    output, limit = found.get("output"), found.get("limit", 20)
    if limit < 0:
        raise InputError(f"--limit must be 0 or more, got {limit}.")
    if output is not None:
        check_picture(output)
        need("matplotlib", "seaborn")
    engine, seed = found.get("engine", "timeline"), found.get("seed", 0)
    policy = Policy.parse(arguments.only_one(found, "policy", _EXPLAINED[engine]))
    slack = arguments.only_one(found, "slack", 5.0)
    for option in (*arguments.GENERATED[1:], arguments.HETEROGENEITY):
        arguments.only_one(found, str(option.name))
    fleet = arguments.make_fleet(found)
    requests = arguments.make_workload(found, fleet.replicas).realise(seed)
    explained = ("engine", *_SPEEDUPS, "steps", "step_ms", *_CACHES)
    settings = {name: found[name] for name in explained if name in found}
    if "cache_blocks" in settings:
        settings["cache_blocks"] = arguments.only_one(found, "cache_blocks")
    ds = sweep.simulate(requests, fleet, policy=policy, slack=slack, seed=seed, **settings)
    if not found.get("quiet"):
        slack_text = f", slack {slack:g} ms" if policy.rule.reads_slack else ""
        click.echo(
            f"{policy.label}{slack_text}, seed {seed}: {len(requests):,} requests, {_speeds_text(fleet.speeds[0])}.\n"
        )
    click.echo(listings.reason_table(ds, policy.reasons(requests.adapter is not None)))
    if limit:
        click.echo("\n" + listings.request_table(ds, requests, slack, limit))
    if output is not None:
        from sweep.plots import timeline

        save_picture(timeline(ds), output)
        click.echo(f"\nWrote {output}.")


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Show a warning as one sentence, without the line of code that gave it."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _note(f"Warning: {message}")
        yield


def _note(text: str) -> None:
    click.echo(text, err=True)


def _speeds_text(speeds: np.ndarray) -> str:
    """Return how many replicas of which speed, at most eight of them named."""
    shown = ", ".join(f"{speed:.3g}" for speed in speeds[:8]) + (", ..." if len(speeds) > 8 else "")
    return f"{len(speeds):,} replicas of speed {shown}"


def _introduce(workload: Workload, fleet: Fleet, settings: Mapping[str, Any], quiet: bool) -> None:
    """Say the offered load of a grid, and what makes its cells say little."""
    points = [point for _, point in workload.points()]
    steps = {name: settings[name] for name in ("engine", "step_ms") if name in settings}
    loads = [arguments.offered_load(point, float(speeds.sum()), **steps) for point in points for speeds in fleet.speeds]
    if not quiet:
        _note(_load_text(loads))
        sticky = [policy.label for policy in map(Policy.parse, settings["policy"]) if policy.rule.reads_slack]
        if sticky and not any(arguments.has_locality(point) for point in points):
            _note(f"Note: no request has a session or a prefix, so {sticky[0]} has nothing to stay close to.")
    _warn_of_load(loads)


def _load_text(loads: list[float]) -> str:
    found = [f"{load:.2f}" for load in sorted(loads) if not math.isnan(load)]
    if not found:
        return "Offered load: unknown, since no time passes between the first and the last arrival."
    span = found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"
    return f"Offered load: {span} of the capacity."


def _warn_of_load(loads: list[float]) -> None:
    if any(load >= 1 for load in loads):
        largest = max(load for load in loads if not math.isnan(load))
        _note(
            f"Warning: at an offered load of {largest:.2f} the replicas do not keep up: waits grow for as long as "
            "requests come, and tell how long that was more than which policy is better."
        )
