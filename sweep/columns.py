"""Columns of a stream that comes from outside, checked: every bad value is named with its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweep.errors import InputError

Label = int | str
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Where = Callable[[int], str]

NONE = -1
# Past these, float64 no longer tells apart times of 0.1 ms, or neighbouring whole numbers: a wrong unit, not a trace.
LONGEST_MS = 1e15
MOST_TOKENS = 2**53


def times(what: str, values: Any, where: Where, found: Sequence[Any] | None = None) -> FloatArray:
    """Return `values` as new float64, each finite, >= 0 and at most `LONGEST_MS`.

    Parameters
    ----------
    what
        What the user calls the column.
    values
        Anything array-like of one dimension.
    where
        Says how the user calls a row, as in ``"trace.csv, line 7"``.
    found
        What to show of a bad row where that is not ``values[row]`` (the text of a cell).

    Raises
    ------
    InputError
        Naming the first bad row.
    """
    array = _numeric(what, values)
    bad = ~((array >= 0.0) & (array <= LONGEST_MS))
    _refuse(what, bad, where, values if found is None else found, "a finite number of ms from 0 to 1e15")
    return array + 0.0  # -0.0 becomes 0.0


def counts(what: str, values: Any, where: Where, found: Sequence[Any] | None = None) -> IntArray:
    """Return `values` as new int64, each a whole number from 0 to `MOST_TOKENS`; the rest is as for `times`."""
    array = _numeric(what, values)
    bad = ~((array >= 0.0) & (array <= MOST_TOKENS) & (np.floor(array) == array))
    _refuse(what, bad, where, values if found is None else found, "a whole number from 0 to 2**53")
    return array.astype(np.int64)


def keys(what: str, values: Any, where: Where) -> NDArray[Any]:
    """Return keys of prefixes or sessions: int64 with -1 = none, or objects (str, int) with None = none."""
    array = _one_dimensional(what, values)
    if array.dtype.kind in "iu":
        _refuse(what, (array < NONE) | (array > MOST_TOKENS), where, values, "a whole number >= -1 (-1 = none)")
        return array.astype(np.int64)
    items = _items(values, array)
    labels = [_label(item) for item in items]
    bad = [label is None and item is not None for label, item in zip(labels, items, strict=True)]
    _refuse(what, np.array(bad, bool), where, items, "a string, a whole number or None (= none)")
    return objects(labels)


def ids(what: str, values: Any, where: Where) -> NDArray[Any]:
    """Return request ids: int64, or objects that are all str."""
    array = _one_dimensional(what, values)
    if isinstance(values, np.ndarray) and array.dtype.kind == "i":
        return array.astype(np.int64)
    items = _items(values, array)
    labels = [_label(item) for item in items]
    bad = [label is None or (isinstance(label, int) and abs(label) >= 2**63) for label in labels]
    _refuse(what, np.array(bad, bool), where, items, "a string or a whole number of 64 bits")
    numbered = [isinstance(label, int) for label in labels]
    if all(numbered):
        return np.array(labels, dtype=np.int64)
    if any(numbered):
        row = numbered.index(not numbered[0])
        raise InputError(
            f"{where(row)}: {what} must be all strings or all whole numbers, got {labels[row]!r} after {labels[0]!r}."
        ).about(what, labels[row])
    return objects(labels)


def interned(keys: NDArray[Any]) -> tuple[IntArray, tuple[Label, ...]]:
    """Return ids 0, 1, ... in order of first appearance (-1 = none), and the key of each id."""
    if keys.dtype.kind == "i" and (keys == NONE).all():
        return keys.astype(np.int64), ()
    none = NONE if keys.dtype.kind == "i" else None
    numbers: dict[Any, int] = {}
    dense = [NONE if key == none else numbers.setdefault(key, len(numbers)) for key in keys.tolist()]
    return np.array(dense, dtype=np.int64), tuple(numbers)


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """Return a 1-D object array of `values`, whatever they are."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def _one_dimensional(what: str, values: Any) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # rows of unequal length; whole numbers beyond any float
        array = objects(list(values))
    if array.ndim != 1:
        raise InputError(f"{what} must be a one-dimensional list or array, got {_shown(values)}.")
    return array


def _items(values: Any, array: NDArray[Any]) -> list[Any]:
    # numpy would have turned ["a", 1] into two strings.
    return list(values) if isinstance(values, (list, tuple)) else array.tolist()


def _numeric(what: str, values: Any) -> FloatArray:
    """Return `values` as float64, NaN in place of what is not a number."""
    array = _one_dimensional(what, values)
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    return np.array([_float(item) for item in _items(values, array)], dtype=np.float64)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return np.nan
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _refuse(what: str, bad: NDArray[np.bool_], where: Where, values: Any, wanted: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        value = list(values)[row]
        raise InputError(f"{where(row)}: {what} must be {wanted}, got {_shown(value)}.").about(what, value)


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _label(value: Any) -> Label | None:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    return None


def by_appearance(ids: IntArray) -> tuple[IntArray, int]:
    """Return the ids numbered in order of first appearance, -1 kept, and how many there are."""
    known, first, position = np.unique(ids, return_index=True, return_inverse=True)
    first[known < 0] = -1
    rank = np.argsort(np.argsort(first)) - np.count_nonzero(known < 0)
    return rank[position], int(np.count_nonzero(known >= 0))
