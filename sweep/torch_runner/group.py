"""The ranks of a run: who this process is, and the few collective operations it uses.

Control messages go over gloo on the host. A peer that is lost shows as `PeerLost`; `sweep.torch_runner.watch` finds
out which one it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from sweep.errors import InputError
from sweep.torch_runner.watch import WAITING, WORKING, Board

Value = TypeVar("Value")

_HOW = "start it with torchrun --standalone --nproc_per_node N -m sweep.torch_runner, or with sweep validate"


class PeerLost(RuntimeError):
    """A collective operation failed: another rank is gone or did not come in time."""


@contextmanager
def lost_peers() -> Iterator[None]:
    """Turn what torch raises when a message fails into `PeerLost`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise PeerLost(str(error)) from error


@dataclass(frozen=True)
class Place:
    """Where a process stands among those of the run, as torchrun tells it."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def of_environment(cls) -> Place:
        """Return the place that torchrun's environment variables give.

        Raises
        ------
        InputError
            When they are missing: this process is not a rank.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        values = [os.environ.get(name, "") for name in names]
        if not all(value.isdigit() for value in values):
            raise InputError(f"There are no ranks: this process was not started by torchrun; {_HOW}.")
        return cls(*map(int, values))


class Group:
    """The process group of a run; every operation is collective and waits for all ranks.

    Parameters
    ----------
    place
        Who this process is.
    board
        Told when this rank waits for others.
    timeout_s
        After which an operation gives up.
    """

    def __init__(self, place: Place, board: Board, timeout_s: float) -> None:
        self.place = place
        self.board = board
        self.timeout_s = timeout_s
        self.control: Any = None

    def start(self, nccl: bool, device: Any) -> None:
        """Meet the other ranks; with `nccl` each has a GPU of its own, `device`."""
        import torch
        import torch.distributed as dist

        if self.place.local_size == self.place.size:
            # A host's name need not resolve to an address that it listens on.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        timeout = timedelta(seconds=self.timeout_s)
        with self._waiting():
            if nccl:
                dist.init_process_group("nccl", timeout=timeout, device_id=device)
                self.control = dist.new_group(backend="gloo", timeout=timeout)
                met = torch.ones(1, device=device)
                dist.all_reduce(met)
                if int(met.item()) != self.place.size:
                    raise PeerLost(f"nccl counted {met.item():g} of {self.place.size} ranks")
            else:
                dist.init_process_group("gloo", timeout=timeout)
                self.control = dist.group.WORLD

    def barrier(self) -> None:
        """Return when every rank has come here."""
        import torch.distributed as dist

        with self._waiting():
            dist.barrier(group=self.control)

    def gather(self, value: Value) -> list[Value]:
        """Return the value of every rank, in order, on every rank."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.place.size
        with self._waiting():
            dist.all_gather_object(found, value, group=self.control)
        return found

    def from_first(self, value: Value) -> Value:
        """Return the value of rank 0 on every rank."""
        import torch.distributed as dist

        shared = [value]
        with self._waiting():
            dist.broadcast_object_list(shared, src=0, group=self.control)
        return shared[0]

    def leave(self) -> None:
        """Leave the group in good order."""
        import torch.distributed as dist

        dist.destroy_process_group()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.board.set(WAITING)
        try:
            with lost_peers():
                yield
        finally:
            self.board.set(WORKING)
