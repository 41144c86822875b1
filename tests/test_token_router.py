"""Rules, axes and failures on token steps: the engine equals the plain-Python model exactly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_policies import PARAMETERS, events
from strategies import crowds, speeds, streams

import sweep
from sweep import InputError
from sweep.policies import rule_named
from sweep.reference.token_replicas import summarize_steps
from sweep.reference.token_router import StepSimulation

NAMES = [name for name in PARAMETERS if "token_step" in rule_named(name).engines]
VIEWS = {"freshness_ms": st.sampled_from([0.0, 0.0, 1.0, 2.0, 7.0, 500.0])}
SIGNALS = {"signal": st.sampled_from(["work", "tokens", "requests", "kv", "requests+0.01*tokens", "work+2*kv"])}
KNOWN = {"speed": st.sampled_from(["none", "known"])}


@st.composite
def cells(draw, requests, names=tuple(NAMES), happening=False):
    """Return records, a fleet and a policy of the engine token_step."""
    replicas = draw(st.sampled_from([1, 2, 3, 5]))
    records = [record | {"prompt_tokens": record["prompt_tokens"] + 1} for record in draw(requests)]
    # No slower than a token a step, so that every run ends.
    row = [max(speed, 0.1) for speed in draw(speeds(replicas))]
    fleet = sweep.Fleet.fixed(row)
    if happening:
        fleet = fleet.with_events(**draw(events(replicas)))
    name = draw(st.sampled_from(names))
    values = PARAMETERS[name] | {
        key: value for key, value in (VIEWS | SIGNALS | KNOWN).items() if key in PARAMETERS[name]
    }
    chosen = {key: draw(values[key]) for key in values if key in rule_named(name).step_parameters}
    if chosen.get("weights") in ("numbers", "measured"):
        chosen["weights"] = [1 + 2 * (r % 3) for r in range(replicas)]
    return records, fleet, sweep.Policy(name, **chosen)


def assert_same(records, fleet, policy, seed=0, steps=None, step_ms=1.0):
    options = {"engine": "token_step", "seed": seed, "steps": steps, "step_ms": step_ms}
    requests = sweep.Requests.from_records(records)
    simulation = StepSimulation(records, fleet.speeds[0].tolist(), policy, seed, fleet.events, steps, step_ms)
    outcome = simulation.run()
    ds = sweep.simulate(requests, fleet, policy=policy, **options)
    assert ds["load"].values.tolist() == outcome.loads
    there = ds["queue_wait_ms"].notnull().values
    if fleet.events:
        assert set(np.flatnonzero(ds.lost.values).tolist()) == outcome.lost
        assert set(np.flatnonzero(ds.attempts.values > 1).tolist()) == outcome.retried
    done = ds.isel(request=there)
    assert done["request_id"].values.tolist() == [record["request_id"] for record in outcome.records]
    for name in ("replica_id", "route_reason", "queue_wait_ms"):
        assert done[name].values.tolist() == [record[name] for record in outcome.records], name
    np.testing.assert_array_equal(done["start_ms"].values, [record["start_ms"] for record in outcome.records])

    ds = sweep.run(
        sweep.Workload.fixed(requests), fleet, policy=policy, seed=[seed], engine="token_step", steps=steps,
        step_ms=step_ms,
    )  # fmt: skip
    found = {name: ds[name].squeeze(["policy", "slack", "heterogeneity", "seed"]).values for name in ds.data_vars}
    for name, value in summarize_steps(outcome).items():
        if value or len(records):
            assert found[name].tolist() == value or (not outcome.records and np.isnan(found[name]).all()), name
    if fleet.events:
        for name in ("lost", "retried", "misrouted"):
            assert found[f"{name}_requests"] == len(getattr(outcome, name)), name
        assert found["request_count"] + found["lost_requests"] == there.sum() + len(outcome.lost)
    if policy.name == "migrate":
        assert found["migrations"] == len(outcome.migrated)
    return outcome


RUNS = st.sampled_from([(None, 1.0), (None, 0.5), (12, 1.0), (40, 0.5)])


@pytest.mark.parametrize("name", NAMES)
def test_steps__every_request(name):
    @given(cells(streams(), (name,)), RUNS, st.sampled_from([0, 9]))
    @settings(max_examples=50)
    def same(cell, run, seed):
        assert_same(*cell, seed, *run)

    same()


@pytest.mark.parametrize("name", NAMES)
def test_steps__failures(name):
    @given(cells(streams(), (name,), happening=True), RUNS)
    @settings(max_examples=80)
    def same(cell, run):
        assert_same(*cell, 0, *run)

    same()


@given(st.data(), st.booleans(), RUNS)
@settings(max_examples=60)
def test_steps__long_streams(data, happening, run):
    cell = data.draw(cells(crowds().map(lambda crowd: crowd.records()), happening=happening))
    assert_same(*cell, 4, *run)


@given(crowds(min_size=40), st.sampled_from(["kv", "tokens+200*kv"]), st.sampled_from([2, 7]), st.booleans())
@settings(max_examples=20)
def test_steps__what_a_report_does_not_include_yet(crowd, signal, freshness, spread):
    """Requests that wait hold no KV, so a router that sent them goes on adding what they will hold."""
    policy = sweep.Policy(
        "least_load", signal=signal, kv_capacity_tokens=300.0, freshness_ms=freshness, correction="own_until_seen",
        phase="spread" if spread else "together", routers=2,
    )  # fmt: skip
    assert_same(crowd.records(), sweep.Fleet.fixed([1.0, 0.4, 0.3]), policy)


@given(cells(streams(), ("round_robin", "least_load")), RUNS)
@settings(max_examples=40)
def test_steps__an_event_nobody_meets_changes_nothing(cell, run):
    """The engine of failures gives the bits of the plain one, and of itself without events."""
    records, fleet, policy = cell
    requests = sweep.Requests.from_records(records)
    options = {"engine": "token_step", "steps": run[0], "step_ms": run[1]}
    late = fleet.with_events([sweep.Down(0, 1e9, math.inf)], heartbeat_ms=1.0)
    for item in (policy, "round_robin", "least_load(in_service_weight=0.5)"):
        with_it = sweep.simulate(requests, late, policy=item, **options)
        without = sweep.simulate(requests, fleet, policy=item, **options)
        for name in without.data_vars:
            np.testing.assert_array_equal(with_it[name].values, without[name].values, err_msg=name)


STREAM = sweep.Requests.from_arrays([0.0, 1.0, 5.0], [0.0] * 3, prompt_tokens=[150, 90, 90], session=["a", "a", "b"])


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        ("least_load(signal=utilisation)", {}, "choose from work (the same as tokens), requests, tokens and kv"),
        ("least_load(speed=measured)", {}, "on 'token_step' speed is none or known"),
        ("weighted_round_robin(weights=measured)", {}, "on 'token_step' weights is speed or numbers"),
        ("least_load(freshness_ms=2.5)", {}, "a whole number of steps of 1 ms, got 2.5"),
        ("least_load(freshness_ms=1)", {"step_ms": 2.0}, "a whole number of steps of 2 ms, got 1"),
        ("least_load(work_error_cv=0.5)", {}, "'work_error_cv' of policy 'least_load' is for the engine 'timeline'"),
        ("weighted_round_robin(weights=1:2:3)", {}, "has 3 numbers for 2 replicas"),
        ("locality_aware", {}, "does not run on the engine 'token_step'"),
    ],
)
def test_steps__what_makes_no_sense_is_refused(policy, options, said):
    for run in (
        lambda: sweep.simulate(STREAM, [1.0, 1.0], policy=policy, engine="token_step", **options),
        lambda: sweep.run(
            sweep.Workload.fixed(STREAM), sweep.Fleet.fixed([1.0, 1.0]), policy=policy, engine="token_step", **options
        ),
    ):
        with pytest.raises(InputError) as error:
            run()
        assert said in str(error.value)


def test_steps__a_replica_slowed_down_for_good_never_drains():
    fleet = sweep.Fleet.fixed([1.0, 0.5]).with_events([sweep.Slow(1, 3.0, math.inf, 0.01)])
    with pytest.raises(InputError, match=r"A replica of speed 0\.005 serves 100 x speed = 0 whole tokens a step"):
        sweep.simulate(STREAM, fleet, policy="round_robin", engine="token_step")


def test_steps__a_replica_that_goes_down_by_hand():
    """Replica 0 is down in steps 2 to 5; routers know from step 4 on, when its work is sent again."""
    fleet = sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(0, 2.0, 6.0)], heartbeat_ms=1.0, misses=2)
    stream = sweep.Requests.from_arrays([0.0, 1.0, 3.0, 4.0], [0.0] * 4, prompt_tokens=[350, 50, 10, 10])
    ds = sweep.simulate(stream, fleet, policy="round_robin", engine="token_step")
    # Request 2 is sent to the replica that is down, request 3 where its turn is; both lost ones go to replica 1.
    assert ds.replica_id.values.tolist() == [1, 1, 1, 1]
    assert ds.attempts.values.tolist() == [2, 1, 2, 1]
    assert ds.start_ms.values.tolist() == [4.0, 1.0, 7.0, 7.0]
    assert ds["load"].values[:6].tolist() == [[350, 0], [250, 50], [250, 0], [260, 0], [260, 370], [260, 270]]


def test_steps__a_session_that_moves_waits_for_its_copy():
    stream = sweep.Requests.from_arrays(
        [0.0, 0.0, 2.0], [0.0] * 3, prompt_tokens=[500, 10, 10], session=["a", "b", "a"]
    )
    policy = "migrate(transfer_ms=2, transfer_ms_per_token=0.05)"
    ds = sweep.simulate(stream, [1.0, 1.0], policy=policy, engine="token_step")
    assert ds.route_reason.values.tolist() == ["least_load", "least_load", "migrated"]
    assert ds.start_ms.values.tolist() == [0.0, 0.0, 5.0]


def test_steps__work_lost_with_a_replica_has_not_entered():
    """A run that ends between the failure and its detection: the request waits, and nothing of it is finished."""
    fleet = sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(0, 2.0, 9.0)], heartbeat_ms=5.0, misses=1)
    records = [{"request_id": 0, "arrival_ms": 0.0, "service_ms": 1.0, "prompt_tokens": 350}]
    assert_same(records, fleet, sweep.Policy("round_robin"), steps=4)
    stream = sweep.Requests.from_records(records)
    ds = sweep.simulate(stream, fleet, policy="round_robin", engine="token_step", steps=4)
    assert np.isnan(ds.start_ms.item())
    assert ds.queue_wait_ms.item() == 4.0
    assert not ds.lost.item()


@pytest.mark.parametrize("event", [sweep.Down(0, 0.0, 9.0), sweep.Drain(0, 0.0, 9.0)])
def test_steps__what_was_sent_nowhere_has_no_reason(event):
    fleet = sweep.Fleet.fixed([1.0]).with_events([event], heartbeat_ms=2.0, misses=1, breaker=sweep.Breaker(1, 9.0))
    records = [{"request_id": i, "arrival_ms": 3.0 * i, "service_ms": 1.0, "prompt_tokens": 9} for i in range(3)]
    for policy in ("random", "least_load"):
        assert_same(records, fleet, sweep.Policy(policy), steps=5)
        ds = sweep.simulate(sweep.Requests.from_records(records), fleet, policy=policy, engine="token_step", steps=5)
        # Request 0 was sent and failed; request 1 waits for a replica; request 2 comes after the end of the run.
        assert ds.replica_id.values.tolist() == [0, -1, -1]
        assert ds.route_reason.values.tolist() == [policy, "", ""]


def test_timeline__what_was_lost_has_no_reason():
    fleet = sweep.Fleet.fixed([1.0]).with_events([sweep.Down(0, 0.5, 2.0)], heartbeat_ms=0.0, retries=0)
    stream = sweep.Requests.from_arrays([0.0, 3.0], [1.0, 1.0])
    ds = sweep.simulate(stream, fleet, policy="random")
    assert ds.lost.values.tolist() == [True, False]
    assert ds.route_reason.values.tolist() == ["", "random"]
