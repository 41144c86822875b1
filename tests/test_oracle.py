"""The kernels equal the oracle exactly: every statistic and every request, bit for bit."""

import itertools
import math

import numpy as np
import pytest
import rules
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import crowds, fleets, slacks, speedups, streams

import sweep
from sweep.reference import (
    STRATEGIES,
    LeastLoadLB,
    Replica,
    RoundRobinLB,
    load_variance_of,
    simulate_replica_routing,
    simulate_token_step,
    summarize_replica_service,
    summarize_token_step,
    uniform,
)
from sweep.variables import VARIABLES

SEEDS = (0, 7, 2**40 + 1)


@pytest.fixture(autouse=True, scope="module")
def _rules():
    with rules.registered(rules.RANDOM, rules.EVERYTHING):
        yield


# --- The timeline -----------------------------------------------------------------------------------------------------


def expected_cell(records, replicas, warmup, slo_ms):
    """Return the statistics of a cell by name, as the Dataset has them."""
    summary = summarize_replica_service(records, replicas, warmup)
    counted = records[warmup:]
    summary["load_variance"], summary["peak_load_variance"] = load_variance_of(records, replicas, warmup)
    within = sum(record["queue_wait_ms"] <= slo_ms for record in counted)
    summary["slo_attainment"] = within / len(counted) if counted else 0.0
    if not counted:  # the oracle's zeros stand for the Dataset's NaN
        whole = {name for name, variable in VARIABLES["timeline"].items() if variable.integer or variable.dims}
        summary |= {name: math.nan for name in summary if name not in whole}
    return summary


def assert_cell(ds, index, expected):
    """Compare the cell at `index`, the position along the cell dimensions, with what is expected of it."""
    assert set(expected) == set(ds.data_vars)
    for name, value in expected.items():
        if isinstance(value, dict):
            absent = 0 if name == "reason_count" else math.nan
            value = [value.get(reason, absent) for reason in ds.reason.values.tolist()]
        np.testing.assert_array_equal(ds[name].values[index], np.asarray(value), err_msg=name)


def assert_run_equals_oracle(records, rows, slack, policies, speedup, warmup, slo_ms, seeds=(0,)):
    replicas = len(rows[0])
    requests = sweep.Requests.from_records(records)
    fleet = sweep.Fleet(rows, heterogeneity=range(len(rows)))
    ds = sweep.run(
        sweep.Workload.fixed(requests),
        fleet,
        policy=policies,
        slack=slack,
        seed=list(seeds),
        cache_hit_speedup=speedup,
        warmup=warmup,
        slo_ms=slo_ms,
    )
    for (p, policy), (h, speeds), (s, seed) in itertools.product(*map(enumerate, (policies, rows, seeds))):
        for k, value in enumerate(slack):
            if k == 0 or ds.reads_slack.values[p]:
                oracle = simulate_replica_routing(records, replicas, policy, value, speedup, speeds, seed=seed)
                expected = expected_cell(oracle, replicas, warmup, slo_ms)
            assert_cell(ds, (p, k, h, s), expected)


@given(streams(), fleets(rows=2), slacks(), speedups(), st.integers(0, 6), st.sampled_from([0.0, 3.0]))
@settings(max_examples=60)
def test_timeline__short_streams(records, rows, slack, speedup, warmup, slo_ms):
    assert_run_equals_oracle(records, rows, slack, STRATEGIES, speedup, warmup, slo_ms)


@given(crowds(), fleets(rows=1), slacks(), speedups(), st.sampled_from([0, 50]))
@settings(max_examples=25)
def test_timeline__long_streams(crowd, rows, slack, speedup, warmup):
    assert_run_equals_oracle(crowd.records(), rows, slack[:2], STRATEGIES, speedup, warmup, 10.0)


