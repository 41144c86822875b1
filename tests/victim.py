"""Runs the sweep of `grids` into a store in forked processes that are killed at random moments; run as a script.

Forking after the kernels are loaded makes a round cheap. It is safe here: no thread lives when the fork is made.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import grids
import numpy as np

from sweep.stores import chunks

REQUESTS = 60
SEEDS = 100


def go(store: Path) -> None:
    """Run or go on: 300 blocks of one seed on two threads."""
    grids.run(store, workload=grids.work(REQUESTS), seed=SEEDS, block_seeds=1, workers=2)


def main(store: Path, rounds: int, processes: int) -> None:
    """Kill `processes` that share the store, `rounds` times; print how many blocks each round added."""
    # What a child would import or compile first is there when it is forked.
    grids.run(workload=grids.work(REQUESTS), seed=1, workers=1)
    chunks.encode(np.zeros(1))
    draw = random.Random(6)
    for _ in range(rounds):
        before = len(grids.records(store)) if (store / "blocks").exists() else 0
        children = []
        for _ in range(processes):
            child = os.fork()
            if not child:
                go(store)
                os._exit(0)
            children.append(child)
        time.sleep(draw.uniform(0.05, 0.6))
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        after = len(grids.records(store)) if (store / "blocks").exists() else 0
        print(after - before, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
