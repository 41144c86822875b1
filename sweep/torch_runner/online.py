"""The online router: it sees what the ranks report, and nothing else.

Rank 0 runs it beside its own queue. It sends each request on its arrival; a rank reports when it has accepted a request
and when it has finished one, each time with the moment at which its queue will be empty as far as it knows. The rules
are those of `sweep.reference`, whose view of the replicas is filled from these reports.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from sweep import reference
from sweep.reference.user_rules import UserRule
from sweep.torch_runner.clock import now_ns, sleep_until
from sweep.torch_runner.devices import Device, pin
from sweep.torch_runner.group import Group
from sweep.torch_runner.lines import Line
from sweep.torch_runner.measured import Array
from sweep.torch_runner.points import Point
from sweep.torch_runner.serve import Log, Server
from sweep.torch_runner.watch import Board

_ACCEPTED, _FINISHED, _OVER = range(3)
#: Weight of the last request in a rank's idea of its pace.
_LEARNS = 0.2
#: A rank that waits for something gives a sign of life this often.
_BEAT_S = 0.5


def why_not(point: Point, turns: int) -> str:
    """Return why a point cannot be routed online here, "" when it can."""
    if turns > 1:
        return "ranks that share a device are run in turn"
    if point.policy.rule.function is None and point.policy.name not in reference.STRATEGIES:
        return f"the policy {point.policy.name!r} has no rule for one request at a time"
    return ""


class Report(NamedTuple):
    """What a rank tells the router: the event, the request and when its queue will be empty [ns]."""

    event: int
    request: int
    empty_ns: int


class Desk:
    """A rank's queue: requests come in by one thread and are served by another.

    ``tell`` takes the reports to the router, in the order in which they were true.
    """

    def __init__(
        self, point: Point, rank: int, products: Array, product_ms: float, tell: Callable[[Report], None]
    ) -> None:
        self.prefix = point.requests.prefix
        self.products = products[:, rank]
        self.product_ns = product_ms * 1e6
        self.tell = tell
        self.held: set[int] = set()
        # Held until a report is sent: of two threads' reports the later one has to arrive last.
        self.lock = threading.Lock()
        self.backlog = 0
        self.current: tuple[int, int] | None = None
        self.inbox: queue.SimpleQueue[tuple[int, int, bool] | None] = queue.SimpleQueue()
        self.error: Exception | None = None

    def accept(self, index: int) -> None:
        """Put a request into the queue and report it."""
        prefix = int(self.prefix[index])
        with self.lock:
            hit = prefix in self.held
            if prefix >= 0:
                self.held.add(prefix)
            count = int(self.products[int(hit), index])
            self.backlog += count
            self.inbox.put((index, count, hit))
            self.tell(Report(_ACCEPTED, index, self._empty_ns()))

    def serve_all(self, server: Server, begin_ns: int) -> Log:
        """Serve what comes in until the router says that it is over."""
        log = Log.ready(begin_ns)
        while True:
            try:
                item = self.inbox.get(timeout=_BEAT_S)
            except queue.Empty:
                server.board.beat()
                continue
            if item is None:
                break
            index, count, hit = item
            self.current = (now_ns(), count)
            server.serve(log, index, count, hit, begin_ns)
            with self.lock:
                self.backlog -= count
                self.current = None
                # What a product takes here and now: a rank knows its own pace better than the calibration did.
                took = (log.finish[-1] - log.start[-1]) * 1e6 / count
                self.product_ns += _LEARNS * (took - self.product_ns)
                self.tell(Report(_FINISHED, index, self._empty_ns()))
        if self.error is not None:
            raise self.error
        self.tell(Report(_OVER, -1, 0))
        return log

    def give_up(self, error: Exception) -> None:
        """Let the serving thread raise what another thread met."""
        self.error = error
        self.inbox.put(None)

    def _empty_ns(self) -> int:
        now, done = now_ns(), 0.0
        if self.current is not None:
            since, count = self.current
            done = min((now - since) / self.product_ns, count)
        return now + int((self.backlog - done) * self.product_ns)


class Router(threading.Thread):
    """Sends each request on its arrival to the rank that the policy chooses; `send` takes it there."""

    def __init__(
        self,
        point: Point,
        scale: float,
        begin_ns: int,
        cores: tuple[int, ...],
        send: Callable[[int, int], None],
        give_up: Callable[[Exception], None],
    ) -> None:
        super().__init__(name="router", daemon=True)
        self.point = point
        self.scale = scale
        self.begin_ns = begin_ns
        self.cores = cores
        self.send = send
        self.give_up = give_up
        self.rule = UserRule(point.policy, point.slack, point.seed) if point.policy.rule.function else None
        self.lock = threading.Lock()
        self.records = point.requests.to_records()
        self.owner: dict[Any, int] = {}
        self.replicas: list[dict[str, Any]] = [
            {"replica_id": r, "available_at_ms": 0.0, "cached_prefixes": set(), "request_count": 0, "speed": speed}
            for r, speed in enumerate(point.speeds)
        ]

    def take(self, rank: int, report: Report) -> None:
        """Fill the view from a report."""
        with self.lock:
            self.replicas[rank]["available_at_ms"] = (report.empty_ns - self.begin_ns) / 1e6 / self.scale
            if report.event == _ACCEPTED:
                record = self.records[report.request]
                self.replicas[rank]["request_count"] += 1
                if record["prefix_key"] is not None:
                    self.replicas[rank]["cached_prefixes"].add(record["prefix_key"])
                if record["session_id"] is not None:
                    self.owner[record["session_id"]] = rank

    def run(self) -> None:
        """Route every request at its arrival, then tell every rank that it is over."""
        # Rank 0's core is for its matrix products.
        pin(self.cores)
        try:
            for index, record in enumerate(self.records):
                sleep_until(self.begin_ns + int(record["arrival_ms"] * self.scale * 1e6))
                self.send(self._choose(index, record), index)
            for rank in range(len(self.replicas)):
                self.send(rank, -1)
        except Exception as error:
            self.give_up(error)

    def _choose(self, index: int, record: dict[str, Any]) -> int:
        with self.lock:
            if self.rule is not None:
                return self.rule.select(record, self.replicas, index, self.owner)[0]
            return reference.select_replica(
                record, self.replicas, self.point.policy.name, index, self.owner, self.point.slack
            )[0]


class Pace(NamedTuple):
    """How fast a replay runs: real ms per simulated ms, ms per product, and when it begins."""

    scale: float
    product_ms: float
    begin_ns: int


def replay_online(
    point: Point, group: Group, device: Device, server: Server, products: Array, pace: Pace, lines: dict[int, Line]
) -> Log:
    """Replay a point with the online router on rank 0; collective. Return what this rank did."""
    if group.place.rank == 0:
        return _at_router(point, device, server, products, pace, lines)
    line = lines[0]
    desk = Desk(point, group.place.rank, products, pace.product_ms, lambda report: line.post(*report))

    def receive() -> None:
        try:
            while (index := line.fetch(1)[0]) >= 0:
                desk.accept(index)
            desk.inbox.put(None)
        except Exception as error:
            desk.give_up(error)

    receiver = threading.Thread(target=receive, name="receiver", daemon=True)
    receiver.start()
    log = desk.serve_all(server, pace.begin_ns)
    _join([receiver], desk, server.board)
    return log


def _at_router(
    point: Point, device: Device, server: Server, products: Array, pace: Pace, lines: dict[int, Line]
) -> Log:
    def send(rank: int, index: int) -> None:
        if rank:
            lines[rank].post(index)
        elif index >= 0:
            desk.accept(index)
        else:
            desk.inbox.put(None)

    router = Router(point, pace.scale, pace.begin_ns, device.cores, send, lambda error: desk.give_up(error))
    desk = Desk(point, 0, products, pace.product_ms, lambda report: router.take(0, report))

    def listen(rank: int, line: Line) -> None:
        try:
            while (report := Report(*line.fetch(3))).event != _OVER:
                router.take(rank, report)
        except Exception as error:
            desk.give_up(error)

    threads = [threading.Thread(target=listen, args=item, daemon=True) for item in lines.items()]
    for thread in [*threads, router]:
        thread.start()
    log = desk.serve_all(server, pace.begin_ns)
    _join([*threads, router], desk, server.board)
    return log


def _join(threads: list[threading.Thread], desk: Desk, board: Board) -> None:
    """Return when the threads of a replay have ended, maybe long after this rank's queue; raise what they met."""
    for thread in threads:
        while thread.is_alive():
            board.beat()
            thread.join(timeout=_BEAT_S)
    if desk.error is not None:
        raise desk.error
