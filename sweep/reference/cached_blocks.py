"""Caches of blocks in the router model in plain Python: what replicas hold of chains, and what routers believe.

A live router sees what is there. Where views are reported, it knows what the last report of a replica said and, with a
correction, what it sent there itself since. A replica that went down comes back empty; until it is back or known to be
down, a live router sees what it held.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweep.reference.block_cache import BlockCache
from sweep.reference.replicas import Server
from sweep.requests import ServiceModel


@dataclass(frozen=True)
class Caching:
    """The caches of a run: as the arguments of `sweep.run`, and what makes service times out of tokens."""

    cache_blocks: float = math.inf
    eviction: str = "lru"
    cache_visible: str = "dispatch"
    service_model: ServiceModel | None = None


class CachedBlocks:
    """The caches of all replicas, and the view that the routers have of them."""

    def __init__(
        self,
        caching: Caching,
        requests: Sequence[Mapping[str, Any]],
        servers: Sequence[Server],
        routers: int,
        delay: float,
        correction: str,
        stale: bool,
    ) -> None:
        self.caching, self.requests, self.servers = caching, requests, servers
        self.delay, self.correction, self.stale = delay, correction, stale
        chained = any("blocks" in request for request in requests)
        self.chains = [tuple(request.get("blocks", ()) if chained else _single(request)) for request in requests]
        self.caches = [self._empty() for _ in servers]
        self.waiting: list[list[tuple[float, int, tuple[Any, ...]]]] = [[] for _ in servers]
        self.forgotten, self.noticed = [0] * len(servers), [0] * len(servers)
        self.reported: list[set[Any]] = [set() for _ in servers]
        self.own: list[list[set[Any]]] = [[set() for _ in servers] for _ in range(routers)]
        self.evictions = [0] * len(requests)
        self.seen = []
        before: set[Any] = set()
        for chain in self.chains:
            self.seen.append(next((k for k, block in enumerate(chain) if block not in before), len(chain)))
            before.update(chain)

        sizes = [self._size(i, k) for i, chain in enumerate(self.chains) for k in range(len(chain))]
        self.unsized = bool(sizes) and not any(sizes)

    def _empty(self) -> BlockCache:
        return BlockCache(self.caching.cache_blocks, self.caching.eviction)

    # --- Time ---------------------------------------------------------------------------------------------------------

    def to(self, r: int, t: float) -> None:
        """Empty the cache of a replica that went down, once it is back or known to be down."""
        for event in self.servers[r].downs[self.forgotten[r] :]:
            if min(event.end_ms, event.start_ms + self.delay) > t:
                break
            self.caches[r] = self._empty()
            self.waiting[r].clear()
            self.forgotten[r] += 1

    def report(self, r: int, t: float) -> None:
        """Tell the routers what a replica holds at `t`."""
        self.to(r, t)
        self.reported[r] = self.caches[r].visible(t)
        for own in self.own:
            own[r].clear()
        self.waiting[r] = [entry for entry in self.waiting[r] if entry[0] > t]
        if self.correction == "own_until_seen":
            for _, router, chain in self.waiting[r]:
                self.own[router][r].update(chain)

    def notice(self, r: int, t: float, reported_at: float) -> None:
        """Let the routers forget a replica that they know by `t` to have gone down, unless a later report told them."""
        for event in self.servers[r].downs[self.noticed[r] :]:
            if event.start_ms + self.delay > t:
                break
            if reported_at <= event.start_ms:
                self.reported[r].clear()
                for own in self.own:
                    own[r].clear()
            self.noticed[r] += 1

    # --- Requests -----------------------------------------------------------------------------------------------------

    def believed(self, i: int, r: int, router: int, clock: float) -> int:
        """Return how many blocks of request i, from the front, a router believes a replica to hold."""
        if not self.stale:
            return self.match(i, r, clock)
        known = self.reported[r] | self.own[router][r]
        return next((k for k, block in enumerate(self.chains[i]) if block not in known), len(self.chains[i]))

    def match(self, i: int, r: int, clock: float) -> int:
        """Return how many blocks of request i, from the front, a replica holds, of those that it sees by `clock`."""
        return self.caches[r].match(self.chains[i], clock)

    def tokens(self, i: int, blocks: int) -> int:
        """Return the prompt tokens that the first blocks of request i stand for."""
        return min(self._reach(i, blocks), int(self.requests[i].get("prompt_tokens", 0)))

    def copied(self, i: int, before: int, after: int) -> float:
        """Return the prompt tokens of blocks `before` to `after`: where their sizes are unknown, so large a share."""
        if self._reach(i, after) > 0:
            return float(self.tokens(i, after) - self.tokens(i, before))
        return float(self.requests[i].get("prompt_tokens", 0) * ((after - before) / len(self.chains[i])))

    def work(self, i: int, matched: int, speedup: float) -> tuple[float, float]:
        """Return the work of request i [ms at speed 1], all of it and until its prefill ends."""
        request, model = self.requests[i], self.caching.service_model
        if model is None:
            share = matched / len(self.chains[i]) if matched else 0.0
            work = float(request["service_ms"]) * (1.0 - speedup * share)
            return work, work
        computed = request.get("prompt_tokens", 0) - self.tokens(i, matched)
        prefill = model.base_ms + model.prefill_ms_per_token * computed
        return prefill + model.decode_ms_per_token * request.get("output_tokens", 0), prefill

    def store(self, i: int, r: int, router: int, prefilled: float) -> None:
        """Let a replica touch the blocks of request i, in the knowledge of the router that sent it."""
        late = self.caching.cache_visible == "prefill_end"
        self.evictions[i] += self.caches[r].store(self.chains[i], prefilled if late else -math.inf)
        if late:
            self.waiting[r].append((prefilled, router, self.chains[i]))
        if self.correction != "none":
            self.own[router][r].update(self.chains[i])

    @property
    def capacity_tokens(self) -> float:
        """Return the tokens that a cache holds: full blocks, which the largest of the stream is."""
        return self.caching.cache_blocks * max(
            (self._size(i, k) for i, chain in enumerate(self.chains) for k in range(len(chain))), default=0
        )

    def _size(self, i: int, k: int) -> int:
        sizes = self.requests[i].get("block_tokens", 0)
        return int(sizes if isinstance(sizes, int) else sizes[k])

    def _reach(self, i: int, blocks: int) -> int:
        return sum(self._size(i, k) for k in range(blocks))


def _single(request: Mapping[str, Any]) -> tuple[Any, ...]:
    prefix = request.get("prefix_key")
    return () if prefix is None else (prefix,)
