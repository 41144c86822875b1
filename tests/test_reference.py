"""The oracle against published figures and timelines computed by hand."""

import copy
import math
import random
import statistics

import numpy as np
import pytest
from rules import registered

from sweep.errors import InputError
from sweep.reference import (
    STRATEGIES,
    LeastLoadLB,
    Replica,
    RoundRobinLB,
    compare_replica_strategies,
    load_variance_of,
    select_replica,
    simulate,
    simulate_replica_routing,
    simulate_token_step,
    summarize_replica_service,
    summarize_token_step,
    uniform,
)
from sweep.variables import OF_BLOCKS, VARIABLES


def request(index, arrival_ms, service_ms, prefix_key=None, session_id=None):
    return {
        "request_id": index,
        "arrival_ms": arrival_ms,
        "service_ms": service_ms,
        "prefix_key": prefix_key,
        "session_id": session_id,
    }


def fleet_of(*replicas):
    return [{"available_at_ms": available, "cached_prefixes": set(prefixes)} for available, prefixes in replicas]


# --- The router -------------------------------------------------------------------------------------------------------


def test_select_replica__round_robin_is_modulo():
    replicas = fleet_of((0.0, ""), (0.0, ""), (0.0, ""))
    chosen = [select_replica(request(i, 0.0, 1.0), replicas, "round_robin", i, {}, 0.0) for i in range(5)]
    assert chosen == [(replica, "round_robin") for replica in (0, 1, 2, 0, 1)]


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ((30.0, 20.0, 25.0), 1),
        ((30.0, 20.0, 20.0), 1),  # ties go to the lowest index
        ((9.0, 3.0, 20.0), 0),  # both are idle at 10 ms: how long is no matter
    ],
)
def test_select_replica__queue_aware_takes_the_smallest_wait(available, expected):
    replicas = fleet_of(*((time, "") for time in available))
    assert select_replica(request(0, 10.0, 1.0), replicas, "queue_aware", 2, {}, 0.0) == (expected, "shortest_queue")


@pytest.mark.parametrize(
    ("slack", "expected"),
    [
        (15.0, (2, "sticky_session")),  # the owner's wait equals the limit
        (14.0, (1, "prefix_locality")),  # 2 also holds the prefix, but 1 waits less
        (5.0, (1, "prefix_locality")),
        (4.0, (0, "queue_fallback")),
        (math.inf, (2, "sticky_session")),
    ],
)
def test_select_replica__locality_aware_tries_session_then_prefix_then_queue(slack, expected):
    replicas = fleet_of((15.0, ""), (20.0, "a"), (30.0, "a"))
    asked = request(0, 10.0, 1.0, prefix_key="a", session_id="s")
    assert select_replica(asked, replicas, "locality_aware", 0, {"s": 2}, slack) == expected


def test_select_replica__prefix_ties_go_to_the_lowest_index():
    replicas = fleet_of((0.0, ""), (20.0, "a"), (20.0, "a"))
    assert select_replica(request(0, 10.0, 1.0, "a"), replicas, "locality_aware", 0, {}, 10.0)[0] == 1


def test_select_replica__request_without_keys_falls_back():
    asked = {"arrival_ms": 10.0}
    assert select_replica(asked, fleet_of((20.0, "a"), (15.0, "")), "locality_aware", 0, {}, math.inf) == (
        1,
        "queue_fallback",
    )


def test_select_replica__errors_list_what_is_valid():
    with pytest.raises(ValueError, match="round_robin, queue_aware, locality_aware"):
        select_replica(request(0, 0.0, 1.0), fleet_of((0.0, "")), "least", 0, {}, 0.0)
    with pytest.raises(ValueError, match="at least 1"):
        select_replica(request(0, 0.0, 1.0), [], "round_robin", 0, {}, 0.0)


# --- The timeline -----------------------------------------------------------------------------------------------------

STREAM = [
    request("r0", 0.0, 20.0, "a", "s0"),
    request("r1", 1.0, 8.0, "b", "s1"),
    request("r2", 2.0, 8.0, "a", "s2"),
    request("r3", 3.0, 6.0, "b", "s1"),
    request("r4", 30.0, 10.0, None, "s0"),
]


