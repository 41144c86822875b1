"""What one process of a run does, from its place among the ranks to the result file."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable

import click

from sweep.errors import InputError
from sweep.torch_runner import makespan, replay
from sweep.torch_runner.devices import Device, evidence_level, hardware
from sweep.torch_runner.group import Group, PeerLost, Place, Value
from sweep.torch_runner.job import Job
from sweep.torch_runner.plan import COSTS, MakespanPlan
from sweep.torch_runner.points import ReplayPlan, plan_for
from sweep.torch_runner.report import Report, text_of
from sweep.torch_runner.watch import PLANNING, Board, Watch, hold_signals
from sweep.torch_runner.work import DEFAULT_DTYPE, Work, calibrated_unit


def run_rank(job: Job) -> None:
    """Do this process's part of a run; rank 0 writes the result and prints it.

    Raises
    ------
    InputError
        When the job cannot be run, on every rank.
    """
    place = Place.of_environment()
    if job.ranks not in (None, place.size):
        refuse_together()
        raise InputError(f"--ranks is {job.ranks}, but {place.size} were started; leave it out, or start as many.")
    hold_signals()
    board = Board(place.local_rank, place.local_size, place.rank)
    report = Report(job, place.size)
    watch = Watch(board, job.timeout, report.write_failure)
    watch.start()
    group = Group(place, board, job.timeout)
    try:
        if place.rank == 0:
            # It alone says why, and alone writes: another that found a result in between would refuse in silence.
            report.refuse_if_taken()
        # And what comes before the ranks meet: importing torch takes seconds, more on a busy machine.
        board.set(PLANNING)
        plan = plan_for(job, place.size)
        report.document["workload"] |= workload_of(job, plan)
        _run(job, plan, group, board, report)
    except PeerLost:
        watch.end_after(None)
    except InputError:
        watch.refuse()
        raise
    except BaseException as error:
        watch.end_after(f"{type(error).__name__}: {error}")
    watch.stop()
    group.leave()
    if place.rank == 0:
        click.echo(f"{text_of(report.document)}\n\nWrote {report.path}.")


def workload_of(job: Job, plan: MakespanPlan | ReplayPlan) -> dict[str, object]:
    """Return the parameters of the workload, beyond those that every run has."""
    if isinstance(plan, MakespanPlan):
        return {
            "request_count": len(COSTS),
            "request_cost_units": list(COSTS),
            "speeds": [list(plan.speeds)],
            "unit_ms": job.unit_ms,
            "products_per_unit": job.products_per_unit,
            "slack": job.slack_ms,
        }
    first = plan.points[0]
    return {
        "request_count": len(first.requests),
        "speeds": [list(point.speeds) for point in plan.points],
        "dataset": job.dataset.name if job.dataset else None,
        "trace": job.trace.name if job.trace else None,
        "select": list(job.select),
        "stream_fingerprints": [point.requests.fingerprint() for point in plan.points],
        "policies": [point.policy.label for point in plan.points],
        "slacks": [point.slack for point in plan.points],
        "seeds": [point.seed for point in plan.points],
        "cache_hit_speedup": first.cache_hit_speedup,
        "statistics_warmup": first.warmup,
        "time_scale": job.time_scale,
    }


def _run(job: Job, plan: MakespanPlan | ReplayPlan, group: Group, board: Board, report: Report) -> None:
    place, document = group.place, report.document
    if isinstance(plan, ReplayPlan) and place.size != place.local_size:
        raise InputError("A replay needs one clock: start all ranks on one host.")
    device = Device.of(place.local_rank, place.local_size)
    nccl = device.kind == "cuda" and device.turns == 1
    dtype = job.dtype or DEFAULT_DTYPE[device.kind]
    document["environment_profile"], document["evidence_level"] = device.profile, device.evidence
    document["workload"]["dtype"] = dtype
    group.start(nccl, device.torch_device)
    names = group.gather(device.name)
    _check_same(group, workload_of(job, plan))
    # All have opened the board by now.
    board.forget()
    # Hosts have run ids of their own; one of them replaces no failure of another.
    document["run_id"] = group.from_first(document["run_id"])
    document["hardware"] = hardware(device, names, nccl)
    document["evidence_level"] = evidence_level(device, names)
    device.take()
    work = _together(group, lambda: Work(device, job.compute_dim, dtype))
    # A collection of what the imports left would stop a rank in the middle of a measurement.
    gc.collect()
    gc.freeze()
    product_ms = group.from_first(work.product_ms() if place.rank == 0 else 0.0)
    if isinstance(plan, MakespanPlan):
        unit = calibrated_unit(product_ms, job.unit_ms, job.products_per_unit)
        makespan.check_duration(job, plan, device, unit)
        document["calibration"] = {
            "product_ms": unit.product_ms,
            "products_per_unit": unit.products,
            "unit_ms": unit.ms,
            "unit_ms_asked": None if job.products_per_unit else job.unit_ms or 10.0,
        }
        timings = makespan.measure(job, plan, group, device, work, unit, board)
        document["metrics"]["rows"] = makespan.rows(plan, unit, timings)
        document["prediction"], verdicts = makespan.compare(job, plan, device, unit, timings)
    else:
        scale = replay.time_scale(job, plan, product_ms)
        replay.check_duration(job, plan, device, scale)
        service = float(plan.points[0].requests.service_ms.mean())
        document["calibration"] = {
            "product_ms": product_ms,
            "time_scale": scale,
            "mean_service_products": service * scale / product_ms,
        }
        cases, notes = replay.measure(job, plan, group, device, work, scale, product_ms, board)
        found = [replay.compare_case(case, scale, product_ms) for case in cases]
        document["metrics"]["rows"] = replay.rows(cases, found, device, scale)
        document["prediction"], verdicts = replay.compare(job, cases, found, device)
        document["cannot_conclude"] += notes
    report.decide(verdicts)
    _together(group, report.write if place.rank == 0 else lambda: None)


def _check_same(group: Group, workload: dict[str, object]) -> None:
    """Raise `InputError`, on every rank, when the ranks have read different streams."""
    text = json.dumps(workload, sort_keys=True, default=str)
    found = group.gather(hashlib.sha256(text.encode()).hexdigest())
    other = next((rank for rank, digest in enumerate(found) if digest != found[0]), None)
    if other is not None:
        raise InputError(
            f"Rank {other} has another plan than rank 0: the trace or the Dataset changed while the ranks started; "
            "start again when it is whole."
        )


def _together(group: Group, part: Callable[[], Value]) -> Value:
    """Return what `part` returns; when it refuses on one rank, all ranks refuse."""
    done: list[Value] = []
    refusal = ""
    try:
        done.append(part())
    except InputError as error:
        refusal = str(error)
    refusals = [said for said in group.gather(refusal) if said]
    if refusals:
        raise InputError(refusals[0])
    return done[0]


def refuse_together() -> None:
    """Return when a rank that refuses its options may leave; at once in a process that is no rank."""
    with contextlib.suppress(InputError):
        place = Place.of_environment()
        hold_signals()
        Board(place.local_rank, place.local_size, place.rank).refuse(Job.timeout)


def is_first() -> bool:
    """Return whether this process is the one that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def leave_with(status: int) -> None:
    """End the process now: threads of torch must not keep a refused rank waiting."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
