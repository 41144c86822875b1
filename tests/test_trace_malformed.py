"""Malformed traces of every format end in an error that says where, or in the right numbers; never in a silent zero."""

import copy
import json
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import BURST_1, BURST_3, mooncake

from sweep.errors import InputError
from sweep.traces import TraceError, read

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
OWN = "request_id,arrival_ms,service_ms,session_id\n"
OWN_BLOCKS = "arrival_s,prompt_tokens,output_tokens,block_ids,block_tokens\n"

#: Values that are of the wrong type, not a number, negative or too large wherever a time or a size should stand.
BAD_JSON = (True, None, [], {}, "12", "", float("nan"), float("inf"), -1, -0.5, 2**63, 2**64, 10**40, 10**400, 1e300)
BAD_CELLS = ("", "x", "nan", "inf", "-1", "-0.5", "1e300", str(2**63), str(10**40), str(10**400), "1;5", "0x1", "true")


class Sample(NamedTuple):
    """Rows of a good file in a JSON format, where the numbers in them are, and files that must lie beside it."""

    rows: list
    numbers: tuple
    others: dict


def rag(time, ids):
    return {"timestamp": time, "input_length": 40, "output_length": 9, "hash_ids": ids, "session_id": "s"}


def chat(number, parent):
    more = {"chat_id": number, "parent_chat_id": parent, "type": "text", "turn": 1}
    return mooncake(number, 20, [number, number + 10]) | more


def turn(time, tokens, ids):
    return {"t": time, "type": "n", "in": tokens, "out": 5, "hash_ids": ids, "model": "m"}


