"""Queueing theory: simulated means and quantiles against closed forms, and laws that hold on every sample path.

Bounds are stated, not tuned: the mean over independent seeds may differ from the closed form by 4 of its own standard
errors plus a bias bound that each test derives. Seeds are fixed, so a test gives one answer; and a bound that has grown
so wide that it would show nothing fails too.
"""

import heapq
import math

import numpy as np
import pytest
import rules
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from strategies import fleets, slacks, streams

import sweep

MEAN_MS = 10.0
WARMUP = 4_000


@pytest.fixture(autouse=True, scope="module")
def _rules():
    with rules.registered(rules.RANDOM):
        yield


def simulated(replicas, utilisation, policy, *, requests=100_000, seeds=40, speeds=None, speedup=0.3, **workload):
    """Return the cells of a run over seeds, without the first requests, which see an emptier system."""
    work = sweep.Workload.poisson(
        requests=requests + WARMUP, utilisation=utilisation, replicas=replicas, mean_service_ms=MEAN_MS, **workload
    )
    fleet = sweep.Fleet.fixed([1.0] * replicas if speeds is None else speeds)
    ds = sweep.run(work, fleet, policy=policy, seed=seeds, warmup=WARMUP, cache_hit_speedup=speedup)
    return ds.squeeze(["policy", "slack", "heterogeneity"])


def start_bias(arrival_rate, service_rate):
    """Return the share of a mean that the empty start still costs after the warm-up.

    A queue forgets its start at least as fast as exp(-t / tau), where an M/M/1 queue has the relaxation time
    tau = 1 / (sqrt(service rate) - sqrt(arrival rate))^2 (Cohen 1982, "The Single Server Queue").
    """
    return math.exp(-WARMUP / arrival_rate * (math.sqrt(service_rate) - math.sqrt(arrival_rate)) ** 2)


def quantile_bias(values, decay_rate):
    """Return a bound on the bias of an estimated quantile of a distribution with the tail p * exp(-rate * t).

    The estimate solves p * exp(-rate * t) * (1 + e) = 1 - q with a relative error e of mean 0 of the tail that the run
    happened to show, so it lies log(1 + e) / rate too high: -E[e^2] / 2 / rate to second order, where E[e^2] is
    (rate * standard deviation of the estimate)^2.
    """
    return decay_rate * float(np.var(values, ddof=1)) / 2.0


def assert_mean(values, expected, bias=0.0, within=0.03):
    values = np.asarray(values, dtype=float)
    allowed = 4.0 * values.std(ddof=1) / math.sqrt(values.size) + bias
    assert allowed <= within * expected, f"The bound {allowed:.4g} is too wide to check {expected:.4g}."
    assert abs(values.mean() - expected) <= allowed, f"{values.mean():.5g} is not {expected:.5g} +- {allowed:.2g}"


