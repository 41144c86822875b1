"""Test-wide settings: hypothesis profiles without a deadline, and the table that benchmarks print at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Call, Said
from hypothesis import settings

# The first call of a kernel compiles it, which no deadline would survive.
settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell that starts the tests in the background makes them ignore SIGINT, and so would the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A script that needs torch, run by tests of the torch runner.
collect_ignore = ["fake_cuda.py"]

_LINES: list[str] = []


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a file of text or bytes to a folder of this test."""

    def write(content: str | bytes, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `sweep ARGUMENTS` here and gives exit status, stdout and stderr."""
    from sweep.cli.program import main

    def run(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments], prog_name="sweep")
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


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that adds a line to the table when benchmarks are enabled."""
    return _LINES.append if _enabled(request.config) else lambda line: None


@pytest.fixture
def measuring(request: pytest.FixtureRequest) -> bool:
    """Whether benchmarks are enabled; otherwise a benchmark only shows that it runs."""
    return _enabled(request.config)


def _enabled(config: pytest.Config) -> bool:
    return bool(config.getoption("benchmark_enable")) or not config.getoption("benchmark_disable")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _LINES:
        terminalreporter.section("sweep: cost per simulated request per cell")
        for line in _LINES:
            terminalreporter.line(line)
