"""Executors: the same bits wherever blocks run, and what happens when a worker or a block fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import rules
import xarray as xr
from grids import POLICIES, assert_same_bits, records, run, work

import sweep
from sweep import executors, runner, stores
from sweep.blocks import Block, Layout, Task
from sweep.engines import Settings, Stopped
from sweep.grid import Grid
from sweep.provenance import code_hash
from sweep.stores import BlockStore
from sweep.work import Job, perform

TESTS = Path(__file__).parent
LONG = {"workload": work(2_000), "seed": 60}


def sometimes_wrong(view: Any, request: Any, parameters: Any) -> Any:
    """Name a replica that does not exist, for about one stream in ten."""
    if request.position == 0 and view.uniform[0] < 0.1:
        return 99
    return 0


def often_wrong(view: Any, request: Any, parameters: Any) -> Any:
    """Name a replica that does not exist, for about half of the streams."""
    if request.position == 0 and view.uniform[0] < 0.5:
        return 99
    return 0


def fails(policy: str, seed: int) -> bool:
    """Whether a policy fails on a seed alone."""
    try:
        run(policy=[policy], seed=[seed])
    except sweep.InputError:
        return True
    return False


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with rules.registered(
        ("sometimes_wrong", sometimes_wrong, {}),
        ("often_wrong", often_wrong, {}),
        ("random_replica", rules.random_replica, {}),
        ("local_rule", lambda view, request, parameters: 0, {}),
    ):
        yield


@pytest.fixture(scope="module")
def memory() -> xr.Dataset:
    return run(policy=[*POLICIES, "random_replica"])


# --- The same bits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("executor", "workers"),
    [("threads", 1), ("threads", 3), ("processes", 2)],
    ids=["1 thread", "3 threads", "spawned"],
)
def test_bits__are_the_same(tmp_path: Path, memory: xr.Dataset, executor: str, workers: int, stored: bool) -> None:
    store = tmp_path / "out.zarr" if stored else None
    assert_same_bits(run(store, policy=[*POLICIES, "random_replica"], executor=executor, workers=workers), memory)


def test_bits__a_pool_of_the_caller(tmp_path: Path, memory: xr.Dataset) -> None:
    spawn = multiprocessing.get_context("spawn")
    policy = [*POLICIES, "random_replica"]
    with ThreadPoolExecutor(2) as threads:
        assert_same_bits(run(tmp_path / "a.zarr", policy=policy, executor=threads), memory)
        assert threads.submit(int, "1").result() == 1  # it is still the caller's
    with ProcessPoolExecutor(1, spawn) as processes:
        assert_same_bits(run(tmp_path / "b.zarr", policy=policy, executor=processes), memory)
        assert_same_bits(run(policy=policy, executor=processes), memory)


def test_bits__a_store_begun_by_threads_and_finished_by_processes(tmp_path: Path, memory: xr.Dataset) -> None:
    store = tmp_path / "out.zarr"
    run(store, policy=[*POLICIES, "random_replica"])
    for name in sorted(records(store))[::2]:
        (store / "blocks" / name).unlink()
    assert_same_bits(run(store, policy=[*POLICIES, "random_replica"], executor="processes", workers=1), memory)


def test_executor__nothing_that_runs_tasks() -> None:
    with pytest.raises(sweep.InputError, match=r"executor must be .* threads, processes, got int"):
        run(executor=4)
    with pytest.raises(sweep.InputError, match=r"Unknown executor 'process'.*Did you mean 'processes'"):
        run(executor="process")


# --- A worker that dies ------------------------------------------------------------------------------------------


def kill_a_child_when(ready: Callable[[], bool], times: int = 1) -> threading.Thread:
    """Kill a worker process of this process when something is ready."""

    def watch() -> None:
        for _ in range(times):
            until = time.monotonic() + 100
            killed = False
            while not killed and time.monotonic() < until:
                time.sleep(0.02)
                if ready():
                    for child in psutil.Process().children():
                        if "spawn_main" in " ".join(child.cmdline()):
                            child.kill()
                            killed = True
                            break

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def stored(store: Path, count: int) -> Callable[[], bool]:
    return lambda: (store / "blocks").exists() and len(records(store)) >= count


def test_own_pool__that_loses_a_worker_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "out.zarr"
    rebuilt: list[bool] = []
    rebuild = executors._Processes.rebuild
    monkeypatch.setattr(executors._Processes, "rebuild", lambda pool: rebuilt.append(True) or rebuild(pool))
    killer = kill_a_child_when(stored(store, 3))
    found = run(store, executor="processes", workers=2, **LONG)
    killer.join()
    assert rebuilt
    assert_same_bits(found, run(**LONG))
    assert stores.verify(store) == []


def test_own_pool__that_breaks_again_and_again_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        rebuilt = 0

        def submit(self, task: Task) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(executors.BrokenExecutor("a worker died."))
            return future

        def room(self) -> int:
            return 2

        def rebuild(self) -> bool:
            self.rebuilt += 1
            return True

        def close(self, *, interrupted: bool) -> None:
            pass

    backend = Broken()
    monkeypatch.setattr(runner, "backend_for", lambda *_: backend)
    with pytest.raises(sweep.InputError, match=r"The executor broke: a worker died.*__main__.*0 of 12 blocks"):
        run()
    assert backend.rebuilt == 3


def test_callers_pool__that_breaks_ends_with_the_blocks_kept(tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        killer = kill_a_child_when(stored(store, 3))
        with pytest.raises(sweep.InputError, match=r"The executor broke: .* of 60 blocks were done and are kept in"):
            run(store, executor=pool, **LONG)
        killer.join()
    kept = records(store)
    assert kept
    assert not [line for line in stores.verify(store) if not line.startswith("missing: ")]
    assert_same_bits(run(store, **LONG), run(**LONG))
    assert kept < records(store)


def test_processes__of_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import grids\ngrids.run(executor='processes', workers=1)\n")
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"}
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert found.returncode == 1
    assert 'needs `if __name__ == "__main__":` around its main part' in found.stderr.splitlines()[-1]


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_processes__a_signal_to_all_stops_them_quietly(tmp_path: Path, sent: signal.Signals, status: int) -> None:
    """A terminal, or a job manager, sends the signal to the whole group: the parent stops the workers."""
    store = tmp_path / "out.zarr"
    line = [sys.executable, "-m", "sweep", "run", "--requests", "2000", "--seeds", "20000", "--slack", "0:70:10"]
    line += ["--executor", "processes", "--workers", "2", "--block-seeds", "4", "-q", "-o", str(store)]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=TESTS.parent
    ) as process:
        until = time.monotonic() + 100
        while not stored(store, 100)() and time.monotonic() < until:
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, sent)
        _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert err.strip().count("\n") == 0 and err.strip().startswith("Interrupted: ")
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert workers and not alive


# --- A block that fails ------------------------------------------------------------------------------------------


def test_failure__names_its_cells_and_loses_no_other(tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    with pytest.raises(
        sweep.InputError,
        match=r"^Block .*sometimes_wrong, seed \d+: .*sent request 0 to a replica that does not exist.*"
        r" of 22 blocks were done and are kept in",
    ):
        run(store, policy=["round_robin", "sometimes_wrong"], block_seeds=1)
    missing = [line for line in stores.verify(store) if line.startswith("missing: ")]
    assert 0 < len(missing) < 11
    assert all("sometimes_wrong" in line for line in missing)


def test_failure__loses_no_block_that_shares_its_task(tmp_path: Path) -> None:
    """round_robin and the rule are cheap, so that their blocks travel together."""
    store = tmp_path / "out.zarr"
    with pytest.raises(sweep.InputError, match=r"^Block sometimes_wrong, seed \d+: "):
        run(store, policy=["round_robin", "sometimes_wrong", "locality_aware"], block_seeds=1)
    wrong = [seed for seed in range(11) if fails("sometimes_wrong", seed)]
    assert stores.verify(store) == [f"missing: sometimes_wrong, seed {seed}" for seed in wrong]


def test_failure__of_many_blocks_keeps_none_of_the_others_from_their_turn(tmp_path: Path) -> None:
    store = tmp_path / "out.zarr"
    wrong = [seed for seed in range(30) if fails("often_wrong", seed)]
    assert len(wrong) > 10
    for workers in (1, 2):
        with pytest.raises(
            sweep.InputError,
            match=rf"^Block often_wrong, seed \d+: .* {len(wrong) - 1} more blocks failed, the first of "
            r"them often_wrong, seed \d+; often_wrong, seed \d+\. ",
        ):
            run(store, policy=["often_wrong"], block_seeds=1, seed=30, workers=workers)
        assert stores.verify(store) == [f"missing: often_wrong, seed {seed}" for seed in wrong]


def test_failure__to_write_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/there/chunk")

    monkeypatch.setattr(BlockStore, "write", failing)
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '/there/chunk'; 0 of 12 blocks were done"):
        run(tmp_path / "out.zarr")


def test_failure__of_all_blocks_ends_soon(tmp_path: Path) -> None:
    with (
        rules.registered(("always_wrong", lambda view, request, parameters: 99, {})),
        pytest.raises(sweep.InputError, match=r"^Block always_wrong, seed \d+: .* 9 more blocks failed.* 0 of 300 "),
    ):
        run(tmp_path / "out.zarr", policy=["always_wrong"], block_seeds=1, seed=300, workers=1)


def test_failure__without_a_store_ends_at_once() -> None:
    with pytest.raises(sweep.InputError, match=r"^Block sometimes_wrong, seed .*; nothing was written"):
        run(policy=["sometimes_wrong"], block_seeds=1)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_failure__of_any_kind_is_a_block_error(tmp_path: Path, executor: str) -> None:
    store = tmp_path / "out.zarr"
    run(store)
    # The last seeds of this block are to be added to it, but what it has cannot be read.
    (store / "p99_queue_wait_ms" / "2.0.0.0.3").unlink()
    with pytest.raises(
        sweep.errors.BlockError,
        match=r"^Block .*locality_aware, seed 9 to 11: the chunk .* is gone .* blocks were done",
    ):
        run(store, seed=14, extend=True, executor=executor, workers=1)


def test_rule__that_cannot_travel_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "warm_up", lambda job: pytest.fail("started"))
    with pytest.raises(sweep.InputError, match=r"The rule of policy 'local_rule' cannot be sent to another process"):
        run(policy=["round_robin", "local_rule"], executor="processes")
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(sweep.InputError, match=r"The rule of policy 'local_rule' cannot be sent"),
    ):
        run(policy=["round_robin", "local_rule"], executor=pool)
    assert run(policy=["local_rule"]).request_count.all()


# --- One task ----------------------------------------------------------------------------------------------------


def job(**changes: Any) -> Job:
    fleet = sweep.Fleet.fixed([1.0, 1.0])
    grid = Grid.of(work(utilisation=0.5), fleet, "queue_aware", 5.0, 4, "timeline", Settings())
    return replace(Job(grid, Layout(1, 1, 4, 1), None, code_hash()), **changes)


def test_task__of_other_code_is_refused() -> None:
    task = Task((Block(0, (0, 0, 0), (1, 1, 4)),), (0, 1, 2, 3))
    assert perform(job(), task).code == code_hash()
    with pytest.raises(sweep.InputError, match=rf"other code .* {code_hash()} here, 0123 there"):
        perform(job(code="0123"), task)


def test_task__stops_between_cells() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        perform(job(), Task((Block(0, (0, 0, 0), (1, 1, 4)),), (0, 1, 2, 3)), stop)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_progress__counts_blocks_and_requests(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    bars: list[Any] = []

    class Bar(runner.tqdm):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            super().__init__(**{**settings, "disable": False, "file": open(os.devnull, "w")})  # noqa: SIM115
            self.seen: list[str] = []
            bars.append(self)

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            self.seen.append(text)

        def close(self) -> None:
            super().close()
            self.fp.close()

    monkeypatch.setattr(runner, "tqdm", Bar)
    run(executor=executor, workers=1, progress=True)
    assert (bars[0].total, bars[0].n, bars[0].unit) == (12, 12, "block")
    assert bars[0].seen and all(text.endswith(" M requests/s") for text in bars[0].seen)
