"""``python -m sweep.torch_runner``: the plan, the preflight, or this process's part of a run."""

from __future__ import annotations

import os
from typing import Any

import click

from sweep.cli.options import Command
from sweep.errors import InputError
from sweep.torch_runner.arguments import OPTIONS
from sweep.torch_runner.job import Job


@click.command(
    cls=Command,
    params=list(OPTIONS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    example="torchrun --standalone --nproc_per_node 2 -m sweep.torch_runner --label default",
)
@click.pass_context
def main(ctx: click.Context, /, **_: Any) -> None:
    """Run selected points of a sweep on real devices and compare them with their prediction.

    Start it under torchrun, one process per replica. Exit status: 0 whatever the decision, 1 for a failure or refusal.
    """
    from sweep.torch_runner.rank import is_first, leave_with, refuse_together, run_rank

    ranked = "RANK" in os.environ
    try:
        try:
            job, said = prepared(ctx)
        except InputError:
            refuse_together()
            raise
        if said is not None:
            if is_first():
                click.echo(said)
            return
        run_rank(job)
    except InputError as error:
        if is_first():
            click.echo(f"Error: {error}", err=True)
        if ranked:
            leave_with(1)
        ctx.exit(1)


def prepared(ctx: click.Context) -> tuple[Job, str | None]:
    """Return the job that the options describe, and what to print instead of running it, if anything.

    Raises
    ------
    InputError
        For a mistake in the options, or a missing package.
    """
    from sweep.torch_runner.devices import INSTALL, has_torch, preflight

    found = {name: value for name, value in ctx.params.items() if value not in (None, ())}
    job = Job.of(found)
    if found.get("preflight"):
        return job, preflight()
    if found.get("dry_run"):
        return job, dry_run(job)
    if not has_torch():
        raise InputError(f"This needs torch: {INSTALL}. Without it --dry-run shows the plan.")
    return job, None


def arguments_of(ctx: click.Context) -> list[str]:
    """Return the options that the user gave, as arguments of this module's command; --ranks is what starts them."""
    found: list[str] = []
    for option in OPTIONS:
        value = ctx.params.get(str(option.name))
        if value in (None, ()) or option.name == "ranks":
            continue
        values = value if option.multiple else [",".join(map(str, value)) if isinstance(value, tuple) else value]
        found += [option.opts[0]] if option.is_flag else [f"{option.opts[0]}={item}" for item in values]
    return found


def dry_run(job: Job) -> str:
    """Return the plan of a job as text."""
    from sweep.torch_runner.devices import INSTALL, has_torch
    from sweep.torch_runner.points import plan_for

    size = os.environ.get("WORLD_SIZE", "")
    plan = plan_for(job, int(size) if size.isdigit() else None)
    rest = f"Would write {job.result_path}. Evidence: dry_run, nothing was measured."
    if not has_torch():
        rest += f"\nTo run it, install torch: {INSTALL}"
    return f"{plan.text()}\n\n{rest}"
