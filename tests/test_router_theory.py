"""The router engine against published vectors, queueing theory and the figures of orientation."""

import math

import numpy as np
import pytest
from scipy import stats

import sweep
from sweep.kernels import codes

MEAN_MS = 10.0


def mean_wait(policy, replicas, utilisation, requests, seeds, warmup=0, **fleet):
    """Return the mean queue wait of each seed."""
    work = sweep.Workload.poisson(
        requests=requests, utilisation=utilisation, replicas=replicas, mean_service_ms=MEAN_MS
    )
    ds = sweep.run(work, sweep.Fleet.fixed([1.0] * replicas), policy=policy, seed=seeds, warmup=warmup)
    return ds.mean_queue_wait_ms.squeeze(["slack", "heterogeneity"]).values


def assert_mean(values, expected, level=0.999):
    """The expected value lies in the t interval of the mean over seeds, which is narrow enough to mean something."""
    half = stats.t.ppf(0.5 + level / 2, len(values) - 1) * stats.sem(values)
    assert half < 0.1 * expected
    assert abs(np.mean(values) - expected) < half, (np.mean(values), expected, half)


def erlang_c_wait(servers, utilisation):
    """Return the mean wait of M/M/c in ms."""
    load = servers * utilisation
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) / (1 - utilisation)
    return last / (sum(terms) + last) * MEAN_MS / (servers * (1 - utilisation))


def test_random__is_m_m_1_per_replica():
    """Random splitting of a Poisson stream gives Poisson streams: wait = rho / (1 - rho) services."""
    (waits,) = mean_wait(["random"], 4, 0.7, 20_000, 48, warmup=2_000)
    assert_mean(waits, 0.7 / 0.3 * MEAN_MS)


def test_power_of_two__approaches_the_supermarket_model():
    """Time in system of exponential services of mean 1 tends to sum rho^(2^i - 2), i = 1, 2, ..., with many replicas.

    Mitzenmacher's limit is approached from above at a rate 1 / replicas; 256 replicas are within 3 %.
    """
    rho = 0.9
    limit = sum(rho ** (2**i - 2) for i in range(1, 12))
    (waits,) = mean_wait(["power_of_d(signal=requests, tie=random)"], 256, rho, 150_000, 8, warmup=50_000)
    found = np.mean(waits) / MEAN_MS + 1.0
    assert abs(found - limit) < 0.03 * limit, (found, limit)
    # Apart from what one choice and a full view give: 10 and close to 1.
    assert 2.0 < found < 5.0


def test_join_shortest_queue__lies_between_the_central_queue_and_random():
    central, random = erlang_c_wait(8, 0.8), 0.8 / 0.2 * MEAN_MS
    (waits,) = mean_wait(["least_load(signal=requests)"], 8, 0.8, 20_000, 24, warmup=2_000)
    low, high = np.mean(waits) - 4 * stats.sem(waits), np.mean(waits) + 4 * stats.sem(waits)
    assert central < low < high < random


ORIENTATION = {
    "least_load(signal=requests)": 4.6,
    "random": 39.6,
    "least_load(signal=requests, freshness_ms=10)": 30.6,
    "least_load(signal=requests, freshness_ms=25)": 70.6,
    "least_load(signal=requests, freshness_ms=500)": 1356.0,
    "least_load(signal=requests, freshness_ms=500, correction=own)": 17.4,
}


def test_least_requests__figures_of_orientation():
    """8 replicas, mean service 10 ms, utilisation 0.8, 20,000 requests: within 5 % of what was measured elsewhere."""
    waits = mean_wait(list(ORIENTATION), 8, 0.8, 20_000, 16)
    for (policy, expected), found in zip(ORIENTATION.items(), waits, strict=True):
        assert abs(found.mean() - expected) < 0.05 * expected, (policy, found.mean())


def test_stale_view__is_worse_than_random_and_correction_restores_it():
    policies = ["random", "least_load(signal=requests, freshness_ms=25)"]
    policies.append("least_load(signal=requests, freshness_ms=25, correction=own)")
    random, stale, corrected = mean_wait(policies, 8, 0.8, 5_000, 16)
    assert (stale > random).all()
    assert (corrected < 0.5 * random).all()


# --- Rules by hand ----------------------------------------------------------------------------------------------------


