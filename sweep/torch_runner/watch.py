"""What ends a run in which a rank dies, hangs or is told to stop: every rank watches those of its host.

The ranks of a host share a *board*, a small file mapped into memory: a slot per rank with its process id, its last
signs of life and what it failed of. A thread of each rank beats, watches the others and takes the signals, since the
main thread may be inside a collective operation that nothing interrupts.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

#: States of a rank: making its plan, busy on its own, waiting for others, leaving in good order, leaving because the
#: job is refused.
PLANNING, WORKING, WAITING, LEAVING, REFUSED = range(5)
#: Those that end a run.
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SLOT = np.dtype(
    [
        ("pid", "i8"),
        ("rank", "i8"),
        ("alive", "f8"),
        ("progress", "f8"),
        ("state", "i8"),
        ("said", "i8"),
        ("what", "S400"),
    ]
)
_TICK_S = 0.1
#: A board this old is of no run that still starts.
_OLD_S = 86400.0
#: The two ends of the pipe in which arriving signals are noted, once `hold_signals` was called.
_noted: list[int] = []
#: Share of the timeout after which a silent rank counts as hung; the rest is for ending the others.
_HUNG_SHARE = 0.75


class Failure(NamedTuple):
    """What failed, on which rank; None where no rank of this host is to blame."""

    rank: int | None
    what: str


def run_id() -> str:
    """Return a name of this run that its ranks on this host share with no other run.

    They have one parent, the launcher's agent, which gives them one port. What the user may fix, id and port, is the
    same run after run; a process id comes again, but not with the time of its start.
    """
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    parent = os.getppid()
    try:
        # In ticks since the machine started, the 22nd field: psutil's time since 1970 moves when the clock is set.
        started = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        started = f"{psutil.Process(parent).create_time():.0f}"
    return "-".join([*(os.environ.get(name, "0") for name in names), str(parent), started])


class Board:
    """The slots of the ranks of this host, shared by their processes."""

    def __init__(self, local_rank: int, local_size: int, rank: int) -> None:
        run = hashlib.sha256(run_id().encode()).hexdigest()[:16]
        name = f"sweep-torch-{os.getuid()}-%s.board"
        self.path = Path(tempfile.gettempdir()) / (name % run)
        _remove_old(self.path.parent.glob(name % "*"))
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(file, local_size * _SLOT.itemsize)
        finally:
            os.close(file)
        self.slots = np.memmap(self.path, dtype=_SLOT, mode="r+", shape=(local_size,))
        self.mine = local_rank
        # The ranks of a host follow one another; those that have not started have a rank already.
        self.slots["rank"] = rank - local_rank + np.arange(local_size)
        self.set(WORKING)
        self.slots["alive"][local_rank] = time.monotonic()
        self.slots["pid"][local_rank] = os.getpid()

    def set(self, state: int) -> None:
        """Say what this rank does now, a sign of progress in itself."""
        self.slots["state"][self.mine] = state
        self.beat()

    def beat(self) -> None:
        """Give a sign of progress."""
        self.slots["progress"][self.mine] = time.monotonic()

    def post(self, what: str) -> None:
        """Say what this rank failed of, for the others to find."""
        self.slots["what"][self.mine] = what.encode("utf-8", "replace")[:400]

    def forget(self) -> None:
        """Remove the board's name; those who have it open keep it."""
        self.path.unlink(missing_ok=True)

    def refuse(self, limit_s: float) -> None:
        """Say that this rank refuses the job; return when it may leave.

        The first rank, which says why, leaves when all of this host are there, and the others after it: the launcher
        stops those that are left once one has gone.
        """
        self.set(REFUSED)
        first, deadline = self.slots[0], time.monotonic() + limit_s
        while time.monotonic() < deadline and _signal_within(_TICK_S) is None:
            if self.slots["pid"].all() and (self.mine == 0 or not _runs(int(first["pid"]))):
                break
        self.forget()

    def failure(self, limit_s: float) -> Failure | None:
        """Return the failure that the slots show: one that says so, a dead process, a silent one.

        This rank is among them: its main thread may hang while the thread that asks is well.
        """
        now = time.monotonic()
        slots = [slot for slot in self.slots if slot["pid"]]
        for slot in slots:
            if slot["what"]:
                return Failure(int(slot["rank"]), bytes(slot["what"]).decode("utf-8", "replace"))
        for slot in slots:
            if slot["state"] < LEAVING and not _runs(int(slot["pid"])):
                return Failure(int(slot["rank"]), f"the process died (pid {slot['pid']})")
        for slot in slots:
            limits = {PLANNING: limit_s / _HUNG_SHARE, WORKING: limit_s}
            stuck = now - slot["progress"] > limits.get(int(slot["state"]), math.inf)
            if slot["state"] < LEAVING and (stuck or now - slot["alive"] > limit_s):
                silent = now - min(slot["progress"], slot["alive"])
                return Failure(int(slot["rank"]), f"the process hung: no sign of life for {silent:.0f} s")
        return None

    def late(self) -> Failure | None:
        """Return which rank the others have waited for in vain: one that has not started, or has no plan yet."""
        for slot in self.slots:
            if not slot["pid"]:
                return Failure(int(slot["rank"]), "the process did not start in time")
            if slot["state"] == PLANNING:
                return Failure(int(slot["rank"]), "the process had no plan in time")
        return None

    def place_among_survivors(self, failed: int | None) -> int:
        """Return how many ranks of this host may still be there to write the failure before this one does.

        Those below it; before the one that failed, which may not come to it, all others.
        """
        own = self.slots["rank"][self.mine] == failed
        before = self.slots if own else self.slots[: self.mine]
        return sum(1 for slot in before if slot["pid"] and slot["rank"] != failed and _runs(int(slot["pid"])))


