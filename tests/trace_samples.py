"""Small traces made by hand, and where the published ones are."""

import json
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "traces"
here = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not on this machine")

BURST_1 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def lines(*rows):
    """Return one JSON object per line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def mooncake(time, tokens, ids, output=3):
    """Return a row of a Mooncake trace."""
    return {"timestamp": time, "input_length": tokens, "output_length": output, "hash_ids": ids}


MOON = (mooncake(27000, 1000, [0, 7]), mooncake(27000, 512, [0]), mooncake(30000, 1030, [0, 7, 9]))
