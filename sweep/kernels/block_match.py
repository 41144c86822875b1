"""Chains of blocks: what a request brings, what it costs, and how much of it each replica holds.

One walk along a chain matches it against all replicas of a word of bits.

Axis letters: i request, p place in the flat chains, b block, r replica, w word of 64 replicas.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.jit import kernel


class Chained(NamedTuple):
    """A stream of requests with chains of blocks.

    ``chain`` [p] holds block ids from 0 and -1 for those that occur once; request i has ``offsets[i]`` to
    ``offsets[i + 1]``. ``reach`` [b]: tokens of a block and all before it. ``seen`` [i]: tokens that an earlier
    request had.
    """

    arrival: np.ndarray
    service: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    session: np.ndarray
    chain: np.ndarray
    offsets: np.ndarray
    reach: np.ndarray
    seen: np.ndarray


class Costs(NamedTuple):
    """What a request costs: by tokens [ms] if ``by_tokens``, else the share ``speedup`` that a whole match saves."""

    by_tokens: bool
    base: float
    prefill: float
    decode: float
    speedup: float


@kernel
def longest(holders, chain, low, high, alive):
    """Narrow `alive`, words of replicas, down to those of the longest match of a chain; return its length.

    Nobody matches a chain of length 0.
    """
    words = alive.size
    depth = 0
    if words == 1:
        # The usual case, kept in a register.
        mask = alive[0]
        for b in chain[low:high]:
            both = holders[np.uint64(b), 0] & mask if b >= 0 else np.int64(0)
            if both == 0:
                break
            mask = both
            depth += 1
        alive[0] = mask if depth > 0 else np.int64(0)
        return depth
    for p in range(low, high):
        b = chain[p]
        if b < 0:
            break
        some = np.int64(0)
        for w in range(words):
            some |= holders[b, w] & alive[w]
        if some == 0:
            break
        for w in range(words):
            alive[w] &= holders[b, w]
        depth += 1
    if depth == 0:
        alive[:] = 0
    return depth


@kernel
def longest_believed(known, sent, chain, low, high, alive):
    """Do as `longest`, by what was reported and what the router sent itself."""
    words = alive.size
    depth = 0
    for p in range(low, high):
        b = chain[p]
        if b < 0:
            break
        some = np.int64(0)
        for w in range(words):
            some |= (known[b, w] | sent[b, w]) & alive[w]
        if some == 0:
            break
        for w in range(words):
            alive[w] &= known[b, w] | sent[b, w]
        depth += 1
    if depth == 0:
        alive[:] = 0
    return depth


@kernel
def match_of(holders, chain, low, high, r):
    """Return how many blocks from the front replica r holds."""
    word = r >> 6
    bit = np.int64(1) << (r & 63)
    for p in range(low, high):
        b = chain[p]
        if b < 0 or holders[b, word] & bit == 0:
            return p - low
    return high - low


@kernel
def matches(holders, chain, low, high, matched):
    """Fill how many blocks from the front every replica holds."""
    for w in range(holders.shape[1]):
        first = 64 * w
        count = min(64, matched.size - first)
        alive = np.int64(-1)
        for p in range(low, high):
            b = chain[p]
            both = holders[b, w] & alive if b >= 0 else np.int64(0)
            if both != alive:
                for j in range(count):
                    if ((alive ^ both) >> j) & 1:
                        matched[first + j] = p - low
                alive = both
            if alive == 0:
                break
        for j in range(count):
            if (alive >> j) & 1:
                matched[first + j] = high - low


@kernel
def holds(alive, r):
    """Return whether replica r is among those of the words `alive`."""
    return (alive[r >> 6] >> (r & 63)) & 1 != 0


@kernel
def tokens_of(matched, low, chain, reach, prompt):
    """Return the prompt tokens that the first blocks of the chain at `low` stand for."""
    return min(reach[chain[low + matched - 1]], prompt) if matched > 0 else np.int64(0)