def played(records):
    keys = ("request_id", "replica_id", "route_reason", "cache_hit", "start_ms", "finish_ms", "queue_wait_ms")
    return [tuple(record[key] for key in keys) for record in records]


def test_simulate_replica_routing__timeline_by_hand():
    records = simulate_replica_routing(STREAM, 2, "locality_aware", locality_slack_ms=6.0, cache_hit_speedup=0.5)
    assert played(records) == [
        ("r0", 0, "queue_fallback", False, 0.0, 20.0, 0.0),
        ("r1", 1, "queue_fallback", False, 1.0, 9.0, 0.0),
        ("r2", 1, "queue_fallback", False, 9.0, 17.0, 7.0),  # replica 0 holds "a" but waits 18 > 7 + 6
        ("r3", 1, "sticky_session", True, 17.0, 20.0, 14.0),
        ("r4", 0, "sticky_session", False, 30.0, 40.0, 0.0),
    ]
    assert [record["effective_service_ms"] for record in records] == [20.0, 8.0, 8.0, 3.0, 10.0]
    assert records[3].items() >= STREAM[3].items()


def test_simulate_replica_routing__speeds_divide_after_the_speedup():
    stream = [request(0, 0.0, 0.7, "a"), request(1, 5.0, 0.7, "a")]
    records = simulate_replica_routing(stream, 1, "queue_aware", cache_hit_speedup=0.3, speeds=[0.3])
    assert [record["effective_service_ms"] for record in records] == [0.7 / 0.3, (0.7 * (1.0 - 0.3)) / 0.3]


def test_simulate_replica_routing__order_of_ties_is_the_request_id():
    stream = [request(2, 1.0, 1.0), request(1, 1.0, 1.0), request(0, 2.0, 1.0)]
    assert [record["request_id"] for record in simulate_replica_routing(stream, 1, "round_robin")] == [1, 2, 0]


def test_simulate_replica_routing__leaves_its_input_alone():
    before = copy.deepcopy(STREAM)
    simulate_replica_routing(STREAM, 2, "locality_aware")
    assert before == STREAM


def test_simulate_replica_routing__errors():
    with pytest.raises(ValueError, match="round_robin, queue_aware, locality_aware"):
        simulate_replica_routing([], 2, "queue_awar")
    with pytest.raises(ValueError, match="Did you mean 'least_load'"):
        simulate_replica_routing(STREAM, 2, "least_loads")
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match="num_replicas must be a whole number >= 1"):
            simulate_replica_routing(STREAM, bad, "round_robin")
    with pytest.raises(InputError, match="2 given for 3 replicas"):
        simulate_replica_routing(STREAM, 3, "round_robin", speeds=[1.0, 1.0])
    with pytest.raises(InputError, match="speed of replica 1"):
        simulate_replica_routing(STREAM, 2, "round_robin", speeds=[1.0, 0.0])


# --- The statistics of a timeline -------------------------------------------------------------------------------------


def test_summarize_replica_service__by_hand():
    records = simulate_replica_routing(STREAM, 2, "locality_aware", locality_slack_ms=6.0, cache_hit_speedup=0.5)
    assert summarize_replica_service(records, 2) == {
        "request_count": 5,
        "mean_queue_wait_ms": 21.0 / 5,
        "p50_queue_wait_ms": 0.0,
        "p95_queue_wait_ms": 14.0,
        "p99_queue_wait_ms": 14.0,
        "max_queue_wait_ms": 14.0,
        "mean_latency_ms": (20.0 + 8.0 + 15.0 + 17.0 + 10.0) / 5,
        "p95_latency_ms": 20.0,
        "p99_latency_ms": 20.0,
        "throughput_requests_per_s": 5 * 1000.0 / 40.0,
        "cache_hit_rate": 1 / 5,
        "load_skew_ratio": (3 - 2) / 2.5,
        "makespan_ms": 40.0,
        "session_moves": 0,
        "max_offered_load": 30.0 / 30.0,
        "replica_requests": [2, 3],
        "replica_busy_ms": [30.0, 19.0],
        "reason_count": {"queue_fallback": 3, "sticky_session": 2},
        "mean_queue_wait_ms_by_reason": {"queue_fallback": 7.0 / 3, "sticky_session": 7.0},
        "p99_queue_wait_ms_by_reason": {"queue_fallback": 7.0, "sticky_session": 14.0},
    }


