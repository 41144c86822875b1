"""The replay mode: what is chosen from a Dataset, and how a measured stream is compared with its prediction."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from launched import START_S, TORCHRUN, pinned, started

import sweep
from sweep.errors import InputError
from sweep.reference import load_variance_of, simulate_replica_routing, summarize_replica_service
from sweep.torch_runner import online, replay, result
from sweep.torch_runner.clock import now_ns, wait_until
from sweep.torch_runner.command import arguments_of, main, prepared
from sweep.torch_runner.devices import Device
from sweep.torch_runner.group import Group, PeerLost, Place
from sweep.torch_runner.job import Job
from sweep.torch_runner.lines import Line, connect
from sweep.torch_runner.measured import Served, first_in_first_out, statistics_of
from sweep.torch_runner.points import plan_for, plan_replay
from sweep.torch_runner.rank import _run
from sweep.torch_runner.replay import Case, Replayed
from sweep.torch_runner.report import Report, text_of
from sweep.torch_runner.serve import Log, Server, products_for
from sweep.torch_runner.watch import WORKING

CPU = Device("cpu", slot=0, slots=2, turn=0, turns=1, cores=(0, 1))
#: Real ms per simulated ms, and per product: 10 simulated ms of service are 200 products.
SCALE, PRODUCT_MS = 0.5, 0.025


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    work = sweep.Workload.poisson(requests=120, utilisation=0.8, replicas=2, sessions=12, prefixes=12)
    fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.4])
    ds = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 10], seed=[3, 5], warmup=10)
    path = tmp_path_factory.mktemp("dataset") / "out.zarr"
    sweep.write(ds, path)
    return path


# --- what is selected ---------------------------------------------------------------------------------------


def names(path, *select):
    return [point.name for point in plan_replay(Job(dataset=path, select=select)).points]


def test_select__coordinates(dataset):
    assert names(dataset, "policy=locality_aware,slack=10,heterogeneity=0.4") == [
        "locality_aware, slack 10 ms, heterogeneity 0.4"
    ]
    assert names(dataset, "policy=round_robin") == ["round_robin, heterogeneity 0", "round_robin, heterogeneity 0.4"]
    both = names(dataset, "policy=locality_aware, slack=0, heterogeneity=0", "policy=round_robin,heterogeneity=0")
    assert both == ["locality_aware, slack 0 ms, heterogeneity 0", "round_robin, heterogeneity 0"]


def test_select__the_two_ends_and_the_frontier(dataset):
    ds = sweep.open(dataset)
    means = ds.p99_queue_wait_ms.mean("seed").sel(heterogeneity=0.4)
    worst = means.where(means == means.max(), drop=True)
    (name,) = names(dataset, "worst,heterogeneity=0.4")
    assert name.startswith(str(worst.policy.values[0]))
    row = sweep.analysis.recommend(ds).iloc[1]
    # What is recommended there, as no cell can be told from another, is the worst one.
    assert name == f"{row.policy}, heterogeneity 0.4"
    assert names(dataset, "best,heterogeneity=0.4") == [
        f"{row.best_policy}, slack {row.best_slack:g} ms, heterogeneity 0.4"
    ]
    frontier = sweep.analysis.frontier(ds)
    assert len(names(dataset, "frontier")) == len(frontier)
    assert names(dataset) == names(dataset, "best")


def test_select__best_is_not_the_worst_where_none_can_be_told_apart(dataset, tmp_path):
    ds = sweep.open(dataset).load()
    # By policy, slack and seed. With two seeds no cell can be told from another at heterogeneity 0, so the first in
    # order is recommended, round_robin, whose mean of 11 is the worst; that of locality_aware at slack 10 is 9.75.
    alike = [[[8, 14], [8, 14]], [[13, 8], [9.5, 10]]]
    clear = [[[5, 5.5], [5, 5.5]], [[9, 9.5], [9.25, 9.75]]]
    wait = ds.p99_queue_wait_ms
    values = np.stack([alike, clear], axis=2)
    changed = wait.transpose("policy", "slack", "heterogeneity", "seed", ...).copy(data=values.reshape(wait.shape))
    path = tmp_path / "alike.zarr"
    sweep.write(ds.assign(p99_queue_wait_ms=changed.transpose(*wait.dims)), path)
    assert sweep.analysis.recommend(sweep.open(path)).policy.tolist() == ["round_robin", "round_robin"]
    assert names(path, "worst") == ["round_robin, heterogeneity 0", "locality_aware, slack 10 ms, heterogeneity 0.4"]
    assert names(path, "best") == ["locality_aware, slack 10 ms, heterogeneity 0", "round_robin, heterogeneity 0.4"]


def test_select__point_is_the_cell_of_the_dataset(dataset):
    ds = sweep.open(dataset)
    (point,) = plan_replay(
        Job(dataset=dataset, select=("policy=locality_aware,slack=10,heterogeneity=0.4,seed=5",))
    ).points
    cell = ds.sel(policy="locality_aware", slack=10, heterogeneity=0.4, seed=5)
    found = statistics_of(point.simulated(), 2, point.warmup)
    for name in ("p95_queue_wait_ms", "load_variance", "peak_load_variance", "makespan_ms", "cache_hit_rate"):
        assert found[name] == pytest.approx(float(cell[name]), rel=1e-12), name


@pytest.mark.parametrize(
    ("select", "said"),
    [
        (
            "policy=locality_aware,slack=7",
            r"matches no point of the Dataset, which has policy: round_robin, .*slack: 0, 10",
        ),
        ("best,seed=99", "matches no point.*seed: 3, 5"),
        ("top", "'top' is neither frontier, best or worst nor one of policy=..., slack=..., heterogeneity=..., seed="),
        ("best,worst", "'worst' is neither"),
    ],
)
def test_select__nothing(dataset, select, said):
    with pytest.raises(InputError, match=said):
        plan_replay(Job(dataset=dataset, select=(select,)))


def test_dataset__that_cannot_be_replayed(dataset, tmp_path):
    ds = sweep.open(dataset).load()
    for attrs, said in (
        ({"sweep_version": "0.0.1"}, "was made by sweep 0.0.1, this is"),
        ({"engine": "token_step"}, "only points of 'timeline'"),
        ({"settings": '{"cache_blocks": [8]}'}, "was made with cache_blocks, which a replay on ranks does not have"),
    ):
        path = tmp_path / f"{next(iter(attrs))}.zarr"
        sweep.write(ds.assign_attrs(attrs), path)
        with pytest.raises(InputError, match=said):
            plan_replay(Job(dataset=path))
    bare = tmp_path / "bare.zarr"
    sweep.write(ds.drop_attrs(), bare)
    with pytest.raises(InputError, match="lacks the attribute 'sweep_version'"):
        plan_replay(Job(dataset=bare))
    with pytest.raises(InputError, match="There are 3 ranks for 2 replicas"):
        plan_replay(Job(dataset=dataset), 3)


def test_stream__of_prompt_blocks_is_refused(tmp_path):
    records = [
        {"arrival_ms": 0.0, "service_ms": 1.0, "prompt_tokens": 32, "blocks": ["a", "b"], "block_tokens": [16, 16]}
    ]
    work = sweep.Workload.fixed(sweep.Requests.from_records(records))
    ds = sweep.run(work, sweep.Fleet.fixed([1.0, 1.0]), policy="queue_aware", seed=1)
    sweep.write(ds, tmp_path / "blocks.zarr")
    with pytest.raises(InputError, match="a rank has no cache of blocks"):
        plan_replay(Job(dataset=tmp_path / "blocks.zarr"))


def test_stream__default_and_trace(tmp_path):
    plan = plan_replay(Job(mode="replay"))
    assert [point.name for point in plan.points] == ["round_robin", "queue_aware", "locality_aware"]
    assert {len(point.requests) for point in plan.points} == {200}
    rows = "\n".join(f"{i},{10 * i},5,," for i in range(30))
    (tmp_path / "trace.csv").write_text("request_id,arrival_ms,service_ms,prefix_key,session_id\n" + rows)
    plan = plan_replay(Job(trace=tmp_path / "trace.csv", requests=12, policy=("queue_aware",)), 3)
    assert (plan.ranks, len(plan.points[0].requests)) == (3, 12)


def test_stream__trace_is_read_and_shaped_as_the_options_say(tmp_path):
    """Columns of other names; 12 requests in the window, twice, twice as fast: 24 in steps of 5 ms."""
    trace = tmp_path / "other.csv"
    trace.write_text("when,work\n" + "\n".join(f"{10 * i},5" for i in range(30)))
    options = ["--trace", str(trace), "--map", "when=arrival_ms,work=service_ms", "--window", "0:0.12"]
    options += ["--repeat", "2", "--rate-scale", "2"]
    ctx = main.make_context("sweep", list(options))
    job, _ = prepared(main.make_context("sweep", [*options, "--dry-run"]))
    for found in (job, prepared(main.make_context("sweep", [*arguments_of(ctx), "--dry-run"]))[0]):
        stream = plan_replay(found).points[0].requests
        assert stream.arrival_ms.tolist() == [5.0 * i for i in range(24)]
        assert set(stream.service_ms.tolist()) == {5.0}


@pytest.mark.parametrize("option", [("--window", "0:1"), ("--zero-tokens", "drop"), ("--base-ms", "1")])
def test_stream__options_of_a_trace_need_one(option):
    with pytest.raises(InputError, match=f"{option[0]} applies only to --trace"):
        prepared(main.make_context("sweep", [*option, "--mode", "replay", "--dry-run"]))


def test_plan__leaves_no_kernel_to_compile_while_a_rank_is_at_work():
    code = (
        "from sweep.torch_runner.points import plan_replay\n"
        "from sweep.torch_runner.measured import statistics_of\n"
        "from sweep.torch_runner.job import Job\n"
        "from sweep.kernels import statistics\n"
        "(point,) = plan_replay(Job(mode='replay', policy=('queue_aware',))).points\n"
        "compiled = len(statistics.cell_statistics.signatures)\n"
        "statistics_of(point.simulated_with(2 * point.requests.service_ms, [1.0, 0.5]), 2, 0)\n"
        "print(compiled, len(statistics.cell_statistics.signatures))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["1", "1"]


# --- time scale and whole products --------------------------------------------------------------------------


def test_time_scale__mean_service_of_twenty_products():
    plan = plan_replay(Job(mode="replay"))
    mean = float(plan.points[0].requests.service_ms.mean())
    assert replay.time_scale(Job(mode="replay"), plan, 2.0) * mean == pytest.approx(40.0)
    assert replay.time_scale(Job(mode="replay"), plan, 0.001) * mean == pytest.approx(5.0)
    with pytest.raises(InputError, match="at least 20 it can be timed"):
        replay.time_scale(Job(mode="replay", time_scale=1.0), plan, 2.0)


def test_products__whole_and_at_least_one():
    (point, *_) = plan_replay(Job(mode="replay", speeds=(1.0, 0.5))).points
    products = products_for(point, SCALE, PRODUCT_MS)
    assert products.shape == (2, 2, 200)
    assert products.min() >= 1
    large = products[0, 0] > 50
    assert np.allclose(products[0, 1][large] / products[0, 0][large], 2.0, rtol=0.02)
    assert np.allclose(products[1, 0][large] / products[0, 0][large], 0.7, rtol=0.03)


def test_duration__too_long_for_the_timeout():
    plan = plan_replay(Job(mode="replay"))
    replay.check_duration(Job(mode="replay"), plan, CPU, 1.0)
    with pytest.raises(InputError, match="too long for --timeout 60"):
        replay.check_duration(Job(mode="replay"), plan, CPU, 100.0)


# --- one statistics code ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["round_robin", "locality_aware"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_statistics__equal_those_of_the_reference(policy, replicas):
    work = sweep.Workload.poisson(requests=150, utilisation=0.9, replicas=replicas, sessions=15, prefixes=15).realise(4)
    ds = sweep.simulate(work, np.ones(replicas), policy=policy)
    served = Served(
        *(ds[n].values for n in ("arrival_ms", "start_ms", "effective_service_ms", "replica_id", "cache_hit"))
    )
    found = statistics_of(served, replicas, warmup=5)
    records = simulate_replica_routing(work.to_records(), replicas, policy)
    expected = summarize_replica_service(records, replicas, warmup=5)
    expected["load_variance"], expected["peak_load_variance"] = load_variance_of(records, replicas, warmup=5)
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-9), name
    start = first_in_first_out(served.arrival, served.effective, served.replica, replicas)
    assert start.tolist() == served.start.tolist()


# --- a made-up measurement, whose pace is known ---------------------------------------------------------------


def logs_of(point, pace, noise=0.0, seed=0):
    """What ranks of that ms per product would log of a planned replay."""
    rng = np.random.default_rng(seed)
    plan = point.simulated()
    products = products_for(point, SCALE, PRODUCT_MS)
    count = products[plan.hit.astype(int), plan.replica, np.arange(len(plan.replica))]
    took = count * np.asarray(pace)[plan.replica] * (1 + noise * rng.standard_normal(len(count)))
    start = first_in_first_out(plan.arrival * SCALE, took, plan.replica, len(pace))
    logs = []
    for rank in range(len(pace)):
        at = np.flatnonzero(plan.replica == rank)
        columns = (at, start[at], (start + took)[at], count[at], plan.hit[at], took[at])
        logs.append(Log(*(column.tolist() for column in columns)))
    return logs


def cases_of(pace, noise=0.0, **options):
    plan = plan_replay(Job(mode="replay", **options))
    found = []
    for point in plan.points:
        replays = [replay._joined(point, logs_of(point, pace, noise, seed), SCALE) for seed in range(5)]
        found.append(Case(point, "planned", replays))
    return plan, found


def test_recomputed__is_exact_where_each_rank_keeps_its_pace():
    # 20 % slower than calibrated, and unequal: the calibration is far off, the recomputed prediction is not.
    _, cases = cases_of((0.030, 0.0275), speeds=(1.0, 0.8))
    for case in cases:
        compared = replay.compare_case(case, SCALE, PRODUCT_MS)
        for measured, predicted in zip(compared.measured, compared.predicted, strict=True):
            assert measured["p95_queue_wait_ms"] == pytest.approx(predicted["p95_queue_wait_ms"], rel=1e-6)
            assert measured["load_variance"] == pytest.approx(predicted["load_variance"], rel=1e-6)
        assert compared.measured[0]["p95_queue_wait_ms"] > 1.15 * compared.calibrated["p95_queue_wait_ms"]


def test_recomputed__speeds_achieved_are_reported_beside_those_asked_for():
    _, cases = cases_of((0.025, 0.025), speeds=(1.0, 0.8))
    found = [replay.compare_case(case, SCALE, PRODUCT_MS) for case in cases]
    row = replay.rows(cases, found, CPU, SCALE)[0]
    assert row["rank_speed_asked"] == [1.0, 0.8]
    assert row["rank_speed_achieved"] == pytest.approx([1.0, 0.8], rel=0.01)
    assert row["rank_speed_achieved"] != [1.0, 0.8]
    assert row["hit_service_ratio"] == pytest.approx(0.7, rel=0.01)
    assert row["rank_busy_ms"] == pytest.approx(row["rank_cpu_ms"])


def test_recomputed__online_is_routed_again_by_the_policy():
    plan = plan_replay(Job(mode="replay"))
    point = plan.points[1]
    logs = logs_of(point, (PRODUCT_MS, PRODUCT_MS))
    case = Case(point, "online", [replay._joined(point, logs, SCALE)])
    predicted = replay.recomputed(case, case.replays[0], SCALE, PRODUCT_MS)
    simulated = point.simulated()
    assert (predicted.replica == simulated.replica).mean() > 0.95
    # A rank that got nothing has the calibrated pace.
    lonely = Replayed(*case.replays[0])._replace(products_per_rank=np.array([5, 0]), busy_ms=np.array([5.0, 0.0]))
    assert np.isfinite(replay.recomputed(case, lonely, SCALE, PRODUCT_MS).start).all()


def test_compare__judges_the_p95_and_writes_a_valid_file(tmp_path):
    job = Job(mode="replay", output=tmp_path)
    plan, cases = cases_of((0.026, 0.0255), noise=0.002)
    found = [replay.compare_case(case, SCALE, PRODUCT_MS) for case in cases]
    report = Report(job, plan.ranks)
    report.document["metrics"]["rows"] = replay.rows(cases, found, CPU, SCALE)
    report.document["prediction"], verdicts = replay.compare(job, cases, found, CPU)
    report.decide(verdicts)
    report.write()
    document = result.read(tmp_path / "par-replica-replay_default.json")
    assert document["decision"] == "confirmed"
    judged = [point for point in document["prediction"]["points"] if point["verdict"] != "not_judged"]
    assert {point["quantity"] for point in judged} == {"p95_queue_wait_ms"}
    assert len(judged) == 3
    assert all(point["median_absolute_error"] < 0.02 for point in judged)
    assert all("predicted_from_calibration" in point for point in judged)
    pairs = document["prediction"]["pairs"]
    assert [(pair["against"], pair["strategy"]) for pair in pairs] == [
        ("round_robin", "queue_aware"),
        ("round_robin", "locality_aware"),
    ]
    assert "round_robin / queue_aware, planned" in text_of(document)


def test_compare__rank_that_was_late_is_inconclusive():
    _, cases = cases_of((0.026, 0.0255))
    late = [(0.0, 0.0), (0.0, 25.0), (0.0, 0.0), (3.0, 450.25), (0.0, 0.0)]
    told = [Case(c.point, c.routing, [r._replace(late_ms=np.array(ms)) for r, ms in zip(c.replays, late, strict=True)])
            for c in cases]  # fmt: skip
    found = [replay.compare_case(case, SCALE, PRODUCT_MS) for case in told]
    for device in (CPU, dataclasses.replace(CPU, kind="cuda")):
        _, verdicts = replay.compare(Job(mode="replay"), told, found, device)
        assert {verdict.verdict for verdict in verdicts} == {"inconclusive"}
        assert {verdict.reason for verdict in verdicts} == {"started late: in 2 of 5 repeats, rank 1 by up to 450.2 ms"}
    assert replay.rows(told, found, CPU, SCALE)[0]["repeats"]["rank_late_ms"] == [list(ms) for ms in late]


def test_compare__busy_host_is_inconclusive():
    _, cases = cases_of((0.026, 0.0255))
    slow = [Case(c.point, c.routing, [r._replace(cpu_ms=0.5 * r.busy_ms) for r in c.replays]) for c in cases]
    found = [replay.compare_case(case, SCALE, PRODUCT_MS) for case in slow]
    _, verdicts = replay.compare(Job(mode="replay"), slow, found, CPU)
    assert {verdict.verdict for verdict in verdicts} == {"inconclusive"}
    assert all("host_busy" in verdict.reason for verdict in verdicts)


# --- the online router ----------------------------------------------------------------------------------------


class Recorder:
    """A desk's reports, in order."""

    def __init__(self):
        self.reports = []

    def __call__(self, report):
        self.reports.append(report)


