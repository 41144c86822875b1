"""The router engine equals the plain-Python model exactly, on every axis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_policies import PARAMETERS, policies
from strategies import crowds, slacks, speeds, speedups, streams
from test_oracle import assert_run_equals_oracle

import sweep
from sweep.reference import simulate_replica_routing

COUNTS = st.sampled_from([1, 2, 3, 5, 65])


@st.composite
def cells(draw, requests, names=tuple(PARAMETERS)):
    """Return records, speeds and a policy for them."""
    replicas = draw(COUNTS)
    records = [record | {"prompt_tokens": record["prompt_tokens"] + 1} for record in draw(requests)]
    return records, draw(speeds(replicas)), draw(policies(replicas, tuple(names)))


def assert_same(records, row, policy, slack, speedup, seed):
    requests = sweep.Requests.from_records(records)
    ds = sweep.simulate(requests, row, policy=policy, slack=slack, seed=seed, cache_hit_speedup=speedup)
    oracle = simulate_replica_routing(records, len(row), policy, slack, speedup, row, seed=seed)
    assert ds.sizes["request"] == len(oracle)
    for name in ("request_id", "replica_id", "route_reason", "cache_hit", "start_ms", "finish_ms", "queue_wait_ms"):
        assert ds[name].values.tolist() == [record[name] for record in oracle], name


@pytest.mark.parametrize("name", PARAMETERS)
def test_router__every_request(name):
    @given(cells(streams(), (name,)), slacks(), speedups(), st.sampled_from([0, 9]))
    @settings(max_examples=60)
    def same(cell, slack, speedup, seed):
        assert_same(*cell, slack[0], speedup, seed)

    same()


@given(cells(crowds().map(lambda crowd: crowd.records())), slacks(), speedups())
@settings(max_examples=60)
def test_router__long_streams(cell, slack, speedup):
    assert_same(*cell, slack[0], speedup, 3)


@given(cells(streams(), [name for name in PARAMETERS if name != "migrate"]), slacks(), speedups(), st.integers(0, 6))
@settings(max_examples=40)
def test_router__every_statistic(cell, slack, speedup, warmup):
    records, row, policy = cell
    if not records:
        records = [{"request_id": 0, "arrival_ms": 0.0, "service_ms": 1.0, "prompt_tokens": 1}]
    assert_run_equals_oracle(records, [row], slack[:2], [policy], speedup, warmup, 3.0, seeds=(0, 7))


#: Policies that choose as a rule of the lane engine does while nothing is stale, guessed or shared.
LIVE = [
    ("round_robin", ["round_robin(router_assignment=random)"], {}),
    ("queue_aware", ["queue_aware(correction=own)", "least_load", "power_of_d(d=65)", "soft_sticky(threshold=0)"], {}),
    ("locality_aware", ["locality_aware(correction=own, phase=spread)"], {}),
]


@given(cells(streams()), slacks(), speedups())
@settings(max_examples=60)
def test_router__live_is_the_lane_engine(cell, slack, speedup):
    """Freshness 0, any correction, one router: the bits of the engine that knows nothing of these axes."""
    records, row, _ = cell
    options = {"slack": slack[0], "cache_hit_speedup": speedup}
    for plain, others, change in LIVE:
        changed = [record | change for record in records]
        if plain == "queue_aware":  # soft_sticky compares loads, so without sessions it is the same rule
            changed = [record | {"session_id": None} for record in changed]
        requests = sweep.Requests.from_records(changed)
        expected = sweep.simulate(requests, row, policy=plain, **options)
        for policy in others:
            found = sweep.simulate(requests, row, policy=policy, **options)
            for key in ("replica_id", "start_ms", "finish_ms", "cache_hit"):
                np.testing.assert_array_equal(found[key].values, expected[key].values, err_msg=policy)
