"""Results with the dimensions, coordinates and attributes of sweep.run, made up so that a test knows their values."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xarray as xr

from sweep.variables import COORDINATES, VARIABLES

DIMS = ("policy", "slack", "heterogeneity")
POLICIES = ("round_robin", "queue_aware", "locality_aware")


def result(
    values: dict[str, npt.ArrayLike] | None = None,
    *,
    policies: Sequence[str] = POLICIES,
    slack: Sequence[float] = (0.0, 5.0, 10.0),
    heterogeneity: Sequence[float] = (0.0, 0.3),
    extra: dict[str, Sequence[float]] | None = None,
    seeds: int | Sequence[int] = 6,
    draw: int = 0,
) -> xr.Dataset:
    """Return a timeline result; a variable is what `values` broadcasts to, the others are drawn.

    Drawn values of policies that read no slack repeat along slack, as in a result of sweep.run.
    """
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    extra = extra or {}
    reads = np.array([policy.startswith("locality_aware") for policy in policies])
    dims = (*DIMS, *extra, "seed")
    shape = (len(policies), len(slack), len(heterogeneity), *(len(found) for found in extra.values()), len(numbers))
    rng = np.random.default_rng(draw)
    centre = {"load_variance": 300.0, "p99_queue_wait_ms": 50.0, "cache_hit_rate": 0.5, "max_offered_load": 0.5}
    variables = {}
    for name in ("load_variance", "p99_queue_wait_ms", "cache_hit_rate", "max_offered_load", *(values or {})):
        if values and name in values:
            drawn = np.broadcast_to(np.asarray(values[name], dtype=float), shape).copy()
        else:
            drawn = centre[name] * rng.lognormal(0.0, 0.2, shape)
            drawn[~reads] = drawn[~reads][:, :1]
        variables[name] = (dims, drawn, VARIABLES["timeline"][name].attrs)
    ends = np.asarray(heterogeneity)[:, None]
    speed = np.concatenate([np.ones((len(heterogeneity), 3)), 1.0 - ends], axis=1) * 4 / (4 - ends)
    coords = {
        "policy": ("policy", list(policies), COORDINATES["policy"]),
        "slack": ("slack", list(slack), COORDINATES["slack"]),
        "heterogeneity": ("heterogeneity", list(heterogeneity), COORDINATES["heterogeneity"]),
        **{name: list(found) for name, found in extra.items()},
        "seed": ("seed", numbers, COORDINATES["seed"]),
        "speed": (("heterogeneity", "replica"), speed, COORDINATES["speed"]),
        "reads_slack": ("policy", reads, COORDINATES["reads_slack"]),
    }
    settings = {"cache_hit_speedup": 0.3, "warmup": 0, "slo_ms": None, "steps": None, "step_ms": 1.0}
    attrs = {
        "engine": "timeline",
        "sweep_version": "0",
        "fingerprint": "grid",
        "stream_fingerprint": "streams",
        "workload": json.dumps({"kind": "poisson", "requests": 2000}),
        "fleet": json.dumps({"speeds": speed.tolist()}),
        "settings": json.dumps(settings),
    }
    return xr.Dataset(variables, coords, attrs)