def test_desk__accepts_counts_hits_and_reports_when_it_will_be_empty():
    work = sweep.Requests.from_arrays([0.0, 1.0, 2.0], [10.0, 10.0, 10.0], prefix=["a", "a", None])
    (point,) = plan_replay(Job(mode="replay", policy=("queue_aware",))).points
    point = dataclasses.replace(point, requests=work)
    products = products_for(point, SCALE, PRODUCT_MS)
    tell = Recorder()
    desk = online.Desk(point, 0, products, PRODUCT_MS, tell)
    before = now_ns()
    for index in range(3):
        desk.accept(index)
    assert [desk.inbox.get() for _ in range(3)] == [(0, 200, False), (1, 140, True), (2, 200, False)]
    assert [report.request for report in tell.reports] == [0, 1, 2]
    assert (tell.reports[2].empty_ns - before) / 1e6 == pytest.approx(540 * PRODUCT_MS, abs=3.0)


def test_desk__reports_arrive_in_order_though_two_threads_make_them():
    """The serving thread loses its core between making a report and sending it."""
    (point,) = plan_replay(Job(mode="replay", policy=("queue_aware",))).points
    sending, tell = threading.Event(), Recorder()

    def slow(report):
        if report.event == online._FINISHED:
            sending.set()
            time.sleep(0.3)
        tell(report)

    products = np.full((2, 1, len(point.requests)), 10)
    desk = online.Desk(point, 0, products, PRODUCT_MS, slow)
    serving = threading.Thread(target=desk.serve_all, args=(Server(Naps(), Signs()), now_ns()))
    serving.start()
    desk.accept(0)
    sending.wait(timeout=10)
    desk.accept(1)
    desk.inbox.put(None)
    serving.join(timeout=10)
    told = [(report.event, report.request) for report in tell.reports]
    assert told == [(0, 0), (1, 0), (0, 1), (1, 1), (2, -1)]
    # The request accepted last is still to be served in the last report but two.
    assert [report.empty_ns for report in tell.reports[:3]] == sorted(report.empty_ns for report in tell.reports[:3])


