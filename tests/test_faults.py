"""What a store survives: kills, signals, a full disk, two processes at once, a place that cannot be written."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grids
import psutil
import pytest
from grids import assert_same_bits, records, run

import sweep
from sweep import stores

TESTS = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
OPTIONS = ("--requests", "2000", "--sessions", "9", "--prefixes", "9", "--slack", "0:70:10", "--block-seeds", "4")


def command(*arguments: object) -> subprocess.Popen[str]:
    """Start `python -m sweep ARGUMENTS`."""
    line = [sys.executable, "-m", "sweep", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def wait_for_blocks(store: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until a process has stored some blocks."""
    until = time.monotonic() + 120
    while not (store / "blocks").exists() or len(records(store)) < count:
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.01)


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Mount something at a folder; skips the test where that is not allowed."""
    made = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mount is not allowed here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(("rounds", "processes"), [(20, 1), (8, 2)])
def test_kill__at_random_moments(tmp_path: Path, rounds: int, processes: int) -> None:
    import victim

    store = tmp_path / "out.zarr"
    killed = subprocess.run(
        [sys.executable, str(TESTS / "victim.py"), str(store), str(rounds), str(processes)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
        check=True,
    )
    added = [int(line) for line in killed.stdout.split()]
    assert len(added) == rounds
    assert sum(count > 0 for count in added) >= 3, added
    # Nothing torn counts as done, and what is done was never lost.
    assert not [line for line in stores.verify(store) if not line.startswith("missing: ")]
    assert min(added) >= 0
    victim.go(store)
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), run(workload=grids.work(victim.REQUESTS), seed=victim.SEEDS))
    assert list((store / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("sent", "status", "workers"),
    [(signal.SIGTERM, 143, ()), (signal.SIGINT, 130, ()), (signal.SIGTERM, 143, ("--executor", "processes"))],
)
def test_signal__stops_within_a_second(
    tmp_path: Path, sent: signal.Signals, status: int, workers: tuple[str, ...]
) -> None:
    store = tmp_path / "out.zarr"
    with command("run", *OPTIONS, "--seeds", "20000", "--workers", "2", *workers, "-o", store) as process:
        wait_for_blocks(store, 60, process)
        begin = time.monotonic()
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        took = time.monotonic() - begin
    assert (process.returncode, out) == (status, "")
    assert "Traceback" not in err
    assert "Interrupted: " in err and "blocks were done and are kept in" in err
    # A second on a machine of its own; these cores are shared.
    assert took < 5
    assert not [line for line in stores.verify(store) if not line.startswith("missing: ")]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_signal__stops_within_a_second_inside_a_long_kernel(tmp_path: Path, executor: str) -> None:
    """One cell that takes minutes, in which no flag is polled."""
    store = tmp_path / "out.zarr"
    long = ("--requests", "5000000", "--replicas", "4096", "--seeds", "1", "--policy", "least_load(signal=requests)")
    with command("run", *long, "--executor", executor, "--workers", "1", "-o", store) as process:
        until = time.monotonic() + 120
        # Whoever computes has by then used the processor for longer than it takes to start.
        while spent_s(family(process)[slice(1) if executor == "threads" else slice(1, None)]) < 8:
            assert process.poll() is None and time.monotonic() < until, process.communicate()
            time.sleep(0.1)
        workers = family(process)[1:]
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        took = time.monotonic() - begin
    assert process.returncode == 130
    assert "Traceback" not in err and "Interrupted: 0 of 1 blocks were done" in err
    # As above.
    assert took < 5
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not alive


def spent_s(processes: list[psutil.Process]) -> float:
    """The processor time of the one that used most."""
    return max((sum(process.cpu_times()[:2]) for process in processes), default=0.0)


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The process and its children."""
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def test_disk_full__is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=1500k", "tmpfs"):
        store = tmp_path / "out.zarr"
        with pytest.raises(OSError, match=r"No space left on device(: '.*')?; \d+ of 90 blocks were done and are"):
            run(store, seed=90)
        done = records(store)
        assert done
        assert not [line for line in stores.verify(store) if not line.startswith("missing: ")]
        assert list((store / "tmp").iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=30m", str(tmp_path)], check=True)
        assert_same_bits(run(store, seed=90), run(seed=90))
        assert done < records(store)


def test_disk_full__from_the_command_line(tmp_path: Path) -> None:
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=400k", "tmpfs"):
        process = command("run", *OPTIONS, "--seeds", "2000", "-q", "-o", tmp_path / "out.zarr")
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("Error: [Errno 28] No space left on device") and err.count("\n") == 1


def test_two_processes__share_a_store(tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    both = [command("run", *OPTIONS, "--seeds", "32", "-q", "-o", store) for _ in range(2)]
    for process in both:
        assert process.communicate(timeout=120) == ("", "")
        assert process.returncode == 0
    assert stores.verify(store) == []
    assert list((store / "tmp").iterdir()) == []
    fleet = sweep.Fleet.one_slow(4, [0.0])
    work = sweep.Workload.poisson(requests=2000, utilisation=0.9, replicas=4, sessions=9, prefixes=9)
    slack = [10.0 * i for i in range(8)]
    assert_same_bits(sweep.open(store), sweep.run(work, fleet, policy=grids.POLICIES, slack=slack, seed=32))


def test_read_only__a_finished_store_is_complete_and_an_unfinished_one_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    memory = run(store)
    with mounted(tmp_path, "--bind", str(tmp_path)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(tmp_path)], check=True)
        assert_same_bits(run(store), memory)
        assert stores.status(store).complete
        assert stores.verify(store) == []
        with pytest.raises(OSError, match=r"Read-only file system: the store .* cannot be written"):
            run(store, extend=True, seed=20)
        with pytest.raises(OSError, match=r"Read-only file system: the store .* cannot be written"):
            run(tmp_path / "other.zarr")
    for name in sorted(records(store))[:3]:
        (store / "blocks" / name).unlink()
    with mounted(tmp_path, "--bind", str(tmp_path)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(tmp_path)], check=True)
        assert sweep.open(store).computed.values.sum() == 33 - 9
        with pytest.raises(OSError, match=r"Read-only file system: the store .* cannot be written"):
            run(store)
    assert_same_bits(run(store), memory)
