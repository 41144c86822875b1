"""Events of a fleet: what is refused, what is stored, and small cases worked out by hand."""

import json
import math
import pickle

import numpy as np
import pytest
from rules import registered

import sweep

FLEET = sweep.Fleet.fixed([1.0, 1.0])


@pytest.mark.parametrize(
    ("events", "options", "message"),
    [
        ([sweep.Down(2, 0.0, 1.0)], {}, "replica that does not exist; there are replicas 0 to 1"),
        ([sweep.Down(-1, 0.0, 1.0)], {}, "whole number >= 0"),
        ([sweep.Down(0, 0.0, 5.0), sweep.Slow(0, 4.0, 6.0, 0.5)], {}, "Events of replica 0 overlap"),
        ([sweep.Down(0, 5.0, 5.0)], {}, "end_ms of .* > 5"),
        ([sweep.Down(0, -1.0, 5.0)], {}, "start_ms of .* >= 0"),
        ([sweep.Slow(0, 1.0, 5.0, 0.0)], {}, "factor of .* >= 1e-09"),
        (["down"], {}, "must be a sweep.Down, sweep.Drain or sweep.Slow"),
        (sweep.Down(0, 0.0, 1.0), {}, "must be a list"),
        ([], {"heartbeat_ms": -1.0}, "heartbeat_ms must be a finite number >= 0"),
        ([], {"misses": 1.5}, "misses must be a whole number"),
        ([], {"retries": 101}, "retries must be a whole number from 0 to 100"),
        ([], {"misses": 10**400}, "misses must be a whole number from 0 to 1000000"),
        ([], {"heartbeat_ms": 1e308}, "heartbeat_ms must be a finite number .*1e.12"),
        ([], {"breaker": 3}, "breaker must be None or a sweep.Breaker"),
        ([], {"breaker": sweep.Breaker(0, 5.0)}, "failures of the breaker"),
        ([], {"no_replica": "hope"}, "Unknown no_replica 'hope'"),
        ([], {"window_ms": 0.0}, "window_ms must be a finite number > 0"),
    ],
)
def test_with_events__refuses(events, options, message):
    with pytest.raises(sweep.InputError, match=message):
        FLEET.with_events(events, **options)


def test_with_events__touching_events_are_fine():
    fleet = FLEET.with_events([sweep.Slow(0, 5.0, 6.0, 2.0), sweep.Down(0, 0.0, 5.0)])
    assert [type(event).__name__ for event in fleet.events.events] == ["Down", "Slow"]


def test_fleet__events_are_stored_and_fingerprinted():
    fleet = FLEET.with_events(
        [sweep.Down(1, 5.0, math.inf), sweep.Drain(0, 1.0, 2.0), sweep.Slow(0, 3.0, 4.0, 0.5)],
        breaker=sweep.Breaker(2, 50.0),
        retries=3,
    )
    assert sweep.Fleet.from_dict(json.loads(json.dumps(fleet.to_dict()))) == fleet
    assert pickle.loads(pickle.dumps(fleet)) == fleet
    assert fleet.fingerprint() != FLEET.fingerprint()
    assert FLEET.events is None
    with pytest.raises(sweep.InputError, match="stored events"):
        sweep.Fleet.from_dict(FLEET.to_dict() | {"events": {"events": []}})


def replay(arrivals, services, fleet, policy="round_robin", **columns):
    return sweep.simulate(sweep.Requests.from_arrays(arrivals, services, **columns), fleet, policy=policy)


def test_down__work_is_sent_again_when_the_failure_is_detected():
    """Request 0 is in service on replica 0 when that fails at 4; heard of at 4 + 2 * 3 = 10; 20 ms on replica 1."""
    fleet = FLEET.with_events([sweep.Down(0, 4.0, 100.0)], heartbeat_ms=2.0, misses=3)
    ds = replay([0.0, 1.0], [20.0, 1.0], fleet)
    assert ds.replica_id.values.tolist() == [1, 1]
    assert ds.start_ms.values.tolist() == [10.0, 1.0]
    assert ds.queue_wait_ms.values.tolist() == [10.0, 0.0]
    assert ds.attempts.values.tolist() == [2, 1]


def test_down__until_then_routers_keep_sending():
    fleet = FLEET.with_events([sweep.Down(0, 4.0, 100.0)], heartbeat_ms=2.0, misses=3, retries=0)
    ds = replay([5.0, 5.0, 9.0, 9.0, 10.0, 11.0], [1.0] * 6, fleet)
    assert ds.lost.values.tolist() == [True, False, True, False, False, False]
    # From 10 ms on round robin advances past the replica that is known to be down.
    assert ds.replica_id.values.tolist() == [-1, 1, -1, 1, 1, 1]
    assert np.isnan(ds.start_ms.values[[0, 2]]).all()


def test_down__comes_back_cold():
    fleet = sweep.Fleet.fixed([1.0]).with_events([sweep.Down(0, 20.0, 30.0)], heartbeat_ms=1.0, misses=0)
    ds = replay([0.0, 15.0, 40.0, 41.0], [1.0] * 4, fleet, prefix=["a"] * 4)
    assert ds.cache_hit.values.tolist() == [False, True, False, True]