def test_summarize_replica_service__warmup_is_by_arrival():
    records = simulate_replica_routing(STREAM, 2, "round_robin")
    assert [record["replica_id"] for record in records] == [0, 1, 0, 1, 0]
    whole, late = summarize_replica_service(records, 2), summarize_replica_service(records, 2, warmup=3)
    assert (whole["request_count"], late["request_count"]) == (5, 2)
    assert late["replica_requests"] == [1, 1]
    assert late["makespan_ms"] == records[4]["finish_ms"] - 3.0
    assert late["max_offered_load"] == 10.0 / 27.0


def test_summarize_replica_service__session_moves_count_the_move_after_the_warmup():
    stream = [request(i, float(i), 1.0, session_id="s") for i in range(4)]
    records = simulate_replica_routing(stream, 2, "round_robin")
    assert [summarize_replica_service(records, 2, warmup)["session_moves"] for warmup in range(5)] == [3, 3, 2, 1, 0]


def test_summarize_replica_service__quantiles_are_nearest_rank():
    records = [
        {"arrival_ms": 0.0, "finish_ms": wait, "queue_wait_ms": wait, "replica_id": 0, "route_reason": "x"}
        | {"cache_hit": False, "effective_service_ms": 0.0}
        for wait in map(float, random.Random(1).sample(range(1, 101), 100))
    ]
    summary = summarize_replica_service(records, 1)
    assert [summary[f"p{q}_queue_wait_ms"] for q in (50, 95, 99)] == [50.0, 95.0, 99.0]


def test_summarize_replica_service__empty_is_zero():
    summary = summarize_replica_service([], 3)
    assert summary["request_count"] == 0
    assert summary["replica_requests"] == [0, 0, 0]
    assert all(not np.any(value) for value in summary.values())
    assert load_variance_of([], 3) == (0.0, 0.0)


def test_summarize_replica_service__empty_window_is_nan():
    summary = summarize_replica_service(simulate_replica_routing([request(0, 7.0, 0.0)], 1, "round_robin"), 1)
    assert math.isnan(summary["throughput_requests_per_s"])
    assert math.isnan(summary["max_offered_load"])
    assert (summary["makespan_ms"], summary["mean_queue_wait_ms"], summary["load_skew_ratio"]) == (0.0, 0.0, 0.0)


def test_summarize_replica_service__names_are_the_datasets():
    records = simulate_replica_routing(STREAM, 2, "round_robin")
    apart = {"load_variance", "peak_load_variance", "slo_attainment", *OF_BLOCKS}
    assert list(summarize_replica_service(records, 2)) == [name for name in VARIABLES["timeline"] if name not in apart]


def test_load_variance_of__by_hand():
    records = simulate_replica_routing(STREAM, 2, "locality_aware", locality_slack_ms=6.0, cache_hit_speedup=0.5)
    seen = [(0.0, 0.0), (19.0, 0.0), (18.0, 7.0), (17.0, 14.0), (0.0, 0.0)]
    variances = [statistics.variance(pair) for pair in seen]
    assert load_variance_of(records, 2) == (sum(variances) / 5, max(variances))
    assert load_variance_of(records, 2, warmup=2) == (sum(variances[2:]) / 3, 60.5)


def test_load_variance_of__one_replica_is_zero():
    assert load_variance_of(simulate_replica_routing(STREAM, 1, "queue_aware"), 1) == (0.0, 0.0)


def test_compare_replica_strategies__orders_by_p95_then_throughput_then_catalogue():
    before = copy.deepcopy(STREAM)
    compared = compare_replica_strategies(STREAM, 2, locality_slack_ms=10.0)
    assert before == STREAM
    assert {item["strategy"] for item in compared} == set(STRATEGIES)
    keys = [(item["metrics"]["p95_queue_wait_ms"], -item["metrics"]["throughput_requests_per_s"]) for item in compared]
    assert keys == sorted(keys)
    # Nobody waits: all equal, so the order of the catalogue stays.
    apart = [request(i, 100.0 * i, 1.0) for i in range(4)]
    assert [item["strategy"] for item in compare_replica_strategies(apart, 2)] == list(STRATEGIES)


