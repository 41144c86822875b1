"""One realised request stream as arrays, and the model that turns tokens into service time."""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sweep import columns as checked
from sweep import packing
from sweep.chains import Blocks
from sweep.columns import NONE, FloatArray, IntArray, Label, Where
from sweep.errors import InputError, number, unknown, whole

RECORD_FIELDS = ("request_id", "arrival_ms", "service_ms", "prefix_key", "session_id", "prompt_tokens", "output_tokens")
BLOCK_FIELDS = ("blocks", "block_tokens")


@dataclass(frozen=True)
class ServiceModel:
    """How long a request of so many tokens occupies a replica of speed 1.

    It is the share of the replica's *throughput* that a request takes, which is what queues form on. It is
    not the request's latency under batching, where many requests share each decoding step.

    Parameters
    ----------
    base_ms
        Time per request, whatever its size [ms].
    prefill_ms_per_token
        Time per prompt token [ms].
    decode_ms_per_token
        Time per output token [ms].

    Raises
    ------
    InputError
        For a value that is negative or not finite.

    Examples
    --------
    >>> import sweep
    >>> sweep.ServiceModel(base_ms=5.0).service_ms([100, 0], [10, 1]).tolist()
    [35.0, 7.0]
    """

    base_ms: float = 0.0
    prefill_ms_per_token: float = 0.1
    decode_ms_per_token: float = 2.0

    def __post_init__(self) -> None:
        for name in ("base_ms", "prefill_ms_per_token", "decode_ms_per_token"):
            object.__setattr__(self, name, number(name, getattr(self, name), at_least=0.0))

    def service_ms(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> FloatArray:
        """Return the service time at speed 1 [ms] of each request, shaped like the arrays given."""
        prompt = np.asarray(prompt_tokens, dtype=np.float64)
        output = np.asarray(output_tokens, dtype=np.float64)
        service: FloatArray = self.base_ms + self.prefill_ms_per_token * prompt + self.decode_ms_per_token * output
        return service


@dataclass(frozen=True, eq=False, repr=False)
class Requests:
    """One realised stream of n requests, sorted by arrival; requests that arrive together keep their order.

    Build one with `from_arrays`, `from_records` or `from_csv`, which check what they are given; the
    constructor itself checks nothing and is for code that made the arrays. All arrays are read-only.

    Attributes
    ----------
    arrival_ms, service_ms : float64 (n,)
        Arrival, and service time at speed 1 [ms].
    prompt_tokens, output_tokens : int64 (n,)
        Sizes; zero when unknown.
    prefix, session : int64 (n,)
        Ids from 0, -1 = none; `prefix_labels` and `session_labels` hold the original keys, indexed by id.
    request_id : int64 or object (n,)
        Whole numbers or strings. They label requests and need not be unique.
    steps : int or None
        How many steps the token engine runs when the caller does not say; None = until drained.
    attrs : dict
        What a reader did. Not part of the stream's identity.
    blocks : Blocks or None
        The cache blocks that each prompt starts with.
    service_model : ServiceModel or None
        What made `service_ms` out of the tokens, so that a cached block saves the prefill of its tokens; None where
        only a service time is known.
    adapter : int64 (n,) or None
        Ids of adapters (LoRA), as for `prefix`; None when no request has one. `adapter_labels` holds the keys.

    Examples
    --------
    >>> import sweep
    >>> sweep.Requests.from_arrays([0.0, 4.0], [10.0, 10.0], session=["a", "a"])
    Requests(2 requests over 4.0 ms, 0 prefixes, 1 session)
    """

    arrival_ms: FloatArray
    service_ms: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    prefix: IntArray
    session: IntArray
    request_id: NDArray[Any]
    prefix_labels: Sequence[Label] = ()
    session_labels: Sequence[Label] = ()
    steps: int | None = None
    attrs: dict[str, Any] = field(default_factory=dict)
    blocks: Blocks | None = None
    service_model: ServiceModel | None = None
    adapter: IntArray | None = None
    adapter_labels: Sequence[Label] = ()

    def __post_init__(self) -> None:
        for name in (*packing.DECISIVE, "request_id"):
            getattr(self, name).flags.writeable = False
        if self.adapter is not None:
            self.adapter.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickle does not keep an array's read-only flag.
        self.__dict__.update(state)
        self.__post_init__()

    def __len__(self) -> int:
        return len(self.arrival_ms)

    def __repr__(self) -> str:
        def some(count: int, noun: str, plural: str) -> str:
            return f"{count} {noun if count == 1 else plural}"

        return (
            f"Requests({some(len(self), 'request', 'requests')} over {self._window_ms:.1f} ms, "
            f"{some(self.prefix_count, 'prefix', 'prefixes')}, {some(self.session_count, 'session', 'sessions')}"
            + (")" if self.blocks is None else f", {some(self.blocks.distinct, 'block', 'blocks')})")
        )

    @property
    def tokens(self) -> IntArray:
        """Return the size of each request [tokens], prompt and output: what the token engine serves."""
        return self.prompt_tokens + self.output_tokens

    @property
    def prefix_count(self) -> int:
        """Return how many prefix ids there are; every id lies below it."""
        return len(self.prefix_labels)

    @property
    def session_count(self) -> int:
        """Return how many session ids there are; every id lies below it."""
        return len(self.session_labels)

    @property
    def _window_ms(self) -> float:
        return float(self.arrival_ms[-1] - self.arrival_ms[0]) if len(self) else 0.0

    @classmethod
    def from_arrays(
        cls,
        arrival_ms: ArrayLike,
        service_ms: ArrayLike,
        *,
        prompt_tokens: ArrayLike | None = None,
        output_tokens: ArrayLike | None = None,
        prefix: ArrayLike | None = None,
        session: ArrayLike | None = None,
        adapter: ArrayLike | None = None,
        request_id: ArrayLike | None = None,
        steps: int | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Requests:
        """Return the stream that n rows describe, each array of shape (n,), in any order.

        Parameters
        ----------
        arrival_ms, service_ms
            Arrival, and service time at speed 1 [ms].
        prompt_tokens, output_tokens
            Whole numbers; zeros when left out.
        prefix, session, adapter
            Keys: whole numbers with -1 for none, or strings (and whole numbers) with None for none.
        request_id
            Strings or whole numbers; the row number when left out.
        steps
            Steps of the token engine; None = until drained.
        attrs
            Notes to keep with the stream; JSON-safe values.

        Raises
        ------
        InputError
            Naming the row and the column, for a value that is missing, not a number, not finite or negative.

        Examples
        --------
        >>> import sweep
        >>> requests = sweep.Requests.from_arrays([3.0, 1.0], [10.0, 20.0], prefix=["chat", None])
        >>> requests.service_ms.tolist(), requests.prefix.tolist(), requests.request_id.tolist()
        ([20.0, 10.0], [-1, 0], [1, 0])
        """
        columns = {
            "arrival_ms": arrival_ms,
            "service_ms": service_ms,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "prefix": prefix,
            "session": session,
            "adapter": adapter,
            "request_id": request_id,
        }
        return assemble(columns, where="row {}".format, steps=steps, attrs=attrs)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Requests:
        """Return the stream of a list of dicts, sorted by (arrival_ms, request_id).

        Parameters
        ----------
        records
            Dicts with ``arrival_ms`` and ``service_ms`` and, optionally, ``request_id`` (all or none; the
            position otherwise), ``prefix_key``, ``session_id``, ``adapter_id`` (None or missing = none),
            ``prompt_tokens`` and ``output_tokens`` (missing = 0), ``blocks`` (a list of keys, front first; missing =
            none) and ``block_tokens`` (of each block, or one number for all). They are not changed.

        Raises
        ------
        InputError
            Naming the record and the field that is missing, unknown or bad.

        Examples
        --------
        >>> import sweep
        >>> records = [{"request_id": "a", "arrival_ms": 0.0, "service_ms": 10.0, "session_id": "alice"}]
        >>> sweep.Requests.from_records(records).to_records()[0]["prefix_key"] is None
        True
        """
        if isinstance(records, Mapping) or not isinstance(records, Iterable):
            raise InputError(f"records must be a list of dicts, got {type(records).__name__}.")
        rows = list(records)
        known = {*RECORD_FIELDS, "adapter_id", *BLOCK_FIELDS}
        for row, record in enumerate(rows):
            if not isinstance(record, Mapping):
                raise InputError(f"record {row}: must be a dict, got {record!r}.")
            if not known.issuperset(record):
                stranger = next(key for key in record if key not in known)
                allowed = (*RECORD_FIELDS, "adapter_id", *BLOCK_FIELDS)
                raise InputError(f"record {row}: {unknown('field', stranger, allowed)}")
            for name in ("arrival_ms", "service_ms"):
                if name not in record:
                    raise InputError(f"record {row}: {name} is missing.")
        named = ["request_id" in record for record in rows]
        if any(named) and not all(named):
            raise InputError(f"record {named.index(False)}: request_id is missing; give it in every record or in none.")
        columns = {
            "arrival_ms": [record["arrival_ms"] for record in rows],
            "service_ms": [record["service_ms"] for record in rows],
            "prompt_tokens": [record.get("prompt_tokens", 0) for record in rows],
            "output_tokens": [record.get("output_tokens", 0) for record in rows],
            "prefix": checked.objects([record.get("prefix_key") for record in rows]),
            "session": checked.objects([record.get("session_id") for record in rows]),
            "adapter": checked.objects([record.get("adapter_id") for record in rows]),
            "request_id": checked.objects([record["request_id"] for record in rows]) if all(named) else None,
        }
        names = {"prefix": "prefix_key", "session": "session_id", "adapter": "adapter_id"}
        blocks = _blocks_of(rows) if any("blocks" in record for record in rows) else None
        return assemble(columns, where="record {}".format, names=names, ties_by_id=True, blocks=blocks)

    def to_records(self) -> list[dict[str, Any]]:
        """Return the stream as dicts that `from_records` reads back; token fields only where a size is known."""
        columns: dict[str, list[Any]] = {
            "request_id": self.request_id.tolist(),
            "arrival_ms": self.arrival_ms.tolist(),
            "service_ms": self.service_ms.tolist(),
            "prefix_key": [None if key < 0 else self.prefix_labels[key] for key in self.prefix.tolist()],
            "session_id": [None if key < 0 else self.session_labels[key] for key in self.session.tolist()],
        }
        if self.adapter is not None:
            columns["adapter_id"] = [None if key < 0 else self.adapter_labels[key] for key in self.adapter.tolist()]
        if self.prompt_tokens.any() or self.output_tokens.any():
            columns["prompt_tokens"] = self.prompt_tokens.tolist()
            columns["output_tokens"] = self.output_tokens.tolist()
        if self.blocks is not None:
            ids, tokens = (np.split(part, self.blocks.offsets[1:-1]) for part in (self.blocks.ids, self.blocks.tokens))
            columns["blocks"] = [part.tolist() for part in ids]
            columns["block_tokens"] = [part.tolist() for part in tokens]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], service: ServiceModel | None = None, **options: Any) -> Requests:
        """Return the stream of a trace: `sweep.traces.read`, which describes the formats and the options.

        Parameters
        ----------
        path
            The file.
        service
            Turns tokens into service time where the file has none; ``ServiceModel()`` when left out.
        **options
            As for `sweep.traces.read`.

        Raises
        ------
        InputError
            Naming file, line and column.
        """
        from sweep.traces import read

        return read(path, service=service, **options)

    def offered_load(self, replicas: float) -> float:
        """Return the work that arrives per unit of capacity: at 1 or more the fleet does not keep up.

        Parameters
        ----------
        replicas
            Total speed of the fleet: the number of replicas when all run at speed 1.

        Returns
        -------
        float
            Sum of the service times / ((last - first arrival) * `replicas`); NaN when that window is empty.

        Examples
        --------
        >>> import sweep
        >>> sweep.Requests.from_arrays([0.0, 10.0], [8.0, 8.0]).offered_load(replicas=2)
        0.8
        """
        capacity = number("replicas", replicas, above=0.0) * self._window_ms
        return float(self.service_ms.sum()) / capacity if capacity > 0.0 else math.nan

    def fingerprint(self) -> str:
        """Return a SHA-256 (hex) over what decides results: times, tokens, prefix, session and steps."""
        digest = hashlib.sha256(f"requests {len(self)} steps {self.steps}".encode())
        for name in packing.DECISIVE:
            digest.update(name.encode())
            digest.update(packing.little_endian(getattr(self, name)))
        if self.blocks is not None:
            digest.update(f"blocks {self.service_model}".encode())
            for name in packing.OF_BLOCKS:
                digest.update(packing.little_endian(getattr(self.blocks, name)))
        if self.adapter is not None:
            digest.update(b"adapter" + packing.little_endian(self.adapter.astype(np.int64)))
        return digest.hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-safe dict from which `from_dict` rebuilds the stream exactly."""
        return packing.packed(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Requests:
        """Return the stream that `to_dict` wrote.

        Raises
        ------
        InputError
            For a dict that `to_dict` did not write.
        """
        try:
            found = packing.unpacked(content)
            if "service_model" in found:
                found["service_model"] = ServiceModel(**found["service_model"])
            return cls(**found)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise InputError(f"This is not a stored request stream ({type(error).__name__}: {error}).") from error


def assemble(
    columns: Mapping[str, Any],
    *,
    where: Where,
    names: Mapping[str, str] | None = None,
    ties_by_id: bool = False,
    steps: int | None = None,
    attrs: Mapping[str, Any] | None = None,
    blocks: Blocks | None = None,
    service_model: ServiceModel | None = None,
) -> Requests:
    """Return the stream of unsorted columns: the one place where streams from outside are checked.

    Parameters
    ----------
    columns
        The arrays of `Requests` by name; all but the times may be None, and ``adapter`` missing. Keys are not yet ids.
    where
        Says for a row number how the user calls that row, as in ``"trace.csv, line 7"``.
    names
        What the user calls a column, where that differs.
    ties_by_id
        Sort requests that arrive together by request_id; otherwise they keep their order.
    steps, attrs, blocks, service_model
        As in `Requests`.
    """
    names = names or {}

    def called(name: str) -> str:
        return names.get(name, name)

    arrival = checked.times(called("arrival_ms"), columns["arrival_ms"], where)
    n = len(arrival)

    def given(name: str, check: Callable[[str, Any, Where], Any], default: Any) -> Any:
        values = default if columns.get(name) is None else check(called(name), columns[name], where)
        if len(values) != n:
            raise InputError(
                f"{called('arrival_ms')} has {n} rows but {called(name)} has {len(values)}; lengths must agree."
            )
        return values

    service = given("service_ms", checked.times, None)
    prompt, output = (given(name, checked.counts, np.zeros(n, np.int64)) for name in ("prompt_tokens", "output_tokens"))
    prefix, session, adapter = (
        given(name, checked.keys, np.full(n, NONE)) for name in ("prefix", "session", "adapter")
    )
    ids = given("request_id", checked.ids, np.arange(n))

    order = _order(arrival, ids if ties_by_id else None)
    prefix, prefix_labels = checked.interned(prefix[order])
    session, session_labels = checked.interned(session[order])
    adapter, adapter_labels = checked.interned(adapter[order])
    return Requests(
        arrival_ms=arrival[order],
        service_ms=service[order],
        prompt_tokens=prompt[order],
        output_tokens=output[order],
        prefix=prefix,
        session=session,
        request_id=ids[order],
        prefix_labels=prefix_labels,
        session_labels=session_labels,
        steps=None if steps is None else whole("steps", steps),
        attrs=dict(attrs or {}),
        blocks=None if blocks is None else blocks.take(order),
        service_model=service_model,
        adapter=adapter if adapter_labels else None,
        adapter_labels=adapter_labels,
    )


def _blocks_of(records: Sequence[Mapping[str, Any]]) -> Blocks:
    keys: list[Any] = []
    tokens: list[Any] = []
    offsets = [0]
    for row, record in enumerate(records):
        chain = record.get("blocks", ())
        sizes = record.get("block_tokens", 0)
        if not isinstance(chain, Sequence) or isinstance(chain, str):
            raise InputError(f"record {row}: blocks must be a list of keys, got {chain!r:.60}.")
        sizes = list(sizes) if isinstance(sizes, Sequence) else [sizes] * len(chain)
        if len(sizes) != len(chain):
            raise InputError(f"record {row}: {len(chain)} blocks have {len(sizes)} block_tokens; lengths must agree.")
        keys += chain
        tokens += sizes
        offsets.append(len(keys))

    def where(place: int) -> str:
        return f"record {int(np.searchsorted(offsets, place, side='right')) - 1}"

    held = checked.keys("blocks", checked.objects(keys), where)
    ids, _ = checked.interned(held)
    if (ids < 0).any():
        raise InputError(f"{where(int((ids < 0).argmax()))}: blocks must hold keys, got None.")
    sizes = checked.counts("block_tokens", checked.objects(tokens), where)
    return Blocks.of(ids, offsets, sizes, where="record {}".format)


def _order(arrival: FloatArray, ids: NDArray[Any] | None) -> NDArray[np.intp]:
    if ids is None or len(arrival) < 2:
        return np.argsort(arrival, kind="stable")
    if ids.dtype.kind == "i":
        return np.lexsort((ids, arrival))
    pairs = list(zip(arrival.tolist(), ids.tolist(), strict=True))
    return np.array(sorted(range(len(pairs)), key=pairs.__getitem__), dtype=np.intp)
