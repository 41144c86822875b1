import copy

import numpy as np
import pytest

import sweep
from sweep import InputError, reference

RECORDS = [
    {"request_id": "b", "arrival_ms": 4.0, "service_ms": 10.0, "prefix_key": "p", "session_id": "s"},
    {"request_id": "a", "arrival_ms": 0.0, "service_ms": 10.0, "prefix_key": "p", "session_id": None},
    {"request_id": "c", "arrival_ms": 4.0, "service_ms": 1.0, "prefix_key": None, "session_id": "s"},
]


def test_compare__ranks_as_the_reference_does_and_changes_nothing():
    rng = np.random.default_rng(1)
    records = [
        {"request_id": i, "arrival_ms": float(t), "service_ms": float(s), "prefix_key": int(k), "session_id": int(k)}
        for i, (t, s, k) in enumerate(rng.uniform([0, 0, 0], [900, 20, 20], (200, 3)))
    ]
    before = copy.deepcopy(records)
    table = sweep.compare(records, 3, slack=8.0)
    expected = reference.compare_replica_strategies(records, 3, 8.0)
    assert records == before
    assert list(table.index) == [item["strategy"] for item in expected]
    for item in expected:
        for name in table.columns.intersection(list(item["metrics"])):
            assert table.loc[item["strategy"], name] == item["metrics"][name], name


def test_compare__ties_keep_catalogue_order():
    alone = sweep.compare(RECORDS, 1, policy=["locality_aware", "queue_aware", "round_robin"])
    assert list(alone.index) == ["round_robin", "queue_aware", "locality_aware"]


def test_compare__the_token_engine_ranks_its_own_policies():
    table = sweep.compare(sweep.Workload.dplb_burst().realise(42), speeds=[1.0, 0.3, 1.2], engine="token_step")
    assert list(table.index) == ["least_load", "round_robin"]
    assert table.loc["round_robin", "peak_load_variance"] == pytest.approx(784_385.33333)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either replicas"),
        ({"replicas": 2, "speeds": [1.0]}, "either replicas"),
        ({"replicas": 0}, "replicas must be a whole number >= 1, got 0"),
        ({"speeds": []}, "speed"),
        ({"speeds": [1.0, 0.0]}, "got 0.0"),
        ({"speeds": [1.0, float("inf")]}, "got inf"),
        ({"replicas": 2, "slack": -2.0}, "slack [ms] must be a number >= 0, got -2.0"),
        ({"replicas": 2, "policy": "queue_awar"}, "Did you mean 'queue_aware'?"),
    ],
)
def test_compare__bad_input_is_one_clear_sentence(arguments, said):
    with pytest.raises(InputError) as error:
        sweep.compare(RECORDS, **arguments)
    assert said in str(error.value)


@pytest.mark.parametrize("requests", ["trace.csv", 3, {"request_id": 1}])
def test_requests__something_else_is_refused(requests):
    with pytest.raises(InputError, match=r"requests must be a sweep\.Requests or a list of records"):
        sweep.compare(requests, 2)


def test_simulate__says_what_happened_to_every_request():
    ds = sweep.simulate(sweep.Requests.from_records(RECORDS), [1.0, 0.5], policy="locality_aware", slack=6.0)
    assert ds.request_id.values.tolist() == ["a", "b", "c"]
    assert ds.replica_id.values.tolist() == [0, 0, 1]
    assert ds.route_reason.values.tolist() == ["queue_fallback", "prefix_locality", "queue_fallback"]
    assert ds.cache_hit.values.tolist() == [False, True, False]
    assert ds.queue_wait_ms.values.tolist() == [0.0, 6.0, 0.0]
    assert ds.effective_service_ms.values.tolist() == [10.0, 7.0, 2.0]
    assert ds.finish_ms.values.tolist() == [10.0, 17.0, 6.0]


def test_simulate__token_engine_gives_the_load_of_every_step():
    # The herd: loads 5, 800 and 3, then four requests of 5 tokens.
    sizes = [5, 800, 3, 5, 5, 5, 5]
    stream = sweep.Requests.from_arrays([0.0] * 7, [0.0] * 7, prompt_tokens=sizes)
    ds = sweep.simulate(stream, [1.0, 1.0, 1.0], policy="least_load", engine="token_step", steps=2)
    assert ds.replica_id.values.tolist() == [0, 1, 2, 2, 0, 2, 0]
    assert ds["load"].values[0].tolist() == [15, 800, 13]
    assert ds.queue_wait_ms.values.tolist() == [0.0] * 7
