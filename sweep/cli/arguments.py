"""The option groups that commands share, and the workload, fleet and settings made from what the user gave."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource

from sweep.cli.event_arguments import EVENTS, with_events
from sweep.cli.options import FILE, INTEGER, INTEGERS, NAMES, NUMBER, NUMBERS, Option, Seeds, choice, read_config
from sweep.cli.trace_arguments import CACHES, READER, RESAMPLE, SHAPE, TRACE, make_requests, refuse_without_trace
from sweep.console import label_text
from sweep.errors import InputError
from sweep.kernels.token_step import BATCH
from sweep.variables import ENGINES

if TYPE_CHECKING:
    from sweep.fleet import Fleet
    from sweep.requests import ServiceModel
    from sweep.workload import Workload

_MADE = "Generated traffic"
_TRACE = "Recorded traffic"
_FLEET = "Fleet"
_POLICY = "Policies"
_ENGINE = "Simulation"
_OUTPUT = "Output"

GENERATED = [
    Option(
        "--workload",
        group=_MADE,
        type=choice("poisson", "bursty", "dplb_burst"),
        text="Poisson arrivals, two-state modulated Poisson arrivals, or the token burst of the DPLB benchmark.",
        shown="poisson",
    ),
    Option("--requests", group=_MADE, type=INTEGERS, text="Requests per seed.", shown="2000"),
    Option(
        "--utilisation",
        group=_MADE,
        type=NUMBERS,
        text="Work that arrives per time, as a share of what the replicas serve at speed 1.",
        shown="0.9",
    ),
    Option(
        "--rate-per-s",
        group=_MADE,
        type=NUMBERS,
        unit="requests/s",
        text="Mean arrival rate, instead of --utilisation.",
    ),
    Option("--mean-service-ms", group=_MADE, type=NUMBERS, unit="ms", text="Mean service time at speed 1.", shown="10"),
    Option(
        "--service",
        group=_MADE,
        type=choice("exponential", "deterministic", "lognormal", "gamma", many=True),
        text="Distribution of the service times.",
        shown="exponential",
    ),
    Option(
        "--service-cv",
        group=_MADE,
        type=NUMBERS,
        text="Coefficient of variation of lognormal and gamma service times.",
        shown="1",
    ),
    Option("--sessions", group=_MADE, type=INTEGERS, text="Sessions that requests belong to; 0 = none.", shown="0"),
    Option("--prefixes", group=_MADE, type=INTEGERS, text="Prefixes that requests start with; 0 = none.", shown="0"),
    Option(
        "--popularity",
        group=_MADE,
        type=choice("uniform", "zipf", many=True),
        text="How often each session (or prefix) comes.",
        shown="uniform",
    ),
    Option("--zipf-exponent", group=_MADE, type=NUMBERS, text="Exponent of the zipf popularity.", shown="1"),
    Option(
        "--session-prefix",
        group=_MADE,
        type=choice("own", "independent", many=True),
        text="own: a session keeps one prefix for life; independent: each request draws its prefix.",
        shown="own",
    ),
    Option("--adapters", group=_MADE, type=INTEGERS, text="Adapters (LoRA) that requests use; 0 = none.", shown="0"),
    Option("--batch", group=_MADE, type=INTEGERS, text="Requests that arrive at one instant.", shown="1"),
    Option(
        "--peak-to-mean",
        group=_MADE,
        type=NUMBERS,
        text="bursty: arrival rate in a burst over the mean rate; required.",
    ),
    Option("--burst-ms", group=_MADE, type=NUMBERS, unit="ms", text="bursty: mean length of a burst; required."),
    Option("--burst-share", group=_MADE, type=NUMBERS, text="bursty: share of the time that is burst.", shown="0.1"),
]

SERVICE_MODEL = [
    Option(
        "--base-ms",
        group=_TRACE,
        type=NUMBER,
        unit="ms",
        text="Service time of a request, before its tokens.",
        shown="0",
    ),
    Option(
        "--prefill-ms-per-token",
        group=_TRACE,
        type=NUMBER,
        unit="ms",
        text="Service time per prompt token.",
        shown="0.1",
    ),
    Option(
        "--decode-ms-per-token",
        group=_TRACE,
        type=NUMBER,
        unit="ms",
        text="Service time per output token: its share of the replica's throughput, not its latency in a batch.",
        shown="2",
    ),
]

RECORDED = [TRACE, *SERVICE_MODEL, *READER, *SHAPE, RESAMPLE]

REPLICAS = Option("--replicas", group=_FLEET, type=INTEGER, text="Number of replicas.", shown="4")
SPEEDS = Option(
    "--speeds", group=_FLEET, type=NUMBERS, text="The speed of each replica as given, instead of --replicas."
)

HETEROGENEITY = Option(
    "--heterogeneity",
    group=_FLEET,
    type=NUMBERS,
    text="one_slow: how much slower the last replica is (0 to below 1); spread: fastest over slowest speed (1 or "
    "more); lognormal: coefficient of variation.",
    shown="0, or 1 for spread",
)

FLEET = [
    REPLICAS,
    Option(
        "--fleet",
        group=_FLEET,
        type=choice("one_slow", "spread", "lognormal"),
        text="How speeds grow unequal: the last replica slows down, geometric steps, or random draws.",
        shown="one_slow",
    ),
    HETEROGENEITY,
    Option(
        "--constant-capacity/--no-constant-capacity",
        group=_FLEET,
        text="Scale the speeds so that the total stays that of equal replicas.",
        shown="constant",
    ),
    Option("--fleet-seed", group=_FLEET, type=INTEGER, text="lognormal: seed of the draws.", shown="0"),
    SPEEDS,
]

POLICY = Option(
    "--policy",
    group=_POLICY,
    type=NAMES,
    text="Policies as `sweep policies` lists them, such as round_robin or least_load(in_service_weight=0.5).",
    shown="round_robin, queue_aware, locality_aware; of token_step round_robin, least_load",
)
SLACK = Option(
    "--slack",
    group=_POLICY,
    type=NUMBERS,
    unit="ms",
    text="Extra queue wait accepted to reach a replica that holds the session or prefix.",
    shown="5",
)
ENGINE = Option(
    "--engine",
    group=_ENGINE,
    type=choice(*ENGINES),
    text="Event-driven first-in-first-out service, or fixed steps of a token batch.",
    shown="timeline",
)
CACHE_HIT_SPEEDUP = Option(
    "--cache-hit-speedup",
    group=_ENGINE,
    type=NUMBER,
    text="Share of the service time that a cached prefix saves (timeline).",
    shown="0.3",
)
ADAPTER_SPEEDUP = Option(
    "--adapter-speedup",
    group=_ENGINE,
    type=NUMBER,
    text="Share of the service time saved where the request's adapter is loaded (timeline).",
    shown="0",
)
STEPS = [
    Option(
        "--steps",
        group=_ENGINE,
        type=INTEGER,
        text="Length of the run in steps (token_step).",
        shown="until all is served, or what the workload says",
    ),
    Option("--step-ms", group=_ENGINE, type=NUMBER, unit="ms", text="Length of one step (token_step).", shown="1"),
]
SEEDS = Option(
    "--seeds",
    group=_ENGINE,
    type=Seeds(),
    text="How many seeds, or which: 100 means 0 to 99; 3,5,8 and 7:7:1 name them.",
    shown="32; 1 with --trace but without --resample",
)
SEED = Option("--seed", group=_ENGINE, type=INTEGER, text="The seed replayed.", shown="0")
WARMUP = Option("--warmup", group=_ENGINE, type=INTEGER, text="First requests left out of the statistics.", shown="0")
SLO = Option(
    "--slo-ms", group=_ENGINE, type=NUMBER, unit="ms", text="Queue wait to report the share of requests within."
)
WORKERS = Option("--workers", group=_ENGINE, type=INTEGER, text="Threads or processes.", shown="one per core")
EXECUTOR = Option(
    "--executor", group=_ENGINE, type=choice("threads", "processes"), text="What computes blocks.", shown="threads"
)
DASK = Option(
    "--dask",
    group=_ENGINE,
    metavar="ADDRESS",
    text="Scheduler of a Dask cluster to compute on, such as tcp://host:8786.",
)
BLOCK_SEEDS = Option(
    "--block-seeds",
    group=_OUTPUT,
    type=INTEGER,
    text="Seeds per block of a .zarr output, fixed when it is begun.",
    shown="about two seconds of work",
)
EXTEND = Option(
    "--extend",
    group=_OUTPUT,
    is_flag=True,
    text="Add these policies, slacks, heterogeneities and seeds to those of the finished .zarr output.",
)
CONFIG = Option(
    "--config",
    group=_OUTPUT,
    type=FILE,
    text='TOML file with option names as keys (slack = "0:50:5" or [0, 5, 20]); the command line goes first.',
    is_eager=True,
    expose_value=False,
    callback=read_config,
)
QUIET = Option("-q", "--quiet", group=_OUTPUT, is_flag=True, text="No progress bar and no notes; warnings stay.")

#: What a grid consists of: the options that `sweep run` and `sweep explain` share, and those of the one only.
GRID = [
    *GENERATED,
    *RECORDED,
    *FLEET,
    *EVENTS,
    POLICY,
    SLACK,
    *CACHES,
    ENGINE,
    CACHE_HIT_SPEEDUP,
    ADAPTER_SPEEDUP,
    *STEPS,
]
MANY = [SEEDS, WARMUP, SLO, WORKERS, EXECUTOR, DASK]

#: Sides that exclude each other.
_ALTERNATIVES: tuple[tuple[Sequence[str], Sequence[str]], ...] = (
    (("utilisation",), ("rate_per_s",)),
    (("speeds",), [str(option.name) for option in FLEET if option is not SPEEDS]),
    (("executor",), ("dask",)),
    ([str(option.name) for option in RECORDED], [str(option.name) for option in GENERATED]),
)


def flag(name: str) -> str:
    """Return the option of a parameter: ``--slo-ms`` for ``slo_ms``."""
    return "--" + name.replace("_", "-")


def given(ctx: click.Context) -> dict[str, Any]:
    """Return what the user gave, by parameter name; the command line goes before the config file.

    Raises
    ------
    InputError
        When options that exclude each other stand in the same place.
    """
    found = {name: value for name, value in ctx.params.items() if value is not None}
    for sides in _ALTERNATIVES:
        left, right = ([name for name in side if name in found] for side in sides)
        if not left or not right:
            continue
        typed = [[name for name in side if _typed(ctx, name)] for side in (left, right)]
        if bool(typed[0]) == bool(typed[1]):
            one, other = (flag((names or side)[0]) for names, side in zip(typed, (left, right), strict=True))
            raise InputError(f"{one} and {other} exclude each other; give only one of them.")
        for name in right if typed[0] else left:
            del found[name]
    return found


def _typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


@contextlib.contextmanager
def executor_of(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give what computes the blocks: settings with the name of an executor, a client of a Dask cluster, or none."""
    if "dask" not in found:
        yield {name: found[name] for name in ("executor",) if name in found}
        return
    import distributed

    connect: Callable[..., Any] = distributed.Client
    try:
        connected = connect(found["dask"], timeout="10s")
    except Exception as error:  # what an address that is none, or one where nobody listens, raises differs
        said = str(error) or type(error).__name__
        raise InputError(
            f"--dask {found['dask']}: no Dask scheduler can be reached there ({said}); give the address that the "
            "scheduler printed when it was started, such as tcp://host:8786."
        ) from error
    with connected as client:
        yield {"executor": client}


