"""Lines between the online router and the ranks of its host: short messages that cost little to send and to receive.

A message over gloo takes a tensor, a future and a thread of torch, which together keep the router's core from its
matrix products for about a millisecond per request; one over a local socket takes some microseconds.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sweep.torch_runner.group import Group, PeerLost
from sweep.torch_runner.watch import WAITING, WORKING


class Line:
    """One end of a connection, over which tuples of whole numbers go; `PeerLost` when the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        # A rank reports from two threads.
        self.lock = threading.Lock()

    def post(self, *numbers: int) -> None:
        """Send a message; returns before it is read."""
        with self.lock, _lost():
            self.connection.sendall(struct.pack(f"={len(numbers)}q", *numbers))

    def fetch(self, length: int) -> tuple[int, ...]:
        """Wait for a message of so many numbers."""
        message = struct.Struct(f"={length}q")
        content = b""
        with _lost():
            while len(content) < message.size:
                part = self.connection.recv(message.size - len(content))
                if not part:
                    raise ConnectionResetError("the other rank closed the line")
                content += part
        found: tuple[int, ...] = message.unpack(content)
        return found

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


def connect(group: Group) -> dict[int, Line]:
    """Return, on rank 0, a line to every other rank, and on each of those the line to rank 0; collective.

    All ranks are on one host. A message that does not come within the timeout of the group counts as a lost rank.
    """
    if group.place.rank:
        address = group.from_first("")
        with _lost():
            line = Line(_socket(group))
            line.connection.connect(address)
        line.post(group.place.rank)
        return {0: line}
    found = {}
    # Nobody but this user can reach into the folder, which is needed until all have come.
    with tempfile.TemporaryDirectory(prefix="sweep-lines-") as folder, _socket(group) as listener:
        address = os.path.join(folder, "router")
        listener.bind(address)
        listener.listen(group.place.size)
        group.from_first(address)
        group.board.set(WAITING)
        for _ in range(1, group.place.size):
            with _lost():
                connection, _ = listener.accept()
            connection.settimeout(group.timeout_s)
            line = Line(connection)
            (rank,) = line.fetch(1)
            found[rank] = line
        group.board.set(WORKING)
    return found


def _socket(group: Group) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(group.timeout_s)
    return made


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PeerLost(str(error)) from error