SIZES = (("timestamp",), ("input_length",), ("output_length",))
LENGTHS = {"1_sys_prompt.jsonl": {"sys_prompt_id": 1, "token_length": 30}}
SESSION = {"id": "a", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 64, "system_tokens": 60}
SESSION |= {"requests": [turn(0, 130, [1, 2]), {"t": 3, "type": "subagent", "requests": [turn(1, 70, [1])]}]}
JSON = {
    "mooncake": Sample([mooncake(3000 * k, 600, [0, k]) for k in range(3)], SIZES, {}),
    "bailian": Sample([chat(1, -1), chat(2, 1), chat(3, 2)], SIZES, {}),
    "ragpulse": Sample([rag(str(k), {"sys_prompt": [1]}) for k in range(3)], SIZES[1:], LENGTHS),
    "kv-cache-tester": Sample(
        [SESSION],
        (
            ("block_size",),
            *(("requests", 0, name) for name in ("t", "in", "out")),
            *(("requests", 1, *path) for path in (("t",), ("requests", 0, "in"), ("requests", 0, "t"))),
        ),
        {},
    ),
}
CSV = {
    "azure": (AZURE, ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"], (0, 1, 2)),
    "burstgpt": (BURST_1, ["5,ChatGPT,472,18,490,API log", "45,GPT-4,10,23,33,API log"], (0, 2, 3, 4)),
    "burstgpt 3": (BURST_3, ["5.0,s,1,GPT-4,472,18,490,Conversation log", "6.0,,1,GPT-4,1,2,3,API log"], (0, 4, 5, 6)),
    "vidur": (VIDUR, ["0.5,374,44", "4.314579,396,109"], (0, 1, 2)),
    "own": (OWN, ["a,1.5,20,s", "b,2,30,"], (1, 2)),
    "own with blocks": (OWN_BLOCKS, ["1.5,20,3,7 8,16 4", "2,36,3,7 9,16 20"], (0, 1, 2, 4)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("malformed")


def stored(folder, form, content, others):
    for name, row in others.items():
        (folder / name).write_text(json.dumps(row) + "\n")
    path = folder / f"{form}.json"
    path.write_bytes(content)
    return path


def read_or_error(path, form):
    """Return the stream or the error, which is one sentence that names the file."""
    try:
        return read(path, format=form.partition(" ")[0])
    except TraceError as error:
        assert "\n" not in str(error) and str(error).startswith(str(path)) and error.file == str(path)
        return error


def text_of(sample):
    return "".join(json.dumps(row) + "\n" for row in sample.rows)


def numbers_of(requests):
    """Return all that a file says of its rows."""
    blocks = requests.blocks
    found = [requests.arrival_ms, requests.service_ms, requests.prompt_tokens, requests.output_tokens]
    found += [requests.session] + ([] if blocks is None else [blocks.ids, blocks.offsets, blocks.tokens])
    return [part.tolist() for part in found]


# --- What every format does with its bytes ----------------------------------------------------------------------------


def texts():
    found = {form: (text_of(sample), sample.others) for form, sample in JSON.items()}
    return found | {form: (header + "\n".join(rows) + "\n", {}) for form, (header, rows, _) in CSV.items()}


every = pytest.mark.parametrize("form", list(texts()))


@every
def test_every__byte_order_mark_line_ends_and_blank_lines_change_nothing(folder, form):
    text, others = texts()[form]
    plain = read(stored(folder, form, text.encode(), others), format=form.partition(" ")[0])
    assert len(plain) >= 2
    for other in (
        "\ufeff" + text,
        text.replace("\n", "\r\n"),
        "\ufeff" + text.replace("\n", "\r\n"),
        text.rstrip("\n"),
        "\n" + text + " \n\n",
    ):
        again = read_or_error(stored(folder, form, other.encode(), others), form)
        assert again.fingerprint() == plain.fingerprint() and numbers_of(again) == numbers_of(plain)


@every
@given(data=st.data())
def test_every__empty_or_binary_is_an_error(folder, form, data):
    text, others = texts()[form]
    content = data.draw(
        st.sampled_from([b"", b"\n", b" \r\n\r\n", b"\xef\xbb\xbf", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"])
        | st.binary(max_size=60)
        | st.binary(min_size=1, max_size=8).map(lambda noise: noise + text.encode())
        | st.integers(0, len(text)).map(lambda at: text[:at].encode() + b"\xff\x00\xfe" + text[at:].encode())
    )
    try:
        found = read_or_error(stored(folder, form, content, others), form)
    except InputError as error:  # a package of the extra is not installed
        assert "sweep[traces]" in str(error)
        return
    if not isinstance(found, TraceError):
        # Noise of blanks, or such as reads as a digit or a label.
        assert content.decode("utf-8-sig") and len(found) == len(read(stored(folder, form, text.encode(), others)))


# --- JSON -------------------------------------------------------------------------------------------------------------

every_json = pytest.mark.parametrize("form", list(JSON))


@every_json
@given(data=st.data())
def test_json__a_bad_number_names_its_line_and_column(folder, form, data):
    sample = JSON[form]
    rows = copy.deepcopy(sample.rows)
    row = data.draw(st.integers(0, len(rows) - 1))
    path = data.draw(st.sampled_from(sample.numbers))
    bad = data.draw(st.sampled_from(BAD_JSON))
    place = rows[row]
    for step in path[:-1]:
        place = place[step]
    missing = data.draw(st.booleans())
    if missing:
        del place[path[-1]]
    else:
        place[path[-1]] = bad
    found = read_or_error(stored(folder, form, text_of(sample._replace(rows=rows)).encode(), sample.others), form)
    assert isinstance(found, TraceError), bad
    assert (found.line, found.column) == (None if form == "kv-cache-tester" else row + 1, path[-1])
    assert missing or repr(found.value) == repr(bad)


@every_json
@given(data=st.data())
def test_json__ids_however_large_are_told_apart(folder, form, data):
    if form == "ragpulse":
        return  # ids without a length are an error
    sample = JSON[form]
    ids = data.draw(st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=3), min_size=3, max_size=3))
    rows = copy.deepcopy(sample.rows)
    if form == "kv-cache-tester":
        chains = [turn(k, 64, [one]) for k, one in enumerate(ids)]
        rows[0]["requests"] = chains
    else:
        chains = [row | {"input_length": 16, "hash_ids": [one]} for row, one in zip(rows, ids, strict=True)]
        rows = chains
    found = read_or_error(stored(folder, form, text_of(sample._replace(rows=rows)).encode(), sample.others), form)
    numbers: dict = {}
    assert found.blocks.ids.tolist() == [numbers.setdefault(one, len(numbers)) for one in ids]


@every_json
@given(data=st.data())
def test_json__a_line_cut_short_or_two_on_one_is_an_error(folder, form, data):
    sample = JSON[form]
    lines = [json.dumps(row) for row in sample.rows]
    row = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        lines[row] = lines[row][: data.draw(st.integers(1, len(lines[row]) - 1))]
    else:
        lines[row] += data.draw(st.sampled_from(["", " ", ",", "\t"])) + lines[row]
    found = read_or_error(stored(folder, form, "\n".join(lines).encode(), sample.others), form)
    assert isinstance(found, TraceError)
    assert found.line == row + 1


CELLS = st.sampled_from([json.dumps(value) for value in (*BAD_JSON, 0, 12, 1.5, [1], [1, "a"])] + ["", "1e400"])


@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=4), form=st.sampled_from([*JSON]))
def test_json__any_values_give_the_right_numbers_or_an_error(folder, rows, form):
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    text = "\n".join("{" + ", ".join(f'"{n}": {c}' for n, c in zip(names, row, strict=True)) + "}" for row in rows)
    found = read_or_error(stored(folder, form, text.encode(), JSON[form].others), form)
    if isinstance(found, TraceError):
        return
    # Only rows in which every value is what it should be get here, and they come through unchanged.
    assert form == "mooncake"
    expected = sorted((json.loads(row[0]), k) for k, row in enumerate(rows))
    assert found.prompt_tokens.tolist() == [json.loads(rows[k][1]) for _, k in expected]
    assert found.output_tokens.tolist() == [json.loads(rows[k][2]) for _, k in expected]
    assert found.arrival_ms.tolist() == [time - expected[0][0] for time, _ in expected]


# --- CSV --------------------------------------------------------------------------------------------------------------

every_csv = pytest.mark.parametrize("form", list(CSV))


@every_csv
@given(data=st.data())
def test_csv__a_bad_number_names_its_line_and_column(folder, form, data):
    header, rows, numbers = CSV[form]
    cells = [row.split(",") for row in rows]
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.sampled_from(numbers))
    bad = data.draw(st.sampled_from(BAD_CELLS))
    cells[row][column] = bad
    found = read_or_error(stored(folder, form, (header + "\n".join(map(",".join, cells))).encode(), {}), form)
    name = header.strip().split(",")[column]
    assert isinstance(found, TraceError), bad
    assert (found.line, found.column) == (row + 2, name)
    assert name == "block_tokens" or found.value == bad


