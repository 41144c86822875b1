"""The command ``sweep``: from arguments to objects to `sweep.run`, `sweep.simulate` and `sweep.compare`.

Every module that computes is imported inside the command that needs it, so that ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from sweep import arguments, event_arguments, listings, trace_arguments
from sweep.cli_status import status
from sweep.errors import BlockError, InputError
from sweep.interrupts import Terminated, terminable
from sweep.options import FILE, INTEGER, PLACE, Command, Option, choice
from sweep.policies import Policy, catalogue, default_names
from sweep.torch_runner.arguments import OPTIONS as VALIDATE

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from sweep.fleet import Fleet
    from sweep.workload import Workload

#: A package that comes with an extra, and that extra.
_EXTRAS = {"matplotlib": "plot", "seaborn": "plot", "jinja2": "plot", "h5netcdf": "netcdf", "h5py": "netcdf"}
_EXTRAS |= {"torch": "torch", "jsonschema": "torch", "distributed": "cluster", "fsspec": "cluster"}
_STUDIES = ("tradeoff", "dplb", "replicas", "real_traces", "herd", "failover", "validate")
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


class _Mistake(click.ClickException):
    """A user's mistake: one sentence on standard error and exit status 2 (a plain ClickException exits with 1)."""

    exit_code = 2


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Turn what can go wrong into one sentence and the exit status of its kind."""
    start = time.monotonic()
    try:
        yield
        # A reader that has gone shows here and not when the interpreter ends.
        sys.stdout.flush()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "sweep"
        said = error.format_message()
        raise _Mistake(f"{said}{'' if said.endswith(('.', '?')) else '.'} See {path} --help.") from None
    except InputError as error:
        raise _Mistake(str(error)) from None
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        raise _missing(missing) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise click.ClickException(str(error)) from error
    except BlockError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt as error:
        said = str(error) or f"stopped after {time.monotonic() - start:.1f} s"
        click.echo(f"\nInterrupted: {said}.", err=True)
        raise click.exceptions.Exit(143 if isinstance(error, Terminated) else 130) from None


def _missing(package: str) -> click.ClickException:
    return click.ClickException(f'This needs the package {package}: pip install "sweep[{_EXTRAS[package]}]"')


def _need(*packages: str) -> None:
    """Stop before computing when a package of an extra is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise _missing(package)