def test_drain__finishes_what_it_has_and_refuses_the_rest():
    fleet = FLEET.with_events([sweep.Drain(0, 4.0, 100.0)], heartbeat_ms=2.0, misses=3)
    ds = replay([0.0, 1.0, 5.0], [20.0, 1.0, 1.0], fleet)
    assert ds.replica_id.values.tolist() == [0, 1, 1]
    assert ds.finish_ms.values.tolist() == [20.0, 2.0, 6.0]
    assert ds.attempts.values.tolist() == [1, 1, 2]


def test_slow__work_is_conserved_within_a_service():
    """10 ms of work: 4 done by 4 ms, 3 more by 10 ms at half speed, the last 3 by 13 ms."""
    fleet = sweep.Fleet.fixed([1.0]).with_events([sweep.Slow(0, 4.0, 10.0, 0.5)])
    ds = replay([0.0], [10.0], fleet)
    assert ds.finish_ms.values.tolist() == [13.0]


def test_no_replica__waits_or_is_lost_and_ends():
    down = [sweep.Down(0, 1.0, 50.0), sweep.Down(1, 1.0, 40.0)]
    options = {"heartbeat_ms": 1.0, "misses": 0}
    wait = replay([2.0], [1.0], FLEET.with_events(down, **options))
    assert wait.start_ms.values.tolist() == [40.0]
    lose = replay([2.0], [1.0], FLEET.with_events(down, no_replica="lose", **options))
    assert lose.lost.values.tolist() == [True]
    ever = [sweep.Down(0, 1.0, math.inf), sweep.Down(1, 1.0, math.inf)]
    assert replay([2.0], [1.0], FLEET.with_events(ever, **options)).lost.values.tolist() == [True]


def test_breaker__opens_then_lets_one_trial_through():
    """A drain nobody hears of for long: two refusals open the breaker for 10 ms, the trial's refusal opens it again."""
    options = {"heartbeat_ms": 1000.0, "misses": 1, "retries": 1}
    arrivals = [1.0 + i for i in range(30)]
    drained = [sweep.Drain(0, 0.0, 500.0)]
    refused = []
    for breaker in (None, sweep.Breaker(2, 10.0)):
        fleet = FLEET.with_events(drained, breaker=breaker, **options)
        ds = replay(arrivals, [0.5] * 30, fleet, policy="least_load(signal=requests)")
        refused.append(ds.arrival_ms.values[ds.attempts.values == 2].tolist())
    # Idle, the draining replica looks best to every request.
    assert refused == [arrivals, [1.0, 2.0, 12.0, 22.0]]


@pytest.mark.parametrize("engine", ["timeline", "token_step"])
def test_breaker__work_from_before_does_not_close_it(engine):
    """What was queued before a drain goes on finishing, and says nothing of requests that come later."""
    arrivals = [0.0] * 20 + [6.0 + 2.0 * i for i in range(40)]
    stream = sweep.Requests.from_arrays(arrivals, [10.0] * 60, prompt_tokens=[1000] * 20 + [1] * 40)
    fleet = FLEET.with_events([sweep.Drain(0, 5.0, 1e6)], heartbeat_ms=1e5, breaker=sweep.Breaker(2, 30.0))
    ds = sweep.simulate(stream, fleet, policy="round_robin", engine=engine)
    # The first one sent again takes replica 1's turn. Two failures open the breaker until 38, each trial for 30 more.
    assert ds.arrival_ms.values[ds.attempts.values == 2].tolist() == [6.0, 8.0, 38.0, 68.0]


def test_run__failures_add_their_variables():
    work = sweep.Workload.poisson(requests=400, utilisation=0.5, replicas=2, sessions=40, prefixes=40)
    fleet = FLEET.with_events([sweep.Down(0, 300.0, 600.0)])
    ds = sweep.run(work, fleet, policy=["round_robin", "queue_aware", "locality_aware"], slack=[0.0, 5.0], seed=4)
    assert ((ds.request_count + ds.lost_requests) == 400).all()
    assert (ds.misrouted_requests > 0).any()
    assert "lost_requests" not in sweep.run(work, FLEET, policy="round_robin", seed=1)


def p95(waits):
    return sorted(waits)[math.ceil(0.95 * len(waits)) - 1]


def test_recovery__before_is_what_the_event_had_not_delayed():
    """A steady wait near 145 ms; what waits at the lost replica waits far longer, but is not what was before."""
    arrivals = [0.0] * 30 + [5.0 * i for i in range(1, 400)] + [2000.0 + 16.0 * i for i in range(300)]
    fleet = FLEET.with_events([sweep.Down(0, 1990.0, 2600.0)], heartbeat_ms=20.0)
    stream = sweep.Requests.from_arrays(arrivals, [10.0] * len(arrivals))
    start = sweep.simulate(stream, fleet, policy="round_robin").start_ms.values.tolist()
    waits = [(arrival, begin - arrival) for arrival, begin in zip(arrivals, start, strict=True)]
    before = [wait for arrival, wait in waits if arrival >= 990.0 and arrival + wait < 1990.0]
    assert 130.0 < p95(before) < 150.0
    recovered = next(
        now - 2050.0
        for now in arrivals
        if now >= 2050.0 and p95([wait for at, wait in waits if now - 1000.0 < at <= now]) <= 1.1 * p95(before)
    )
    assert recovered > 500.0
    ds = sweep.run(sweep.Workload.fixed(stream), fleet, policy="round_robin", seed=1)
    assert ds.recovery_ms.item() == recovered


