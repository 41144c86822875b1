"""What decides numbers besides the grid: the sources, a user's rule, and the machine's libraries."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np

#: The sources that decide numbers: from a description and a seed to the arrays of a block.
DECIDING = (
    "kernels/*.py",
    "block_cells.py",
    "blocks.py",
    "chains.py",
    "engines.py",
    "events.py",
    "router_rules.py",
    "routing.py",
    "rules_api.py",
    "shaping.py",
    "streams.py",
    "token_cells.py",
    "workload.py",
)

_PACKAGE = Path(__file__).parent


@cache
def code_hash() -> str:
    """Return a hash of the sources that decide numbers."""
    digest = hashlib.sha256()
    for pattern in DECIDING:
        for path in sorted(_PACKAGE.glob(pattern)):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def rule_hash(function: Callable[..., Any]) -> str:
    """Return a hash of a user's rule: its source, and the values and functions of its own module that it uses."""
    digest = hashlib.sha256()
    known: set[Callable[..., Any]] = set()

    def add(found: Callable[..., Any]) -> None:
        known.add(found)
        try:
            digest.update(inspect.getsource(found).encode())
        except (OSError, TypeError):
            digest.update(found.__code__.co_code + repr(found.__code__.co_consts).encode())
        used = inspect.getclosurevars(found)
        for name, value in sorted({**used.globals, **used.nonlocals}.items()):
            plain = getattr(value, "py_func", value)
            if inspect.isfunction(plain):
                if plain not in known and plain.__module__ == found.__module__:
                    add(plain)
            elif isinstance(value, (bool, int, float, str, tuple, np.generic)):
                digest.update(f"{name}={value!r}".encode())
            elif isinstance(value, np.ndarray):
                digest.update(name.encode() + value.tobytes())

    add(getattr(function, "py_func", function))
    return digest.hexdigest()[:16]


@cache
def machine() -> dict[str, str]:
    """Return what may change the last bits of a result: processor type and the versions of the libraries."""
    return {"cpu": _cpu(), "numba": numba.__version__, "numpy": np.__version__}


def _cpu() -> str:
    """Return the processor's model where the system tells, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
