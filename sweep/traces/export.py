"""Our own format, written."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sweep.columns import IntArray, Label
from sweep.errors import InputError
from sweep.requests import Requests
from sweep.traces.files import needs


def write_own(requests: Requests, path: Path) -> None:
    """Write a stream to a new file, whole or not at all."""
    if path.exists():
        raise InputError(
            f"The output {str(path)!r} exists already and is not overwritten; remove it or choose another."
        )
    if not path.parent.is_dir():
        raise InputError(f"The folder {str(path.parent)!r} of the output does not exist; create it first.")
    columns = _columns(requests)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.suffix == ".parquet":
            _parquet(columns, part)
        else:
            _csv(columns, part, compressed=path.suffix == ".gz")
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)


def _columns(requests: Requests) -> dict[str, Sequence[Any]]:
    """Return the columns; numbers as Python writes them, which reads back to the same bits."""
    n = len(requests)
    found: dict[str, Sequence[Any]] = {"request_id": _ids(requests), "arrival_ms": requests.arrival_ms.tolist()}
    if requests.service_model is None:
        found["service_ms"] = requests.service_ms.tolist()
    found["prefix_key"] = _keys(requests.prefix, requests.prefix_labels)
    found["session_id"] = _keys(requests.session, requests.session_labels)
    if requests.adapter is not None:
        found["adapter_id"] = _keys(requests.adapter, requests.adapter_labels)
    found["prompt_tokens"] = requests.prompt_tokens.tolist()
    found["output_tokens"] = requests.output_tokens.tolist()
    if requests.blocks is not None:
        for name, values in (("block_ids", requests.blocks.ids), ("block_tokens", requests.blocks.tokens)):
            found[name] = [part.tolist() for part in np.split(values, requests.blocks.offsets[1:-1])] if n else []
    if requests.service_model is not None:
        found |= {name: [value] * n for name, value in asdict(requests.service_model).items()}
    if requests.steps is not None:
        found["steps"] = [requests.steps] * n
    return found


def _keys(ids: IntArray, known: Sequence[Label]) -> list[Any]:
    """Return the key of each request, None for none; its number where keys would not be told apart as cells."""
    texts = {str(label) for label in known}
    kept = len(texts) == len(known) and all(map(_plain, texts))
    return [None if key < 0 else known[key] if kept else key for key in ids.tolist()]


def _plain(text: str) -> bool:
    """Return whether a reader gives a text back as it is."""
    return bool(text) and text == text.strip() and text.isprintable()


def _ids(requests: Requests) -> list[Any]:
    ids = requests.request_id.tolist()
    pairs = list(zip(requests.arrival_ms.tolist(), ids, strict=True))
    plain = all(not isinstance(one, str) or _plain(one) for one in ids)
    # Text that looks like numbers comes back as numbers, which sort otherwise.
    numbers = any(isinstance(one, str) and one.lstrip("-").isdigit() for one in ids)
    kept = plain and not numbers and all(a <= b for a, b in pairwise(pairs))
    return ids if kept else list(range(len(ids)))


def _csv(columns: dict[str, Sequence[Any]], path: Path, *, compressed: bool) -> None:
    def cell(value: Any) -> str:
        if isinstance(value, list):
            same = len(set(value)) == 1 and len(value) > 1
            return " ".join(map(str, value[:1] if same else value))
        return "" if value is None else repr(value) if isinstance(value, float) else str(value)

    with path.open("wb") as raw:
        # No time and no name, so that the same stream gives the same bytes.
        packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if compressed else None
        text = io.TextIOWrapper(packed or raw, encoding="utf-8", newline="")
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(map(cell, row) for row in zip(*columns.values(), strict=True))
        text.detach()
        if packed is not None:
            packed.close()


def _parquet(columns: dict[str, Sequence[Any]], path: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise needs("pyarrow", "a Parquet file") from None
    for name in columns.keys() & {"prefix_key", "session_id", "adapter_id"}:
        if any(isinstance(value, str) or not -(2**63) <= (value or 0) < 2**63 for value in columns[name]):
            columns[name] = [None if value is None else str(value) for value in columns[name]]
    pq.write_table(pa.table(dict(columns)), path)
