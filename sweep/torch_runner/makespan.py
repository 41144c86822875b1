"""The makespan mode on a rank: every strategy's queue, round after round, and what the times say."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sweep.errors import InputError
from sweep.intervals import Estimate
from sweep.torch_runner import decision
from sweep.torch_runner.devices import Device
from sweep.torch_runner.group import Group
from sweep.torch_runner.job import Job
from sweep.torch_runner.plan import COSTS, Assignment, MakespanPlan, products_of
from sweep.torch_runner.watch import Board
from sweep.torch_runner.work import Elapsed, Unit, Work

QUANTITY = "makespan_ms"


class Timings(NamedTuple):
    """Times [ms] of one strategy, shaped (repeat, rank); processor times are None where ranks run on GPUs."""

    elapsed: np.ndarray[Any, Any]
    cpu: np.ndarray[Any, Any] | None

    @property
    def makespan(self) -> np.ndarray[Any, Any]:
        """Return the makespan of each repeat."""
        return np.asarray(self.elapsed.max(axis=1))


def check_duration(job: Job, plan: MakespanPlan, device: Device, unit: Unit) -> None:
    """Raise `InputError` when a rank would wait for another for so long that it takes it for hung."""
    longest = max(plan.makespan_units(assignment) for assignment in plan.assignments) * unit.ms / 1000
    waits = longest * (1 if job.concurrent_sharing else device.turns)
    if waits > job.timeout / 2:
        raise InputError(
            f"The queues take about {waits:.0f} s a round, too long for --timeout {job.timeout:g} s; give at least "
            f"--timeout {2 * waits:.0f}, or smaller units."
        )


def measure(
    job: Job, plan: MakespanPlan, group: Group, device: Device, work: Work, unit: Unit, board: Board
) -> list[Timings]:
    """Run all rounds and return the times of each strategy, from all ranks; collective.

    Strategies alternate within each round, and every other round goes through them backwards, so that a change of the
    machine's pace meets all of them alike. Strategies of one assignment are run once and share their times.
    """
    rank, speed = group.place.rank, plan.speeds[group.place.rank]
    turns = 1 if job.concurrent_sharing else device.turns
    distinct = [assignment for assignment in plan.assignments if plan.alike(assignment) is assignment]
    found: dict[str, list[Elapsed]] = {assignment.strategy: [] for assignment in distinct}
    for repeat in range(-job.warmup, job.repeats):
        for assignment in distinct if repeat % 2 == 0 else reversed(distinct):
            queue = assignment.products(rank, unit.products, speed)
            for turn in range(turns):
                group.barrier()
                if turn == device.turn or job.concurrent_sharing:
                    # The time of nothing is that of looking at the clock, no share of which means anything.
                    elapsed = work.timed(queue, board.beat) if queue else Elapsed(0.0, 0.0)
            if repeat >= 0:
                found[assignment.strategy].append(elapsed)
    ranks = group.gather(found)
    timings = []
    for assignment in plan.assignments:
        of_ranks = [times[plan.alike(assignment).strategy] for times in ranks]
        elapsed_ms = np.array([[times[k].ms for times in of_ranks] for k in range(job.repeats)])
        cpu_ms = np.array([[times[k].cpu_ms for times in of_ranks] for k in range(job.repeats)])
        timings.append(Timings(elapsed_ms, cpu_ms if device.kind == "cpu" else None))
    return timings


def rows(plan: MakespanPlan, unit: Unit, timings: list[Timings]) -> list[dict[str, Any]]:
    """Return the rows of the result, one per strategy."""
    found = []
    for assignment, times in zip(plan.assignments, timings, strict=True):
        makespan = float(np.median(times.makespan))
        products = _products(plan, assignment, unit)
        interval = decision.interval_of(times.makespan.tolist())
        repeats: dict[str, Any] = {"makespan_ms": times.makespan.tolist(), "rank_elapsed_ms": times.elapsed.tolist()}
        if times.cpu is not None:
            repeats["rank_cpu_ms"] = times.cpu.tolist()
        found.append(
            {
                "strategy": assignment.strategy,
                "measured_with": _measured_with(plan, assignment),
                "request_cost_units_per_rank": assignment.units(plan.ranks),
                "products_per_rank": products,
                "rank_speed_asked": list(plan.speeds),
                "rank_speed_achieved": _speeds_achieved(plan, assignment, times),
                "rank_speed_of_whole_products": [_speed_of_products(unit, speed) for speed in plan.speeds],
                "rank_elapsed_ms": np.median(times.elapsed, axis=0).tolist(),
                "rank_cpu_ms": None if times.cpu is None else np.median(times.cpu, axis=0).tolist(),
                "max_rank_makespan_ms": makespan,
                "throughput_requests_per_s_proxy": len(COSTS) * 1000.0 / makespan,
                "spread": {
                    "smallest": float(times.makespan.min()),
                    "largest": float(times.makespan.max()),
                    "lower": float(interval.lower),
                    "upper": float(interval.upper),
                },
                "repeats": repeats,
            }
        )
    return found


def compare(
    job: Job, plan: MakespanPlan, device: Device, unit: Unit, timings: list[Timings]
) -> tuple[dict[str, Any], list[decision.Verdict]]:
    """Return prediction beside measurement for strategies and pairs of them, and the verdicts on the pairs."""
    slots = device.slots if job.concurrent_sharing else plan.ranks
    spans = [_span(_products(plan, assignment, unit), slots) for assignment in plan.assignments]
    points, pairs, verdicts = [], [], []
    for assignment, times, span in zip(plan.assignments, timings, spans, strict=True):
        predicted = span * unit.product_ms
        points.append(
            {
                "strategy": assignment.strategy,
                "quantity": QUANTITY,
                "predicted": predicted,
                "predicted_from_calibration": predicted,
                "measured": decision.as_dict(decision.interval_of(times.makespan.tolist())),
                "ratio": decision.as_dict(decision.interval_of((times.makespan / predicted).tolist())),
                "verdict": decision.NOT_JUDGED,
                "reason": "the ratio of strategies is judged, in which the speed of the device cancels",
            }
        )
    base = plan.assignments[0]
    for assignment, times, span in list(zip(plan.assignments, timings, spans, strict=True))[1:]:
        measured = decision.ratio_of(timings[0].makespan.tolist(), times.makespan.tolist())
        predicted = spans[0] / span
        if plan.alike(assignment) is base:
            verdict = decision.Verdict(decision.NOT_JUDGED, f"the assignment of {base.strategy}, so one measurement")
        elif job.concurrent_sharing:
            verdict = decision.judge_sharing(measured, predicted, job.tolerance)
        else:
            caveats = [cause for pair in (timings[0], times) for cause in decision.busy_caveats(pair.cpu, pair.elapsed)]
            verdict = decision.judge(measured, predicted, job.tolerance, caveats[:1])
        verdicts.append(verdict)
        pairs.append(_pair(assignment, base, QUANTITY, predicted, measured, verdict))
    for assignment, times, span in list(zip(plan.assignments, timings, spans, strict=True))[1:]:
        if times.cpu is not None and timings[0].cpu is not None and not job.concurrent_sharing:
            spent = decision.ratio_of(timings[0].cpu.max(axis=1).tolist(), times.cpu.max(axis=1).tolist())
            verdict = decision.Verdict(decision.NOT_JUDGED, "the work that was done, whoever else used the cores")
            pairs.append(_pair(assignment, base, "max_rank_cpu_ms", spans[0] / span, spent, verdict))
    return {"points": points, "pairs": pairs}, verdicts


def _measured_with(plan: MakespanPlan, assignment: Assignment) -> str | None:
    first = plan.alike(assignment)
    return None if first is assignment else first.strategy


def _pair(
    assignment: Assignment,
    base: Assignment,
    quantity: str,
    predicted: float,
    measured: Estimate,
    verdict: decision.Verdict,
) -> dict[str, Any]:
    return {
        "strategy": assignment.strategy,
        "against": base.strategy,
        "quantity": f"ratio of {quantity}",
        "predicted": predicted,
        "measured": decision.as_dict(measured),
        "verdict": verdict.verdict,
        "reason": verdict.reason,
    }


def _products(plan: MakespanPlan, assignment: Assignment, unit: Unit) -> list[int]:
    return [sum(assignment.products(r, unit.products, speed)) for r, speed in enumerate(plan.speeds)]


def _span(products: list[int], slots: int) -> int:
    """Return the products of the busiest device; rank r works on device r modulo their number."""
    return max(sum(products[slot::slots]) for slot in range(min(slots, len(products))))


def _speeds_achieved(plan: MakespanPlan, assignment: Assignment, times: Timings) -> list[float]:
    """Return each rank's cost units per time over all repeats, the fastest 1; NaN for a rank without work."""
    units, elapsed = np.array(assignment.units(plan.ranks), float), times.elapsed.sum(axis=0)
    speeds = np.divide(units, elapsed, out=np.full(plan.ranks, np.nan), where=units > 0)
    return [float(speed) for speed in speeds / np.nanmax(speeds)]


def _speed_of_products(unit: Unit, speed: float) -> float:
    """Return the speed that whole products give, over the requests of the workload."""
    return sum(COSTS) * unit.products / sum(products_of(cost, unit.products, speed) for cost in COSTS)
