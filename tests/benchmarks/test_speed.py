"""What a simulated request costs, as ratios within one run. Nothing here asserts a time."""

from __future__ import annotations

import time
import tracemalloc

import pytest

import sweep
from sweep import reference

SLACK = [5.0 * i for i in range(16)]
HETEROGENEITY = [0.1 * i for i in range(8)]


def workload(requests, replicas=4):
    return sweep.Workload.poisson(
        requests=requests, utilisation=0.9, replicas=replicas, mean_service_ms=10.0, sessions=500, prefixes=500
    )


def cost_ns(function, requests, repeats):
    """The least processor time of some repeats, per request: noise only ever adds."""
    function()
    times = []
    for _ in range(repeats):
        before = time.process_time()
        function()
        times.append(time.process_time() - before)
    return min(times) / requests * 1e9


def test_ratio__whole_run_against_plain_python(benchmark, report, measuring):
    requests, seeds, repeats = (2_000, 16, 7) if measuring else (50, 1, 1)
    work = workload(requests)
    fleet = sweep.Fleet.one_slow(replicas=4, heterogeneity=HETEROGENEITY)
    records = work.realise(0).to_records()

    def plain():
        routed = reference.simulate_replica_routing(records, 4, "locality_aware", 20.0, speeds=list(fleet.speeds[3]))
        reference.summarize_replica_service(routed, 4)
        reference.load_variance_of(routed, 4)

    def whole():
        sweep.run(work, fleet, policy="locality_aware", slack=SLACK, seed=seeds, workers=1)

    cells = seeds * len(SLACK) * len(HETEROGENEITY)
    ours = cost_ns(whole, requests * cells, repeats)
    theirs = cost_ns(plain, requests, repeats)
    benchmark.pedantic(whole, rounds=1)
    report(f"locality_aware, 4 replicas, {len(SLACK)} slacks x {len(HETEROGENEITY)} heterogeneities, one core")
    report(
        f"  sweep.run, everything in: {ours:8.1f} ns      plain Python: {theirs:8.0f} ns      ratio {theirs / ours:.0f}"
    )


@pytest.mark.parametrize("policy", ["round_robin", "queue_aware", "locality_aware"])
@pytest.mark.parametrize("replicas", [4, 16, 64, 256, 1024])
def test_growth__replicas(benchmark, report, measuring, policy, replicas):
    requests, seeds, repeats = (2_000, 16, 3) if measuring else (20, 1, 1)
    slack = SLACK if policy == "locality_aware" else [5.0]
    fleet = sweep.Fleet.one_slow(replicas=replicas, heterogeneity=HETEROGENEITY)

    def whole():
        sweep.run(workload(requests, replicas), fleet, policy=policy, slack=slack, seed=seeds, workers=1)

    ours = cost_ns(whole, requests * seeds * len(slack) * len(HETEROGENEITY), repeats)
    benchmark.pedantic(whole, rounds=1)
    report(f"  {policy:15s} {replicas:5d} replicas: {ours:8.1f} ns, {ours / replicas:6.2f} per replica")


def test_growth__seeds(benchmark, report, measuring):
    requests, counts = (2_000, (16, 64, 256)) if measuring else (20, (1, 2))
    fleet = sweep.Fleet.one_slow(replicas=4, heterogeneity=[0.0, 0.3])

    def whole(seeds):
        return sweep.run(workload(requests), fleet, policy="locality_aware", slack=SLACK, seed=seeds, workers=1)

    whole(1)
    for seeds in counts:
        tracemalloc.start()
        size = whole(seeds).nbytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        cost = cost_ns(lambda seeds=seeds: whole(seeds), requests * seeds * len(SLACK) * 2, 3 if measuring else 1)
        report(f"  {seeds:5d} seeds: {cost:6.1f} ns, peak memory beside the result {(peak - size) / 2**20:6.1f} MiB")
    benchmark.pedantic(whole, args=(1,), rounds=1)


def test_ratio__two_cores(benchmark, report, measuring):
    requests, seeds, repeats = (2_000, 64, 5) if measuring else (20, 2, 1)
    fleet = sweep.Fleet.one_slow(replicas=4, heterogeneity=HETEROGENEITY)

    def wall(workers):
        times = []
        for _ in range(repeats):
            before = time.perf_counter()
            sweep.run(workload(requests), fleet, policy="locality_aware", slack=SLACK, seed=seeds, workers=workers)
            times.append(time.perf_counter() - before)
        return min(times)

    wall(1)
    one, two = wall(1), wall(2)
    benchmark.pedantic(wall, args=(2,), rounds=1)
    report(f"  two threads against one: {one / two:.2f} times as fast")
