"""Rules given to `sweep.register`, called as plain Python, and the uniforms that they may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sweep.errors import InputError
from sweep.policies import Policy
from sweep.reference.replicas import busy_until
from sweep.rules_api import KV_CAPACITY_TOKENS, WINDOW_MS, Request, View, parameters_type


def waits_at(now_ms: float, replicas: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the queue wait [ms] of each replica."""
    return [max(0.0, replica["available_at_ms"] - now_ms) for replica in replicas]


def uniform(seed: int, stream: int, index: int) -> float:
    """Return a uniform in [0, 1) that depends on (seed, stream, index) alone.

    A counter-based generator: two rounds of the SplitMix64 finaliser make a key of seed and stream, a third mixes in
    the index (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").

    Examples
    --------
    >>> 0.0 <= uniform(seed=3, stream=1, index=0) < 1.0
    True
    """
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    key = mix((mix((seed + golden) & mask) + stream * 0xD1342543DE82EF95) & mask)
    return (mix((key + (index + 1) * golden) & mask) >> 11) * 2.0**-53


class UserRule:
    """A registered rule with its parameters, ready to be asked about the requests of one stream in order."""

    def __init__(self, policy: Policy, slack_ms: float, seed: int) -> None:
        assert policy.rule.function is not None
        self.name = policy.name
        self.function = policy.rule.function
        self.parameters = parameters_type(tuple(policy.parameters))(slack_ms, *policy.parameters.values())
        self.seed = seed
        self.prefix_ids: dict[Any, int] = {}
        self.session_ids: dict[Any, int] = {}

    def select(
        self,
        request: Mapping[str, Any],
        replicas: Sequence[Mapping[str, Any]],
        index: int,
        session_owner: Mapping[Any, int],
    ) -> tuple[int, str]:
        """Return the replica that the rule chooses for request `index`, and the rule's name as the reason."""
        now_ms = float(request["arrival_ms"])
        prefix, session = request.get("prefix_key"), request.get("session_id")
        view = View(
            now_ms=now_ms,
            wait_ms=np.array(waits_at(now_ms, replicas)),
            holds_prefix=np.array([prefix in replica["cached_prefixes"] for replica in replicas]),
            owner=session_owner.get(session, -1),
            speed=np.array([replica["speed"] for replica in replicas]),
            served=np.array([replica["request_count"] for replica in replicas], dtype=np.int64),
            uniform=np.array([uniform(self.seed, 1, 4 * index + k) for k in range(4)]),
            **_signals(now_ms, replicas),
        )
        asked = Request(
            position=index,
            arrival_ms=now_ms,
            service_ms=float(request["service_ms"]),
            prefix=_id_of(prefix, self.prefix_ids),
            session=_id_of(session, self.session_ids),
            prompt_tokens=int(request.get("prompt_tokens", 0)),
            output_tokens=int(request.get("output_tokens", 0)),
        )
        chosen = int(self.function(view, asked, self.parameters))
        if not 0 <= chosen < len(replicas):
            raise InputError(
                f"Policy {self.name!r} chose replica {chosen}; there are replicas 0 to {len(replicas) - 1}."
            )
        return chosen, self.name


def _signals(now_ms: float, replicas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the load signals of each replica from what it was sent: (start, finish, tokens) in order."""
    unfinished = [[job for job in replica["jobs"] if job[1] > now_ms] for replica in replicas]
    spans = [[job[:2] for job in replica["jobs"]] for replica in replicas]
    busy = [busy_until(each, now_ms) - busy_until(each, now_ms - WINDOW_MS) for each in spans]
    return {
        "requests": np.array([len(jobs) for jobs in unfinished], dtype=np.int64),
        "tokens": np.array([sum(job[2] for job in jobs) for jobs in unfinished], dtype=np.int64),
        "kv": np.array([(jobs[0][2] if jobs else 0) / KV_CAPACITY_TOKENS for jobs in unfinished]),
        "utilisation": np.array([share / WINDOW_MS for share in busy]),
    }


def _id_of(key: Any, ids: dict[Any, int]) -> int:
    """Return the number of a key in order of first appearance, -1 for None."""
    return -1 if key is None else ids.setdefault(key, len(ids))
