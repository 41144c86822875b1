"""Finite caches of blocks: the kernel equals the oracle, the one-key cache and the published hit rates."""

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweep
from sweep.reference import (
    STRATEGIES,
    load_variance_of,
    simulate_block_routing,
    simulate_replica_routing,
    summarize_blocks,
    summarize_replica_service,
)
from sweep.traces.statistics import statistics
from sweep.variables import VARIABLES

MOONCAKE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"
MODEL = sweep.ServiceModel(base_ms=1.5, prefill_ms_per_token=0.07, decode_ms_per_token=0.9)


@st.composite
def chained_streams(draw, max_size=60):
    """Return records whose prompts grow on a few trees, so that they share starts, and some have no blocks."""
    source = random.Random(draw(st.integers(0, 2**32)))
    size = draw(st.integers(1, max_size))
    branching = draw(st.sampled_from([1, 2, 6]))
    longest = draw(st.sampled_from([1, 3, 9]))
    exact = draw(st.booleans())
    width = draw(st.sampled_from([4, 16]))
    records, arrival, known = [], 0.0, {}
    for index in range(size):
        arrival += source.randrange(3) if exact else source.expovariate(0.3)
        path, chain = [], []
        for _ in range(source.randrange(longest + 1)):
            path.append(source.randrange(branching))
            chain.append(known.setdefault(tuple(path), len(known)))
        records.append(
            {
                "request_id": index,
                "arrival_ms": float(arrival),
                "service_ms": float(source.randrange(12)),
                "session_id": source.choice([None, 0, 1, 2]),
                "prompt_tokens": max(1, width * len(chain) - source.randrange(width)) if chain else source.randrange(9),
                "output_tokens": source.randrange(20),
                "blocks": chain,
                "block_tokens": width,
            }
        )
    return records


def expected_cell(records, caches, replicas, warmup):
    summary = summarize_replica_service(records, replicas, warmup)
    summary["load_variance"], summary["peak_load_variance"] = load_variance_of(records, replicas, warmup)
    if not records[warmup:]:
        whole = {name for name, variable in VARIABLES["timeline"].items() if variable.integer or variable.dims}
        summary |= {name: math.nan for name in summary if name not in whole}
    return summary | summarize_blocks(records, caches, warmup)


def assert_run_equals_oracle(records, rows, slacks, capacities, eviction, visible, model, warmup=0):
    replicas = len(rows[0])
    requests = replace(sweep.Requests.from_records(records), service_model=model)
    if requests.blocks is None:
        return
    ds = sweep.run(
        sweep.Workload.fixed(requests),
        sweep.Fleet(rows, heterogeneity=range(len(rows))),
        policy=STRATEGIES,
        slack=slacks,
        seed=1,
        cache_blocks=capacities,
        eviction=eviction,
        cache_visible=visible,
        warmup=warmup,
    )
    assert ds.block_hit_rate.dims == ("policy", "slack", "heterogeneity", "cache_blocks", "seed")
    cells = itertools.product(enumerate(STRATEGIES), enumerate(slacks), enumerate(rows), enumerate(capacities))
    for (p, policy), (k, slack), (h, speeds), (c, capacity) in cells:
        played, caches = simulate_block_routing(
            records, replicas, policy, slack, 0.3, speeds, capacity, eviction, visible, model
        )
        expected = expected_cell(played, caches, replicas, warmup)
        assert set(expected) == set(ds.data_vars)
        for name, value in expected.items():
            if isinstance(value, dict):
                absent = 0 if name == "reason_count" else math.nan
                value = [value.get(reason, absent) for reason in ds.reason.values.tolist()]
            np.testing.assert_array_equal(ds[name].values[p, k, h, c, 0], np.asarray(value), err_msg=name)


CAPACITIES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 20, math.inf]), min_size=1, max_size=3, unique=True)
KINDS = st.tuples(st.sampled_from(["lru", "lfu"]), st.sampled_from(["dispatch", "prefill_end"]))


@given(
    chained_streams(),
    st.sampled_from([[[1.0]], [[1.0, 0.5], [0.3, 1.2]], [[1.0] * 5]]),
    st.lists(st.sampled_from([0.0, 3.0, 25.0, math.inf]), min_size=1, max_size=2, unique=True),
    CAPACITIES,
    KINDS,
    st.sampled_from([None, MODEL]),
    st.sampled_from([0, 7]),
)
@settings(max_examples=80)
def test_cells__equal_the_oracle(records, rows, slacks, capacities, kind, model, warmup):
    assert_run_equals_oracle(records, rows, slacks, capacities, *kind, model, warmup)


