"""Blocks: how a grid is cut, and what is left of a block of which some is there."""

from __future__ import annotations

import numpy as np
import pytest
from grids import SLACK

import sweep
from sweep.blocks import Block, Layout, absent, blocks, layout_on_disk
from sweep.engines import Settings
from sweep.grid import Grid


@pytest.mark.parametrize(
    ("policy", "replicas", "requests_per_s"),
    [("locality_aware", 4, 30e6), ("locality_aware", 256, 3.5e6), ("least_load(signal=requests)", 4, 2.2e6)],
)
def test_layout__a_block_is_about_two_seconds(policy: str, replicas: int, requests_per_s: float) -> None:
    """At what each kind of cell was measured to simulate on one core of a quiet machine, within a factor of two."""
    workload = sweep.Workload.poisson(requests=500, utilisation=0.8, replicas=replicas, sessions=9, prefixes=9)
    fleet = sweep.Fleet.fixed([1.0] * replicas)
    grid = Grid.of(workload, fleet, policy, SLACK, 10**6, "timeline", Settings())
    slacks = len(SLACK) if policy == "locality_aware" else 1
    seconds = layout_on_disk(grid, None).seed * slacks * 500 / requests_per_s
    assert 1.0 < seconds < 4.0


@pytest.mark.parametrize("seeds", [1, 160, 1_601, 123_457])
def test_layout__blocks_are_of_one_size(seeds: int) -> None:
    workload = sweep.Workload.poisson(requests=2_000, utilisation=0.8, replicas=4)
    grid = Grid.of(workload, sweep.Fleet.fixed([1.0] * 4), "queue_aware", SLACK, seeds, "timeline", Settings())
    size = layout_on_disk(grid, None).seed
    count = -(-seeds // size)
    assert seeds > (count - 1) * size
    assert seeds - (count - 1) * size > 0.9 * size or count > 20
    assert layout_on_disk(grid, 7).seed == 7


def test_blocks__tile_the_grid() -> None:
    layout = Layout(2, 3, 4, 1)
    seen = np.zeros((2, 5, 4, 9), int)
    for block in blocks((2, (5, 4, 9)), layout):
        seen[(block.policy, *block.ranges(layout))] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("have", [(0, 0, 0), (2, 3, 4), (1, 3, 4), (2, 1, 2), (1, 2, 3), (2, 3, 1)])
def test_absent__is_the_rest_of_the_block(have: tuple[int, int, int]) -> None:
    seen = np.zeros((2, 3, 4), int)
    seen[: have[0], : have[1], : have[2]] += 1
    for box in absent(Block(0, (0, 0, 0), (2, 3, 4), have)):
        seen[box] += 1
    assert (seen == 1).all()
