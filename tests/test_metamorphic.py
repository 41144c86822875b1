"""Relations between runs: what must not change when the question is asked in another way, and what must."""

import concurrent.futures
import math

import numpy as np
import pytest
import rules
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import fleets, streams

import sweep
from sweep.variables import VARIABLES

POLICIES = ["round_robin", "queue_aware", "locality_aware"]
CELL = ["policy", "slack", "heterogeneity", "seed"]


@pytest.fixture(autouse=True, scope="module")
def _rules():
    with rules.registered(rules.RANDOM, rules.MIRRORED):
        yield


def poisson(requests=300, replicas=4, **changes):
    given = {"utilisation": 0.9, "mean_service_ms": 10.0, "sessions": 20, "prefixes": 20}
    return sweep.Workload.poisson(requests=requests, replicas=replicas, **(given | changes))


def assert_same_bits(one, other):
    """Compare coordinates and data, bit for bit; attributes may tell how the run was asked for."""
    xr.testing.assert_identical(one.drop_attrs(), other.drop_attrs())
    for name in one.data_vars:
        assert one[name].values.tobytes() == other[name].values.tobytes(), name


def run(work=None, fleet=None, **changes):
    given = {"policy": [*POLICIES, "random_replica"], "slack": [0.0, 5.0, 20.0], "seed": 6}
    fleet = fleet or sweep.Fleet.one_slow(4, [0.0, 0.3])
    return sweep.run(work or poisson(), fleet, **(given | changes))


# --- How the grid is cut and computed ---------------------------------------------------------------------------------


def test_split__seeds():
    parts = [run(seed=[0]), run(seed=[1, 2]), run(seed=[3, 4, 5])]
    assert_same_bits(
        run(), xr.concat(parts, "seed", data_vars="minimal", coords="minimal", compat="override", join="exact")
    )


@pytest.mark.parametrize("dim", ["policy", "slack", "heterogeneity"])
def test_split__every_cell_alone(dim):
    whole = run()
    for index in range(whole.sizes[dim]):
        fleet = sweep.Fleet.one_slow(4, [[0.0, 0.3][index]]) if dim == "heterogeneity" else None
        given = {} if dim == "heterogeneity" else {dim: [whole[dim].values[index].item()]}
        alone, cut = run(fleet=fleet, **given), whole.isel({dim: [index]})
        for name in alone.data_vars:
            if "reason" in alone[name].dims:
                np.testing.assert_array_equal(alone[name], cut[name].sel(reason=alone.reason), err_msg=name)
            else:
                assert alone[name].values.tobytes() == cut[name].values.tobytes(), name


def test_split__workloads_of_different_lengths():
    """A list parameter of the workload gives what each of its values gives alone."""
    whole = run(poisson(requests=[200, 0, 30], utilisation=[0.5, 0.9]), seed=3)
    assert whole.mean_queue_wait_ms.dims == ("policy", "slack", "heterogeneity", "requests", "utilisation", "seed")
    for requests in (200, 0, 30):
        for utilisation in (0.5, 0.9):
            alone = run(poisson(requests=requests, utilisation=utilisation), seed=3)
            for name in alone.data_vars:
                cut = whole[name].sel(requests=requests, utilisation=utilisation)
                assert alone[name].values.tobytes() == cut.values.tobytes(), name


@pytest.mark.parametrize("changes", [{"seed": [5, 2, 0, 4, 1, 3]}, {"policy": [*POLICIES, "random_replica"][::-1]}])
def test_order__is_kept_and_changes_nothing(changes):
    (dim, order), whole = next(iter(changes.items())), run()
    turned = run(**changes)
    assert turned[dim].values.tolist() == order
    for name in whole.data_vars:
        want = whole[name].sel({dim: order})
        if "reason" in want.dims:
            want = want.sel(reason=turned.reason)
        assert turned[name].values.tobytes() == want.values.tobytes(), name


def test_threads__any_number():
    one = run(workers=1)
    assert_same_bits(one, run(workers=2))
    assert_same_bits(one, run(workers=3))


def test_executor__threads_or_processes_of_the_caller():
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert_same_bits(run(), run(executor=threads))
    with concurrent.futures.ProcessPoolExecutor(1) as processes:
        assert_same_bits(run(policy=POLICIES), run(policy=POLICIES, executor=processes))


def test_repeat__the_same_bits_and_other_seeds_differ():
    assert_same_bits(run(), run())
    ds = run()
    assert (np.diff(ds.mean_queue_wait_ms.isel(seed=slice(0, 2)).values, axis=-1) != 0.0).all()


def test_run__a_scalar_keeps_its_dimension():
    ds = run(policy="round_robin", slack=5.0, seed=[3], fleet=sweep.Fleet.fixed([1.0, 2.0]))
    assert ds.mean_queue_wait_ms.dims == ("policy", "slack", "heterogeneity", "seed")
    assert ds.mean_queue_wait_ms.shape == (1, 1, 1, 1)


