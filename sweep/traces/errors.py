"""The exception of a trace that cannot be read, and the checks of single columns that raise it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweep.columns import LONGEST_MS, MOST_TOKENS, FloatArray, IntArray
from sweep.errors import InputError


class TraceError(InputError):
    """What is wrong with a trace, and where: ``file``, ``line`` (from 1), ``column`` and ``value``, None if unknown."""

    def __init__(
        self, said: str, file: Any, line: int | None = None, column: str | None = None, value: object = None
    ) -> None:
        place = f"{file}" if line is None else f"{file}, line {line}"
        super().__init__(f"{place}{':' if column is not None or line is not None else ''} {said}")
        self.file, self.line, self.column, self.value = str(file), line, column, value

    @classmethod
    def of(cls, error: InputError, file: Any, line: int | None) -> TraceError:
        """Return an error whose sentence already says where, about the same cell."""
        return _rebuilt(error.args, {"file": str(file), "line": line, "column": error.column, "value": error.value})

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.args, self.__dict__))


def _rebuilt(args: tuple[Any, ...], state: dict[str, Any]) -> TraceError:
    error = TraceError.__new__(TraceError)
    error.args = args
    error.__dict__.update(state)
    return error


def bad_value(file: Any, line: int | None, column: str, wanted: str, value: object) -> TraceError:
    """Return the error of one bad value."""
    text = repr(value)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return TraceError(f"{column} must be {wanted}, got {shown}.", file, line, column, value)


def times(file: Any, lines: Sequence[int], column: str, cells: Sequence[Any], scale: float = 1.0) -> FloatArray:
    """Return non-negative times in ms of cells that are text or numbers in ms / `scale`."""
    array = _floats(cells) * scale
    bad = ~((array >= 0.0) & (array <= LONGEST_MS))
    _refuse(file, lines, column, cells, bad, "a finite time from 0 to 1e15 ms")
    return array + 0.0  # -0.0 becomes 0.0


def counts(file: Any, lines: Sequence[int], column: str, cells: Sequence[Any]) -> IntArray:
    """Return whole numbers from 0 to 2**53 of cells that are text or numbers."""
    array = _floats(cells)
    bad = ~((array >= 0.0) & (array <= MOST_TOKENS) & (np.floor(array) == array))
    _refuse(file, lines, column, cells, bad, "a whole number from 0 to 2**53")
    return array.astype(np.int64)


def _refuse(
    file: Any, lines: Sequence[int], column: str, cells: Sequence[Any], bad: NDArray[np.bool_], wanted: str
) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise bad_value(file, lines[row], column, wanted, cells[row])


def _floats(cells: Sequence[Any]) -> FloatArray:
    return np.array([_float(cell) for cell in cells], dtype=np.float64)


def _float(cell: Any) -> float:
    if isinstance(cell, str):
        try:
            return float("nan" if "_" in cell else cell)
        except ValueError:
            return np.nan
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return np.nan
    try:
        return float(cell)
    except OverflowError:
        return np.inf
