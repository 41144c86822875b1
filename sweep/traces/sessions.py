"""The kv-cache-tester format: a folder of JSON files, one per session of a coding agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sweep import columns as checked
from sweep.columns import LONGEST_MS, MOST_TOKENS
from sweep.traces.errors import TraceError, bad_value
from sweep.traces.files import json_object, opened
from sweep.traces.json_lines import field
from sweep.traces.raw import Chains, Keys, Options, Raw

#: Sessions begin at this rate unless told otherwise: one a minute.
DEFAULT_RATE_PER_S = 1.0 / 60.0


_DEEPEST = 50


def files_of(path: Path) -> list[Path]:
    """Return the session files of a folder in order of their names, or the one file given."""
    if not path.is_dir():
        return [path]
    return sorted(item for item in path.iterdir() if item.name.endswith((".json", ".json.gz", ".json.zst")))


def kv_cache_tester(path: Path, options: Options) -> Raw:
    """Read session files: each request's time ``t`` [s] since its session began, ``in``, ``out`` and ``hash_ids``.

    Ids are local to a file. A sub-agent's requests count from its marker and belong to the session that started it.
    Files say nothing of when sessions begin, so that is drawn: a Poisson process of ``session_rate_per_s``.
    """
    options.refuse("kv-cache-tester", "columns", "block_tokens")
    files = files_of(path)
    if not files:
        raise TraceError("holds no .json files; a folder of sessions has one per session.", path)
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    owners: list[int] = []
    names: list[str] = []
    tokens: list[int] = []
    offsets = [0]
    keys: list[np.ndarray[Any, Any]] = []
    used = 0
    nested = 0
    for file in files:
        with opened(file) as stream:
            try:
                text = stream.read().decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise TraceError(
                    f"is not a text file in UTF-8 ({error.reason} at byte {error.start}).", file
                ) from error
        session = json_object(text, file, None)
        size = field(file, None, session, "block_size")
        if type(size) is not int or size < 1:
            raise bad_value(file, None, "block_size", "a whole number of 1 or more", size)
        name = session.get("id", file.stem)
        if type(name) is not str:
            raise bad_value(file, None, "id", "a string", name)
        names.append(name)
        local = Keys()
        for time, request, deep in _requests(file, session, 0.0, 0):
            nested += deep > 0
            for column, values in (("in", prompts), ("out", outputs)):
                count = field(file, None, request, column)
                if type(count) is not int or not 0 <= count <= MOST_TOKENS:
                    raise bad_value(file, None, column, "a whole number from 0 to 2**53", count)
                values.append(count)
            ids = field(file, None, request, "hash_ids")
            if not isinstance(ids, list) or not local.extend(ids):
                raise bad_value(file, None, "hash_ids", "a list of whole numbers or strings", ids)
            if len(ids) != request["in"] // size:
                raise TraceError(
                    f"hash_ids has {len(ids)} blocks, but a prompt of {request['in']} tokens has "
                    f"{request['in'] // size} whole ones of {size}.",
                    file, None, "hash_ids", len(ids),
                )  # fmt: skip
            times.append(time * 1000.0)
            owners.append(len(names) - 1)
            offsets.append(offsets[-1] + len(ids))
            tokens.append(size)
        if len(local):
            distinct, dense = np.unique(local.numbers, return_inverse=True)
            keys.append(dense + used)
            used += len(distinct)
    rate = options.session_rate_per_s or DEFAULT_RATE_PER_S
    gaps = np.random.default_rng(options.seed).standard_exponential(len(files)) * 1000.0 / rate
    owner = np.array(owners, np.int64)
    lengths = np.diff(offsets)
    notes = [
        f"{len(files):,} sessions begin at {rate:.4g} per s, drawn with seed {options.seed}; files do not say.",
        "Replayed open-loop at the recorded times: nobody waits for an answer before the next request.",
    ]
    if nested:
        notes.append(f"{nested:,} requests are of sub-agents; they belong to the session that started them.")
    return Raw(
        "kv-cache-tester",
        np.array(times, np.float64) + (np.cumsum(gaps) - gaps[0])[owner] if len(owner) else np.zeros(0),
        [1] * len(times),
        prompt=np.array(prompts, np.int64),
        output=np.array(outputs, np.int64),
        session=checked.objects([names[index] for index in owners]),
        chains=Chains(
            np.concatenate(keys) if keys else np.zeros(0, np.int64),
            np.array(offsets, np.int64),
            np.repeat(np.array(tokens, np.int64), lengths),
        ),
        in_order=False,
        notes=notes,
    )


def _requests(file: Path, holder: dict[str, Any], since: float, deep: int) -> Any:
    """Yield (time [s], request, depth) of a session and of the sub-agents nested in it."""
    found = field(file, None, holder, "requests")
    if not isinstance(found, list):
        raise bad_value(file, None, "requests", "a list", found)
    for request in found:
        if not isinstance(request, dict):
            raise bad_value(file, None, "requests", "a list of objects", request)
        time = field(file, None, request, "t")
        if type(time) not in (int, float) or not 0 <= time * 1000.0 <= LONGEST_MS:
            raise bad_value(file, None, "t", "a finite time of 0 or more", time)
        if request.get("type") == "subagent":
            if deep == _DEEPEST:
                raise TraceError(f"sub-agents stand more than {_DEEPEST} deep in each other.", file)
            yield from _requests(file, request, since + time, deep + 1)
        else:
            yield since + time, request, deep