# --- A user's rule ----------------------------------------------------------------------------------------------------


def owner_every(view, request, parameters):
    """Send every request whose index is a multiple of `turn` to the owner, else to a replica drawn at random."""
    if view.owner >= 0 and request.position % parameters.turn == 0.0 and parameters.slack > 1.0:
        return view.owner
    return int(view.uniform[3] * view.wait_ms.size)


@pytest.fixture
def owner_every_registered():
    with registered(("owner_every", owner_every, {"reads_slack": True, "parameters": {"turn": 2.0}})):
        yield


def test_simulate_replica_routing__user_rule(owner_every_registered):
    def replicas_chosen(strategy, seed, slack=5.0):
        stream = [request(i, float(i), 3.0, session_id=i % 2) for i in range(40)]
        records = simulate_replica_routing(stream, 5, strategy, slack, seed=seed)
        assert {record["route_reason"] for record in records} == {"owner_every"}
        return [record["replica_id"] for record in records]

    drawn = [int(uniform(9, 1, 4 * i + 3) * 5) for i in range(40)]
    assert replicas_chosen("owner_every", 9, slack=0.0) == drawn
    sticky = replicas_chosen("owner_every", 9)
    assert all(sticky[i] == sticky[i - 2] for i in range(2, 40, 2))
    assert sticky[1::2] == drawn[1::2]
    assert replicas_chosen("owner_every(turn=1)", 9)[2:] == drawn[:2] * 19
    assert replicas_chosen("owner_every", 10) != sticky


def test_uniform__is_uniform_and_a_function_of_its_arguments():
    draws = np.array([uniform(seed, 1, index) for seed in range(20) for index in range(200)])
    assert draws.min() >= 0.0 and draws.max() < 1.0
    assert np.unique(draws).size == draws.size
    counts = np.histogram(draws, bins=20, range=(0.0, 1.0))[0]
    assert ((counts - 200.0) ** 2 / 200.0).sum() < 43.8  # chi-square with 19 degrees of freedom, 0.1 % level
    assert uniform(3, 1, 7) == uniform(3, 1, 7) != uniform(3, 2, 7)


# --- Token steps ------------------------------------------------------------------------------------------------------


def dplb_arrivals(seed):
    """Issue the published burst: 0 or 1 small requests per step, but 4 to 6 larger ones in steps 10 to 39."""
    draw = random.Random(seed)
    arrivals = []
    for step in range(100):
        burst = 10 <= step < 40
        count = draw.randint(4, 6) if burst else draw.randint(0, 1)
        arrivals += [(step, draw.randint(40, 60) if burst else draw.randint(20, 40)) for _ in range(count)]
    return arrivals


@pytest.mark.parametrize(
    ("lb", "cumulative", "mean", "peak"),
    [
        (RoundRobinLB, [2727, 70559, 2566], 233004.64667, 784385.33333),
        (LeastLoadLB, [4266, 6325, 3540], 862.80333, 9185.33333),
        (lambda: LeastLoadLB(in_service_weight=0.5), [4283, 6483, 3391], 968.88333, 8321.33333),
    ],
)
def test_simulate__published_dplb_table(lb, cumulative, mean, peak):
    arrivals = dplb_arrivals(42)
    assert len(arrivals) == 170
    log = simulate([Replica("A", 1.0), Replica("B", 0.3), Replica("C", 1.2)], lb(), arrivals, total_time=100)
    assert len(log) == 100
    variances = [statistics.variance(loads.values()) for loads in log]
    assert [sum(loads[name] for loads in log) for name in "ABC"] == cumulative
    assert f"{statistics.mean(variances):.5f}" == f"{mean:.5f}"
    assert f"{max(variances):.5f}" == f"{peak:.5f}"

    requests = [
        {"request_id": i, "arrival_ms": float(step), "prompt_tokens": size} for i, (step, size) in enumerate(arrivals)
    ]
    again = simulate_token_step(requests, [Replica("A", 1.0), Replica("B", 0.3), Replica("C", 1.2)], lb(), steps=100)
    summary = summarize_token_step(*again)
    assert again[1] == log
    assert summary["cumulative_load_tokens"] == cumulative
    assert (round(summary["load_variance"], 5), round(summary["peak_load_variance"], 5)) == (mean, peak)


