"""Tasks on a Dask cluster, through the executor that a `dask.distributed.Client` gives."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from sweep.blocks import Task
from sweep.errors import InputError
from sweep.executors import check_travels
from sweep.work import Done, Job, perform

# Between two questions to the scheduler about its workers.
_LOOK_S = 1.0


class Cluster:
    """A Dask cluster: workers may come, and those that die have their tasks taken over by others."""

    def __init__(self, client: Any, job: Job) -> None:
        from distributed.protocol.pickle import dumps

        check_travels(job, dumps)
        self.client = client
        # Equal calls must run again: a repair asks for what was computed before.
        self.executor = client.get_executor(pure=False)
        self.looked = 0.0
        self.threads = 0
        self.room()
        # Once to every worker, and not with each task: it may hold a trace. Later workers fetch it from the others.
        try:
            self.job = client.scatter(job, broadcast=True, hash=False)
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
            self.threads = sum(self.client.nthreads().values())
            self.looked = time.monotonic()
            if not self.threads:
                raise InputError(f"The Dask cluster of {self.client!r} has no workers; start at least one.")
        return 3 * self.threads

    def rebuild(self) -> bool:
        """Return False: the cluster is not ours."""
        return False

    def close(self, *, interrupted: bool) -> None:
        """Take back what has not started; the client stays open."""
        self.executor.shutdown(wait=False)
