"""Collects one line per measurement and prints them as a table at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINES: list[str] = []


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
