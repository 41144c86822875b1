"""How cost and memory grow with the work: prints the tables, and writes them to a Markdown file when one is named.

    python tests/benchmarks/growth.py [--quick] [--cluster] [REPORT.md]

Every line is measured in a process of its own on one thread. Costs are processor time, so that what else the machine
does distorts them little; import and compilation are left out. Some six minutes on a quiet machine.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRADEOFF = {"policies": ["round_robin", "queue_aware", "locality_aware"], "slacks": 16, "levels": 8, "requests": 2_000}
LIMIT_MIB = 768
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    "OPENBLAS_NUM_THREADS": "1",
}


def measure(case: dict[str, Any]) -> None:
    """Run one case in this process and print what it cost as JSON."""
    import sweep
    from sweep import executors, stores
    from sweep.blocks import layout_on_disk
    from sweep.engines import Settings
    from sweep.grid import Grid
    from sweep.stores import block_store

    spent = {"perform": 0.0, "write": 0.0}

    def timed(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            begin = time.thread_time()
            found = function(*arguments)
            spent[name] += time.thread_time() - begin
            return found

        setattr(owner, name, call)

    timed(executors, "perform")
    timed(block_store.BlockStore, "write")
    replicas = case.get("replicas", 4)
    work = sweep.Workload.poisson(
        requests=case["requests"], utilisation=0.9, replicas=replicas, sessions=500, prefixes=500
    )
    fleet = sweep.Fleet.one_slow(replicas, [0.1 * i for i in range(case["levels"])])
    slack = [5.0 * i for i in range(case["slacks"])]
    if "blocks" in case:
        large = Grid.of(work, fleet, case["policies"], slack, 10**6, "timeline", Settings())
        case["seeds"] = case["blocks"] * layout_on_disk(large, None).seed

    def run(seeds: int, store: str) -> Any:
        return sweep.run(work, fleet, policy=case["policies"], slack=slack, seed=seeds, store=store, workers=1)

    with tempfile.TemporaryDirectory(dir=case.get("folder")) as folder:
        run(1, f"{folder}/warm.zarr")
        spent.update(perform=0.0, write=0.0)
        if "limit_mib" in case:
            # LLVM reserves a gibibyte that it does not use, which the system counts as data.
            mapped, resident = (_memory_kib(name) for name in ("VmData", "VmRSS"))
            resource.setrlimit(resource.RLIMIT_DATA, (1024 * (mapped - resident) + case["limit_mib"] * 2**20,) * 2)
        store = f"{folder}/out.zarr"
        before, begin = time.process_time(), time.monotonic()
        ds = run(case["seeds"], store)
        cost, wall = time.process_time() - before, time.monotonic() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        now = stores.status(store)
        begin_open = time.process_time()
        sweep.open(store)
        opened = time.process_time() - begin_open
        size = sum(path.stat().st_size for path in Path(store).rglob("*") if path.is_file())
    found = {
        "cells": int(ds["request_count"].size),
        "requests": now.requests,
        "blocks": now.blocks,
        "wall_s": wall,
        "ns": 1e9 * cost / now.requests,
        "ns_blocks": 1e9 * spent["perform"] / now.requests,
        "beside_s": cost - spent["perform"],
        "block_s": spent["perform"] / now.blocks,
        "store_share": spent["write"] / (spent["perform"] - spent["write"]),
        "peak_mib": peak,
        "result_mib": ds.nbytes / 2**20,
        "disk_mib": size / 2**20,
        "open_s": opened,
    }
    print(json.dumps(found))


def _memory_kib(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))
    return int(line.split()[1])


def case(**changes: Any) -> dict[str, Any]:
    """Return what a process of its own measured."""
    line = [sys.executable, __file__, "--case", json.dumps({**TRADEOFF, **changes})]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cells_table(quick: bool) -> list[str]:
    """Return the growth of cells, 1 to 100 times as many."""
    lines = [
        "| cells | simulated requests | blocks | ns per request-cell | of which in blocks | besides blocks [s] "
        "| store / compute | wall [s] | peak memory [MiB] | on disk [MiB] | open [s] |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    # What a machine does changes within minutes: the short ones are run before and after the long one.
    factors = (1, 10, 100) if quick else (1, 10, 1, 10, 100, 1, 10)
    runs = [(factor, case(seeds=(4 if quick else 160) * factor)) for factor in factors]
    for factor in (1, 10, 100):
        same = sorted((found for of, found in runs if of == factor), key=lambda found: float(found["ns"]))
        found = same[len(same) // 2]
        lines.append(
            f"| {found['cells']:,} | {found['requests']:,} | {found['blocks']} | {found['ns']:.1f} | "
            f"{found['ns_blocks']:.1f} | {found['beside_s']:.2f} | {100 * found['store_share']:.1f} % | "
            f"{found['wall_s']:.1f} | {found['peak_mib']:.0f} | {found['disk_mib']:.0f} | {found['open_s']:.2f} |"
        )
    return lines


def replicas_table(quick: bool) -> list[str]:
    """Return the growth with replicas."""
    lines = [
        "| replicas | seconds per block | ns per request-cell | times that of 4 replicas | store / compute "
        "| peak memory [MiB] |",
        "|---|---|---|---|---|---|",
    ]
    first = 0.0
    for replicas in (4, 16, 64, 256):
        size = {"seeds": 2} if quick else {"blocks": 4}
        found = case(**size, levels=1, replicas=replicas, policies=["locality_aware"])
        first = first or found["ns"]
        lines.append(
            f"| {replicas} | {found['block_s']:.2f} | {found['ns']:.1f} | {found['ns'] / first:.1f} | "
            f"{100 * found['store_share']:.1f} % | {found['peak_mib']:.0f} |"
        )
    return lines


def memory_line(quick: bool) -> str:
    """Return how a result of ten times the memory limit was computed under that limit."""
    seeds = 150 if quick else 3_900
    found = case(seeds=seeds, requests=20, replicas=1_024, levels=8, policies=["queue_aware"], limit_mib=LIMIT_MIB)
    return (
        f"With memory limited to {LIMIT_MIB} MiB (RLIMIT_DATA, what libraries reserve unused left out), a result of "
        f"{found['result_mib']:,.0f} MiB ({found['cells']:,} cells of 1,024 replicas) was computed in "
        f"{found['wall_s']:.0f} s; peak resident memory {found['peak_mib']:.0f} MiB, {found['disk_mib']:,.0f} MiB on "
        "disk."
    )


def _processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    import psutil

    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def cluster_line(quick: bool) -> str:
    """Return what a Dask cluster of two worker processes adds to the work."""
    import distributed

    import sweep

    work = sweep.Workload.poisson(requests=2_000, utilisation=0.9, replicas=4, sessions=500, prefixes=500)
    fleet = sweep.Fleet.one_slow(4, [0.1 * i for i in range(8)])
    settings: dict[str, Any] = {"policy": "locality_aware", "slack": [5.0 * i for i in range(16)]}
    blocks, block_seeds = 64, 2 if quick else 230
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/scheduler.json"
        options = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"]
        start = [sys.executable, "-m", "dask"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, "env": ENVIRONMENT}
        scheduler = subprocess.Popen([*start, "scheduler", "--port", "0", *options], **quiet)
        workers = [
            subprocess.Popen([*start, "worker", "--nthreads", "1", "--no-nanny", *options], **quiet) for _ in range(2)
        ]
        try:
            with distributed.Client(scheduler_file=file) as client:
                client.wait_for_workers(2)
                sweep.run(work, fleet, **settings, seed=4, store=f"{folder}/warm.zarr", block_seeds=1, executor=client)
                seeds = blocks * block_seeds
                # A scheduler without work uses the processor too: its clock ticks, and it watches its workers.
                before, begin = _processor_s(scheduler.pid), time.monotonic()
                time.sleep(10)
                idle = (_processor_s(scheduler.pid) - before) / (time.monotonic() - begin)
                with distributed.get_task_stream(client) as stream:
                    before, begin = _processor_s(scheduler.pid), time.monotonic()
                    sweep.run(
                        work, fleet, **settings, seed=seeds, store=f"{folder}/out.zarr", block_seeds=block_seeds,
                        executor=client,
                    )  # fmt: skip
                    wall = time.monotonic() - begin
                    used = _processor_s(scheduler.pid) - before
        finally:
            for process in (*workers, scheduler):
                process.kill()
                process.wait()
    spans = [
        span["stop"] - span["start"]
        for task in stream.data
        for span in task["startstops"]
        if span["action"] == "compute"
    ]
    busy = sum(spans)
    return (
        f"{len(spans)} blocks of {busy / len(spans):.2f} s on two Dask workers of one thread: the scheduler used "
        f"{1e3 * used / len(spans):.1f} ms of processor time per task, {100 * used / busy:.2f} % of the work; without "
        f"any work it would have used {1e3 * idle * wall / len(spans):.1f} ms of these, so that "
        f"{100 * max(used - idle * wall, 0.0) / busy:.2f} % of the work come with the tasks. The wall time "
        f"of {wall:.1f} s was {100 * (2 * wall / busy - 1):.1f} % beyond busy time / workers."
    )


def _machine() -> str:
    from sweep.provenance import machine

    load = os.getloadavg()[0]
    return f"a machine of {os.cpu_count()} cores ({machine()['cpu']}), whose load was {load:.1f} when it began"


def main(arguments: list[str]) -> None:
    """Print the tables."""
    quick = "--quick" in arguments
    text: list[str] = []

    def add(*lines: str) -> None:
        print("\n".join(lines), flush=True)
        text.extend(lines)

    add(
        "# Growth: what a sweep costs as it grows",
        "",
        f"Written by `tests/benchmarks/growth.py` on {_machine()}. Every line was measured in a process of its own, "
        "which runs its sweep on one thread after a small one has loaded the kernels; costs are processor time of the "
        "process, wall time is given beside it. Of the shorter growths of cells the median of three runs, before and "
        "after the longest, is given. The grid is that of the trade-off study: three policies, 16 slacks, 8 "
        "heterogeneities, 2,000 requests, 4 replicas, with a store at the default block size. A request-cell is one "
        "request in one simulated cell; a policy that reads no slack is simulated for one. *Store / compute* is the "
        "time in which blocks are encoded, written and synced, over the time in which they are simulated. *Besides "
        "blocks* is what a sweep costs once: making the store, opening it at the end, feeding the thread.",
        "",
        "## Cells",
        "",
    )
    add(*cells_table(quick), "", "## Replicas", "")
    add("locality_aware alone, one heterogeneity, four blocks of the default size.", "")
    add(*replicas_table(quick), "", "## Memory", "")
    add(memory_line(quick))
    if "--cluster" in arguments:
        add("", "## A Dask cluster", "", cluster_line(quick))
    for name in arguments:
        if name.endswith(".md"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        measure(json.loads(sys.argv[2]))
    else:
        main(sys.argv[1:])
