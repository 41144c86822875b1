"""Every trace format by hand-made files, one quirk at a time; the published files where they are; malformed files."""

import gzip
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sweep
from sweep.errors import InputError
from sweep.traces import FORMATS, TraceError, format_of, read, report, write
from sweep.traces.statistics import picture, statistics, text

SHARED = Path(__file__).parents[2] / "shared" / "traces"
here = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not on this machine")


@pytest.fixture
def written(tmp_path):
    def write_file(content, name="trace.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(time, tokens, ids, output=3):
    return {"timestamp": time, "input_length": tokens, "output_length": output, "hash_ids": ids}


# --- Mooncake ---------------------------------------------------------------------------------------------------------

MOON = (mooncake(27000, 1000, [0, 7]), mooncake(27000, 512, [0]), mooncake(30000, 1030, [0, 7, 9]))


def test_mooncake__times_ties_and_chains(written):
    requests = read(written(lines(*MOON)))
    assert requests.arrival_ms.tolist() == [0.0, 0.0, 3000.0]
    assert requests.blocks.ids.tolist() == [0, 1, 0, 0, 1, 2]
    assert requests.blocks.reach.tolist() == [512, 1024, 1536]
    assert requests.service_ms.tolist() == [0.1 * n + 2.0 * 3 for n in (1000, 512, 1030)]
    assert requests.service_model == sweep.ServiceModel()
    found = requests.attrs
    assert (found["format"], found["rows_read"], found["rows_kept"], found["ties"]) == ("mooncake", 3, 3, 1)
    assert (found["span_s"], found["rate_per_s"]) == (3.0, 1.0)
    assert any("6 blocks, 3 different" in line for line in report(requests))


def test_mooncake__last_partial_block_by_option(written):
    requests = read(written(lines(*MOON)), blocks="floor")
    assert requests.blocks.lengths.tolist() == [1, 1, 2]
    assert "2 partial last blocks left out." in requests.attrs["notes"]


def test_mooncake__ids_of_64_bits_and_strings_are_kept_apart(written):
    big = 2**64 - 1
    ids = [big, big - 1, big - 2**32, "a", 2**32 - 1, -1]
    requests = read(written(lines(*(mooncake(k, 10, [one]) for k, one in enumerate([*ids, big, "-1"])))))
    assert requests.blocks.ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 6]


def test_mooncake__content_ids_are_told_apart_by_what_stands_before(written):
    requests = read(written(lines(mooncake(0, 1024, [5, 5]), mooncake(1, 1024, [6, 5]), mooncake(2, 512, [5]))))
    assert requests.blocks.ids.tolist() == [0, 1, 2, 3, 0]


def test_mooncake__a_wrong_number_of_blocks_is_an_error(written):
    with pytest.raises(TraceError, match=r"line 2: hash_ids has 1 blocks, but a prompt of 600 tokens has 2 of 512"):
        read(written(lines(MOON[0], mooncake(1, 600, [4]))))
    with pytest.raises(TraceError, match="hash_ids has 0 blocks"):
        read(written(lines(mooncake(1, 600, []))))
    assert read(written(lines(mooncake(1, 600, [4]))), block_tokens=600).blocks.reach.tolist() == [600]


