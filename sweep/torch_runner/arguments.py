"""The options of ``python -m sweep.torch_runner`` and ``sweep validate``."""

from __future__ import annotations

from sweep.cli import arguments, trace_arguments
from sweep.cli.options import FILE, INTEGER, NUMBER, Option

_WHAT, _WORK, _STREAM, _OUTPUT = "What to run", "The work", "The stream", "Output"

OPTIONS = [
    Option(
        "--mode",
        group=_WHAT,
        text="makespan (also spelled replica_routing): eight requests of known cost, spread over the ranks; replay: a "
        "request stream in real time.",
        shown="makespan; replay with --dataset or --trace",
        metavar="makespan|replay",
    ),
    Option(
        "--ranks",
        group=_WHAT,
        type=INTEGER,
        text="Processes, one per replica; under torchrun what it started.",
        shown="the replicas of the Dataset or --speeds, else 2",
    ),
    Option("--dataset", group=_WHAT, type=FILE, text="Result of `sweep run` whose points to replay (.zarr or .nc)."),
    Option(
        "--select",
        group=_WHAT,
        multiple=True,
        text='Points of the Dataset: frontier, best, worst, and coordinates such as "policy=queue_aware,slack=5"; '
        "may be given several times.",
        shown="best",
        metavar="POINTS",
    ),
    Option(
        "--trace",
        group="Recorded traffic",
        type=FILE,
        text="Trace to replay, in any format of `sweep trace info --help`, but without chains of blocks.",
    ),
    *arguments.SERVICE_MODEL,
    *trace_arguments.READER,
    *trace_arguments.SHAPE,
    Option(
        "--requests", group=_STREAM, type=INTEGER, text="First requests of the stream to replay.", shown="200, or all"
    ),
    Option(
        "--time-scale",
        group=_STREAM,
        type=NUMBER,
        unit="real ms per simulated ms",
        text="How fast the stream arrives.",
        shown="a mean service of 5 ms and of 20 products at least",
    ),
    Option(
        "--policy",
        group=_WHAT,
        type=arguments.POLICY.type,
        text="Policies to compare; the makespan mode adds them to its own two.",
        shown="all that apply",
    ),
    Option("--slack", group=_WHAT, type=NUMBER, unit="ms", text="Locality slack of the policies.", shown="5"),
    Option(
        "--speeds",
        group=_WORK,
        type=arguments.SPEEDS.type,
        text="Speed of each rank; the fastest becomes 1, a slower one repeats its work.",
        shown="equal",
    ),
    Option("--compute-dim", group=_WORK, type=INTEGER, text="Side of the square matrices multiplied.", shown="768"),
    Option("--dtype", group=_WORK, text="Their type.", shown="bfloat16 on CUDA, float32 on CPU", metavar="NAME"),
    Option("--unit-ms", group=_WORK, type=NUMBER, unit="ms", text="Time of one cost unit, calibrated.", shown="10"),
    Option(
        "--products-per-unit",
        group=_WORK,
        type=INTEGER,
        text="Matrix products of one cost unit, instead of --unit-ms.",
    ),
    Option("--warmup", group=_WORK, type=INTEGER, text="Rounds left out.", shown="2"),
    Option("--repeats", group=_WORK, type=INTEGER, text="Rounds measured.", shown="5"),
    Option(
        "--concurrent-sharing",
        group=_WORK,
        is_flag=True,
        text="Let ranks that share a device use it at once instead of in turn; never confirmed.",
    ),
    Option("--tolerance", group=_WORK, type=NUMBER, text="How far from the prediction confirms it.", shown="0.1"),
    Option("--timeout", group=_WORK, type=NUMBER, unit="s", text="A rank that hangs ends the run.", shown="60"),
    Option("--label", "--run-label", "label", group=_OUTPUT, text="Name of the run in its file.", shown="default"),
    Option("--workload-id", group=_OUTPUT, text="Name of the workload in its file.", shown="by mode or file"),
    Option(
        "--output",
        group=_OUTPUT,
        type=FILE,
        text="Folder, or a .json file, to write to.",
        shown="reports/torch",
    ),
    Option("--force", group=_OUTPUT, is_flag=True, text="Replace a result of the same label."),
    Option("--dry-run", group=_OUTPUT, is_flag=True, text="Print the plan; run and write nothing."),
    Option("--preflight", group=_OUTPUT, is_flag=True, text="Say what this machine can show; run and write nothing."),
]
