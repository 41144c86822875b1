"""Chains of blocks: ids of a block and all before it, whatever keys they come from."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.chains import Blocks
from sweep.errors import InputError
from sweep.requests import Requests, ServiceModel

CHAINS = st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=12)


def flat(chains):
    offsets = np.concatenate(([0], np.cumsum([len(chain) for chain in chains])))
    return [key for chain in chains for key in chain], offsets


@given(CHAINS)
def test_of__an_id_stands_for_a_block_and_all_before_it(chains):
    keys, offsets = flat(chains)
    blocks = Blocks.of(keys, offsets, [1 + key for key in keys])
    paths = [tuple(chain[: k + 1]) for chain in chains for k in range(len(chain))]
    numbers = {}
    assert blocks.ids.tolist() == [numbers.setdefault(path, len(numbers)) for path in paths]
    assert blocks.reach.tolist() == [sum(1 + key for key in path) for path in numbers]
    assert blocks.tokens.tolist() == [1 + key for key in keys]


@given(CHAINS, st.data())
def test_take__is_the_chains_of_those_rows(chains, data):
    rows = data.draw(st.lists(st.integers(0, len(chains) - 1), max_size=10))
    taken = Blocks.of(*flat(chains), 3).take(np.array(rows, np.intp))
    expected = Blocks.of(*flat([chains[row] for row in rows]), 3)
    for name in ("ids", "offsets", "reach"):
        assert getattr(taken, name).tolist() == getattr(expected, name).tolist()


@given(CHAINS)
def test_seen_before__counts_the_longest_known_start(chains):
    known, expected = set(), []
    for chain in chains:
        paths = [tuple(chain[: k + 1]) for k in range(len(chain))]
        expected.append(sum(path in known for path in paths))
        known.update(paths)
    assert Blocks.of(*flat(chains), 16).seen_before().tolist() == expected


def test_tokens_of__at_most_the_prompt():
    blocks = Blocks.of([1, 2, 1, 3, 1], [0, 2, 4, 4, 5], 512)
    found = blocks.tokens_of(np.array([0, 1, 0, 1]), np.array([1000, 1000, 10, 100]))
    assert found.tolist() == [0, 512, 0, 100]


def test_of__one_block_of_two_sizes_is_refused():
    with pytest.raises(InputError, match="request 1: a block has 9 tokens, but 5 where it occurs first"):
        Blocks.of([1, 2, 1], [0, 2, 3], [5, 5, 9])


RECORDS = [
    {"request_id": 0, "arrival_ms": 1.0, "service_ms": 2.0, "blocks": ["a", "b"], "block_tokens": 16},
    {"request_id": 1, "arrival_ms": 0.0, "service_ms": 2.0, "blocks": ["a", 7], "block_tokens": [16, 3]},
    {"request_id": 2, "arrival_ms": 2.0, "service_ms": 2.0},
]


def test_records__blocks_follow_their_requests_and_come_back():
    requests = Requests.from_records(RECORDS)
    assert requests.blocks.ids.tolist() == [0, 1, 0, 2]
    assert requests.blocks.lengths.tolist() == [2, 2, 0]
    assert "3 blocks" in repr(requests)
    again = Requests.from_records(requests.to_records())
    assert again.fingerprint() == requests.fingerprint()
    assert again.to_records()[0]["block_tokens"] == [16, 3]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"blocks": "ab"}, "record 1: blocks must be a list of keys, got 'ab'"),
        ({"blocks": [1.5]}, "record 1: blocks must be a string, a whole number"),
        ({"blocks": [None]}, "record 1: blocks must hold keys, got None"),
        ({"blocks": [1], "block_tokens": [1, 2]}, "record 1: 1 blocks have 2 block_tokens"),
        ({"blocks": [1], "block_tokens": -1}, "record 1: block_tokens must be a whole number"),
    ],
)
def test_records__bad_blocks_name_their_record(field, message):
    with pytest.raises(InputError, match=message):
        Requests.from_records([RECORDS[0], {"request_id": 5, "arrival_ms": 1.0, "service_ms": 2.0} | field])


def test_stored__blocks_and_service_model_come_back():
    from dataclasses import replace

    requests = replace(Requests.from_records(RECORDS), service_model=ServiceModel(base_ms=1.5))
    for again in (Requests.from_dict(requests.to_dict()), pickle.loads(pickle.dumps(requests))):
        assert again.fingerprint() == requests.fingerprint()
        assert again.service_model == requests.service_model
        assert not again.blocks.ids.flags.writeable
    assert replace(requests, service_model=None).fingerprint() != requests.fingerprint()


@pytest.mark.parametrize("name", ["ids", "offsets", "reach"])
def test_stored__blocks_that_do_not_fit_are_refused(name):
    content = Requests.from_records(RECORDS).to_dict()
    content["blocks"][name] = Requests.from_records(RECORDS[:1]).to_dict()["blocks"]["ids"]
    with pytest.raises(InputError, match="not a stored request stream"):
        Requests.from_dict(content)


def test_fingerprint__of_a_stream_without_blocks_is_what_it_was():
    requests = Requests.from_records([{"arrival_ms": 1.0, "service_ms": 2.0, "prefix_key": "a"}])
    assert requests.fingerprint() == "9eb4be40d3f8af009e63b3ae0fd7e539c263143e7f6fba7e3ffeee957552ff1a"
