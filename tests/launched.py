"""Runs of the torch runner in processes of their own, for tests that look at how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
#: For starting: three processes import torch. What is asserted starts when the ranks work.
START_S = 240
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "sweep.torch_runner")
VALIDATE = ("-m", "sweep", "validate")


@contextmanager
def started(
    folder: Path, *arguments: str, cores: set[int] | None = None, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A launcher in a session of its own; whatever it leaves behind is killed, after the test has looked."""
    process = subprocess.Popen(
        [sys.executable, *arguments, "--output", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if cores:
        os.sched_setaffinity(process.pid, cores)
    try:
        yield process
    finally:
        for left in [*ranks_of(process), process]:
            if left.poll() is None if isinstance(left, subprocess.Popen) else left.is_running():
                left.kill()
        process.communicate()


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks in order, as far as they have been started."""
    found = {}
    try:
        for child in psutil.Process(process.pid).children(recursive=True):
            rank = child.environ().get("RANK")
            if rank is not None and child.status() != psutil.STATUS_ZOMBIE:
                found[int(rank)] = child
    except psutil.Error:
        return []
    return [found[rank] for rank in sorted(found)]


def at_work(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The two ranks, once both are pinned to their cores: after they have met, before the first round."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        ranks = ranks_of(process)
        if len(ranks) == 2 and all(len(rank.cpu_affinity()) == 1 for rank in ranks):
            time.sleep(2.0)
            return ranks
        time.sleep(0.2)
    raise AssertionError("the ranks did not start")


def ends_within(process: subprocess.Popen[str], ranks: list[psutil.Process], seconds: float) -> tuple[int, str, str]:
    """Status and output of a launcher that ends in time and leaves no rank behind."""
    out, err = process.communicate(timeout=seconds)
    _, alive = psutil.wait_procs(ranks, timeout=2)
    assert not alive
    return process.returncode, out, err


pinned = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores"
)
