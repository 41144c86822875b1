"""The commands that simulate: arguments become objects, results become tables and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from command_line import SMALL, TRACE, Call

import sweep

# --- compare --------------------------------------------------------------------------------------------


def test_compare__ranks_as_the_function_does(call: Call, trace: Path) -> None:
    status, out, err = call("compare", trace, "--replicas", 4, "--slack", 4)
    assert (status, err) == (0, "")
    frame = sweep.compare(sweep.Requests.from_csv(trace), 4, slack=4.0)
    lines = out.splitlines()
    assert lines[0] == "40 requests, 4 replicas of speed 1, 1, 1, 1. Offered load: 0.67 of the capacity."
    ruler = next(i for i, line in enumerate(lines) if line.startswith("---"))
    assert [line.split()[0] for line in lines[ruler + 1 :]] == list(frame.index)
    assert "P95 queue" in out and "requests/s" in out


def test_compare__warns_of_overload_even_when_quiet(call: Call, trace: Path) -> None:
    status, out, err = call("compare", trace, "--speeds", "1,0.5", "-q")
    assert status == 0
    assert err.startswith("Warning: at an offered load of 1.79 ") and err.count("\n") == 1
    assert "Offered load" not in out
    assert call("compare", trace, "--replicas", 8)[2] == ""


def test_compare__service_model_and_policies(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        b"2023-11-16 18:15:46.6805900,100,10\r\n2023-11-16 18:15:47.6805900,300,20"
    )
    _, out, _ = call("compare", path, "--replicas", 1, "--policy", "queue_aware", "--base-ms", 100, "-q")
    model = sweep.ServiceModel(base_ms=100.0)
    frame = sweep.compare(sweep.Requests.from_csv(path, model), 1, policy=["queue_aware"])
    assert f"{frame.loc['queue_aware', 'p99_latency_ms']:,.0f}" in out
    assert "round_robin" not in out


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded traces are not here")
def test_compare__recorded_traffic(call: Call) -> None:
    status, out, err = call("compare", TRACE, "--replicas", 4)
    assert (status, err) == (0, "")
    assert out.startswith("19,366 requests, 4 replicas of speed 1, 1, 1, 1. Offered load: ")


# --- run ------------------------------------------------------------------------------------------------


def test_run__writes_what_the_function_returns(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "out.zarr"
    status, out, err = call("run", *SMALL, "--slack", "0:10:5", "--heterogeneity", "0,0.5", "-o", path)
    assert status == 0
    assert out.startswith(f"Wrote {path} (3 policy x 3 slack x 2 heterogeneity x 3 seed)")
    assert err == "Offered load: 0.90 of the capacity.\n"
    workload = sweep.Workload.poisson(requests=60, utilisation=0.9, replicas=4, sessions=9, prefixes=9)
    fleet = sweep.Fleet.one_slow(4, [0.0, 0.5])
    names = ["round_robin", "queue_aware", "locality_aware"]
    expected = sweep.run(workload, fleet, policy=names, slack=[0.0, 5.0, 10.0], seed=3)
    with xr.open_zarr(path) as found:
        xr.testing.assert_identical(found.load(), expected)


def test_run__every_option_reaches_its_parameter(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(workload: sweep.Workload, fleet: sweep.Fleet, **settings: Any) -> None:
        seen.update(settings, workload=workload, fleet=fleet)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run", fake)
    call(
        *("run", "--workload", "bursty", "--requests", "50,60", "--rate-per-s", "100:300:100", "--service", "gamma"),
        *("--service-cv", "2", "--mean-service-ms", "5", "--sessions", "7", "--prefixes", "3", "--popularity", "zipf"),
        *("--zipf-exponent", "1.5", "--session-prefix", "independent", "--peak-to-mean", "4", "--burst-ms", "50"),
        *("--burst-share", "0.2", "--fleet", "lognormal", "--heterogeneity", "0.1,0.2", "--replicas", "3"),
        *("--fleet-seed", "5", "--no-constant-capacity", "--policy", "round_robin,queue_aware", "--slack", "0,inf"),
        *("--engine", "timeline", "--cache-hit-speedup", "0.5", "--warmup", "4", "--slo-ms", "20", "--seeds", "4,9"),
        *("--steps", "9", "--step-ms", "2", "--workers", "1"),
    )
    assert seen["workload"] == sweep.Workload.bursty(
        requests=[50, 60],
        rate_per_s=[100.0, 200.0, 300.0],
        service="gamma",
        service_cv=2.0,
        mean_service_ms=5.0,
        sessions=7,
        prefixes=3,
        popularity="zipf",
        zipf_exponent=1.5,
        session_prefix="independent",
        peak_to_mean=4.0,
        burst_ms=50.0,
        burst_share=0.2,
    )
    assert seen["fleet"] == sweep.Fleet.lognormal(3, [0.1, 0.2], seed=5, constant_capacity=False)
    del seen["workload"], seen["fleet"]
    assert seen == {
        "policy": ("round_robin", "queue_aware"),
        "slack": (0.0, float("inf")),
        "engine": "timeline",
        "cache_hit_speedup": 0.5,
        "warmup": 4,
        "slo_ms": 20.0,
        "seed": (4, 9),
        "steps": 9,
        "step_ms": 2.0,
        "workers": 1,
        "progress": False,
    }


def test_run__summary_recommends_and_lists_every_policy(call: Call) -> None:
    status, out, _ = call("run", *SMALL, "--heterogeneity", "0,0.5", "--utilisation", "0.4,0.8", "--seeds", "4")
    assert status == 0
    assert out.startswith("Choose, for the smallest P99 queue wait (mean over 4 seeds [95 % interval]):")
    assert "heterogeneity 0.5, utilisation 0.8: " in out
    below = out.partition("Every policy, at the slack that is best for it:")[2]
    assert below.count("queue_aware") == 4


def test_run__one_seed_is_not_sure(call: Call) -> None:
    _, out, _ = call("run", *SMALL, "--seeds", "7:7:1")
    assert "one seed, so no interval" in out
    assert "Not sure" in out


def test_run__token_engine(call: Call) -> None:
    status, out, _ = call(
        "run", "--workload", "dplb_burst", "--engine", "token_step", "--speeds", "1,0.3,1.2", "--seeds", 4
    )
    assert status == 0
    assert "least_load" in out and "tokens²" in out


def test_run__a_trace_is_one_seed_unless_said(call: Call, trace: Path, tmp_path: Path) -> None:
    assert call("run", "--trace", trace, "-q", "-o", tmp_path / "one.zarr") == (0, "", "")
    with xr.open_zarr(tmp_path / "one.zarr") as found:
        assert found.sizes["seed"] == 1


def test_run__says_when_there_is_nothing_local(call: Call) -> None:
    small = ("run", "--requests", 30, "--seeds", 2)
    assert "nothing to stay close to" in call(*small)[2]
    assert "nothing to stay close to" not in call(*small, "--policy", "queue_aware")[2]
    assert "nothing to stay close to" not in call(*small, "--sessions", 3)[2]
    assert call(*small, "-q")[2] == ""


def test_run__an_existing_path_is_refused_before_computing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "run", lambda *_, **__: pytest.fail("computed"))
    there = tmp_path / "there.nc"
    there.touch()
    assert call("run", "-o", there) == (
        2,
        "",
        f"Error: The output {str(there)!r} exists already and is not overwritten; remove it or choose another.\n",
    )
    foreign = tmp_path / "there.zarr"
    foreign.mkdir()
    (foreign / "notes.txt").touch()
    assert call("run", "-o", foreign) == (
        2,
        "",
        f"Error: The folder {str(foreign)!r} exists already, holds 'notes.txt' and is not a store of sweep; remove it "
        "or choose another path.\n",
    )
    assert "must end in .zarr or .nc" in call("run", "-o", tmp_path / "out.csv")[2]
    assert "does not exist; create it first" in call("run", "-o", tmp_path / "no" / "out.zarr")[2]


def test_run__config(call: Call, tmp_path: Path) -> None:
    config = tmp_path / "grid.toml"
    config.write_text(
        'requests = 60\nseeds = [0, 1, 2]\nsessions = 9\nprefixes = 9\nslack = "0:10:5"\nheterogeneity = [0, 0.5]\n'
        'policy = ["round_robin", "queue_aware", "locality_aware"]\nlimit = 3\n'
    )
    assert call("run", "--config", config, "-q", "-o", tmp_path / "a.zarr") == (0, "", "")
    options = (*SMALL, "--slack", "0:10:5", "--heterogeneity", "0,0.5")
    assert call("run", *options, "-q", "-o", tmp_path / "b.zarr") == (0, "", "")
    with xr.open_zarr(tmp_path / "a.zarr") as a, xr.open_zarr(tmp_path / "b.zarr") as b:
        xr.testing.assert_identical(a.load(), b.load())
    assert call("explain", "--config", config, "--slack", 5, "--heterogeneity", 0, "--policy", "queue_aware")[0] == 0


def test_run__the_command_line_displaces_the_alternative_of_the_config(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sweep, "run", lambda *made, **_: seen.extend(made) or (_ for _ in ()).throw(KeyboardInterrupt))
    config = tmp_path / "grid.toml"
    config.write_text("utilisation = 0.5\nreplicas = 8\nheterogeneity = [0, 0.2]\n")
    call("run", "--config", config, "--rate-per-s", 70, "--speeds", "1,2")
    assert seen == [sweep.Workload.poisson(requests=2000, rate_per_s=70.0), sweep.Fleet.fixed([1.0, 2.0])]
    config.write_text("utilisation = 0.5\nrate-per-s = 70\n")
    assert "exclude each other" in call("run", "--config", config)[2]


# --- stores ---------------------------------------------------------------------------------------------


def test_run__the_same_command_again_says_complete_and_another_is_refused(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    assert call("run", *SMALL, "--block-seeds", 1, "-o", store)[1].startswith(f"Wrote {store} (")
    status, out, _ = call("run", *SMALL, "-o", store)
    assert (status, out) == (
        0,
        f"{store} is complete (3 policy x 1 slack x 1 heterogeneity x 3 seed); nothing was left to compute.\n",
    )
    status, out, err = call("run", *SMALL, "--slack", "0,5", "-o", store)
    assert (status, out) == (2, "")
    assert "slack is [5.0] in the store and [0.0, 5.0] here" in err and "--extend" in err
    assert call("run", *SMALL, "--slack", "0,5", "--extend", "-o", store)[1].startswith(f"Wrote {store} (3 policy x 2")
    assert call("run", *SMALL, "--slack", "0,5", "--extend", "-o", store)[1].startswith(f"{store} is complete")


def test_run__options_of_a_store_need_one(call: Call, tmp_path: Path) -> None:
    for options in (("--extend",), ("--block-seeds", "3")):
        assert call("run", *SMALL, *options)[2].endswith(
            f"Error: {options[0]} needs --output with a path that ends in .zarr.\n"
        )
    assert "--executor and --dask exclude each other" in call("run", "--executor", "threads", "--dask", "tcp://a:1")[2]


def test_status__says_how_far_verifies_and_repairs(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    call("run", *SMALL, "--block-seeds", 1, "-q", "-o", store)
    complete = f"{store}: 9 of 9 blocks done, 0 missing; complete (540 simulated requests).\n"
    assert call("status", store) == (0, complete, "")
    assert call("status", store, "--verify") == (0, complete, "")
    (store / "blocks" / "1.0.0.2-1.1.1").unlink()
    (store / "load_variance" / "0.0.0.0").write_bytes(b"damaged")
    status, out, _ = call("status", store, "--verify")
    lines = out.splitlines()
    assert status == 1
    assert lines[0].startswith("damaged: round_robin, seed 0: the chunk load_variance/0.0.0.0 is damaged")
    assert lines[1] == "missing: queue_aware, seed 2"
    assert lines[2].startswith(f"{store}: 8 of 9 blocks done, 1 missing; ") and lines[2].endswith(" left at that rate.")
    assert call("status", store)[0] == 0
    assert call("status", store, "--repair", "-q")[:2] == (0, "\n".join([*lines[:2], complete]))
    assert call("status", store, "--verify") == (0, complete, "")
    assert call("status", tmp_path / "no.zarr")[0] == 2


# --- explain --------------------------------------------------------------------------------------------

CELL = ("explain", "--requests", 80, "--sessions", 6, "--prefixes", 3, "--heterogeneity", 0.4, "--seed", 5)


def test_explain__counts_and_requests_are_those_of_the_replay(call: Call) -> None:
    status, out, err = call(*CELL, "--slack", 3, "--limit", 80)
    assert (status, err) == (0, "")
    workload = sweep.Workload.poisson(requests=80, utilisation=0.9, replicas=4, sessions=6, prefixes=3)
    speeds = sweep.Fleet.one_slow(4, 0.4).speeds[0]
    ds = sweep.simulate(workload.realise(5), speeds, policy="locality_aware", slack=3.0, seed=5)
    assert out.startswith(
        "locality_aware, slack 3 ms, seed 5: 80 requests, 4 replicas of speed 1.11, 1.11, 1.11, 0.667."
    )
    counts, _, listed = out.partition("\n\n")[2].partition("\n\n")
    shown = {line.split()[0]: int(line.split()[1]) for line in counts.partition("----\n")[2].splitlines()}
    reasons, numbers = np.unique(ds.route_reason.values, return_counts=True)
    assert {name: count for name, count in shown.items() if count} == dict(zip(reasons, numbers, strict=True))
    rows = [line.split() for line in listed.splitlines() if line.split()[0].isdigit()]
    assert [int(row[4]) for row in rows] == ds.replica_id.values.tolist()


def test_explain__limit(call: Call) -> None:
    for limit in (0, 7):
        _, out, _ = call(*CELL, "--limit", limit)
        assert sum(line.strip()[:1].isdigit() for line in out.splitlines()) == limit
    assert call(*CELL, "--limit", -1)[0] == 2


def test_explain__token_engine(call: Call) -> None:
    status, out, _ = call(
        *("explain", "--workload", "dplb_burst", "--engine", "token_step", "--speeds", "1,0.3,1.2", "--seed", 42)
    )
    assert status == 0
    assert "least_load, seed 42: 170 requests" in out


def test_explain__picture(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "timeline.png"
    status, out, _ = call(*CELL, "-o", path)
    assert status == 0
    assert out.endswith(f"Wrote {path}.\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [found.name for found in tmp_path.iterdir()] == ["timeline.png"]
    assert call(*CELL, "-o", path)[0] == 2


@pytest.mark.parametrize(
    "option",
    [
        ("--slack", "0,5"),
        ("--policy", "round_robin,queue_aware"),
        ("--heterogeneity", "0,0.5"),
        ("--utilisation", "0.5,0.9"),
    ],
)
def test_explain__refuses_several_values(call: Call, option: tuple[str, str]) -> None:
    status, _, err = call("explain", *option)
    assert status == 2
    assert err.startswith(f"Error: {option[0]} has 2 values (")
