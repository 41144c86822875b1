"""The command line: help, catalogues, studies, and mistakes that become one sentence."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import ROOT, SMALL, Call, process

import sweep
from sweep.cli import arguments, output, studies
from sweep.cli.options import Option
from sweep.cli.program import main
from sweep.traces.raw import Options

# --- help, version, catalogue ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", sorted(main.commands))
def test_help__every_option_says_what_it_is(call: Call, command: str) -> None:
    status, out, err = call(command, "--help")
    assert (status, err) == (0, "")
    for param in main.commands[command].params:
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


# --- study ----------------------------------------------------------------------------------------------


def test_study__passes_its_options(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    study = SimpleNamespace(main=lambda *args, **settings: seen.append((args, settings)))
    monkeypatch.setattr(studies, "_load_study", lambda name: seen.append(name) or study)
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
    parameters = inspect.signature(studies._load_study(name).main).parameters
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
    monkeypatch.setattr(output.importlib.util, "find_spec", lambda name: None)
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
        main(["run", "-q"], prog_name="sweep")


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
    assert f"are kept in '{tmp_path}/out.zarr'; the same command goes on" in err
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
        "import sys\nfrom sweep.cli.program import main\nmain(['run', '--help'], standalone_mode=False)\n"
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
