"""What a routing rule of your own sees: the state of the replicas, the request, and its parameters.

The same three tuples reach the compiled rule in a sweep and the plain-Python rule in `sweep.reference`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Uniforms that a rule can use per request.
UNIFORMS = 4
#: What the signals ``utilisation`` and ``kv`` of a view are measured by.
WINDOW_MS = 100.0
KV_CAPACITY_TOKENS = 8192.0


class View(NamedTuple):
    """What the router knows when it decides about a request; arrays are read-only.

    All of it is live, but nobody foresees an event: until a router learns that a replica is down, it sees the replica
    as it was. A request that is sent again is decided anew, at the time ``now_ms``.

    Attributes
    ----------
    now_ms
        Time of the decision: of the arrival, or later where a request is sent again.
    wait_ms
        Queue wait of every replica, ms: how long until it could start this request.
    holds_prefix
        Whether a replica has the request's prefix in its cache; of a chain of blocks, the first block at least.
    owner
        Replica to which the session's previous request was sent, -1 = none; it need not be up.
    speed
        Service rate of every replica relative to nominal, as far as it is known.
    served
        Requests sent to every replica so far.
    uniform
        Four uniforms in [0, 1) of this decision; a function of the seed, the request's index and its attempts alone.
    requests, tokens
        Requests, and their prompt and output tokens, that every replica has not finished.
    kv
        Tokens of the request in service / `KV_CAPACITY_TOKENS`, or the tokens that a finite cache of blocks holds.
    utilisation
        Share of the last `WINDOW_MS` that every replica was busy.
    up
        Whether the router holds a replica to be up: not known to be down or draining, its breaker closed, and not the
        one that just failed the request if there is another. A rule must choose among these.
    holds_adapter
        Whether a replica has the request's adapter loaded.
    matched_blocks, matched_tokens
        With caches of blocks, how many blocks from the front of the request's chain every replica holds, and the
        prompt tokens that they stand for. Without, 1 for a replica that holds the prefix, and 0 tokens.
    """

    now_ms: float
    wait_ms: NDArray[np.float64]
    holds_prefix: NDArray[np.bool_]
    owner: int
    speed: NDArray[np.float64]
    served: NDArray[np.int64]
    uniform: NDArray[np.float64]
    requests: NDArray[np.int64]
    tokens: NDArray[np.int64]
    kv: NDArray[np.float64]
    utilisation: NDArray[np.float64]
    up: NDArray[np.bool_]
    holds_adapter: NDArray[np.bool_]
    matched_blocks: NDArray[np.int64]
    matched_tokens: NDArray[np.int64]


class Request(NamedTuple):
    """The request to be routed.

    Attributes
    ----------
    position
        Position in the stream, from 0.
    arrival_ms, service_ms
        Arrival time, and service time at speed 1.
    prefix, session
        Ids from 0 in order of first appearance, -1 = none.
    prompt_tokens, output_tokens
        Zero where unknown.
    adapter
        As `prefix`.
    blocks
        Length of its chain of blocks, whose first stands for the prefix; 0 without caches of blocks.
    """

    position: int
    arrival_ms: float
    service_ms: float
    prefix: int
    session: int
    prompt_tokens: int
    output_tokens: int
    adapter: int
    blocks: int


@cache
def _type(names: tuple[str, ...]) -> Any:
    return namedtuple("Parameters", ("slack", *names))


def parameters_type(names: Sequence[str]) -> Any:
    """Return the tuple type of a rule's parameters: ``slack`` [ms], then `names` in the order given.

    Examples
    --------
    >>> from sweep.rules_api import parameters_type
    >>> parameters_type(["bias"])(5.0, 2.0)
    Parameters(slack=5.0, bias=2.0)
    """
    return _type(tuple(names))
