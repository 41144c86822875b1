"""Rules given to `sweep.register`, called as plain Python, and the uniforms that they may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sweep.errors import InputError
from sweep.policies import Policy
from sweep.rules_api import UNIFORMS, Request, View, parameters_type


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
        self.ids: dict[str, dict[Any, int]] = {"prefix": {}, "session": {}, "adapter": {}}

    def asked(self, request: Mapping[str, Any], index: int, prefix: Any, blocks: int = 0) -> Request:
        """Return a request as the rule sees it, ids numbered in the order of calls."""
        return Request(
            position=index,
            arrival_ms=float(request["arrival_ms"]),
            service_ms=float(request["service_ms"]),
            prefix=self._id("prefix", prefix),
            session=self._id("session", request.get("session_id")),
            prompt_tokens=int(request.get("prompt_tokens", 0)),
            output_tokens=int(request.get("output_tokens", 0)),
            adapter=self._id("adapter", request.get("adapter_id")),
            blocks=blocks,
        )

    def choose(self, view: View, asked: Request) -> int:
        """Return the replica that the rule chooses."""
        for array in view:
            if isinstance(array, np.ndarray):
                array.setflags(write=False)
        found = self.function(view, asked, self.parameters)
        if not 0 <= found < len(view.up) or found != int(found):
            raise InputError(f"Policy {self.name!r} chose replica {found}; there are replicas 0 to {len(view.up) - 1}.")
        chosen = int(found)
        if not view.up[chosen]:
            raise InputError(
                f"Policy {self.name!r} sent request {asked.position} to replica {chosen}, which its router does not "
                "hold to be up; a rule must choose among view.up."
            )
        return chosen

    def select(
        self,
        request: Mapping[str, Any],
        replicas: Sequence[Mapping[str, Any]],
        index: int,
        session_owner: Mapping[Any, int],
    ) -> tuple[int, str]:
        """Return the choice for a request that arrives at replicas known as to `select_replica`, and the rule's name.

        Of their queues only the wait and the number of requests so far are known, so the load signals are 0.
        """
        now_ms, count = float(request["arrival_ms"]), len(replicas)
        prefix = request.get("prefix_key")
        holds = np.array([prefix in replica["cached_prefixes"] for replica in replicas])
        view = View(
            now_ms=now_ms,
            wait_ms=np.array(waits_at(now_ms, replicas)),
            holds_prefix=holds,
            owner=session_owner.get(request.get("session_id"), -1),
            speed=np.array([replica["speed"] for replica in replicas]),
            served=np.array([replica["request_count"] for replica in replicas], dtype=np.int64),
            uniform=self.uniforms(index),
            requests=np.zeros(count, np.int64),
            tokens=np.zeros(count, np.int64),
            kv=np.zeros(count),
            utilisation=np.zeros(count),
            up=np.ones(count, np.bool_),
            holds_adapter=np.zeros(count, np.bool_),
            matched_blocks=holds.astype(np.int64),
            matched_tokens=np.zeros(count, np.int64),
        )
        return self.choose(view, self.asked(request, index, prefix)), self.name

    def uniforms(self, number: int) -> Any:
        """Return the uniforms of a decision, the first of which belong to requests in order, then come retries."""
        return np.array([uniform(self.seed, 1, UNIFORMS * number + k) for k in range(UNIFORMS)])

    def _id(self, kind: str, key: Any) -> int:
        """Return the number of a key in order of first appearance, -1 for None."""
        return -1 if key is None else self.ids[kind].setdefault(key, len(self.ids[kind]))
