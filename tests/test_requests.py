"""Requests: checked, sorted, interned, and exact through records, dicts and JSON."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.errors import InputError
from sweep.requests import Requests, ServiceModel

times = st.integers(0, 8).map(float) | st.floats(0.0, 1e15)
keys = st.none() | st.text(max_size=3) | st.integers(-3, 3)
tokens = st.integers(0, 2**53)


@st.composite
def record_lists(draw, max_size=12):
    ids = draw(st.sampled_from([st.integers(-(2**63) + 1, 2**63 - 1), st.text(max_size=4)]))
    with_tokens = draw(st.booleans())
    records = []
    for _ in range(draw(st.integers(0, max_size))):
        record = {
            "request_id": draw(ids),
            "arrival_ms": draw(times),
            "service_ms": draw(times),
            "prefix_key": draw(keys),
            "session_id": draw(keys),
        }
        if with_tokens:
            record |= {"prompt_tokens": draw(tokens), "output_tokens": draw(tokens)}
        records.append(record)
    if with_tokens and records:
        records[0]["prompt_tokens"] = 1  # sizes that are all zero are unknown, and not written
    return records


def same(left: Requests, right: Requests) -> bool:
    arrays = ("arrival_ms", "service_ms", "prompt_tokens", "output_tokens", "prefix", "session", "request_id")
    return all(
        getattr(left, name).dtype == getattr(right, name).dtype
        and getattr(left, name).tolist() == getattr(right, name).tolist()
        for name in arrays
    ) and (left.prefix_labels, left.session_labels, left.steps, left.attrs) == (
        right.prefix_labels,
        right.session_labels,
        right.steps,
        right.attrs,
    )


@given(record_lists())
def test_records__round_trip_exact_and_sorted(records):
    before = [dict(record) for record in records]
    out = Requests.from_records(records).to_records()
    assert out == sorted(before, key=lambda record: (record["arrival_ms"], record["request_id"]))
    assert records == before


@given(record_lists())
def test_records__round_trip_of_requests(records):
    requests = Requests.from_records(records)
    again = Requests.from_records(requests.to_records())
    assert same(requests, again)
    assert requests.fingerprint() == again.fingerprint()


@given(record_lists(), st.none() | st.integers(0, 100))
def test_dict__round_trip_exact_through_json(records, steps):
    requests = Requests.from_records(records)
    requests = Requests(**{**vars(requests), "steps": steps, "attrs": {"rows": 3}})
    again = Requests.from_dict(json.loads(json.dumps(requests.to_dict())))
    assert same(requests, again)
    assert requests.fingerprint() == again.fingerprint()


@given(record_lists())
def test_ids__dense_in_order_of_first_appearance(records):
    requests = Requests.from_records(records)
    for ids, labels in (
        (requests.prefix, requests.prefix_labels),
        (requests.session, requests.session_labels),
    ):
        assert list(dict.fromkeys(ids[ids >= 0].tolist())) == list(range(len(labels)))
    assert (requests.prefix_count, requests.session_count) == (
        len(requests.prefix_labels),
        len(requests.session_labels),
    )


def test_records__ties_follow_request_id():
    rows = [{"request_id": name, "arrival_ms": 1, "service_ms": 2} for name in ("b", "a", "c")]
    assert Requests.from_records(rows).request_id.tolist() == ["a", "b", "c"]
    rows = [{"request_id": number, "arrival_ms": 1, "service_ms": 2} for number in (10, 9)]
    assert Requests.from_records(rows).request_id.tolist() == [9, 10]


def test_records__minus_one_and_empty_text_are_keys_like_others():
    rows = [{"arrival_ms": 0, "service_ms": 1, "prefix_key": -1, "session_id": ""}]
    requests = Requests.from_records(rows)
    assert (requests.prefix.tolist(), requests.prefix_labels, requests.session_labels) == ([0], (-1,), ("",))


def test_records__number_and_text_are_different_keys():
    rows = [{"arrival_ms": i, "service_ms": 1, "prefix_key": key} for i, key in enumerate([1, "1", np.int64(1)])]
    assert Requests.from_records(rows).prefix.tolist() == [0, 1, 0]


def test_arrays__ties_keep_their_order_and_keys_follow_arrival():
    requests = Requests.from_arrays(
        [2.0, 1.0, 2.0, 1.0],
        [1.0, 2.0, 3.0, 4.0],
        prefix=np.array([7, 5, 7, -1]),
        session=["x", None, "y", "y"],
        prompt_tokens=[1, 2, 3, 4],
        output_tokens=[0, 0, 1, 0],
        request_id=["p", "q", "r", "s"],
    )
    assert requests.service_ms.tolist() == [2.0, 4.0, 1.0, 3.0]
    assert requests.request_id.tolist() == ["q", "s", "p", "r"]
    assert (requests.prefix.tolist(), requests.prefix_labels) == ([0, -1, 1, 1], (5, 7))
    assert (requests.session.tolist(), requests.session_labels) == ([-1, 0, 1, 0], ("y", "x"))
    assert requests.tokens.tolist() == [2, 4, 1, 4]
    assert len(requests) == 4


def test_arrays__defaults():
    requests = Requests.from_arrays([5], [6])
    assert requests.prefix.tolist() == requests.session.tolist() == [-1]
    assert requests.tokens.tolist() == requests.request_id.tolist() == [0]
    assert requests.arrival_ms.dtype == np.float64 and requests.prefix.dtype == np.int64
    assert requests.steps is None and requests.attrs == {}


def test_arrays__minus_zero_becomes_zero():
    requests = Requests.from_arrays([-0.0], [-0.0])
    assert math.copysign(1.0, requests.arrival_ms[0]) == math.copysign(1.0, requests.service_ms[0]) == 1.0


def test_arrays__are_copies_and_read_only():
    arrival = np.array([0.0, 1.0])
    requests = Requests.from_arrays(arrival, arrival)
    arrival[0] = 9.0
    assert requests.arrival_ms.tolist() == [0.0, 1.0]
    for copy in (requests, pickle.loads(pickle.dumps(requests)), Requests.from_dict(requests.to_dict())):
        for name in ("arrival_ms", "service_ms", "prompt_tokens", "output_tokens", "prefix", "session", "request_id"):
            assert not getattr(copy, name).flags.writeable


def test_empty__is_a_stream():
    requests = Requests.from_records([])
    assert len(requests) == 0 and requests.to_records() == []
    assert math.isnan(requests.offered_load(4))
    assert repr(requests) == "Requests(0 requests over 0.0 ms, 0 prefixes, 0 sessions)"


def test_offered_load__work_per_capacity():
    requests = Requests.from_arrays([0.0, 4.0, 10.0], [8.0, 8.0, 4.0])
    assert requests.offered_load(4) == 0.5
    assert math.isnan(Requests.from_arrays([3.0, 3.0], [1.0, 1.0]).offered_load(1))
    with pytest.raises(InputError, match="replicas must be a finite number > 0, got 0"):
        requests.offered_load(0)


def test_fingerprint__changes_with_what_decides_results_only():
    base = {
        "arrival_ms": [0.0, 1.0],
        "service_ms": [1.0, 1.0],
        "prompt_tokens": [1, 1],
        "output_tokens": [1, 1],
        "prefix": ["a", "a"],
        "session": ["s", "s"],
        "steps": 5,
    }
    changes = {
        "arrival_ms": [0.0, 2.0],
        "service_ms": [1.0, 2.0],
        "prompt_tokens": [1, 2],
        "output_tokens": [2, 1],
        "prefix": ["a", "b"],
        "session": ["s", None],
        "steps": 6,
    }
    prints = {Requests.from_arrays(**{**base, name: value}).fingerprint() for name, value in changes.items()}
    prints.add(Requests.from_arrays(**base).fingerprint())
    assert len(prints) == len(changes) + 1
    relabelled = {**base, "prefix": ["z", "z"], "request_id": ["p", "q"], "attrs": {"source": "x"}}
    assert Requests.from_arrays(**relabelled).fingerprint() in prints


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"arrival_ms": [0.0, math.nan]},
            "row 1: arrival_ms must be a finite number of ms from 0 to 1e15, got nan.",
        ),
        ({"arrival_ms": [math.inf, 0.0]}, "row 0: arrival_ms must be .* got inf"),
        ({"service_ms": [0.0, -1.0]}, "row 1: service_ms must be .* got -1.0"),
        ({"service_ms": [0.0, "5"]}, "row 1: service_ms must be .* got '5'"),
        ({"service_ms": [None, 1]}, "row 0: service_ms must be .* got None"),
        ({"service_ms": np.array([True, False])}, "row 0: service_ms must be .* got True"),
        ({"arrival_ms": [10**400, 1]}, "row 0: arrival_ms must be .* got 1000"),
        ({"arrival_ms": [1.7e18, 1]}, "row 0: arrival_ms must be .* to 1e15, got 1.7e[+]18"),
        ({"arrival_ms": [[0.0], [1.0]]}, "arrival_ms must be a one-dimensional list or array"),
        ({"arrival_ms": 3.0}, "arrival_ms must be a one-dimensional list or array, got 3.0"),
        ({"service_ms": [1.0]}, "arrival_ms has 2 rows but service_ms has 1; lengths must agree."),
        ({"prompt_tokens": [1, 1.5]}, "row 1: prompt_tokens must be a whole number from 0 to 2[*][*]53, got 1.5"),
        ({"output_tokens": [-1, 1]}, "row 0: output_tokens must be a whole number .* got -1"),
        ({"prefix": np.array([0, -2])}, "row 1: prefix must be a whole number >= -1"),
        ({"session": ["a", 1.5]}, "row 1: session must be a string, a whole number or None .* got 1.5"),
        ({"session": [math.nan, "b"]}, "row 0: session must be .* got nan"),
        ({"request_id": ["a", 1]}, "row 1: request_id must be all strings or all whole numbers, got 1 after 'a'"),
        ({"request_id": [2**70, 1]}, "row 0: request_id must be a string or a whole number of 64 bits"),
        ({"request_id": ["a", None]}, "row 1: request_id must be .* got None"),
        ({"steps": -1}, "steps must be a whole number >= 0, got -1"),
    ],
)
def test_arrays__bad_input_names_the_row(columns, message):
    with pytest.raises(InputError, match=message):
        Requests.from_arrays(**{"arrival_ms": [0.0, 1.0], "service_ms": [1.0, 1.0], **columns})


GOOD = {"request_id": "a", "arrival_ms": 0.0, "service_ms": 1.0}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([GOOD, {"request_id": "b", "service_ms": 1.0}], "record 1: arrival_ms is missing"),
        ([{"request_id": "b", "arrival_ms": 1.0}], "record 0: service_ms is missing"),
        ([{**GOOD, "prefx_key": "x"}], "record 0: Unknown field 'prefx_key'; .* Did you mean 'prefix_key'"),
        ([GOOD, {"arrival_ms": 1.0, "service_ms": 1.0}], "record 1: request_id is missing"),
        ([GOOD, {**GOOD, "request_id": 3}], "record 1: request_id must be all strings or all whole numbers"),
        ([GOOD, {**GOOD, "arrival_ms": -2}], "record 1: arrival_ms must be .* got -2"),
        ([{**GOOD, "session_id": ("a",)}], "record 0: session_id must be a string, a whole number or None"),
        ([{**GOOD, "prefix_key": True}], "record 0: prefix_key must be .* got True"),
        ([GOOD, "nonsense"], "record 1: must be a dict, got 'nonsense'"),
        (GOOD, "records must be a list of dicts, got dict"),
        (5, "records must be a list of dicts, got int"),
    ],
)
def test_records__bad_input_names_the_record(records, message):
    with pytest.raises(InputError, match=message):
        Requests.from_records(records)


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers())


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["request_id", "arrival_ms", "service_ms", "prefix_key", "x"]), anything)
        | st.fixed_dictionaries({"arrival_ms": anything, "service_ms": anything}, optional={"prefix_key": anything})
    )
)
def test_records__fuzz_gives_a_stream_or_an_input_error(records):
    try:
        requests = Requests.from_records(records)
    except InputError:
        return
    assert len(requests) == len(records)
    assert (np.diff(requests.arrival_ms) >= 0).all()
    assert np.isfinite(requests.service_ms).all()


@given(st.dictionaries(st.text(max_size=3) | st.just("prefix"), anything))
def test_dict__other_content_is_an_input_error(content):
    stored = Requests.from_arrays([0.0, 1.0], [1.0, 1.0], session=["a", "b"]).to_dict()
    for bad in (content, {**stored, "arrival_ms": "AAAA"}, {**stored, "session_labels": 1}):
        with pytest.raises(InputError, match="not a stored request stream"):
            Requests.from_dict(bad)


def test_service_model__rule_and_bad_values():
    assert ServiceModel().service_ms([10, 0], [1, 3]).tolist() == [3.0, 6.0]
    assert ServiceModel(1, 0, 0).service_ms(7, 7) == 1.0
    for bad in (-1.0, math.nan, math.inf, "1", True):
        with pytest.raises(InputError, match="decode_ms_per_token must be a finite number >= 0"):
            ServiceModel(decode_ms_per_token=bad)
