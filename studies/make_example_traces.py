"""Makes the files in ``example_traces``: small invented traffic in each public format, with that format's quirks.

``python studies/make_example_traces.py`` writes them anew, byte for byte the same. They show what files look like and
let `sweep study real_traces --quick` run where no public trace is; nothing can be concluded from them.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "example_traces"


def make(folder: Path) -> None:
    """Write every file to `folder`."""
    files = _mooncake() | _bailian() | _ragpulse() | _kv_cache_tester() | _azure() | _burstgpt() | _vidur()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def _arrivals(draw: random.Random, count: int, gap_s: float) -> list[float]:
    """Return Poisson arrivals [s] from 0."""
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + draw.expovariate(1 / gap_s))
    return times


def _dialogues(draw: random.Random, count: int, size: int) -> Iterator[tuple[int, int, int, int, list[int]]]:
    """Yield (request, the one it goes on with or -1, prompt tokens, output tokens, blocks) of dialogues.

    All begin with the same block; a request that goes on repeats the whole blocks of the one before.
    """
    known: list[tuple[int, list[int]]] = []
    used = 1
    for number in range(count):
        parent = draw.randrange(max(0, number - 60), number) if number and draw.random() < 0.6 else -1
        before, shared = known[parent] if parent >= 0 else (size, [0])
        tokens = before + draw.randrange(size // 2, 4 * size)
        kept = shared[: max(1, before // size)]
        blocks = [*kept, *range(used, used + -(-tokens // size) - len(kept))]
        used += len(blocks) - len(kept)
        known.append((tokens, blocks))
        yield number, parent, tokens, draw.randrange(20, 500), blocks


def _mooncake() -> dict[str, str]:
    draw = random.Random(1)
    times = _arrivals(draw, 300, 0.4)
    rows = [
        # A clock that ticks every three seconds.
        {"timestamp": int(time // 3) * 3000, "input_length": tokens, "output_length": output, "hash_ids": blocks}
        for time, (_, _, tokens, output, blocks) in zip(times, _dialogues(draw, 300, 512), strict=True)
    ]
    return {"mooncake.jsonl": _lines(rows)}


def _bailian() -> dict[str, str]:
    draw = random.Random(2)
    times = _arrivals(draw, 120, 0.5)
    turns: dict[int, int] = {-1: 0}
    rows = []
    for time, (number, parent, tokens, output, blocks) in zip(times, _dialogues(draw, 120, 16), strict=True):
        turns[number] = turns[parent] + 1
        row: dict[str, Any] = {"chat_id": number, "parent_chat_id": parent, "timestamp": round(time, 3)}
        row |= {"input_length": tokens, "output_length": output, "type": "text", "turn": turns[number]}
        rows.append(row | {"hash_ids": blocks})
    return {"bailian.jsonl": _lines(rows)}


def _ragpulse() -> dict[str, str]:
    draw = random.Random(3)
    lengths: dict[str, list[int]] = {
        name: [draw.randrange(low, high) for _ in range(count)]
        for name, low, high, count in (
            ("sys_prompt", 300, 512, 3),
            ("passage", 80, 900, 60),
            ("history", 40, 512, 40),
            ("user_input", 5, 200, 100),
            ("web_search", 100, 512, 10),
        )
    }
    rows = []
    for number, time in enumerate(_arrivals(draw, 160, 40.0)):
        # Few passages are asked for often.
        found = sorted({int(draw.paretovariate(0.8)) % 60 for _ in range(draw.randrange(1, 6))})
        parts = {"sys_prompt": [0, draw.randrange(1, 3)], "passages_ids": found, "history": [], "web_search": []}
        if draw.random() < 0.4:
            parts["history"] = [draw.randrange(40)]
        parts["user_input"] = [number % 100]
        tables = ("sys_prompt", "passage", "history", "web_search", "user_input")
        tokens = sum(
            lengths[table][item] for table, items in zip(tables, parts.values(), strict=True) for item in items
        )
        row: dict[str, Any] = {"timestamp": str(int(time)), "input_length": tokens + 8}
        row |= {"output_length": draw.randrange(20, 600), "hash_ids": parts, "session_id": f"s{number // 2 % 50}"}
        rows.append(row)
    rows[100], rows[101] = rows[101], rows[100]
    # A blank line at the end.
    files = {"ragpulse/0_trace.jsonl": _lines(rows) + "\n"}
    for place, (table, known) in enumerate(lengths.items(), 1):
        content = [{f"{table}_id": item, "token_length": length} for item, length in enumerate(known)]
        files[f"ragpulse/{place}_{table}.jsonl"] = _lines(content)
    return files


def _kv_cache_tester() -> dict[str, str]:
    draw = random.Random(4)
    files = {}
    for number in range(6):
        used = 0

        def turns(count: int, tokens: int, time: float = 0.0) -> list[dict[str, Any]]:
            nonlocal used
            blocks: list[int] = []
            found = []
            for _ in range(count):
                # Only whole blocks have an id.
                fresh = tokens // 64 - len(blocks)
                blocks = [*blocks, *range(used + 1, used + fresh + 1)]
                used += fresh
                output = draw.randrange(50, 900)
                row = {"t": float(int(time)), "type": "n", "model": "example", "in": tokens, "out": output}
                found.append(row | {"hash_ids": blocks, "stop": "tool_use"})
                time += draw.expovariate(1 / 20)
                tokens += draw.randrange(100, 1500)
            return found

        requests = turns(draw.randrange(4, 9), draw.randrange(2500, 6000))
        if number == 2:
            agent = {"t": requests[2]["t"], "type": "subagent", "agent_id": "a", "status": "completed"}
            agent |= {"tool_tokens": 640, "system_tokens": 256, "requests": turns(3, 1500)}
            requests.insert(3, agent)
        session: dict[str, Any] = {"id": f"example_{number}", "models": 1, "block_size": 64, "hash_id_scope": "local"}
        session |= {"tool_tokens": (1600, 1800)[number % 2], "system_tokens": 400 + number // 2}
        files[f"kv-cache-tester/example_{number}.json"] = json.dumps(session | {"requests": requests}) + "\n"
    return files


def _azure() -> dict[str, str]:
    draw = random.Random(5)
    start = datetime.datetime(2023, 11, 16, 18, 15, 46)
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for time in _arrivals(draw, 200, 0.2):
        stamp = (start + datetime.timedelta(seconds=time)).strftime("%Y-%m-%d %H:%M:%S.%f") + "0"
        rows.append(f"{stamp},{draw.randrange(5, 3000)},{draw.randrange(6, 500)}")
    # CRLF, and no newline at the end.
    return {"azure.csv": "\r\n".join(rows)}


def _burstgpt() -> dict[str, str]:
    draw = random.Random(6)
    rows = ["Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for number, time in enumerate(_arrivals(draw, 200, 20.0)):
        request, response = draw.randrange(10, 3000), draw.randrange(1, 800)
        if number % 50 == 49:
            request = response = 0  # a failure
        session = "" if number % 20 == 7 else f"00000000-0000-4000-8000-{draw.randrange(60):012d}"
        kind = "Conversation log" if session else "API log"
        model = draw.choice(("ChatGPT", "GPT-4"))
        rows.append(
            f"{19440110.0 + int(time)},{session},{response // 20},{model},{request},{response},"
            f"{request + response},{kind}"
        )
    return {"burstgpt.csv": "\n".join(rows) + "\n"}


def _vidur() -> dict[str, str]:
    draw = random.Random(7)
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens"]
    rows += [f"{time:.6f},{draw.randrange(5, 3000)},{draw.randrange(6, 500)}" for time in _arrivals(draw, 100, 0.2)]
    return {"vidur.csv": "\n".join(rows) + "\n"}


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    make(FOLDER)
