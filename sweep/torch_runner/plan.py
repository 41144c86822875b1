"""The makespan mode's plan: which rank runs which request under each strategy, and what follows for the makespan.

Known before anything runs, and without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweep.console import Column, label_text, table
from sweep.errors import InputError
from sweep.policies import Policy, as_policies, catalogue
from sweep.torch_runner.job import Job

#: The cost units of the fixed mechanism workload's eight requests.
COSTS = (1, 8, 2, 7, 1, 6, 2, 5)
ROUND_ROBIN, LEAST_LOADED = "round_robin", "least_loaded"
DEFAULT_RANKS = 2
# Reasons that only a session or a prefix can bring about. The eight requests have neither.
_OF_KEYS = {"sticky_session", "prefix_locality", "consistent_hash", "migrated"}


@dataclass(frozen=True)
class Assignment:
    """The rank of each request under one strategy."""

    strategy: str
    rank: tuple[int, ...]

    def units(self, ranks: int) -> list[int]:
        """Return the cost units assigned to each rank."""
        return [sum(cost for cost, rank in zip(COSTS, self.rank, strict=True) if rank == r) for r in range(ranks)]

    def products(self, r: int, per_unit: int, speed: float) -> list[int]:
        """Return the matrix products of each request of rank `r`, in order."""
        return [products_of(cost, per_unit, speed) for cost, rank in zip(COSTS, self.rank, strict=True) if rank == r]


@dataclass(frozen=True)
class MakespanPlan:
    """Who runs what, and the relative speeds asked for, the fastest 1."""

    ranks: int
    speeds: tuple[float, ...]
    assignments: tuple[Assignment, ...]

    def alike(self, assignment: Assignment) -> Assignment:
        """Return the first strategy that assigns every request as this one does, and is run for both."""
        return next(first for first in self.assignments if first.rank == assignment.rank)

    def makespan_units(self, assignment: Assignment) -> float:
        """Return the predicted makespan in cost units of a rank of speed 1."""
        units = assignment.units(self.ranks)
        return max(unit / speed for unit, speed in zip(units, self.speeds, strict=True))

    def text(self) -> str:
        """Return the plan as a table."""
        base = self.makespan_units(self.assignments[0])
        spans = [self.makespan_units(assignment) for assignment in self.assignments]
        columns = [Column("strategy", [assignment.strategy for assignment in self.assignments], left=True)]
        columns += [
            Column(f"rank {r}", [str(assignment.units(self.ranks)[r]) for assignment in self.assignments], "units")
            for r in range(self.ranks)
        ]
        columns.append(Column("makespan", [label_text(span) for span in spans], "units"))
        columns.append(Column(f"{self.assignments[0].strategy} takes", [f"{base / span:.4f} x" for span in spans]))
        speeds = ", ".join(label_text(speed) for speed in self.speeds)
        return (
            f"Requests of {', '.join(map(str, COSTS))} cost units on {self.ranks} "
            f"rank{'' if self.ranks == 1 else 's'} of speed {speeds}.\n\n{table(columns)}"
        )


def products_of(cost: float, per_unit: float, speed: float) -> int:
    """Return the matrix products that stand for `cost` units on a rank of `speed`: at least one.

    Examples
    --------
    >>> products_of(3, 10, 1.0), products_of(3, 10, 0.8), products_of(0.01, 10, 1.0)
    (30, 38, 1)
    """
    return max(1, round(cost * per_unit / speed))


def plan_makespan(job: Job, ranks: int | None = None) -> MakespanPlan:
    """Return the plan of a job for `ranks` processes.

    Raises
    ------
    InputError
        For another number of speeds than ranks, or a policy that does not apply.
    """
    ranks = ranks or job.ranks or (len(job.speeds) if job.speeds else DEFAULT_RANKS)
    speeds = relative_speeds(job.speeds or (1.0,) * ranks, ranks)
    assignments = [
        Assignment(ROUND_ROBIN, tuple(i % ranks for i in range(len(COSTS)))),
        Assignment(LEAST_LOADED, _least_loaded(ranks)),
        *(Assignment(policy.label, _routed(policy, speeds, job.slack_ms)) for policy in _others(job)),
    ]
    return MakespanPlan(ranks, speeds, tuple(assignments))


def relative_speeds(speeds: Sequence[float], ranks: int) -> tuple[float, ...]:
    """Return one speed per rank, scaled so that the fastest is 1."""
    if len(speeds) != ranks:
        raise InputError(
            f"There are {ranks} ranks and {len(speeds)} speeds ({', '.join(map(label_text, speeds))}); every rank is "
            f"one replica, so start {len(speeds)} ranks."
        )
    return tuple(float(speed) / max(speeds) for speed in speeds)


def _least_loaded(ranks: int) -> tuple[int, ...]:
    """Give each request to the rank with the least assigned cost, ties to the lowest rank."""
    assigned = [0] * ranks
    chosen = []
    for cost in COSTS:
        rank = assigned.index(min(assigned))
        assigned[rank] += cost
        chosen.append(rank)
    return tuple(chosen)


def _others(job: Job) -> tuple[Policy, ...]:
    """Return the further policies: those asked for, else all that apply to requests without a session or a prefix."""
    if job.policy is not None:
        return tuple(policy for policy in as_policies(job.policy, "timeline") if policy.label != ROUND_ROBIN)
    return tuple(
        Policy(rule.name)
        for rule in catalogue()
        if "timeline" in rule.engines
        and rule.function is None
        and rule.name != ROUND_ROBIN
        and not _OF_KEYS.intersection(rule.reasons)
    )


def _routed(policy: Policy, speeds: Sequence[float], slack: float) -> tuple[int, ...]:
    """Return where a policy of the catalogue sends the requests when all arrive at once."""
    from sweep.requests import Requests
    from sweep.simulation import simulate

    stream = Requests.from_arrays(np.zeros(len(COSTS)), np.array(COSTS, dtype=float))
    routed = simulate(stream, speeds, policy=policy, slack=slack)
    return tuple(int(replica) for replica in routed["replica_id"].values)
