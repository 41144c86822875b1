"""The small sweep that the tests of stores and executors share: 12 blocks of three seeds, in a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import sweep

POLICIES = ("round_robin", "queue_aware", "locality_aware")
SLACK = (0.0, 10.0, 20.0)
LEVELS = (0.0, 0.5)
SEEDS = 11
BLOCK_SEEDS = 3


def work(requests: int = 60, **changes: Any) -> sweep.Workload:
    """Return traffic with locality at two utilisations."""
    parameters = {"utilisation": [0.5, 0.8], "replicas": 4, "sessions": 9, "prefixes": 9} | changes
    return sweep.Workload.poisson(requests=requests, **parameters)


def run(
    store: Path | str | None = None, *, workload: sweep.Workload | None = None, levels: Any = LEVELS, **changes: Any
) -> xr.Dataset:
    """Run the sweep with changes; blocks of three seeds unless said otherwise."""
    settings = {"policy": POLICIES, "slack": SLACK, "seed": SEEDS, "block_seeds": BLOCK_SEEDS} | changes
    fleet = sweep.Fleet.one_slow(4, list(levels))
    return sweep.run(workload or work(), fleet, store=store, **settings)


def assert_same_bits(one: xr.Dataset, other: xr.Dataset) -> None:
    """Raise unless labels, attributes and every bit of every value are the same."""
    xr.testing.assert_identical(one.load(), other.load())
    for name in one.data_vars:
        assert one[name].dtype == other[name].dtype, name
        assert np.asarray(one[name].values).tobytes() == np.asarray(other[name].values).tobytes(), name


def records(store: Path) -> set[str]:
    """Return the names of the blocks that are recorded."""
    return {path.name for path in (store / "blocks").iterdir()}
