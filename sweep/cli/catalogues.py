"""The commands that describe: ``sweep trace info`` and ``sweep policies``."""

from __future__ import annotations

import shutil
from typing import Any

import click

from sweep.cli import arguments, listings, trace_arguments
from sweep.cli.options import FILE, Command, Option
from sweep.cli.output import check_picture, need, save_picture
from sweep.policies import catalogue


@click.group()
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
        check_picture(output)
        need("matplotlib", "seaborn")
    requests = trace_arguments.make_requests(found, arguments.make_service(found))
    click.echo(statistics.text(requests))
    if output is not None:
        save_picture(statistics.picture(requests), output)
        click.echo(f"\nWrote {output}.")


@click.command(cls=Command)
def policies() -> None:
    """List the policies.

    What each does, its parameters, the signals it reads, its tie-break, engines, reasons and source.
    """
    width = min(shutil.get_terminal_size().columns, 120)
    click.echo("\n\n".join(listings.rule_text(rule, width) for rule in catalogue()))
