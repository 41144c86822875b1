"""Which cell to choose among those of one point, and a sentence on how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sweep.cells import Cell, plain
from sweep.intervals import Floats, t_interval
from sweep.policies import catalogue


class Choice(NamedTuple):
    """The best cell, the one to choose and those that cannot be told apart from the best, as indices.

    `seeds` masks the seeds used; `left_out` cells lack a value of one of them. When no cell has a value, `tied` is
    empty and no seed is used.
    """

    best: int
    chosen: int
    tied: tuple[int, ...]
    seeds: npt.NDArray[np.bool_]
    left_out: int


def choose(cells: Sequence[Cell], values: Floats, lower: bool, level: float) -> Choice:
    """Return the choice among cells whose values are shaped (cell, seed).

    The best cell has the best mean. Those whose paired t interval against it contains 0 are tied with it; with one seed
    there is no interval, and only equal values are. Among the tied cells the smallest slack is chosen, then the first
    rule of the catalogue; a policy that reads no slack stands at the smallest slack.
    """
    finite = np.isfinite(values)
    seeds = np.asarray(finite.any(axis=0))
    candidates = [int(index) for index in np.flatnonzero(finite[:, seeds].all(axis=1)) if seeds.any()]
    if not candidates:
        return Choice(-1, -1, (), np.zeros_like(seeds), len(cells))
    rules = [rule.name for rule in catalogue()]
    smallest = min((cell.slack for cell in cells if not math.isnan(cell.slack)), default=0.0)

    def simplicity(index: int) -> tuple[float, int, int]:
        name, slack = cells[index].policy.partition("(")[0], cells[index].slack
        place = rules.index(name) if name in rules else len(rules)
        return (smallest if math.isnan(slack) else slack, place, index)

    used = values[candidates][:, seeds]
    cost = dict(zip(candidates, t_interval(used, level).mean * (1.0 if lower else -1.0), strict=True))
    best = min(candidates, key=lambda index: (cost[index], *simplicity(index)))
    apart = t_interval(used - values[best, seeds], level)
    alike = apart.mean == 0 if used.shape[1] == 1 else (apart.lower <= 0) & (apart.upper >= 0)
    tied = tuple(index for index, same in zip(candidates, alike, strict=True) if same)
    return Choice(best, min(tied, key=simplicity), tied, seeds, len(cells) - len(candidates))


def certainty(choice: Choice, cells: Sequence[Cell], values: Floats, lower: bool, level: float) -> str:
    """Return the sentence that says how sure a choice is."""
    if not choice.tied:
        return "Nothing to choose from: no cell has a value."
    used = values[:, choice.seeds]
    n = used.shape[1]
    basis = f"({100 * level:g} %, n = {n})"
    policies = list(dict.fromkeys(cells[index].policy for index in choice.tied))
    if n == 1:
        said = f"Not sure: one seed gives no interval; this is only the {'smallest' if lower else 'largest'} value."
    elif len(cells) - choice.left_out == 1:
        said = f"There is no other cell to compare with (n = {n})."
    elif len(choice.tied) == 1:
        said = f"Clear: every other cell is worse {basis}."
    elif len(policies) == 1:
        said = f"{policies[0]} is clear; {tied_slacks(policies[0], choice, cells)} cannot be told apart {basis}."
    else:
        named = [", ".join(filter(None, (policy, tied_slacks(policy, choice, cells)))) for policy in policies]
        said = f"Policies cannot be told apart: {'; '.join(named)} {basis}."
    compared = used[np.isfinite(used).all(axis=1)]
    if n > 1 and (compared == compared[:, :1]).all():
        said += " All seeds give the same values, so nothing is known about other streams."
    if choice.left_out:
        said += f" Left out: {choice.left_out} cell{'' if choice.left_out == 1 else 's'} without a value."
    return said


def tied_slacks(policy: str, choice: Choice, cells: Sequence[Cell]) -> str:
    """Return the tied slacks of a policy in words, as a range where they are neighbours on the grid."""
    grid = sorted(cell.slack for cell in cells if cell.policy == policy)
    tied = sorted(cells[index].slack for index in choice.tied if cells[index].policy == policy)
    if math.isnan(tied[0]):
        return ""
    first = grid.index(tied[0])
    if len(tied) > 1 and grid[first : first + len(tied)] == tied:
        return f"slack {plain(tied[0])} to {plain(tied[-1])} ms"
    return f"slack {', '.join(plain(slack) for slack in tied)} ms"
