"""Every public trace format by hand-made files, one quirk at a time."""

import json

import numpy as np
import pytest
from trace_samples import BURST_1, BURST_3, MOON, lines, mooncake

import sweep
from sweep import shaping
from sweep.errors import InputError
from sweep.traces import TraceError, read, report


def test_kv_cache_tester__two_files_of_one_id_are_not_one_session(tmp_path):
    session = {"id": "s", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps(session))
    with pytest.raises(TraceError, match=r"b\.json: id must be different in every file, got 's'") as caught:
        read(tmp_path)
    assert (caught.value.column, caught.value.value) == ("id", "s")


def test_kv_cache_tester__a_session_over_many_lines_is_told_by_its_name(written):
    text = '{ "id": "trace_0546",\n "block_size": 64, "requests": [\n{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}'
    found = read(written(text, "s.json"))
    assert found.attrs["format"] == "kv-cache-tester" and found.session_labels == ("trace_0546",)
    with pytest.raises(TraceError, match="line 1: is not one JSON object"):
        read(written(text, "s.jsonl"))


def test_report__blocks_are_those_of_the_file_however_the_stream_is_shaped(written):
    requests = read(written(lines(*MOON)))
    for shaped in (shaping.window(requests, 0.0, 1.0), shaping.repeated(requests, 3)):
        assert len(shaped.blocks.ids) != 6
        assert any("6 blocks, 3 different" in line for line in report(shaped))


def test_report__ties_and_inversions_are_among_the_rows_kept(written):
    """The rows at 9 s and, twice, at 5 s have no tokens; without them nothing is tied or out of order."""
    rows = "".join(f"{time},x,{tokens},1,{tokens + 1},y\n" for time, tokens in ((9, 0), (5, 0), (5, 3), (7, 3)))
    found = [read(written(BURST_1 + rows, "b.csv"), zero_tokens=option).attrs for option in ("keep", "drop")]
    assert [(attrs["ties"], attrs["inversions"]) for attrs in found] == [(1, 1), (0, 0)]


# --- Mooncake ---------------------------------------------------------------------------------------------------------


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


def test_mooncake__dropped_rows_take_their_blocks_with_them(written):
    rows = [mooncake(k, 1000, [0, 1 + k], output=k % 3) for k in range(6)]
    requests = read(written(lines(*rows)), zero_tokens="drop", blocks="floor")
    assert requests.request_id.tolist() == [1, 2, 4, 5] and requests.attrs["rows_dropped"] == {"no tokens": 2}
    assert requests.blocks.offsets.tolist() == [0, 1, 2, 3, 4] and requests.blocks.ids.tolist() == [0] * 4
    whole = read(written(lines(*rows)), zero_tokens="drop")
    assert whole.blocks.ids.tolist() == [0, 1, 0, 2, 0, 3, 0, 4]


def test_burstgpt__ties_are_spread_over_a_second_and_not_over_an_idle_hour(written):
    rows = "".join(f"{time},x,1,2,3,y\n" for time in (5, 5, 5, 3600, 3601, 3601))
    found = read(written(BURST_1 + rows, "b.csv"), ticks="spread").arrival_ms
    assert (np.diff(found) > 0).all()
    assert found[2] < 1000.0 and 3596e3 <= found[4] < found[5] < 3597e3
    together = read(written(BURST_1 + rows[:24], "c.csv"), ticks="spread")
    assert together.arrival_ms.tolist() == [0.0, 0.0]


