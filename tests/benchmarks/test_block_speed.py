"""What a block of a trace costs per cell with finite caches, all metrics included. Nothing here asserts a time."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import numpy as np
import pytest

import sweep
from sweep import engines
from sweep.policies import Policy

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"
EXAMPLE = Path(__file__).parents[2] / "studies" / "example_traces" / "mooncake.jsonl"
POLICIES = ("round_robin", "queue_aware", "locality_aware")
GENERAL = ("least_load", "migrate", "locality_aware(freshness_ms=1000)")
#: Three of the block kernel and three of the router's, two of the six reading slack.
SIX = (*POLICIES, "least_load", "bounded_hash", "locality_aware(freshness_ms=1000)")


@pytest.fixture(scope="module")
def stream():
    """Return the conversation trace, or a small stream where it is not on this machine."""
    if TRACE.exists():
        return sweep.traces.read(TRACE)
    source = random.Random(1)
    return sweep.Requests.from_records(
        {"request_id": i, "arrival_ms": 9.0 * i, "service_ms": 50.0, "prompt_tokens": 320, "block_tokens": 16}
        | {"blocks": [1000 * (k + 1) + source.randrange(1 + k * k) for k in range(20)]}
        for i in range(2_000)
    )


@pytest.mark.parametrize("policy", (*POLICIES, *GENERAL))
@pytest.mark.parametrize(
    ("capacity", "eviction", "visible", "replicas"),
    [
        (1_000, "lru", "dispatch", 8),
        (10_000, "lru", "dispatch", 8),
        (30_000, "lru", "dispatch", 8),
        (math.inf, "lru", "dispatch", 8),
        (10_000, "lru", "dispatch", 64),
        (10_000, "lru", "prefill_end", 8),
        (10_000, "lfu", "dispatch", 8),
    ],
)
def test_cost__per_block(benchmark, report, measuring, stream, policy, capacity, eviction, visible, replicas):
    settings = engines.Settings(cache_blocks=(float(capacity),), eviction=eviction, cache_visible=visible)
    prepared, scratch = engines.prepared(stream, settings), engines.Scratch()
    speeds = sweep.Fleet.one_slow(replicas, [0.0, 0.2, 0.4, 0.6] if measuring else [0.0]).speeds
    slack = np.array([0.0, 1_000.0, 5_000.0] if measuring else [0.0])

    def cells():
        engines.cells(prepared, speeds, Policy.parse(policy), slack, 0, "timeline", settings, scratch)

    cells()
    times = []
    for _ in range(7 if measuring else 1):
        before = time.thread_time()
        cells()
        times.append(time.thread_time() - before)
    count = len(speeds) * (len(slack) if Policy.parse(policy).rule.reads_slack else 1)
    cost = min(times) / count / len(stream.blocks.ids) * 1e9
    benchmark.pedantic(cells, rounds=1)
    report(
        f"  {policy:33s} {replicas:3d} replicas, {capacity:7,.0f} blocks, {eviction}, visible at {visible}: "
        f"{cost:5.1f} ns per block"
    )


def test_cost__whole_sweep(benchmark, report, measuring):
    """Policies x 8 slacks x 4 heterogeneities x 4 capacities, reading included: what a user waits for."""
    path = TRACE if TRACE.exists() else EXAMPLE
    fleet = sweep.Fleet.one_slow(8, [0.0, 0.2, 0.4, 0.6] if measuring else [0.0])
    slack = [0, 250, 500, 1_000, 2_000, 5_000, 10_000, 25_000] if measuring else [0]

    def whole():
        work = sweep.Workload.fixed(sweep.traces.read(path))
        return sweep.run(
            work, fleet, policy=SIX, slack=slack, seed=1, cache_blocks=[1_000, 10_000, 30_000, None], workers=2
        )

    whole()
    wall, processor = time.perf_counter(), time.process_time()
    found = whole().request_count
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    benchmark.pedantic(whole, rounds=1)
    report(
        f"  {path.name}, {len(SIX)} policies, {found.size:,} cells on two threads, reading included: "
        f"{wall:.1f} s, {processor:.1f} s of processor time"
    )
