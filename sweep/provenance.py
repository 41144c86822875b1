"""What decides numbers besides the grid: the sources, a user's rule, and the machine's libraries."""

from __future__ import annotations

import hashlib
import inspect
import platform
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numba
import numpy as np

#: The sources that decide numbers: from a description and a seed to the arrays of a block.
DECIDING = (
    "kernels/*.py",
    "block_cells.py",
    "blocks.py",
    "chains.py",
    "columns.py",
    "engines.py",
    "events.py",
    "packing.py",
    "requests.py",
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
    """Return a hash of a user's rule: its source, and what it uses by name, the functions among it in the same way.

    What comes with Python, NumPy, Numba and sweep is left out.
    """
    digest = hashlib.sha256()
    known: set[Any] = set()

    def add(found: Callable[..., Any]) -> None:
        known.add(found)
        try:
            digest.update(inspect.getsource(found).encode())
        except (OSError, TypeError):
            digest.update(found.__code__.co_code + repr(found.__code__.co_consts).encode())
        names = sorted(set(_names(found.__code__)))
        values = {**found.__globals__, **inspect.getclosurevars(found).nonlocals}
        add_named({name: values[name] for name in names if name in values}, names)

    def add_named(values: dict[str, Any], names: list[str]) -> None:
        for name, value in values.items():
            # A compiled function has its source in another.
            plain = getattr(value, "py_func", value)
            if inspect.isfunction(plain):
                if plain not in known and _is_own(plain.__module__):
                    add(plain)
            elif inspect.ismodule(value):
                if _is_own(value.__name__):
                    inner = [each for each in names if hasattr(value, each) and (value, each) not in known]
                    known.update((value, each) for each in inner)
                    add_named({each: getattr(value, each) for each in inner}, names)
            elif isinstance(value, (bool, int, float, str, tuple, np.generic)):
                digest.update(f"{name}={value!r}".encode())
            elif isinstance(value, np.ndarray):
                digest.update(name.encode() + value.tobytes())

    add(getattr(function, "py_func", function))
    return digest.hexdigest()[:16]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that a function uses, those of the functions inside it included."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_own(module: str) -> bool:
    return module.partition(".")[0] not in {"sweep", "numpy", "numba", *sys.stdlib_module_names}


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
