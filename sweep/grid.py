"""The cells of a sweep: validated, labelled and fingerprinted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from sweep import token_cells
from sweep.engines import Settings
from sweep.errors import InputError, distinct, number, one_of, whole
from sweep.fleet import Fleet
from sweep.kernels.jit import sources_hash
from sweep.policies import Policy, as_policies
from sweep.variables import ENGINES, FAILURES, MIGRATIONS, OF_BLOCKS, VARIABLES, Variable
from sweep.workload import Workload


@dataclass(frozen=True)
class Grid:
    """Every cell of a sweep: workload x fleet x policy x slack x seed on one engine."""

    workload: Workload
    fleet: Fleet
    policies: tuple[Policy, ...]
    slack: tuple[float, ...]
    seeds: Sequence[int]
    engine: str
    settings: Settings

    @classmethod
    def of(
        cls,
        workload: Workload,
        fleet: Fleet,
        policy: str | Policy | Iterable[str | Policy],
        slack: float | Iterable[float],
        seed: int | Iterable[int],
        engine: str,
        settings: Settings,
    ) -> Grid:
        """Return the grid asked for, every part checked.

        Raises
        ------
        InputError
            For a part of the wrong kind, or a value out of range or given twice.
        """
        if not isinstance(workload, Workload):
            raise InputError(f"workload must be a sweep.Workload, got {type(workload).__name__}.")
        if not isinstance(fleet, Fleet):
            raise InputError(f"fleet must be a sweep.Fleet, got {type(fleet).__name__}.")
        one_of("engine", engine, ENGINES)
        policies = as_policies(policy, engine)
        if engine == "token_step":
            for item in policies:
                token_cells.check_policy(item, settings.step_ms)
        return cls(workload, fleet, policies, as_slacks(slack), as_seeds(seed), engine, settings)

    def check_memory(self) -> None:
        """Raise `InputError` when the result does not fit in memory."""
        needed, free = self.result_bytes, psutil.virtual_memory().available
        if needed > free:
            raise InputError(
                f"The result would take {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free: "
                f"{self.cell_count:,} cells; give fewer seeds, slacks or policies, or a store to keep it on disk."
            )

    @cached_property
    def dims(self) -> dict[str, Sequence[Any]]:
        """Return the cell dimensions and their labels, in the order of the result."""
        return {
            "policy": [policy.label for policy in self.policies],
            "slack": self.slack,
            "heterogeneity": tuple(self.fleet.heterogeneity.tolist()),
            **self.between,
            "seed": self.seeds,
        }

    @cached_property
    def between(self) -> dict[str, Sequence[Any]]:
        """Return the dimensions between heterogeneity and seed: capacities of caches, parameters of the workload."""
        capacities = {"cache_blocks": self.settings.cache_blocks} if self.settings.cache_axis else {}
        return {**capacities, **self.workload.dims}

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return the length of each cell dimension."""
        return tuple(len(labels) for labels in self.dims.values())

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Return the reasons of all policies, each once, in the order in which they first occur."""
        adapters = self.workload.has_adapters
        return tuple(dict.fromkeys(reason for policy in self.policies for reason in policy.reasons(adapters)))

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Return the variables that the result has, by name."""
        wanted = dict(VARIABLES[self.engine])
        if self.settings.slo_ms is None:
            wanted.pop("slo_attainment", None)
        if not (self.settings.cache_blocks or self.workload.has_blocks):
            wanted = {name: variable for name, variable in wanted.items() if name not in OF_BLOCKS}
        if any(policy.name == "migrate" for policy in self.policies):
            wanted |= MIGRATIONS
        return wanted if self.fleet.events is None else wanted | FAILURES

    @property
    def cell_count(self) -> int:
        """Return the number of cells of the result."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def result_bytes(self) -> int:
        """Return the size of the result in memory."""
        lengths = {"replica": self.fleet.replicas, "reason": len(self.reasons)}
        per_cell = sum(8 * int(np.prod([lengths[dim] for dim in v.dims])) for v in self.variables.values())
        return per_cell * self.cell_count

    @cached_property
    def stream_fingerprint(self) -> str:
        """Return what identifies the request streams: Datasets with the same can be compared seed by seed."""
        return self.workload.fingerprint()

    @cached_property
    def fingerprint(self) -> str:
        """Return what identifies every number of the result: the grid and the sources of the kernels."""
        content = {
            "workload": self.stream_fingerprint,
            "fleet": self.fleet.fingerprint(),
            "policies": self.dims["policy"],
            "slack": self.slack,
            "seeds": list(self.seeds),
            "engine": self.engine,
            "settings": self.settings.to_dict(),
            "kernels": sources_hash(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def as_slacks(slack: float | Iterable[float]) -> tuple[float, ...]:
    """Return the slacks [ms] as floats, checked to be non-negative and distinct; infinity is allowed."""
    given: list[Any] = list(slack) if isinstance(slack, Iterable) else [slack]
    if not given:
        raise InputError("slack is empty; give at least one value [ms].")
    values = tuple(number("slack [ms]", value, at_least=0, finite=False) for value in given)
    distinct("slack", values)
    return values


def as_seeds(seed: int | Iterable[int]) -> Sequence[int]:
    """Return the seeds: 0 ... n-1 for a count, or the numbers given, checked to be distinct."""
    if not isinstance(seed, Iterable):
        return range(whole("seed (a count of seeds, or a list of them)", seed, at_least=1))
    seeds = tuple(whole("seed", value) for value in seed)
    if not seeds:
        raise InputError("seed is empty; give a count of seeds, or a list of them.")
    if max(seeds) >= 2**63:
        raise InputError(f"seed must be below 2**63, got {max(seeds)}.")
    distinct("seed", seeds)
    return seeds


def as_speeds(speeds: Any, replicas: int | None = None) -> NDArray[np.float64]:
    """Return one speed vector, checked; `replicas` equal ones when no speeds are given."""
    if (speeds is None) == (replicas is None):
        raise InputError("Give either replicas (a number of equal replicas) or speeds (one number per replica).")
    if speeds is None:
        return np.ones(whole("replicas", replicas, at_least=1))
    vector: NDArray[np.float64] = Fleet.fixed(speeds).speeds[0].copy()
    return vector
