"""Tables of text: aligned columns, units in the head, numbers with as many digits as they deserve."""

from __future__ import annotations

import math
import numbers
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """One column: its title, its unit and its cells as text; numbers stand to the right."""

    title: str
    cells: Sequence[str]
    unit: str = ""
    left: bool = False


def decimals_for(values: Iterable[float]) -> int:
    """Return how many decimals show the largest of `values` with four digits, at most three decimals.

    Examples
    --------
    >>> decimals_for([0.5, 12.25]), decimals_for([30_000.0]), decimals_for([0.25])
    (2, 0, 3)
    """
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return 3 if largest < 1 else max(0, 3 - math.floor(math.log10(largest)))


def number_text(value: float, decimals: int) -> str:
    """Return a number with thousands separated; - where there is none."""
    return "-" if math.isnan(value) else f"{value:,.{decimals}f}"


def number_column(title: str, values: Iterable[Any], unit: str = "") -> Column:
    """Return a column of numbers that share their number of decimals; whole numbers have none."""
    found = [float(value) for value in values]
    whole = all(math.isfinite(value) and value == int(value) for value in found)
    decimals = 0 if whole else decimals_for(found)
    return Column(title, [number_text(value, decimals) for value in found], unit)


def table(columns: Sequence[Column], *, title_width: int = 12) -> str:
    """Return `columns` side by side, with a rule below their titles, which break at `title_width`.

    Examples
    --------
    >>> print(table([Column("policy", ["a", "bb"], left=True), number_column("wait", [1, 22], "ms")]))
    policy  wait
              ms
    ------  ----
    a          1
    bb        22
    """
    heads = []
    for column in columns:
        widest = max(title_width, *map(len, [*column.title.split(), *column.cells]))
        heads.append(textwrap.wrap(column.title, widest))
    height = max(len(head) for head in heads)
    units = any(column.unit for column in columns)
    blocks = []
    for column, head in zip(columns, heads, strict=True):
        above = [*[""] * (height - len(head)), *head, *([column.unit] if units else [])]
        width = max(map(len, [*above, *column.cells]))
        lines = [*above, "-" * width, *column.cells]
        blocks.append([line.ljust(width) if column.left else line.rjust(width) for line in lines])
    return "\n".join("  ".join(line).rstrip() for line in zip(*blocks, strict=True))


def unit_text(units: str) -> str:
    """Return a unit as people write it.

    Examples
    --------
    >>> unit_text("ms2"), unit_text("1")
    ('ms²', '')
    """
    return "" if units == "1" else units.replace("2", "²")


def label_text(value: Any) -> str:
    """Return the label of a coordinate: a name, a whole number, or a number without the noise of binary fractions.

    Examples
    --------
    >>> label_text("gamma"), label_text(12345678), label_text(0.1 + 0.2)
    ('gamma', '12345678', '0.3')
    """
    if isinstance(value, (str, numbers.Integral)):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.6g}"