class _Program(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except SystemExit as stopped:
            # Compiled code in a worker thread cannot be stopped, and a normal exit would wait for it.
            working = any(thread.name.startswith("sweep") for thread in threading.enumerate())
            if stopped.code in (130, 143) and working:
                sys.stderr.flush()
                os._exit(int(stopped.code))
            raise

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _sentences():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _sentences():
            return super().invoke(ctx)


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        import sweep

        click.echo(f"sweep {sweep.__version__}")
        ctx.exit()


@click.group(
    cls=_Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(ctx: click.Context, /) -> None:
    """Say which routing policy to run, with how much locality slack, on unequal replicas, and how sure that is.

    A list is written 0,5,20, an inclusive range 0:75:5 (start:stop:step), and both mix: 0,5,20:50:10.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@main.command(
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


@main.command(
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
    from sweep.store import check_output
    from sweep.stores import check_place, done_blocks

    found = arguments.given(ctx)
    output = found.get("output")
    store = str(output) if str(output).endswith(".zarr") else None
    if store is not None:
        check_place(store)
    elif output is not None:
        check_output(output)
        _need("h5netcdf")
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
        _need("distributed")
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


@main.command(
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
        _check_picture(output)
        _need("matplotlib", "seaborn")
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

        _save(timeline(ds), output)
        click.echo(f"\nWrote {output}.")


main.add_command(status)


@main.group()
def trace() -> None:
    """Look at recorded traffic."""


@trace.command(
    "info",
    cls=Command,
    example="sweep trace info conversation_trace.jsonl -o conversation.png",
    params=[
        *arguments.SERVICE_MODEL,
        *trace_arguments.READER,
        *trace_arguments.SHAPE,
        Option("-o", "--output", group="Output", type=FILE, text="Picture of rate and lengths: a new .png path."),
    ],
)
@click.argument("trace", type=FILE)
@click.pass_context
def trace_info(ctx: click.Context, /, **_: Any) -> None:
    """Say what a trace is like: what the reader did, rate, burstiness, lengths, sessions, reuse.

    TRACE is a Mooncake, Qwen-Bailian or RAGPulse JSONL file, a folder of kv-cache-tester sessions, an Azure,
    BurstGPT or vidur CSV file, or a CSV or Parquet file of our own format (arrival_ms or arrival_s, and service_ms
    or prompt_tokens and output_tokens); compressed with gzip or zstd or not.
    """
    from sweep.traces import statistics

    found = arguments.given(ctx)
    output = found.get("output")
    if output is not None:
        _check_picture(output)
        _need("matplotlib", "seaborn")
    requests = trace_arguments.make_requests(found, arguments.make_service(found))
    click.echo(statistics.text(requests))
    if output is not None:
        _save(statistics.picture(requests), output)
        click.echo(f"\nWrote {output}.")


@main.command(cls=Command)
def policies() -> None:
    """List the policies.

    What each does, its parameters, the signals it reads, its tie-break, engines, reasons and source.
    """
    width = min(shutil.get_terminal_size().columns, 120)
    click.echo("\n\n".join(listings.rule_text(rule, width) for rule in catalogue()))


@main.command(
    cls=Command,
    example="sweep study tradeoff --quick",
    params=[
        Option("--quick", group="Study", is_flag=True, text="A small version of it, in seconds."),
        Option("--seeds", group="Study", type=INTEGER, text="Seeds, instead of the study's own number."),
        arguments.WORKERS,
        Option("--output", group="Output", type=FILE, text="Folder to write to.", shown="reports/NAME"),
        arguments.QUIET,
    ],
)
@click.argument("name", type=choice(*_STUDIES), metavar="NAME")
@click.pass_context
def study(ctx: click.Context, /, **_: Any) -> None:
    """Run a study and write its report.

    tradeoff: policy and slack against balance and tail latency, at each heterogeneity.
    dplb: round robin against least load over token steps, the published table and then over seeds.
    replicas: throughput and P99 against the number of replicas.
    real_traces: slack and cache size on every public trace that is here.
    herd: freshness of the routers' view, local correction and several routers.
    failover: lost work and recovery when a replica goes down, over heartbeats.
    validate: what `sweep validate` measured in reports/torch, against its prediction.
    """
    found = arguments.given(ctx)
    name = found["name"]
    _need("matplotlib", "seaborn", "jinja2")
    _load_study(name).main(
        found.get("output", Path("reports") / name),
        quick=bool(found.get("quick")),
        seeds=found.get("seeds"),
        workers=found.get("workers"),
        progress=not found.get("quiet") and sys.stderr.isatty(),
    )


@main.command(cls=Command, example="sweep validate --ranks 2 --label my-machine", params=VALIDATE)
@click.pass_context
def validate(ctx: click.Context, /, **_: Any) -> None:
    """Run selected points on real devices and compare them with their prediction.

    Starts one process per replica on this machine, as torchrun does for `python -m sweep.torch_runner`,
    which takes the same options. Exit status: 0 whatever the decision, 1 for a failure or refusal.
    """
    from sweep.torch_runner import command, launch

    try:
        job, said = command.prepared(ctx)
        if said is not None:
            click.echo(said)
            return
        launch.launch(job, command.arguments_of(ctx), launch.ranks_of(job))
    except (InputError, launch.RunFailed) as error:
        if str(error):
            raise click.ClickException(str(error)) from None
        raise click.exceptions.Exit(1) from None


def _load_study(name: str) -> ModuleType:
    """Import a study from the installed package, or from the checkout that the package stands in."""
    package = Path(__file__).parent
    for folder in (package / "studies", package.parent / "studies"):
        path = folder / f"{name}.py"
        if path.is_file():
            spec = importlib.util.spec_from_file_location(f"sweep_study_{name}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise click.ClickException(f"The study {name} is not part of this installation ({package}).")


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


def _check_picture(path: Path) -> None:
    """Raise `InputError` when no picture can be written to `path`."""
    if path.suffix != ".png":
        raise InputError(f"The picture {str(path)!r} must end in .png.")
    if path.exists():
        raise InputError(
            f"The picture {str(path)!r} exists already and is not overwritten; remove it or choose another."
        )
    if not path.parent.is_dir():
        raise InputError(f"The folder {str(path.parent)!r} of the picture does not exist; create it first.")


def _save(figure: Figure, path: Path) -> None:
    """Write a picture under another name and rename it, so that no half-written one is left."""
    from sweep.style import save

    part = path.with_name(f".{path.name}.part")
    try:
        save(figure, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
