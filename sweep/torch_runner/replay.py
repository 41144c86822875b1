"""The replay mode on a rank: streams in real time, routed as planned and online, and what the times say."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sweep.errors import InputError
from sweep.torch_runner import decision, lines, online
from sweep.torch_runner.clock import now_ns
from sweep.torch_runner.devices import Device
from sweep.torch_runner.group import Group
from sweep.torch_runner.job import Job
from sweep.torch_runner.measured import JUDGED, QUANTITIES, Array, Served, first_in_first_out, statistics_of
from sweep.torch_runner.points import Point, ReplayPlan, is_baseline
from sweep.torch_runner.serve import Log, Server, products_for
from sweep.torch_runner.watch import WAITING, WORKING, Board
from sweep.torch_runner.work import Work

PLANNED, ONLINE = "planned", "online"
LEAST_PRODUCTS, LEAST_SERVICE_MS = 20, 5.0
#: From the agreement on a start until it: every rank must have heard of it.
_LEAD_NS = 50_000_000


class Replayed(NamedTuple):
    """One replay, from the logs of all ranks: what was served, real times, and what each rank spent [ms]."""

    served: Served
    products: Array
    products_per_rank: Array
    busy_ms: Array
    cpu_ms: Array
    elapsed_ms: Array
    late_ms: Array

    @property
    def product_ms(self) -> Array:
        """Return the time of a product on each rank, as achieved; NaN for a rank that served nothing."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.busy_ms / self.products_per_rank)


class Case(NamedTuple):
    """A point routed one way, and its repeats."""

    point: Point
    routing: str
    replays: list[Replayed]


def time_scale(job: Job, plan: ReplayPlan, product_ms: float) -> float:
    """Return the real ms per simulated ms: what was asked for, else so that services are long enough to time.

    Raises
    ------
    InputError
        When the scale asked for makes the mean service shorter than `LEAST_PRODUCTS` products.
    """
    shortest = min(float(point.requests.service_ms.mean()) / max(point.speeds) for point in plan.points)
    if not shortest > 0:
        raise InputError("All requests of the stream have a service time of 0; there is nothing to replay.")
    least = LEAST_PRODUCTS * product_ms / shortest
    if job.time_scale is None:
        return max(least, LEAST_SERVICE_MS / shortest)
    if job.time_scale < least:
        raise InputError(
            f"--time-scale {job.time_scale:g} makes the mean service {job.time_scale * shortest / product_ms:.1f} "
            f"products; with at least {LEAST_PRODUCTS} it can be timed: give --time-scale {least:.3g} or more, or a "
            "smaller --compute-dim."
        )
    return job.time_scale


def check_duration(job: Job, plan: ReplayPlan, device: Device, scale: float) -> None:
    """Raise `InputError` when a replay takes so long that a waiting rank takes the others for hung."""
    for point in plan.points:
        served = point.simulated()
        waits = scale * float((served.start + served.effective).max()) * device.turns / 1000
        if waits > job.timeout / 2:
            raise InputError(
                f"A replay of {point.name} takes about {waits:.0f} s, too long for --timeout {job.timeout:g} s; give "
                f"--timeout {2 * waits:.0f}, fewer --requests or a smaller --compute-dim."
            )


def measure(
    job: Job, plan: ReplayPlan, group: Group, device: Device, work: Work, scale: float, product_ms: float, board: Board
) -> tuple[list[Case], list[str]]:
    """Replay every point as often as asked; collective. Return the cases, and why some were not routed online."""
    server = Server(work, board)
    cases = [Case(point, PLANNED, []) for point in plan.points]
    reasons = {point.name: online.why_not(point, device.turns) for point in plan.points}
    cases += [Case(point, ONLINE, []) for point in plan.points if not reasons[point.name]]
    board.set(WAITING)
    simulated = {point.name: point.simulated() for point in plan.points}
    board.set(WORKING)
    connected = lines.connect(group) if len(cases) > len(plan.points) else {}
    for repeat in range(-job.warmup, job.repeats):
        for case in cases:
            point = case.point
            products = products_for(point, scale, product_ms)
            if case.routing == ONLINE:
                pace = online.Pace(scale, product_ms, _agreed_start(group))
                log = online.replay_online(point, group, device, server, products, pace, connected)
            else:
                log = _planned(simulated[point.name], group, device, server, products, scale)
            logs = group.gather(log)
            if repeat >= 0:
                case.replays.append(_joined(point, logs, scale))
    for line in connected.values():
        line.close()
    said = [f"{name} was not routed online: {why}" for name, why in reasons.items() if why]
    return cases, said


