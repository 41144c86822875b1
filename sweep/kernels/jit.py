"""The one place that sets Numba's options and decides where compiled kernels are kept.

Numba's disk cache notices a change of the file a kernel stands in, but not of the kernels it calls in
other files. The cache folder is therefore named by a hash of every file of `sweep.kernels`, and of what a
user's rule sees, and by Numba's version: a change anywhere starts an empty folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

config: Any = numba.config  # filled from the environment, so a type checker does not see its names
Function = TypeVar("Function", bound=Callable[..., object])

_HERE = Path(__file__).parent


def sources_hash() -> str:
    """Return a hash of the sources that decide numbers: every file of `sweep.kernels`, and `sweep.rules_api`."""
    digest = hashlib.sha256()
    for path in [*sorted(_HERE.glob("*.py")), _HERE.parent / "rules_api.py"]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    # Processes that replace what another version of Numba left read each other's index before the code that it names.
    # Numba does not key its cache by NUMBA_BOUNDSCHECK either, so checked code gets a folder of its own, too.
    name = f"{sources_hash()}-numba-{numba.__version__}" + ("-checked" if config.BOUNDSCHECK else "")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    user = f"sweep-{os.getuid()}" if hasattr(os, "getuid") else "sweep"
    candidates = [config.CACHE_DIR, os.path.join(home, "sweep"), os.path.join(tempfile.gettempdir(), user)]
    for folder in filter(None, candidates):
        path = Path(folder) / name
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return str(path)
        except OSError:
            continue
    return ""


_FOLDER = _cache_folder()


def kernel(function: Function) -> Function:
    """Compile `function` on its first call; the result is kept on disk for later processes.

    ``nogil`` lets one thread per block run in parallel. There is no ``fastmath``, so results do not
    depend on the vector width, and no ``parallel``, which aborts when two threads enter it.
    """
    return _kept(function)


def inlined(function: Function) -> Function:
    """Compile `function` into its callers: handing over a dozen arrays can cost more than what it does with them."""
    return _kept(function, forceinline=True)


def kernel_in_memory(function: Function) -> Function:
    """Compile `function` for this process only: for closures over a user's rule, which no disk cache serves."""
    return _compiled(function, cache=False)


def _kept(function: Function, *, forceinline: bool = False) -> Function:
    before = config.CACHE_DIR
    config.CACHE_DIR = _FOLDER
    try:
        return _compiled(function, cache=bool(_FOLDER), forceinline=forceinline)
    finally:
        config.CACHE_DIR = before


def function_pointer(signature: Any, function: Callable[..., object]) -> Any:
    """Compile `function` for this process as a pointer: kernels that take one are not compiled anew for each."""
    return numba.cfunc(signature, nogil=True, error_model="numpy")(function)


def _compiled(function: Function, *, cache: bool, forceinline: bool = False) -> Function:
    # Numba's own types say nothing of the arguments, so callers keep the signature of the plain function.
    options = numba.njit(nogil=True, cache=cache, error_model="numpy", forceinline=forceinline)
    return cast(Function, options(function))
