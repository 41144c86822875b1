"""The studies of stale views and of failures end to end at a small size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from test_studies import study

from sweep.plots.maps import crossing


def test_herd__shows_where_least_load_comes_to_be_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "herd"
    study("herd").main(output, quick=True, seeds=3, workers=1)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "becomes worse than weighted random at T = " in printed.out
    assert "[95 % intervals over n = 3 seeds]" in printed.out
    pictures = {f"{kind}{place}.png" for kind in ("map", "curve") for place in range(4)}
    assert {path.name for path in output.iterdir()} == {"report.html", *pictures}


def test_failover__shows_what_is_lost_and_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "failover"
    study("failover").main(output, quick=True, seeds=3, workers=1)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "Without a retry: lost requests" in printed.out
    assert "ms after the detection" in printed.out
    assert {path.name for path in output.iterdir()} == {"report.html", "map.png", "curve.png", "lost.png"}


def test_crossing__by_hand() -> None:
    """The log of the ratio goes from -1 at 1 to 1 at 3 for one seed, to 3 for the other."""
    ours = np.exp([[-1.0, -1.0], [1.0, 3.0]])
    ds = xr.Dataset(
        {"wait": (("policy", "age", "seed"), np.stack([ours, np.ones((2, 2))]), {"better": "lower"})},
        {"policy": ["a", "b"], "age": [1.0, 3.0]},
    )
    mean, lower, upper = crossing(ds, "wait", "age", "a", "b")
    assert mean == pytest.approx((2.0 + 1.5) / 2)
    assert lower < mean < upper
