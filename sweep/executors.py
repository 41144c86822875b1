"""Where tasks run: threads, processes, an executor of the caller's, or a Dask cluster; and the loop that feeds them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from functools import partial
from typing import Any, Protocol, TypeVar

from sweep.blocks import Block, JobError, Task
from sweep.errors import BlockError, InputError, one_of
from sweep.work import Done, Flag, Job, perform

#: Executors of our own, by name.
NAMES = ("threads", "processes")
# Failures of blocks after which, where none has ever succeeded, the others are not tried any more.
_MOST_FAILURES = 10
# Failures that are told in full.
_TOLD = 3
# Times that a pool of our own may break without one task coming back.
_MOST_REBUILDS = 3
# How often a process of our pool looks whether to end, and what a kernel has to come to its own end after a stop.
_LOOK_S, _GRACE_S = 0.1, 0.5
# What a terminal or a job manager sends to a whole group, and how long a worker waits for its parent to act on it.
_SIGNALS, _SPARED_S = (signal.SIGINT, signal.SIGTERM), 2.0
Answer = TypeVar("Answer")
_GUARD = 'A script that starts processes needs `if __name__ == "__main__":` around its main part.'


class Backend(Protocol):
    """Something that runs tasks of one job."""

    def submit(self, task: Task) -> Future[Done]:
        """Start a task."""

    def room(self) -> int:
        """Return how many tasks to keep in flight: two or three per worker."""

    def rebuild(self) -> bool:
        """Put a broken pool right; False where it is not ours."""

    def close(self, *, interrupted: bool) -> None:
        """Stop what runs and let go."""


def backend_for(executor: Any, job: Job, workers: int) -> Backend:
    """Return the backend for what the caller gave as `executor`.

    Raises
    ------
    InputError
        When it is nothing that runs tasks, or when the job cannot travel to its processes.
    """
    if isinstance(executor, str):
        kind = one_of("executor", executor, NAMES)
        return _Threads(job, workers) if kind == "threads" else _Processes(job, workers)
    if isinstance(executor, Executor):
        if not isinstance(executor, ThreadPoolExecutor):
            check_travels(job, pickle.dumps)
        return _Borrowed(executor, job, workers)
    if type(executor).__module__.partition(".")[0] == "distributed" and hasattr(executor, "get_executor"):
        from sweep.cluster import Cluster

        return Cluster(executor, job)
    raise InputError(
        f"executor must be a concurrent.futures.Executor, a dask.distributed.Client or one of {', '.join(NAMES)}, "
        f"got {type(executor).__name__}."
    )


def check_travels(job: Job, dumps: Callable[[Any], bytes]) -> bytes:
    """Return the job as bytes; `InputError` naming the rule that does not pickle."""
    for policy in job.grid.policies:
        try:
            dumps(policy)
        except Exception as error:  # pickling raises what it likes
            raise InputError(
                f"The rule of policy {policy.name!r} cannot be sent to another process ({error}); define it at the "
                "top level of a module that the workers can import, or use threads."
            ) from error
    return dumps(job)


class _Threads:
    """Threads of our own: kernels let go of the interpreter's lock."""

    def __init__(self, job: Job, workers: int) -> None:
        self.job, self.workers = job, workers
        self.stop = threading.Event()
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="sweep")

    def submit(self, task: Task) -> Future[Done]:
        return self.pool.submit(perform, self.job, task, self.stop)

    def room(self) -> int:
        return 2 * self.workers

    def rebuild(self) -> bool:
        return False

    def close(self, *, interrupted: bool) -> None:
        # The threads stop at their next kernel call; who interrupts does not wait for a kernel to compile.
        self.stop.set()
        self.pool.shutdown(wait=not interrupted, cancel_futures=True)


class _Processes:
    """Spawned processes of our own; a pool that loses a worker is made anew."""

    def __init__(self, job: Job, workers: int) -> None:
        self.job = check_travels(job, pickle.dumps)
        self.workers = workers
        self.context = multiprocessing.get_context("spawn")
        self.stop = self.context.Event()
        # Kernels are compiled once, here, and found on disk by the workers.
        job.warm_up()
        self.pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self.workers, self.context, initializer=_start_worker, initargs=(self.job, self.stop)
        )

    def submit(self, task: Task) -> Future[Done]:
        # A worker that is started now inherits the mask: signals to all are the parent's affair from its first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            return self.pool.submit(_perform_here, task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def room(self) -> int:
        return 3 * self.workers

    def rebuild(self) -> bool:
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool = self._new()
        return True

    def close(self, *, interrupted: bool) -> None:
        # The workers stop at their next kernel call, or end themselves. Killed ones would leave semaphores and
        # tracebacks behind.
        self.stop.set()
        self.pool.shutdown(cancel_futures=True)


_here: tuple[Job, Flag]


def _start_worker(job: bytes, stop: Flag) -> None:
    """Prepare a process of our pool: the parent handles Ctrl-C, and a worker outlives neither it nor a stop."""
    global _here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker that dies before its parent has told it to stop breaks the pool, which then leaves semaphores behind.
    signal.signal(signal.SIGTERM, _end_later)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # An interpreter takes as long to clear away its compiled code as a stop may take.
    atexit.register(os._exit, 0)
    _here = pickle.loads(job), stop
    threading.Thread(target=_end_in_time, args=(stop,), daemon=True).start()