def erlang_c(servers, load):
    """Return the probability of waiting in M/M/c, by the recursion of Erlang B."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


# --- Closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("utilisation", [0.5, 0.8])
def test_mm1__waits_are_exponential(utilisation):
    ds = simulated(1, utilisation, "queue_aware")
    rate = (1.0 - utilisation) / MEAN_MS
    mean = utilisation / rate
    assert_mean(ds.mean_queue_wait_ms, mean, mean * start_bias(utilisation / MEAN_MS, 1.0 / MEAN_MS))
    assert_mean(ds.mean_latency_ms, mean + MEAN_MS, mean * start_bias(utilisation / MEAN_MS, 1.0 / MEAN_MS))
    for quantile, name in ((0.50, "p50_queue_wait_ms"), (0.95, "p95_queue_wait_ms"), (0.99, "p99_queue_wait_ms")):
        values = ds[name]
        exact = max(0.0, math.log(utilisation / (1.0 - quantile)) / rate)
        if exact:
            assert_mean(values, exact, quantile_bias(values, rate), within=0.08)
    for quantile, name in ((0.95, "p95_latency_ms"), (0.99, "p99_latency_ms")):
        assert_mean(ds[name], -math.log(1.0 - quantile) / rate, quantile_bias(ds[name], rate), within=0.08)


@pytest.mark.parametrize(
    ("service", "cv"),
    [("deterministic", 0.0), ("gamma", 0.5), ("exponential", 1.0), ("gamma", 2.0), ("lognormal", 1.5)],
)
def test_mg1__pollaczek_khinchine(service, cv):
    given = {"service_cv": cv} if service in ("gamma", "lognormal") else {}
    ds = simulated(1, 0.7, "round_robin", service=service, **given)
    mean = 0.7 / 0.3 * MEAN_MS * (1.0 + cv * cv) / 2.0
    # The warm-up is 4,000 arrivals where a busy period lasts 3 to 8: what is left of the start is far below 1/1000.
    assert_mean(ds.mean_queue_wait_ms, mean, mean / 1000.0, within=0.05)


def test_mm1__cache_hits_shorten_the_service():
    """One prefix: every request but the first hits, and takes 0.6 of its time."""
    ds = simulated(1, 1.3, "locality_aware", prefixes=1, speedup=0.4)
    assert (ds.cache_hit_rate == 1.0).all()
    utilisation, service = 1.3 * 0.6, MEAN_MS * 0.6
    assert_mean(ds.mean_queue_wait_ms, utilisation / (1.0 - utilisation) * service, bias=service / 1000.0)


def test_mm1__a_random_split_of_poisson_arrivals_is_poisson():
    """Replica r is an M/M/1 queue of its own, with a third of the arrivals and its own speed."""
    speeds = [1.0, 0.8, 1.6]
    ds = simulated(3, 0.6, "random_replica", speeds=speeds)
    waits = []
    for speed in speeds:
        utilisation, service = 0.6 / speed, MEAN_MS / speed
        waits.append(utilisation / (1.0 - utilisation) * service)
    assert_mean(ds.mean_queue_wait_ms, sum(waits) / 3, bias=sum(waits) / 3000)
    for replica, speed in enumerate(speeds):
        assert_mean(ds.replica_requests.isel(replica=replica), 100_000 / 3)
        assert_mean(ds.replica_busy_ms.isel(replica=replica), 100_000 / 3 * MEAN_MS / speed)


@pytest.mark.parametrize(
    ("replicas", "utilisation", "within"), [(2, 0.7, 0.05), (4, 0.8, 0.08), (16, 0.8, 0.12), (65, 0.9, 0.25)]
)
def test_mmc__queue_aware_is_the_central_queue(replicas, utilisation, within):
    """The smallest known wait goes to whichever replica would be free first: Erlang C, and an exponential tail."""
    ds = simulated(replicas, utilisation, "queue_aware")
    waiting = erlang_c(replicas, replicas * utilisation)
    rate = replicas * (1.0 - utilisation) / MEAN_MS
    bias = start_bias(replicas * utilisation / MEAN_MS, replicas / MEAN_MS)
    assert_mean(ds.mean_queue_wait_ms, waiting / rate, waiting / rate * bias, within=0.1)
    exact = math.log(waiting / 0.01) / rate
    assert_mean(ds.p99_queue_wait_ms, exact, quantile_bias(ds.p99_queue_wait_ms, rate) + exact * bias, within=within)


def test_erlang_c__published_values():
    """Four servers at 0.8: the probability to wait is 0.5964 and, in units of the mean service, P99 is 5.1105."""
    waiting = erlang_c(4, 3.2)
    assert round(waiting, 4) == 0.5964
    assert round(math.log(waiting / 0.01) / (4 * 0.2), 4) == 5.1105


@pytest.mark.parametrize(("replicas", "utilisation"), [(1, 0.7), (2, 0.7), (4, 0.8), (8, 0.8)])
def test_gim1__round_robin_makes_erlang_arrivals(replicas, utilisation):
    """A replica sees every c-th Poisson arrival: E_c/M/1, whose wait has the tail s * exp(-mu * (1 - s) * t).

    The s is the root in (0, 1) of s = A(mu * (1 - s)), with A the Laplace transform of the Erlang gap
    (Kleinrock 1975, "Queueing Systems" volume 1, section 6.4).
    """
    ds = simulated(replicas, utilisation, "round_robin")
    arrivals, mu = replicas * utilisation / MEAN_MS, 1.0 / MEAN_MS
    root = brentq(lambda s: (arrivals / (arrivals + mu * (1.0 - s))) ** replicas - s, 0.0, 1.0 - 1e-9)
    rate = mu * (1.0 - root)
    assert_mean(ds.mean_queue_wait_ms, root / rate, root / rate / 1000.0)
    exact = math.log(root / 0.01) / rate
    assert_mean(ds.p99_queue_wait_ms, exact, quantile_bias(ds.p99_queue_wait_ms, rate), within=0.08)


def test_throughput__is_the_arrival_rate_of_a_stable_queue():
    ds = simulated(4, 0.8, "round_robin")
    # The window also holds the last few services, some 100 ms of 300,000.
    assert_mean(ds.throughput_requests_per_s, 1000.0 * 3.2 / MEAN_MS, bias=0.4, within=0.005)
    # The load of a replica has a relative standard deviation of sqrt(2 / 25,000); the largest of four lies 1.03 higher.
    assert_mean(ds.max_offered_load, 0.8 * (1.0 + 1.03 * math.sqrt(2.0 / 25_000)), bias=0.002, within=0.01)


# --- Little's law -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["round_robin", "queue_aware", "locality_aware"])
def test_littles_law__requests_seen_equal_rate_times_latency(policy):
    """Poisson arrivals see time averages, so they find (arrival rate) * (mean latency) requests in the system."""
    work = sweep.Workload.poisson(requests=20_000, utilisation=0.8, replicas=4, sessions=50, prefixes=50)
    gaps, ratios = [], []
    for seed in range(25):
        ds = sweep.simulate(work.realise(seed), [1.3, 0.9, 0.9, 0.9], policy=policy, slack=20.0)
        arrival, finish = ds.arrival_ms.values, np.sort(ds.finish_ms.values)
        seen = (np.arange(arrival.size) - np.searchsorted(finish, arrival, side="right")).mean()
        latency = (ds.finish_ms - ds.arrival_ms).values.mean()
        predicted = 4 * 0.8 / MEAN_MS * latency
        gaps.append(seen - predicted)
        ratios.append(predicted)
    allowed = 4.0 * np.std(gaps, ddof=1) / 5.0
    assert allowed <= 0.03 * np.mean(ratios)
    assert abs(np.mean(gaps)) <= allowed


@given(
    streams().filter(len), fleets(rows=1), slacks(), st.sampled_from(["round_robin", "queue_aware", "locality_aware"])
)
def test_littles_law__holds_on_every_path(records, rows, slack, policy):
    """The area under the number of requests in the system, counted event by event, is the sum of the latencies."""
    requests = sweep.Requests.from_records(records)
    ds = sweep.simulate(requests, rows[0], policy=policy, slack=slack[0])
    cell = sweep.run(
        sweep.Workload.fixed(requests), sweep.Fleet.fixed(rows[0]), policy=policy, slack=slack[:1], seed=1
    ).squeeze()
    events = sorted([(t, 1) for t in ds.arrival_ms.values] + [(t, -1) for t in ds.finish_ms.values])
    area, inside, last = 0.0, 0, events[0][0]
    for time, change in events:
        area += inside * (time - last)
        inside, last = inside + change, time
    assert inside == 0
    assert math.isclose(area, float(cell.mean_latency_ms) * len(records), rel_tol=1e-9, abs_tol=1e-9)


# --- Laws of every path -----------------------------------------------------------------------------------------------


@given(streams(), fleets(rows=1), slacks(), st.sampled_from(["round_robin", "queue_aware", "locality_aware"]))
def test_path__requests_follow_each_other_and_no_replica_idles(records, rows, slack, policy):
    """On a replica each request starts when it has come and the one before it is done, and not later."""
    ds = sweep.simulate(sweep.Requests.from_records(records), rows[0], policy=policy, slack=slack[0])
    free_at = [0.0] * len(rows[0])
    columns = ("replica_id", "arrival_ms", "start_ms", "finish_ms", "effective_service_ms", "queue_wait_ms")
    for replica, arrival, start, finish, service, wait in zip(*(ds[name].values for name in columns), strict=True):
        assert start == max(arrival, free_at[replica])
        assert finish == start + service
        assert wait == start - arrival >= 0.0
        free_at[replica] = finish


@given(
    streams().filter(len), fleets(rows=1), slacks(), st.sampled_from(["round_robin", "queue_aware", "locality_aware"])
)
def test_path__work_is_conserved(records, rows, slack, policy):
    """Without cache hits the replicas do exactly the work that came: busy time times speed, and every request."""
    for record in records:
        record["prefix_key"] = None
    ds = sweep.run(
        sweep.Workload.fixed(sweep.Requests.from_records(records)),
        sweep.Fleet.fixed(rows[0]),
        policy=policy,
        slack=slack[:1],
        seed=1,
    ).squeeze(["policy", "slack", "heterogeneity", "seed"])
    done = float((ds.replica_busy_ms * rows[0]).sum())
    assert math.isclose(done, sum(record["service_ms"] for record in records), rel_tol=1e-12, abs_tol=1e-12)
    assert int(ds.replica_requests.sum()) == int(ds.reason_count.sum()) == int(ds.request_count) == len(records)
    assert float(ds.cache_hit_rate) == 0.0


@given(streams(), fleets(rows=1))
def test_path__queue_aware_makes_a_request_wait_only_when_all_are_busy(records, rows):
    ds = sweep.simulate(sweep.Requests.from_records(records), rows[0], policy="queue_aware")
    free_at = np.zeros(len(rows[0]))
    for replica, arrival, wait, finish in zip(
        ds.replica_id.values, ds.arrival_ms.values, ds.queue_wait_ms.values, ds.finish_ms.values, strict=True
    ):
        assert wait == np.maximum(free_at - arrival, 0.0).min()
        free_at[replica] = finish


@given(streams(max_size=60), st.integers(1, 6))
def test_path__queue_aware_on_equal_replicas_is_one_central_queue(records, replicas):
    """A heap of the times at which servers come free gives the same waits, bit for bit, whichever server it takes."""
    for record in records:
        record["prefix_key"] = None
    requests = sweep.Requests.from_records(records)
    free_at = [0.0] * replicas
    waits = []
    for arrival, service in zip(requests.arrival_ms.tolist(), requests.service_ms.tolist(), strict=True):
        start = max(arrival, free_at[0])
        waits.append(start - arrival)
        heapq.heapreplace(free_at, start + service)
    assert sweep.simulate(requests, [1.0] * replicas, policy="queue_aware").queue_wait_ms.values.tolist() == waits


@given(streams().filter(len), st.integers(1, 5), st.integers(1, 30))
def test_path__tokens_are_conserved(records, replicas, steps):
    """Tokens that came are served or still there, and requests that came are finished or not: none is lost."""
    for record in records:
        record["prompt_tokens"] += 1
    requests = sweep.Requests.from_records(records)
    options = {"policy": "least_load", "engine": "token_step", "steps": steps}
    cell = sweep.run(sweep.Workload.fixed(requests), sweep.Fleet.fixed([0.4] * replicas), seed=1, **options).squeeze(
        ["policy", "slack", "heterogeneity", "seed"]
    )
    load = sweep.simulate(requests, [0.4] * replicas, **options)["load"]
    came = requests.arrival_ms < steps
    assert int(cell.request_count) == came.sum()
    assert int(cell.finished_tokens) + int(load.isel(step=-1).sum()) == requests.tokens[came].sum()
    assert load.sum("step").values.tolist() == cell.cumulative_load_tokens.values.tolist()
    assert int(cell.finished_requests) + int(cell.unstarted_requests) <= came.sum()