@pytest.mark.parametrize("policy", ["round_robin", "queue_aware", "locality_aware"])
def test_router__routes_as_simulated_when_reports_come_at_once(policy):
    work = sweep.Workload.poisson(requests=60, utilisation=0.8, replicas=2, sessions=6, prefixes=6).realise(2)
    (point,) = plan_replay(Job(mode="replay", policy=(policy,))).points
    point = dataclasses.replace(point, requests=work)
    simulated = point.simulated()
    routed, given_up = [], []
    begin = now_ns()

    def send(rank, index):
        if index < 0:
            return
        routed.append(rank)
        # What a rank that keeps the simulated pace would say at once.
        mine = [i for i in range(index + 1) if routed[i] == rank]
        empty = simulated.start[mine[-1]] + simulated.effective[mine[-1]]
        router.take(rank, online.Report(0, index, begin + int(empty * 1e6)))

    router = online.Router(point, 1.0, begin, tuple(os.sched_getaffinity(0)), send, given_up.append)
    thread = threading.Thread(target=router.run)
    thread.start()
    thread.join(timeout=60)
    assert given_up == []
    assert routed == simulated.replica.tolist()


def test_router__hands_an_error_to_the_serving_thread():
    (point,) = plan_replay(Job(mode="replay", policy=("round_robin",))).points
    desk = online.Desk(point, 0, products_for(point, SCALE, PRODUCT_MS), PRODUCT_MS, Recorder())

    def send(rank, index):
        raise InputError("there is no such replica")

    online.Router(point, 1.0, now_ns(), tuple(os.sched_getaffinity(0)), send, desk.give_up).run()
    with pytest.raises(InputError, match="no such replica"):
        desk.serve_all(server=None, begin_ns=0)