# --- BurstGPT, vidur, Azure -------------------------------------------------------------------------------------------


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
    for year in ("1677", "2263", "3000"):
        late = rows.replace("2024-05-10 00:00:01", f"{year}-05-10 00:00:01")
        with pytest.raises(TraceError, match="line 3: TIMESTAMP must be a time such as"):
            read(written("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + late, "a.csv"))


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
    return {"t": time, "type": "n", "in": tokens, "out": output, "hash_ids": ids, "model": "m"}


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


def test_kv_cache_tester__agents_at_the_ends_shrinking_prompts_and_no_output(written):
    def agent(time, status):
        return {"t": time, "type": "subagent", "status": status, "requests": [turn(0.0, 70, [9]), turn(2.0, 70, [9])]}

    turns = [agent(0.0, "completed"), turn(1.0, 700, list(range(10))), turn(2.0, 130, [0, 77], 0), agent(5.0, "async")]
    requests = read(written(json.dumps(SESSION | {"requests": turns}), "s.json"))
    assert requests.arrival_ms.tolist() == [0.0, 1000.0, 2000.0, 2000.0, 5000.0, 7000.0]
    assert requests.prompt_tokens.tolist() == [70, 700, 70, 130, 70, 70]
    assert requests.blocks.lengths.tolist() == [1, 10, 1, 2, 1, 1]
    assert requests.attrs["zero_token_rows"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block_size must be a whole number of 1 or more"),
        ({"requests": {}}, "requests must be a list"),
        ({"requests": [turn(-1, 64, [1])]}, "t must be a finite time"),
        ({"requests": [turn(0, 130, [1])]}, "hash_ids has 1 blocks, but a prompt of 130 tokens has 2 whole ones"),
        ({"requests": [turn(0, 1.5, [1])]}, "in must be a whole number"),
        ({"requests": [{"t": 0}]}, "in is missing"),
        ({"hash_id_scope": "per_agent"}, "hash_id_scope must be 'local' or 'global', got 'per_agent'"),
    ],
)
def test_kv_cache_tester__bad_sessions_name_their_file(written, change, message):
    with pytest.raises(TraceError, match=message) as caught:
        read(written(json.dumps(SESSION | change), "folder/b.json").parent)
    assert caught.value.file.endswith("b.json")


def test_kv_cache_tester__global_ids_are_shared_between_files(written):
    for name, scope in (("a", "global"), ("b", "local"), ("c", "global"), ("d", None)):
        session = SESSION | {"id": name, "hash_id_scope": scope, "requests": [turn(0.0, 130, ["x", 2])]}
        if scope is None:
            del session["hash_id_scope"]
        path = written(json.dumps(session), f"folder/{name}.json").parent
    requests = read(path)
    chains = np.split(requests.blocks.ids, requests.blocks.offsets[1:-1])
    chain = {requests.session_labels[key]: chains[k].tolist() for k, key in enumerate(requests.session)}
    assert chain["a"] == chain["c"]
    assert len({*chain["a"], *chain["b"], *chain["d"]}) == 6


def opening(name, tools, system, tokens=400, model="m", agents=()):
    """Return a session whose second request has what its first has, and one block more."""
    count = tokens // 64
    turns = [turn(k, tokens + 64 * k, list(range(1, count + 1 + k))) | {"model": model} for k in range(2)]
    return SESSION | {"id": name, "tool_tokens": tools, "system_tokens": system, "requests": [*turns, *agents]}


@pytest.mark.parametrize(
    ("option", "shared", "said"),
    [
        ("none", {}, "No session shares blocks"),
        # 200 tokens of tools are 3 whole blocks; the fourth holds some of the system prompt as well.
        ("tools", {"b": 3, "c": 3}, "3 of 6 sessions begin like another"),
        ("tools+system", {"b": 5, "c": 3}, "3 of 6 sessions begin like another"),
    ],
)
def test_kv_cache_tester__prompts_taken_for_the_same(written, option, shared, said):
    for session in (
        opening("a", 200, 130),
        opening("b", 200, 130),
        opening("c", 200, 131),
        opening("d", 201, 130),
        opening("e", 200, 130, model="other"),
        opening("f", 200, 130) | {"block_size": 128, "requests": [turn(0, 400, [1, 2, 3])]},
    ):
        path = written(json.dumps(session), f"folder/{session['id']}.json").parent
    requests = read(path, shared_prompt=option)
    chains = np.split(requests.blocks.ids, requests.blocks.offsets[1:-1])
    names = [requests.session_labels[key] for key in requests.session]
    first, second = ({}, {})
    for name, chain in zip(names, chains, strict=True):
        (second if name in first else first)[name] = chain.tolist()
    for name in "bcdef":
        same = [one == other for one, other in zip(first["a"], first[name], strict=False)]
        assert sum(same) == shared.get(name, 0) == (same.index(False) if False in same else len(same)), name
        # What a session shares with itself stays.
        assert name == "f" or second[name][:-1] == first[name]
    assert any(said in note for note in report(requests))


def test_kv_cache_tester__agents_share_their_own_tools(written):
    def agent(ids):
        turns = [turn(0.0, 140, ids)]
        return {"t": 9.0, "type": "subagent", "tool_tokens": 64, "system_tokens": 64, "requests": turns}

    written(json.dumps(opening("a", 128, 64, agents=[agent([50, 51])])), "folder/a.json")
    path = written(json.dumps(opening("b", 192, 64, agents=[agent([70, 71]), agent([70, 71])])), "folder/b.json").parent
    distinct = {
        option: read(path, shared_prompt=option).blocks.distinct for option in ("none", "tools", "tools+system")
    }
    assert distinct == {"none": 18, "tools": 17, "tools+system": 16}
    # What an agent has of its own session stays shared with whom the session shares it.
    written(json.dumps(opening("a", 200, 64)), "other/a.json")
    written(json.dumps(opening("b", 300, 64, agents=[agent([50, 51]) | {"tool_tokens": 128}])), "other/b.json")
    other = written(json.dumps(opening("c", 200, 64, agents=[agent([1, 2]) | {"tool_tokens": 128}])), "other/c.json")
    assert read(other.parent, shared_prompt="tools").blocks.distinct == 7 + 9 + 4
    for bad, message in (({"tool_tokens": -1}, "tool_tokens must be"), ({"system_tokens": None}, "system_tokens must")):
        written(json.dumps(opening("b", 192, 64) | bad), "folder/b.json")
        assert len(read(path)) > 0
        with pytest.raises(TraceError, match=message):
            read(path, shared_prompt="tools")
    with pytest.raises(InputError, match="shared_prompt='tools' does not apply to a trace of the format 'mooncake'"):
        read(written(lines(*MOON)), shared_prompt="tools")
