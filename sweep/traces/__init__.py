"""Public trace formats -> `Requests`, and back to a format of our own.

One reader per format: ``csv_files`` for those with a header line, ``json_lines`` for those of one object per line,
``sessions`` for a folder of sessions. All give the rows in file order (``raw.Raw``); order, zero tokens, coarse
ticks and the report of what was done are the same for all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sweep.errors import InputError, one_of, unknown
from sweep.requests import Requests, ServiceModel
from sweep.traces import csv_files, json_lines, sessions
from sweep.traces.errors import TraceError
from sweep.traces.files import first_line, json_object
from sweep.traces.raw import Options, Raw, finish, report

__all__ = ["FORMATS", "TraceError", "format_of", "read", "report", "write"]

FORMATS = ("mooncake", "azure", "burstgpt", "bailian", "ragpulse", "kv-cache-tester", "vidur", "own")
_JSON = {"mooncake": json_lines.mooncake, "bailian": json_lines.bailian, "ragpulse": json_lines.ragpulse}


def read(
    path: str | os.PathLike[str],
    format: str = "auto",
    service: ServiceModel | None = None,
    blocks: str = "ceil",
    **options: Any,
) -> Requests:
    """Return the stream of a trace file, plain or compressed with gzip or zstd.

    Formats, told apart by their content when `format` is "auto":

    * ``mooncake``: JSON lines with ``timestamp`` [ms], ``input_length``, ``output_length``, ``hash_ids`` (512 tokens).
    * ``bailian``: the same with ``chat_id`` and ``parent_chat_id``, times in s, 16 tokens.
    * ``ragpulse``: JSON lines with the components of each prompt; their lengths in tables beside the file.
    * ``kv-cache-tester``: a folder of JSON files, one per session; blocks of 64 tokens.
    * ``azure``: CSV with ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens`` (2023 and 2024).
    * ``burstgpt``: CSV with ``Timestamp`` [s], ``Request tokens``, ``Response tokens`` ..., with or without
      ``Session ID``.
    * ``vidur``: CSV with ``arrived_at`` [s], ``num_prefill_tokens``, ``num_decode_tokens``.
    * ``own``: CSV or Parquet with ``arrival_ms`` (or ``arrival_s``) and either ``service_ms`` or both of
      ``prompt_tokens`` and ``output_tokens``; optionally ``request_id``, ``prefix_key``, ``session_id``, ``adapter_id``
      (empty = none), ``block_ids`` (keys with spaces between; a list in Parquet) with ``block_tokens`` (one number or
      one per block), and, the same in every row, ``base_ms``, ``prefill_ms_per_token``, ``decode_ms_per_token`` and
      ``steps``. Sorted by (arrival, request_id); a column of labels that are all whole numbers is read as numbers.

    Times count from the earliest row, but for our own format. Rows are sorted by arrival, ties in file order. What was
    done is in ``attrs`` and, as sentences, in `report`.

    Parameters
    ----------
    path
        A file in UTF-8 with any line ends, with or without a newline at its end; blank lines are skipped.
    format
        One of `FORMATS`, or "auto".
    service
        Turns tokens into service time [ms] where the file has no ``service_ms``; ``ServiceModel()`` when left out.
    blocks
        "ceil": the last, partial block of a prompt counts, as published; "floor": whole blocks only.
    **options
        ``zero_tokens`` ("keep", "drop" or "clamp" to 1: rows without prompt or output tokens), ``ticks`` ("keep", or
        "spread" requests of one time evenly at random over the tick, the least time between two), ``seed`` (of whatever
        is drawn), ``columns`` (our own format: a dict from the file's column to a field; others are then ignored),
        ``block_tokens`` (tokens of a block, where the file does not say), ``session_rate_per_s`` (kv-cache-tester:
        how many sessions begin per second; one a minute when left out), ``shared_prompt`` (kv-cache-tester, whose files
        do not say what sessions share: "none"; "tools": sessions and sub-agents of one model whose definitions of tools
        have the same number of tokens begin with the same blocks; "tools+system": and those whose system prompts do,
        too).

    Raises
    ------
    TraceError
        An `InputError` with file, line, column and value, for a file that cannot be read, is empty, or has a bad row.
    InputError
        For an unknown format or option, or one that does not apply.
    """
    where = Path(path)
    model = ServiceModel() if service is None else service
    if not isinstance(model, ServiceModel):
        raise InputError(f"service must be a sweep.ServiceModel, got {service!r}.")
    for name in options:
        if name not in Options.__dataclass_fields__:
            raise unknown("option", name, Options.__dataclass_fields__)
    settings = Options(blocks=blocks, **options)
    form = one_of("format", format, ("auto", *FORMATS))
    if form == "auto":
        # Whoever says what the columns are means our own format, whatever else they may be called.
        form = "own" if settings.columns else format_of(where)
    return finish(_raw(where, form, settings), where, settings, model)


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format of a file or folder, by what stands at its beginning."""
    where = Path(path)
    if where.is_dir():
        if not sessions.files_of(where):
            raise TraceError("cannot be read: Is a directory (a folder of sessions holds .json files).", where)
        return "kv-cache-tester"
    _, line = first_line(where)
    if not line.startswith(("{", "[")):
        return csv_files.form_of(csv_files.header_of(where))
    if '"requests"' in line or line == "{":
        return "kv-cache-tester"
    try:
        row = json_object(line, where, 1)
    except TraceError:
        # One object over many lines: no format of one object per line has files of that name.
        if line.startswith("{") and where.name.endswith((".json", ".json.gz", ".json.zst")):
            return "kv-cache-tester"
        raise
    if "chat_id" in row or "parent_chat_id" in row:
        return "bailian"
    return "ragpulse" if isinstance(row.get("hash_ids"), dict) else "mooncake"


def _raw(path: Path, form: str, options: Options) -> Raw:
    if form in _JSON:
        return _JSON[form](path, options)
    if form == "kv-cache-tester":
        return sessions.kv_cache_tester(path, options)
    if form == "own":
        return csv_files.own_file(path, options)
    return csv_files.table_file(path, options, form)


def write(requests: Requests, path: str | os.PathLike[str]) -> None:
    """Write a stream in our own format, from which `read` gives the same results bit for bit.

    The service model is written instead of service times that it made. Requests that arrive together are read back in
    order of their ids; where that is not the order they have, rows are numbered instead.

    Parameters
    ----------
    requests
        The stream.
    path
        A new file; ``.parquet`` (needs the extra ``traces``) or anything else for CSV, compressed if it ends in
        ``.gz``.

    Raises
    ------
    InputError
        When the path exists or cannot be written.
    """
    from sweep.traces.export import write_own

    write_own(requests, Path(path))
