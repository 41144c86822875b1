"""Streams as JSON-safe dicts: arrays compressed as text, and back with everything checked that kernels rely on."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sweep import columns as checked
from sweep.chains import Blocks
from sweep.columns import NONE, Label

if TYPE_CHECKING:
    from sweep.requests import Requests

#: The arrays that decide results, with the type they are hashed and stored in.
DECISIVE = {
    "arrival_ms": "<f8",
    "service_ms": "<f8",
    "prompt_tokens": "<i8",
    "output_tokens": "<i8",
    "prefix": "<i8",
    "session": "<i8",
}
#: Those of its blocks.
OF_BLOCKS = ("ids", "offsets", "reach")


def packed(requests: Requests) -> dict[str, Any]:
    """Return a stream as a JSON-safe dict."""
    numbered = requests.request_id.dtype.kind == "i"
    found: dict[str, Any] = {
        **{name: _pack(getattr(requests, name)) for name in DECISIVE},
        "request_id": _pack(requests.request_id) if numbered else requests.request_id.tolist(),
        "prefix_labels": _pack_labels(requests.prefix_labels),
        "session_labels": _pack_labels(requests.session_labels),
        "steps": requests.steps,
        "attrs": dict(requests.attrs),
    }
    if requests.blocks is not None:
        found["blocks"] = {name: _pack(getattr(requests.blocks, name)) for name in OF_BLOCKS}
    if requests.service_model is not None:
        found["service_model"] = asdict(requests.service_model)
    if requests.adapter is not None:
        found |= {"adapter": _pack(requests.adapter), "adapter_labels": _pack_labels(requests.adapter_labels)}
    return found


def unpacked(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a stream that `packed` made a dict of, the service model still a dict.

    Raises
    ------
    KeyError, TypeError, ValueError, zlib.error
        For anything else.
    """
    arrays: dict[str, NDArray[Any]] = {name: _unpack(content[name], kind) for name, kind in DECISIVE.items()}
    ids = content["request_id"]
    arrays["request_id"] = _unpack(ids, "<i8") if isinstance(ids, str) else checked.objects(ids)
    kinds = ["prefix", "session"]
    if "adapter" in content:
        kinds.append("adapter")
        arrays["adapter"] = _unpack(content["adapter"], "<i8")
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError("its arrays differ in length")
    labels = {name: _unpack_labels(content[f"{name}_labels"]) for name in kinds}
    for name, known in labels.items():
        # Kernels index with these ids unchecked.
        if not ((arrays[name] >= NONE) & (arrays[name] < len(known))).all():
            raise ValueError(f"a {name} has no label")
    found: dict[str, Any] = {**arrays, **{f"{name}_labels": known for name, known in labels.items()}}
    if "service_model" in content:
        found["service_model"] = content["service_model"]
    if "blocks" in content:
        found["blocks"] = _unpack_blocks(content["blocks"], len(arrays["arrival_ms"]))
    return found | {"steps": content["steps"], "attrs": dict(content["attrs"])}


def little_endian(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array, the same on every machine."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _pack(array: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(little_endian(array))).decode("ascii")


def _unpack(text: str, kind: str) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(zlib.decompress(base64.b64decode(text, validate=True)), dtype=kind)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _unpack_blocks(stored: Mapping[str, str], n: int) -> Blocks:
    ids, offsets, reach = (_unpack(stored[name], "<i8") for name in OF_BLOCKS)
    # Kernels index with these unchecked.
    if len(offsets) != n + 1 or offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
        raise ValueError("its chains of blocks do not fit its requests")
    if not ((ids >= 0) & (ids < len(reach))).all():
        raise ValueError("a block has no size")
    return Blocks(ids, offsets, reach)


def _pack_labels(labels: Sequence[Label]) -> int | list[Label]:
    # Generated streams number their keys: one number says it all.
    return len(labels) if isinstance(labels, range) else list(labels)


def _unpack_labels(stored: int | list[Label]) -> Sequence[Label]:
    return range(stored) if isinstance(stored, int) else tuple(stored)
