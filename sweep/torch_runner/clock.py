"""The host's clock, and how a rank waits on it."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A sleep ends late by about this. The rest of a wait is spent looking at the clock, which costs the rank its share of
#: a busy core: it is short.
_OVERSLEEP_NS = 100_000
_LONGEST_SLEEP_NS = 500_000_000


def now_ns() -> int:
    """Return the monotonic time, which the processes of a host share."""
    return time.monotonic_ns()


def sleep_until(target_ns: int) -> None:
    """Return a little after `target_ns`, without keeping the interpreter from other threads."""
    left = target_ns - now_ns()
    if left > 0:
        time.sleep(left / 1e9)


def wait_until(target_ns: int, beat: Callable[[], None]) -> None:
    """Return at `target_ns`, at once when it has passed; `beat` is called while there is long to wait."""
    while (left := target_ns - now_ns()) > _OVERSLEEP_NS:
        beat()
        time.sleep(min(left - _OVERSLEEP_NS, _LONGEST_SLEEP_NS) / 1e9)
    while now_ns() < target_ns:
        pass
