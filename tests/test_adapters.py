"""Adapters: locality with another key. Speed-ups multiply; the order is session, prefix, adapter."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_policies import policies
from strategies import slacks, speeds, speedups, streams

import sweep
from sweep.reference import simulate_replica_routing


@st.composite
def adapter_cells(draw):
    replicas = draw(st.sampled_from([1, 2, 3, 5]))
    records = [
        record
        | {"prompt_tokens": record["prompt_tokens"] + 1, "adapter_id": draw(st.sampled_from([None, "x", "y", 3]))}
        for record in draw(streams())
    ]
    return records, draw(speeds(replicas)), draw(policies(replicas, ("locality_aware", "round_robin", "migrate")))


@given(adapter_cells(), slacks(), speedups(), st.sampled_from([0.0, 0.25]))
@settings(max_examples=100)
def test_adapters__kernel_equals_oracle(cell, slack, speedup, adapter_speedup):
    records, row, policy = cell
    requests = sweep.Requests.from_records(records)
    options = {"cache_hit_speedup": speedup, "adapter_speedup": adapter_speedup}
    for each in (policy, sweep.Policy("locality_aware")):
        ds = sweep.simulate(requests, row, policy=each, slack=slack[0], **options)
        oracle = simulate_replica_routing(
            records, len(row), each, slack[0], speedup, row, adapter_speedup=adapter_speedup
        )
        for name in ("replica_id", "route_reason", "cache_hit", "start_ms", "finish_ms", "effective_service_ms"):
            assert ds[name].values.tolist() == [record[name] for record in oracle], name


def test_adapters__speedups_multiply_and_the_reason_is_given():
    requests = sweep.Requests.from_arrays(
        [0.0, 1.0, 30.0, 60.0], [10.0] * 4, prefix=[None, None, "p", "p"], adapter=["x", "y", "y", "y"]
    )
    options = {"policy": "locality_aware", "slack": 50.0, "cache_hit_speedup": 0.5, "adapter_speedup": 0.2}
    ds = sweep.simulate(requests, [1.0, 1.0], **options)
    assert ds.replica_id.values.tolist() == [0, 1, 1, 1]
    assert ds.route_reason.values.tolist()[2:] == ["adapter_locality", "prefix_locality"]
    assert ds.effective_service_ms.values.tolist() == [10.0, 10.0, 8.0, 4.0]


def test_adapters__in_a_sweep_reasons_add_up():
    work = sweep.Workload.poisson(
        requests=500, utilisation=0.8, replicas=4, prefixes=50, adapters=[0, 6], session_prefix="independent"
    )
    fleet = sweep.Fleet.fixed([1.0] * 4)
    names = ["round_robin", "queue_aware", "locality_aware"]
    ds = sweep.run(work, fleet, policy=names, slack=[0.0, 20.0], seed=3, adapter_speedup=0.3)
    assert (ds.reason_count.sum("reason") == ds.request_count).all()
    hits = ds.reason_count.sel(reason="adapter_locality", policy="locality_aware")
    assert (hits.sel(adapters=0) == 0).all()
    assert (hits.sel(adapters=6, slack=20.0) > 0).all()
    # Adapters do not change what else is drawn.
    plain = sweep.Workload.poisson(requests=500, utilisation=0.8, replicas=4, prefixes=50, session_prefix="independent")
    alone = sweep.run(plain, fleet, policy=names, slack=[0.0, 20.0], seed=3)
    for name in ("p99_queue_wait_ms", "cache_hit_rate"):
        np.testing.assert_array_equal(ds[name].sel(adapters=0), alone[name])


def test_adapters__are_stored_only_where_there_are_some():
    with_them = sweep.Requests.from_arrays([0.0, 1.0], [1.0, 1.0], adapter=["x", None])
    without = sweep.Requests.from_arrays([0.0, 1.0], [1.0, 1.0])
    assert without.adapter is None
    assert "adapter" not in without.to_dict()
    assert with_them.fingerprint() != without.fingerprint()
    again = sweep.Requests.from_dict(json.loads(json.dumps(with_them.to_dict())))
    assert again.fingerprint() == with_them.fingerprint()
    assert sweep.Requests.from_records(with_them.to_records()).adapter.tolist() == [0, -1]
    assert "adapters" not in sweep.Workload.poisson(requests=5, rate_per_s=5).to_dict()["parameters"]


def test_batches__come_together_at_the_same_rate():
    work = sweep.Workload.poisson(requests=40_003, rate_per_s=100, batch=4).realise(1)
    gaps = np.diff(work.arrival_ms)
    assert len(work) == 40_003
    assert (gaps[np.arange(len(gaps)) % 4 != 3] == 0).all()
    assert gaps.mean() == pytest.approx(10.0, rel=0.05)
    plain, one = (sweep.Workload.poisson(requests=9, rate_per_s=100, **more) for more in ({}, {"batch": 1}))
    assert plain.fingerprint() == one.fingerprint()
    bursts = sweep.Workload.bursty(requests=999, rate_per_s=100, peak_to_mean=2, burst_ms=50, batch=3).realise(2)
    assert (np.diff(bursts.arrival_ms.reshape(-1, 3)) == 0).all()