@pytest.mark.parametrize("replicas", [63, 64, 65, 130])
@pytest.mark.parametrize("visible", ["dispatch", "prefill_end"])
def test_cells__every_replica_is_matched(replicas, visible):
    """As many chains as replicas, sent to all of them at once, then found again on the high ones."""
    count = replicas + 10
    records = [
        {"request_id": i, "arrival_ms": 500.0 * (i // count), "service_ms": 90.0 + i % 3, "prompt_tokens": 30}
        | {"output_tokens": 1, "blocks": [3 * (i % count) + k for k in range(3)], "block_tokens": 10}
        for i in range(2 * count)
    ]
    played, _ = simulate_block_routing(records, replicas, "locality_aware", 200.0, cache_visible=visible)
    assert {record["replica_id"] for record in played if record["matched_blocks"] == 3} == set(range(replicas))
    assert_run_equals_oracle(records, [[1.0] * replicas], [200.0], [6, math.inf], "lru", visible, None)


@given(chained_streams(), KINDS, st.sampled_from([2, 6, None]), st.sampled_from(STRATEGIES))
@settings(max_examples=40)
def test_simulate__every_request(records, kind, capacity, policy):
    requests = sweep.Requests.from_records(records)
    eviction, visible = kind
    settings_ = {"eviction": eviction, "cache_visible": visible}
    ds = sweep.simulate(requests, [1.0, 0.4], policy=policy, slack=4.0, cache_blocks=capacity, **settings_)
    size = math.inf if capacity is None else capacity
    oracle, _ = simulate_block_routing(records, 2, policy, 4.0, 0.3, [1.0, 0.4], size, **settings_)
    for name in ("replica_id", "route_reason", "cache_hit", "start_ms", "finish_ms", "queue_wait_ms"):
        assert ds[name].values.tolist() == [record[name] for record in oracle], name


@pytest.mark.parametrize("policy", ["queue_aware", "least_load"])
@pytest.mark.parametrize("blocks", [{}, {"blocks": ["a"]}, {"blocks": ["a"], "block_tokens": 25}])
def test_tokens__of_blocks_of_unknown_size_are_unknown(policy, blocks):
    """Four of five requests find the only block; nobody says how many of their tokens it stands for, or 25 of 100."""
    row = {"prefix_key": "a", "prompt_tokens": 100, "output_tokens": 1, "service_ms": 5.0}
    requests = sweep.Requests.from_records([{**row, **blocks, "arrival_ms": 10.0 * k} for k in range(5)])
    ds = sweep.run(sweep.Workload.fixed(requests), sweep.Fleet.fixed([1.0]), policy=policy, seed=1, cache_blocks=4)
    sized = "block_tokens" in blocks
    assert ds.block_hit_rate.item() == 0.8
    for name in ("token_hit_rate", "replica_token_hit_rate"):
        np.testing.assert_array_equal(ds[name].values.ravel(), 4 * 25 / 500 if sized else math.nan)
    np.testing.assert_array_equal(ds.recomputed_prefill_tokens.values.ravel(), 0.0 if sized else math.nan)
    if blocks:
        found = statistics(requests)
        np.testing.assert_equal((found["block_reuse"], found["token_reuse"]), (0.8, 0.2 if sized else math.nan))


@given(chained_streams(), KINDS, st.sampled_from([None, MODEL]))
@settings(max_examples=10)
def test_tokens__of_unknown_sizes_equal_the_oracle(records, kind, model):
    records = [{name: value for name, value in record.items() if name != "block_tokens"} for record in records]
    assert_run_equals_oracle(records, [[1.0, 0.5]], [3.0], [2, math.inf], *kind, model)


@given(st.integers(0, 1000), st.sampled_from(STRATEGIES), st.sampled_from([0.0, 20.0]))
@settings(max_examples=20)
def test_cells__one_block_and_no_bound_is_the_one_key_cache(seed, policy, slack):
    work = sweep.Workload.poisson(
        requests=150, utilisation=0.9, replicas=3, sessions=9, prefixes=20, session_prefix="independent"
    )
    requests = work.realise(seed)
    records = [{**record, "blocks": [record["prefix_key"]]} for record in requests.to_records()]
    plain = sweep.compare(requests, 3, policy=policy, slack=slack)
    for blocks in (sweep.compare(records, 3, policy=policy, slack=slack),
                   sweep.compare(requests, 3, policy=policy, slack=slack, cache_blocks=math.inf)):  # fmt: skip
        assert (blocks[plain.columns] == plain).all(axis=None)
        assert blocks["block_hit_rate"].tolist() == plain["cache_hit_rate"].tolist()
    oracle = simulate_replica_routing(requests.to_records(), 3, policy, slack)
    assert [r["replica_id"] for r in oracle] == [
        r["replica_id"] for r in simulate_block_routing(records, 3, policy, slack)[0]
    ]


def test_cells__a_smaller_cache_of_prefixes_hits_less():
    work = sweep.Workload.poisson(requests=1000, utilisation=0.9, replicas=2, prefixes=50)
    fleet = sweep.Fleet.fixed([1.0, 1.0])
    ds = sweep.run(work, fleet, policy="queue_aware", seed=4, cache_blocks=[0, 5, 20, None])
    assert ds.cache_blocks.values.tolist() == [0.0, 5.0, 20.0, math.inf]
    hits = ds.cache_hit_rate.mean("seed").values.squeeze()
    assert hits[0] == 0.0 and (np.diff(hits) > 0.05).all()
    assert (ds.evictions.sel(cache_blocks=math.inf) == 0).all()


def test_cells__results_do_not_depend_on_workers_or_order():
    records = random_records(random.Random(5), 400)
    work = sweep.Workload.fixed(sweep.Requests.from_records(records))
    fleet = sweep.Fleet.one_slow(4, [0.0, 0.5])
    wanted = {"slack": [0.0, 9.0], "seed": 3, "cache_blocks": [4, 16, None], "eviction": "lfu"}
    one = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], workers=1, **wanted)
    two = sweep.run(work, fleet, policy=["locality_aware", "round_robin"], workers=3, **wanted)
    assert one.equals(two.sel(policy=one.policy, reason=one.reason))


