"""A Dask cluster of processes: the same bits, whoever comes, goes or dies; and stores in an object store."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rules
import xarray as xr
from grids import POLICIES, assert_same_bits, records, run, work

import sweep
import sweep.cluster
from sweep import stores

distributed = pytest.importorskip("distributed")

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent
LONG = {"workload": work(2_000), "seed": 60}


class Processes:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{TESTS}", **environment}
        self.file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        self.workers: list[subprocess.Popen[bytes]] = []

    def _start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(self.file)]
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(
                line, stdout=log, stderr=log, cwd=self.folder, env={**self.environment, **environment}
            )

    def add(self, count: int = 1, **environment: str) -> None:
        for _ in range(count):
            options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
            self.workers.append(self._start("worker", *options, **environment))

    def client(self, workers: int) -> Any:
        client = distributed.Client(scheduler_file=str(self.file), timeout="60s")
        if workers:
            client.wait_for_workers(workers, timeout=120)
        return client

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@contextlib.contextmanager
def cluster(folder: Path, workers: int, **environment: str) -> Iterator[tuple[Processes, Any]]:
    processes = Processes(folder, **environment)
    try:
        processes.add(workers)
        with processes.client(workers) as client:
            yield processes, client
    finally:
        processes.close()


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    with rules.registered(("random_replica", rules.random_replica, {})):
        yield


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with cluster(tmp_path_factory.mktemp("cluster"), 2) as (_, client):
        yield client


@pytest.fixture(scope="module")
def long() -> xr.Dataset:
    return run(**LONG)


def when(ready: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.02)


def stored(store: Path, count: int) -> Callable[[], bool]:
    return lambda: (store / "blocks").exists() and len(records(store)) >= count


# --- Two workers -------------------------------------------------------------------------------------------------


def test_cluster__gives_the_same_bits(tmp_path: Path, two: Any) -> None:
    memory = run(policy=[*POLICIES, "random_replica"])
    assert_same_bits(run(policy=[*POLICIES, "random_replica"], executor=two), memory)
    assert_same_bits(run(tmp_path / "a.zarr", policy=[*POLICIES, "random_replica"], executor=two), memory)
    assert_same_bits(run(f"file://{tmp_path}/b.zarr", policy=[*POLICIES, "random_replica"], executor=two), memory)


def test_cluster__a_relative_path_is_the_clients(tmp_path: Path, two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory = run()
    for location in ("a.zarr", "file://b.zarr"):
        assert_same_bits(run(location, executor=two), memory)
    (tmp_path / "a.zarr" / "blocks" / "0.0.0.0-3.2.3").unlink()
    sweep.repair("a.zarr", executor=two)
    assert stores.verify(tmp_path / "a.zarr") == []


def test_cluster__a_trace_goes_there_once(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scattered: list[int] = []
    submitted: list[int] = []
    executor = distributed.cfexecutor.ClientExecutor
    scatter, submit = distributed.Client.scatter, executor.submit

    def count_scatter(client: Any, data: Any, **settings: Any) -> Any:
        scattered.append(len(pickle.dumps(data)))
        return scatter(client, data, **settings)

    def count_submit(self: Any, function: Any, job: Any, task: Any) -> Any:
        assert isinstance(job, distributed.Future)
        submitted.append(len(pickle.dumps(task)))
        return submit(self, function, job, task)

    monkeypatch.setattr(distributed.Client, "scatter", count_scatter)
    monkeypatch.setattr(executor, "submit", count_submit)
    traffic = sweep.Workload.fixed(work(2_000, utilisation=0.8).realise(3))
    with distributed.get_task_stream(two) as stream:
        found = run(workload=traffic, executor=two, block_seeds=1)
    assert_same_bits(found, run(workload=traffic, block_seeds=1))
    assert {task["worker"] for task in stream.data} == set(two.nthreads())
    assert len(scattered) == 1 and scattered[0] > 50_000
    assert len(submitted) == 22 and max(submitted) < 1_000


def test_cluster__a_repair_runs_again(tmp_path: Path, two: Any) -> None:
    """Equal calls are not shared with those that ran before."""
    store = tmp_path / "out.zarr"
    whole = run(store, executor=two)
    whole.load()
    for path in (store / "p99_queue_wait_ms").glob("1.*"):
        path.write_bytes(b"damaged")
    sweep.repair(store, executor=two)
    assert stores.verify(store) == []
    assert_same_bits(sweep.open(store), whole)


def test_cluster__from_the_command_line(tmp_path: Path, two: Any) -> None:
    store = tmp_path / "out.zarr"
    line = [sys.executable, "-m", "sweep", "run", "--requests", "50", "--seeds", "6", "--block-seeds", "2"]
    line += ["-q", "-o", str(store), "--dask", two.scheduler.address]
    found = subprocess.run(line, capture_output=True, text=True, cwd=PACKAGE, timeout=120, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert stores.status(store).complete


@pytest.mark.parametrize("address", ["foo", "http://127.0.0.1:1", "tcp://127.0.0.1:1"])
def test_cluster__an_address_where_there_is_none(tmp_path: Path, address: str) -> None:
    line = [sys.executable, "-m", "sweep", "run", "--requests", "50", "-q", "-o", str(tmp_path / "out.zarr")]
    found = subprocess.run(
        [*line, "--dask", address], capture_output=True, text=True, cwd=PACKAGE, timeout=120, check=False
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"Error: --dask {address}: no Dask scheduler can be reached there (")
    assert "such as tcp://host:8786" in found.stderr and "Traceback" not in found.stderr


def test_cluster__a_block_that_fails_is_named(tmp_path: Path, two: Any) -> None:
    store = tmp_path / "out.zarr"
    run(store)
    (store / "p99_queue_wait_ms" / "2.0.0.0.3").unlink()
    with pytest.raises(sweep.errors.BlockError, match=r"^Block .*locality_aware, seed 9 to 11: the chunk .* is gone"):
        run(store, seed=14, extend=True, executor=two)


# --- Workers and clients that come and go ------------------------------------------------------------------------


def test_worker__killed_and_another_added_in_the_middle(tmp_path: Path, long: xr.Dataset) -> None:
    store = tmp_path / "out.zarr"
    with cluster(tmp_path, 2) as (processes, client):

        def change() -> None:
            when(stored(store, 6))
            processes.workers[0].send_signal(signal.SIGKILL)
            when(stored(store, 12))
            processes.add()

        before = set(client.nthreads())
        changing = threading.Thread(target=change)
        changing.start()
        with distributed.get_task_stream(client) as stream:
            # Long enough for a worker to come up on a busy machine.
            found = run(store, executor=client, **{**LONG, "seed": 400})
        changing.join()
    used = {task["worker"] for task in stream.data}
    assert len(used - before) == 1
    assert stores.verify(store) == []
    xr.testing.assert_identical(found.isel(seed=slice(0, 60)).load().drop_attrs(), long.drop_attrs())


def test_client__dies_and_another_goes_on(tmp_path: Path, long: xr.Dataset) -> None:
    store = tmp_path / "out.zarr"
    with cluster(tmp_path, 2) as (processes, client):
        script = tmp_path / "client.py"
        script.write_text(
            "import sys, distributed, grids\n"
            "with distributed.Client(sys.argv[1]) as client:\n"
            "    grids.run(sys.argv[2], workload=grids.work(2_000), seed=60, executor=client)\n"
        )
        dying = subprocess.Popen(
            [sys.executable, str(script), client.scheduler.address, str(store)], env=processes.environment
        )
        when(stored(store, 6))
        dying.kill()
        dying.wait()
        kept = records(store)
        assert 6 <= len(kept) < 60
        assert_same_bits(run(store, executor=client, **LONG), long)
        assert kept < records(store)
    assert stores.verify(store) == []


def test_worker__of_another_version_is_refused(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "sweep", tmp_path / "sweep")
    with (tmp_path / "sweep" / "engines.py").open("a") as source:
        source.write("# A change.\n")
    with (
        cluster(tmp_path, 1, PYTHONPATH=f"{tmp_path}{os.pathsep}{TESTS}") as (_, client),
        pytest.raises(sweep.InputError, match=r"This worker has other code than the one who asks: \w+ here, \w+"),
    ):
        run(tmp_path / "out.zarr", executor=client)
    assert not (tmp_path / "out.zarr" / "blocks").exists()


def test_worker__the_only_one_is_killed_and_another_comes(tmp_path: Path, long: xr.Dataset) -> None:
    store = tmp_path / "out.zarr"
    with cluster(tmp_path, 1) as (processes, client):

        def change() -> None:
            when(stored(store, 6))
            processes.workers[0].send_signal(signal.SIGKILL)
            when(lambda: not client.nthreads())
            # Long enough for the run to see that there is none.
            time.sleep(2 * sweep.cluster._LOOK_S)
            processes.add()

        changing = threading.Thread(target=change)
        changing.start()
        found = run(store, executor=client, **LONG)
        changing.join()
    assert_same_bits(found, long)
    assert stores.verify(store) == []


def test_worker__none_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "out.zarr"
    monkeypatch.setattr(sweep.cluster, "_WITHOUT_S", 2.0)
    with cluster(tmp_path, 1) as (processes, client):

        def change() -> None:
            when(stored(store, 6))
            processes.workers[0].send_signal(signal.SIGKILL)

        changing = threading.Thread(target=change)
        changing.start()
        with pytest.raises(sweep.InputError, match=r"has had no workers for 2 s\. \d+ of 60 blocks were done and"):
            run(store, executor=client, **LONG)
        changing.join()


def test_scheduler__killed_says_what_is_kept(tmp_path: Path) -> None:
    """In a process of its own: what the client library says of the loss goes to standard error."""
    store = tmp_path / "out.zarr"
    with cluster(tmp_path, 1) as (processes, client):
        line = [sys.executable, "-m", "sweep", "run", "--requests", "2000", "--seeds", "20000", "--block-seeds", "4"]
        line += ["-q", "-o", str(store), "--dask", client.scheduler.address]
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=PACKAGE) as process:
            when(stored(store, 6))
            processes.scheduler.kill()
            _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "blocks were done and are kept in" in err.splitlines()[-1]


def test_cluster__without_workers(tmp_path: Path) -> None:
    with cluster(tmp_path, 0) as (_, client), pytest.raises(sweep.InputError, match="has no workers"):
        run(executor=client)


# --- An object store ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """An S3-compatible server on the loopback, by the environment that reaches it."""
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        yield environment
    finally:
        server.stop()


SCRIPT = """
import json, sys
import distributed, fsspec, xarray as xr
import grids, sweep
from sweep import stores