def test_run__common_random_numbers():
    """Every policy and slack sees one stream: round robin does the same whatever the slack."""
    ds = run(policy=["round_robin", "locality_aware"])
    assert not bool(ds.reads_slack.sel(policy="round_robin"))
    for name in VARIABLES["timeline"]:
        if name in ds:
            first = ds[name].sel(policy="round_robin").isel(slack=0).values
            assert ds[name].sel(policy="round_robin").isel(slack=2).values.tobytes() == first.tobytes()
    assert (ds.mean_queue_wait_ms.sel(policy="locality_aware").diff("slack") != 0.0).any()


# --- One cell replayed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [*POLICIES, "random_replica", "mirrored_locality"])
def test_simulate__equals_the_cell_of_run(policy):
    work, fleet = poisson(), sweep.Fleet.one_slow(4, [0.3])
    ds = run(work, fleet, policy=policy, slack=[5.0], seed=[0, 3, 11], warmup=0)
    for seed in (0, 3, 11):
        one = sweep.simulate(work.realise(seed), fleet.speeds[0], policy=policy, slack=5.0, seed=seed)
        cell = ds.sel(seed=seed).squeeze(["policy", "slack", "heterogeneity"])
        wait = one.queue_wait_ms.values
        total = 0.0
        for value in wait.tolist():
            total += value
        assert total / wait.size == float(cell.mean_queue_wait_ms)
        assert np.sort(wait)[math.ceil(0.99 * wait.size) - 1] == float(cell.p99_queue_wait_ms)
        assert one.cache_hit.values.sum() / wait.size == float(cell.cache_hit_rate)
        assert np.bincount(one.replica_id.values, minlength=4).tolist() == cell.replica_requests.values.tolist()
        assert one.finish_ms.values.max() - one.arrival_ms.values[0] == float(cell.makespan_ms)
        reasons = one.route_reason.values.tolist()
        assert cell.reason_count.values.tolist() == [reasons.count(name) for name in cell.reason.values.tolist()]


def test_simulate__seed_decides_the_uniforms_of_a_random_rule():
    requests = poisson().realise(0)
    went = [
        sweep.simulate(requests, [1.0] * 4, policy="random_replica", seed=seed).replica_id.values for seed in (0, 1, 0)
    ]
    assert (went[0] == went[2]).all()
    assert (went[0] != went[1]).any()


@pytest.mark.parametrize("policy", ["round_robin", "least_load", "least_load(in_service_weight=0.5)"])
def test_simulate__equals_the_cell_of_run_in_token_steps(policy):
    work = sweep.Workload.dplb_burst()
    ds = sweep.run(work, sweep.Fleet.fixed([1.0, 0.3, 1.2]), policy=policy, seed=[4, 42], engine="token_step")
    for seed in (4, 42):
        one = sweep.simulate(work.realise(seed), [1.0, 0.3, 1.2], policy=policy, seed=seed, engine="token_step")
        cell = ds.sel(seed=seed).squeeze()
        assert one.sizes["step"] == 100
        assert one["load"].sum("step").values.tolist() == cell.cumulative_load_tokens.values.tolist()
        assert float(np.mean(one.queue_wait_ms)) == pytest.approx(float(cell.mean_queue_wait_ms), rel=1e-12)
        assert int(np.isnan(one.start_ms).sum()) == int(cell.unstarted_requests)


# --- Units ------------------------------------------------------------------------------------------------------------

#: How a variable scales when all times are multiplied by 2: exact in binary, whatever is rounded on the way.
POWERS = {"ms": 2.0, "ms2": 4.0, "requests/s": 0.5, "1": 1.0}


def scaled(requests, factor):
    return sweep.Requests.from_arrays(
        requests.arrival_ms * factor, requests.service_ms * factor, prefix=requests.prefix, session=requests.session
    )


@pytest.mark.parametrize("exponent", [-40, 1, 38])
def test_scale__time_by_a_power_of_two_is_exact(exponent):
    requests = poisson().realise(2)
    factor = 2.0**exponent
    one = run(sweep.Workload.fixed(requests), slack=[0.0, 3.7, 20.0], seed=1, slo_ms=4.0)
    other = run(
        sweep.Workload.fixed(scaled(requests, factor)),
        slack=[0.0, 3.7 * factor, 20.0 * factor],
        seed=1,
        slo_ms=4.0 * factor,
    )
    for name in one.data_vars:
        power = POWERS[one[name].attrs["units"]] ** exponent
        np.testing.assert_array_equal(other[name].values, one[name].values * power, err_msg=name)


def test_scale__faster_replicas_with_longer_requests_change_nothing():
    requests = poisson().realise(3)
    longer = sweep.Requests.from_arrays(
        requests.arrival_ms, requests.service_ms * 8.0, prefix=requests.prefix, session=requests.session
    )
    fleet = sweep.Fleet.one_slow(4, [0.0, 0.3])
    faster = sweep.Fleet(fleet.speeds * 8.0, fleet.heterogeneity)
    one, other = run(sweep.Workload.fixed(requests), fleet), run(sweep.Workload.fixed(longer), faster)
    assert_same_bits(one.drop_vars("speed"), other.drop_vars("speed"))


# --- Slack and replicas -----------------------------------------------------------------------------------------------


