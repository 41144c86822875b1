"""The labels of a result: coordinates, attributes and dimensions, the same in memory and on disk."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

import sweep
from sweep import shaping, variables
from sweep.grid import Grid

#: Dimensions, values and attributes of a coordinate, as xarray takes them.
Labels = tuple[tuple[str, ...], Any, dict[str, str]]


def coordinates(grid: Grid) -> dict[str, Labels]:
    """Return every coordinate of the result by name."""
    described = variables.COORDINATES
    coords: dict[str, Labels] = {
        name: ((name,), np.asarray(labels), described.get(name, {"long_name": name.replace("_", " ")}))
        for name, labels in grid.dims.items()
    }
    coords["speed"] = (("heterogeneity", "replica"), grid.fleet.speeds, described["speed"])
    coords["replica"] = (("replica",), np.arange(grid.fleet.replicas), described["replica"])
    reads_slack = np.array([policy.rule.reads_slack for policy in grid.policies])
    coords["reads_slack"] = (("policy",), reads_slack, described["reads_slack"])
    if any(variable.dims == ("reason",) for variable in grid.variables.values()):
        coords["reason"] = (("reason",), np.asarray(grid.reasons), described["reason"])
    for key in dict.fromkeys(key for policy in grid.policies for key in policy.changed):
        found = [policy.parameters.get(key) for policy in grid.policies]
        nothing: Any = "" if any(isinstance(value, str) for value in found) else np.nan
        values = np.array([nothing if value is None else value for value in found])
        coords[key] = (("policy",), values, {"long_name": f"policy parameter {key}"})
    return coords


def attributes(grid: Grid) -> dict[str, str]:
    """Return the attributes of the result."""
    attrs = {
        "title": "Routing policies simulated over slack, heterogeneity and seeds",
        "engine": grid.engine,
        "sweep_version": sweep.__version__,
        "fingerprint": grid.fingerprint,
        "stream_fingerprint": grid.stream_fingerprint,
        "workload": json.dumps(grid.workload.to_dict()),
        "fleet": json.dumps(grid.fleet.to_dict()),
        "settings": json.dumps(grid.settings.to_dict()),
    }
    if grid.workload.kind == "resampled":
        parameters = grid.workload.parameters
        attrs["resampling"] = shaping.resampling(parameters["requests"], parameters["by"])
    return attrs
