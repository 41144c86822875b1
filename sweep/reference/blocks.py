"""Finite caches of prefix blocks: what each replica holds, and the timeline around it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweep.policies import Policy
from sweep.reference.block_cache import BlockCache
from sweep.reference.cached_blocks import Caching
from sweep.reference.router import Simulation
from sweep.reference.statistics import ratio
from sweep.reference.timeline import STRATEGIES, Record, policy_of
from sweep.reference.user_rules import waits_at
from sweep.requests import ServiceModel


def simulate_block_routing(
    requests: Iterable[Mapping[str, Any]],
    num_replicas: int,
    strategy: str | Policy,
    locality_slack_ms: float = 5.0,
    cache_hit_speedup: float = 0.30,
    speeds: Sequence[float] | None = None,
    cache_blocks: float = math.inf,
    eviction: str = "lru",
    cache_visible: str = "dispatch",
    service_model: ServiceModel | None = None,
    seed: int = 0,
    adapter_speedup: float = 0.0,
) -> tuple[list[Record], list[BlockCache]]:
    """Route requests that bring ``blocks`` (ids, front first) and ``block_tokens``, and serve them in order of arrival.

    ``locality_aware`` goes to the session's owner, else to the replica of the longest match (ties: smaller wait, then
    index), if its wait is within the slack. With a `service_model` a matched block saves its tokens' prefill; without
    one a request saves ``cache_hit_speedup`` times the share of its blocks that match. Any other policy is left to
    `sweep.reference.router`, as are requests with adapters.

    Returns
    -------
    The records of `simulate_replica_routing`, with ``matched_blocks``, ``matched_tokens``, ``evictions`` and
    ``seen_tokens`` (of the blocks from its front that any earlier request had), and the caches at the end. Tokens are
    NaN where no block says how many it stands for.
    """
    policy = policy_of(strategy, "timeline")
    speeds = [1.0] * num_replicas if speeds is None else speeds
    requests = list(requests)
    if policy.label not in STRATEGIES or any(request.get("adapter_id") is not None for request in requests):
        caching = Caching(cache_blocks, eviction, cache_visible, service_model)
        simulation = Simulation(
            requests, speeds, policy, locality_slack_ms, cache_hit_speedup, seed, None, adapter_speedup, caching
        )
        outcome = simulation.run()
        assert outcome.blocks is not None
        return outcome.records, outcome.blocks.caches
    caches = [BlockCache(cache_blocks, eviction) for _ in range(num_replicas)]
    replicas: list[dict[str, Any]] = [{"available_at_ms": 0.0} for _ in range(num_replicas)]
    owners: dict[Any, int] = {}
    seen: set[Any] = set()
    records: list[Record] = []
    ordered = sorted(requests, key=lambda request: (request["arrival_ms"], request.get("request_id", 0)))
    for index, request in enumerate(ordered):
        arrival, session = float(request["arrival_ms"]), request.get("session_id")
        chain = request.get("blocks", ())
        prompt, output = request.get("prompt_tokens", 0), request.get("output_tokens", 0)
        waits = waits_at(arrival, replicas)
        matches = [cache.match(chain, arrival) for cache in caches]
        chosen, reason = _choose(index, policy.name, waits, matches, owners.get(session), locality_slack_ms)

        matched = matches[chosen]
        tokens = _tokens(request, matched, prompt)
        start = max(arrival, replicas[chosen]["available_at_ms"])
        if service_model is not None:
            prefill = service_model.base_ms + service_model.prefill_ms_per_token * (prompt - tokens)
            effective = (prefill + service_model.decode_ms_per_token * output) / speeds[chosen]
            prefilled = start + prefill / speeds[chosen]
        else:
            share = matched / len(chain) if matched else 0.0
            effective = (float(request["service_ms"]) * (1.0 - cache_hit_speedup * share)) / speeds[chosen]
            prefilled = start + effective
        evicted = caches[chosen].store(chain, -math.inf if cache_visible == "dispatch" else prefilled)
        records.append(
            {
                **request,
                "replica_id": chosen,
                "route_reason": reason,
                "cache_hit": matched > 0,
                "start_ms": start,
                "finish_ms": start + effective,
                "queue_wait_ms": start - arrival,
                "effective_service_ms": effective,
                "matched_blocks": matched,
                "matched_tokens": tokens,
                "evictions": evicted,
                "seen_tokens": _tokens(
                    request, next((k for k, b in enumerate(chain) if b not in seen), len(chain)), prompt
                ),
            }
        )
        seen.update(chain)
        replicas[chosen]["available_at_ms"] = start + effective
        if session is not None:
            owners[session] = chosen
    if seen and not any(_tokens(request, len(request.get("blocks", ())), 1) for request in ordered):
        records = [record | {"matched_tokens": math.nan, "seen_tokens": math.nan} for record in records]
    return records, caches


def _choose(
    index: int, strategy: str, waits: list[float], matches: list[int], owner: int | None, slack: float
) -> tuple[int, str]:
    if strategy == "round_robin":
        return index % len(waits), "round_robin"
    shortest = min(range(len(waits)), key=waits.__getitem__)  # the first of equals
    if strategy == "queue_aware":
        return shortest, "shortest_queue"
    limit = waits[shortest] + slack
    if owner is not None and waits[owner] <= limit:
        return owner, "sticky_session"
    longest = max(matches)
    if longest > 0:
        holders = [r for r, match in enumerate(matches) if match == longest]
        nearest = min(holders, key=waits.__getitem__)
        if waits[nearest] <= limit:
            return nearest, "prefix_locality"
    return shortest, "queue_fallback"


def _tokens(request: Mapping[str, Any], blocks: int, prompt: int) -> int:
    """Return the prompt tokens that the first `blocks` blocks stand for."""
    sizes = request.get("block_tokens", 0)
    return min(blocks * sizes if isinstance(sizes, int) else sum(sizes[:blocks]), prompt)


def summarize_blocks(records: Sequence[Record], caches: Sequence[BlockCache], warmup: int = 0) -> dict[str, Any]:
    """Return the variables of blocks, named as in the Dataset; NaN where there is nothing to divide by."""
    counted = records[warmup:]

    def rates(part: Sequence[Record]) -> tuple[float, float]:
        blocks = sum(len(record.get("blocks", ())) for record in part)
        prompt = sum(record.get("prompt_tokens", 0) for record in part)
        return (
            ratio(sum(record["matched_blocks"] for record in part), blocks),
            ratio(sum(record["matched_tokens"] for record in part), prompt),
        )

    of_replica = [rates([record for record in counted if record["replica_id"] == r]) for r in range(len(caches))]
    copies = sum(len(cache.resident) for cache in caches)
    return {
        "block_hit_rate": rates(counted)[0],
        "token_hit_rate": rates(counted)[1],
        "evictions": sum(record["evictions"] for record in counted),
        "duplicate_residency": ratio(copies, len({block for cache in caches for block in cache.resident})),
        "recomputed_prefill_tokens": sum(record["seen_tokens"] - record["matched_tokens"] for record in counted),
        "replica_block_hit_rate": [pair[0] for pair in of_replica],
        "replica_token_hit_rate": [pair[1] for pair in of_replica],
    }