@pytest.mark.parametrize("replicas", [1, 4, 63, 64, 65, 256])
def test_timeline__every_replica_is_reached(replicas):
    """A crowd of equal arrivals fills all replicas, then prefixes and sessions find the high ones again."""
    count = replicas + 40
    records = [
        {"request_id": i, "arrival_ms": 100.0 * (i // count), "service_ms": 60.0 + i % 3, "prefix_key": i % count}
        | {"session_id": i % count if i % count % 2 else None}
        for i in range(2 * count)
    ]
    oracle = simulate_replica_routing(records, replicas, "locality_aware", 30.0)
    assert {record["replica_id"] for record in oracle} == set(range(replicas))
    assert {record["route_reason"] for record in oracle} == {"queue_fallback", "prefix_locality", "sticky_session"}
    assert_run_equals_oracle(records, [[1.0] * replicas], [0.0, 30.0, math.inf], STRATEGIES, 0.3, 0, 5.0)


def test_timeline__many_cells_at_once():
    """More cells of one stream than are advanced together."""
    records = [
        {"request_id": i, "arrival_ms": 2.0 * (i // 3), "service_ms": float(i % 7), "prefix_key": i % 5}
        for i in range(60)
    ]
    rows = [[1.0, 1.0, 1.0 - 0.07 * level] for level in range(13)]
    assert_run_equals_oracle(records, rows, [0.5 * step for step in range(11)], ["locality_aware"], 0.3, 5, 1.0)


@given(streams(max_size=15), fleets(rows=1), slacks(), speedups())
@settings(max_examples=15)
def test_timeline__user_rules(records, rows, slack, speedup):
    policies = ["random_replica", "everything", "everything(weight=0)", "everything(bias=-2.5, weight=7)"]
    assert_run_equals_oracle(records, rows, slack[:2], policies, speedup, 0, 1.0, SEEDS)


@given(streams(), fleets(rows=1), slacks(), speedups(), st.sampled_from([*STRATEGIES, "everything"]))
@settings(max_examples=60)
def test_simulate__every_request(records, rows, slack, speedup, policy):
    requests = sweep.Requests.from_records(records)
    ds = sweep.simulate(requests, rows[0], policy=policy, slack=slack[0], seed=5, cache_hit_speedup=speedup)
    oracle = simulate_replica_routing(records, len(rows[0]), policy, slack[0], speedup, rows[0], seed=5)
    assert ds.sizes["request"] == len(oracle)
    times = ("start_ms", "finish_ms", "queue_wait_ms", "effective_service_ms", "arrival_ms", "service_ms")
    for name in ("request_id", "replica_id", "route_reason", "cache_hit", *times):
        assert ds[name].values.tolist() == [record[name] for record in oracle], name


def test_uniform__kernel_equals_oracle():
    from sweep.kernels import random

    for seed in SEEDS:
        for index in (0, 1, 12345, 2**33):
            assert random.uniform(seed, 1, index) == uniform(seed, 1, index)


# --- Token steps ------------------------------------------------------------------------------------------------------

BALANCERS = {
    "round_robin": RoundRobinLB,
    "least_load": LeastLoadLB,
    "least_load(in_service_weight=0.5)": lambda: LeastLoadLB(in_service_weight=0.5),
    "least_load(in_service_weight=0.1)": lambda: LeastLoadLB(in_service_weight=0.1),
    "least_load(in_service_weight=0)": lambda: LeastLoadLB(in_service_weight=0.0),
}
#: Products with 100 that are not whole in binary (0.29, 0.57), that round to 1 token, and more than a batch.
STEP_SPEEDS = st.lists(st.sampled_from([1.0, 0.3, 1.2, 0.29, 0.57, 0.015, 7.5]), min_size=1, max_size=6)


def oracle_of(records, speeds, policy, steps, step_ms):
    replicas = [Replica(str(index), speed) for index, speed in enumerate(speeds)]
    return simulate_token_step(records, replicas, BALANCERS[policy](), steps, step_ms)


def assert_steps_equal_oracle(records, speeds, steps, step_ms):
    requests = sweep.Requests.from_records(records)
    policies = list(BALANCERS)
    settings = {"engine": "token_step", "steps": steps, "step_ms": step_ms}
    ds = sweep.run(sweep.Workload.fixed(requests), sweep.Fleet.fixed(speeds), policy=policies, seed=1, **settings)
    for policy in policies:
        played, loads = oracle_of(records, speeds, policy, steps, step_ms)
        expected = summarize_token_step(played, loads)
        if not played:
            expected |= {name: math.nan for name in ("mean_queue_wait_ms", "p95_queue_wait_ms", "p99_queue_wait_ms")}
        if not loads:
            expected |= {"load_variance": math.nan, "peak_load_variance": math.nan}
            expected["cumulative_load_tokens"] = [0] * len(speeds)
        assert_cell(ds, (policies.index(policy), 0, 0, 0), expected)

        one = sweep.simulate(requests, speeds, policy=policy, **settings)
        np.testing.assert_array_equal(one["load"].values, [list(load.values()) for load in loads] or one["load"].values)
        assert one.sizes["step"] == len(loads)
        for name in ("replica_id", "start_ms", "queue_wait_ms"):
            np.testing.assert_array_equal(one[name].values[: len(played)], [record[name] for record in played])


@given(streams().filter(len), STEP_SPEEDS, st.sampled_from([None, 1, 7, 40]), st.sampled_from([1.0, 2.5, 0.1]))
@settings(max_examples=50)
def test_token_step__short_streams(records, speeds, steps, step_ms):
    for record in records:
        record["prompt_tokens"] += 1
    assert_steps_equal_oracle(records, speeds, steps, step_ms)


@given(crowds(min_size=1), STEP_SPEEDS, st.sampled_from([None, 20]))
@settings(max_examples=15)
def test_token_step__long_streams(crowd, speeds, steps):
    assert_steps_equal_oracle(crowd.records(), speeds, steps, 1.0)


@pytest.mark.parametrize("replicas", [63, 64, 65, 256])
def test_token_step__many_replicas(replicas):
    records = [
        {"request_id": i, "arrival_ms": float(i // 90), "service_ms": 0.0, "prompt_tokens": 30 + i % 50}
        for i in range(2 * replicas)
    ]
    assert_steps_equal_oracle(records, [0.5 + 0.1 * (index % 7) for index in range(replicas)], None, 1.0)


def test_token_step__a_replica_too_slow_to_serve_a_token():
    """A speed below 0.01 serves int(speed * 100) = 0 tokens a step: such a run ends only if it is told to."""
    records = [{"request_id": i, "arrival_ms": 0.0, "service_ms": 0.0, "prompt_tokens": 60} for i in range(5)]
    assert_steps_equal_oracle(records, [1.0, 0.009], 30, 1.0)


def test_token_step__dplb_burst():
    """The published table, from the workload to the Dataset."""
    policies = ["round_robin", "least_load", "least_load(in_service_weight=0.5)"]
    ds = sweep.run(
        sweep.Workload.dplb_burst(),
        sweep.Fleet.fixed([1.0, 0.3, 1.2]),
        policy=policies,
        seed=[42],
        engine="token_step",
    ).squeeze(["slack", "heterogeneity", "seed"])
    assert ds.request_count.values.tolist() == [170] * 3
    assert ds.cumulative_load_tokens.values.tolist() == [[2727, 70559, 2566], [4266, 6325, 3540], [4283, 6483, 3391]]
    assert ds.load_variance.values.round(5).tolist() == [233004.64667, 862.80333, 968.88333]
    assert ds.peak_load_variance.values.round(5).tolist() == [784385.33333, 9185.33333, 8321.33333]
