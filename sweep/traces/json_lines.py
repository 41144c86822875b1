"""Formats of one JSON object per line: Mooncake, Qwen-Bailian and RAGPulse."""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from sweep import columns as checked
from sweep.columns import LONGEST_MS, MOST_TOKENS, FloatArray, IntArray
from sweep.traces.errors import TraceError, bad_value
from sweep.traces.files import json_lines
from sweep.traces.raw import Chains, Keys, Options, Raw

_ROOT = -1
#: Components of a RAGPulse prompt in the order in which they stand in it, and the id column of their length table.
COMPONENTS = {
    "sys_prompt": "sys_prompt_id",
    "passages_ids": "passage_id",
    "history": "history_id",
    "web_search": "web_search_id",
    "user_input": "user_input_id",
}
_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)


class _Rows:
    """What the three formats share: typed buffers of lines, times and sizes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines, self.prompts, self.outputs = array("q"), array("q"), array("q")
        self.times = array("d")
        self.offsets = array("q", [0])
        self.keys = Keys()

    def add(self, line: int, row: dict[str, Any], time: Any, scale: float) -> None:
        # Compared before it is multiplied: a whole number may be longer than any float.
        if type(time) not in (int, float) or not 0 <= time <= LONGEST_MS / scale:
            raise bad_value(self.path, line, "timestamp", "a finite time of 0 or more", time)
        self.lines.append(line)
        self.times.append(time * scale)
        self.prompts.append(self._count(line, row, "input_length"))
        self.outputs.append(self._count(line, row, "output_length"))

    def chain(self, line: int, row: dict[str, Any], ids: Any) -> None:
        if not isinstance(ids, list) or not self.keys.extend(ids):
            bad = next((i for i in ids if type(i) not in (int, str)), ids) if isinstance(ids, list) else ids
            raise bad_value(self.path, line, "hash_ids", "a list of whole numbers or strings", bad)
        self.offsets.append(len(self.keys))

    def _count(self, line: int, row: dict[str, Any], name: str) -> int:
        value = field(self.path, line, row, name)
        if type(value) is not int or not 0 <= value <= MOST_TOKENS:
            raise bad_value(self.path, line, name, "a whole number from 0 to 2**53", value)
        return value

    def raw(self, form: str, tokens: IntArray | int, **more: Any) -> Raw:
        return Raw(
            form,
            _floats(self.times),
            self.lines,
            prompt=_whole(self.prompts),
            output=_whole(self.outputs),
            chains=Chains(self.keys.numbers, _whole(self.offsets), tokens),
            **more,
        )


def field(path: Path, line: int | None, row: dict[str, Any], name: str) -> Any:
    """Return a field of a row; raise `TraceError` when it is missing."""
    if name not in row:
        raise TraceError(f"{name} is missing.", path, line, name)
    return row[name]


def mooncake(path: Path, options: Options) -> Raw:
    """Read a Mooncake trace: ``timestamp`` [ms], ``input_length``, ``output_length``, ``hash_ids``.

    A hash id stands for 512 tokens and all before them; the last block of a prompt, usually partial, has one too.
    """
    options.refuse("mooncake", "columns", "session_rate_per_s", "shared_prompt")
    rows = _Rows(path)
    others: dict[str, int] = {}
    for line, row in json_lines(path):
        rows.add(line, row, field(path, line, row, "timestamp"), 1.0)
        rows.chain(line, row, field(path, line, row, "hash_ids"))
        if len(row) > 4:
            for name in row.keys() - {"timestamp", "input_length", "output_length", "hash_ids"}:
                others[name] = others.get(name, 0) + 1
    raw = rows.raw("mooncake", 0, notes=_ignored(others))
    return _in_blocks(raw, path, options, 512)


def bailian(path: Path, options: Options) -> Raw:
    """Read a Qwen-Bailian trace: Mooncake's fields and ``chat_id``, ``parent_chat_id`` (-1 = none); times in s.

    A session is the tree of requests below one without a parent. ``input_length`` includes the history, so that
    nothing is added up.
    """
    options.refuse("bailian", "columns", "session_rate_per_s", "shared_prompt")
    rows = _Rows(path)
    place: dict[Any, int] = {}
    parents: list[Any] = []
    for line, row in json_lines(path):
        rows.add(line, row, field(path, line, row, "timestamp"), 1000.0)
        rows.chain(line, row, field(path, line, row, "hash_ids"))
        for name in ("chat_id", "parent_chat_id"):
            if type(field(path, line, row, name)) not in (int, str):
                raise bad_value(path, line, name, "a whole number or a string", row[name])
        if place.setdefault(row["chat_id"], len(parents)) != len(parents):
            raise TraceError(f"chat_id {row['chat_id']!r} is given twice.", path, line, "chat_id", row["chat_id"])
        parents.append(row["parent_chat_id"])
    roots, orphans = _roots(list(place), place, parents, path, rows.lines)
    notes = ["Sessions by walking parent_chat_id; a prompt includes its history."]
    if orphans:
        notes.append(f"{orphans:,} rows name a parent that is not in the file; each begins a session.")
    raw = rows.raw("bailian", 0, session=checked.objects(roots), request_id=_ids(list(place)), notes=notes)
    return _in_blocks(raw, path, options, 16)


def ragpulse(path: Path, options: Options) -> Raw:
    """Read a RAGPulse trace: components of a prompt in their order, with the lengths in the tables beside the file.

    Components are content, so that a chain is made of what stands before each. The 6 to 12 tokens of the template
    that hold them together belong to no component.
    """
    options.refuse("ragpulse", "columns", "session_rate_per_s", "shared_prompt", "blocks", "block_tokens")
    tables = _length_tables(path)
    rows = _Rows(path)
    tokens = array("q")
    sessions: list[Any] = []
    for line, row in json_lines(path):
        time = field(path, line, row, "timestamp")
        if isinstance(time, str):
            if not _SECONDS.fullmatch(time):
                raise bad_value(path, line, "timestamp", "a time in seconds", time)
            time = float(time)
        rows.add(line, row, time, 1000.0)
        session = field(path, line, row, "session_id")
        if session is not None and type(session) not in (int, str):
            raise bad_value(path, line, "session_id", "a string, a whole number or null", session)
        sessions.append(session)
        parts = field(path, line, row, "hash_ids")
        if not isinstance(parts, dict) or not parts.keys() <= COMPONENTS.keys():
            raise bad_value(path, line, "hash_ids", f"an object of {', '.join(COMPONENTS)}", parts)
        chain = []
        for number, name in enumerate(COMPONENTS):
            ids = parts.get(name, [])
            if not isinstance(ids, list) or not all(type(item) is int for item in ids):
                raise bad_value(path, line, f"hash_ids.{name}", "a list of whole numbers", ids)
            for item in ids:
                if item not in tables[name]:
                    raise TraceError(
                        f"{name} {item} has no length in the tables beside the file.",
                        path,
                        line,
                        f"hash_ids.{name}",
                        item,
                    )
                # Ids of different components never stand for the same content.
                chain.append(item * len(COMPONENTS) + number)
                tokens.append(tables[name][item])
        rows.chain(line, row, chain)
    notes = ["Blocks are the components of the prompt, each with its own length; the template belongs to none."]
    return rows.raw("ragpulse", _whole(tokens), session=checked.objects(sessions), notes=notes)


def _in_blocks(raw: Raw, path: Path, options: Options, default: int) -> Raw:
    """Check the number of blocks of each row, and keep the last, partial one or not."""
    size = options.block_tokens or default
    assert raw.chains is not None and raw.prompt is not None
    lengths = np.diff(raw.chains.offsets)
    wanted = -(-raw.prompt // size)
    wrong = lengths != wanted
    if wrong.any():
        row = int(wrong.argmax())
        raise TraceError(
            f"hash_ids has {lengths[row]} blocks, but a prompt of {raw.prompt[row]} tokens has {wanted[row]} of {size} "
            "(rounded up); give block_tokens if they have another size.",
            path,
            raw.lines[row],
            "hash_ids",
            int(lengths[row]),
        )
    raw.chains.tokens = size
    if options.blocks == "floor":
        raw.chains = raw.chains.first(raw.prompt // size)
        raw.notes.append(f"{int((lengths > raw.prompt // size).sum()):,} partial last blocks left out.")
    return raw


def _roots(
    chats: list[Any], place: dict[Any, int], parents: list[Any], path: Path, lines: Any
) -> tuple[list[Any], int]:
    """Return the root of each chat, and how many name a parent that is not there."""
    roots: dict[Any, Any] = {}
    orphans = 0
    for chat in chats:
        walked: dict[Any, None] = {}
        now = chat
        while now not in roots:
            if now in walked:
                raise TraceError(f"chat {now!r} is its own ancestor.", path, lines[place[now]], "parent_chat_id", now)
            walked[now] = None
            parent = parents[place[now]]
            if parent == _ROOT or parent not in place:
                orphans += parent != _ROOT
                roots[now] = now
            else:
                now = parent
        for one in walked:
            roots[one] = roots[now]
    return [roots[chat] for chat in chats], orphans


def _length_tables(path: Path) -> dict[str, dict[int, int]]:
    tables: dict[str, dict[int, int]] = {name: {} for name in COMPONENTS}
    names = {column: name for name, column in COMPONENTS.items()}
    found = [other for other in sorted(path.parent.glob("[1-5]_*.jsonl*")) if other != path]
    for other in found:
        for line, row in json_lines(other):
            column = next((column for column in names if column in row), None)
            if column is None:
                raise TraceError(f"none of {', '.join(names)} is given.", other, line)
            key, length = row[column], field(other, line, row, "token_length")
            if type(key) is not int:
                raise bad_value(other, line, column, "a whole number", key)
            if type(length) is not int or not 0 <= length <= MOST_TOKENS:
                raise bad_value(other, line, "token_length", "a whole number from 0 to 2**53", length)
            tables[names[column]][key] = length
    if not found:
        raise TraceError("needs the tables of token lengths (1_*.jsonl to 5_*.jsonl) beside it.", path)
    return tables


def _ignored(others: dict[str, int]) -> list[str]:
    return [f"{name!r} of {count:,} rows is not used." for name, count in sorted(others.items())]


def _ids(chats: list[Any]) -> Any:
    # Requests are all named by numbers or all by strings.
    if all(type(chat) is int and abs(chat) < 2**63 for chat in chats):
        return np.array(chats, np.int64)
    return checked.objects([str(chat) for chat in chats])


def _whole(values: Any) -> IntArray:
    return np.array(values, np.int64)


def _floats(values: Any) -> FloatArray:
    return np.array(values, np.float64)
