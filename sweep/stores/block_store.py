"""Blocks on disk: chunks of one Zarr store that plain xarray opens, and a record per block, written last.

A store at ``out.zarr`` holds, beside the arrays:

* ``grid.json``: what is simulated, by which code, and the layout of the blocks (see `sweep.stores.grid_file`);
  ``grid-HASH.json`` the same after an extension of the one whose content has that hash;
* ``labels.json``: which of these the metadata and coordinates belong to, and their hashes;
* ``blocks/POLICY.SLACK.HETEROGENEITY.SEED-CELLS``: the name of a record says which block of the lattice is whole, and
  how many slacks, heterogeneities and seeds of it; its content says what they cost. A block without a record does
  not exist, whatever chunks lie there. Records are added and removed, never changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sweep import labels
from sweep.blocks import Block, Counts, JobError, Layout, blocks, counts, empty, inner_shape
from sweep.engines import Arrays
from sweep.grid import Grid
from sweep.stores import chunks, grid_file
from sweep.stores.files import Files, absolute, files_at
from sweep.variables import MIGRATIONS, Variable

_RECORDS = "blocks"
_RECORD = re.compile(r"\d+(\.\d+){3}-\d+(\.\d+){2}")
_INDEX = ".zmetadata"
_LABELS = "labels.json"


@dataclass(frozen=True)
class Receipt:
    """What a block cost: simulated requests and seconds of one core; when it was whole, and the code that made it."""

    requests: int
    seconds: float
    finished: float
    code: str


class BlockStore:
    """The blocks of one store. Cheap to make: workers make one per task."""

    def __init__(self, location: str) -> None:
        self.location = absolute(location)
        self.files: Files = files_at(location)

    # --- One block --------------------------------------------------------------------------------------------------

    def has(self, block: Block) -> bool:
        """Return whether the block, with all of its cells, is recorded."""
        return self.files.exists(_record(block))

    def load(self, grid: Grid, layout: Layout, block: Block) -> Arrays:
        """Return the arrays of a block that is there in part: what it has, and room for the rest.

        Raises
        ------
        ValueError
            When a chunk that the block has is missing or damaged.
        """
        arrays = empty(grid, _cells_shape(grid, block.shape))
        there = _cells_slices(grid, block.have)
        for variable, chunk, inner in _chunks_of(grid, layout, block.policy):
            name = _chunk_name(grid, variable, block, chunk)
            try:
                content = self.files.read(name)
                whole = chunks.decode(content, _dtype(variable), _chunk_shape(grid, layout, variable))[0]
            except FileNotFoundError:
                raise ValueError(f"the chunk {name} is gone") from None
            except ValueError as error:
                raise ValueError(f"the chunk {name} is damaged ({error})") from None
            rest = tuple(slice(0, side.stop - side.start) for side in inner)
            arrays[variable.name][(*there, *inner)] = whole[(*there, *rest)]
        return arrays

    def write(self, grid: Grid, layout: Layout, block: Block, arrays: Arrays, receipt: Receipt) -> None:
        """Write the chunks of a block, each whole, then its record."""
        written = {}
        for variable, chunk, inner in _chunks_of(grid, layout, block.policy):
            place: tuple[Any, ...] = (np.newaxis, ..., *inner)
            values = arrays[variable.name][place]
            shape = _chunk_shape(grid, layout, variable)
            if values.shape != shape:
                # At the end of an axis a block is smaller than its chunk.
                part, values = values, np.full(shape, 0 if variable.integer else np.nan, _dtype(variable))
                values[tuple(map(slice, part.shape))] = part
            written[_chunk_name(grid, variable, block, chunk)] = chunks.encode(values)
        self.files.write(written)
        self.files.write({_record(block): json.dumps(asdict(receipt)).encode()})

    # --- All blocks -------------------------------------------------------------------------------------------------

    def recorded(self) -> dict[tuple[int, Counts], Counts]:
        """Return for every block of the lattice that has a record how many of its cells are there."""
        found: dict[tuple[int, Counts], Counts] = {}
        for name in self._records():
            place, _, cells = name.partition("-")
            policy, *where = map(int, place.split("."))
            key = (policy, _three(where))
            # The record of an extended block stands beside the one of the smaller block that it was.
            found[key] = max(_three(map(int, cells.split("."))), found.get(key, (0, 0, 0)), key=np.prod)
        return found

    def _records(self) -> list[str]:
        """Return the names of the records; other programs leave files of their own in folders."""
        return [name for name in self.files.names(_RECORDS) if _RECORD.fullmatch(name)]

    def missing(self, grid: Grid, layout: Layout) -> list[Block]:
        """Return the blocks without a record, in the order of their computation."""
        recorded = self.recorded()
        wanted = (
            block._replace(have=recorded.get((block.policy, block.place), (0, 0, 0)))
            for block in blocks(counts(grid), layout)
        )
        return [block for block in wanted if block.have != block.shape]

    def extended(self, content: str) -> bool:
        """Return whether the grid whose file has this hash was extended."""
        return self.files.exists(grid_file.successor(content))

    def overtaken(self) -> JobError:
        """Return the error of a process whose grid another one extended."""
        return JobError(
            f"The store {self.location!r} was extended by another process meanwhile, so that its blocks are others; "
            "run the command again."
        )

    def record_count(self) -> int:
        """Return the number of records; every block that is computed adds one."""
        return len(self._records())

    def damaged(self, grid: Grid, layout: Layout) -> Iterator[tuple[Block, str]]:
        """Yield the recorded blocks that cannot be read whole, and why."""
        for (policy, place), cells in self.recorded().items():
            block = Block(policy, place, cells, have=cells)
            try:
                self._receipt(_record(block))
                self.load(grid, layout, block)
            except ValueError as error:
                yield block, str(error)

    def unlabel(self) -> None:
        """Remove the index, so that the labels are written again."""
        self.files.remove([_INDEX])

    def forget(self, damaged: Iterable[Block]) -> None:
        """Remove the records of blocks, so that they are computed again."""
        places = {_place(block) for block in damaged}
        self.files.remove(f"{_RECORDS}/{name}" for name in self._records() if name.partition("-")[0] in places)

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all records that are whole, by the time of their end."""
        found = []
        for name in self._records():
            with contextlib.suppress(ValueError):
                found.append(self._receipt(f"{_RECORDS}/{name}"))
        return sorted(found, key=lambda receipt: receipt.finished)

    def _receipt(self, record: str) -> Receipt:
        """Return the receipt in a record; `ValueError` when it is damaged."""
        try:
            return Receipt(**json.loads(self.files.read(record)))
        except FileNotFoundError:
            raise ValueError(f"the record {record} is gone") from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"the record {record} is damaged ({error})") from None

    # --- Labels -----------------------------------------------------------------------------------------------------

    def label(self, grid: Grid, layout: Layout, content: str) -> None:
        """Write what makes the folder a Zarr store of the grid: metadata, coordinates and, last, their index.

        Does nothing when they are those of the grid, whose file has the hash `content`. A reader that goes by the index
        finds the store as it was until the first coordinate is written, and as it will be from the index on.
        """
        if self.labelled() != content:
            metadata, coordinates = _labels(grid, layout)
            index = {_INDEX: chunks.consolidated(metadata)}
            written = metadata | coordinates | index
            announced = {"grid": content, "files": {name: _hash(text) for name, text in written.items()}}
            # Zarr reads the attributes of the group from their own file, whatever the index says.
            coordinates[".zattrs"] = metadata.pop(".zattrs")
            self.files.write({_LABELS: json.dumps(announced).encode()}, metadata, coordinates, index)

    def labelled(self) -> str:
        """Return the hash of the grid whose labels are there, empty while they are being written."""
        announced = self._announced()
        return str(announced["grid"]) if self._is_whole(_INDEX, announced["files"].get(_INDEX)) else ""

    def labels_are_whole(self) -> bool:
        """Return whether the index, the metadata and the coordinates are as they were written, every byte."""
        files = self._announced()["files"]
        return bool(files) and all(self._is_whole(name, wanted) for name, wanted in files.items())

    def _announced(self) -> dict[str, Any]:
        announced: dict[str, Any] = {"grid": "", "files": {}}
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            announced |= json.loads(self.files.read(_LABELS))
        return announced

    def _is_whole(self, name: str, wanted: str | None) -> bool:
        try:
            return _hash(self.files.read(name)) == wanted
        except FileNotFoundError:
            return False


