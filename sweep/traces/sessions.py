"""The kv-cache-tester format: a folder of JSON files, one per session of a coding agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sweep import columns as checked
from sweep.columns import LONGEST_MS, MOST_TOKENS, IntArray
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

    Ids are local to a file unless its ``hash_id_scope`` is "global". A sub-agent's requests count from its marker and
    belong to the session that started it. Files say nothing of when sessions begin, so that is drawn: a Poisson
    process of ``session_rate_per_s``.
    """
    options.refuse("kv-cache-tester", "columns", "block_tokens")
    files = files_of(path)
    if not files:
        raise TraceError("holds no .json files; a folder of sessions has one per session.", path)
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    owners: list[int] = []
    names: dict[str, int] = {}
    tokens: list[int] = []
    offsets = [0]
    everywhere = Keys()
    parts: list[tuple[Keys, int, int]] = []
    openings: list[_Opening] = []
    nested = 0
    for file in files:
        session = _session(file)
        size = field(file, None, session, "block_size")
        if type(size) is not int or size < 1:
            raise bad_value(file, None, "block_size", "a whole number of 1 or more", size)
        name = session.get("id", file.stem)
        if type(name) is not str:
            raise bad_value(file, None, "id", "a string", name)
        if name in names:
            raise bad_value(file, None, "id", "different in every file", name)
        names[name] = len(names)
        scope = session.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise bad_value(file, None, "hash_id_scope", "'local' or 'global'", scope)
        keys = everywhere if scope == "global" else Keys()
        before = len(keys)
        begun: set[int] = set()
        for time, request, holder, deep in _requests(file, session, 0.0, 0):
            nested += deep > 0
            for column, values in (("in", prompts), ("out", outputs)):
                values.append(_count(file, request, column))
            ids = field(file, None, request, "hash_ids")
            if not isinstance(ids, list) or not keys.extend(ids):
                raise bad_value(file, None, "hash_ids", "a list of whole numbers or strings", ids)
            if len(ids) != request["in"] // size:
                raise TraceError(
                    f"hash_ids has {len(ids)} blocks, but a prompt of {request['in']} tokens has "
                    f"{request['in'] // size} whole ones of {size}.",
                    file, None, "hash_ids", len(ids),
                )  # fmt: skip
            if options.shared_prompt != "none" and id(holder) not in begun:
                begun.add(id(holder))
                openings.append(_Opening.of(file, holder, request, size, len(names) - 1, offsets[-1]))
            times.append(time * 1000.0)
            owners.append(len(names) - 1)
            offsets.append(offsets[-1] + len(ids))
            tokens.append(size)
        parts.append((keys, before, len(keys)))
    rate = options.session_rate_per_s or DEFAULT_RATE_PER_S
    gaps = np.random.default_rng(options.seed).standard_exponential(len(files)) * 1000.0 / rate
    owner = np.array(owners, np.int64)
    lengths = np.diff(offsets)
    known = list(names)
    notes = [
        f"{len(files):,} sessions begin at {rate:.4g} per s, drawn with seed {options.seed}; files do not say.",
        "Replayed open-loop at the recorded times: nobody waits for an answer before the next request.",
    ]
    if nested:
        notes.append(f"{nested:,} requests are of sub-agents; they belong to the session that started them.")
    ids, note = _shared(_joined(parts), openings, len(files), options.shared_prompt)
    return Raw(
        "kv-cache-tester",
        np.array(times, np.float64) + (np.cumsum(gaps) - gaps[0])[owner] if len(owner) else np.zeros(0),
        [1] * len(times),
        prompt=np.array(prompts, np.int64),
        output=np.array(outputs, np.int64),
        session=checked.objects([known[index] for index in owners]),
        chains=Chains(ids, np.array(offsets, np.int64), np.repeat(np.array(tokens, np.int64), lengths)),
        in_order=False,
        notes=[*notes, note],
    )


def _session(file: Path) -> dict[str, Any]:
    with opened(file) as stream:
        try:
            text = stream.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TraceError(f"is not a text file in UTF-8 ({error.reason} at byte {error.start}).", file) from error
    return json_object(text, file, None)


