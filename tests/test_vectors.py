"""Choices of shipped routers, worked out from their rules by hand, as configurations of ours.

What is not here is no configuration of these rules: vLLM 2026 with its KV penalty (waiting times a function of KV use,
and the larger of two counts), the weighted and normalised scores of llm-d, AIBrix and production-stack, the logits and
the softmax of Dynamo, and the seconds of smg least_load (queued tokens over throughput plus a share of KV).
"""

import numpy as np
import pytest

import sweep

ENGINES = ("timeline", "token_step")


def replay(policy, tokens, engine, replicas=4, **columns):
    """Return where requests of so many tokens go that all arrive at one time."""
    count = len(tokens)
    requests = sweep.Requests.from_arrays([1.0] * count, [1.0] * count, prompt_tokens=tokens, **columns)
    return sweep.simulate(requests, [1.0] * replicas, policy=policy, engine=engine).replica_id.values.tolist()


def sent(policy, speeds, count, gap_ms=0.0, **columns):
    """Return where each of `count` requests of 1 ms goes, in order."""
    arrivals = [gap_ms * i for i in range(count)]
    requests = sweep.Requests.from_arrays(arrivals, [1.0] * count, **columns)
    return sweep.simulate(requests, speeds, policy=policy).replica_id.values.tolist()


@pytest.mark.parametrize(
    ("weights", "expected"), [((5, 1, 1), [0, 0, 1, 0, 2, 0, 0]), ((4, 2, 1), [0, 1, 0, 2, 0, 1, 0])]
)
def test_weighted_round_robin__nginx_vectors(weights, expected):
    policy = sweep.Policy("weighted_round_robin", weights=weights)
    assert sent(policy, [1.0, 1.0, 1.0], 7) == expected
    assert sent("weighted_round_robin", [float(weight) for weight in weights], 7) == expected


def test_bounded_hash__load_is_held_against_the_bound_without_the_newcomer():
    """N = 4, total 15, c = 1.25: the bound is 5.0; a load of 4 or 5 passes, one of 6 does not."""
    from sweep.kernels.rules import walk_ring

    ring, up = np.array([2, 3, 0, 1]), np.ones(4, np.bool_)
    for load, passes in ((4.0, True), (5.0, True), (6.0, False)):
        loads = np.array([5.0, 5.0, load, 15.0 - 10.0 - load])
        chosen, owner = walk_ring(ring, 0, loads, up, 1.25)
        assert (chosen == owner == 2) is passes


def test_vllm_classic__empty_engines_in_turn():
    """n = 4, empty, one client that adds what it sends and hears nothing: 0 1 2 3 0 1."""
    policy = "least_load(signal=requests, freshness_ms=1000, correction=own)"
    requests = sweep.Requests.from_arrays([1.0] * 6, [1.0] * 6)
    found = sweep.simulate(requests, [1.0] * 4, policy=policy).replica_id.values.tolist()
    assert found == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("engine", ENGINES)
def test_vllm_classic__two_clients_on_engines_that_are_busy(engine):
    """W = 0,0,1,0, R = 9,5,0,7, client_count = 2: 2 1 3 0 2.

    The score is 4 W + R, and a client adds client_count to W for each request that it sends. Our routers add what they
    send once, so the score is written in tokens: the engines hold 9, 5, 4 and 7, each request brings 4 * 2.
    """
    policy = "least_load(signal=tokens, freshness_ms=1000, correction=own)"
    found = replay(policy, [9, 5, 4, 7] + [8] * 5, engine)
    assert found == [0, 1, 2, 3, 2, 1, 3, 0, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_vllm_2026__client_1_of_2_starts_its_scan_at_2(engine):
    """n = 4, empty: client 1 sends to 2 3 0 1 2, client 0 to 0 1 2 3 0."""
    policy = "least_load(signal=requests, freshness_ms=1000, correction=own, tie=rotate, routers=2)"
    found = replay(policy, [1] * 10, engine)
    assert found[1::2] == [2, 3, 0, 1, 2]
    assert found[0::2] == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("threshold", "relative", "expected"), [(64, 1.5, "TFTFT"), (32, 1.1, "TTTTT")])
def test_smg_cache_aware__the_gate_between_two_workers(engine, threshold, relative, expected):
    """Loads 10/75, 10/74, 130/200, 0/64 and 0/65: whether the session leaves the busier one.

    Of two workers the busier one is the session's, so the gate of the pool is that of the request.
    """
    policy = f"soft_sticky(signal=tokens, threshold={threshold}, relative={relative})"
    moves = ""
    for low, high in ((10, 75), (10, 74), (130, 200), (0, 64), (0, 65)):
        tokens, session = ([high, low, 1], ["s", None, "s"]) if low else ([high, 1], ["s", "s"])
        found = replay(policy, tokens, engine, 2, session=session)
        moves += "T" if found[-1] == 1 else "F"
    assert moves == expected
