"""What decides numbers: every source is in the hash of the code."""

from __future__ import annotations

import ast
from pathlib import Path

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
    # The catalogue's words, checks of arguments, and the containers that hold what was given or drawn.
    known = {"columns", "errors", "fleet", "grid", "policies", "requests", "rule", "rules_api", "variables"}
    assert {path.stem for path in imported - hashed} <= known
