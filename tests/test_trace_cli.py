"""Traces on the command line: what is said of one, how it is shaped, and what replicas hold."""

import json

import pytest

import sweep


@pytest.fixture
def trace(tmp_path):
    """Return a Mooncake trace of 60 requests in 20 families after one common block."""
    rows = [
        {"timestamp": 100 * (k // 2), "input_length": 1500, "output_length": 5, "hash_ids": [0, 1 + k % 20, 100 + k]}
        for k in range(60)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_info__statistics_report_and_picture(call, trace, tmp_path):
    status, out, err = call("trace", "info", trace, "-o", tmp_path / "picture.png")
    assert (status, err) == (0, "")
    for said in ("trace.jsonl (mooncake): 60 rows read, 60 kept, 0 dropped.", "30 rows arrive together"):
        assert said in out
    found = {line[:48].strip(): line[48:].strip() for line in out.splitlines()}
    assert found["requests"] == "60"
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert call("trace", "info", trace, "--blocks", "floor")[1].count("60 partial last blocks left out.") == 1


def test_info__a_bad_row_is_one_sentence(call, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"timestamp": 1, "input_length": "2", "output_length": 1, "hash_ids": [1]}\n')
    status, out, err = call("trace", "info", path)
    assert (status, out) == (2, "")
    assert err == f"Error: {path}, line 1: input_length must be a whole number from 0 to 2**53, got '2'.\n"


def test_run__capacities_are_a_dimension(call, trace, tmp_path):
    out = tmp_path / "out.zarr"
    arguments = ("--trace", trace, "--replicas", 2, "--cache-blocks", "3,30,none", "--eviction", "lfu", "-v", "-o", out)
    status, _, err = call("run", *arguments)
    assert status == 0 and "60 rows read" in err
    ds = sweep.open(out)
    assert ds.cache_blocks.values.tolist() == [3.0, 30.0, float("inf")]
    assert ds.sizes["policy"] == 3
    assert '"eviction": "lfu"' in ds.attrs["settings"]


def test_run__a_config_may_hold_capacities_as_numbers(call, trace, tmp_path):
    config = tmp_path / "grid.toml"
    config.write_text(f'trace = "{trace}"\nreplicas = 2\ncache-blocks = [3, "none"]\nblocks = "floor"\n')
    status, out, _ = call("run", "--config", config)
    assert status == 0 and " 3 " in out and " inf " in out


def test_run__resampled_seeds(call, trace, tmp_path):
    status, out, _ = call("run", "--trace", trace, "--replicas", 2, "--resample", "families", "--seeds", 5)
    assert status == 0 and "mean over 5 seeds" in out and "block hit" in out


def test_compare_and_explain__one_capacity(call, trace):
    status, out, _ = call("compare", trace, "--replicas", 2, "--cache-blocks", 30)
    assert status == 0 and "block hit" in " ".join(out.split())
    status, out, _ = call("explain", "--trace", trace, "--replicas", 2, "--cache-blocks", 30, "--limit", 30)
    assert status == 0 and "prefix_locality" in out and "no longest match within the slack" in out
    for command in (("compare", trace), ("explain", "--trace", trace)):
        status, _, err = call(*command, "--replicas", 2, "--cache-blocks", "3,30")
        assert status == 2 and "--cache-blocks has 2 values" in err


def test_shape__options_in_their_order(call, trace):
    status, out, _ = call("trace", "info", trace, "--window", "1:2", "--repeat", 3, "--rate-scale", 2)
    assert status == 0
    found = {line[:48].strip(): line[48:].strip() for line in out.splitlines()}
    assert found["requests"] == "60"
    for note in ("Only what arrives from 1 to 2 s.", "Repeated 3 times.", "Arrivals 2 times as dense."):
        assert note in out
    assert "10 of 20 units kept" in call("trace", "info", trace, "--sample-sessions", 0.5)[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--window", "5"), "--window must be START:END in seconds, such as 600:1800, got '5'."),
        (("--window", "a:b"), "--window must be START:END"),
        (("--window", "50:60"), "Nothing arrives from 50 to 60 s"),
        (("--sample-sessions", "2"), "share of sessions must be a finite number > 0 and <= 1, got 2.0"),
        (("--repeat", "0"), "repeat must be a whole number >= 1, got 0"),
        (("--rate-scale", "0"), "rate_scale must be a finite number > 0, got 0.0"),
        (("--map", "x"), "'x' is not of the form column=field"),
        (("--format", "azure"), "has the wrong columns"),
    ],
)
def test_shape__mistakes(call, trace, options, said):
    status, _, err = call("trace", "info", trace, *options)
    assert status == 2 and said in err


def test_options__need_a_trace(call):
    for option in ("--window", "--resample", "--format"):
        value = {"--window": "0:1", "--resample": "auto", "--format": "azure"}[option]
        status, _, err = call("run", "--requests", 20, "--seeds", 1, option, value)
        assert status == 2 and option in err
