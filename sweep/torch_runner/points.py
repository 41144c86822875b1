"""The points to replay: cells of a Dataset that a selection names, or policies on a trace or the default stream."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import sweep
from sweep.cells import Cell, group_dims, plain, points, whole
from sweep.cells import Point as Place
from sweep.cli.options import split_list
from sweep.console import Column, label_text, table
from sweep.errors import InputError
from sweep.policies import Policy, as_policies
from sweep.requests import Requests
from sweep.torch_runner.job import DEFAULT_SLACK_MS, MAKESPAN, Job
from sweep.torch_runner.plan import DEFAULT_RANKS, ROUND_ROBIN, MakespanPlan, plan_makespan

if TYPE_CHECKING:
    import xarray as xr

    from sweep.torch_runner.measured import Served

BEST, WORST, FRONTIER = "best", "worst", "frontier"
OBJECTIVE = "p99_queue_wait_ms"
#: The default stream: short enough for a test, loaded enough for queues to form.
REQUESTS, UTILISATION, MEAN_SERVICE_MS, SESSIONS = 200, 0.8, 10.0, 20
#: The settings of a sweep that a replay can keep, or that change no number of the timeline.
_SETTINGS = ("cache_hit_speedup", "warmup", "slo_ms", "steps", "step_ms")
_POLICIES = ("round_robin", "queue_aware", "locality_aware")


@dataclass(frozen=True)
class Point:
    """One cell to replay: a policy on a stream and a fleet; points of one `group` share both."""

    name: str
    group: str
    policy: Policy
    slack: float
    speeds: tuple[float, ...]
    requests: Requests
    seed: int
    cache_hit_speedup: float
    warmup: int

    def simulated(self) -> Served:
        """Return what the simulator says of every request, the plan of the replay."""
        return self._simulated(self.requests, self.speeds)

    def simulated_with(self, service_ms: np.ndarray[Any, Any], speeds: Sequence[float]) -> Served:
        """Return the same under other service times and speeds."""
        return self._simulated(dataclasses.replace(self.requests, service_ms=service_ms), speeds)

    def _simulated(self, requests: Requests, speeds: Sequence[float]) -> Served:
        from sweep.torch_runner.measured import Served

        found = sweep.simulate(
            requests,
            speeds,
            policy=self.policy,
            slack=self.slack,
            seed=self.seed,
            cache_hit_speedup=self.cache_hit_speedup,
        )
        names = ("arrival_ms", "start_ms", "effective_service_ms", "replica_id", "cache_hit")
        return Served(*(found[name].values for name in names))


@dataclass(frozen=True)
class ReplayPlan:
    """The points to replay on `ranks` ranks."""

    ranks: int
    points: tuple[Point, ...]

    def text(self) -> str:
        """Return the plan as a table."""
        from sweep.torch_runner.measured import statistics_of

        simulated = [point.simulated() for point in self.points]
        found = [statistics_of(s, self.ranks, point.warmup) for s, point in zip(simulated, self.points, strict=True)]
        loads = [point.requests.offered_load(sum(point.speeds)) for point in self.points]
        columns = [
            Column("point", [point.name for point in self.points], left=True),
            Column("requests", [str(len(point.requests)) for point in self.points]),
            Column("speeds", [" ".join(f"{speed:.3g}" for speed in point.speeds) for point in self.points]),
            Column("offered load", [f"{load:.2f}" for load in loads]),
            Column("per rank", [" ".join(map(str, np.bincount(s.replica, minlength=self.ranks))) for s in simulated]),
            Column("P95 queue wait", [f"{item['p95_queue_wait_ms']:.2f}" for item in found], "ms"),
            Column("makespan", [f"{item['makespan_ms']:.1f}" for item in found], "ms"),
        ]
        return f"Replay on {self.ranks} rank{'' if self.ranks == 1 else 's'}, simulated times.\n\n{table(columns)}"


def plan_for(job: Job, ranks: int | None = None) -> MakespanPlan | ReplayPlan:
    """Return the plan of a job for `ranks` processes, by default as many as it needs."""
    return plan_makespan(job, ranks) if job.mode == MAKESPAN else plan_replay(job, ranks)


def plan_replay(job: Job, ranks: int | None = None) -> ReplayPlan:
    """Return the points that a job asks for.

    Raises
    ------
    InputError
        For a Dataset that cannot be replayed, a selection that matches nothing, or another number of replicas
        than ranks.
    """
    if job.dataset:
        found = _of_dataset(job)
    else:
        size = ranks or job.ranks or (len(job.speeds) if job.speeds else DEFAULT_RANKS)
        speeds = job.speeds or (1.0,) * size
        stream = _stream(job, sum(speeds))
        chosen = as_policies(job.policy or _POLICIES, "timeline")
        found = [Point(policy.label, "", policy, job.slack_ms, speeds, stream, 0, 0.30, 0) for policy in chosen]
    replicas = len(found[0].speeds)
    wanted = ranks or job.ranks or replicas
    if wanted != replicas:
        raise InputError(
            f"There are {wanted} ranks for {replicas} replicas; every rank is one replica, so start {replicas} ranks."
        )
    if any(point.requests.blocks is not None for point in found):
        raise InputError(
            "The stream has prompt blocks, and a rank has no cache of blocks; replay a stream whose requests have "
            "prefix keys or none."
        )
    if not len(found[0].requests):
        raise InputError("The stream has no requests, so there is nothing to replay.")
    from sweep.torch_runner.measured import statistics_of

    # On a machine's first run kernels are compiled: here, while nobody waits for a rank that is at work.
    for point in found:
        statistics_of(point.simulated(), replicas, point.warmup)
    return ReplayPlan(replicas, tuple(found))


def _stream(job: Job, capacity: float) -> Requests:
    if job.trace:
        from sweep.cli.trace_arguments import make_requests

        return _first(make_requests({"trace": job.trace, **job.reading}, job.service_model), job.requests)
    rate = 1000.0 * UTILISATION * capacity / MEAN_SERVICE_MS
    work = sweep.Workload.poisson(
        job.requests or REQUESTS,
        rate_per_s=rate,
        mean_service_ms=MEAN_SERVICE_MS,
        sessions=SESSIONS,
        prefixes=SESSIONS,
    )
    return work.realise(0)


def _first(requests: Requests, count: int | None) -> Requests:
    if count is None or count >= len(requests):
        return requests
    return Requests.from_records(requests.to_records()[:count])


def _of_dataset(job: Job) -> list[Point]:
    assert job.dataset is not None
    ds = sweep.open(job.dataset)
    missing = [name for name in ("sweep_version", "engine", "workload", "settings") if name not in ds.attrs]
    if missing:
        raise InputError(f"{job.dataset} lacks the attribute {missing[0]!r}; give a Dataset that sweep run wrote.")
    if ds.attrs["sweep_version"] != sweep.__version__:
        raise InputError(
            f"{job.dataset} was made by sweep {ds.attrs['sweep_version']}, this is {sweep.__version__}, whose streams "
            "and kernels may differ; run the sweep again."
        )
    if ds.attrs["engine"] != "timeline":
        raise InputError(
            f"{job.dataset} is of the engine {ds.attrs['engine']!r}; only points of 'timeline' can be replayed."
        )
    beyond = [name for name in json.loads(ds.attrs["settings"]) if name not in _SETTINGS]
    workload = sweep.Workload.from_dict(json.loads(ds.attrs["workload"]))
    beyond += [dim for dim in group_dims(whole(ds, OBJECTIVE)) if dim not in ("heterogeneity", *workload.dims)]
    if beyond:
        raise InputError(f"{job.dataset} was made with {beyond[0]}, which a replay on ranks does not have.")
    chosen: dict[tuple[Any, ...], Point] = {}
    for text in job.select or (BEST,):
        for point in _selected(ds, text, job):
            chosen.setdefault((point.name, point.seed), point)
    return list(chosen.values())


def _selected(ds: xr.Dataset, text: str, job: Job) -> list[Point]:
    keyword, wanted = _parsed(text, ds)
    seeds = [int(seed) for seed in ds["seed"].values]
    seed = next((seed for seed in seeds if "seed" not in wanted or _same(seed, wanted["seed"])), None)
    found = []
    for labels, policy, slack in _cells(ds, keyword):
        place = {"policy": policy, "slack": slack, **labels}
        if seed is not None and all(_same(place[key], value) for key, value in wanted.items() if key != "seed"):
            found.append(_point(ds, labels, policy, slack, seed, job))
    if not found:
        sizes = {dim: ds[dim].values for dim in ("policy", "slack", *group_dims(whole(ds, OBJECTIVE)), "seed")}
        listed = "; ".join(f"{dim}: {_listing(values)}" for dim, values in sizes.items())
        raise InputError(f"--select {text!r} matches no point of the Dataset, which has {listed}.")
    return found


def _parsed(text: str, ds: xr.Dataset) -> tuple[str, dict[str, str]]:
    """Return the keyword of a selection, if any, and the coordinates that it names."""
    keyword, wanted = "", {}
    known = ("policy", "slack", *group_dims(whole(ds, OBJECTIVE)), "seed")
    for item in split_list(text):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals and key in (BEST, WORST, FRONTIER) and not keyword:
            keyword = key
        elif equals and key in known:
            wanted[key] = value
        else:
            raise InputError(
                f"--select {text!r}: {item!r} is neither {FRONTIER}, {BEST} or {WORST} nor one of "
                f"{', '.join(f'{name}=...' for name in known)}."
            )
    return keyword, wanted


def _cells(ds: xr.Dataset, keyword: str) -> list[tuple[dict[str, Any], str, float]]:
    """Return (labels, policy, slack) of the cells that a keyword names, of all cells where there is none."""
    from sweep.analysis import frontier, recommend

    if keyword == FRONTIER:
        groups = group_dims(whole(ds, OBJECTIVE))
        rows = [row for row in frontier(ds).to_dict("records") if row["policy"] is not None]
        return [({dim: row[dim] for dim in groups}, row["policy"], row["slack"]) for row in rows]
    places = list(points(ds, OBJECTIVE))
    if not keyword:
        return [(place.labels, cell.policy, cell.slack) for place in places for cell in place.cells]
    found = [_worst(place) for place in places]
    if keyword == BEST:
        for i, row in enumerate(recommend(ds, OBJECTIVE).to_dict("records")):
            chosen, worst = Cell(row["policy"] or "", row["slack"]), found[i]
            # Among cells that cannot be told apart the slack and the order decide, and may choose the worst of them.
            same = worst is not None and chosen.label == worst.label
            found[i] = Cell(row["best_policy"], row["best_slack"]) if same else chosen if chosen.policy else None
    return [
        (place.labels, cell.policy, cell.slack) for place, cell in zip(places, found, strict=True) if cell is not None
    ]


def _worst(place: Place) -> Cell | None:
    """Return the cell with the worst mean; None where no cell has one."""
    means = place.values.mean(axis=1)
    return place.cells[int(np.nanargmax(means))] if np.isfinite(means).any() else None


def _point(ds: xr.Dataset, labels: dict[str, Any], label: str, slack: float, seed: int, job: Job) -> Point:
    settings = json.loads(ds.attrs["settings"])
    workload = sweep.Workload.from_dict(json.loads(ds.attrs["workload"]))
    extra = {key: value for key, value in labels.items() if key != "heterogeneity"}
    ((_, scalar),) = [item for item in workload.points() if all(_same(item[0][k], v) for k, v in extra.items())]
    row = ds["speed"].sel(heterogeneity=labels["heterogeneity"])
    policy = Policy.parse(label)
    group = ", ".join(f"{key} {label_text(value)}" for key, value in labels.items())
    named = policy.label if math.isnan(slack) else f"{policy.label}, slack {plain(slack)} ms"
    return Point(
        name=f"{named}, {group}",
        group=group,
        policy=policy,
        slack=DEFAULT_SLACK_MS if math.isnan(slack) else slack,
        speeds=tuple(float(speed) for speed in row.values),
        requests=_first(scalar.realise(seed), job.requests),
        seed=seed,
        cache_hit_speedup=float(settings["cache_hit_speedup"]),
        warmup=int(settings["warmup"]),
    )


def _same(found: Any, wanted: Any) -> bool:
    """Return whether a coordinate is what was asked for; a policy that reads no slack has every slack."""
    try:
        number, other = float(found), float(wanted)
    except (TypeError, ValueError):
        return "".join(str(found).split()) == "".join(str(wanted).split())
    return math.isnan(number) or math.isclose(number, other, rel_tol=1e-9, abs_tol=1e-12)


def _listing(values: Any) -> str:
    shown = [label_text(value.item()) for value in values[:8]]
    return ", ".join(shown) + (", ..." if len(values) > 8 else "")


def is_baseline(point: Point) -> bool:
    """Return whether a point is what others of its group are compared with, where there is one."""
    return point.policy.label == ROUND_ROBIN
