"""How a rank serves the requests of a stream in real time, whoever routed them."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from sweep.torch_runner.clock import now_ns, wait_until
from sweep.torch_runner.measured import Array
from sweep.torch_runner.points import Point
from sweep.torch_runner.watch import Board
from sweep.torch_runner.work import Work


class Log(NamedTuple):
    """What one rank did in one replay, per request: its place in the stream, times since the start [ms], work, hit.

    ``late_ms`` is by how much the stream had begun when the rank was ready.
    """

    request: list[int]
    start: list[float]
    finish: list[float]
    products: list[int]
    hit: list[bool]
    cpu_ms: list[float]
    late_ms: float = 0.0

    @classmethod
    def ready(cls, begin_ns: int) -> Log:
        """Return the log, of no requests yet, of a rank that is now ready for a stream that begins then."""
        return cls([], [], [], [], [], [], max(0.0, (now_ns() - begin_ns) / 1e6))


class Server:
    """A rank at work on its queue.

    Parameters
    ----------
    work
        The matrix products.
    board
        Told of every request served.
    """

    def __init__(self, work: Work, board: Board) -> None:
        self.work = work
        self.board = board

    def serve(self, log: Log, index: int, products: int, hit: bool, begin_ns: int) -> None:
        """Run one request and log it; `begin_ns` is when the stream began."""
        cpu = time.thread_time_ns()
        start = now_ns()
        self.work.run(products)
        self.work.wait()
        finish = now_ns()
        log.cpu_ms.append((time.thread_time_ns() - cpu) / 1e6)
        log.request.append(index)
        log.start.append((start - begin_ns) / 1e6)
        log.finish.append((finish - begin_ns) / 1e6)
        log.products.append(products)
        log.hit.append(hit)
        self.board.beat()

    def serve_planned(self, queue: list[int], arrival_ms: Array, products: Array, hit: Array, begin_ns: int) -> Log:
        """Serve the requests of `queue` first in, first out, none before its arrival."""
        log = Log.ready(begin_ns)
        for i in queue:
            wait_until(begin_ns + int(arrival_ms[i] * 1e6), self.board.beat)
            self.serve(log, i, int(products[i]), bool(hit[i]), begin_ns)
        return log


def products_for(point: Point, scale: float, product_ms: float) -> Array:
    """Return the matrix products of each request on each replica, without and with a hit: (hit, replica, request).

    A service time is rounded to whole products, at least one, after the hit's saving and the replica's speed.
    """
    whole = point.requests.service_ms * scale / product_ms
    services = np.stack([whole, whole * (1.0 - point.cache_hit_speedup)])
    speeds = np.array(point.speeds)[None, :, None]
    products: Array = np.maximum(np.rint(services[:, None, :] / speeds), 1).astype(np.int64)
    return products
