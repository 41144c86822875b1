"""Grid -> Dataset: blocks of seeds on an executor, collected into one labelled result."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

import xarray as xr
from tqdm import tqdm

from sweep import labels
from sweep.block_cells import as_cache_blocks
from sweep.blocks import Block, Layout, Task, blocks, counts, empty, layout_in_memory, tasks
from sweep.engines import Settings, check_stream
from sweep.errors import InputError, whole
from sweep.executors import backend_for, compute
from sweep.fleet import Fleet
from sweep.grid import Grid
from sweep.policies import Policy
from sweep.provenance import code_hash
from sweep.stores import BlockStore, Opened, block_text, done_blocks, label, open_dataset, opened, prepare, stored_grid
from sweep.work import Done, Job
from sweep.workload import Workload

if TYPE_CHECKING:
    from distributed import Client


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
    cache_blocks: float | Iterable[float | None] | None = None,
    eviction: str = "lru",
    cache_visible: str = "dispatch",
    store: str | os.PathLike[str] | None = None,
    extend: bool = False,
    block_seeds: int | None = None,
    executor: Executor | Client | str = "threads",
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
    cache_blocks
        How many blocks a replica's cache holds: a capacity, or a list (a dimension) in which None is an unbounded
        cache, as it is when left out. Requests without chains of blocks have their prefix as one block. Timeline only.
    eviction
        ``"lru"`` or ``"lfu"``: what goes when a cache is full (counts while in the cache, ties least recently used).
    cache_visible
        When a request's blocks can be matched: from ``"dispatch"`` or ``"prefill_end"`` on.
    store
        A path ending in ``.zarr``, or an fsspec URL such as ``s3://bucket/out.zarr``: blocks are kept there as they are
        done, and the result is opened lazily. The same call again computes only what is missing.
    extend
        Add the policies, slacks, heterogeneities and seeds of this call to those of the finished store, at their ends.
    block_seeds
        Seeds per block; by default about two seconds of work, with a store, else half a second. Fixed for a store.
    executor
        ``"threads"`` (the default), ``"processes"``, any `concurrent.futures.Executor`, or a `dask.distributed.Client`.
    workers
        Number of threads or processes; by default one per available core.
    progress
        Show a progress bar on stderr when it is a terminal.

    Returns
    -------
    A Dataset over (policy, slack, heterogeneity, [list parameters of the workload], seed); per-replica variables add
    ``replica`` and per-reason variables ``reason`` at the end. `sweep.variables` says what each variable is.

    Raises
    ------
    InputError
        For a mistake in any argument, before anything is computed; for a store that holds another sweep; and for a
        rule of one's own that fails.
    sweep.errors.BlockError
        When a block fails. With a store the other blocks are computed first.
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
    settings = Settings(
        cache_hit_speedup, warmup, slo_ms, steps, step_ms,
        adapter_speedup, as_cache_blocks(cache_blocks), isinstance(cache_blocks, Iterable), eviction, cache_visible,
    )  # fmt: skip
    grid = Grid.of(workload, fleet, policy, slack, seed, engine, settings)
    workers = _available_cores() if workers is None else whole("workers", workers, at_least=1)
    if block_seeds is not None:
        whole("block_seeds", block_seeds, at_least=1)
    if store is None:
        grid.check_memory()
    for _, point in workload.points():
        check_stream(point.realise(grid.seeds[0]), fleet.speeds, engine, settings, fleet.events)
    if store is None:
        return _in_memory(grid, layout_in_memory(grid, workers, block_seeds), executor, workers, progress)
    kept = BlockStore(os.fspath(store))
    fill(kept, stored_grid(kept, grid, block_seeds, extend=extend), executor, workers, progress)
    return open_dataset(store)


def repair(
    store: str | os.PathLike[str],
    *,
    executor: Executor | Client | str = "threads",
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Compute the damaged and the missing blocks of a store, and write its labels again where they are damaged.

    Parameters
    ----------
    store
        What `run` was given. Rules of one's own must be registered.
    executor, workers, progress
        As in `run`.

    Raises
    ------
    InputError
        When there is no such store, or its blocks were made by other code.
    """
    workers = _available_cores() if workers is None else whole("workers", workers, at_least=1)
    kept = BlockStore(os.fspath(store))
    grid, layout, content = opened(kept)
    prepare(kept)
    if not kept.labels_are_whole():
        kept.unlabel()
    label(kept, Opened(grid, layout, content))
    kept.forget([block for block, _ in kept.damaged(grid, layout)])
    fill(kept, Opened(grid, layout, content), executor, workers, progress)