def _count(file: Path, holder: dict[str, Any], column: str) -> int:
    count = field(file, None, holder, column)
    if type(count) is not int or not 0 <= count <= MOST_TOKENS:
        raise bad_value(file, None, column, "a whole number from 0 to 2**53", count)
    return count


class _Opening(NamedTuple):
    """What the first prompt of a session or sub-agent begins with: its blocks from `start` in the flat chains.

    The first `tools` of them hold nothing but definitions of tools; from there to `prompt` follows the system prompt.
    """

    session: int
    start: int
    tools: int
    prompt: int
    #: What two openings have in common when their tools, and their system prompts, are taken for the same.
    same_tools: tuple[Any, ...]
    same_prompt: tuple[Any, ...]

    @classmethod
    def of(
        cls, file: Path, holder: dict[str, Any], request: dict[str, Any], size: int, session: int, start: int
    ) -> _Opening:
        """Return the opening of the holder of `request`, its first."""
        tools, system = (_count(file, holder, name) for name in ("tool_tokens", "system_tokens"))
        model = field(file, None, request, "model")
        if type(model) is not str:
            raise bad_value(file, None, "model", "a string", model)
        most = request["in"] // size
        key = (model, size, tools)
        return cls(session, start, min(tools // size, most), min((tools + system) // size, most), key, (*key, system))


def _joined(parts: list[tuple[Keys, int, int]]) -> IntArray:
    """Return the keys of all files as numbers, equal where they stand for the same."""
    known: dict[int, IntArray] = {}
    used = 0
    found = [np.zeros(0, np.int64)]
    for keys, low, high in parts:
        if id(keys) not in known:
            distinct, dense = np.unique(keys.numbers, return_inverse=True)
            known[id(keys)] = dense + used
            used += len(distinct)
        found.append(known[id(keys)][low:high])
    return np.concatenate(found)


def _shared(ids: IntArray, openings: list[_Opening], sessions: int, shared_prompt: str) -> tuple[IntArray, str]:
    """Return the ids with those of openings that are taken for the same made equal, and a note that says so."""
    if shared_prompt == "none":
        return ids, "No session shares blocks with another, unless files call their ids global."
    deep = shared_prompt == "tools+system"
    same = np.arange(int(ids.max(initial=-1)) + 1)
    first: dict[tuple[Any, ...], tuple[int, IntArray]] = {}
    sharing: set[int] = set()
    for opening in openings:
        spans = [(opening.same_tools, 0, opening.tools)]
        if deep:
            spans.append((opening.same_prompt, opening.tools, opening.prompt))
        for key, low, high in spans:
            mine = ids[opening.start + low : opening.start + high]
            session, theirs = first.setdefault(key, (opening.session, same[mine]))
            count = min(len(mine), len(theirs))
            # A sub-agent may begin with the blocks of its session, which have found theirs.
            alone = same[mine[:count]] == mine[:count]
            same[mine[:count][alone]] = theirs[:count][alone]
            if session != opening.session and count:
                sharing |= {session, opening.session}
    note = (
        f"{len(sharing):,} of {sessions:,} sessions begin like another: the tools of one model are taken for the same "
        f"where they have the same number of tokens{', and so are the system prompts behind them' * deep}."
    )
    return same[ids], note


def _requests(file: Path, holder: dict[str, Any], since: float, deep: int) -> Any:
    """Yield (time [s], request, holder, depth) of a session and of the sub-agents nested in it."""
    found = field(file, None, holder, "requests")
    if not isinstance(found, list):
        raise bad_value(file, None, "requests", "a list", found)
    for request in found:
        if not isinstance(request, dict):
            raise bad_value(file, None, "requests", "a list of objects", request)
        time = field(file, None, request, "t")
        if type(time) not in (int, float) or not 0 <= time <= LONGEST_MS / 1000.0:
            raise bad_value(file, None, "t", "a finite time of 0 or more", time)
        if request.get("type") == "subagent":
            if deep == _DEEPEST:
                raise TraceError(f"sub-agents stand more than {_DEEPEST} deep in each other.", file)
            yield from _requests(file, request, since + time, deep + 1)
        else:
            yield since + time, request, holder, deep