def _agreed_start(group: Group) -> int:
    """Return when all ranks begin [ns of their host's clock]: a little after the last of them has come; collective."""
    group.barrier()
    return group.from_first(now_ns() + _LEAD_NS)


def _planned(plan: Served, group: Group, device: Device, server: Server, products: Array, scale: float) -> Log:
    """Serve this rank's share of a planned replay, at the same time as the others or when its turn has come."""
    rank = group.place.rank
    mine = np.flatnonzero(plan.replica == rank)
    count = np.where(plan.hit, products[1, rank], products[0, rank])
    for turn in range(device.turns):
        begin = _agreed_start(group)
        if turn == device.turn:
            log = server.serve_planned(mine.tolist(), plan.arrival * scale, count, plan.hit, begin)
    return log


def _joined(point: Point, logs: list[Log], scale: float) -> Replayed:
    """Return one replay from what the ranks did, in simulated ms where it is to be compared."""
    n, ranks = len(point.requests), len(logs)
    start, finish = np.full(n, np.nan), np.full(n, np.nan)
    replica, products, hit = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, bool)
    for rank, log in enumerate(logs):
        at = np.array(log.request, np.int64)
        start[at], finish[at] = log.start, log.finish
        replica[at], products[at], hit[at] = rank, log.products, log.hit
    took = finish - start
    arrival = point.requests.arrival_ms
    served = Served(arrival, np.maximum(start / scale, arrival), took / scale, replica, hit)
    return Replayed(
        served,
        products,
        np.bincount(replica, products, ranks).astype(np.int64),
        np.bincount(replica, took, ranks),
        np.array([sum(log.cpu_ms) for log in logs]),
        np.array([max(log.finish, default=0.0) for log in logs]),
        np.array([log.late_ms for log in logs]),
    )


def recomputed(case: Case, replay: Replayed, scale: float, product_ms: float) -> Served:
    """Return what the simulator says of a replay under the pace that each rank achieved in it.

    A planned replay keeps its routing and its whole products; an online one is routed again by its policy, with a
    perfect view of the ranks.
    """
    point = case.point
    pace = np.where(np.isnan(replay.product_ms), product_ms, replay.product_ms) / scale
    if case.routing == ONLINE:
        whole = np.maximum(np.rint(point.requests.service_ms * scale / product_ms), 1.0)
        return point.simulated_with(whole, [speed / ms for speed, ms in zip(point.speeds, pace, strict=True)])
    served = replay.served
    effective = replay.products * pace[served.replica]
    start = first_in_first_out(served.arrival, effective, served.replica, len(pace))
    return served._replace(start=start, effective=effective)


def from_calibration(case: Case, scale: float, product_ms: float) -> Served:
    """Return what is predicted before the run: the plan in whole products at the calibrated pace."""
    plan = case.point.simulated()
    products = products_for(case.point, scale, product_ms)
    at = (plan.hit.astype(int), plan.replica, np.arange(len(plan.replica)))
    effective = products[at] * product_ms / scale
    start = first_in_first_out(plan.arrival, effective, plan.replica, len(case.point.speeds))
    return plan._replace(start=start, effective=effective)


