"""The whole numbers by which policies, their choices and their reasons travel into the router engine."""

from __future__ import annotations

#: Rules, in catalogue order.
(
    ROUND_ROBIN,
    QUEUE_AWARE,
    LOCALITY_AWARE,
    LEAST_LOAD,
    RANDOM,
    WEIGHTED_RANDOM,
    POWER_OF_D,
    WEIGHTED_ROUND_ROBIN,
    SHORTEST_EXPECTED_DELAY,
    STICKY_SESSION,
    SOFT_STICKY,
    MIGRATE,
    CONSISTENT_HASH,
    BOUNDED_HASH,
) = range(14)

#: Signals, in the order of a vector of their weights.
WORK, REQUESTS, TOKENS, KV, UTILISATION = range(5)
SIGNALS = ("work", "requests", "tokens", "kv", "utilisation")

CORRECTIONS = ("none", "own", "own_until_seen")
NO_CORRECTION, OWN, OWN_UNTIL_SEEN = range(3)

TIES = ("first", "random", "rotate")
TIE_FIRST, TIE_RANDOM, TIE_ROTATE = range(3)

#: Where a rule takes the speed of a replica from.
SPEEDS = ("none", "known", "measured")
SPEED_NONE, SPEED_KNOWN, SPEED_MEASURED = range(3)

#: Streams of uniforms beside the one that a user's rule reads (`sweep.kernels.random.ROUTING`).
TIE_DRAWS, WORK_ERRORS, ROUTER_DRAWS, CHOICE_DRAWS, RING_DRAWS, KEY_DRAWS = range(2, 8)
