"""What a request costs on the router engine, as a multiple of queue_aware run one cell at a time. Asserts no time.

The errors about work are drawn once per seed and shared by its cells; what that costs stands below the others.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from rules import registered

import sweep
from sweep import engines, routing
from sweep.kernels import beliefs, statistics

POLICIES = (
    "queue_aware",
    "least_load(signal=requests)",
    "least_load(freshness_ms=25)",
    "least_load(signal=requests, freshness_ms=25)",
    "least_load(signal=requests, freshness_ms=25, correction=own)",
    "least_load(signal=requests, freshness_ms=25, phase=spread)",
    "least_load(signal=requests, tie=random)",
    "power_of_d(signal=requests)",
    "weighted_random(signal=requests)",
    "locality_aware(freshness_ms=25)",
    "bounded_hash",
    "least_load(signal=utilisation)",
    "least_load(work_error_cv=0.5)",
    "own_rule",
)


def shortest_wait(view, request, parameters):
    return view.wait_ms.argmin()


@pytest.mark.parametrize("replicas", [4, 64])
def test_ratio__router_engine_against_one_lane(benchmark, report, measuring, replicas):
    requests, repeats = (5_000, 9) if measuring else (20, 1)
    work = sweep.Workload.poisson(
        requests=requests, utilisation=0.9, replicas=replicas, mean_service_ms=10.0, sessions=500, prefixes=500
    ).realise(0)
    settings = engines.Settings()
    record, _ = statistics.new_record(requests, 1)
    speed = np.ones((1, replicas))
    calls = []
    with registered(("own_rule", shortest_wait, {})):
        policies = [sweep.Policy.parse(label) for label in POLICIES]
    for policy in policies:
        stream = engines.Stream.of(work)
        traffic, ring = engines.traffic_of(stream), routing.ring_of(policy, replicas, 0)

        def call(stream=stream, traffic=traffic, ring=ring, policy=policy):
            if routing.needs_router(policy, None, work):
                routing.run_cell(traffic, policy, speed[0], 5.0, 0, settings, record, ring, None)
            else:
                engines._run_lanes(stream, policy, speed, np.array([5.0]), settings, record)

        calls.append(call)
        call()
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for place, call in enumerate(calls):
            before = time.thread_time()
            call()
            best[place] = min(best[place], time.thread_time() - before)
    benchmark.pedantic(calls[0], rounds=1)
    report(f"router engine, {replicas} replicas, kernel alone, queue_aware one cell at a time = 1")
    for label, took in zip(POLICIES, best, strict=True):
        report(f"  {label:62s} {took / requests * 1e9:7.0f} ns  {took / max(best[0], 1e-12):5.2f}")
    before = time.thread_time()
    beliefs.work_errors(np.uint64(0), requests, 0.5)
    report(f"  {'drawing the errors about work':62s} {(time.thread_time() - before) / requests * 1e9:7.0f} ns")
