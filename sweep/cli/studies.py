"""The commands ``sweep study`` and ``sweep validate``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from sweep.cli import arguments
from sweep.cli.options import FILE, INTEGER, Command, Option, choice
from sweep.cli.output import need
from sweep.errors import InputError
from sweep.torch_runner.arguments import OPTIONS as VALIDATE

_STUDIES = ("tradeoff", "dplb", "replicas", "real_traces", "herd", "failover", "validate")


@click.command(
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
    need("matplotlib", "seaborn", "jinja2")
    _load_study(name).main(
        found.get("output", Path("reports") / name),
        quick=bool(found.get("quick")),
        seeds=found.get("seeds"),
        workers=found.get("workers"),
        progress=not found.get("quiet") and sys.stderr.isatty(),
    )


@click.command(cls=Command, example="sweep validate --ranks 2 --label my-machine", params=VALIDATE)
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
    package = Path(__file__).parents[1]
    for folder in (package / "studies", package.parent / "studies"):
        path = folder / f"{name}.py"
        if path.is_file():
            spec = importlib.util.spec_from_file_location(f"sweep_study_{name}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise click.ClickException(f"The study {name} is not part of this installation ({package}).")
