"""Caches of blocks in the router engine: every rule, axis, event and adapter, and users' rules, equal the oracle."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import rules
from hypothesis import given, settings
from hypothesis import strategies as st
from router_policies import PARAMETERS, events, policies
from strategies import slacks, speeds, speedups, streams
from test_block_cells import MODEL, chained_streams

import sweep
from sweep.reference import STRATEGIES, summarize_blocks
from sweep.reference.cached_blocks import Caching
from sweep.reference.router import Simulation

COUNTS = st.sampled_from([1, 2, 3, 5, 65])


class Cell(NamedTuple):
    """A cell of the router engine with caches of blocks."""

    records: list[dict[str, Any]]
    fleet: sweep.Fleet
    policy: sweep.Policy
    slack: float
    seed: int
    warmup: int
    model: sweep.ServiceModel | None
    settings: dict[str, Any]

    def simulation(self):
        caching = Caching(*(self.settings[name] for name in ("cache_blocks", "eviction", "cache_visible")), self.model)
        speedups_ = (self.settings["cache_hit_speedup"], self.seed)
        row, found = self.fleet.speeds[0].tolist(), self.fleet.events
        adapter = self.settings["adapter_speedup"]
        return Simulation(self.records, row, self.policy, self.slack, *speedups_, found, adapter, caching)


@st.composite
def cells(draw, names=tuple(PARAMETERS)):
    replicas = draw(COUNTS)
    records = draw(chained_streams().filter(lambda records: any(record["blocks"] for record in records)))
    if draw(st.booleans()):
        adapters = st.sampled_from([None, "x", "y", 3])
        records = [record | {"adapter_id": draw(adapters)} for record in records]
    fleet = sweep.Fleet.fixed(draw(speeds(replicas)))
    if draw(st.booleans()):
        fleet = fleet.with_events(**draw(events(replicas)))
    capacity = draw(st.sampled_from([1, 2, 3, 5, 8, 20, math.inf]))
    policy = draw(policies(replicas, names, bounded=math.isfinite(capacity)))
    chosen = {
        "cache_blocks": capacity,
        "eviction": draw(st.sampled_from(["lru", "lfu"])),
        "cache_visible": draw(st.sampled_from(["dispatch", "prefill_end"])),
        "cache_hit_speedup": draw(speedups()),
        "adapter_speedup": draw(st.sampled_from([0.0, 0.25])),
    }
    model = draw(st.sampled_from([None, MODEL]))
    return Cell(
        records, fleet, policy, draw(slacks())[0], draw(st.integers(0, 9)), draw(st.integers(0, 6)), model, chosen
    )


def assert_same(cell):
    simulation = cell.simulation()
    outcome = simulation.run()
    requests = replace(sweep.Requests.from_records(cell.records), service_model=cell.model)
    options = {"policy": cell.policy, "slack": cell.slack, **cell.settings}
    ds = sweep.simulate(requests, cell.fleet, seed=cell.seed, **options)
    done = ds.isel(request=~ds.lost.values) if "lost" in ds else ds
    assert ds.sizes["request"] - done.sizes["request"] == len(outcome.lost)
    for name in ("request_id", "replica_id", "route_reason", "cache_hit", "start_ms", "finish_ms"):
        assert done[name].values.tolist() == [record[name] for record in outcome.records], name

    run = sweep.run(sweep.Workload.fixed(requests), cell.fleet, seed=[cell.seed], warmup=cell.warmup, **options)
    counted = [row for row in simulation.rows[cell.warmup :] if row is not None]
    expected = summarize_blocks(counted, outcome.blocks.caches)
    # Also those of requests that were lost, and of earlier attempts.
    expected["evictions"] = sum(outcome.blocks.evictions[cell.warmup :])
    for name, value in expected.items():
        np.testing.assert_array_equal(run[name].values.ravel(), np.ravel(value), err_msg=name)
    assert run.request_count.item() == len(counted)


@pytest.mark.parametrize("name", PARAMETERS)
def test_blocks__every_rule(name):
    @given(cells((name,)))
    @settings(max_examples=60)
    def same(cell):
        assert_same(cell)

    same()


@given(cells(("least_load",)))
@settings(max_examples=20)
def test_blocks__of_unknown_sizes(cell):
    records = [{name: value for name, value in record.items() if name != "block_tokens"} for record in cell.records]
    fleet = sweep.Fleet.fixed(cell.fleet.speeds[0].tolist())
    assert_same(cell._replace(records=records, warmup=0, fleet=fleet, policy=sweep.Policy("least_load")))


@given(cells(("queue_aware",)))
@settings(max_examples=80)
def test_blocks__a_users_rule(cell):
    with rules.registered(rules.ROUTED):
        assert_same(cell._replace(policy=sweep.Policy("routed")))


@st.composite
def one_key(draw, names=tuple(PARAMETERS)):
    """Return records without chains, a fleet where no replica is back before its outage is known, and a policy."""
    replicas = draw(COUNTS)
    records = [record | {"prompt_tokens": record["prompt_tokens"] + 1} for record in draw(streams())]
    if draw(st.booleans()):
        records = [record | {"adapter_id": draw(st.sampled_from([None, "x", 3]))} for record in records]
    fleet = sweep.Fleet.fixed(draw(speeds(replicas)))
    if draw(st.booleans()):
        fleet = fleet.with_events(**draw(events(replicas, known_before_back=True)))
    return records, fleet, draw(policies(replicas, names))


@pytest.mark.parametrize("name", PARAMETERS)
def test_one_block_without_bound__is_the_one_key_cache(name):
    @given(one_key((name,)), slacks(), speedups(), st.integers(0, 9))
    @settings(max_examples=60)
    def same(cell, slack, speedup, seed):
        records, fleet, policy = cell
        requests = sweep.Requests.from_records(records)
        options = {"policy": policy, "slack": slack[0], "cache_hit_speedup": speedup, "adapter_speedup": 0.25}
        plain = sweep.simulate(requests, fleet, seed=seed, **options)
        blocks = sweep.simulate(requests, fleet, seed=seed, cache_blocks=math.inf, **options)
        for key in plain.data_vars:
            np.testing.assert_array_equal(blocks[key].values, plain[key].values, err_msg=key)

    same()


@given(
    chained_streams(),
    st.sampled_from([[1.0], [1.0, 0.5], [1.0] * 5, [1.0] * 65]),
    slacks(),
    st.sampled_from([0, 1, 3, 8, math.inf]),
    st.sampled_from(["lru", "lfu"]),
    st.sampled_from(["dispatch", "prefill_end"]),
    st.sampled_from([None, MODEL]),
)
@settings(max_examples=60)
def test_live__is_the_loop_of_the_three_rules(records, row, slack, capacity, eviction, visible, model):
    requests = replace(sweep.Requests.from_records(records), service_model=model)
    options = {"cache_blocks": capacity, "eviction": eviction, "cache_visible": visible, "slack": slack[:2]}
    for name in STRATEGIES:
        turned = f"{name}(router_assignment=random)"
        ds = sweep.run(sweep.Workload.fixed(requests), sweep.Fleet.fixed(row), policy=[name, turned], seed=1, **options)
        for key in ds.data_vars:
            np.testing.assert_array_equal(ds[key].values[0], ds[key].values[1], err_msg=key)


@given(cells(("queue_aware",)))
@settings(max_examples=60)
def test_users_rule__least_wait_is_queue_aware(cell):
    requests = replace(sweep.Requests.from_records(cell.records), service_model=cell.model)
    bare = replace(requests, blocks=None)
    options = {"slack": cell.slack, "adapter_speedup": 0.25}
    with rules.registered(rules.LEAST_WAIT):
        for stream, caches in ((requests, cell.settings), (bare, {})):
            found, expected = (
                sweep.simulate(stream, cell.fleet, policy=policy, **(options | caches))
                for policy in ("least_wait", "queue_aware")
            )
            for key in set(expected.data_vars) - {"route_reason"}:
                np.testing.assert_array_equal(found[key].values, expected[key].values, err_msg=key)


# --- By hand ----------------------------------------------------------------------------------------------------------


def chained(arrivals, chains, **more):
    """Return requests of 100 ms service and 10 tokens a block."""
    return sweep.Requests.from_records(
        {"request_id": i, "arrival_ms": at, "service_ms": 100.0, "prompt_tokens": 10 * len(chain), "blocks": chain}
        | {"block_tokens": 10, **{name: values[i] for name, values in more.items()}}
        for i, (at, chain) in enumerate(zip(arrivals, chains, strict=True))
    )


def test_migrate__copies_the_longest_chain_and_pays_for_its_tokens():
    requests = chained([0.0, 10.0, 20.0], [[1, 2, 3], [1, 7], [1, 2, 3, 4]])
    policy = "migrate(transfer_ms=2, transfer_ms_per_token=0.1)"
    ds = sweep.simulate(requests, [1.0, 1.0], policy=policy, cache_hit_speedup=1.0, cache_blocks=50)
    # The second copies block 1 (10 tokens), then computes half; the third, on replica 1, copies blocks 2 and 3 as well.
    assert ds.route_reason.values.tolist() == ["least_load", "migrated", "migrated"]
    assert ds.replica_id.values.tolist() == [0, 1, 1]
    assert ds.effective_service_ms.values.tolist() == [100.0, 3.0 + 50.0, 4.0 + 25.0]


def test_stale_view__routers_know_what_reports_said_and_what_they_sent():
    # Requests 1 and 2 come before the report at 50 ms, request 3 after it; replica 0 always waits longer.
    requests = chained([1.0, 10.0, 20.0, 60.0], [[1, 2], [9], [1, 2], [1, 2]])
    reasons = {
        correction: sweep.simulate(
            requests,
            [1.0, 1.0],
            policy=f"locality_aware(freshness_ms=50, correction={correction})",
            slack=math.inf,
            cache_blocks=10,
        ).route_reason.values.tolist()
        for correction in ("none", "own")
    }
    assert reasons["none"] == ["queue_fallback"] * 3 + ["prefix_locality"]
    assert reasons["own"] == ["queue_fallback"] * 2 + ["prefix_locality"] * 2


def test_down__the_replica_comes_back_with_an_empty_cache():
    requests = chained([0.0, 150.0, 600.0, 800.0], [[1, 2]] * 4)
    fleet = sweep.Fleet.fixed([1.0, 0.01]).with_events([sweep.Down(0, 300.0, 400.0)], heartbeat_ms=10, misses=1)
    ds = sweep.run(
        sweep.Workload.fixed(requests), fleet, policy="locality_aware", seed=[0], cache_blocks=5, cache_hit_speedup=0.5
    )
    assert ds.block_hit_rate.item() == 4 / 8
    assert ds.replica_requests.values.ravel().tolist() == [4, 0]
    assert ds.evictions.item() == 0


# --- One capacity -----------------------------------------------------------------------------------------------------


@given(chained_streams(), st.sampled_from([[1.0, 0.5], [1.0] * 5]))
@settings(max_examples=30)
def test_kv__finite_caches_are_its_capacity(records, row):
    requests = sweep.Requests.from_records(records)
    if not len(requests.blocks.ids):
        return
    size, capacity = records[0]["block_tokens"], 1_000  # more than there are blocks
    policy = "least_load(signal=work+50*kv{})"
    bounded = sweep.simulate(requests, row, policy=policy.format(""), cache_blocks=capacity)
    free = sweep.simulate(
        requests, row, policy=policy.format(f", kv_capacity_tokens={size * capacity}"), cache_blocks=math.inf
    )
    for key in bounded.data_vars:
        np.testing.assert_array_equal(bounded[key].values, free[key].values, err_msg=key)


@pytest.mark.parametrize(
    ("policy", "capacity", "message"),
    [
        ("least_load(kv_capacity_tokens=100)", 5, "'kv_capacity_tokens' .* has no say where cache_blocks=5 is"),
        ("least_load(signal=kv)", 0, "is a share of the cache, and cache_blocks=0 leaves none"),
    ],
)
def test_kv__what_contradicts_is_refused(policy, capacity, message):
    requests = chained([0.0, 1.0], [[1], [1, 2]])
    with pytest.raises(sweep.InputError, match=message):
        sweep.simulate(requests, [1.0, 1.0], policy=policy, cache_blocks=capacity)


def test_kv__blocks_of_unknown_size_have_no_capacity():
    requests = sweep.Requests.from_arrays([0.0], [1.0], prefix=["a"], prompt_tokens=[5])
    with pytest.raises(sweep.InputError, match=r"needs the tokens of a block .* give block_tokens"):
        sweep.simulate(requests, [1.0], policy="least_load(signal=kv)", cache_blocks=5)
    sweep.simulate(requests, [1.0], policy="least_load(signal=kv, kv_capacity_tokens=9)", cache_blocks=None)


# --- Users' rules -----------------------------------------------------------------------------------------------------


def always_first(view, request, parameters):
    return 0


def writing(view, request, parameters):
    view.requests[0] += 1
    return 0


def halves(view, request, parameters):
    return request.position / 2


def nothing(view, request, parameters):
    if request.position == 0:
        return 0
    return None


def test_users_rule__what_it_sees_cannot_be_written_and_a_part_of_a_replica_is_none():
    requests = sweep.Requests.from_arrays([0.0, 400.0], [1.0, 1.0])
    with rules.registered(("writing", writing, {}), ("halves", halves, {}), ("nothing", nothing, {})):
        for name, said in (
            ("writing", "it writes into what it sees"),
            ("halves", "sent request 1 to a replica that does not exist"),
            ("nothing", "what it returns is not a number on every path"),
        ):
            with pytest.raises(sweep.InputError, match=said):
                sweep.simulate(requests, [1.0, 1.0], policy=name)
        for name, kind in (("writing", ValueError), ("halves", sweep.InputError)):
            with pytest.raises(kind):
                Simulation(requests.to_records(), [1.0, 1.0], sweep.Policy(name), 5.0, 0.3, 0).run()


def raising(view, request, parameters):
    if request.position == 1:
        raise ValueError
    return 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what a rule raises is printed
def test_users_rule__where_it_may_not_send():
    requests = sweep.Requests.from_arrays([0.0, 400.0], [1.0, 1.0])
    fleet = sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(0, 10.0, 900.0)])
    with rules.registered(("always_first", always_first, {}), ("raising", raising, {})):
        assert sweep.simulate(requests, fleet.speeds, policy="always_first").replica_id.values.tolist() == [0, 0]
        with pytest.raises(sweep.InputError, match="sent request 1 to replica 0, which its router does not hold to be"):
            sweep.simulate(requests, fleet, policy="always_first")
        with pytest.raises(sweep.InputError, match="'raising' raised an error at request 1"):
            sweep.simulate(requests, fleet, policy="raising")
        with pytest.raises(sweep.InputError, match="which its router does not hold to be up"):
            records = requests.to_records()
            Simulation(records, [1.0, 1.0], sweep.Policy("always_first"), 5.0, 0.3, 0, fleet.events).run()
