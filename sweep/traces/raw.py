"""Rows as a reader finds them, and what all formats share from there to a stream: options, order, a report."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweep import columns as checked
from sweep.chains import Blocks
from sweep.columns import FloatArray, IntArray, Where
from sweep.errors import InputError, number, one_of, whole
from sweep.requests import Requests, ServiceModel, assemble
from sweep.traces.errors import TraceError

_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)


@dataclass(frozen=True)
class Options:
    """What `sweep.traces.read` may be told, checked."""

    blocks: str = "ceil"
    zero_tokens: str = "keep"
    ticks: str = "keep"
    seed: int = 0
    columns: Mapping[str, str] | None = None
    block_tokens: int | None = None
    session_rate_per_s: float | None = None
    shared_prompt: str = "none"

    def __post_init__(self) -> None:
        one_of("blocks", self.blocks, ("ceil", "floor"))
        one_of("zero_tokens", self.zero_tokens, ("keep", "drop", "clamp"))
        one_of("ticks", self.ticks, ("keep", "spread"))
        one_of("shared_prompt", self.shared_prompt, ("none", "tools", "tools+system"))
        whole("seed", self.seed)
        if self.block_tokens is not None:
            whole("block_tokens", self.block_tokens, at_least=1)
        if self.session_rate_per_s is not None:
            number("session_rate_per_s", self.session_rate_per_s, above=0)
        if self.columns is not None and not isinstance(self.columns, Mapping):
            raise InputError(f"columns must map a column of the file to a field, got {self.columns!r}.")

    def refuse(self, form: str, *names: str) -> None:
        """Raise `InputError` when one of the options `names`, which the format has no use for, is given."""
        for name in names:
            value = getattr(self, name)
            if value != getattr(Options, name):
                raise InputError(f"{name}={value!r} does not apply to a trace of the format {form!r}.")


class Keys:
    """A growing list of keys as whole numbers of 64 bits; larger ones and strings are numbered, never cut short."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._known: dict[Any, int] | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    def extend(self, keys: list[Any]) -> bool:
        """Append keys and return True, or append nothing and return False if one is neither a whole number nor text."""
        kinds = set(map(type, keys))
        if not kinds <= {int, str}:
            return False
        if self._known is None and str not in kinds:
            before = len(self._numbers)
            try:
                self._numbers.extend(keys)
                return True
            except OverflowError:
                del self._numbers[before:]
        if self._known is None:
            self._known = {}
            self._numbers = array("q", self._known_numbers(self._numbers))
        self._numbers.extend(self._known_numbers(keys))
        return True

    def _known_numbers(self, keys: Iterable[Any]) -> list[int]:
        known = self._known
        assert known is not None
        return [known.setdefault(key, len(known)) for key in keys]

    @property
    def numbers(self) -> IntArray:
        """Return the keys: equal numbers where the keys were equal."""
        return np.frombuffer(self._numbers, np.int64) if len(self._numbers) else np.zeros(0, np.int64)


@dataclass
class Chains:
    """Blocks of the rows, as found: keys one after the other, where each row's begin, tokens of each or of all."""

    keys: IntArray
    offsets: IntArray
    tokens: IntArray | int

    def first(self, kept: IntArray) -> Chains:
        """Return the first `kept` blocks of each row."""
        starts = np.concatenate(([0], np.cumsum(kept)))
        places = np.arange(starts[-1]) + np.repeat(self.offsets[:-1] - starts[:-1], kept)
        tokens = self.tokens if isinstance(self.tokens, int) else self.tokens[places]
        return Chains(self.keys[places], starts, tokens)


@dataclass
class Raw:
    """Rows in file order.

    ``arrival_ms`` counts from anywhere unless ``absolute``, and is expected to grow if ``in_order``. Keys are None
    where there is none.
    """

    form: str
    arrival_ms: FloatArray
    lines: Any
    prompt: IntArray | None = None
    output: IntArray | None = None
    service_ms: FloatArray | None = None
    session: NDArray[Any] | None = None
    prefix: NDArray[Any] | None = None
    adapter: NDArray[Any] | None = None
    request_id: NDArray[Any] | None = None
    chains: Chains | None = None
    model: ServiceModel | None = None
    steps: int | None = None
    absolute: bool = False
    in_order: bool = True
    ties_by_id: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def finish(raw: Raw, path: Any, options: Options, model: ServiceModel) -> Requests:
    """Return the stream of the rows, with a report of what was done to them in its ``attrs``."""
    found = len(raw.arrival_ms)
    if not found:
        raise TraceError("has no rows; a trace needs at least one request.", path)
    arrival = raw.arrival_ms if raw.absolute else raw.arrival_ms - raw.arrival_ms.min()
    keep, prompt, output, zero = _zero_tokens(raw, path, options)
    inversions = int((np.diff(arrival[keep]) < 0).sum()) if raw.in_order else 0
    dropped = dict(raw.dropped)
    if options.zero_tokens == "drop" and zero:
        dropped["no tokens"] = zero
    kept = arrival[keep]
    if options.ticks == "spread":
        kept = spread(kept, options.seed)
    model = raw.model or model
    service = raw.service_ms[keep] if raw.service_ms is not None else model.service_ms(prompt, output)
    rows = np.flatnonzero(keep)
    named: list[int] = []

    def where(row: int) -> str:
        named.append(raw.lines[rows[row]])
        return f"{path}, line {named[-1]}"

    try:
        requests = assemble(
            {
                "arrival_ms": kept,
                "service_ms": service,
                "prompt_tokens": prompt,
                "output_tokens": output,
                "prefix": None if raw.prefix is None else raw.prefix[keep],
                "session": None if raw.session is None else raw.session[keep],
                "adapter": None if raw.adapter is None else raw.adapter[keep],
                "request_id": rows if raw.request_id is None else raw.request_id[keep],
            },
            where=where,
            names={"prefix": "prefix_key", "session": "session_id", "adapter": "adapter_id"},
            ties_by_id=raw.ties_by_id,
            steps=raw.steps,
            blocks=_blocks(raw, keep, where),
            service_model=model if raw.service_ms is None else None,
        )
    except TraceError:
        raise
    except InputError as error:
        raise TraceError.of(error, path, named[-1] if named else None) from None
    span_s = float(requests.arrival_ms[-1] - requests.arrival_ms[0]) / 1000.0
    requests.attrs.update(
        source=getattr(path, "name", str(path)),
        format=raw.form,
        rows_read=found + sum(raw.dropped.values()),
        rows_kept=len(requests),
        rows_dropped=dropped,
        zero_token_rows=zero,
        zero_tokens=options.zero_tokens,
        ties=int((np.diff(np.sort(arrival[keep])) == 0).sum()),
        inversions=inversions,
        ticks=options.ticks,
        span_s=span_s,
        rate_per_s=len(requests) / span_s if span_s > 0 else None,
        notes=list(raw.notes),
    )
    if requests.blocks is not None:
        # Those of the file: a stream that is shaped later has others.
        requests.attrs.update(blocks=len(requests.blocks.ids), distinct_blocks=requests.blocks.distinct)
    return requests


