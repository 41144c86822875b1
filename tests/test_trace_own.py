"""Our own trace format: its columns, and that what is written is read back with the same results bit for bit."""

import csv

import numpy as np
import pytest
from trace_samples import SHARED, here

import sweep
from sweep.errors import InputError
from sweep.traces import TraceError, read, write

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
    with pytest.raises(TraceError, match="a block has 9 tokens, but 16 where it occurs first") as caught:
        read(written(header + "0,5,a,16\n1,5,a,9\n", "q.csv"))
    assert (caught.value.line, caught.value.column, caught.value.value) == (3, "block_tokens", 9)


def test_own__a_bad_key_is_in_the_error(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "o.parquet"
    pq.write_table(pa.table({"arrival_ms": [0.0], "service_ms": [5.0], "session_id": [1.0]}), path)
    with pytest.raises(TraceError, match="session_id must be") as caught:
        read(path)
    assert (caught.value.line, caught.value.column, caught.value.value) == (2, "session_id", 1.0)


def test_own__sizes_of_blocks_come_from_the_file_or_from_the_option(written):
    both = written("arrival_ms,service_ms,block_ids,block_tokens\n0,5,a b,16\n", "o.csv")
    with pytest.raises(TraceError, match="says itself how many tokens its blocks have, so block_tokens=64") as caught:
        read(both, block_tokens=64)
    assert caught.value.column == "block_tokens"
    alone = written("arrival_ms,service_ms,block_ids\n0,5,a b\n", "p.csv")
    assert read(alone, block_tokens=64).blocks.tokens.tolist() == [64, 64]


def test_own__keys_of_blocks_are_the_same_in_every_row(written):
    header = "arrival_ms,service_ms,block_ids,block_tokens\n"
    big = 2**64 - 1
    rows = f"0,5,7 {big},16\n1,5,7 a,16\n2,5,7,16\n3,5,{big},16\n4,5,{big - 1},16\n"
    assert read(written(header + rows, "o.csv")).blocks.ids.tolist() == [0, 1, 0, 2, 0, 3, 4]
    for cell in ('"[7, 8]"', '"7,8"', "7;8", "(7 8)", "\"'7' '8'\""):
        with pytest.raises(TraceError, match="block_ids must be whole numbers or strings with spaces between"):
            read(written(f"{header}0,5,{cell},16\n", "o.csv"))


def test_own__a_chain_of_ten_thousand_blocks(tmp_path):
    chain = [10**14 + k for k in range(20_000)]
    requests = sweep.Requests.from_records(
        [{"arrival_ms": 0.0, "service_ms": 1.0, "blocks": chain, "block_tokens": 16, "prompt_tokens": 320_000}]
    )
    path = tmp_path / "long.csv"
    text = ",".join(["0.0", "1.0", " ".join(map(str, chain)), "16"])
    path.write_text("arrival_ms,service_ms,block_ids,block_tokens\n" + text + "\n")
    before = csv.field_size_limit()
    assert read(path).blocks.reach.tolist() == requests.blocks.reach.tolist()
    assert csv.field_size_limit() == before


def test_own__a_map_decides_the_format(written):
    path = written("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,x,1,2,3,y\n", "b.csv")
    columns = {"Timestamp": "arrival_s", "Request tokens": "prompt_tokens", "Response tokens": "output_tokens"}
    requests = read(path, columns=columns | {"Model": "adapter_id"})
    assert (requests.attrs["format"], requests.arrival_ms.tolist()) == ("own", [5000.0])
    assert requests.adapter_labels == ("x",)


def test_own__an_error_of_a_whole_column_knows_its_line(written):
    header = "arrival_ms,service_ms,block_ids,block_tokens\n"
    with pytest.raises(TraceError, match="line 4: a block has 9 tokens") as caught:
        read(written(header + "0,5,a,16\n\n1,5,a,9\n", "q.csv"))
    assert caught.value.line == 4


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
        "adapters": sweep.Workload.poisson(
            requests=200, utilisation=0.9, replicas=3, sessions=20, prefixes=30, adapters=4
        ).realise(5),
        "odd keys": sweep.Requests.from_arrays(
            [0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
            [0.1] * 7,
            prefix=["a", " a", "", "a\nb", None, "a", ""],
            session=[1, "1", "-0", "0", 2**70, "\ud800", None],
        ),
        "huge keys": sweep.Requests.from_arrays([0.0, 1.0, 2.0], [3.0] * 3, prefix=[2**70, 2**70 + 1, 2**70]),
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
    assert (again.adapter is None) == (requests.adapter is None)
    for policy in ("round_robin", "locality_aware"):
        speedup = {"adapter_speedup": 0.4} if requests.adapter is not None else {}
        one, two = (
            sweep.simulate(stream, [1.0, 0.4, 1.1], policy=policy, slack=3.0, **speedup) for stream in (requests, again)
        )
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