def make_fleet(found: dict[str, Any]) -> Fleet:
    """Return the fleet that the options of the groups `FLEET` and `EVENTS` describe."""
    return with_events(_make_speeds(found), found)


def _make_speeds(found: dict[str, Any]) -> Fleet:
    from sweep.fleet import Fleet

    if "speeds" in found:
        return Fleet.fixed(list(found["speeds"]))
    kind = found.get("fleet", "one_slow")
    heterogeneity = list(found.get("heterogeneity", (1.0,) if kind == "spread" else (0.0,)))
    settings = {}
    if "constant_capacity" in found:
        settings["constant_capacity"] = found["constant_capacity"]
    if "fleet_seed" in found:
        if kind != "lognormal":
            raise InputError(f"--fleet-seed does not apply to --fleet {kind}, only to lognormal.")
        settings["seed"] = found["fleet_seed"]
    make: Callable[..., Fleet] = getattr(Fleet, kind)
    return make(found.get("replicas", 4), heterogeneity, **settings)


def make_service(found: dict[str, Any]) -> ServiceModel:
    """Return the service model of a trace."""
    from sweep.requests import ServiceModel

    names = [str(option.name) for option in SERVICE_MODEL]
    return ServiceModel(**{name: found[name] for name in names if name in found})


def make_workload(found: dict[str, Any], replicas: int) -> Workload:
    """Return the workload that the options of the groups `GENERATED` and `RECORDED` describe."""
    from sweep.workload import Workload

    if "trace" in found:
        requests = make_requests(found, make_service(found))
        return Workload.resampled(requests, found["resample"]) if "resample" in found else Workload.fixed(requests)
    refuse_without_trace(found)
    for option in SERVICE_MODEL:
        if option.name in found:
            raise InputError(f"{flag(option.name)} applies only to --trace.")
    kind = found.get("workload", "poisson")
    make: Callable[..., Workload] = getattr(Workload, kind)
    allowed = inspect.signature(make).parameters
    settings = {}
    for option in GENERATED[1:]:
        name = str(option.name)
        if name in found and name not in allowed:
            raise InputError(f"{flag(name)} does not apply to --workload {kind}.")
        if name in found:
            value = found[name]
            settings[name] = value[0] if len(value) == 1 else list(value)
    if "requests" in allowed:
        settings.setdefault("requests", 2000)
        if "rate_per_s" not in settings:
            settings.setdefault("utilisation", 0.9)
            settings["replicas"] = replicas
    for name, parameter in allowed.items():
        if parameter.default is parameter.empty and name not in settings:
            raise InputError(f"--workload {kind} needs {flag(name)}.")
    return make(**settings)


