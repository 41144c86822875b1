"""The command ``sweep status``: how far a store is, whether it is whole, and its repair."""

from __future__ import annotations

import math
import sys
from typing import Any

import click

from sweep.cli import arguments
from sweep.cli.interrupts import terminable
from sweep.cli.options import PLACE, Command, Option


@click.command(
    cls=Command,
    example="sweep status out.zarr --verify",
    params=[
        Option("--verify", group="Store", is_flag=True, text="Read every block; exit with 1 if one is not whole."),
        Option("--repair", group="Store", is_flag=True, text="Compute the damaged and the missing blocks."),
        arguments.WORKERS,
        arguments.EXECUTOR,
        arguments.DASK,
        arguments.QUIET,
    ],
)
@click.argument("store", type=PLACE)
@click.pass_context
def status(ctx: click.Context, /, **_: Any) -> None:
    """Say how far a sweep on disk is.

    Prints how many blocks are done and missing, the rate and the time left.
    STORE is what `sweep run --output` was given.
    """
    import sweep
    from sweep import stores

    found = arguments.given(ctx)
    store = str(found["store"])
    wrong = stores.verify(store) if found.get("verify") or found.get("repair") else []
    for line in wrong:
        click.echo(line)
    if found.get("repair") and wrong:
        with terminable(), arguments.executor_of(found) as executor:
            sweep.repair(
                store,
                **executor,
                workers=found.get("workers"),
                progress=not found.get("quiet") and sys.stderr.isatty(),
            )
        wrong = []
    click.echo(_text(store, stores.status(store)))
    if wrong:
        ctx.exit(1)


def _text(store: str, now: Any) -> str:
    missing = now.blocks - now.done
    share = f"{store}: {now.done:,} of {now.blocks:,} blocks done, {missing:,} missing"
    rate = f"{now.requests_per_s / 1e6:.3g} million simulated requests/s"
    if not missing:
        return f"{share}; complete ({now.requests:,} simulated requests)."
    if math.isnan(now.seconds_left):
        return f"{share}; no rate known yet."
    return f"{share}; {rate} when last at work, {_duration(now.seconds_left)} left at that rate."


def _duration(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
