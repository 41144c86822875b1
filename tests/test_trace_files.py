"""Files of traces whatever their format: compression, line ends, missing packages, bad lines, options."""

import gzip
import os
import pickle
import sys
from pathlib import Path

import pytest
from trace_samples import BURST_1, MOON, lines, mooncake

from sweep.errors import InputError
from sweep.traces import TraceError, read

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


def test_file__a_pipe_cannot_be_read_twice():
    reads, writes = os.pipe()
    try:
        os.write(writes, b"arrival_ms,service_ms\n0,5\n")
        os.close(writes)
        with pytest.raises(TraceError, match=r"must be a file that can be read twice, not a pipe\.$"):
            read(f"/dev/fd/{reads}")
    finally:
        os.close(reads)


def test_file__reasons_of_libraries_end_in_one_full_stop(written, tmp_path):
    with pytest.raises(TraceError, match=r"line ends must be LF or CRLF\.$"):
        read(written(b"arrival_ms,service_ms\r0,5\r", "o.csv"))
    pytest.importorskip("pyarrow")
    for content in (b"PAR1", b"PAR1" + bytes(40)):
        with pytest.raises(TraceError, match=r"[^.?!]\)\.$"):
            read(written(content, "o.parquet"))
