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
    """What the router knows when a request arrives; arrays are read-only by agreement.

    Attributes
    ----------
    now_ms
        Time of the arrival.
    wait_ms
        Queue wait of every replica, ms: how long until it could start this request.
    holds_prefix
        Whether a replica has the request's prefix in its cache.
    owner
        Replica that served the session's previous request, -1 = none.
    speed
        Service rate of every replica relative to nominal.
    served
        Requests routed to every replica so far.
    uniform
        Four uniforms in [0, 1) of this request; a function of the seed and the request's index alone.
    requests, tokens
        Requests, and their prompt and output tokens, that every replica has not finished.
    kv
        Tokens of the request in service / `KV_CAPACITY_TOKENS`.
    utilisation
        Share of the last `WINDOW_MS` that every replica was busy.
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
    """

    position: int
    arrival_ms: float
    service_ms: float
    prefix: int
    session: int
    prompt_tokens: int
    output_tokens: int


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
