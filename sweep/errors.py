"""The one exception a user's mistake raises, and the sentences it is built from."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class InputError(ValueError):
    """A user's mistake, said in one sentence: what is wrong, the value found, what is allowed.

    The command line prints the sentence without a traceback and exits with status 2. ``column`` and ``value`` are those
    of a table's cell that is wrong, None where it is none.
    """

    column: str | None = None
    value: object = None

    def about(self, column: str, value: object) -> InputError:
        """Return the error with the cell that it is about."""
        self.column, self.value = column, value
        return self


class BlockError(RuntimeError):
    """A block failed: its cells, and why. With a store the other blocks are not lost."""


def unknown(what: str, found: object, allowed: Iterable[object]) -> InputError:
    """Return the error for a name that is not in a closed list, with the nearest name suggested."""
    names = [str(name) for name in allowed]
    near = difflib.get_close_matches(str(found), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"Unknown {what} {str(found)!r}; choose from {', '.join(names)}.{hint}")


def one_of(what: str, found: Any, allowed: Sequence[Any]) -> Any:
    """Return `found` when it is one of `allowed`; raise the `unknown` error otherwise."""
    if found not in allowed:
        raise unknown(what, found, allowed)
    return found


def number(
    what: str,
    found: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    finite: bool = True,
) -> float:
    """Return `found` as a float inside the bounds given.

    Raises
    ------
    InputError
        When it is not a number, is NaN, is infinite (unless ``finite=False``) or is out of bounds.
    """
    bounds = [
        f"{sign} {limit:g}"
        for sign, limit in ((">", above), (">=", at_least), ("<", below), ("<=", at_most))
        if limit is not None
    ]
    wanted = ("a finite number" if finite else "a number") + (" " + " and ".join(bounds) if bounds else "")
    if isinstance(found, (bool, np.bool_)) or not isinstance(found, (int, float, np.integer, np.floating)):
        raise InputError(f"{what} must be {wanted}, got {found!r}.")
    try:
        value = float(found)
    except OverflowError:
        value = math.nan
    if (
        math.isnan(value)
        or (finite and math.isinf(value))
        or (above is not None and not value > above)
        or (at_least is not None and not value >= at_least)
        or (below is not None and not value < below)
        or (at_most is not None and not value <= at_most)
    ):
        raise InputError(f"{what} must be {wanted}, got {found!r}.")
    return value


def whole(what: str, found: Any, *, at_least: int = 0) -> int:
    """Return `found` as an int of at least `at_least`; raise `InputError` for anything else."""
    if isinstance(found, (bool, np.bool_)) or not isinstance(found, (int, np.integer)) or found < at_least:
        raise InputError(f"{what} must be a whole number >= {at_least}, got {found!r}.")
    return int(found)


def distinct(what: str, values: Sequence[Any]) -> None:
    """Raise `InputError` naming the first value that stands twice in `values`."""
    seen = set()
    for value in values:
        if value in seen:
            raise InputError(f"{what} {value!r} is given twice; every {what} must be different.")
        seen.add(value)
