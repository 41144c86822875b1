"""Replicas that fail, drain and slow down: the engine equals the plain-Python model exactly, and loses no request."""

import math

import numpy as np
import pytest
import rules
from hypothesis import given, settings
from hypothesis import strategies as st
from router_policies import PARAMETERS, events, policies
from strategies import crowds, slacks, speeds, speedups, streams

import sweep
from sweep.reference import summarize_replica_service
from sweep.reference.router import Simulation, recovery_ms
from sweep.reference.statistics import mean


@st.composite
def cells(draw, requests, names=tuple(PARAMETERS)):
    """Return records, a fleet with events and a policy."""
    replicas = draw(st.sampled_from([1, 2, 3, 5]))
    records = [record | {"prompt_tokens": record["prompt_tokens"] + 1} for record in draw(requests)]
    fleet = sweep.Fleet.fixed(draw(speeds(replicas))).with_events(**draw(events(replicas)))
    return records, fleet, draw(policies(replicas, names))


def assert_same(records, fleet, policy, slack, speedup, seed=0):
    requests = sweep.Requests.from_records(records)
    simulation = Simulation(records, fleet.speeds[0].tolist(), policy, slack, speedup, seed, fleet.events)
    outcome = simulation.run()
    ds = sweep.simulate(requests, fleet, policy=policy, slack=slack, seed=seed, cache_hit_speedup=speedup)
    assert set(np.flatnonzero(ds.lost.values).tolist()) == outcome.lost
    done = ds.isel(request=~ds.lost.values)
    for name in ("request_id", "replica_id", "route_reason", "cache_hit", "start_ms", "finish_ms", "queue_wait_ms"):
        assert done[name].values.tolist() == [record[name] for record in outcome.records], name
    return outcome


@pytest.mark.parametrize("name", PARAMETERS)
def test_failures__every_request(name):
    @given(cells(streams(), (name,)), slacks(), speedups())
    @settings(max_examples=80)
    def same(cell, slack, speedup):
        assert_same(*cell, slack[0], speedup)

    same()


@given(cells(crowds().map(lambda crowd: crowd.records())), slacks(), speedups())
@settings(max_examples=60)
def test_failures__long_streams(cell, slack, speedup):
    assert_same(*cell, slack[0], speedup, seed=4)


@given(cells(streams()), st.integers(0, 6))
@settings(max_examples=60)
def test_failures__every_statistic(cell, warmup):
    records, fleet, policy = cell
    outcome = assert_same(records, fleet, policy, 5.0, 0.3)
    requests = sweep.Requests.from_records(records)
    ds = sweep.run(sweep.Workload.fixed(requests), fleet, policy=policy, seed=1, warmup=warmup)
    found = {name: ds[name].squeeze().values for name in ds.data_vars}
    counted = [i for i in range(len(records)) if i >= warmup]
    first = sum(i not in outcome.lost for i in range(min(warmup, len(records))))

    for name in ("lost", "retried", "misrouted"):
        assert found[f"{name}_requests"] == sum(i in getattr(outcome, name) for i in counted), name
    assert found["request_count"] + found["lost_requests"] == len(counted)
    assert found["reason_count"].sum() == found["request_count"]
    if policy.name == "migrate":
        assert found["migrations"] == sum(i in outcome.migrated for i in counted)
    np.testing.assert_array_equal(found["recovery_ms"], recovery_ms(outcome.records, fleet.events))
    if found["request_count"]:
        expected = summarize_replica_service(outcome.records, fleet.replicas, first)
        for name in ("mean_queue_wait_ms", "p99_queue_wait_ms", "p95_latency_ms", "cache_hit_rate", "session_moves"):
            assert found[name] == expected[name], name
        assert found["replica_requests"].tolist() == expected["replica_requests"] or fleet.replicas == 1
        assert found["load_variance"] == mean(outcome.variances[warmup:])
        assert found["peak_load_variance"] == max(outcome.variances[warmup:])


@given(cells(streams()))
@settings(max_examples=40)
def test_failures__an_event_nobody_meets_changes_nothing(cell):
    records, fleet, policy = cell
    requests = sweep.Requests.from_records(records)
    late = fleet.with_events([sweep.Down(0, 1e9, math.inf)], heartbeat_ms=1.0)
    with_it = sweep.simulate(requests, late, policy=policy)
    without = sweep.simulate(requests, fleet.speeds[0], policy=policy)
    for name in without.data_vars:
        np.testing.assert_array_equal(with_it[name].values, without[name].values, err_msg=name)


@given(cells(streams(), ("queue_aware",)), slacks(), speedups())
@settings(max_examples=60)
def test_failures__a_users_rule(cell, slack, speedup):
    records, fleet, _ = cell
    records = [record | {"adapter_id": (None, "x", 3)[record["request_id"] % 3]} for record in records]
    with rules.registered(rules.ROUTED):
        assert_same(records, fleet, sweep.Policy("routed"), slack[0], speedup, seed=2)