def test_online__where_it_is_not_possible():
    (point,) = plan_replay(Job(mode="replay", policy=("queue_aware",))).points
    assert online.why_not(point, turns=1) == ""
    assert "in turn" in online.why_not(point, turns=2)


def test_line__carries_whole_messages_and_says_when_the_other_end_is_gone():
    ours, theirs = socket.socketpair()
    line, other = Line(ours), Line(theirs)
    line.post(1, -2, 2**60)
    line.post(7)
    assert other.fetch(3) == (1, -2, 2**60)
    assert other.fetch(1) == (7,)
    theirs.sendall(b"\0" * 5)
    threading.Timer(0.05, theirs.sendall, [b"\0" * 19]).start()
    assert line.fetch(3) == (0, 0, 0)
    ours.settimeout(0.05)
    with pytest.raises(PeerLost, match="timed out"):
        line.fetch(1)
    other.close()
    with pytest.raises(PeerLost, match="closed the line"):
        line.fetch(1)
    with pytest.raises(PeerLost, match="Broken pipe"):
        line.post(1)
    line.close()


def test_lines__join_rank_0_with_every_other():
    class Shared(Group):
        """Ranks that are threads, and so hand over the address in memory."""

        def from_first(self, value):
            if self.place.rank == 0:
                addresses.put(value)
                addresses.put(value)
                return value
            return addresses.get(timeout=10)

    addresses = queue.SimpleQueue()
    boards = [Signs() for _ in range(3)]
    found = {}

    def rank(r):
        if r == 2:
            time.sleep(1.0)
        found[r] = connect(Shared(Place(r, 3, r, 3), boards[r], 10.0))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert {r: set(lines) for r, lines in found.items()} == {0: {1, 2}, 1: {0}, 2: {0}}
    # Rank 0 has waited for rank 2, and was not hung.
    assert (boards[0].state, boards[0].waited > 0.8) == (WORKING, True)
    for r in (1, 2):
        found[r][0].post(r)
        assert found[0][r].fetch(1) == (r,)
    for lines in found.values():
        for line in lines.values():
            line.close()