def test_consistent_hash__a_new_replica_moves_about_one_share_of_the_keys():
    keys = 4_000
    for seed in (1, 2):
        requests = sweep.Requests.from_arrays(np.arange(keys), np.ones(keys), session=np.arange(keys))
        before, after = (
            sweep.simulate(requests, [1.0] * count, policy="consistent_hash", seed=seed).replica_id.values
            for count in (7, 8)
        )
        moved = before != after
        assert (after[moved] == 7).all()
        assert 0.7 / 8 < moved.mean() < 1.4 / 8


def test_weighted_random__follows_one_over_load():
    """Loads 1 and 3 reported once, never updated: three in four go to the first; load 0 takes all."""
    requests = sweep.Requests.from_arrays([0.0] * 4 + [5.0] * 4_000, [100.0] * 4_004)
    policy = "weighted_random(signal=requests, freshness_ms=4)"
    # The four requests of time 0 see a report of empty replicas and are spread at random.
    ds = sweep.simulate(requests, [1.0, 1.0], policy=policy, seed=2)
    first = ds.replica_id.values[:4]
    loads = np.bincount(first, minlength=2)
    assert (loads > 0).all()
    share = (ds.replica_id.values[4:] == 0).mean()
    expected = loads[1] / loads.sum()
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 4_000)


def test_measured_speed__finds_the_slow_replica():
    """Least requests divided by what a router saw of each replica's speed, without being told."""
    work = sweep.Workload.poisson(requests=4_000, utilisation=0.7, replicas=4)
    fleet = sweep.Fleet.one_slow(4, 0.6)
    policies = [f"least_load(signal=requests{how})" for how in ("", ", speed=measured", ", speed=known")]
    ds = sweep.run(work, fleet, policy=policies, seed=24)
    blind, measured, known = ds.mean_latency_ms.squeeze(["slack", "heterogeneity"]).values
    for better, worse in ((measured, blind), (known, blind)):
        gain = worse - better
        assert gain.mean() > 3 * stats.sem(gain)
    slow = ds.replica_requests.isel(replica=-1).squeeze(["slack", "heterogeneity"]).mean("seed").values
    assert slow[1] < slow[0]
    assert abs(slow[1] - slow[2]) < 0.1 * slow[2]


def test_migrate__counts_its_copies():
    """Two requests of one prefix at a time: the second finds the first's replica busy and takes the cache along."""
    requests = sweep.Requests.from_arrays([0.0, 1.0, 2.0], [10.0] * 3, prefix=["a", "a", "a"])
    ds = sweep.run(
        sweep.Workload.fixed(requests), sweep.Fleet.fixed([1.0, 1.0]), policy="migrate(transfer_ms=2.0)", seed=1
    )
    assert ds.migrations.item() == 1
    assert ds.cache_hit_rate.item() == pytest.approx(2 / 3)
    replay = sweep.simulate(requests, [1.0, 1.0], policy="migrate(transfer_ms=2.0)")
    assert replay.route_reason.values.tolist() == ["least_load", "migrated", "in_place"]
    assert replay.effective_service_ms.values.tolist() == [10.0, 9.0, 7.0]


@pytest.mark.parametrize(("engine", "key"), [("timeline", "prefix"), ("token_step", "session")])
def test_migrate__a_request_without_a_key_says_so(engine, key):
    requests = sweep.Requests.from_arrays([0.0, 1.0], [1.0] * 2, prompt_tokens=[9, 9], **{key: ["a", None]})
    ds = sweep.simulate(requests, [1.0, 1.0], policy="migrate", engine=engine)
    assert ds.route_reason.values.tolist() == ["least_load", "no_key"]


def test_signals__are_named_once():
    assert codes.SIGNALS[codes.WORK] == "work"
    assert codes.SIGNALS[codes.UTILISATION] == "utilisation"


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("least_load(signal=tokens)", "counts tokens, but the stream has none"),
        ("weighted_round_robin(weights=1:2:3)", "3 numbers for 2 replicas"),
    ],
)
def test_run__a_policy_that_does_not_fit(policy, message):
    work = sweep.Workload.poisson(requests=10, utilisation=0.5, replicas=2)
    with pytest.raises(sweep.InputError, match=message):
        sweep.run(work, sweep.Fleet.fixed([1.0, 1.0]), policy=policy, seed=1)
