"""Streams made from a stream: faster, shorter, fewer sessions, repeated, and drawn anew for every seed.

A *unit* is what belongs together and is never torn apart: a session, or a prefix family. Requests are of one family
when they share a block deeper than the common ones, such as a system prompt, with which many unrelated requests begin;
where there are no blocks, when they share a prefix that is not as common.
Drawing time windows instead would be wrong: what a request reuses lies minutes before it, in another window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng

from sweep.chains import Blocks, by_appearance
from sweep.columns import IntArray
from sweep.errors import InputError, number, one_of, whole
from sweep.requests import Requests

UNITS = ("auto", "sessions", "families")

#: Over how many seeds the reuse of resampled streams is set beside the trace's own, and up to how many blocks.
_CHECKED_SEEDS, _CHECKED_BLOCKS = 8, 1_000_000

#: A block is common when more requests than this share of all have it, and more than this number.
COMMON_SHARE, COMMON_COUNT = 0.01, 20

# The spawn key of the draws; those of generated streams are 0 to 4.
_RESAMPLE, _SAMPLE = 100, 101


def rate_scaled(requests: Requests, factor: float) -> Requests:
    """Return the stream with its arrivals `factor` times as dense; service times stay.

    Examples
    --------
    >>> import sweep
    >>> rate_scaled(sweep.Requests.from_arrays([0.0, 10.0], [1.0, 1.0]), 4.0).arrival_ms.tolist()
    [0.0, 2.5]
    """
    number("rate_scale", factor, above=0)
    return _noted(replace(requests, arrival_ms=requests.arrival_ms / factor), f"Arrivals {factor:g} times as dense.")


def window(requests: Requests, start_s: float, end_s: float) -> Requests:
    """Return the requests that arrive from `start_s` to before `end_s` after the first one; times count from `start_s`.

    Raises
    ------
    InputError
        When the window ends before it starts, or nothing arrives in it.
    """
    number("start of the window [s]", start_s, at_least=0)
    number("end of the window [s]", end_s, above=start_s, finite=False)
    since = requests.arrival_ms - requests.arrival_ms[:1]
    rows = np.flatnonzero((since >= start_s * 1000.0) & (since < end_s * 1000.0))
    if not len(rows):
        raise InputError(f"Nothing arrives from {start_s:g} to {end_s:g} s after the first request.")
    part = _rows(requests, rows)
    shifted = replace(part, arrival_ms=since[rows] - start_s * 1000.0)
    return _noted(shifted, f"Only what arrives from {start_s:g} to {end_s:g} s.")


def sample_sessions(requests: Requests, share: float, seed: int = 0) -> Requests:
    """Return the stream without the sessions (families, where it has no sessions) that a draw leaves out.

    Parameters
    ----------
    requests
        The stream.
    share
        Of the units that stay, above 0 and at most 1; their number is rounded to the next whole one, at least 1.
    seed
        Of the draw.
    """
    number("share of sessions", share, above=0, at_most=1)
    unit = units(requests)
    count = int(unit.max()) + 1
    random = default_rng(SeedSequence(entropy=whole("seed", seed), spawn_key=(_SAMPLE,)))
    kept = np.zeros(count, bool)
    kept[random.permutation(count)[: max(1, round(share * count))]] = True
    rows = np.flatnonzero(kept[unit])
    return _noted(_rows(requests, rows), f"{int(kept.sum()):,} of {count:,} units kept, drawn with seed {seed}.")


def repeated(requests: Requests, times: int) -> Requests:
    """Return the stream several times, one after the other with a mean gap between.

    In each further copy, sessions and blocks that belong to one unit are new ones; what units share stays.
    """
    whole("repeat", times, at_least=1)
    n = len(requests)
    span = float(requests.arrival_ms[-1] - requests.arrival_ms[0]) if n else 0.0
    period = span * n / (n - 1) if n > 1 else span
    rows, copy = np.tile(np.arange(n), times), np.repeat(np.arange(times), n)
    found = _copies(requests, rows, copy, units(requests, needed=False))
    return _noted(replace(found, arrival_ms=requests.arrival_ms[rows] + copy * period), f"Repeated {times} times.")


def resampled(requests: Requests, unit: IntArray, seed: int) -> Requests:
    """Return a stream of as many units, drawn with replacement, each at its own times.

    Further copies of a unit have new ids for the sessions, prefixes and blocks that are its own.
    """
    count = int(unit.max()) + 1
    random = default_rng(SeedSequence(entropy=seed, spawn_key=(_RESAMPLE,)))
    drawn = np.bincount(random.integers(0, count, count), minlength=count)
    often = drawn[unit]
    rows = np.repeat(np.arange(len(requests)), often)
    copy = np.arange(len(rows)) - np.repeat(np.cumsum(often) - often, often)
    # Rows are in order of arrival; the copies of one stand behind each other.
    return _copies(requests, rows, copy, unit)


def units(requests: Requests, by: str = "auto", needed: bool = True) -> IntArray:
    """Return for each request the number of the unit that it belongs to.

    Parameters
    ----------
    requests
        The stream.
    by
        "sessions", "families", or "auto": sessions where requests have them. A request without a session, or with
        none but common blocks, is a unit of its own.
    needed
        Whether a stream with neither sessions nor blocks or prefixes is an error, and not as many units as requests.

    Raises
    ------
    InputError
        When the stream does not have what makes the units.
    """
    one_of("unit", by, UNITS)
    n = len(requests)
    held = requests.session >= 0
    if by == "sessions" or (by == "auto" and held.any()):
        if not held.any():
            raise InputError("The stream has no sessions to draw; draw families of shared blocks instead.")
        return _own_where_none(requests.session, held)
    blocks = requests.blocks
    if blocks is None and (requests.prefix >= 0).any():
        # A prefix is a chain of one block.
        blocks = Blocks.single(requests.prefix)
    if blocks is None or not n:
        if by == "families":
            raise InputError(
                "The stream has no blocks or prefixes, and so no families that share some; draw sessions instead."
            )
        if needed:
            raise InputError(
                "The stream has neither sessions nor blocks or prefixes, so there is nothing to draw as a whole."
            )
        return np.arange(n)
    touches = np.bincount(blocks.ids, minlength=blocks.distinct)
    common = touches > max(COMMON_SHARE * n, COMMON_COUNT)
    # Blocks are had by fewer and fewer requests along a chain, so that the common ones stand in front.
    row = np.repeat(np.arange(n), blocks.lengths)
    depth = np.bincount(row, weights=common[blocks.ids], minlength=n).astype(np.int64)
    deeper = depth < blocks.lengths
    place = np.where(deeper, blocks.offsets[:-1] + depth, 0)
    first = blocks.ids[place] if len(blocks.ids) else np.zeros(n, np.int64)
    return _own_where_none(first, deeper)


def resampling(requests: Requests, by: str) -> str:
    """Return in sentences what each seed draws, and whether an unbounded cache finds as much in it as in the trace."""
    unit = units(requests, by)
    drawn = "sessions" if by != "families" and (requests.session >= 0).any() else "prefix families"
    said = (
        f"Each seed draws {int(unit.max()) + 1:,} {drawn} of the trace with replacement, at their own times; what "
        "belongs to none counts as one, and further copies have ids of their own."
    )
    own = _reuse(requests)
    if not own:
        return said
    said += f" The trace's own unbounded hit rate is {own[0]:.4f} of blocks"
    said += f" and {own[1]:.4f} of prompt tokens" if len(own) > 1 else ""
    if requests.blocks is None or len(requests.blocks.ids) <= _CHECKED_BLOCKS:
        found = [_reuse(resampled(requests, unit, seed)) for seed in range(_CHECKED_SEEDS)]
        # Of a small trace, a seed may have no blocks at all.
        rates = np.array([one for one in found if len(one) == len(own)])
        if len(rates) > 1:
            error = rates.std(axis=0, ddof=1) / np.sqrt(len(rates))
            shown = " and ".join(f"{mean:.4f} ± {one:.4f}" for mean, one in zip(rates.mean(axis=0), error, strict=True))
            said += f"; its mean over the seeds 0 to {_CHECKED_SEEDS - 1} is {shown} (standard error)"
    return said + "."


def _reuse(requests: Requests) -> tuple[float, ...]:
    """Return the shares of blocks and, where known, of prompt tokens that came before; () where there are no blocks."""
    blocks = Blocks.single(requests.prefix) if requests.blocks is None else requests.blocks
    if not len(blocks.ids):
        return ()
    seen = blocks.seen_before()
    share = float(seen.sum() / len(blocks.ids))
    prompt = float(requests.prompt_tokens.sum())
    if not (blocks.sized and prompt):
        return (share,)
    return share, float(blocks.tokens_of(seen, requests.prompt_tokens).sum()) / prompt


def _own_where_none(keys: IntArray, held: Any) -> IntArray:
    most = int(keys.max(initial=0)) + 1
    found, _ = by_appearance(np.where(held, keys, most + np.arange(len(keys))))
    return found


def _rows(requests: Requests, rows: Any) -> Requests:
    return _copies(requests, rows, np.zeros(len(rows), np.int64), np.zeros(len(requests), np.int64))


def _copies(requests: Requests, rows: IntArray, copy: IntArray, unit: IntArray) -> Requests:
    """Return some rows, in the order given; ids that one unit alone has are new in every copy but number 0."""
    blocks = requests.blocks
    if blocks is not None:
        places, offsets = blocks.places(rows)
        owner = np.repeat(unit, blocks.lengths)
        keys = _fresh(blocks.ids, owner, places, np.repeat(copy, blocks.lengths[rows]), blocks.distinct)
        ids, kept = by_appearance(keys)
        blocks = Blocks(ids, offsets, blocks.reach[kept % max(blocks.distinct, 1)])
    found: dict[str, Any] = {}
    if requests.adapter is not None:
        # A copy of a session is of another user with the same adapter.
        adapter = requests.adapter[rows]
        found |= {"adapter": adapter} if (adapter >= 0).any() else {"adapter": None, "adapter_labels": ()}
    for name, ids, count in (
        ("prefix", requests.prefix, requests.prefix_count),
        ("session", requests.session, requests.session_count),
    ):
        # None is one more id here, so that those without a key do not count as owners of one.
        keys = _fresh(np.where(ids < 0, count, ids), unit, rows, copy, count + 1)
        keys = np.where(ids[rows] < 0, -1, keys)
        known = np.unique(keys[keys >= 0])
        found[name] = np.where(keys < 0, -1, np.searchsorted(known, keys))
        labels = getattr(requests, f"{name}_labels")
        found[f"{name}_labels"] = tuple(_label(labels[key % (count + 1)], key // (count + 1)) for key in known.tolist())
    return replace(
        requests,
        arrival_ms=requests.arrival_ms[rows],
        service_ms=requests.service_ms[rows],
        prompt_tokens=requests.prompt_tokens[rows],
        output_tokens=requests.output_tokens[rows],
        request_id=requests.request_id[rows],
        blocks=blocks,
        **found,
    )


def _fresh(ids: IntArray, owner: IntArray, places: IntArray, copy: IntArray, count: int) -> IntArray:
    """Return ids at some places, those of one owner alone raised by `count` per copy."""
    low = np.full(count, np.iinfo(np.int64).max)
    high = np.full(count, -1)
    np.minimum.at(low, ids, owner)
    np.maximum.at(high, ids, owner)
    own = low == high
    at = ids[places]
    return np.where(own[at], at + copy * count, at)


def _label(label: Any, copy: int) -> Any:
    return label if copy == 0 else f"{label} (copy {copy + 1})"


def _noted(requests: Requests, note: str) -> Requests:
    return replace(requests, attrs={**requests.attrs, "notes": [*requests.attrs.get("notes", []), note]})