def test_clock__does_not_wake_early():
    target = now_ns() + 3_000_000
    wait_until(target, lambda: None)
    assert now_ns() >= target


# --- two ranks, as threads -------------------------------------------------------------------------------------


class Signs:
    """A board that keeps for how long [s] at most a rank waited, and for how long one at work gave no sign of life."""

    def __init__(self):
        self.state, self.longest, self.waited, self.last = WORKING, 0.0, 0.0, time.monotonic()

    def set(self, state):
        self.beat()
        self.state = state

    def beat(self):
        now = time.monotonic()
        if self.state == WORKING:
            self.longest = max(self.longest, now - self.last)
        else:
            self.waited = max(self.waited, now - self.last)
        self.last = now


class Naps:
    """Work that takes the time of its products and no processor."""

    def __init__(self, times_as_slow=1.0):
        self.times_as_slow = times_as_slow

    def run(self, products):
        time.sleep(self.times_as_slow * products * PRODUCT_MS / 1000)

    def wait(self):
        pass


class Threads(Group):
    """Ranks that are threads; as over gloo, what the first one says waits there for the others, and it goes on."""

    def __init__(self, rank, shared, before=lambda rank, what: None):
        super().__init__(Place(rank, 2, rank, 2), Signs(), 10.0)
        self.shared = shared
        self.before = before

    @classmethod
    def run(cls, part, before=lambda rank, what: None):
        """Return what each of two ranks returns from `part`."""
        shared = {"all": threading.Barrier(2), "said": queue.SimpleQueue(), "of": [None, None]}
        found = [None, None]

        def rank(r):
            found[r] = part(cls(r, shared, before))

        threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert None not in found
        return found

    def barrier(self):
        self.before(self.place.rank, "barrier")
        with self._waiting():
            self.shared["all"].wait(timeout=20)

    def from_first(self, value):
        if self.place.rank == 0:
            self.shared["said"].put(value)
            return value
        with self._waiting():
            value = self.shared["said"].get(timeout=20)
        self.before(self.place.rank, "heard")
        return value

    def gather(self, value):
        self.shared["of"][self.place.rank] = value
        with self._waiting():
            self.shared["all"].wait(timeout=20)
            found = list(self.shared["of"])
            self.shared["all"].wait(timeout=20)
        return found