def report(requests: Requests) -> list[str]:
    """Return in sentences what a reader did."""
    attrs = requests.attrs
    if "rows_read" not in attrs:
        return []
    dropped = sum(attrs["rows_dropped"].values())
    why = ", ".join(f"{count:,} with {reason}" for reason, count in attrs["rows_dropped"].items())
    lines = [
        f"{attrs['source']} ({attrs['format']}): {attrs['rows_read']:,} rows read, {attrs['rows_kept']:,} kept, "
        f"{dropped:,} dropped{f' ({why})' if why else ''}."
    ]
    rate = "" if attrs["rate_per_s"] is None else f", {attrs['rate_per_s']:.4g} requests/s"
    lines.append(f"{attrs['span_s']:,.1f} s from the first to the last arrival{rate}.")
    if attrs["zero_token_rows"]:
        done = {"keep": "kept", "drop": "dropped", "clamp": "raised to one token"}[attrs["zero_tokens"]]
        lines.append(f"{attrs['zero_token_rows']:,} rows without prompt or output tokens, {done}.")
    spread_over = ", spread over their tick" if attrs["ticks"] == "spread" else ""
    lines.append(f"{attrs['ties']:,} rows arrive together with the one before{spread_over}.")
    if attrs["inversions"]:
        lines.append(f"{attrs['inversions']:,} rows arrive before the one above them; sorted, ties in file order.")
    if "blocks" in attrs:
        lines.append(f"{attrs['blocks']:,} blocks, {attrs['distinct_blocks']:,} different.")
    return [*lines, *attrs["notes"]]


def spread(arrival: FloatArray, seed: int) -> FloatArray:
    """Return arrivals with those of one time spread evenly at random over the tick of the clock, their order kept.

    The tick is the least time between two arrivals: the next one may come an hour later.
    """
    order = np.argsort(arrival, kind="stable")
    ticks, place, size = np.unique(arrival[order], return_inverse=True, return_counts=True)
    width = np.diff(ticks).min(initial=np.inf)
    if np.isinf(width):
        return arrival
    draws = np.random.default_rng(seed).random(len(arrival))
    # Sorted within a tick, so that the rows of a tick stay in file order.
    draws = draws[np.lexsort((draws, place))]
    result = np.empty(len(arrival))
    result[order] = ticks[place] + np.where(size[place] > 1, draws * width, 0.0)
    return result


def labels(cells: list[str]) -> NDArray[Any]:
    """Return the labels that cells hold, None where one is empty; numbers where all of them are whole numbers."""
    stripped = [cell.strip() for cell in cells]
    numbered = all(_WHOLE.fullmatch(cell) for cell in stripped if cell)
    return checked.objects([(int(cell) if numbered else cell) if cell else None for cell in stripped])


def _zero_tokens(raw: Raw, path: Any, options: Options) -> tuple[NDArray[np.bool_], IntArray, IntArray, int]:
    n = len(raw.arrival_ms)
    everything = np.ones(n, bool)
    none = np.zeros(n, np.int64)
    prompt, output = (none if part is None else part for part in (raw.prompt, raw.output))
    if raw.prompt is None or raw.output is None:
        return everything, prompt, output, 0
    zero = (prompt == 0) | (output == 0)
    if options.zero_tokens == "clamp":
        prompt, output = np.maximum(prompt, 1), np.maximum(output, 1)
    elif options.zero_tokens == "drop":
        if zero.all():
            raise TraceError("has no row with both prompt and output tokens; nothing is left.", path)
        return ~zero, prompt[~zero], output[~zero], int(zero.sum())
    return everything, prompt, output, int(zero.sum())


def _blocks(raw: Raw, keep: NDArray[np.bool_], where: Where) -> Blocks | None:
    if raw.chains is None:
        return None
    chains = raw.chains
    if not keep.all():
        lengths = np.where(keep, np.diff(chains.offsets), 0)
        some = chains.first(lengths)
        chains = Chains(some.keys, np.concatenate(([0], np.cumsum(lengths[keep]))), some.tokens)
    return Blocks.of(chains.keys, chains.offsets, chains.tokens, where)
