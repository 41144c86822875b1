"""The command line: arguments become objects, results become tables and files, mistakes become one sentence."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
import xarray as xr

import sweep
from sweep import arguments, cli, console
from sweep.options import Option
from sweep.traces.raw import Options

ROOT = Path(__file__).parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"
SMALL = ("--requests", "60", "--seeds", "3", "--sessions", "9", "--prefixes", "9")

Said = tuple[int, str, str]
Call = Callable[..., Said]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `sweep ARGUMENTS` here and gives exit status, stdout and stderr."""

    def run(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(argument) for argument in arguments], prog_name="sweep")
        out, err = capsys.readouterr()
        status = stopped.value.code
        assert isinstance(status, int)
        return status, out, err

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a CSV of 40 requests in 8 sessions, each with its prefix."""
    rows = [f"r{i},{3.0 * i},{5.0 + i % 7},p{i % 8},s{i % 8}" for i in range(40)]
    path = tmp_path / "trace.csv"
    path.write_text("request_id,arrival_ms,service_ms,prefix_key,session_id\n" + "\n".join(rows) + "\n")
    return path


def process(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
    """Start `python -m sweep ARGUMENTS` with its streams as pipes."""
    command = [sys.executable, "-m", "sweep", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **settings,
    )


# --- help, version, catalogue ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", sorted(cli.main.commands))
def test_help__every_option_says_what_it_is(call: Call, command: str) -> None:
    status, out, err = call(command, "--help")
    assert (status, err) == (0, "")
    for param in cli.main.commands[command].params:
        if isinstance(param, Option):
            assert param.opts[-1] in out
            assert param.help


def test_help__without_a_command(call: Call) -> None:
    assert call() == call("--help") == call("-h")


def test_help__defaults_shown_are_those_of_the_functions() -> None:
    functions = (
        sweep.traces.read,
        Options,
        sweep.Workload.poisson,
        sweep.Workload.bursty,
        sweep.ServiceModel,
        sweep.Fleet.with_events,
        sweep.run,
    )
    defaults = {name: p.default for f in functions for name, p in inspect.signature(f).parameters.items()}
    defaults |= {"fleet_seed": inspect.signature(sweep.Fleet.lognormal).parameters["seed"].default}
    defaults |= {"seeds": defaults["seed"], "service_cv": 1.0, "slack": defaults["slack"][0]}
    defaults |= {"trace_seed": inspect.signature(Options).parameters["seed"].default}
    # What the functions require, and what only the command line has.
    chosen = {"workload": "poisson", "requests": 2000, "utilisation": 0.9, "replicas": 4, "fleet": "one_slow"}
    defaults |= chosen
    in_words = {
        "heterogeneity",
        "constant_capacity",
        "steps",
        "workers",
        "policy",
        "session_rate_per_s",
        "cache_blocks",
        "breaker",
    }
    checked = set()
    for option in (*arguments.GRID, *arguments.MANY):
        name = str(option.name)
        if option.shown and name not in in_words:
            default = defaults[name]
            expected = f"{default:g}" if isinstance(default, float) else str(default)
            assert (name, option.shown.split(";")[0]) == (name, expected)
            checked.add(name)
    assert len(checked) > 15


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"sweep {sweep.__version__}\n", "")


@pytest.mark.parametrize("width", [80, 120])
def test_policies__every_fact_within_the_width(call: Call, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = call("policies")
    assert status == 0
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(out.split())
    for rule in sweep.policies.catalogue():
        for fact in (rule.name, rule.sentence, rule.signals, rule.ties, ", ".join(rule.engines), rule.source):
            assert fact in words
    assert "in_service_weight=1" in words


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


# --- study ----------------------------------------------------------------------------------------------


def test_study__passes_its_options(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    study = SimpleNamespace(main=lambda *args, **settings: seen.append((args, settings)))
    monkeypatch.setattr(cli, "_load_study", lambda name: seen.append(name) or study)
    assert call("study", "dplb", "--quick", "--seeds", 9, "--output", tmp_path, "--workers", 1)[0] == 0
    assert call("study", "replicas")[0] == 0
    assert seen == [
        "dplb",
        ((tmp_path,), {"quick": True, "seeds": 9, "workers": 1, "progress": False}),
        "replicas",
        ((Path("reports/replicas"),), {"quick": False, "seeds": None, "workers": None, "progress": False}),
    ]


@pytest.mark.parametrize("name", ["tradeoff", "dplb", "replicas"])
def test_study__is_found_and_takes_what_is_passed(name: str) -> None:
    parameters = inspect.signature(cli._load_study(name).main).parameters
    assert {"output", "quick", "seeds", "workers", "progress"} <= set(parameters)


# --- mistakes, interruptions, missing parts -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rum"], "No such command"),
        (["--foo"], "--foo"),
        (["run", "--slak", "5"], "--slak"),
        (["run", "extra"], "extra"),
        (["run", "--slack", "x"], "'x' is not a number"),
        (["run", "--slack", "-1"], "slack"),
        (["run", "--slack", "nan"], "slack"),
        (["run", "--slack", "5,5"], "twice"),
        (["run", "--seeds", "1,1"], "twice"),
        (["run", "--seeds", "0"], "seed"),
        (["run", "--heterogeneity", "1"], "heterogeneity"),
        (["run", "--policy", "locality_awre"], "Did you mean 'locality_aware'?"),
        (["run", "--policy", "random(x=1)"], "no parameters"),
        (["run", "--policy", "queue_aware", "--engine", "token_step"], "does not run on the engine 'token_step'"),
        (["run", "--policy", "queue_aware,queue_aware"], "twice"),
        (["run", "--replicas", "0"], "replicas"),
        (["run", "--replicas", "2,3"], "only one value"),
        (["run", "--speeds", "1,0"], "peed"),
        (["run", "--speeds", "1,2", "--replicas", "2"], "--speeds and --replicas exclude each other"),
        (["run", "--utilisation", "0.5", "--rate-per-s", "9"], "exclude each other"),
        (["run", "--trace", "a.csv", "--sessions", "9"], "exclude each other"),
        (["run", "--trace", "absent.csv"], "absent.csv"),
        (["run", "--base-ms", "3"], "--base-ms applies only to --trace"),
        (["run", "--burst-ms", "3"], "--burst-ms does not apply to --workload poisson"),
        (["run", "--workload", "dplb_burst", "--requests", "9"], "--requests does not apply to --workload dplb_burst"),
        (["run", "--workload", "bursty"], "--workload bursty needs --peak-to-mean"),
        (["run", "--fleet-seed", "3"], "--fleet-seed does not apply to --fleet one_slow"),
        (["run", "--engine", "token_step"], "tokens"),
        (["run", "--config", "absent.toml"], "absent.toml cannot be read"),
        (["run", "--workload", "burtsy"], "Did you mean 'bursty'?"),
        (["explain", "-o", "picture.txt"], "must end in .png"),
        (["compare"], "Missing argument"),
        (["compare", "absent.csv", "--replicas", "2"], "absent.csv"),
        (["compare", "absent.csv"], "--replicas N or --speeds"),
        (["compare", "absent.csv", "--replicas", "2", "--slack", "1,2"], "--slack has 2 values"),
        (["study", "treadoff"], "Did you mean 'tradeoff'?"),
    ],
)
def test_mistake__one_sentence_and_status_2(call: Call, arguments: list[str], says: str) -> None:
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    told = [line for line in err.splitlines() if not line.startswith(("Offered load", "Note: "))]
    assert len(told) == 1
    assert told[0].startswith("Error: ")
    assert says in told[0]


def test_failure__a_missing_extra_is_named_before_computing(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    for name in ("run", "simulate"):
        monkeypatch.setattr(sweep, name, lambda *_, **__: pytest.fail("computed"))
    said = 'Error: This needs the package {}: pip install "sweep[{}]"\n'
    assert call("study", "tradeoff") == (1, "", said.format("matplotlib", "plot"))
    assert call("explain", "-o", tmp_path / "a.png") == (1, "", said.format("matplotlib", "plot"))
    assert call("run", "-o", tmp_path / "a.nc") == (1, "", said.format("h5netcdf", "netcdf"))


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (ModuleNotFoundError("No module named 'jinja2'", name="jinja2"), 1, 'pip install "sweep[plot]"'),
        (OSError(28, "No space left on device"), 1, "Error: [Errno 28] No space left on device"),
        (KeyboardInterrupt(), 130, "Interrupted: stopped after "),
        (KeyboardInterrupt("stopped after 3 of 9 blocks"), 130, "Interrupted: stopped after 3 of 9 blocks."),
    ],
)
def test_failure__status_and_sentence(
    call: Call, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, says: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(sweep, "run", fail)
    found, out, err = call("run", "-q")
    assert (found, out) == (status, "")
    assert says in err and err.strip().count("\n") == 0


def test_failure__a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(sweep, "run", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main(["run", "-q"], prog_name="sweep")


def test_process__interrupt(call: Call, tmp_path: Path) -> None:
    assert call("run", *SMALL, "-q")[0] == 0  # so that the process finds its kernels compiled
    with process("run", "--requests", "20000", "--seeds", "20000", "-o", "out.zarr", cwd=tmp_path) as running:
        assert running.stderr is not None
        assert "Offered load" in running.stderr.readline()
        time.sleep(1.0)
        sent = time.monotonic()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        took = time.monotonic() - sent
    assert (running.returncode, out) == (130, "")
    assert "Interrupted" in err and "Traceback" not in err
    assert "are kept in 'out.zarr'; the same command goes on" in err
    assert took < 5
    assert [path.name for path in tmp_path.iterdir()] == ["out.zarr"]


def test_process__broken_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sweep", "policies"]
    found = subprocess.run(
        command,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(write)
    assert found.stderr == ""


def test_process__module_and_status(tmp_path: Path) -> None:
    with process("run", "--slack", "-1", cwd=tmp_path) as running:
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (2, "")
    assert "Traceback" not in err and err.splitlines()[-1].startswith("Error: ")


def test_process__help_imports_nothing_that_plots_or_stores() -> None:
    code = (
        "import sys\nfrom sweep.cli import main\nmain(['run', '--help'], standalone_mode=False)\n"
        "print(sorted({'zarr', 'matplotlib', 'seaborn', 'jinja2', 'scipy.stats'} & set(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert found.stderr == "[]\n"


# --- real traffic ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded traces are not here")
def test_compare__recorded_traffic(call: Call) -> None:
    status, out, err = call("compare", TRACE, "--replicas", 4)
    assert (status, err) == (0, "")
    assert out.startswith("19,366 requests, 4 replicas of speed 1, 1, 1, 1. Offered load: ")


# --- tables ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        ([1.0, 20.0], ["1", "20"]),
        ([0.12345, 0.5], ["0.123", "0.500"]),
        ([1.5, 123456.7], ["2", "123,457"]),
        ([float("nan"), 2.25], ["-", "2.250"]),
        ([float("inf"), 1.0], ["inf", "1.000"]),
        ([], []),
    ],
)
def test_number_column(values: list[float], cells: list[str]) -> None:
    assert list(console.number_column("x", values).cells) == cells


def test_table__titles_break_and_columns_align() -> None:
    columns = [
        console.Column("name", ["a", "bcd"], left=True),
        console.number_column("a long title here", [1, 1000], "ms"),
    ]
    lines = console.table(columns, title_width=8).splitlines()
    assert lines == [
        "      a long",
        "       title",
        "name    here",
        "          ms",
        "----  ------",
        "a          1",
        "bcd    1,000",
    ]


def test_click__group_is_the_entry_point() -> None:
    assert isinstance(cli.main, click.Group)


# --- Stores ---------------------------------------------------------------------------------------------


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
