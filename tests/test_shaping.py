"""Streams made from a stream: what stays together, what gets new ids, and that resampling shifts no figures."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sweep
from sweep import shaping
from sweep.workload import Workload

MOONCAKE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"


def stream(sessions=(0, 1, 0, None), chains=((1, 2), (1, 3), (1, 2, 4), ())):
    return sweep.Requests.from_records(
        {"request_id": k, "arrival_ms": 1000.0 * k, "service_ms": 5.0, "session_id": s, "prefix_key": f"p{s}"}
        | {"blocks": list(chain), "block_tokens": 16, "prompt_tokens": 16 * len(chain)}
        for k, (s, chain) in enumerate(zip(sessions, chains, strict=True))
    )


def test_window__times_count_from_its_start():
    found = shaping.window(stream(), 1.0, 3.0)
    assert found.arrival_ms.tolist() == [0.0, 1000.0]
    assert found.request_id.tolist() == [1, 2]
    assert found.blocks.ids.tolist() == [0, 1, 0, 2, 3]
    assert found.session.tolist() == [1, 0] and found.session_labels == (0, 1)
    assert found.attrs["notes"] == ["Only what arrives from 1 to 3 s."]
    for bounds in ((3.0, 1.0), (-1.0, 2.0), (50.0, 60.0)):
        with pytest.raises(sweep.InputError):
            shaping.window(stream(), *bounds)


def test_shapes__adapters_go_with_their_requests():
    work = sweep.Workload.poisson(requests=60, rate_per_s=10.0, sessions=12, adapters=3).realise(2)
    names = {key: work.adapter_labels[number] for key, number in zip(work.request_id, work.adapter, strict=True)}
    unit = shaping.units(work)
    for found in (
        shaping.window(work, 1.0, 4.0),
        shaping.sample_sessions(work, 0.5),
        shaping.repeated(work, 2),
        shaping.resampled(work, unit, 7),
    ):
        assert len(found.adapter) == len(found) > 0
        assert [found.adapter_labels[number] for number in found.adapter] == [names[key] for key in found.request_id]
    none = sweep.Requests.from_arrays([0.0, 5000.0], [1.0, 1.0], adapter=["a", None])
    assert shaping.window(none, 4.0, 9.0).adapter is None


def test_rate_scaled__only_arrivals_change():
    found = shaping.rate_scaled(stream(), 2.0)
    assert found.arrival_ms.tolist() == [0.0, 500.0, 1000.0, 1500.0]
    assert found.service_ms.tolist() == stream().service_ms.tolist()
    assert found.offered_load(1) == 2 * stream().offered_load(1)


def test_sample_sessions__whole_ones_by_a_seed():
    work = sweep.Workload.poisson(requests=400, rate_per_s=10.0, sessions=40).realise(0)
    found = shaping.sample_sessions(work, 0.25, seed=3)
    left = {work.session_labels[k] for k in work.session}
    kept = {found.session_labels[k] for k in found.session}
    assert len(kept) == round(0.25 * len(left))
    for label in kept:
        assert (work.session == label).sum() == (found.session == found.session_labels.index(label)).sum()
    assert found.fingerprint() == shaping.sample_sessions(work, 0.25, seed=3).fingerprint()
    assert found.fingerprint() != shaping.sample_sessions(work, 0.25, seed=4).fingerprint()


def test_repeated__private_ids_are_new_and_shared_ones_stay():
    found = shaping.repeated(stream(), 2)
    assert found.arrival_ms.tolist() == [1000.0 * k for k in range(8)]
    assert found.blocks.ids.tolist() == [0, 1, 0, 2, 0, 1, 3, 0, 4, 0, 5, 0, 4, 6]
    assert found.session.tolist() == [0, 1, 0, -1, 2, 3, 2, -1]
    assert found.session_labels == (0, 1, "0 (copy 2)", "1 (copy 2)")
    assert found.blocks.reach.tolist() == [16, 32, 32, 48, 32, 32, 48]


def test_units__families_share_more_than_the_common_blocks():
    chains = [(0, *([] if k % 10 == 9 else [100 + k % 3, 200 + k])) for k in range(40)]
    unit = shaping.units(stream([None] * 40, chains), "families")
    # Three families, and each request with nothing but the common block stands alone.
    assert len(set(unit[[k for k in range(40) if k % 10 != 9]].tolist())) == 3
    assert len(set(unit.tolist())) == 3 + 4


def test_units__errors():
    plain = sweep.Workload.poisson(requests=10, rate_per_s=1.0).realise(0)
    for by, message in (
        ("auto", "neither sessions nor blocks or prefixes"),
        ("sessions", "no sessions"),
        ("families", "no blocks or prefixes, and so no families"),
        ("weeks", "Unknown unit"),
    ):
        with pytest.raises(sweep.InputError, match=message):
            Workload.resampled(plain, by)
    with pytest.raises(sweep.InputError, match=r"must be a sweep\.Requests"):
        Workload.resampled("trace.csv")


@given(st.integers(0, 10_000))
def test_resampled__units_stay_whole_at_their_own_times(seed):
    source = sweep.Workload.poisson(requests=60, rate_per_s=10.0, sessions=12, prefixes=5).realise(1)
    work = Workload.resampled(source)
    found = work.realise(seed)
    assert found.fingerprint() == work.realise(seed).fingerprint()
    assert (np.diff(found.arrival_ms) >= 0).all()
    times = {k: source.arrival_ms[source.session == k].tolist() for k in set(source.session.tolist())}
    originals = 0
    for session in range(found.session_count):
        label = str(found.session_labels[session])
        at = found.arrival_ms[found.session == session].tolist()
        assert at == times[int(label.partition(" ")[0])]
        originals += 1
    assert originals == len(times)  # as many units as the stream has, copies counted
    assert set(found.request_id.tolist()) <= set(source.request_id.tolist())


def reused(blocks):
    """Return the share of blocks that came before, None for none."""
    known = set()
    found = []
    for one in blocks.ids.tolist():
        found.append(one in known)
        known.add(one)
    return sum(found) / len(found) if found else None


def test_resampling__says_families_of_prefixes():
    rows = [{"arrival_ms": 1.0 * k, "service_ms": 1.0, "prefix_key": p} for k, p in enumerate("aabbb")]
    said = shaping.resampling(sweep.Requests.from_records(rows), "auto")
    assert said.startswith("Each seed draws 2 prefix families of the trace")
    assert "hit rate is 0.6000 of blocks; its mean over" in said
    alone = sweep.Requests.from_arrays([0.0, 1.0], [1.0, 1.0], session=[1, 2])
    assert shaping.resampling(alone, "auto").endswith("ids of their own.")


def hit_rate(keys):
    """Return the share of keys that came before."""
    return 1 - len(set(keys)) / len(keys)


def test_resampled__prefixes_alone_are_families_and_copies_have_their_own():
    """300 prefixes of 1 to 8 requests each, and a common one that every fifth request has."""
    keys = [f"p{k}" for k in range(300) for _ in range(1 + k % 8)]
    keys = [key if k % 5 else "common" for k, key in enumerate(keys)]
    rows = [{"arrival_ms": 10.0 * (7 * k % len(keys)), "service_ms": 1.0, "prefix_key": p} for k, p in enumerate(keys)]
    requests = sweep.Requests.from_records(rows)
    alone = keys.count("common")
    assert shaping.units(requests).max() + 1 == len(set(keys)) - 1 + alone
    assert shaping.units(requests, "families").tolist() == shaping.units(requests).tolist()
    work = Workload.resampled(requests)
    rates = [hit_rate(work.realise(seed).prefix.tolist()) for seed in range(60)]
    error = np.std(rates, ddof=1) / len(rates) ** 0.5
    assert abs(np.mean(rates) - hit_rate(keys)) < 3 * error
    drawn = work.realise(0)
    assert sum(str(label).startswith("common") for label in drawn.prefix_labels) == 1
    assert any("(copy 2)" in str(label) for label in drawn.prefix_labels)


def test_resampled__workload_is_stored_and_says_so():
    work = Workload.resampled(stream(), "sessions")
    assert Workload.from_dict(work.to_dict()) == work
    assert work.fingerprint() != Workload.fixed(stream()).fingerprint()
    ds = sweep.run(work, sweep.Fleet.fixed([1.0, 1.0]), policy="locality_aware", seed=3)
    said = ds.attrs["resampling"]
    assert said.startswith("Each seed draws 3 sessions of the trace with replacement")
    # Of the blocks (1, 2), (1, 3) and (1, 2, 4), three of seven came before.
    rates = [found for seed in range(8) if (found := reused(work.realise(seed).blocks)) is not None]
    mean = f"{np.mean(rates):.4f} ± {np.std(rates, ddof=1) / len(rates) ** 0.5:.4f}"
    assert f"hit rate is {3 / 7:.4f} of blocks and {3 / 7:.4f} of prompt tokens" in said
    assert said.endswith(f"; its mean over the seeds 0 to 7 is {mean} and {mean} (standard error).")
    assert "block_hit_rate" in ds
    assert repr(work).startswith("Workload.resampled(requests=Requests(4 requests")


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the shared traces are not on this machine")
def test_resampled__mean_hit_rate_is_that_of_the_trace():
    requests = sweep.traces.read(MOONCAKE)
    assert shaping.units(requests).max() + 1 == 7_373
    work = Workload.resampled(requests)
    rates = []
    for seed in range(48):
        blocks = work.realise(seed).blocks
        rates.append(blocks.seen_before().sum() / len(blocks.ids))
    error = np.std(rates, ddof=1) / len(rates) ** 0.5
    assert 0.001 < error < 0.003
    assert abs(np.mean(rates) - 0.3664) < 3 * error
