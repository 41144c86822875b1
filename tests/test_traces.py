"""Trace files: both formats, their quirks, and errors that name file, line and column."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.errors import InputError
from sweep.requests import Requests, ServiceModel
from sweep.traces import read as read_csv

AZURE = Path(__file__).parents[2] / "shared" / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"

# As the public files are: CRLF, seven digits of fraction, no newline after the last row.
TINY = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 18:15:46.6805900,374,44\r\n"
    b"2023-11-16 18:15:50.9951690,396,109\r\n"
    b"2023-11-16 18:15:51.2224671,879,55"
)
RECORDS = "request_id,arrival_ms,service_ms,prefix_key,session_id\n"


@pytest.fixture
def written(tmp_path):
    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.skipif(not AZURE.exists(), reason="the shared traces are not on this machine")
def test_azure__whole_file():
    requests = Requests.from_csv(AZURE)
    assert len(requests) == 19_366
    assert requests.arrival_ms[0] == 0.0
    assert requests.arrival_ms[-1] / 1000.0 == pytest.approx(3501.7, abs=0.05)
    assert (np.diff(requests.arrival_ms) > 0).all()
    assert requests.prompt_tokens.mean() == pytest.approx(1154.7, abs=0.05)
    assert requests.output_tokens.mean() == pytest.approx(211.1, abs=0.05)
    assert requests.request_id.tolist() == list(range(19_366))
    assert requests.prefix_count == requests.session_count == 0
    assert requests.attrs["format"] == "azure"
    assert (requests.attrs["rows_read"], requests.attrs["rows_kept"]) == (19_366, 19_366)
    assert (requests.attrs["ties"], requests.attrs["inversions"]) == (0, 0)


def test_azure__crlf_seven_digits_no_final_newline(written):
    requests = Requests.from_csv(written(TINY), service=ServiceModel(base_ms=1.0))
    assert requests.arrival_ms.tolist() == [0.0, 4314.579, 4541.8771]
    assert requests.prompt_tokens.tolist() == [374, 396, 879]
    assert requests.output_tokens.tolist() == [44, 109, 55]
    assert requests.service_ms.tolist() == [1 + 0.1 * p + 2.0 * o for p, o in [(374, 44), (396, 109), (879, 55)]]


@pytest.mark.parametrize("suffix", [b"\r\n", b"\r\n\r\n", b"\n \n"])
def test_azure__final_newline_and_blank_lines_do_not_matter(written, suffix):
    plain, other = read_csv(written(TINY)), read_csv(written(TINY + suffix, "other.csv"))
    assert plain.fingerprint() == other.fingerprint()


def test_azure__byte_order_mark_zone_and_short_fractions(written):
    content = b"\xef\xbb\xbf" + TINY.replace(b"46.6805900,", b"46+00:00,").replace(b"50.9951690", b"50.995169+00:00")
    assert read_csv(written(content)).arrival_ms.tolist() == [0.0, 4995.169, 5222.4671]


def test_azure__out_of_order_counts_from_the_earliest(written):
    lines = TINY.split(b"\r\n")
    requests = read_csv(written(b"\n".join([lines[0], lines[2], lines[1], lines[3]])))
    assert requests.arrival_ms.tolist() == [0.0, 4314.579, 4541.8771]
    assert requests.request_id.tolist() == [1, 0, 2]


def test_records__sorted_interned_and_back(written):
    path = written(RECORDS + 'b,5,2.5,"chat, long",s\na,5,1,,\nc,0.5,1e1,"chat, long",\n')
    requests = read_csv(path)
    assert requests.to_records() == [
        {"request_id": "c", "arrival_ms": 0.5, "service_ms": 10.0, "prefix_key": "chat, long", "session_id": None},
        {"request_id": "a", "arrival_ms": 5.0, "service_ms": 1.0, "prefix_key": None, "session_id": None},
        {"request_id": "b", "arrival_ms": 5.0, "service_ms": 2.5, "prefix_key": "chat, long", "session_id": "s"},
    ]


def test_records__same_as_from_records_through_pandas(written, tmp_path):
    import pandas as pd

    rng = np.random.default_rng(0)
    records = [
        {
            "request_id": i,
            "arrival_ms": float(rng.integers(20)) + 0.1,
            "service_ms": float(rng.exponential()),
            "prefix_key": int(rng.integers(5)),
            "session_id": f"s{rng.integers(5)}" if i % 3 else None,
        }
        for i in range(60)
    ]
    pd.DataFrame(records).to_csv(tmp_path / "frame.csv", index=False)
    assert read_csv(tmp_path / "frame.csv").to_records() == Requests.from_records(records).to_records()


def test_records__labels_are_numbers_only_when_all_are(written):
    requests = read_csv(written(RECORDS + "10,0,1,007,1\n9,0,1,8,\n"))
    assert requests.request_id.tolist() == [9, 10]
    assert (requests.prefix_labels, requests.session_labels) == (("8", "007"), (1,))


def test_records__columns_in_any_order_and_tokens(written):
    path = written("prompt_tokens,session_id,prefix_key,output_tokens,arrival_ms,request_id\n10,,,2,7,x\n")
    requests = read_csv(path, service=ServiceModel(base_ms=3.0))
    assert requests.tokens.tolist() == [12]
    assert requests.service_ms.tolist() == [3.0 + 0.1 * 10 + 2.0 * 2]


@pytest.mark.parametrize("cell", ["", "abc", "nan", "inf", "-1", "1_0", "1,5", "0x10", "1e16"])
@pytest.mark.parametrize("column", ["arrival_ms", "service_ms"])
def test_records__bad_number_names_line_and_column(written, cell, column):
    good = {"request_id": "r", "arrival_ms": "1", "service_ms": "1", "prefix_key": "", "session_id": ""}
    bad = {**good, column: f'"{cell}"'}
    path = written("\n".join([",".join(good), ",".join(good.values()), "", ",".join(bad.values())]))
    with pytest.raises(InputError, match=rf"trace\.csv, line 4: {column} must be .*, got '{cell}'\.$"):
        read_csv(path)


def test_records__line_is_right_after_a_cell_of_two_lines(written):
    path = written(RECORDS + '"a\nb",0,1,,\nc,x,1,,\n')
    with pytest.raises(InputError, match="line 4: arrival_ms"):
        read_csv(path)


@pytest.mark.parametrize("cell", ["1.5", "-3", "", "many", "nan", "1e300"])
def test_azure__bad_tokens_name_line_and_column(written, cell):
    content = TINY.replace(b",109", b"," + cell.encode())
    with pytest.raises(InputError, match=rf"line 3: GeneratedTokens must be a whole number .*, got '{cell}'"):
        read_csv(written(content))


@pytest.mark.parametrize(
    "stamp", ["", "today", "2023", "2023-13-16 18:15:50.9951690", "2023-11-16", "16.11.2023 18:15:50", "NaT", "1700000"]
)
def test_azure__bad_timestamp_names_line_and_column(written, stamp):
    content = TINY.replace(b"2023-11-16 18:15:50.9951690", stamp.encode())
    with pytest.raises(InputError, match=rf"line 3: TIMESTAMP must be a time such as .*, got '{stamp}'"):
        read_csv(written(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; its first line must name the columns"),
        (b"\n\n", "is empty"),
        (RECORDS, "has a header but no rows"),
        ("request_id,arrival_ms,prefix_key,session_id\na,0,,\n", "missing: 'service_ms'"),
        (RECORDS.replace("service_ms", "servce_ms") + "a,0,1,,\n", "missing: 'service_ms'; unknown: 'servce_ms'"),
        (RECORDS.strip() + ",tenant\na,0,1,,,x\n", "unknown: 'tenant'"),
        (RECORDS.strip() + ",session_id\na,0,1,,,\n", "repeated: 'session_id'"),
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", "unknown: 'NumImages'"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n", "missing: 'GeneratedTokens'"),
        ("a,b\n1,2\n", "its header must be azure: TIMESTAMP,ContextTokens,GeneratedTokens; burstgpt: Timestamp,Model,"),
        (
            "a,b\n1,2\n",
            "vidur: arrived_at,.*; own: request_id,arrival_ms or arrival_s,service_ms,.* or name the columns",
        ),
        ("a,b\n1,2\n", "or name the columns with --map / columns="),
        (RECORDS + "a,0,1,\n", "line 2: found 4 cells, but the header names 5 columns"),
        (RECORDS + "a,0,1,,,\n", "line 2: found 6 cells"),
        (RECORDS + ",0,1,,\n", "line 2: request_id must be a string or a whole number .* got None"),
        (RECORDS + 'a,0,1,"x,\n', r"line 2: unexpected end of data"),
        (b"\xff\xfe\x00", "is not a text file in UTF-8"),
    ],
)
def test_file__bad_content_gets_one_sentence(written, content, message):
    with pytest.raises(InputError, match=message) as caught:
        read_csv(written(content))
    assert str(caught.value).count("trace.csv") == 1
    assert "\n" not in str(caught.value)


def test_file__missing_or_a_directory(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv cannot be read: No such file or directory"):
        read_csv(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_csv(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read: .*null"):
        read_csv("a\0b")


def test_service__must_be_a_model(written):
    with pytest.raises(InputError, match=r"service must be a sweep\.ServiceModel, got 'exponential'"):
        read_csv(written(TINY), service="exponential")


@given(
    st.binary(max_size=60)
    | st.lists(st.text(alphabet='019.,-e"\r\n an\t', max_size=12), max_size=5).map(
        lambda lines: (RECORDS + "\n".join(lines)).encode()
    )
)
def test_file__fuzz_gives_a_stream_or_an_input_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(content)
    try:
        requests = read_csv(path)
    except InputError:
        return
    assert len(requests) > 0 and np.isfinite(requests.arrival_ms).all()
