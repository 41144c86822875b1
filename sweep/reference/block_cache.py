"""The finite cache of prefix blocks of one replica in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweep.errors import one_of


@dataclass
class _Resident:
    touches: int
    last_touch: int
    visible_from: float


class BlockCache:
    """The blocks that one replica holds; an id stands for a block and all before it.

    Examples
    --------
    >>> cache = BlockCache(capacity=2)
    >>> cache.store(["a", "b", "c"], visible_from=0.0)
    1
    >>> cache.match(["a", "b", "c"], now=0.0), cache.match(["b", "c"], now=0.0)
    (0, 2)
    """

    def __init__(self, capacity: float = math.inf, eviction: str = "lru") -> None:
        one_of("eviction", eviction, ("lru", "lfu"))
        self.capacity = capacity
        self.eviction = eviction
        self.resident: dict[Any, _Resident] = {}
        self.clock = 0

    def match(self, chain: Sequence[Any], now: float) -> int:
        """Return how many blocks, from the front, are here and visible."""
        for length, block in enumerate(chain):
            if block not in self.resident or self.resident[block].visible_from > now:
                return length
        return len(chain)

    def visible(self, now: float) -> set[Any]:
        """Return the blocks that are here and visible."""
        return {block for block, resident in self.resident.items() if resident.visible_from <= now}

    def store(self, chain: Sequence[Any], visible_from: float) -> int:
        """Touch or insert the blocks front to back; return how many were evicted for them."""
        evicted = 0
        for block in chain:
            self.clock += 1
            if block in self.resident:
                self.resident[block].touches += 1
                self.resident[block].last_touch = self.clock
            elif self.capacity > 0:
                if len(self.resident) >= self.capacity:
                    del self.resident[self._victim()]
                    evicted += 1
                self.resident[block] = _Resident(1, self.clock, visible_from)
        return evicted

    def _victim(self) -> Any:
        def order(block: Any) -> tuple[int, int]:
            found = self.resident[block]
            return (found.touches if self.eviction == "lfu" else 0, found.last_touch)

        return min(self.resident, key=order)