def offered_load(workload: Workload, capacity: float, engine: str = "timeline", step_ms: float = 1.0) -> float:
    """Return the work that a workload without lists brings per unit of `capacity`, the total speed.

    It is what the rate and the mean service time say; of a recorded or scripted stream, what its requests say. On
    token steps it is tokens per token that can be served.
    """
    if engine == "token_step":
        requests = workload.realise(0)
        steps = np.ptp(requests.arrival_ms) / step_ms if len(requests) else 0.0
        return float(requests.tokens.sum()) / (BATCH * capacity * steps) if steps > 0.0 else math.nan
    parameters = workload.parameters
    if "utilisation" in parameters:
        return float(parameters["utilisation"] * parameters["replicas"] / capacity)
    if "rate_per_s" in parameters:
        return float(parameters["rate_per_s"] * parameters["mean_service_ms"] / 1000.0 / capacity)
    return workload.realise(0).offered_load(capacity)


def has_locality(workload: Workload) -> bool:
    """Return whether requests of a workload without lists have sessions or prefixes."""
    if "requests" in workload.parameters and workload.kind in ("fixed", "resampled"):
        requests = workload.parameters["requests"]
        return bool(requests.session_count or requests.prefix_count or requests.blocks is not None)
    return bool(workload.parameters.get("sessions") or workload.parameters.get("prefixes"))


def only_one(found: dict[str, Any], name: str, default: Any = None) -> Any:
    """Return the one value of a list option, `default` when it is not given.

    Raises
    ------
    InputError
        When there are several values.
    """
    values = found.get(name, (default,))
    if len(values) > 1:
        shown = ", ".join(label_text(value) for value in values[:3]) + (", ..." if len(values) > 3 else "")
        raise InputError(f"{flag(name)} has {len(values)} values ({shown}), but this command takes one; choose one.")
    return values[0]
