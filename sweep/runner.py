"""Grid -> Dataset: blocks of seeds on an executor, collected into one labelled result."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr
from tqdm import tqdm

import sweep
from sweep import variables
from sweep.engines import Arrays, Scratch, Settings, Stream, cells, check_stream
from sweep.errors import InputError, whole
from sweep.fleet import Fleet
from sweep.grid import Grid
from sweep.policies import Policy
from sweep.workload import Workload

# About half a second of work on one core: short enough for progress and for stopping, long enough to
# make what a block costs besides its cells negligible.
_BLOCK_REQUESTS = 20_000_000


def run(
    workload: Workload,
    fleet: Fleet,
    *,
    policy: str | Policy | Iterable[str | Policy],
    slack: float | Iterable[float] = (5.0,),
    seed: int | Iterable[int] = 32,
    engine: str = "timeline",
    cache_hit_speedup: float = 0.30,
    adapter_speedup: float = 0.0,
    warmup: int = 0,
    slo_ms: float | None = None,
    steps: int | None = None,
    step_ms: float = 1.0,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """Simulate every combination of policy, slack, heterogeneity and seed.

    All policies, slacks and speed vectors see the same stream of a seed (common random numbers), and the result
    is the same to the bit whatever the executor, the number of workers and the order of the policies.

    Parameters
    ----------
    workload, fleet
        What arrives, and what serves. Parameters of the workload given as lists become dimensions.
    policy
        One policy or several: names, labels such as ``"least_load(in_service_weight=0.5)"``, or `Policy` objects.
    slack
        Extra queue wait [ms] accepted for locality; one value or several.
    seed
        How many seeds (0, 1, ...), or the seeds themselves.
    engine
        ``"timeline"`` (event-driven FIFO) or ``"token_step"`` (fixed steps, a token batch).
    cache_hit_speedup
        Share of the service time that a cache hit saves, 0 to 1. Timeline engine only.
    adapter_speedup
        The same for a replica that has the request's adapter loaded; both multiply. Timeline engine only.
    warmup
        Number of first arrivals left out of the statistics. Timeline engine only.
    slo_ms
        Objective for the queue wait; adds ``slo_attainment``. Timeline engine only.
    steps, step_ms
        Length of a run of the token-step engine (None: the workload's own, else until drained), and of a step.
    executor
        Any `concurrent.futures.Executor`; by default threads.
    workers
        Number of threads; by default one per available core.
    progress
        Show a progress bar on stderr when it is a terminal.

    Returns
    -------
    A Dataset over (policy, slack, heterogeneity, [list parameters of the workload], seed); per-replica variables add
    ``replica`` and per-reason variables ``reason`` at the end. `sweep.variables` says what each variable is.

    Raises
    ------
    InputError
        For a mistake in any argument, before anything is computed.
    KeyboardInterrupt
        When interrupted, within a second, saying how far it came.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Workload.poisson(requests=200, utilisation=0.8, replicas=2, sessions=20, prefixes=20)
    >>> fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.5])
    >>> ds = sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 10], seed=8)
    >>> dict(ds.p99_queue_wait_ms.sizes)
    {'policy': 2, 'slack': 2, 'heterogeneity': 2, 'seed': 8}
    """
    settings = Settings(cache_hit_speedup, warmup, slo_ms, steps, step_ms, adapter_speedup)
    grid = Grid.of(workload, fleet, policy, slack, seed, engine, settings)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor must be a concurrent.futures.Executor, got {type(executor).__name__}.")
    workers = _available_cores() if workers is None else whole("workers", workers, at_least=1)
    result = _empty(grid)
    for first, last, block in _computed(grid, executor, workers, progress):
        _place(grid, result, first, last, block)
    return _labelled(grid, result)


# Per (seed, point of the workload), seed outermost, then per policy.
Block = list[list[Arrays]]


def simulate_block(grid: Grid, first: int, last: int, stop: threading.Event | None = None) -> Block:
    """Simulate all cells of ``grid.seeds[first:last]``; each stream is made once and shared by its cells.

    Raises
    ------
    sweep.engines.Stopped
        When `stop` is set, before the next kernel starts.
    """
    halted = stop.is_set if stop else (lambda: False)
    slack = np.array(grid.slack)
    speeds = grid.fleet.speeds
    points = [workload for _, workload in grid.workload.points()]
    scratch = Scratch()
    block = []
    for seed in grid.seeds[first:last]:
        for workload in points:
            requests = workload.realise(seed)
            check_stream(requests, speeds, grid.engine, grid.settings)
            stream = Stream.of(requests)
            block.append(
                [
                    cells(
                        stream,
                        speeds,
                        policy,
                        slack,
                        seed,
                        grid.engine,
                        grid.settings,
                        scratch,
                        halted,
                        grid.fleet.events,
                    )
                    for policy in grid.policies
                ]
            )
    return block


def _computed(grid: Grid, executor: Executor | None, workers: int, progress: bool) -> Iterator[tuple[int, int, Block]]:
    """Yield the blocks as they are computed, a few in flight at a time so that memory stays flat."""
    blocks = _blocks(grid, workers)
    stop = threading.Event() if executor is None else None
    pool = ThreadPoolExecutor(workers, thread_name_prefix="sweep") if executor is None else executor
    left = iter(blocks)
    running: dict[Future[Block], tuple[int, int]] = {}
    done = 0
    interrupted = False
    bar = tqdm(total=len(grid.seeds), unit="seed", disable=None if progress else True, leave=False)
    try:
        while True:
            for first, last in islice(left, 2 * workers - len(running)):
                running[pool.submit(simulate_block, grid, first, last, stop)] = (first, last)
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                first, last = running.pop(future)
                yield first, last, future.result()
                done += 1
                bar.update(last - first)
    except KeyboardInterrupt:
        interrupted = True
        raise KeyboardInterrupt(f"stopped after {done} of {len(blocks)} blocks; nothing was written") from None
    except BrokenExecutor as error:
        raise InputError(
            f"The executor broke after {done} of {len(blocks)} blocks: {error} A script that starts processes "
            'needs `if __name__ == "__main__":` around its main part.'
        ) from error
    finally:
        bar.close()
        for future in running:
            future.cancel()
        if stop is not None:
            # The threads stop at their next kernel call; who interrupts does not wait for a kernel to compile.
            stop.set()
            pool.shutdown(wait=not interrupted, cancel_futures=True)


def _blocks(grid: Grid, workers: int) -> list[tuple[int, int]]:
    """Return the ranges of seeds that are computed together; results do not depend on them."""
    count = len(grid.seeds)
    points = grid.workload.points()
    requests = sum(len(workload.realise(grid.seeds[0])) for _, workload in points)
    work = max(requests, 1) * grid.cells_per_seed
    # At least four blocks per worker, so that none waits long for the last one.
    size = max(1, min(_BLOCK_REQUESTS // work, -(-count // (4 * workers))))
    return [(first, min(first + size, count)) for first in range(0, count, size)]


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _empty(grid: Grid) -> Arrays:
    """Return room for the result: what no policy fills stays 0 for counts and NaN for the rest."""
    lengths = {"replica": grid.fleet.replicas, "reason": len(grid.reasons)}
    return {
        name: np.full(
            grid.shape + tuple(lengths[dim] for dim in variable.dims),
            0 if variable.integer else np.nan,
            np.int64 if variable.integer else np.float64,
        )
        for name, variable in grid.variables.items()
    }


def _place(grid: Grid, result: Arrays, first: int, last: int, block: Block) -> None:
    """Copy a block into the result; a policy computed for one slack is repeated along slack."""
    per_seed = len(block) // (last - first)
    points = list(np.ndindex(*(len(values) for values in grid.workload.dims.values())))
    for position, streams in enumerate(block):
        seed = first + position // per_seed
        point = points[position % per_seed]
        for p, (policy, arrays) in enumerate(zip(grid.policies, streams, strict=True)):
            for name, values in arrays.items():
                target = result[name][(p, slice(None), slice(None), *point, seed)]
                if grid.variables[name].dims == ("reason",):
                    reasons = policy.reasons(adapters=True)[: values.shape[-1]]
                    target[..., [grid.reasons.index(reason) for reason in reasons]] = values
                else:
                    target[...] = values


def _labelled(grid: Grid, result: Arrays) -> xr.Dataset:
    dims = tuple(grid.dims)
    described = variables.COORDINATES
    coords: dict[str, Any] = {
        name: (name, np.asarray(labels), described.get(name, {"long_name": name.replace("_", " ")}))
        for name, labels in grid.dims.items()
    }
    coords["speed"] = (("heterogeneity", "replica"), grid.fleet.speeds, described["speed"])
    coords["replica"] = ("replica", np.arange(grid.fleet.replicas), described["replica"])
    coords["reads_slack"] = ("policy", [policy.rule.reads_slack for policy in grid.policies], described["reads_slack"])
    if any(variable.dims == ("reason",) for variable in grid.variables.values()):
        coords["reason"] = ("reason", np.asarray(grid.reasons), described["reason"])
    for key in dict.fromkeys(key for policy in grid.policies for key in policy.changed):
        found = [policy.parameters.get(key) for policy in grid.policies]
        nothing: Any = "" if any(isinstance(value, str) for value in found) else np.nan
        values = np.asarray([nothing if value is None else value for value in found])
        coords[key] = ("policy", values, {"long_name": f"policy parameter {key}"})
    data = {name: ((*dims, *v.dims), result[name], v.attrs) for name, v in grid.variables.items()}
    attrs = {
        "title": "Routing policies simulated over slack, heterogeneity and seeds",
        "engine": grid.engine,
        "sweep_version": sweep.__version__,
        "fingerprint": grid.fingerprint,
        "stream_fingerprint": grid.stream_fingerprint,
        "workload": json.dumps(grid.workload.to_dict()),
        "fleet": json.dumps(grid.fleet.to_dict()),
        "settings": json.dumps(grid.settings.to_dict()),
    }
    return xr.Dataset(data, coords, attrs)
