"""Public trace formats, read into `Requests`."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweep.columns import FloatArray, IntArray, Label, Where, counts, objects, times
from sweep.errors import InputError
from sweep.requests import RECORD_FIELDS, Requests, ServiceModel, assemble

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_REQUIRED_FIELDS = RECORD_FIELDS[:5]
_TOKEN_FIELDS = RECORD_FIELDS[5:]

# Seven digits of fraction in 2023 (100 ns ticks), six or none and a zone of +00:00 in 2024.
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:\+00:00|Z)?", re.ASCII)
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)


def read_csv(path: str | os.PathLike[str], service: ServiceModel | None = None) -> Requests:
    """Return the stream of a CSV file, whose header decides the format.

    * The Azure LLM inference trace (https://github.com/Azure/AzurePublicDataset): ``TIMESTAMP``,
      ``ContextTokens``, ``GeneratedTokens``. Arrivals count from the first timestamp; requests have no prefix
      and no session, and are numbered in file order.
    * The fields of a record: ``request_id``, ``arrival_ms``, ``service_ms``, ``prefix_key``, ``session_id`` and,
      optionally, ``prompt_tokens`` and ``output_tokens``; with both of these ``service_ms`` may be left out. An
      empty cell under ``prefix_key`` or ``session_id`` means none. Sorted by (arrival_ms, request_id); a column
      of labels that are all whole numbers is read as numbers.

    Parameters
    ----------
    path
        A file in UTF-8, with any line ends, with or without a newline after the last row. Blank lines are skipped.
    service
        Turns tokens into service time [ms] where the file has no ``service_ms``; ``ServiceModel()`` when left out.

    Raises
    ------
    InputError
        For a file that cannot be read or is empty, for missing or extra columns, and, naming file, line and
        column, for a cell that is not what the column holds.
    """
    path = Path(path)
    model = ServiceModel() if service is None else service
    if not isinstance(model, ServiceModel):
        raise InputError(f"service must be a sweep.ServiceModel, got {service!r}.")
    header, rows, lines = _rows(path)
    azure = len(set(header) & set(AZURE_COLUMNS)) > len(set(header) & set(RECORD_FIELDS))
    _check_header(path, header, azure)
    if not rows:
        raise InputError(f"{path} has a header but no rows; a trace needs at least one request.")

    cells = dict(zip(header, zip(*rows, strict=True), strict=True))

    def where(row: int) -> str:
        return f"{path}, line {lines[row]}"

    read = _azure if azure else _records
    return assemble(
        read(cells, model, where),
        where=where,
        names={"prefix": "prefix_key", "session": "session_id"},
        ties_by_id=not azure,
        attrs={"source": path.name, "format": "azure" if azure else "records", "rows": len(rows)},
    )


def _rows(path: Path) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, the rows that are not blank, and the line of the file each begins on."""
    rows: list[list[str]] = []
    lines: list[int] = []
    line = 1
    try:
        # Spreadsheets write a byte order mark, which would become part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                if row and any(cell.strip() for cell in row):
                    rows.append(row)
                    lines.append(line)
                line = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8 ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: {error}.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {reason}.") from error
    if not rows:
        raise InputError(f"{path} is empty; its first line must name the columns ({_formats()}).")
    header = [name.strip() for name in rows[0]]
    for row, line in zip(rows[1:], lines[1:], strict=True):
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {line}: found {len(row)} cells, but the header names {len(header)} columns."
            )
    return header, rows[1:], lines[1:]


def _check_header(path: Path, header: list[str], azure: bool) -> None:
    known = AZURE_COLUMNS if azure else RECORD_FIELDS
    needed = list(AZURE_COLUMNS if azure else _REQUIRED_FIELDS)
    if set(_TOKEN_FIELDS) <= set(header) and not azure:
        needed.remove("service_ms")
    wrong = {
        "missing": [name for name in needed if name not in header],
        "unknown": [name for name in header if name not in known],
        "repeated": sorted({name for name in header if header.count(name) > 1}),
    }
    said = "; ".join(f"{kind}: {', '.join(map(repr, names))}" for kind, names in wrong.items() if names)
    if said:
        raise InputError(f"{path} has the wrong columns ({said}); its header must be {_formats()}.")


def _formats() -> str:
    return f"{','.join(AZURE_COLUMNS)} or {','.join(_REQUIRED_FIELDS)}[,{','.join(_TOKEN_FIELDS)}]"


def _azure(cells: dict[str, tuple[str, ...]], model: ServiceModel, where: Where) -> dict[str, Any]:
    stamp, context, generated = AZURE_COLUMNS
    prompt = _counts(context, cells[context], where)
    output = _counts(generated, cells[generated], where)
    return {
        "arrival_ms": _since_first(stamp, cells[stamp], where),
        "service_ms": model.service_ms(prompt, output),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "prefix": None,
        "session": None,
        "request_id": None,
    }


def _records(cells: dict[str, tuple[str, ...]], model: ServiceModel, where: Where) -> dict[str, Any]:
    columns: dict[str, Any] = {
        name: _counts(name, cells[name], where) if name in cells else None for name in _TOKEN_FIELDS
    }
    columns["arrival_ms"] = times("arrival_ms", *_parsed(cells["arrival_ms"], where))
    columns["service_ms"] = (
        times("service_ms", *_parsed(cells["service_ms"], where))
        if "service_ms" in cells
        else model.service_ms(columns["prompt_tokens"], columns["output_tokens"])
    )
    columns["prefix"] = objects(_labels(cells["prefix_key"]))
    columns["session"] = objects(_labels(cells["session_id"]))
    columns["request_id"] = objects(_labels(cells["request_id"]))
    return columns


def _since_first(what: str, cells: Sequence[str], where: Where) -> FloatArray:
    """Return the milliseconds from the first timestamp to each."""
    stamps = np.empty(len(cells), dtype="datetime64[ns]")
    for row, cell in enumerate(cells):
        match = _TIMESTAMP.fullmatch(cell.strip())
        try:
            stamps[row] = np.datetime64(match[1], "ns") if match else "NaT"
        except ValueError:  # such as a 13th month
            stamps[row] = "NaT"
        if np.isnat(stamps[row]):
            raise InputError(f"{where(row)}: {what} must be a time such as 2023-11-16 18:15:46.6805900, got {cell!r}.")
    # Whole nanoseconds until the one division: exact to the last of the seven digits.
    since: FloatArray = (stamps - stamps.min()).astype(np.int64) / 1e6
    return since


def _counts(what: str, cells: Sequence[str], where: Where) -> IntArray:
    return counts(what, *_parsed(cells, where))


def _parsed(cells: Sequence[str], where: Where) -> tuple[list[float], Where, Sequence[str]]:
    """Return the arguments of `times` and `counts`: numbers, NaN where a cell is none, and the cells to show."""
    return [_float(cell) for cell in cells], where, cells


def _float(cell: str) -> float:
    try:
        return float("nan" if "_" in cell else cell)
    except ValueError:
        return float("nan")


def _labels(cells: Sequence[str]) -> list[Label | None]:
    """Return labels, None for an empty cell; numbers when every other cell is a whole number."""
    stripped = [cell.strip() for cell in cells]
    numbered = all(_WHOLE.fullmatch(cell) for cell in stripped if cell)
    return [(int(cell) if numbered else cell) if cell else None for cell in stripped]
