"""Tasks on a Dask cluster, through the executor that a `dask.distributed.Client` gives."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from sweep.blocks import Task
from sweep.errors import InputError
from sweep.executors import check_travels
from sweep.work import Done, Job, perform

# Between two questions to the scheduler about its workers, and how long a cluster may be without any: who restarts them
# needs a moment.
_LOOK_S, _WITHOUT_S = 1.0, 60.0


class Cluster:
    """A Dask cluster: workers may come, and those that die have their tasks taken over by others."""

    def __init__(self, client: Any, job: Job) -> None:
        from distributed.protocol.pickle import dumps

        check_travels(job, dumps)
        self.client = client
        self.whole_job = job
        self.threads: int = sum(client.nthreads().values())
        self.looked = self.seen = time.monotonic()
        if not self.threads:
            raise InputError(f"The Dask cluster of {client!r} has no workers; start at least one.")
        self._begin()

    def _begin(self) -> None:
        # Equal calls must run again: a repair asks for what was computed before.
        self.executor = self.client.get_executor(pure=False)
        # Once to every worker, and not with each task: it may hold a trace. Later workers fetch it from the others.
        try:
            self.job = self.client.scatter(self.whole_job, broadcast=True, hash=False)
        except Exception as error:  # what a worker met while reading it
            raise InputError(
                f"A worker cannot read the job ({error}); install the same version of sweep everywhere."
            ) from error

    def submit(self, task: Task) -> Future[Done]:
        """Start a task."""
        future: Future[Done] = self.executor.submit(perform, self.job, task)
        return future

    def room(self) -> int:
        """Return how many tasks to keep in flight; more when workers have come."""
        if time.monotonic() - self.looked > _LOOK_S:
            self._look()
        return 3 * max(self.threads, 1)

    def _look(self) -> None:
        self.threads = sum(self.client.nthreads().values())
        self.looked = time.monotonic()
        if self.threads:
            self.seen = self.looked
        elif self.looked - self.seen > _WITHOUT_S:
            raise InputError(f"The Dask cluster of {self.client!r} has had no workers for {_WITHOUT_S:.0f} s.")

    def rebuild(self) -> bool:
        """Send the job again when workers are there: the last one that held it took it along, and all tasks with it."""
        self.executor.shutdown(wait=False)
        self._look()
        while not self.threads:
            time.sleep(_LOOK_S)
            self._look()
        self._begin()
        return True

    def close(self, *, interrupted: bool) -> None:
        """Take back what has not started; the client stays open."""
        self.executor.shutdown(wait=False)