def replayed_by_threads(before=lambda rank, what: None, times_as_slow=(1.0, 1.0)):
    """Replay 20 requests of round robin once, as planned and online; return each rank's cases and its board."""
    job = Job(mode="replay", policy=("round_robin",), requests=20, warmup=0, repeats=1)
    plan = plan_replay(job)
    device = dataclasses.replace(CPU, cores=tuple(os.sched_getaffinity(0)))

    def part(group):
        work = Naps(times_as_slow[group.place.rank])
        return replay.measure(job, plan, group, device, work, SCALE, PRODUCT_MS, group.board)[0], group.board

    return Threads.run(part, before)


def test_replay__begins_when_the_last_rank_has_come():
    def before(rank, what):
        if rank == 1 and what == "barrier":
            time.sleep(1.0)

    for case in replayed_by_threads(before)[0][0]:
        (once,) = case.replays
        # A delay of 1000 ms before the start would be a wait on rank 1, from its first request on.
        first = SCALE * (once.served.start - once.served.arrival)[:2].max()
        assert max(first, once.late_ms.max()) < 500, case.routing


def test_replay__rank_that_is_late_for_the_start_is_inconclusive():
    def before(rank, what):
        if rank == 1 and what == "heard":
            time.sleep(0.3)

    cases, _ = replayed_by_threads(before)[0]
    for case in cases:
        (once,) = case.replays
        assert max(200.0, once.late_ms[0]) < once.late_ms[1]
    found = [replay.compare_case(case, SCALE, PRODUCT_MS) for case in cases]
    _, verdicts = replay.compare(Job(mode="replay"), cases, found, CPU)
    assert {verdict.verdict for verdict in verdicts} == {"inconclusive"}
    assert all(verdict.reason.startswith("started late: in 1 of 1 repeats, rank 1 by up to") for verdict in verdicts)