def test_least_load__herd_vector():
    replicas = [Replica("A"), Replica("B"), Replica("C")]
    for replica, load in zip(replicas, (5, 800, 3), strict=True):
        replica.queue.append(load)
    went = ""
    for _ in range(4):
        chosen = LeastLoadLB().route(replicas, 5)
        chosen.queue.append(5)
        went += chosen.name
    assert went == "CACA"
    assert [replica.load() for replica in replicas] == [15, 800, 13]


def test_least_load__weight_discounts_the_tokens_in_service():
    serving, queueing = Replica("A"), Replica("B")
    serving.in_flight, queueing.queue = 90, [50]
    assert LeastLoadLB().route([serving, queueing], 1) is queueing
    assert LeastLoadLB(in_service_weight=0.5).route([serving, queueing], 1) is serving


def test_replica__serves_before_it_admits_and_admits_whole_requests():
    replica = Replica("A", speed=0.29)  # 0.29 * 100 is 28.999999999999996 in binary: 28 tokens
    replica.queue = [99, 300, 5]
    assert replica.step() == 2
    assert (replica.in_flight, replica.queue) == (399, [5])
    assert replica.step() == 0
    assert (replica.in_flight, replica.load()) == (371, 376)


def test_simulate_token_step__by_hand():
    sizes = [(0.0, 150), (0.2, 80), (0.9, 20), (2.5, 40)]
    requests = [
        {"request_id": i, "arrival_ms": time, "prompt_tokens": size - 1, "output_tokens": 1}
        for i, (time, size) in enumerate(sizes)
    ]
    records, loads = simulate_token_step(requests, [Replica("A")], RoundRobinLB(), step_ms=0.5)
    # A step is 0.5 ms long. Step 0 admits 150; step 1 serves 100, admits 80 and not 20, which comes in that step.
    assert [load["A"] for load in loads] == [230, 150, 50, 0, 0, 40, 0]
    assert [record["start_ms"] for record in records] == [0.0, 0.5, 1.0, 2.5]
    assert [record["queue_wait_ms"] for record in records] == [0.0, 0.5, 0.5, 0.0]
    assert all(record["finished"] for record in records)
    assert summarize_token_step(records, loads) == {
        "request_count": 4,
        "mean_queue_wait_ms": 0.25,
        "p95_queue_wait_ms": 0.5,
        "p99_queue_wait_ms": 0.5,
        "load_variance": 0.0,
        "peak_load_variance": 0.0,
        "unstarted_requests": 0,
        "finished_tokens": 290,
        "finished_requests": 4,
        "cumulative_load_tokens": [470],
    }


def test_simulate_token_step__a_run_that_ends_early_counts_what_is_unfinished():
    requests = [{"request_id": i, "arrival_ms": 0.0, "prompt_tokens": 150} for i in range(3)]
    requests.append({"request_id": 3, "arrival_ms": 2.0, "prompt_tokens": 10})
    records, loads = simulate_token_step(requests, [Replica("A")], RoundRobinLB(), steps=2)
    assert [load["A"] for load in loads] == [450, 350]
    assert [record["queue_wait_ms"] for record in records] == [0.0, 1.0, 2.0]
    summary = summarize_token_step(records, loads)
    assert (summary["request_count"], summary["unstarted_requests"]) == (3, 1)
    assert (summary["finished_tokens"], summary["finished_requests"]) == (100, 0)


def test_simulate__errors():
    with pytest.raises(ValueError, match="no replicas"):
        simulate([], RoundRobinLB(), [])
    with pytest.raises(ValueError, match="'A' is given twice"):
        simulate([Replica("A"), Replica("A")], RoundRobinLB(), [])
    with pytest.raises(ValueError, match="speed of replica 'A'"):
        simulate([Replica("A", -1.0)], RoundRobinLB(), [])


def test_summarize_token_step__empty_is_zero():
    assert simulate([Replica("A")], RoundRobinLB(), [], total_time=2) == [{"A": 0}, {"A": 0}]
    summary = summarize_token_step(*simulate_token_step([], [Replica("A")], RoundRobinLB()))
    assert all(not np.any(value) for value in summary.values())