@given(streams(), fleets(rows=1))
def test_slack__without_bound_a_session_never_moves(records, rows):
    ds = sweep.simulate(sweep.Requests.from_records(records), rows[0], policy="locality_aware", slack=math.inf)
    owner, holders = {}, {}
    for record, replica, reason in zip(
        sorted(records, key=lambda record: (record["arrival_ms"], record["request_id"])),
        ds.replica_id.values.tolist(),
        ds.route_reason.values.tolist(),
        strict=True,
    ):
        session, prefix = record["session_id"], record["prefix_key"]
        if session in owner:
            assert (replica, reason) == (owner[session], "sticky_session")
        elif prefix in holders:
            assert reason == "prefix_locality" and replica in holders[prefix]
        else:
            assert reason == "queue_fallback"
        if session is not None:
            owner[session] = replica
        if prefix is not None:
            holders.setdefault(prefix, set()).add(replica)


@given(streams(), fleets(rows=1))
def test_slack__zero_waits_as_little_as_possible(records, rows):
    """At slack 0 locality only breaks ties, so on equal replicas without reuse every wait is the shortest queue's."""
    requests = sweep.Requests.from_records(records)
    equal = [1.0] * len(rows[0])
    given = {"slack": 0.0, "cache_hit_speedup": 0.0}
    local = sweep.simulate(requests, equal, policy="locality_aware", **given)
    shortest = sweep.simulate(requests, equal, policy="queue_aware", **given)
    assert local.queue_wait_ms.values.tolist() == shortest.queue_wait_ms.values.tolist()


@given(streams(), fleets(rows=1), st.floats(0.0, 50.0))
def test_slack__is_nothing_to_requests_without_keys(records, rows, slack):
    for record in records:
        record["prefix_key"] = record["session_id"] = None
    requests = sweep.Requests.from_records(records)
    local = sweep.simulate(requests, rows[0], policy="locality_aware", slack=slack)
    shortest = sweep.simulate(requests, rows[0], policy="queue_aware")
    assert set(local.route_reason.values.tolist()) <= {"queue_fallback"}
    assert_same_bits(local.drop_vars("route_reason"), shortest.drop_vars("route_reason"))


@given(streams(), st.sampled_from([1, 2, 3, 5, 64, 65]), st.integers(0, 20).map(float))
@settings(max_examples=40)
def test_permutation__of_equal_replicas_turns_the_result(records, replicas, slack):
    """Ties to the highest index instead of the lowest: replica r plays the part of replica R - 1 - r."""
    requests = sweep.Requests.from_records(records)
    low = sweep.simulate(requests, [1.0] * replicas, policy="locality_aware", slack=slack)
    high = sweep.simulate(requests, [1.0] * replicas, policy="mirrored_locality", slack=slack)
    assert (replicas - 1 - high.replica_id.values).tolist() == low.replica_id.values.tolist()
    for name in ("cache_hit", "start_ms", "finish_ms", "queue_wait_ms", "effective_service_ms"):
        assert low[name].values.tolist() == high[name].values.tolist()


def test_permutation__of_speeds_turns_the_mirrored_rule():
    """The same with unequal replicas, over a grid: every statistic keeps its bits but for the order of sums."""
    fleet = sweep.Fleet.one_slow(4, [0.3, 0.6])
    turned = sweep.Fleet(fleet.speeds[:, ::-1], fleet.heterogeneity)
    low = run(fleet=fleet, policy=["locality_aware"])
    high = run(fleet=turned, policy=["mirrored_locality"])
    for name in low.data_vars:
        if "reason" in low[name].dims:
            continue
        want = low[name].values[..., ::-1] if "replica" in low[name].dims else low[name].values
        if name in ("load_variance", "peak_load_variance"):
            np.testing.assert_allclose(high[name].values, want, rtol=1e-12)
        else:
            np.testing.assert_array_equal(high[name].values, want, err_msg=name)


@pytest.mark.parametrize("replicas", [1, 1000, 1024])
def test_replicas__up_to_1024(replicas):
    """More replicas than requests that overlap: nobody waits; one request after another on one replica does."""
    fleet = sweep.Fleet.one_slow(replicas, [0.0])
    ds = run(poisson(requests=3 * replicas, replicas=replicas), fleet, policy=POLICIES, slack=[5.0], seed=2)
    assert (ds.replica_requests.sum("replica") == 3 * replicas).all()
    assert (ds.replica_requests.sel(policy="round_robin") == 3).all()
    if replicas > 1:
        assert float(ds.mean_queue_wait_ms.sel(policy="queue_aware").max()) < 0.1


def test_replicas__a_fleet_that_nobody_waits_for_serves_alike():
    """With requests far apart no policy makes anyone wait, and latency is service over speed."""
    requests = sweep.Requests.from_arrays(np.arange(50.0) * 1000.0, np.full(50, 10.0))
    ds = run(sweep.Workload.fixed(requests), sweep.Fleet.fixed([2.0, 2.0]), seed=1)
    assert (ds.max_queue_wait_ms == 0.0).all()
    assert (ds.mean_latency_ms == 5.0).all()
    assert (ds.load_variance == 0.0).all()