class Compared(NamedTuple):
    """The statistics of a case: measured and recomputed per repeat, from calibration, as simulated."""

    measured: list[dict[str, float]]
    predicted: list[dict[str, float]]
    calibrated: dict[str, float]
    simulated: dict[str, float]

    def values(self, name: str) -> tuple[list[float], list[float]]:
        """Return a quantity per repeat, measured and predicted."""
        return [found[name] for found in self.measured], [found[name] for found in self.predicted]


def compare_case(case: Case, scale: float, product_ms: float) -> Compared:
    """Return the statistics of a case, all by the same code."""
    ranks, warmup = len(case.point.speeds), case.point.warmup
    return Compared(
        [statistics_of(replay.served, ranks, warmup) for replay in case.replays],
        [statistics_of(recomputed(case, replay, scale, product_ms), ranks, warmup) for replay in case.replays],
        statistics_of(from_calibration(case, scale, product_ms), ranks, warmup),
        statistics_of(case.point.simulated(), ranks, warmup),
    )


def rows(cases: list[Case], found: list[Compared], device: Device, scale: float) -> list[dict[str, Any]]:
    """Return the rows of the result, one per point and routing."""
    rows = []
    for case, compared in zip(cases, found, strict=True):
        replays, point = case.replays, case.point
        elapsed = np.array([replay.elapsed_ms for replay in replays])
        spans = elapsed.max(axis=1)
        interval = decision.interval_of(spans.tolist())
        speeds = np.array(point.speeds) / max(point.speeds)
        repeats: dict[str, Any] = {
            "makespan_ms": spans.tolist(),
            "rank_elapsed_ms": elapsed.tolist(),
            "rank_busy_ms": [replay.busy_ms.tolist() for replay in replays],
            "rank_product_ms": [replay.product_ms.tolist() for replay in replays],
            "products_per_rank": [replay.products_per_rank.tolist() for replay in replays],
            "rank_late_ms": [replay.late_ms.tolist() for replay in replays],
            "requests_per_rank": [np.bincount(r.served.replica, minlength=len(speeds)).tolist() for r in replays],
        }
        if device.kind == "cpu":
            repeats["rank_cpu_ms"] = [replay.cpu_ms.tolist() for replay in replays]
        middle = np.median([replay.products_per_rank for replay in replays], axis=0)
        rows.append(
            {
                "strategy": point.name,
                "routing": case.routing,
                "policy": point.policy.label,
                "slack": point.slack,
                "seed": point.seed,
                "request_cost_units_per_rank": np.rint(middle).astype(int).tolist(),
                "rank_speed_asked": speeds.tolist(),
                "rank_speed_achieved": _speeds_achieved(case, scale),
                "hit_service_ratio": _hit_service_ratio(case),
                "rank_elapsed_ms": np.median(elapsed, axis=0).tolist(),
                "rank_busy_ms": np.median([replay.busy_ms for replay in replays], axis=0).tolist(),
                "rank_cpu_ms": np.median([r.cpu_ms for r in replays], axis=0).tolist()
                if device.kind == "cpu"
                else None,
                "max_rank_makespan_ms": float(np.median(spans)),
                "throughput_requests_per_s_proxy": len(point.requests) * 1000.0 / float(np.median(spans)),
                "spread": {
                    "smallest": float(spans.min()),
                    "largest": float(spans.max()),
                    "lower": float(interval.lower),
                    "upper": float(interval.upper),
                },
                "statistics": {
                    name: float(np.median([m[name] for m in compared.measured])) for name in compared.simulated
                },
                "repeats": repeats,
            }
        )
    return rows


def _speeds_achieved(case: Case, scale: float) -> list[float]:
    """Return each rank's nominal work per busy time over all repeats, the fastest 1; NaN for one that did nothing."""
    point = case.point
    nominal, busy = np.zeros(len(point.speeds)), np.zeros(len(point.speeds))
    for replay in case.replays:
        saved = np.where(replay.served.hit, 1.0 - point.cache_hit_speedup, 1.0)
        work = point.requests.service_ms * saved * scale
        nominal += np.bincount(replay.served.replica, work, len(nominal))
        busy += replay.busy_ms
    speeds = np.divide(nominal, busy, out=np.full(len(busy), np.nan), where=busy > 0)
    return [float(speed) for speed in speeds / np.nanmax(speeds)]


