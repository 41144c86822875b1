"""Why each request of a replayed cell went where it went, in words, from what the router saw at that moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray as xr

    from sweep.requests import Requests

Floats = NDArray[np.float64]


def explain_requests(ds: xr.Dataset, requests: Requests, slack: float, limit: int) -> list[str]:
    """Return a sentence for each of the first `limit` requests of a timeline replay.

    Parameters
    ----------
    ds
        The result of `sweep.simulate` on the engine timeline.
    requests
        The stream it simulated.
    slack
        The slack [ms] it was simulated with.
    limit
        How many requests.

    Returns
    -------
    list of str
        The waits [ms] that decided, with the limit they were held against: the shortest wait plus slack.
        They follow from the finish times of the requests before, so a sentence tells what the result says
        and not what the rule meant. With caches of blocks, whose evictions the result does not tell, it names
        the replica of the longest match only where the request went there. For any other rule than ``round_robin``,
        ``queue_aware`` and ``locality_aware``, and for these on an axis such as a stale view, it gives the wait on the
        chosen replica and the shortest one. Of a fleet with events it says only how often a request was sent.
    """
    if "lost" in ds:
        # What the routers saw of replicas that failed does not follow from when requests finished.
        tries = zip(ds["lost"].values[:limit], ds["attempts"].values[:limit], strict=True)
        return [f"{'lost, ' if lost else ''}{_sent(n)}" for lost, n in tries]
    replicas = ds.sizes["replica"]
    arrival, finish = ds["arrival_ms"].values, ds["finish_ms"].values
    chosen, reason = ds["replica_id"].values, ds["route_reason"].values
    available = np.zeros(replicas)
    owners: dict[int, int] = {}
    holders: dict[int, set[int]] = {}
    sentences = []
    known = ds.attrs["policy"] in ("round_robin", "queue_aware", "locality_aware")
    for i in range(min(limit, ds.sizes["request"])):
        waits = np.maximum(0.0, available - arrival[i])
        prefix, session, replica = int(requests.prefix[i]), int(requests.session[i]), int(chosen[i])
        held = sorted(holders.get(prefix, ())) if prefix >= 0 else []
        if "caches" in ds.attrs:
            held = [replica] if reason[i] == "prefix_locality" else []
        owner = owners.get(session, -1) if session >= 0 else -1
        if not known or reason[i] == "adapter_locality":
            sentences.append(f"waits {waits[replica]:.2f}, shortest {waits.min():.2f}")
        elif reason[i] == "round_robin":
            sentences.append(f"its turn: {i} mod {replicas}")
        else:
            nothing = "no longest match within the slack" if "caches" in ds.attrs else "no owner or holder"
            sentences.append(_why(str(reason[i]), waits, owner, held, slack, nothing))
        available[replica] = finish[i]
        if prefix >= 0:
            holders.setdefault(prefix, set()).add(replica)
        if session >= 0:
            owners[session] = replica
    return sentences


def _sent(count: int) -> str:
    return "never sent" if count == 0 else "sent once" if count == 1 else f"sent {count} times"


def _why(reason: str, waits: Floats, owner: int, held: Sequence[int], slack: float, nothing: str) -> str:
    shortest = waits.min()
    limit = shortest + slack

    def against_limit(role: str, candidate: int) -> str:
        wait = waits[candidate]
        return f"{role} {candidate} at {wait:.2f} {'<=' if wait <= limit else '>'} {limit:.2f}"

    if reason == "shortest_queue":
        return f"shortest wait {shortest:.2f}"
    if reason == "sticky_session":
        return against_limit("owner", owner)
    parts = [against_limit("owner", owner)] if owner >= 0 else []
    holder = min(held, key=lambda candidate: (waits[candidate], candidate), default=owner)
    if holder != owner:
        parts.append(against_limit("holder", holder))
    if reason == "queue_fallback":
        parts = [*(parts or [nothing]), f"shortest wait {shortest:.2f}"]
    return "; ".join(parts)