def receipt_of(requests: int, seconds: float, code: str) -> Receipt:
    """Return the receipt of a block that is being written now."""
    return Receipt(requests, seconds, time.time(), code)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _record(block: Block) -> str:
    return f"{_RECORDS}/{_place(block)}-{'.'.join(map(str, block.shape))}"


def _place(block: Block) -> str:
    return ".".join(map(str, (block.policy, *block.place)))


def _three(values: Iterable[int]) -> Counts:
    slack, heterogeneity, seed = values
    return slack, heterogeneity, seed


def _dtype(variable: Variable) -> np.dtype[Any]:
    return np.dtype("<i8" if variable.integer else "<f8")


def _points(grid: Grid) -> tuple[int, ...]:
    return tuple(len(values) for values in grid.between.values())


def _cells_shape(grid: Grid, cells: Counts) -> tuple[int, ...]:
    return (*cells[:2], *_points(grid), cells[2])


def _cells_slices(grid: Grid, cells: Counts) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in _cells_shape(grid, cells))


def _chunk_shape(grid: Grid, layout: Layout, variable: Variable) -> tuple[int, ...]:
    inner = (layout.reason,) if variable.dims == ("reason",) else inner_shape(grid, variable)
    return (1, *_cells_shape(grid, layout[:3]), *inner)


