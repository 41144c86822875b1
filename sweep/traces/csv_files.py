"""Formats with a header line: Azure, BurstGPT, vidur, and our own, which also comes as Parquet."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sweep import columns as checked
from sweep.columns import FloatArray, IntArray
from sweep.errors import InputError, one_of
from sweep.requests import RECORD_FIELDS, ServiceModel
from sweep.traces.errors import TraceError, bad_value, counts, times
from sweep.traces.files import PARQUET, first_line, needs, opened, reason_of
from sweep.traces.raw import Chains, Keys, Options, Raw, labels

#: Rows converted at a time: text takes ten times the memory of the numbers it stands for.
_CHUNK = 50_000
_TOKEN_FIELDS = RECORD_FIELDS[5:]
MODEL_FIELDS = tuple(asdict(ServiceModel()))
#: Columns of our own format beyond those of a record.
OWN_FIELDS = (*RECORD_FIELDS, "adapter_id", "arrival_s", "block_ids", "block_tokens", *MODEL_FIELDS, "steps")

# Seven digits of fraction in 2023 (100 ns ticks), six or none and a zone of +00:00 in 2024. A count of ns in 64 bits
# ends in 2262, and would begin anew without a word.
_TIMESTAMP = re.compile(r"((?:19[7-9]|2[01]\d)\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:\+00:00|Z)?", re.ASCII)
# A list as some program writes it, of which splitting at spaces would make other keys.
_LISTED = re.compile(r"[,;()\[\]{}'\"]")
# Long prompts have ten thousand blocks; the csv module stops at 131,072 characters a cell.
_LONGEST_CELL = 2**30

Cells = dict[str, Sequence[Any]]


class _Chunk(NamedTuple):
    """Some rows: their lines, and the cells of each column."""

    lines: list[int]
    cells: Cells


class _Form(NamedTuple):
    """A format: columns that must and that may be there, and how a chunk becomes arrays by name of `Raw`."""

    needed: tuple[str, ...]
    allowed: tuple[str, ...]
    read: Callable[[Path, _Chunk], dict[str, Any]]


def header_of(path: Path) -> list[str]:
    """Return the column names of a CSV or Parquet file."""
    start, line = first_line(path)
    if start == PARQUET:
        return list(_parquet(path).column_names)
    try:
        return [name.strip() for name in next(csv.reader([line]), [])]
    except csv.Error as error:
        raise _bad_csv(error, path, 1) from error


def form_of(header: Sequence[str]) -> str:
    """Return the format whose columns a header has most of; our own when none has any."""
    found = {name: len(set(header) & set(form.needed)) for name, form in _FORMS.items()}
    best = max(found, key=found.__getitem__)
    return best if found[best] > len(set(header) & set(OWN_FIELDS)) else "own"


def table_file(path: Path, options: Options, form: str) -> Raw:
    """Read a CSV file of one of the public formats."""
    options.refuse(form, "columns", "session_rate_per_s", "shared_prompt", "blocks", "block_tokens")
    spec = _FORMS[form]
    parts: list[dict[str, Any]] = []
    lines = array("q")
    for chunk in _chunks(path, lambda header: _check(path, header, spec.needed, spec.allowed, form)):
        lines.extend(chunk.lines)
        parts.append(spec.read(path, chunk))
    if not parts:
        raise TraceError("has a header but no rows; a trace needs at least one request.", path)
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    notes = []
    if "arrival" in columns:
        stamps = columns.pop("arrival")
        # Whole nanoseconds until the one division: exact to the last of the seven digits.
        columns["arrival_ms"] = (stamps - stamps.min()).astype(np.int64) / 1e6
    if "total" in columns:
        wrong = int((columns.pop("total") != columns["prompt"] + columns["output"]).sum())
        notes = [f"{wrong:,} rows whose total is not the sum of request and response tokens."] if wrong else []
    return Raw(form, lines=lines, notes=notes, **columns)


def own_file(path: Path, options: Options) -> Raw:
    """Read our own format: the fields of a record as columns, blocks as lists of keys, the service model as constants.

    See `sweep.traces.read` for the fields.
    """
    options.refuse("own", "session_rate_per_s", "shared_prompt", "blocks")
    mapped = dict(options.columns or {})
    for field in mapped.values():
        one_of("field", field, OWN_FIELDS)
    ignored: list[str] = []

    def check(header: list[str]) -> list[str]:
        for column in mapped:
            if column not in header:
                raise TraceError(f"has no column {column!r}; its columns are {', '.join(header)}.", path)
        fields = [mapped.get(name, name) for name in header]
        if mapped:
            # Whoever names the columns may leave others alone.
            ignored.extend(name for name in fields if name not in OWN_FIELDS)
            fields = [name if name in OWN_FIELDS else "" for name in fields]
        known = [name for name in fields if name]
        needed = ["arrival_s" if "arrival_s" in known else "arrival_ms"]
        if not set(_TOKEN_FIELDS) <= set(known):
            needed.append("service_ms")
        if "arrival_s" in known and "arrival_ms" in known:
            raise TraceError("has both arrival_ms and arrival_s; map or name only one.", path)
        _check(path, known, needed, OWN_FIELDS, "own")
        return fields

    start, _ = first_line(path)
    read = _parquet_chunks(path, check) if start == PARQUET else _chunks(path, check)
    lines = array("q")
    keys, sizes, offsets = Keys(), array("q"), array("q", [0])
    parts: list[dict[str, Any]] = []
    texts: dict[str, list[Any]] = {name: [] for name in ("prefix_key", "session_id", "adapter_id", "request_id")}
    constants: dict[str, float] = {}
    for chunk in read:
        cells = chunk.cells
        lines.extend(chunk.lines)
        parts.append(_own_numbers(path, chunk))
        for name, kept in texts.items():
            if name in cells:
                kept += cells[name]
        for row, cell in enumerate(cells.get("request_id", ())):
            if cell is None or cell == "":
                raise bad_value(
                    path, chunk.lines[row], "request_id", "a string or a whole number of 64 bits", cell or None
                )
        for name in (*MODEL_FIELDS, "steps"):
            if name in cells:
                _constant(path, chunk, name, constants)
        if "block_ids" in cells:
            _own_blocks(path, chunk, options.block_tokens, keys, sizes, offsets)
    if not parts:
        raise TraceError("has a header but no rows; a trace needs at least one request.", path)
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    model = {name: constants[name] for name in MODEL_FIELDS if name in constants}
    if model and "service_ms" in columns:
        raise TraceError(f"has both service_ms and {next(iter(model))}, which makes it out of tokens.", path)
    named = {name: _labelled(kept) if kept else None for name, kept in texts.items()}
    return Raw(
        "own",
        lines=lines,
        prefix=named["prefix_key"],
        session=named["session_id"],
        adapter=named["adapter_id"],
        request_id=named["request_id"],
        chains=Chains(keys.numbers, np.array(offsets, np.int64), np.array(sizes, np.int64))
        if len(offsets) > 1
        else None,
        model=ServiceModel(**model) if model else None,
        steps=int(constants["steps"]) if "steps" in constants else None,
        absolute=True,
        ties_by_id=True,
        notes=[f"Columns not used: {', '.join(map(repr, ignored))}."] if ignored else [],
        **columns,
    )


# --- Files ------------------------------------------------------------------------------------------------------------


def _chunks(path: Path, check: Callable[[list[str]], list[str] | None]) -> Iterator[_Chunk]:
    """Yield the rows of a CSV file that are not blank; `check` may rename its columns ('' = not wanted)."""
    line = 1
    with opened(path) as raw, _long_cells():
        # Spreadsheets write a byte order mark, which would become part of the first column's name.
        reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), strict=True)
        header: list[str] | None = None
        names: list[str] = []
        try:
            ended = False
            while not ended:
                lines: list[int] = []
                rows: list[list[str]] = []
                before = reader.line_num
                for row in islice(reader, _CHUNK):
                    if row and (row[0].strip() or any(cell.strip() for cell in row)):
                        rows.append(row)
                        lines.append(line)
                    line = reader.line_num + 1
                ended = reader.line_num == before
                if rows and header is None:
                    header = [name.strip() for name in rows.pop(0)]
                    del lines[0]
                    names = check(header) or header
                if rows:
                    yield _Chunk(lines, _cells(path, names, rows, lines))
        except UnicodeDecodeError as error:
            raise TraceError(f"is not a text file in UTF-8 ({error.reason} at byte {error.start}).", path) from error
        except csv.Error as error:
            raise _bad_csv(error, path, line) from error
    if header is None:
        raise TraceError(f"is empty; its first line must name the columns ({formats()}).", path)


def _bad_csv(error: csv.Error, path: Path, line: int) -> TraceError:
    if "new-line" in str(error):
        return TraceError("line ends must be LF or CRLF.", path, line)
    return TraceError(f"{reason_of(error)}.", path, line)


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _cells(path: Path, names: list[str], rows: list[list[str]], lines: list[int]) -> Cells:
    if set(map(len, rows)) != {len(names)}:
        bad = next(i for i, row in enumerate(rows) if len(row) != len(names))
        raise TraceError(f"found {len(rows[bad])} cells, but the header names {len(names)} columns.", path, lines[bad])
    return {name: cells for name, cells in zip(names, zip(*rows, strict=True), strict=True) if name}


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise needs("pyarrow", "a Parquet file") from None
    try:
        return pq.read_table(path)
    except Exception as error:
        raise TraceError(f"is not a Parquet file that can be read ({reason_of(error)}).", path) from error


def _parquet_chunks(path: Path, check: Callable[[list[str]], list[str]]) -> Iterator[_Chunk]:
    table = _parquet(path)
    names = check(list(table.column_names))
    for low in range(0, table.num_rows, _CHUNK):
        part = table.slice(low, _CHUNK)
        cells = {name: part.column(k).to_pylist() for k, name in enumerate(names) if name}
        # Rows of a Parquet file have no lines; the header of a CSV file would have been line 1.
        yield _Chunk(list(range(low + 2, low + 2 + part.num_rows)), cells)


def _check(path: Path, header: list[str], needed: Sequence[str], allowed: Sequence[str], form: str) -> None:
    wrong = {
        "missing": [name for name in needed if name not in header],
        "unknown": [name for name in header if name not in allowed],
        "repeated": sorted({name for name in header if header.count(name) > 1}),
    }
    said = "; ".join(f"{kind}: {', '.join(map(repr, names))}" for kind, names in wrong.items() if names)
    if said:
        column = next(name for names in wrong.values() for name in names)
        shown = (
            f"{formats()}, or name the columns with --map / columns="
            if form == "own"
            else ",".join(_FORMS[form].needed)
        )
        raise TraceError(f"has the wrong columns ({said}); its header must be {shown}.", path, None, column)


def formats() -> str:
    """Return the headers that are understood."""
    first, *rest = RECORD_FIELDS[:5]
    own = f"{first},arrival_ms or arrival_s,{','.join(rest[1:])}[,{','.join(RECORD_FIELDS[5:])}]"
    return "; ".join([*(f"{name}: {','.join(form.needed)}" for name, form in _FORMS.items()), f"own: {own}"])


# --- Public formats ---------------------------------------------------------------------------------------------------


def _azure(path: Path, chunk: _Chunk) -> dict[str, Any]:
    stamp, context, generated = _FORMS["azure"].needed
    return {
        "arrival": _timestamps(path, chunk, stamp),
        "prompt": counts(path, chunk.lines, context, chunk.cells[context]),
        "output": counts(path, chunk.lines, generated, chunk.cells[generated]),
    }


def _burstgpt(path: Path, chunk: _Chunk) -> dict[str, Any]:
    lines, cells = chunk
    request, response, total = "Request tokens", "Response tokens", "Total tokens"
    found: dict[str, Any] = {
        "arrival_ms": times(path, lines, "Timestamp", cells["Timestamp"], 1000.0),
        "prompt": counts(path, lines, request, cells[request]),
        "output": counts(path, lines, response, cells[response]),
        "total": counts(path, lines, total, cells[total]),
    }
    if "Session ID" in cells:
        found["session"] = checked.objects([cell.strip() or None for cell in cells["Session ID"]])
    return found


def _vidur(path: Path, chunk: _Chunk) -> dict[str, Any]:
    arrived, prefill, decode = _FORMS["vidur"].needed
    return {
        "arrival_ms": times(path, chunk.lines, arrived, chunk.cells[arrived], 1000.0),
        "prompt": counts(path, chunk.lines, prefill, chunk.cells[prefill]),
        "output": counts(path, chunk.lines, decode, chunk.cells[decode]),
    }


def _timestamps(path: Path, chunk: _Chunk, column: str) -> Any:
    """Return times of day as datetime64[ns]."""
    cells = chunk.cells[column]
    matches = [_TIMESTAMP.fullmatch(cell.strip()) for cell in cells]
    texts = [match[1] if match else "NaT" for match in matches]
    try:
        stamps = np.array(texts, "datetime64[ns]")
    except ValueError:  # such as a 13th month
        stamps = np.array([_stamp(text) for text in texts], "datetime64[ns]")
    bad = np.isnat(stamps)
    if bad.any():
        row = int(bad.argmax())
        raise bad_value(path, chunk.lines[row], column, "a time such as 2023-11-16 18:15:46.6805900", cells[row])
    return stamps


def _stamp(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "ns")
    except ValueError:
        return np.datetime64("NaT")


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_FORMS = {
    "azure": _Form(_AZURE, _AZURE, _azure),
    "burstgpt": _Form(_BURSTGPT, (*_BURSTGPT, "Session ID", "Elapsed time"), _burstgpt),
    "vidur": _Form(_VIDUR, (*_VIDUR, "num_total_tokens", "pd_ratio"), _vidur),
}


# --- Our own format ---------------------------------------------------------------------------------------------------


def _own_numbers(path: Path, chunk: _Chunk) -> dict[str, Any]:
    lines, cells = chunk
    scale, arrival = (1000.0, "arrival_s") if "arrival_s" in cells else (1.0, "arrival_ms")
    found: dict[str, FloatArray | IntArray] = {"arrival_ms": times(path, lines, arrival, cells[arrival], scale)}
    if "service_ms" in cells:
        found["service_ms"] = times(path, lines, "service_ms", cells["service_ms"])
    for name, field in (("prompt", "prompt_tokens"), ("output", "output_tokens")):
        if field in cells:
            found[name] = counts(path, lines, field, cells[field])
    return found


def _own_blocks(path: Path, chunk: _Chunk, size: int | None, keys: Keys, sizes: Any, offsets: Any) -> None:
    lines, cells = chunk
    if size is None and "block_tokens" not in cells:
        raise TraceError("has block_ids but no block_tokens; give that column or the option.", path)
    if size is not None and "block_tokens" in cells:
        raise TraceError(
            f"says itself how many tokens its blocks have, so block_tokens={size} does not apply.", path, None,
            "block_tokens",
        )  # fmt: skip
    found: list[Any] = []
    lengths: list[int] = []
    for row, cell in enumerate(cells["block_ids"]):
        # Keys of text stay text, in every row: "7" would not be the 7 of another.
        chain = cell if isinstance(cell, list) else [] if cell is None else str(cell).split()
        if _LISTED.search(cell) if isinstance(cell, str) else not {*map(type, chain)} <= {int, str}:
            raise bad_value(path, lines[row], "block_ids", "whole numbers or strings with spaces between", cell)
        found += chain
        lengths.append(len(chain))
    keys.extend(found)
    offsets.extend((offsets[-1] + np.cumsum(lengths)).tolist())
    if size is not None:
        sizes.extend([size] * len(found))
        return
    # Nearly all rows say the same.
    known: dict[str, list[int]] = {}
    for row, (given, length) in enumerate(zip(cells["block_tokens"], lengths, strict=True)):
        tokens = known.get(str(given))
        if tokens is None:
            items = given if isinstance(given, list) else [] if given is None else str(given).split()
            tokens = counts(path, [lines[row]] * len(items), "block_tokens", items).tolist()
            known[str(given)] = tokens
        tokens = tokens * length if len(tokens) == 1 else tokens
        if len(tokens) != length:
            raise TraceError(
                f"block_tokens has {len(tokens)} numbers for {length} blocks; give one for each, or one for all.",
                path, lines[row], "block_tokens", given,
            )  # fmt: skip
        sizes.extend(tokens)


def _constant(path: Path, chunk: _Chunk, name: str, constants: dict[str, float]) -> None:
    lines, cells = chunk
    values = (counts if name == "steps" else times)(path, lines, name, cells[name])
    first = constants.setdefault(name, float(values[0]))
    if (values != first).any():
        row = int((values != first).argmax())
        raise bad_value(path, lines[row], name, f"the same in every row, {first:g}", cells[name][row])


def _labelled(cells: list[Any]) -> Any:
    if all(isinstance(cell, str) for cell in cells):
        return labels(cells)
    return checked.objects(cells)


def parse_map(text: str) -> dict[str, str]:
    """Return the columns that ``column=field,...`` maps to fields."""
    found: dict[str, str] = {}
    for part in text.split(","):
        column, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not column or not name:
            raise InputError(f"{part!r} is not of the form column=field; fields are {', '.join(OWN_FIELDS)}.")
        found[column] = one_of("field", name, OWN_FIELDS)
    return found
