"""What a worker does with a task, wherever it runs: simulate its blocks and write them, or hand them back."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from sweep.blocks import JobError, Layout, Task, absent, simulate
from sweep.engines import Arrays, Scratch, Stream, cells
from sweep.grid import Grid
from sweep.provenance import code_hash
from sweep.requests import Requests
from sweep.stores.block_store import BlockStore, receipt_of


class Flag(Protocol):
    """An event of threads or of processes."""

    def is_set(self) -> bool:
        """Return whether to stop."""


@dataclass(frozen=True)
class Job:
    """All that tasks share: the grid without its seeds, the layout, the store if there is one, and the code.

    ``content`` is the hash of the file that says what the store holds, as it was when the grid was read from it.
    """

    grid: Grid
    layout: Layout
    store: str | None
    code: str
    content: str = ""

    def warm_up(self) -> None:
        """Compile the kernels of the built-in policies, or find them compiled."""
        tiny = Stream.of(Requests.from_arrays(arrival_ms=[0.0, 1.0], service_ms=[1.0, 1.0], prompt_tokens=[1, 1]))
        grid = self.grid
        for policy in grid.policies:
            if policy.rule.function is None:
                slack = np.array(grid.slack[:1])
                cells(
                    tiny, grid.fleet.speeds[:1], policy, slack, 0, grid.engine, grid.settings, events=grid.fleet.events
                )


class Done(NamedTuple):
    """A task's receipt: its simulated requests and the code that made them; and its arrays, unless they are stored."""

    requests: int
    code: str
    arrays: list[Arrays] | None


def perform(job: Job, task: Task, stop: Flag | None = None) -> Done:
    """Compute the blocks of a task; with a store write them there, those that another process wrote left out.

    Raises
    ------
    JobError
        When this worker's code is not that of the job, or when the store was extended meanwhile.
    sweep.engines.Stopped
        When `stop` is set.
    """
    if code_hash() != job.code:
        raise JobError(
            f"This worker has other code than the one who asks: {code_hash()} here, {job.code} there (a hash of the "
            "sources that decide numbers); install the same version of sweep everywhere."
        )
    grid, layout = job.grid, job.layout
    store = BlockStore(job.store) if job.store is not None else None
    wanted = [block for block in task.blocks if store is None or not store.has(block)]
    if not wanted:
        return Done(0, job.code, None)
    begin = time.perf_counter()
    policies = [block.policy for block in wanted]
    scratch = Scratch()
    halted = stop.is_set if stop is not None else threading.Event().is_set
    points = tuple(slice(None) for _ in grid.between)
    first = wanted[0]
    arrays = [store.load(grid, layout, block) for block in wanted] if store and all(first.have) else []
    requests = 0
    for box in absent(first):
        whole = first.ranges(layout)
        slack, heterogeneity, _ = (
            slice(side.start + part.start, side.start + part.stop) for side, part in zip(whole, box, strict=True)
        )
        found, count = simulate(grid, policies, slack, heterogeneity, task.seeds[box[2]], scratch, halted)
        requests += count
        if not arrays:
            # Nothing of the blocks is there, so the one box is all of them.
            arrays = found
            break
        for into, part in zip(arrays, found, strict=True):
            for name, array in part.items():
                into[name][(*box[:2], *points, box[2])] = array
    if store is None:
        return Done(requests, job.code, arrays)
    if store.extended(job.content):
        raise store.overtaken()
    seconds = time.perf_counter() - begin
    for block, values in zip(wanted, arrays, strict=True):
        share = len(wanted)
        store.write(grid, layout, block, values, receipt_of(requests // share, seconds / share, job.code))
    return Done(requests, job.code, None)
