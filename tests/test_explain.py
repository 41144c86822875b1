"""The sentences of a replay agree with what the rule must have seen."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sweep
from sweep import plots
from sweep.explain import explain_requests

FLEET = sweep.Fleet.one_slow(3, 0.5)
WORK = sweep.Workload.poisson(requests=150, utilisation=0.9, replicas=3, sessions=12, prefixes=5)


@pytest.mark.parametrize("slack", [0.0, 2.0, 15.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_locality_aware__the_waits_named_lead_to_the_choice(slack: float, seed: int) -> None:
    requests = WORK.realise(seed)
    ds = sweep.simulate(requests, FLEET.speeds[0], policy="locality_aware", slack=slack, seed=seed)
    sentences = explain_requests(ds, requests, slack, len(requests))
    assert len(sentences) == len(requests)
    for i, sentence in enumerate(sentences):
        replica, wait = int(ds.replica_id[i]), float(ds.queue_wait_ms[i])
        here = f"{replica} at {wait:.2f} <="
        match str(ds.route_reason[i].values):
            case "sticky_session":
                assert sentence.startswith(f"owner {here}")
            case "prefix_locality":
                assert f"holder {here}" in sentence
                assert "owner" not in sentence or re.match(r"owner \d at [\d.]+ > ", sentence)
            case _:
                assert sentence.endswith(f"shortest wait {wait:.2f}")
                assert "<=" not in sentence
        for limit in re.findall(r"[<>]=? ([\d.]+)", sentence):
            assert float(limit) >= slack


def test_other_policies__what_decides_is_named() -> None:
    requests = WORK.realise(3)
    ds = sweep.simulate(requests, FLEET.speeds[0], policy="round_robin")
    assert explain_requests(ds, requests, 5.0, 4) == [f"its turn: {i} mod 3" for i in range(4)]
    ds = sweep.simulate(requests, FLEET.speeds[0], policy="queue_aware")
    expected = [f"shortest wait {wait:.2f}" for wait in ds.queue_wait_ms.values]
    assert explain_requests(ds, requests, 5.0, 10_000) == expected


@pytest.mark.parametrize(
    "policy",
    ["round_robin(routers=2)", "queue_aware(freshness_ms=100)", "locality_aware(freshness_ms=100)", "sticky_session"],
)
def test_other_rules_and_axes__the_waits_alone(policy: str) -> None:
    """What a router of these saw does not follow from the finish times, and is not made up."""
    requests = WORK.realise(3)
    ds = sweep.simulate(requests, FLEET.speeds[0], policy=policy)
    for sentence, wait in zip(explain_requests(ds, requests, 5.0, 150), ds.queue_wait_ms.values, strict=True):
        assert re.fullmatch(rf"waits {wait:.2f}, shortest [\d.]+", sentence)


def test_own_rule__the_waits_alone() -> None:
    requests = sweep.Requests.from_arrays([0.0, 1.0, 1.0], [10.0, 10.0, 10.0])
    ds = sweep.simulate(requests, [1.0, 1.0], policy="round_robin")
    ds.attrs["policy"] = "mine"
    assert explain_requests(ds, requests, 5.0, 3) == [
        "waits 0.00, shortest 0.00",
        "waits 0.00, shortest 0.00",
        "waits 9.00, shortest 9.00",
    ]


def test_events__a_request_that_was_lost_is_said_to_be() -> None:
    requests = sweep.Requests.from_arrays([0.0, 1.0, 50.0], [10.0, 10.0, 10.0])
    fleet = sweep.Fleet.fixed([1.0]).with_events([sweep.Down(0, 0.5, 20.0)], retries=0, heartbeat_ms=1.0)
    ds = sweep.simulate(requests, fleet, policy="queue_aware")
    assert explain_requests(ds, requests, 5.0, 3) == ["lost, sent once"] * 2 + ["sent once"]
    assert np.isnan(ds.effective_service_ms.values[:2]).all()
    assert "Not drawn: 2 that were lost." in " ".join(text.get_text() for text in plots.timeline(ds).texts)
    with pytest.raises(sweep.InputError, match="Every request was lost"):
        plots.timeline(ds.isel(request=slice(2)))