def _remove_old(boards: Iterable[Path]) -> None:
    """Remove the boards of runs that were killed before all ranks had met, when a run gives up its board's name."""
    for path in boards:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD_S:
                path.unlink()


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return False


def hold_signals() -> None:
    """Note the signals that end a run instead of dying of them, so that `Watch` can wait for them.

    To block them and wait would not do: the threads that numpy started on import do not block them, and one of those
    would get them. The handler in C notes a signal whichever thread it came to, and whatever the main thread is doing.
    """
    if not _noted:
        _noted.extend(os.pipe())
        os.set_blocking(_noted[1], False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
        # A system call of torch that a signal meets goes on: it must not fail before the watch has said why.
        signal.siginterrupt(number, False)
    signal.set_wakeup_fd(_noted[1], warn_on_full_buffer=False)
    # Those that came before waited where `sweep validate` blocks them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _signal_within(seconds: float) -> signal.Signals | None:
    """Return the next noted signal that ends a run, None when none comes in that time."""
    if not select.select(_noted[:1], [], [], seconds)[0]:
        return None
    number = os.read(_noted[0], 1)[0]
    return signal.Signals(number) if number in SIGNALS else None


class Watch(threading.Thread):
    """The thread that beats, watches and ends the process when the run has failed.

    Parameters
    ----------
    board
        The slots of this host's ranks.
    timeout_s
        Within which a failure has to end the run.
    write
        Writes a `Failure` to the result file unless another rank has done so; returns a sentence for the user, which
        says so where it cannot be written.
    """

    def __init__(self, board: Board, timeout_s: float, write: Callable[[Failure], str]) -> None:
        super().__init__(name="watch", daemon=True)
        self.board = board
        self.limit_s = _HUNG_SHARE * timeout_s
        self.write = write
        self.parent = os.getppid()
        self.stopped = threading.Event()
        self.ending = threading.Lock()
        self.main_cpu_s = 0.0

    def run(self) -> None:
        """Watch until `stop`, or until the run has failed."""
        while not self.stopped.is_set():
            taken = _signal_within(_TICK_S)
            self.board.slots["alive"][self.board.mine] = time.monotonic()
            self._beat_for_the_plan()
            if self.stopped.is_set():
                return
            failure = self.board.failure(self.limit_s)
            if failure is None and taken is not None and (self.board.slots["state"] == REFUSED).any():
                # The launcher stops the other ranks of a job that one has refused; this one would refuse it too.
                os._exit(1)
            if failure is None and taken is not None:
                # Whoever sent the signal sent it to all ranks: this one does not die, it leaves.
                self.board.slots["state"][self.board.mine] = LEAVING
                absent = self.board.slots["rank"][self.board.slots["pid"] == 0]
                before = f" before rank {', '.join(map(str, absent))} had started" if len(absent) else ""
                failure = Failure(None, f"stopped by {taken.name}{before}")
            if failure is None and os.getppid() != self.parent:
                failure = Failure(None, "the launcher died")
            if failure is not None:
                self.end(failure)

    def _beat_for_the_plan(self) -> None:
        """Beat while the main thread computes its plan.

        It may have kernels compiled, in minutes on a busy machine, and cannot beat meanwhile; one that hangs takes no
        processor time.
        """
        if self.board.slots["state"][self.board.mine] == PLANNING:
            spent = time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
            if spent > self.main_cpu_s:
                self.main_cpu_s = spent
                self.board.beat()

    def stop(self) -> None:
        """Stop watching: the run is over in good order."""
        self.board.set(LEAVING)
        self.stopped.set()

    def refuse(self) -> None:
        """Stop watching: this rank refuses the job."""
        self.stopped.set()
        self.join()
        self.board.refuse(self.limit_s)

    def end(self, failure: Failure) -> None:
        """Write the failure, kill a hung rank of this host and leave the process with status 1."""
        with self.ending:
            # The lowest surviving rank writes; the others only when it does not come to it.
            time.sleep(1.0 * min(self.board.place_among_survivors(failure.rank), 3))
            try:
                sentence = self.write(failure)
            except Exception as error:
                sentence = f"{failure.what}. {type(error).__name__}: {error}"
            for slot in self.board.slots:
                other = slot["pid"] not in (0, os.getpid())
                if other and slot["rank"] == failure.rank and failure.what.startswith("the process hung"):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(slot["pid"]), signal.SIGKILL)
            # What cannot be written no rank finds written, and each would say it.
            if sentence and not self.board.slots["said"].any():
                self.board.slots["said"][self.board.mine] = 1
                with contextlib.suppress(OSError):
                    os.write(2, (sentence + "\n").encode())
            self.board.slots["state"][self.board.mine] = LEAVING
            self.board.forget()
            # Threads of torch and a main thread inside a collective operation would keep a normal exit waiting.
            os._exit(1)

    def end_after(self, what: str | None) -> None:
        """End after an exception of the main thread: `what` is this rank's own error, None for a lost peer."""
        if what is not None:
            self.board.post(what)
            self.end(Failure(int(self.board.slots["rank"][self.board.mine]), what))
        self.board.set(WAITING)
        deadline = time.monotonic() + min(5.0, self.limit_s)
        while time.monotonic() < deadline:
            failure = self.board.failure(self.limit_s)
            if failure is not None:
                self.end(failure)
            time.sleep(_TICK_S)
        lost = Failure(None, "the ranks lost each other, and none of this host is dead, hung or has said why")
        self.end(self.board.late() or lost)