def random_records(source, size):
    return [
        {"request_id": i, "arrival_ms": 2.0 * i, "service_ms": 5.0, "block_tokens": 8, "prompt_tokens": 32}
        | {"blocks": [100 * (k + 1) + source.randrange(6) for k in range(4)]}
        for i in range(size)
    ]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"cache_blocks": -1}, "cache_blocks must be a number >= 0, got -1"),
        ({"cache_blocks": 1.5}, "cache_blocks must be a whole number of blocks, got 1.5"),
        ({"cache_blocks": math.nan}, "cache_blocks must be a number >= 0"),
        ({"cache_blocks": "many"}, "cache_blocks must be a number >= 0, got 'many'"),
        ({"cache_blocks": []}, "cache_blocks is empty"),
        ({"cache_blocks": [5, 5]}, r"cache_blocks 5\.0 is given twice"),
        ({"eviction": "fifo"}, "Unknown eviction 'fifo'; choose from lru, lfu"),
        ({"cache_visible": "never"}, "Unknown cache_visible 'never'"),
        ({"cache_blocks": 5, "engine": "token_step"}, "'token_step' has no caches"),
    ],
)
def test_settings__bad_ones_get_one_sentence(settings_, message):
    work = sweep.Workload.poisson(requests=10, rate_per_s=1.0, prefixes=3)
    with pytest.raises(sweep.InputError, match=message):
        sweep.run(work, sweep.Fleet.fixed([1.0]), policy="round_robin", seed=1, **settings_)


def test_settings__those_of_caches_are_recorded_only_where_given():
    work = sweep.Workload.poisson(requests=10, rate_per_s=1.0, prefixes=3)
    fleet = sweep.Fleet.fixed([1.0])
    plain = sweep.run(work, fleet, policy="round_robin", seed=1)
    assert "cache" not in plain.attrs["settings"].replace("cache_hit_speedup", "")
    assert "block_hit_rate" not in plain and "cache_blocks" not in plain.dims
    one = sweep.run(work, fleet, policy="round_robin", seed=1, cache_blocks=7)
    assert '"cache_blocks": [7]' in one.attrs["settings"] and "cache_blocks" not in one.dims
    assert "block_hit_rate" in one
    assert len({ds.attrs["fingerprint"] for ds in (plain, one)}) == 2


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the shared traces are not on this machine")
def test_mooncake__published_hit_rates():
    work = sweep.Workload.fixed(sweep.traces.read(MOONCAKE))
    rates = {
        "lru": [0.0445, 0.2112, 0.3257, 0.3546, 0.3637, 0.3664],
        "lfu": [0.0481, 0.1318, 0.2759, 0.3438, 0.3631, 0.3664],
    }
    for eviction, expected in rates.items():
        ds = sweep.run(
            work,
            sweep.Fleet.fixed([1.0]),
            policy="round_robin",
            seed=1,
            cache_blocks=[1_000, 10_000, 30_000, 50_000, 100_000, None],
            eviction=eviction,
        )
        assert ds.block_hit_rate.values.squeeze().round(4).tolist() == expected
        assert ds.token_hit_rate.values.squeeze()[-1].round(4) == 0.3736
        assert ds.recomputed_prefill_tokens.values.squeeze()[-1] == 0
