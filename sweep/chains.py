"""Chains of cache blocks: which blocks a prompt starts with, and how many tokens each stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweep.columns import IntArray
from sweep.errors import InputError


@dataclass(frozen=True, eq=False)
class Blocks:
    """The chains of n requests, flat: request i has the blocks ``ids[offsets[i]:offsets[i + 1]]``, front first.

    An id stands for a block *and all before it*, so that it occurs at one place only: chains are the paths of a
    tree. `of` makes such ids out of whatever keys a trace has.

    Attributes
    ----------
    ids : int64 (blocks,)
        Numbered from 0 in order of first appearance.
    offsets : int64 (n + 1,)
        Where each chain begins and ends.
    reach : int64 (distinct,)
        Per id: the tokens of the block and of all before it.

    Examples
    --------
    >>> chains = Blocks.of([7, 8, 7, 9], offsets=[0, 2, 4], tokens=16)
    >>> chains.ids.tolist(), chains.reach.tolist()
    ([0, 1, 0, 2], [16, 32, 32])
    """

    ids: IntArray
    offsets: IntArray
    reach: IntArray

    def __post_init__(self) -> None:
        for array in (self.ids, self.offsets, self.reach):
            array.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickle does not keep an array's read-only flag.
        self.__dict__.update(state)
        self.__post_init__()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def distinct(self) -> int:
        """Return how many different blocks there are; every id lies below it."""
        return len(self.reach)

    @property
    def sized(self) -> bool:
        """Return whether it is known how many tokens blocks stand for: 0 for all of them says that nobody knows."""
        return not self.distinct or bool(self.reach.any())

    @property
    def lengths(self) -> IntArray:
        """Return the number of blocks of each request."""
        return np.diff(self.offsets)

    @property
    def tokens(self) -> IntArray:
        """Return the tokens of each block of `ids`."""
        reach = self.reach[self.ids]
        return reach - np.where(_predecessors(self.ids, self.offsets) >= 0, np.roll(reach, 1), 0)

    @classmethod
    def of(
        cls, keys: ArrayLike, offsets: ArrayLike, tokens: ArrayLike, where: Callable[[int], str] = "request {}".format
    ) -> Blocks:
        """Return the chains of flat `keys`, whole numbers of which equal ones may stand for equal content.

        Keys that already stand for a block and all before it keep their meaning; keys of content are told apart by
        what stands before them.

        Parameters
        ----------
        keys
            The blocks of all requests, one after the other.
        offsets
            Where each chain begins and ends, n + 1 numbers.
        tokens
            Tokens of each block of `keys`, or one number for all.
        where
            Says for a request how the user calls it.

        Raises
        ------
        InputError
            When one block has different numbers of tokens in two places.
        """
        dense, _ = by_appearance(np.asarray(keys, np.int64))
        starts = np.array(offsets, np.int64)
        if not len(dense):
            return cls(dense, starts, np.zeros(0, np.int64))
        if not _prefix_chained(dense, starts):
            dense = _chained(dense, starts)
        count = int(dense.max()) + 1
        size = np.broadcast_to(np.asarray(tokens, np.int64), dense.shape)
        first = first_of(dense, count)
        bad = size != size[first[dense]]
        if bad.any():
            place = int(bad.argmax())
            request = int(np.searchsorted(starts, place, side="right")) - 1
            raise InputError(
                f"{where(request)}: a block has {size[place]} tokens, "
                f"but {size[first[dense[place]]]} where it occurs first."
            ).about("block_tokens", int(size[place]))
        total = np.concatenate(([0], np.cumsum(size)))
        reached = total[1:] - np.repeat(total[starts[:-1]], np.diff(starts))
        return cls(dense, starts, reached[first])

    @classmethod
    def single(cls, keys: IntArray) -> Blocks:
        """Return chains of one block each, none where a key is -1; the block stands for no tokens that are known."""
        held = keys >= 0
        offsets = np.concatenate(([0], np.cumsum(held)))
        return cls.of(keys[held], offsets, 0)

    def take(self, rows: NDArray[np.intp]) -> Blocks:
        """Return the chains of some requests, in the order given; ids are numbered anew."""
        places, offsets = self.places(rows)
        ids, kept = by_appearance(self.ids[places])
        return Blocks(ids, offsets, self.reach[kept])

    def places(self, rows: NDArray[np.intp]) -> tuple[IntArray, IntArray]:
        """Return where the blocks of some requests stand in `ids`, and the offsets of these requests."""
        lengths = self.lengths[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return places, offsets

    def seen_before(self) -> IntArray:
        """Return per request how many of its blocks, from the front, an earlier request has had."""
        row = np.repeat(np.arange(len(self)), self.lengths)
        known = row[first_of(self.ids, self.distinct)][self.ids] < row
        return np.bincount(row, weights=known, minlength=len(self)).astype(np.int64)

    def tokens_of(self, matched: IntArray, prompt: IntArray) -> IntArray:
        """Return the prompt tokens that the first `matched` blocks of each request stand for."""
        if not self.distinct:
            return np.zeros(len(self), np.int64)
        last = np.where(matched > 0, self.offsets[:-1] + matched - 1, 0)
        tokens: IntArray = np.where(matched > 0, np.minimum(self.reach[self.ids[last]], prompt), 0)
        return tokens


def by_appearance(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return `keys` numbered in order of first appearance, and the key of each number."""
    known, first, position = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(known), np.int64)
    rank[order] = np.arange(len(known))
    return rank[position], known[order]


def first_of(ids: IntArray, count: int) -> IntArray:
    """Return where each of `count` ids, all of which occur, stands first."""
    first = np.empty(count, np.int64)
    first[ids[::-1]] = np.arange(len(ids))[::-1]
    return first


def _predecessors(ids: IntArray, offsets: IntArray) -> IntArray:
    """Return per block the id before it, -1 at the front of a chain."""
    before = np.roll(ids, 1)
    before[offsets[:-1][np.diff(offsets) > 0]] = -1
    return before


def _prefix_chained(ids: IntArray, offsets: IntArray) -> bool:
    """Return whether every id always comes after the same one, and never twice in a chain."""
    before = _predecessors(ids, offsets)
    return bool((before == before[first_of(ids, int(ids.max()) + 1)][ids]).all())


def _chained(keys: IntArray, offsets: IntArray) -> IntArray:
    """Return ids of (block, all before it), numbered in order of first appearance."""
    numbers: dict[tuple[int, int], int] = {}
    ids = np.empty(len(keys), np.int64)
    ends = set(offsets.tolist())
    before = -1
    for place, key in enumerate(keys.tolist()):
        if place in ends:
            before = -1
        before = numbers.setdefault((before, key), len(numbers))
        ids[place] = before
    return ids
