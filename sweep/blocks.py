"""Blocks: the cells of one policy and a range of seeds, which are computed, stored and recorded together.

A grid is cut into a lattice of blocks of one `Layout`. An extended grid keeps its lattice: what was added lies in
further blocks, or in the rest of a block of which a part is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sweep.block_cells import uses_blocks
from sweep.engines import Arrays, Scratch, cells, prepared
from sweep.errors import InputError
from sweep.grid import Grid
from sweep.routing import needs_router
from sweep.variables import Variable

#: Numbers of slacks, heterogeneities and seeds.
Counts = tuple[int, int, int]

# A block on disk: about two seconds of work on one core, and arrays of at most this size.
_STORED_S = 2.0
_STORED_BYTES = 64 * 2**20
# A short sweep is cut in four, but no block is shorter than half a second, or its files would cost too much.
_LEAST_S = 0.5
# A block in memory: short enough for progress and for stopping.
_HELD_S = 0.5
# What a request costs in a cell, roughly: seconds, and seconds per replica. Either in the engine that advances many
# cells at a time, or in one that takes them one by one.
_MANY_S, _SINGLE_S = (30e-9, 1e-9), (400e-9, 8e-9)


class JobError(InputError):
    """What is wrong is wrong for all blocks: not one more of them is worth a try."""


class Layout(NamedTuple):
    """The size of a block: slacks, heterogeneities and seeds; and how many reasons lie in one chunk."""

    slack: int
    heterogeneity: int
    seed: int
    reason: int


class Block(NamedTuple):
    """One block of the lattice: `shape` cells of `policy`, of which the first `have` along each axis are there."""

    policy: int
    place: Counts
    shape: Counts
    have: Counts = (0, 0, 0)

    def ranges(self, layout: Layout) -> tuple[slice, slice, slice]:
        """Return the slacks, heterogeneities and seeds of the grid that the block holds."""
        low, middle, high = (
            slice(place * size, place * size + count)
            for place, size, count in zip(self.place, layout[:3], self.shape, strict=True)
        )
        return low, middle, high


class Task(NamedTuple):
    """Blocks that share their ranges and streams and are computed in one go, and the seeds of those ranges."""

    blocks: tuple[Block, ...]
    seeds: tuple[int, ...]


def layout_on_disk(grid: Grid, block_seeds: int | None) -> Layout:
    """Return the layout of a new store; it depends on the grid alone."""
    if block_seeds is None:
        seconds = max(_seconds_per_seed(grid))
        size = grid.result_bytes // (len(grid.policies) * len(grid.seeds))
        several = max(-(-len(grid.seeds) // 4), int(_LEAST_S / seconds))
        most = max(1, min(int(_STORED_S / seconds), several, _STORED_BYTES // max(size, 1)))
        # As many blocks as that makes, all of one size: a last one of few seeds costs as many files as the others.
        block_seeds = -(-len(grid.seeds) // -(-len(grid.seeds) // most))
    return Layout(len(grid.slack), len(grid.fleet.heterogeneity), block_seeds, len(grid.reasons))


def layout_in_memory(grid: Grid, workers: int, block_seeds: int | None) -> Layout:
    """Return a layout with at least four blocks per worker, so that none waits long for the last one."""
    if block_seeds is None:
        shared = -(-len(grid.seeds) // (4 * workers))
        block_seeds = max(1, min(int(_HELD_S / sum(_seconds_per_seed(grid))), shared))
    return Layout(len(grid.slack), len(grid.fleet.heterogeneity), block_seeds, len(grid.reasons))


def requests_per_seed(grid: Grid) -> int:
    """Return how many requests the first seed brings; other seeds of a scripted burst may bring others."""
    return sum(len(workload.realise(grid.seeds[0])) for _, workload in grid.workload.points())


def _seconds_per_seed(grid: Grid) -> list[float]:
    """Return about how long a seed of each policy takes on one core."""
    # Never 0, also for a stream without requests.
    seconds = [1e-9] * len(grid.policies)
    for _, workload in grid.workload.points():
        requests = workload.realise(grid.seeds[0])
        for index, policy in enumerate(grid.policies):
            single = grid.engine != "timeline" or policy.rule.function or uses_blocks(requests, grid.settings)
            single = single or needs_router(policy, grid.fleet.events, requests)
            alone, per_replica = _SINGLE_S if single else _MANY_S
            slacks = len(grid.slack) if policy.rule.reads_slack else 1
            cells = slacks * len(grid.fleet.heterogeneity) * max(len(grid.settings.cache_blocks), 1)
            seconds[index] += len(requests) * cells * (alone + per_replica * grid.fleet.replicas)
    return seconds


def blocks(shape: tuple[int, Counts], layout: Layout) -> Iterator[Block]:
    """Yield the blocks of (policies, cells) in the order of their computation: the seeds outermost."""
    policies, counts = shape
    lattice = [-(-count // size) for count, size in zip(counts, layout[:3], strict=True)]
    for seed, slack, heterogeneity in np.ndindex(lattice[2], lattice[0], lattice[1]):
        place = (slack, heterogeneity, seed)
        held = tuple(
            min(size, count - index * size) for index, size, count in zip(place, layout[:3], counts, strict=True)
        )
        for policy in range(policies):
            yield Block(policy, place, (held[0], held[1], held[2]))


def counts(grid: Grid) -> tuple[int, Counts]:
    """Return the number of policies, and of slacks, heterogeneities and seeds."""
    return len(grid.policies), (len(grid.slack), len(grid.fleet.heterogeneity), len(grid.seeds))


def tasks(grid: Grid, layout: Layout, missing: Sequence[Block]) -> Iterator[Task]:
    """Yield the blocks as tasks: neighbours that share their streams, as long as they stay short together."""
    work = [len(grid.slack) if policy.rule.reads_slack else 1 for policy in grid.policies]
    # Two cheap policies may ride with the most expensive one; a long list of policies is several tasks.
    limit = 1.25 * max(work)
    group: list[Block] = []
    for block in missing:
        together = sum(work[member.policy] for member in group) + work[block.policy]
        if group and (group[0][1:] != block[1:] or together > limit):
            yield _task(grid, layout, group)
            group = []
        group.append(block)
    if group:
        yield _task(grid, layout, group)


def _task(grid: Grid, layout: Layout, group: list[Block]) -> Task:
    return Task(tuple(group), tuple(grid.seeds[group[0].ranges(layout)[2]]))


def absent(block: Block) -> Iterator[tuple[slice, slice, slice]]:
    """Yield boxes that together make up what the block does not have yet, each cell once."""
    for axis in range(3):
        box = [
            slice(0, block.have[k]) if k < axis else slice(block.have[k] if k == axis else 0, block.shape[k])
            for k in range(3)
        ]
        if all(side.start < side.stop for side in box):
            yield box[0], box[1], box[2]


def empty(grid: Grid, cells_shape: tuple[int, ...]) -> Arrays:
    """Return room for cells: what no policy fills stays 0 for counts and NaN for the rest."""
    return {
        name: np.full(
            cells_shape + inner_shape(grid, variable),
            0 if variable.integer else np.nan,
            np.int64 if variable.integer else np.float64,
        )
        for name, variable in grid.variables.items()
    }


def inner_shape(grid: Grid, variable: Variable) -> tuple[int, ...]:
    """Return the lengths of the dimensions that a variable has beside those of a cell."""
    lengths = {"replica": grid.fleet.replicas, "reason": len(grid.reasons)}
    return tuple(lengths[dim] for dim in variable.dims)


def simulate(
    grid: Grid,
    policies: Sequence[int],
    slack: slice,
    heterogeneity: slice,
    seeds: Sequence[int],
    scratch: Scratch,
    stop: Callable[[], bool],
) -> tuple[list[Arrays], int]:
    """Simulate a box of cells of some policies; each stream is made once and shared by its cells.

    Returns
    -------
    Per policy the arrays of its cells, shaped (slack, heterogeneity, [list parameters of the workload], seed, ...) as
    in the result, with what was computed for one slack repeated along slack; and the number of simulated requests.

    Raises
    ------
    sweep.engines.Stopped
        When `stop` says so, before the next kernel starts.
    """
    chosen = [grid.policies[index] for index in policies]
    slacks = np.array(grid.slack[slack])
    speeds = grid.fleet.speeds[heterogeneity]
    points = [workload for _, workload in grid.workload.points()]
    places = list(np.ndindex(*(len(values) for values in grid.workload.dims.values())))
    shape = (len(slacks), len(speeds), *(len(values) for values in grid.between.values()), len(seeds))
    # Slack, heterogeneity and, where it is a dimension, the capacity of the caches.
    simulated = (slice(None),) * (3 if grid.settings.cache_axis else 2)
    results = [empty(grid, shape) for _ in chosen]
    rows = [[grid.reasons.index(reason) for reason in policy.reasons(grid.workload.has_adapters)] for policy in chosen]
    requests_done = 0
    for position, seed in enumerate(seeds):
        for place, workload in zip(places, points, strict=True):
            stream = prepared(workload.realise(seed), grid.settings)
            for policy, result, reasons in zip(chosen, results, rows, strict=True):
                events = grid.fleet.events
                found = cells(stream, speeds, policy, slacks, seed, grid.engine, grid.settings, scratch, stop, events)
                for name, values in found.items():
                    target = result[name][(*simulated, *place, position)]
                    if grid.variables[name].dims == ("reason",):
                        target[..., reasons[: values.shape[-1]]] = values
                    else:
                        target[...] = values
                requests_done += len(stream.requests) * found["request_count"].size
    return results, requests_done
