"""What a user's rule sees in the router engine, filled anew for every decision."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.block_match import matches, tokens_of
from sweep.kernels.jit import kernel
from sweep.kernels.random import ROUTING, uniform
from sweep.kernels.replicas import COUNT, HEAD, HELD, REQUEST, busy_share, speed_at
from sweep.rules_api import UNIFORMS, Request, View


class Looks(NamedTuple):
    """The arrays of a view that the engine has no other use for, by replica, and the uniforms."""

    prefix: np.ndarray
    adapter: np.ndarray
    speed: np.ndarray
    served: np.ndarray
    kv: np.ndarray
    utilisation: np.ndarray
    blocks: np.ndarray
    tokens: np.ndarray
    uniform: np.ndarray


@kernel
def new_looks(replicas):
    """Return room for views of so many replicas."""
    return Looks(
        np.zeros(replicas, np.bool_),
        np.zeros(replicas, np.bool_),
        np.empty(replicas, np.float64),
        np.zeros(replicas, np.int64),
        np.empty(replicas, np.float64),
        np.empty(replicas, np.float64),
        np.zeros(replicas, np.int64),
        np.zeros(replicas, np.int64),
        np.empty(UNIFORMS, np.float64),
    )


@kernel
def view_of(
    i, now, number, seed, up, wait, owner, looks, rules, outages, clock, state, index, span, link, first, piece, tokens,
    blocks,
):  # fmt: skip
    """Return the view for request i; ``looks.prefix`` and ``looks.adapter`` are filled."""
    replicas = up.size
    for r in range(replicas):
        looks.speed[r] = speed_at(first, piece, r, now - outages.delay)
        serving = tokens[link[REQUEST, index[HEAD, r]]] if index[COUNT, r] > 0 else 0
        looks.kv[r] = serving / rules.kv_capacity
        looks.utilisation[r] = busy_share(r, clock[r], rules.window, state, index, span, link)
        looks.blocks[r] = looks.prefix[r]
    if blocks is not None:
        stream = blocks.stream
        low = stream.offsets[i]
        matches(blocks.caches.holders, stream.chain, low, stream.offsets[i + 1], looks.blocks)
        for r in range(replicas):
            looks.prefix[r] = looks.blocks[r] > 0
            looks.tokens[r] = tokens_of(looks.blocks[r], low, stream.chain, stream.reach, stream.prompt[i])
    for u in range(UNIFORMS):
        looks.uniform[u] = uniform(seed, ROUTING, UNIFORMS * number + u)
    return View(
        now, wait, looks.prefix, owner, looks.speed, looks.served, looks.uniform, index[COUNT], index[HELD], looks.kv,
        looks.utilisation, up, looks.adapter, looks.blocks, looks.tokens,
    )  # fmt: skip


@kernel
def asked_of(i, traffic, output, blocks):
    """Return request i as a rule sees it."""
    length = 0
    if blocks is not None:
        length = blocks.stream.offsets[i + 1] - blocks.stream.offsets[i]
    return Request(
        i, traffic.arrival[i], traffic.service[i], traffic.prefix[i], traffic.session[i], traffic.prompt[i], output,
        traffic.adapter[i], length,
    )  # fmt: skip
