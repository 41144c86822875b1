"""The command ``sweep``: its errors, how it ends, and its commands.

Every module that computes is imported inside the command that needs it, so that ``--help`` is quick.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from sweep.cli.catalogues import policies, trace
from sweep.cli.interrupts import Terminated
from sweep.cli.output import EXTRAS, missing_extra
from sweep.cli.runs import compare, explain, run
from sweep.cli.status import status
from sweep.cli.studies import study, validate
from sweep.errors import BlockError, InputError


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
        if missing not in EXTRAS:
            raise
        raise missing_extra(missing) from None
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


for _command in (compare, run, explain, status, trace, policies, study, validate):
    main.add_command(_command)
