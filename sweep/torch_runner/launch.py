"""``sweep validate``: the ranks started through torch's own launcher, for those who do not type torchrun."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from sweep.errors import InputError
from sweep.torch_runner import result
from sweep.torch_runner.job import Job
from sweep.torch_runner.report import QUIET, failure_text
from sweep.torch_runner.watch import SIGNALS

#: Beyond what the ranks need to write a failure; then the launcher kills what is left.
_GRACE_S = 10

#: What a rank runs: a signal that comes while it still imports waits for `hold_signals` instead of ending it.
_RANK = (
    f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {sorted(map(int, SIGNALS))}); import runpy; "
    "runpy.run_module('sweep.torch_runner', run_name='__main__', alter_sys=True)"
)


class RunFailed(Exception):
    """The run failed; the message is one sentence for the user."""


def launch(job: Job, arguments: list[str], ranks: int) -> None:
    """Start `ranks` processes of ``python -m sweep.torch_runner ARGUMENTS`` and wait for them.

    Raises
    ------
    RunFailed
        When a rank failed or refused; what it said itself is not repeated.
    KeyboardInterrupt
        When interrupted; the ranks have ended by then.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    run_id = uuid.uuid4().hex
    # torchrun would set it too, and say so at length.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _quiet_logging(), tempfile.TemporaryDirectory(prefix="sweep-validate-") as logs:
        unwritten = Path(logs) / "unwritten"
        os.environ[QUIET] = str(unwritten)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=run_id,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            shutdown_timeout=_GRACE_S,
        )
        try:
            elastic_launch(config, sys.executable)("-c", _RANK, *arguments)
        except ChildFailedError as error:
            raise RunFailed(_what_failed(job.result_path, run_id, error.failures, unwritten)) from None
        except SignalException as error:
            raise KeyboardInterrupt(f"stopped by {error.sigval.name}; the ranks have ended") from None


@contextlib.contextmanager
def _quiet_logging() -> Iterator[None]:
    # The launcher's warnings on every signal say less than the failure in the result file.
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def ranks_of(job: Job) -> int:
    """Return how many processes a job needs, after checking all of it that needs no device."""
    from sweep.torch_runner.points import plan_for

    result.refuse_place(job.result_path, force=job.force)
    return plan_for(job).ranks


def _what_failed(path: Path, run_id: str, failures: dict[int, object], unwritten: Path) -> str:
    """Return the failure that the ranks wrote, else what they could not write, else which of them ended first.

    "" after a refusal, which is said.
    """
    try:
        document = result.read(path)
    except InputError:
        document = {}
    if document.get("failure") and str(document.get("run_id", "")).startswith(run_id):
        return f"{failure_text(document['failure'])} Wrote {path}."
    if unwritten.exists():
        return unwritten.read_text(encoding="utf-8")
    first = min(failures.values(), key=lambda failure: getattr(failure, "timestamp", 0), default=None)
    rank, code = getattr(first, "global_rank", "?"), getattr(first, "exitcode", None)
    return "" if code == 1 else f"Rank {rank} ended with exit code {code} and left no result."
