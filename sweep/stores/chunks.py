"""Zarr format 2, written chunk by chunk: what plain xarray reads, without a store object between.

A chunk ends with a CRC-32 over the compressed bytes, so that every reader refuses a chunk with a flipped byte. A chunk
that was never written reads as NaN, or as 0 where the values are integers.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def _codecs() -> tuple[Any, Any]:
    from numcodecs import Blosc
    from numcodecs.checksum32 import CRC32

    # The cheapest setting: it halves what is stored of policies that repeat along slack, and of counts.
    return Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE), CRC32()


def group_metadata(attrs: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the metadata files of the group that holds the arrays."""
    return {".zgroup": _json({"zarr_format": 2}), ".zattrs": _json(attrs)}


def array_metadata(
    name: str,
    dtype: np.dtype[Any],
    shape: Sequence[int],
    chunks: Sequence[int],
    dims: Sequence[str],
    attrs: Mapping[str, Any],
    *,
    compressed: bool = True,
) -> dict[str, bytes]:
    """Return the metadata files of one array, by path."""
    blosc, crc = _codecs()
    described = {
        "zarr_format": 2,
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": dtype.str,
        "order": "C",
        "fill_value": "NaN" if dtype.kind == "f" else None,
        "filters": [blosc.get_config()] if compressed else None,
        "compressor": crc.get_config(),
        "dimension_separator": ".",
    }
    return {
        f"{name}/.zarray": _json(described),
        f"{name}/.zattrs": _json({"_ARRAY_DIMENSIONS": list(dims), **attrs}),
    }


def consolidated(metadata: Mapping[str, bytes]) -> bytes:
    """Return the content of ``.zmetadata``, which lets a reader open the store without listing it."""
    return _json(
        {"zarr_consolidated_format": 1, "metadata": {name: json.loads(text) for name, text in metadata.items()}}
    )


def encode(array: NDArray[Any], *, compressed: bool = True) -> bytes:
    """Return the bytes of one chunk."""
    blosc, _ = _codecs()
    whole = np.ascontiguousarray(array)
    packed = blosc.encode(whole) if compressed else whole.tobytes()
    # What the codec CRC32 writes, with one copy of the content instead of three.
    return zlib.crc32(packed).to_bytes(4, "little") + packed


def decode(content: bytes, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Return the array of one compressed chunk.

    Raises
    ------
    ValueError
        When the bytes are not those of such a chunk.
    """
    blosc, crc = _codecs()
    try:
        values = np.frombuffer(blosc.decode(crc.decode(content)), dtype)
        return values.reshape(tuple(shape))
    except Exception as error:  # what a codec raises on damaged bytes differs from codec to codec
        raise ValueError(str(error)) from error


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()