def _end_later(*_: Any) -> None:
    timer = threading.Timer(_SPARED_S, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _end_in_time(stop: Flag) -> None:
    """End this process when its parent is gone, or when a kernel is still running a while after a stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while parent.is_alive() and not stop.is_set():
        parent.join(_LOOK_S)
    parent.join(_GRACE_S)
    os._exit(1)


def _perform_here(task: Task) -> Done:
    job, stop = _here
    return perform(job, task, stop)


class _Borrowed:
    """An executor of the caller's, which it also closes."""

    def __init__(self, executor: Executor, job: Job, workers: int) -> None:
        self.executor, self.job = executor, job
        self.workers: int = getattr(executor, "_max_workers", workers)
        self.stop = threading.Event() if isinstance(executor, ThreadPoolExecutor) else None

    def submit(self, task: Task) -> Future[Done]:
        return self.executor.submit(perform, self.job, task, self.stop)

    def room(self) -> int:
        return 2 * self.workers

    def rebuild(self) -> bool:
        return False

    def close(self, *, interrupted: bool) -> None:
        if self.stop is not None:
            self.stop.set()


def compute(
    tasks: Iterable[Task],
    backend: Backend,
    take: Callable[[Task, Done], None],
    name: Callable[[Block], str],
    state: Callable[[], str],
    *,
    keeps: bool,
    begun: bool = False,
) -> None:
    """Run every task and hand over what comes back, a few in flight at a time so that memory stays flat.

    Parameters
    ----------
    take
        Called with every task that is done.
    name
        Says the cells of a block.
    state
        Says how many blocks are done and what becomes of them.
    keeps
        Whether finished blocks are kept when another one fails.
    begun
        Whether blocks of the same job have succeeded before.

    Raises
    ------
    KeyboardInterrupt
        As it came, saying how far it came.
    InputError
        When the executor breaks, or takes no more tasks.
    BlockError, InputError
        When blocks fail: after all others where they are kept, else at once. A task that fails is run again block by
        block, so that those that ride with a block that fails are not lost with it.
    OSError
        When blocks cannot be written.
    """
    left = iter(tasks)
    again: deque[Task] = deque()
    running: dict[Future[Done], Task] = {}
    failures: list[tuple[Block, Exception]] = []
    failed = 0
    rebuilds = 0
    interrupted = False
    try:
        while True:
            while len(running) < _asked(backend.room, state):
                task = again.popleft() if again else next(left, None)
                if task is None:
                    break
                try:
                    running[_asked(partial(backend.submit, task), state)] = task
                except BrokenExecutor:
                    again.append(task)
                    break
            if not running and not again:
                break
            broken: BrokenExecutor | CancelledError | None = None
            # Wakes up now and then, for workers that come or go.
            for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    found = future.result()
                except (BrokenExecutor, CancelledError) as error:
                    broken = error
                    again.append(task)
                except OSError as error:
                    where = f": {error.filename!r}" if error.filename else ""
                    raise OSError(error.errno, f"{error.strerror or error}{where}; {state()}") from error
                except JobError as error:
                    raise JobError(f"{error} {_sentence(state())}") from error
                except Exception as error:
                    if len(task.blocks) > 1:
                        again.extend(task._replace(blocks=(block,)) for block in task.blocks)
                        continue
                    failed += 1
                    failures += [(task.blocks[0], error)] if failed <= _TOLD else []
                    if not keeps or (failed >= _MOST_FAILURES and not begun):
                        raise _failure(failures, failed, name, state()) from error
                else:
                    take(task, found)
                    begun = True
                    rebuilds = 0
            if broken is not None or (again and not running):
                again.extend(running.values())
                running.clear()
                rebuilds += 1
                if rebuilds > _MOST_REBUILDS or not _asked(backend.rebuild, state):
                    said = str(broken or "") or "it takes no more tasks."
                    raise InputError(f"The executor broke: {said} {_GUARD} {state()}.") from broken
        if failures:
            raise _failure(failures, failed, name, state()) from failures[0][1]
    except KeyboardInterrupt as error:
        interrupted = True
        raise type(error)(state()) from None
    finally:
        for future in running:
            future.cancel()
        backend.close(interrupted=interrupted)


def _asked(question: Callable[[], Answer], state: Callable[[], str]) -> Answer:
    """Return what an executor answers; what it raises says what is kept, but a broken pool may be rebuilt."""
    try:
        return question()
    except BrokenExecutor:
        raise
    except Exception as error:  # executors raise what they like
        said = str(error) or type(error).__name__
        raise InputError(f"The executor takes no more tasks: {said.rstrip('.')}. {_sentence(state())}") from error


def _failure(
    failures: list[tuple[Block, Exception]], failed: int, name: Callable[[Block], str], state: str
) -> Exception:
    block, error = failures[0]
    others = "; ".join(name(other) for other, _ in failures[1:])
    more = f" {failed - 1} more blocks failed, the first of them {others}." if failed > 1 else ""
    said = str(error) or type(error).__name__
    kind = InputError if isinstance(error, InputError) else BlockError
    return kind(f"Block {name(block)}: {said}{more} {_sentence(state)}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