def test_mooncake__ticks_spread_by_a_seed_keep_their_order(written):
    path = written(lines(*(mooncake(3000 * (k // 4), 10, [k]) for k in range(12))))
    kept, spread, again, other = (
        read(path), *(read(path, ticks="spread", seed=seed) for seed in (1, 1, 2))
    )  # fmt: skip
    assert spread.arrival_ms.tolist() == again.arrival_ms.tolist() != other.arrival_ms.tolist()
    assert (np.diff(spread.arrival_ms) > 0).all() and spread.request_id.tolist() == list(range(12))
    assert (np.floor(spread.arrival_ms / 3000.0) * 3000.0).tolist() == kept.arrival_ms.tolist()
    assert spread.attrs["ties"] == 9


# --- BurstGPT, vidur, Azure -------------------------------------------------------------------------------------------

BURST_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt__columns_by_name_blank_sessions_large_offset(written):
    rows = "19440110.0,s-1,43,GPT-4,906,446,1352,Conversation log\n19440161.0,,2,ChatGPT,36,29,65,API log\n"
    requests = read(written(BURST_3 + rows, "b.csv"))
    assert requests.arrival_ms.tolist() == [0.0, 51000.0]
    assert requests.session.tolist() == [0, -1] and requests.session_labels == ("s-1",)
    assert requests.tokens.tolist() == [1352, 65]
    assert requests.blocks is None


@pytest.mark.parametrize(
    ("option", "tokens", "zero"), [("keep", [490, 0, 7], 2), ("drop", [490], 2), ("clamp", [490, 2, 8], 2)]
)
def test_burstgpt__zero_tokens_by_option_and_counted(written, option, tokens, zero):
    rows = "5,ChatGPT,472,18,490,x\n5,GPT-4,0,0,0,x\n9,GPT-4,7,0,7,x\n"
    requests = read(written(BURST_1 + rows, "b.csv"), zero_tokens=option)
    assert requests.tokens.tolist() == tokens
    assert requests.attrs["zero_token_rows"] == zero
    assert requests.attrs["rows_dropped"] == ({"no tokens": 2} if option == "drop" else {})
    assert any("2 rows without prompt or output tokens" in line for line in report(requests))


def test_burstgpt__all_rows_dropped_is_an_error(written):
    with pytest.raises(TraceError, match="nothing is left"):
        read(written(BURST_1 + "5,x,0,0,0,x\n", "b.csv"), zero_tokens="drop")


def test_burstgpt__a_wrong_total_is_said(written):
    requests = read(written(BURST_1 + "5,x,1,2,4,x\n", "b.csv"))
    assert requests.attrs["notes"] == ["1 rows whose total is not the sum of request and response tokens."]


def test_vidur__seconds_to_ms(written):
    content = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n"
    requests = read(written(content, "v.csv"))
    assert requests.attrs["format"] == "vidur"
    assert requests.arrival_ms.tolist() == [0.0, 4.314579 * 1000.0]
    with pytest.raises(TraceError, match="missing: 'arrived_at'"):
        read(written("num_prefill_tokens,num_decode_tokens,num_total_tokens\n1,2,3\n", "w.csv"))


def test_azure__2024_stamps_with_zone_and_without_fraction(written):
    rows = "2024-05-10 00:00:00.009930+00:00,1,2\r\n2024-05-10 00:00:01+00:00,3,4\r\n"
    requests = read(written("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + rows, "a.csv"))
    assert requests.arrival_ms.tolist() == [0.0, 990.07]


# --- Qwen-Bailian -----------------------------------------------------------------------------------------------------


def chat(number, parent, time, tokens=20, ids=(1, 2)):
    row = {"chat_id": number, "parent_chat_id": parent, "timestamp": time, "input_length": tokens, "output_length": 5}
    return row | {"type": "text", "turn": 1, "hash_ids": list(ids)}


def test_bailian__sessions_from_parents_history_not_added(written):
    rows = [
        chat(10, -1, 0.5),
        chat(11, -1, 0.6),
        chat(12, 10, 1.5, 40, (1, 2, 3)),
        chat(13, 12, 2.25),
        chat(14, 99, 3.0),
    ]
    requests = read(written(lines(*rows)))
    assert requests.attrs["format"] == "bailian"
    assert requests.session.tolist() == [0, 1, 0, 0, 2]
    assert requests.session_labels == (10, 11, 14)
    assert requests.prompt_tokens.tolist() == [20, 20, 40, 20, 20]
    assert requests.blocks.reach.tolist() == [16, 32, 48]
    assert requests.arrival_ms.tolist() == pytest.approx([0.0, 100.0, 1000.0, 1750.0, 2500.0])
    assert any("1 rows name a parent that is not in the file" in note for note in requests.attrs["notes"])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([chat(1, 2, 0), chat(2, 1, 0)], "is its own ancestor"),
        ([chat(1, -1, 0), chat(1, -1, 0)], "line 2: chat_id 1 is given twice"),
        ([chat(1.5, -1, 0)], "line 1: chat_id must be a whole number or a string, got 1.5"),
        ([{k: v for k, v in chat(1, -1, 0).items() if k != "parent_chat_id"}], "line 1: parent_chat_id is missing"),
    ],
)
def test_bailian__broken_trees(written, rows, message):
    with pytest.raises(TraceError, match=message):
        read(written(lines(*rows)))


# --- RAGPulse ---------------------------------------------------------------------------------------------------------


def rag(time, session, **parts):
    return {"timestamp": time, "input_length": 100, "output_length": 9, "hash_ids": parts, "session_id": session}


@pytest.fixture
def tables(written):
    written(lines({"sys_prompt_id": 1, "token_length": 50}, {"sys_prompt_id": 2, "token_length": 5}), "1_sys.jsonl")
    written(lines({"passage_id": 1, "token_length": 20}), "2_passages.jsonl")
    written(lines({"user_input_id": 9, "token_length": 11}), "4_user.jsonl")


def test_ragpulse__components_in_prompt_order_with_their_lengths(written, tables):
    rows = [
        rag("82", "s", user_input=[9], passages_ids=[1], sys_prompt=[1, 2]),
        rag("81", "t", sys_prompt=[1], passages_ids=[1], user_input=[9]),
    ]
    requests = read(written(lines(*rows) + "\n", "0_trace.jsonl"))
    assert requests.attrs["inversions"] == 1
    assert requests.arrival_ms.tolist() == [0.0, 1000.0]
    assert requests.session_labels == ("t", "s")
    # The passage after another system prompt is another block.
    assert requests.blocks.ids.tolist() == [0, 1, 2, 0, 3, 4, 5]
    assert requests.blocks.tokens.tolist() == [50, 20, 11, 50, 5, 20, 11]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (rag("82", "s", sys_prompt=[7]), "sys_prompt 7 has no length in the tables"),
        (rag("8e2", "s"), "timestamp must be a time in seconds, got '8e2'"),
        (rag("82", "s", prompts=[1]), "hash_ids must be an object of sys_prompt"),
        (rag("82", "s", sys_prompt=["1"]), r"hash_ids\.sys_prompt must be a list of whole numbers"),
        (rag("82", 1.5), "session_id must be a string"),
    ],
)
def test_ragpulse__bad_rows(written, tables, row, message):
    with pytest.raises(TraceError, match=message) as caught:
        read(written(lines(rag("1", "s"), row), "0_trace.jsonl"))
    assert caught.value.line == 2


def test_ragpulse__needs_its_tables(written):
    with pytest.raises(TraceError, match="needs the tables of token lengths"):
        read(written(lines(rag("1", "s", sys_prompt=[1])), "0_trace.jsonl"))


# --- kv-cache-tester --------------------------------------------------------------------------------------------------


def turn(time, tokens, ids, output=1):
    return {"t": time, "type": "n", "in": tokens, "out": output, "hash_ids": ids}


SESSION = {"id": "one", "block_size": 64, "hash_id_scope": "local", "requests": [turn(0.0, 130, [1, 2])]}


def test_kv_cache_tester__local_ids_and_nested_agents(written):
    agent = {"t": 40.0, "type": "subagent", "requests": [turn(0.0, 70, [5]), turn(3.0, 140, [5, 6])]}
    first = SESSION | {"requests": [turn(0.0, 130, [1, 2]), agent, turn(50.0, 200, [1, 2, 3])]}
    written(json.dumps(first), "folder/a.json")
    path = written(json.dumps(SESSION | {"id": "two"}), "folder/b.json").parent
    requests = read(path, session_rate_per_s=0.01, seed=3)
    first_session = requests.arrival_ms[requests.session == 0]
    assert (first_session - first_session[0]).tolist() == pytest.approx([0.0, 40e3, 43e3, 50e3])
    assert sorted(requests.session_labels) == ["one", "two"]
    assert requests.blocks.distinct == 7
    notes = " ".join(report(requests))
    assert "2 requests are of sub-agents" in notes and "open-loop" in notes
    assert read(path, seed=3).fingerprint() != requests.fingerprint() != read(path, seed=4).fingerprint()
    assert read(path.parent / "folder" / "a.json").session_count == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block_size must be a whole number of 1 or more"),
        ({"requests": {}}, "requests must be a list"),
        ({"requests": [turn(-1, 64, [1])]}, "t must be a finite time"),
        ({"requests": [turn(0, 130, [1])]}, "hash_ids has 1 blocks, but a prompt of 130 tokens has 2 whole ones"),
        ({"requests": [turn(0, 1.5, [1])]}, "in must be a whole number"),
        ({"requests": [{"t": 0}]}, "in is missing"),
    ],
)
def test_kv_cache_tester__bad_sessions_name_their_file(written, change, message):
    with pytest.raises(TraceError, match=message) as caught:
        read(written(json.dumps(SESSION | change), "folder/b.json").parent)
    assert caught.value.file.endswith("b.json")


# --- Our own format ---------------------------------------------------------------------------------------------------


def test_own__columns_mapped_others_left_out(written):
    path = written("ts,who,in,out,host\n1.5,a,10,2,x\n0.5,b,20,1,y\n", "m.csv")
    mapping = {"ts": "arrival_s", "who": "session_id", "in": "prompt_tokens", "out": "output_tokens"}
    requests = read(path, columns=mapping)
    assert requests.arrival_ms.tolist() == [500.0, 1500.0]
    assert requests.session_labels == ("b", "a")
    assert requests.attrs["notes"] == ["Columns not used: 'host'."]
    with pytest.raises(TraceError, match="has no column 'when'"):
        read(path, columns=mapping | {"when": "arrival_ms"})
    with pytest.raises(InputError, match="Unknown field 'arrival'"):
        read(path, columns={"ts": "arrival"})


def test_own__blocks_and_their_tokens(written):
    header = "arrival_ms,service_ms,block_ids,block_tokens\n"
    requests = read(written(header + "0,5,a b,16\n1,5,a c,16 3\n2,5,,\n", "o.csv"))
    assert requests.blocks.ids.tolist() == [0, 1, 0, 2]
    assert requests.blocks.tokens.tolist() == [16, 16, 16, 3]
    assert requests.service_model is None
    with pytest.raises(TraceError, match="line 2: block_tokens has 3 numbers for 2 blocks"):
        read(written(header + "0,5,a b,1 2 3\n", "p.csv"))
    with pytest.raises(TraceError, match="a block has 9 tokens, but 16 where it occurs first"):
        read(written(header + "0,5,a,16\n1,5,a,9\n", "q.csv"))


def streams():
    poisson = sweep.Workload.poisson(requests=300, utilisation=0.9, replicas=3, sessions=20, prefixes=30).realise(4)
    records = [
        {"request_id": f"r{k // 2}", "arrival_ms": float(k // 3) / 7, "service_ms": 1.0 + k / 3, "session_id": "s, t"}
        | {"blocks": [k % 5, 10 + k % 3], "block_tokens": [16, 4], "prompt_tokens": 20, "output_tokens": k}
        for k in range(40)
    ]
    chained = sweep.Requests.from_records(records)
    return {
        "poisson": poisson,
        "chained": chained,
        "burst": sweep.Workload.dplb_burst().realise(42),
        "odd ids": sweep.Requests.from_arrays([0.0, 0.0, 0.1], [0.1, 1 / 3, 2.0], request_id=["10", "9", " x"]),
    }


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("name", list(streams()))
def test_own__round_trip_gives_the_same_results(tmp_path, name, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    requests = streams()[name]
    write(requests, tmp_path / f"out.{suffix}")
    again = read(tmp_path / f"out.{suffix}")
    for part in ("arrival_ms", "service_ms", "prompt_tokens", "output_tokens", "steps"):
        assert np.array_equal(getattr(again, part), getattr(requests, part)), part
    for policy in ("round_robin", "locality_aware"):
        one, two = (sweep.simulate(stream, [1.0, 0.4, 1.1], policy=policy, slack=3.0) for stream in (requests, again))
        assert one.drop_vars("request_id").identical(two.drop_vars("request_id"))


@here
def test_own__round_trip_keeps_the_service_model(tmp_path):
    model = sweep.ServiceModel(base_ms=1 / 3, prefill_ms_per_token=0.07, decode_ms_per_token=1.1)
    requests = read(SHARED / "mooncake" / "arxiv_trace_window_190rows.jsonl", service=model)
    write(requests, tmp_path / "out.csv")
    again = read(tmp_path / "out.csv")
    assert again.fingerprint() == requests.fingerprint()
    with pytest.raises(InputError, match="exists already"):
        write(requests, tmp_path / "out.csv")


# --- Files ------------------------------------------------------------------------------------------------------------


def test_file__byte_order_mark_crlf_blank_lines_and_compression(written):
    plain = lines(*MOON).encode()
    expected = read(written(plain)).fingerprint()
    variants = [
        b"\xef\xbb\xbf" + plain,
        plain.replace(b"\n", b"\r\n"),
        plain.rstrip(b"\n"),
        b"\n" + plain.replace(b"\n", b"\n\n") + b"  \n",
        gzip.compress(plain),
    ]
    for content in variants:
        assert read(written(content)).fingerprint() == expected
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.compress(plain)
    assert read(written(packed)).fingerprint() == expected
    assert read(written(packed + zstandard.compress(b""))).fingerprint() == expected
    with pytest.raises(TraceError, match="it is not a whole zstd file"):
        read(written(packed[:-5]))


@pytest.mark.parametrize(("content", "package"), [(b"PAR1 etc.", "pyarrow"), (b"\x28\xb5\x2f\xfd...", "zstandard")])
def test_file__a_package_that_is_not_installed_is_named(written, monkeypatch, content, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf'needs the package {package}: pip install "sweep\[traces\]"'):
        read(written(content))


def test_file__a_torn_parquet_is_an_error(written):
    pytest.importorskip("pyarrow")
    with pytest.raises(TraceError, match="is not a Parquet file that can be read"):
        read(written(b"PAR1 and so on"))


def test_file__a_torn_gzip_is_an_error(written):
    with pytest.raises(TraceError, match="not a whole gzip file"):
        read(written(gzip.compress(lines(*MOON).encode())[:-9]))


@pytest.mark.parametrize(
    ("line", "message", "column", "value"),
    [
        ('{"timestamp": 1, "input_len', "is not one JSON object", None, '{"timestamp": 1, "input_len'),
        (lines(mooncake(1, 1, [1])).strip() * 2, "is not one JSON object .Extra data", None, None),
        ("[1, 2]", "is not a JSON object", None, [1, 2]),
        (lines(mooncake("1", 1, [1])), "timestamp must be a finite time of 0 or more, got '1'", "timestamp", "1"),
        (lines(mooncake(True, 1, [1])), "timestamp must be", "timestamp", True),
        (lines(mooncake(-1, 1, [1])), "timestamp must be .* got -1", "timestamp", -1),
        (lines(mooncake(float("nan"), 1, [1])), "timestamp must be .* got nan", "timestamp", None),
        (lines(mooncake(1e300, 1, [1])), "timestamp must be", "timestamp", 1e300),
        (lines(mooncake(1, "2", [1])), "input_length must be a whole number .* got '2'", "input_length", "2"),
        (lines(mooncake(1, 2.0, [1])), "input_length must be", "input_length", 2.0),
        (lines(mooncake(1, 10**30, [1])), "input_length must be", "input_length", 10**30),
        (lines(mooncake(1, 1, [1], -3)), "output_length must be", "output_length", -3),
        (
            lines(mooncake(1, 1, [True])),
            "hash_ids must be a list of whole numbers or strings, got True",
            "hash_ids",
            True,
        ),
        (lines(mooncake(1, 1, [1.0])), "hash_ids must be", "hash_ids", 1.0),
        (lines(mooncake(1, 1, 5)), "hash_ids must be", "hash_ids", 5),
        (lines({"timestamp": 1}), "input_length is missing", "input_length", None),
        ("[" * 100_000, "is not", None, None),
        ('{"timestamp": ' + "1" * 5000 + "}", "is not JSON that can be read|timestamp must be", None, None),
    ],
)
def test_file__bad_line_says_where(written, line, message, column, value):
    with pytest.raises(TraceError, match=message) as caught:
        read(written(lines(MOON[0]) + line.strip() + "\n"), format="mooncake")
    error = caught.value
    assert (error.line, Path(error.file).name) == (2, "trace.jsonl")
    assert "\n" not in str(error) and "line 2: " in str(error)
    if column:
        assert error.column == column
        assert value is None or error.value == value
    assert repr(vars(pickle.loads(pickle.dumps(error)))) == repr(vars(error))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\n \n", "is empty"), (b"\x00\xff\xfe", "not a text file in UTF-8"), (b"{}", "is missing")],
)
def test_file__empty_or_binary(written, content, message):
    with pytest.raises(TraceError, match=message):
        read(written(content))


def test_options__unknown_or_out_of_place(written):
    path = written(lines(*MOON))
    with pytest.raises(InputError, match=r"Unknown option 'tick'.* Did you mean 'ticks'"):
        read(path, tick="spread")
    with pytest.raises(InputError, match="Unknown format 'moon'"):
        read(path, format="moon")
    with pytest.raises(InputError, match="Unknown blocks 'round'"):
        read(path, blocks="round")
    with pytest.raises(InputError, match=r"session_rate_per_s=2\.0 does not apply to a trace of the format 'mooncake'"):
        read(path, session_rate_per_s=2.0)
    with pytest.raises(InputError, match="blocks='floor' does not apply"):
        read(written(BURST_1 + "5,x,1,2,3,x\n", "b.csv"), blocks="floor")


CELLS = st.sampled_from(
    ["0", "12", "-3", "1.5", "nan", "inf", "1e400", "9" * 40, "true", "null", '"2"', "[]", "[1]", '[1, "a"]', "{}", ""]
)


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff", b"\x00"]),
    st.integers(0, 12),
    st.sampled_from([*FORMATS, "auto"]),
)
@settings(max_examples=300)
def test_json__fuzz_gives_the_right_numbers_or_a_trace_error(tmp_path_factory, rows, end, start, cut, form):
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    text_ = end.join("{" + ", ".join(f'"{n}": {c}' for n, c in zip(names, row, strict=True)) + "}" for row in rows)
    content = start + text_.encode()
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(content[: len(content) - cut])
    try:
        requests = read(path, format=form)
    except TraceError as error:
        assert "\n" not in str(error)
        return
    # Only rows in which every value is what it should be get here, and they come through unchanged.
    expected = sorted((json.loads(row[0]), k) for k, row in enumerate(rows))
    assert len(requests) == len(rows) and cut == 0
    assert requests.prompt_tokens.tolist() == [json.loads(rows[k][1]) for _, k in expected]
    assert requests.output_tokens.tolist() == [json.loads(rows[k][2]) for _, k in expected]
    assert requests.arrival_ms.tolist() == [time - expected[0][0] for time, _ in expected]


HEADERS = st.sampled_from(
    [BURST_1, BURST_3, "TIMESTAMP,ContextTokens,GeneratedTokens\n", "arrived_at,num_prefill_tokens,num_decode_tokens\n",
     "arrival_ms,service_ms,block_ids,block_tokens\n"]
)  # fmt: skip


@given(
    HEADERS, st.lists(st.text(alphabet='019.,-e"\r\n an\t:', max_size=30), max_size=4), st.sampled_from(["", "\ufeff"])
)
@settings(max_examples=300)
def test_csv__fuzz_gives_a_stream_or_a_trace_error(tmp_path_factory, header, rows, start):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes((start + header + "\n".join(rows)).encode())
    try:
        requests = read(path)
    except TraceError as error:
        assert "\n" not in str(error)
        return
    assert len(requests) > 0 and np.isfinite(requests.arrival_ms).all() and (requests.service_ms >= 0).all()


# --- The published files ----------------------------------------------------------------------------------------------

WHOLE = {
    "mooncake/conversation_trace.jsonl": {
        "n": 12_031, "duration_s": 3537.0, "rate_per_s": 3.4015, "cv": 3.03, "dispersion_1s": 7.89,
        "dispersion_10s": 2.09, "dispersion_60s": 2.85, "input_mean": 12_035, "input_p50": 6_909, "input_p99": 85_400,
        "input_max": 126_195, "output_mean": 342.6, "output_p50": 350, "output_p99": 1_119, "output_max": 2_000,
        "zero_output": 0, "blocks": 288_500, "distinct_blocks": 182_790, "block_reuse": 0.3664, "token_reuse": 0.3736,
        "requests_with_reuse": 0.9999,
    },
    "mooncake/arxiv_trace_window_190rows.jsonl": {
        "n": 190, "duration_s": 27.5, "rate_per_s": 6.91, "cv": 4.47, "input_mean": 7_444, "input_p50": 6_178,
        "input_p99": 30_392, "input_max": 42_101, "output_mean": 184.4, "output_p50": 32, "output_p99": 752,
        "output_max": 1_048, "zero_output": 0, "block_reuse": 0.3658, "token_reuse": 0.3805,
        "requests_with_reuse": 0.984,
    },
    "azure/AzureLLMInferenceTrace_conv.csv": {
        "n": 19_366, "duration_s": 3501.7, "rate_per_s": 5.5304, "cv": 1.09, "dispersion_1s": 1.39,
        "dispersion_10s": 4.00, "dispersion_60s": 20.6, "input_mean": 1154.7, "input_p50": 1_020, "input_p99": 4_142,
        "input_max": 14_050, "output_mean": 211.1, "output_p50": 129, "output_p99": 601, "output_max": 1_000,
        "zero_output": 0,
    },
    "burstgpt/BurstGPT_1_first400.csv": {
        "n": 400, "duration_s": 37_269, "rate_per_s": 0.0107, "cv": 4.56, "dispersion_1s": 1.01, "dispersion_10s": 1.24,
        "dispersion_60s": 2.77, "input_mean": 520.5, "input_p50": 314, "input_p99": 1_958, "input_max": 2_126,
        "output_mean": 276.5, "output_p50": 230, "output_p99": 1_421, "output_max": 2_019, "zero_output": 17,
    },
    "burstgpt/BurstGPT_3_first400.csv": {
        "n": 400, "duration_s": 41_453, "rate_per_s": 0.0096, "cv": 2.87, "dispersion_1s": 1.01, "dispersion_10s": 1.19,
        "dispersion_60s": 2.26, "input_mean": 617.4, "input_p50": 308, "input_p99": 5_929, "input_max": 25_085,
        "output_mean": 170.9, "output_p50": 101, "output_p99": 862, "output_max": 1_101, "zero_output": 1,
        "sessions": 135, "turns_mean": 2.92, "turns_max": 24, "single_turn": 59, "turn_gap_p50_s": 123,
        "turn_gap_p90_s": 1_393,
    },
    "ragpulse/0_trace.jsonl": {
        "n": 7_106, "duration_s": 604_603, "rate_per_s": 0.0118, "cv": 3.06, "dispersion_1s": 1.01,
        "dispersion_10s": 1.07, "dispersion_60s": 1.73, "input_mean": 2943.6, "input_p50": 3_140, "input_p99": 5_438,
        "input_max": 7_712, "output_mean": 283.2, "output_p50": 234, "output_p99": 891, "output_max": 2_183,
        "zero_output": 0, "sessions": 3_990, "turns_mean": 1.78, "turns_max": 25, "single_turn": 2_347,
        "turn_gap_p50_s": 40, "turn_gap_p90_s": 300, "token_reuse": 0.3143, "requests_with_reuse": 0.9996,
    },
}  # fmt: skip


@here
@pytest.mark.parametrize("name", list(WHOLE))
def test_published__statistics_of_the_whole_file(name):
    found = statistics(read(SHARED / name))
    for key, value in WHOLE[name].items():
        digits = len(str(value).partition(".")[2]) if isinstance(value, float) else 0
        # Half a unit of the last digit printed, and what its own rounding may add.
        assert abs(found[key] - value) <= 0.51 * 10.0**-digits, (key, found[key], value)


@here
def test_published__ragpulse_reuse_of_what_the_components_stand_for():
    requests = read(SHARED / "ragpulse" / "0_trace.jsonl")
    seen = requests.blocks.tokens_of(requests.blocks.seen_before(), requests.prompt_tokens)
    # The published 0.315 divides by the tokens of the components; the template's 0.3 % of the prompts are not in them.
    assert round(float(seen.sum() / requests.blocks.tokens.sum()), 3) == 0.315


@here
def test_published__formats_are_told_apart():
    expected = {
        "conversation_trace.jsonl": "mooncake",
        "0_trace.jsonl": "ragpulse",
        "kv-cache-tester": "kv-cache-tester",
    }
    for pattern in ("mooncake/conv*", "ragpulse/0*", "kv-cache-tester", "kv-cache-tester/trace_0022.json"):
        (path,) = SHARED.glob(pattern)
        assert format_of(path) == expected.get(path.name, "kv-cache-tester")
    sessions = read(SHARED / "kv-cache-tester")
    assert (len(sessions), sessions.session_count, len(sessions.blocks.ids)) == (93, 10, 54_500)


def test_statistics__text_and_picture(written):
    requests = read(written(lines(*MOON)))
    printed = text(requests)
    assert "requests " in printed and "reuse in an unbounded cache" in printed
    assert len(picture(requests).axes) == 3
    with pytest.raises(InputError, match="No time passes"):
        picture(read(written(lines(MOON[0]))))
    assert "-" in text(read(written(lines(MOON[0]))))