fs = fsspec.filesystem("s3")
fs.mkdir("bucket")
url = "s3://bucket/sweeps/out.zarr"
small = {"policy": ["round_robin", "locality_aware"], "slack": [0.0, 10.0], "seed": 5, "levels": [0.5]}
local = grids.run(**small)
with distributed.Client(scheduler_file=sys.argv[1], timeout="60s") as client:
    client.wait_for_workers(2, timeout=120)
    grids.assert_same_bits(grids.run(url, executor=client, **small), local)
    grids.assert_same_bits(xr.open_zarr(url), local)
    assert stores.verify(url) == [] and stores.status(url).complete
    # What two clients that begin at once rely on: the server refuses to write what is there.
    try:
        fs.pipe_file("bucket/sweeps/out.zarr/grid.json", b"torn", mode="create")
    except OSError:
        pass
    else:
        raise AssertionError("written over")
    # A block whose record was never written: what lies there does not count.
    fs.rm("bucket/sweeps/out.zarr/blocks/1.0.0.1-2.1.2")
    assert sweep.open(url).computed.values.sum() == 8
    fs.pipe("bucket/sweeps/out.zarr/load_variance/0.0.0.0.0", b"damaged")
    assert len(stores.verify(url)) == 2
    sweep.repair(url, executor=client)
    assert stores.verify(url) == []
    grids.assert_same_bits(
        grids.run(url, **{**small, "seed": 6}, extend=True, executor=client),
        grids.run(**{**small, "seed": 6}),
    )
    try:
        grids.run(url, **{**small, "seed": 3})
    except sweep.InputError as error:
        assert "holds another sweep: seeds is" in str(error), error
    else:
        raise AssertionError("not refused")
    fs.pipe("bucket/foreign.zarr/notes.txt", b"")
    try:
        grids.run("s3://bucket/foreign.zarr")
    except sweep.InputError as error:
        assert "is not a store of sweep" in str(error), error
    else:
        raise AssertionError("not refused")
print("all right")
"""


def test_object_store__across_worker_processes(tmp_path: Path, bucket: dict[str, str]) -> None:
    script = tmp_path / "client.py"
    script.write_text(SCRIPT)
    with cluster(tmp_path, 2, **bucket) as (processes, _):
        found = subprocess.run(
            [sys.executable, str(script), str(processes.file)],
            env=processes.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (found.returncode, found.stdout) == (0, "all right\n"), found.stderr