@every_csv
@given(data=st.data())
def test_csv__a_line_cut_short_or_two_on_one_is_an_error(folder, form, data):
    header, rows, _ = CSV[form]
    lines = list(rows)
    row = data.draw(st.integers(0, len(rows) - 1))
    if data.draw(st.booleans()):
        # Up to the last comma; what is cut from the digits behind it cannot be seen.
        lines[row] = lines[row][: data.draw(st.integers(1, lines[row].rindex(",")))]
    else:
        lines[row] += data.draw(st.sampled_from([",", " ", ""])) + lines[row]
    found = read_or_error(stored(folder, form, (header + "\n".join(lines) + "\n").encode(), {}), form)
    assert isinstance(found, TraceError)
    assert found.line == row + 2


@every_csv
@given(
    rows=st.lists(st.text(alphabet='019.,-e"\r\n an\t:', max_size=30), max_size=4),
    start=st.sampled_from(["", "\ufeff"]),
)
def test_csv__any_text_gives_a_stream_or_an_error(folder, form, rows, start):
    content = (start + CSV[form][0] + "\n".join(rows)).encode()
    found = read_or_error(stored(folder, form, content, {}), form)
    if not isinstance(found, TraceError):
        assert len(found) > 0 and np.isfinite(found.arrival_ms).all() and (found.service_ms >= 0).all()


# --- Parquet ----------------------------------------------------------------------------------------------------------


@given(
    column=st.sampled_from(["arrival_ms", "prompt_tokens", "output_tokens", "block_tokens"]),
    bad=st.sampled_from([None, float("nan"), float("inf"), -1.0, 1e300, "x", True]),
)
def test_parquet__a_bad_number_names_its_row_and_column(folder, column, bad):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {"arrival_ms": [1.5, 2.0], "prompt_tokens": [20, 20], "output_tokens": [3, 3], "block_tokens": [16, 16]}
    chains = pa.array([[7, 2**64 - 1], [7]], pa.list_(pa.uint64()))
    path = folder / "own.parquet"
    pq.write_table(pa.table({**columns, "block_ids": chains}), path)
    assert read(path).blocks.ids.tolist() == [0, 1, 0]
    columns[column] = [bad, bad]
    pq.write_table(pa.table({**columns, "block_ids": chains}), path)
    found = read_or_error(path, "own")
    assert isinstance(found, TraceError) and found.column == column and found.line == 2
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    assert isinstance(read_or_error(path, "own"), TraceError)
