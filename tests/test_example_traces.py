"""The small example file of each public format: made by the script beside them, and read as it was meant."""

import runpy
from pathlib import Path

import pytest

from sweep.traces import FORMATS, format_of, read, report

STUDIES = Path(__file__).parents[1] / "studies"
EXAMPLES = {
    "mooncake": "mooncake.jsonl",
    "bailian": "bailian.jsonl",
    "ragpulse": "ragpulse/0_trace.jsonl",
    "kv-cache-tester": "kv-cache-tester",
    "azure": "azure.csv",
    "burstgpt": "burstgpt.csv",
    "vidur": "vidur.csv",
    "own": "../example_trace.csv",
}


def test_examples__are_what_their_script_makes(tmp_path):
    runpy.run_path(str(STUDIES / "make_example_traces.py"))["make"](tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    here = STUDIES / "example_traces"
    assert made == {path.relative_to(here): path.read_bytes() for path in here.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", FORMATS)
def test_examples__one_of_each_format(form):
    path = STUDIES / "example_traces" / EXAMPLES[form]
    assert format_of(path) == form
    requests = read(path)
    assert requests.attrs["format"] == form and len(requests) == requests.attrs["rows_read"] >= 40
    assert (requests.blocks is not None) == (form in ("mooncake", "bailian", "ragpulse", "kv-cache-tester"))
    assert bool(requests.session_count) == (form in ("bailian", "ragpulse", "kv-cache-tester", "burstgpt", "own"))
    assert report(requests)


def test_examples__have_the_quirks_of_their_formats():
    folder = STUDIES / "example_traces"
    found = {form: read(folder / path) for form, path in EXAMPLES.items()}
    assert found["mooncake"].attrs["ties"] > 100
    assert found["ragpulse"].attrs["inversions"] == 1
    assert found["burstgpt"].attrs["zero_token_rows"] == 4
    assert found["burstgpt"].session.min() == -1
    assert any("3 requests are of sub-agents" in note for note in found["kv-cache-tester"].attrs["notes"])
    raw = (folder / "azure.csv").read_bytes()
    assert raw.count(b"\r\n") == 200 and not raw.endswith(b"\n")
    shared = read(folder / "kv-cache-tester", shared_prompt="tools")
    assert any("6 of 6 sessions begin like" in note for note in shared.attrs["notes"])
    assert shared.blocks.distinct < found["kv-cache-tester"].blocks.distinct
