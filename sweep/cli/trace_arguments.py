"""The options of commands that take a recorded stream: how it is read, and the stream made from what the user gave."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from sweep.cli.options import FILE, INTEGER, NUMBER, Option, Values, choice, numbers, split_list
from sweep.errors import InputError

if TYPE_CHECKING:
    from sweep.requests import Requests, ServiceModel

_TRACE = "Recorded traffic"
_CACHE = "Caches"
_FORMATS = ("auto", "mooncake", "azure", "burstgpt", "bailian", "ragpulse", "kv-cache-tester", "vidur", "own")

#: How a trace is read: `sweep.traces.read`.
READER = [
    Option(
        "--format",
        group=_TRACE,
        type=choice(*_FORMATS),
        text="Format of the trace, if its beginning should not decide.",
        shown="auto",
    ),
    Option(
        "--blocks",
        group=_TRACE,
        type=choice("ceil", "floor"),
        text="Whether the last, partial cache block of a prompt counts.",
        shown="ceil",
    ),
    Option(
        "--zero-tokens",
        group=_TRACE,
        type=choice("keep", "drop", "clamp"),
        text="Rows without prompt or output tokens: kept, dropped, or raised to one token.",
        shown="keep",
    ),
    Option(
        "--ticks",
        group=_TRACE,
        type=choice("keep", "spread"),
        text="Requests of one coarse time: together, or spread at random over the tick of the clock.",
        shown="keep",
    ),
    Option("--block-tokens", group=_TRACE, type=INTEGER, text="Tokens of a cache block, where the file does not say."),
    Option(
        "--session-rate-per-s",
        group=_TRACE,
        type=NUMBER,
        unit="sessions/s",
        text="kv-cache-tester: how many sessions begin.",
        shown="one a minute",
    ),
    Option(
        "--shared-prompt",
        group=_TRACE,
        type=choice("none", "tools", "tools+system"),
        text="kv-cache-tester: what sessions of one model share when it has the same number of tokens in both.",
        shown="none",
    ),
    Option(
        "--map",
        group=_TRACE,
        type=Values("COLUMN=FIELD,...", lambda text: [text], many=False),
        text="Our own format: which columns of the file are which fields; other columns are left out.",
    ),
    Option("--trace-seed", group=_TRACE, type=INTEGER, text="Of what is drawn when a trace is read.", shown="0"),
]

#: How a stream is shaped once it is read, in the order in which that is done.
SHAPE = [
    Option(
        "--window",
        group=_TRACE,
        type=Values("START:END", lambda text: [text], many=False),
        unit="s",
        text="Only what arrives in this time after the first request.",
    ),
    Option(
        "--sample-sessions",
        group=_TRACE,
        type=NUMBER,
        text="Share of the sessions (families of shared blocks, where there are none) to keep.",
    ),
    Option(
        "--repeat",
        group=_TRACE,
        type=INTEGER,
        text="How many times, one after the other; each copy has sessions and private blocks of its own.",
    ),
    Option("--rate-scale", group=_TRACE, type=NUMBER, text="How many times as fast requests arrive."),
]
RESAMPLE = Option(
    "--resample",
    group=_TRACE,
    type=choice("auto", "sessions", "families"),
    text="Every seed draws whole sessions, or families of shared blocks, with replacement, instead of replaying the "
    "trace.",
)


def _capacities(text: str) -> list[float]:
    found: list[float] = []
    for item in split_list(text):
        found += [math.inf] if item == "none" else numbers(item)
    return found


_BLOCKS = Values("NUMBERS", _capacities, many=True)
_BLOCKS.numeric = True  # a config file may hold plain numbers

#: What replicas hold: `sweep.run`.
CACHES = [
    Option(
        "--cache-blocks",
        group=_CACHE,
        type=_BLOCKS,
        unit="blocks",
        text="What each replica's cache of prefix blocks holds; none = unbounded. Without block chains a prefix is a "
        "block.",
        shown="none",
    ),
    Option(
        "--eviction",
        group=_CACHE,
        type=choice("lru", "lfu"),
        text="What leaves a full cache: the least recently or the least frequently used block.",
        shown="lru",
    ),
    Option(
        "--cache-visible",
        group=_CACHE,
        type=choice("dispatch", "prefill_end"),
        text="From when on a request's blocks can be matched.",
        shown="dispatch",
    ),
]

VERBOSE = Option("-v", "--verbose", group="Output", is_flag=True, text="Say what was done to the trace as it was read.")

#: Option of the command line -> parameter of `sweep.traces.read`, where the names differ.
_NAMES = {"trace_seed": "seed", "map": "columns"}


def make_requests(found: dict[str, Any], service: ServiceModel) -> Requests:
    """Return the stream of the file in ``found["trace"]``, read as the options say."""
    from sweep.traces import read, report
    from sweep.traces.csv_files import parse_map

    options = {_NAMES.get(str(o.name), str(o.name)): found[str(o.name)] for o in READER if str(o.name) in found}
    if "columns" in options:
        options["columns"] = parse_map(options["columns"])
    requests = _shaped(read(found["trace"], service=service, **options), found)
    if found.get("verbose"):
        click.echo("\n".join(report(requests)), err=True)
    return requests


def _shaped(requests: Requests, found: dict[str, Any]) -> Requests:
    from sweep import shaping

    if "window" in found:
        start, colon, end = str(found["window"]).partition(":")
        try:
            bounds = float(start or 0.0), float(end or math.inf)
        except ValueError:
            colon = ""
        if not colon:
            raise InputError(f"--window must be START:END in seconds, such as 600:1800, got {found['window']!r}.")
        requests = shaping.window(requests, *bounds)
    if "sample_sessions" in found:
        requests = shaping.sample_sessions(requests, found["sample_sessions"], found.get("trace_seed", 0))
    if "repeat" in found:
        requests = shaping.repeated(requests, found["repeat"])
    if "rate_scale" in found:
        requests = shaping.rate_scaled(requests, found["rate_scale"])
    return requests


def refuse_without_trace(found: dict[str, Any]) -> None:
    """Raise `InputError` when an option for traces stands without one."""
    for option in (*READER, *SHAPE, RESAMPLE):
        if option.name in found:
            raise InputError(f"{option.opts[0]} applies only to --trace.")


TRACE = Option(
    "--trace",
    group=_TRACE,
    type=FILE,
    text="Trace, instead of generated traffic, in any format of `sweep trace info --help`. Every seed replays it.",
)