def _chunk_name(grid: Grid, variable: Variable, block: Block, inner: tuple[int, ...]) -> str:
    slack, heterogeneity, seed = block.place
    index = (block.policy, slack, heterogeneity, *(0 for _ in _points(grid)), seed, *inner)
    return f"{variable.name}/{'.'.join(map(str, index))}"


def _chunks_of(
    grid: Grid, layout: Layout, policy: int
) -> Iterator[tuple[Variable, tuple[int, ...], tuple[slice, ...]]]:
    """Yield the chunks of a block of a policy: variable, index and range along the dimensions beside the cell's.

    Of the reasons only the chunks that hold one of the policy's own are written: the others are empty for ever. So are
    the migrations of a policy that makes none, which an extension by one that does brings into the store.
    """
    reasons = grid.policies[policy].reasons(grid.workload.has_adapters)
    own = {grid.reasons.index(reason) // layout.reason for reason in reasons}
    for variable in grid.variables.values():
        if variable.name in MIGRATIONS and grid.policies[policy].name != "migrate":
            continue
        if variable.dims == ("reason",):
            for chunk in sorted(own):
                first, last = chunk * layout.reason, min((chunk + 1) * layout.reason, len(grid.reasons))
                yield variable, (chunk,), (slice(first, last),)
        else:
            inner = inner_shape(grid, variable)
            yield variable, tuple(0 for _ in inner), tuple(slice(0, length) for length in inner)


def _labels(grid: Grid, layout: Layout) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the metadata files and the chunks of the coordinates."""
    coords = labels.coordinates(grid)
    dims = tuple(grid.dims)
    beside = " ".join(name for name in coords if name not in (*dims, "replica", "reason"))
    metadata = chunks.group_metadata({**labels.attributes(grid), "coordinates": beside})
    contents = {}
    for name, (along, values, attrs) in coords.items():
        metadata |= chunks.array_metadata(
            name, values.dtype, values.shape, values.shape, along, attrs, compressed=False
        )
        contents[f"{name}/{'.'.join('0' for _ in values.shape)}"] = chunks.encode(values, compressed=False)
    for name, variable in grid.variables.items():
        metadata |= chunks.array_metadata(
            name,
            _dtype(variable),
            grid.shape + inner_shape(grid, variable),
            _chunk_shape(grid, layout, variable),
            dims + variable.dims,
            variable.attrs,
        )
    return metadata, contents