def test_replay__rank_that_waits_for_a_slow_one_gives_signs_of_life():
    # Ten requests of 5 ms on each rank, those of rank 1 of 0.25 s: rank 0 waits for some 2.5 s.
    found = replayed_by_threads(times_as_slow=(1.0, 50.0))
    cases, _ = found[0]
    for case in cases:
        assert case.replays[0].elapsed_ms[1] > 2000
    assert max(board.longest for _, board in found) < 1.5


def test_online__line_lost_after_the_last_request_is_not_passed_over():
    (point,) = plan_replay(Job(mode="replay", policy=("round_robin",))).points
    desk = online.Desk(point, 0, products_for(point, SCALE, PRODUCT_MS), PRODUCT_MS, Recorder())

    def listen():
        time.sleep(0.1)
        desk.give_up(PeerLost("timed out"))

    listener = threading.Thread(target=listen)
    listener.start()
    with pytest.raises(PeerLost, match="timed out"):
        online._join([listener], desk, Signs())


# --- end to end -----------------------------------------------------------------------------------------------


@pinned
def test_replay__dataset_on_two_ranks(dataset, tmp_path):
    pytest.importorskip("torch")
    options = ("--dataset", str(dataset), "--select", "policy=round_robin,heterogeneity=0", "--select")
    options += ("policy=locality_aware,slack=10,heterogeneity=0", "--requests", "40", "--compute-dim", "64")
    with started(tmp_path, *TORCHRUN, *options, "--repeats", "2", "--warmup", "0", "--label", "test") as process:
        out, err = process.communicate(timeout=START_S)
        assert process.returncode == 0, err
    found = result.read(tmp_path / "out_test.json")
    assert [(row["policy"], row["routing"]) for row in found["metrics"]["rows"]] == [
        ("round_robin", "planned"),
        ("locality_aware", "planned"),
        ("round_robin", "online"),
        ("locality_aware", "online"),
    ]
    for row in found["metrics"]["rows"]:
        assert all(sum(counts) == 40 for counts in row["repeats"]["requests_per_rank"])
    planned, online_row = (found["metrics"]["rows"][i] for i in (0, 2))
    # Round robin needs no report, so both ways give every rank the same requests and the same hits.
    assert planned["request_cost_units_per_rank"] == online_row["request_cost_units_per_rank"]
    assert planned["statistics"]["cache_hit_rate"] == online_row["statistics"]["cache_hit_rate"] > 0
    assert len(found["prediction"]["pairs"]) == 2
    assert "locality_aware" in out
    assert json.loads((tmp_path / "out_test.json").read_text())["calibration"]["mean_service_products"] >= 20


def test_replay__ranks_on_several_hosts_have_no_common_clock():
    job = Job(mode="replay", requests=20)
    group = Group(Place(0, 2, 0, 1), None, 60.0)
    with pytest.raises(InputError, match="needs one clock: start all ranks on one host"):
        _run(job, plan_for(job, 2), group, None, Report(job, 2))
