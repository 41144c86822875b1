"""What decides numbers: every source is in the hash of the code, every function a rule calls in that of the rule."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sweep
from sweep import provenance


def test_code__holds_every_source_that_decides_numbers() -> None:
    """What the modules that decide import is either hashed too, or known to decide nothing."""
    package = Path(sweep.__file__).parent
    hashed = {path for pattern in provenance.DECIDING for path in package.glob(pattern)}
    imported = set()
    for path in hashed:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sweep"):
                inside = package.parent / node.module.replace(".", "/")
                found = [inside / f"{alias.name}.py" for alias in node.names if inside.is_dir()]
                imported |= {path for path in [inside.with_suffix(".py"), *found] if path.is_file()}
    # The catalogue's words, checks of arguments, and what holds what a description says in full.
    known = {"errors", "fleet", "grid", "policies", "rule", "variables"}
    assert {path.stem for path in imported - hashed} <= known


RULES = {
    "by name": """
from helpers import pick
def rule(view, request, parameters):
    return pick(view.wait_ms.size)
""",
    "by module": """
import helpers
def rule(view, request, parameters):
    return helpers.pick(view.wait_ms.size)
""",
    "in a comprehension": """
from helpers import pick
def rule(view, request, parameters):
    return max([pick(n) for n in view.served])
""",
}
HELPERS = """
import numba, numpy as np
SHARE = {share}
def even(n):
    return True if n == 0 else odd(n - 1)
def odd(n):
    return False if n == 0 else even(n - 1)
@numba.njit
def pick(n):
    return np.int64(SHARE * n) - {less} if even(4) else 0
"""


@pytest.mark.parametrize("how", RULES)
def test_rule__holds_the_functions_of_other_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_rule.py").write_text(RULES[how])

    def hashed(share: str, less: int) -> str:
        (tmp_path / "helpers.py").write_text(HELPERS.format(share=share, less=less))
        for name in ("helpers", "own_rule"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        importlib.import_module("linecache").clearcache()
        rule: Callable[..., int] = importlib.import_module("own_rule").rule
        return provenance.rule_hash(rule)

    try:
        first = hashed("0.5", 1)
        assert hashed("0.5", 1) == first
        assert hashed("0.5", 2) != first
        assert hashed("0.25", 1) != first
    finally:
        for name in ("helpers", "own_rule"):
            sys.modules.pop(name, None)


def test_rule__leaves_out_what_comes_with_python_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    import statistics

    def rule(view: object, request: object, parameters: object) -> float:
        return statistics.mean([1.0, 2.0])

    first = provenance.rule_hash(rule)
    monkeypatch.setattr(statistics, "mean", lambda values: 3.0)
    assert provenance.rule_hash(rule) == first