def _hit_service_ratio(case: Case) -> float:
    """Return how long a hit took per nominal service time, relative to a request without one; NaN without both."""
    took, nominal = np.zeros(2), np.zeros(2)
    for replay in case.replays:
        served = replay.served
        whole = case.point.requests.service_ms / np.array(case.point.speeds)[served.replica]
        for hit in (0, 1):
            took[hit] += served.effective[served.hit == hit].sum()
            nominal[hit] += whole[served.hit == hit].sum()
    pace = np.divide(took, nominal, out=np.full(2, np.nan), where=nominal > 0)
    return float(pace[1] / pace[0])


def compare(
    job: Job, cases: list[Case], found: list[Compared], device: Device
) -> tuple[dict[str, Any], list[decision.Verdict]]:
    """Return prediction beside measurement for points and pairs of them, and the verdicts."""
    points, pairs, verdicts = [], [], []
    caveats = [_caveats(case, device) for case in cases]
    for case, compared, caveat in zip(cases, found, caveats, strict=True):
        for name in QUANTITIES:
            measured, predicted = map(np.array, compared.values(name))
            with np.errstate(invalid="ignore", divide="ignore"):
                ratios = measured / predicted
            ratio = decision.interval_of(ratios.tolist())
            verdict = decision.Verdict(decision.NOT_JUDGED, f"{JUDGED} is judged")
            if name == JUDGED:
                verdict = decision.judge(ratio, 1.0, job.tolerance, caveat)
                verdicts.append(verdict)
            points.append(
                {
                    "strategy": case.point.name,
                    "routing": case.routing,
                    "quantity": name,
                    "predicted": float(np.median(predicted)),
                    "predicted_from_calibration": compared.calibrated[name],
                    "simulated": compared.simulated[name],
                    "measured": decision.as_dict(decision.interval_of(measured.tolist())),
                    "ratio": decision.as_dict(ratio),
                    "median_absolute_error": float(np.median(np.abs(ratios - 1.0))),
                    "repeats": {"measured": measured.tolist(), "predicted": predicted.tolist()},
                    "verdict": verdict.verdict,
                    "reason": verdict.reason,
                }
            )
    for base, other in _pairs(cases):
        ours, theirs = (found[i].values(JUDGED) for i in (other, base))
        measured_ratio = decision.ratio_of(theirs[0], ours[0])
        predicted_ratio = float(decision.ratio_of(theirs[1], ours[1]).mean)
        verdict = decision.judge(measured_ratio, predicted_ratio, job.tolerance, [*caveats[base], *caveats[other]][:1])
        verdicts.append(verdict)
        names = [cases[i].point.name for i in (base, other)]
        pairs.append(
            {
                "strategy": names[1],
                "against": names[0],
                "routing": cases[other].routing,
                "quantity": f"ratio of {JUDGED}",
                "predicted": predicted_ratio,
                "measured": decision.as_dict(measured_ratio),
                "verdict": verdict.verdict,
                "reason": verdict.reason,
            }
        )
    return {"points": points, "pairs": pairs}, verdicts


def _caveats(case: Case, device: Device) -> list[str]:
    late, cpu, busy = ([getattr(replay, name) for replay in case.replays] for name in ("late_ms", "cpu_ms", "busy_ms"))
    return decision.late_caveats(late) + (decision.busy_caveats(cpu, busy) if device.kind == "cpu" else [])


def _pairs(cases: list[Case]) -> list[tuple[int, int]]:
    """Return (baseline, other) of the cases on one stream and fleet, routed the same way."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    for i, case in enumerate(cases):
        groups.setdefault((case.point.group, case.point.seed, case.routing), []).append(i)
    found = []
    for members in groups.values():
        base = next((i for i in members if is_baseline(cases[i].point)), members[0])
        found += [(base, i) for i in members if i != base]
    return found