def fill(
    kept: BlockStore,
    held: Opened,
    executor: Executor | Client | str,
    workers: int,
    progress: bool,
) -> None:
    """Compute the blocks that a store misses of what it holds."""
    missing = kept.missing(held.grid, held.layout)
    # A store that is complete need not be writable, but what dead writers left goes where it is.
    with contextlib.nullcontext() if missing else contextlib.suppress(OSError):
        prepare(kept)
    if missing:
        job = _job(held.grid, held.layout, kept.location, held.content)
        then = f" and are kept in {kept.location!r}; the same command goes on"
        _compute(job, held.grid, missing, executor, workers, progress, lambda *_: None, then)
    # Another process that had read what the store held before may have written its own.
    label(kept, held)


def _in_memory(
    grid: Grid, layout: Layout, executor: Executor | Client | str, workers: int, progress: bool
) -> xr.Dataset:
    result = empty(grid, grid.shape)

    def place(task: Task, done: Done) -> None:
        assert done.arrays is not None
        points = [slice(None) for _ in grid.between]
        for block, arrays in zip(task.blocks, done.arrays, strict=True):
            slack, heterogeneity, seed = block.ranges(layout)
            for name, values in arrays.items():
                result[name][block.policy][(slack, heterogeneity, *points, seed)] = values

    wanted = list(blocks(counts(grid), layout))
    job = _job(grid, layout)
    _compute(job, grid, wanted, executor, workers, progress, place, "; nothing was written")
    dims = tuple(grid.dims)
    data = {name: ((*dims, *v.dims), result[name], v.attrs) for name, v in grid.variables.items()}
    return xr.Dataset(data, labels.coordinates(grid), labels.attributes(grid))


def _job(grid: Grid, layout: Layout, store: str | None = None, content: str = "") -> Job:
    # Without the seeds, of which each task carries its own: a million of them would travel with every one.
    return Job(replace(grid, seeds=()), layout, store, code_hash(), content)


def _compute(
    job: Job,
    grid: Grid,
    missing: Sequence[Block],
    executor: Executor | Client | str,
    workers: int,
    progress: bool,
    take: Callable[[Task, Done], None],
    then: str,
) -> None:
    """Compute blocks on the executor, with a progress bar that counts blocks and simulated requests per second."""
    layout = job.layout
    done = requests = 0
    begin = time.monotonic()

    def taken(task: Task, found: Done) -> None:
        nonlocal done, requests
        if found.code != job.code:
            raise InputError(f"A worker of other code took part: {found.code} there, {job.code} here.")
        take(task, found)
        done += len(task.blocks)
        requests += found.requests
        bar.set_postfix_str(f"{requests / (time.monotonic() - begin) / 1e6:.1f} M requests/s", refresh=False)
        bar.update(len(task.blocks))

    def state() -> str:
        return f"{done} of {len(missing)} blocks were done{then}"

    backend = backend_for(executor, job, workers)
    with tqdm(total=len(missing), unit="block", disable=None if progress else True, leave=False) as bar:
        compute(
            tasks(grid, layout, missing),
            backend,
            taken,
            lambda block: block_text(grid, layout, block),
            state,
            keeps=job.store is not None,
            begun=job.store is not None and done_blocks(job.store) > 0,
        )


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