@pytest.mark.parametrize("policy", ["queue_aware", "least_load(signal=requests)", "shortest_expected_delay"])
def test_nobody_foresees_an_event(policy):
    """What happens after a time changes no choice before it."""
    work = sweep.Workload.poisson(requests=300, utilisation=0.9, replicas=2).realise(3)
    for event in (sweep.Down(0, 900.0, 950.0), sweep.Slow(1, 900.0, 950.0, 0.1), sweep.Drain(0, 900.0, 950.0)):
        fleet = FLEET.with_events([event], heartbeat_ms=10.0)
        sent = [sweep.simulate(work, each, policy=policy).replica_id.values for each in (fleet, [1.0, 1.0])]
        done = sweep.simulate(work, fleet, policy=policy).lost.values
        early = (work.arrival_ms < 900.0) & ~done
        # A request that the failure caught was sent again, so only what finished where it went can be compared.
        once = early & (sweep.simulate(work, fleet, policy=policy).attempts.values == 1)
        assert once.sum() > 100
        assert sent[0][once].tolist() == sent[1][once].tolist()


def fastest(view, request, parameters):
    return view.speed.argmax()


@pytest.mark.parametrize(
    ("policy", "engine", "expected"),
    [
        ("weighted_round_robin", "timeline", [0, 1, 0, 1]),
        ("weighted_round_robin", "token_step", [0, 1, 0, 1]),
        ("least_load(speed=known)", "timeline", [0, 1, 0, 1]),
        ("least_load(speed=known)", "token_step", [0, 1, 0, 1]),
        # The wait that a replica shows is at its present speed, whoever knows of that.
        ("shortest_expected_delay", "timeline", [0, 1, 1, 1]),
        ("fastest", "timeline", [0, 0, 0, 0]),
    ],
)
def test_slow_from_the_start__routers_learn_of_it_as_of_any_event(policy, engine, expected):
    stream = sweep.Requests.from_arrays([0.0] * 4, [4.0] * 4, prompt_tokens=[300] * 4)
    slow = [sweep.Slow(0, 0.0, 1e6, 0.1)]
    with registered(("fastest", fastest, {})):
        late, at_once = (
            sweep.simulate(stream, FLEET.with_events(slow, heartbeat_ms=heartbeat), policy=policy, engine=engine)
            for heartbeat in (10.0, 0.0)
        )
    # Until routers learn of it, the slow replica looks like the other one. It is slow all the same.
    assert late.replica_id.values.tolist() == expected
    assert at_once.replica_id.values.tolist() != expected
    if engine == "timeline":
        assert late.effective_service_ms.values[0] == 40.0


def test_retried__counts_what_was_sent_again():
    """Both replicas go down for good: what they held is lost, and was sent once."""
    down = [sweep.Down(0, 5.0, math.inf), sweep.Down(1, 5.0, math.inf)]
    fleet = FLEET.with_events(down, heartbeat_ms=1.0, misses=1, retries=5)
    stream = sweep.Requests.from_arrays([0.0, 1.0, 20.0], [10.0] * 3, prompt_tokens=[999] * 3)
    for engine in ("timeline", "token_step"):
        ds = sweep.simulate(stream, fleet, policy="round_robin", engine=engine)
        assert ds.lost.values.all()
        # Nobody is held to be up when the last one comes.
        assert ds.attempts.values.tolist() == [1, 1, 0]
        ds = sweep.run(sweep.Workload.fixed(stream), fleet, policy="round_robin", seed=1, engine=engine)
        assert (ds.lost_requests.item(), ds.retried_requests.item()) == (3, 0)


@pytest.mark.parametrize("factor", [1e-320, 1e10])
def test_slow__a_factor_has_the_bounds_of_a_speed(factor):
    with pytest.raises(sweep.InputError, match=r"factor of .* must be a finite number >= 1e-09 and <= 1e"):
        FLEET.with_events([sweep.Slow(0, 1.0, 2.0, factor)])


@pytest.mark.parametrize("engine", ["timeline", "token_step"])
def test_freshness__is_live_or_can_be_counted(engine):
    stream = sweep.Requests.from_arrays([0.0], [1.0], prompt_tokens=[9])
    with pytest.raises(sweep.InputError, match="must be 0, a live view, or at least 1e-06 ms, got 1e-15"):
        sweep.simulate(stream, FLEET, policy="least_load(freshness_ms=1e-15)", engine=engine, step_ms=1e-15)
