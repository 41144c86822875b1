"""A store as a whole: created, gone on with, extended, asked how far it is, and verified."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sweep.blocks import Block, Layout, blocks, layout_on_disk, requests_per_seed
from sweep.errors import InputError
from sweep.grid import Grid
from sweep.stores import grid_file
from sweep.stores.block_store import BlockStore
from sweep.stores.files import is_url, without_scheme

# A pause longer than this, and than ten blocks, ends the stretch of work over which a rate is taken.
_PAUSE_S = 60.0


def check_place(location: str | os.PathLike[str]) -> None:
    """Raise `InputError` when nothing can be stored there: a foreign folder, or one whose parent does not exist."""
    text = os.fspath(location)
    if not text.endswith(".zarr"):
        raise InputError(f"The store {text!r} must end in .zarr.")
    path = Path(without_scheme(text))
    if not is_url(text) and not path.absolute().parent.is_dir():
        raise InputError(f"The folder {str(path.parent)!r} of the store {text!r} does not exist; create it first.")
    if not is_url(text) and path.exists() and not path.is_dir():
        raise InputError(f"The store {text!r} is a file; remove it or choose another path.")
    names = BlockStore(text).files.names()
    if names and grid_file.NAME not in names:
        raise InputError(
            f"The folder {text!r} exists already, holds {sorted(names)[0]!r} and is not a store of sweep; remove it or "
            "choose another path."
        )


class Stored(NamedTuple):
    """What a store holds, as one of its grid files describes it, and the hash of that file."""

    described: dict[str, Any]
    content: str


class Opened(NamedTuple):
    """The grid and layout of a store, and the hash of the file that they were read from."""

    grid: Grid
    layout: Layout
    content: str


def stored_grid(kept: BlockStore, grid: Grid, block_seeds: int | None, *, extend: bool) -> Opened:
    """Make the store of a grid, or go on with the one that is there.

    Returns
    -------
    The grid and layout to compute: those of the store, which with `extend` now hold what `grid` adds.

    Raises
    ------
    InputError
        For a foreign folder; a store of another grid, workload or code; a store to extend that is not finished.
    """
    check_place(kept.location)
    if not kept.files.exists(grid_file.NAME):
        if extend:
            raise InputError(f"There is no store at {kept.location!r} to extend; leave out --extend (extend=True).")
        described = grid_file.describe(grid, layout_on_disk(grid, block_seeds), requests_per_seed(grid))
        prepare(kept)
        kept.files.create(grid_file.NAME, json.dumps(described).encode())
    stored = read(kept)
    grid_file.check_same(kept.location, stored.described, grid, extend=extend)
    layout = grid_file.layout_of(stored.described)
    if block_seeds not in (None, layout.seed):
        raise InputError(
            f"block_seeds is {layout.seed} in the store {kept.location!r} and {block_seeds} here; the blocks of a "
            "store are fixed, so leave it out."
        )
    if extend:
        grid, stored = _extended(kept, stored, grid, layout)
    held = Opened(grid, layout, stored.content)
    label(kept, held)
    return held


def label(kept: BlockStore, held: Opened) -> None:
    """Write the labels of a grid where they are not there; `JobError` when it was extended meanwhile."""
    if not kept.extended(held.content):
        kept.label(*held)
    if kept.extended(held.content):
        # Whose labels came last is open. Who extended the store looks as well when it is done.
        newest = read(kept)
        with contextlib.suppress(InputError):
            kept.label(grid_file.grid_of(newest.described), held.layout, newest.content)
        raise kept.overtaken()


def _extended(kept: BlockStore, stored: Stored, grid: Grid, layout: Layout) -> tuple[Grid, Stored]:
    old = grid_file.grid_of(stored.described)
    new = grid_file.united(old, grid)
    if new.dims == old.dims:
        return old, stored
    missing = kept.missing(old, layout)
    if missing:
        raise InputError(
            f"The store {kept.location!r} misses {len(missing)} blocks; finish it with its own command, then extend it."
        )
    prepare(kept)
    described = json.dumps(grid_file.describe(new, layout, requests_per_seed(new))).encode()
    # Of two who extend the same grid, one creates its successor; nothing that was read before is ever overwritten.
    kept.files.create(grid_file.successor(stored.content), described)
    found = _parsed(kept, grid_file.successor(stored.content))
    if grid_file.asked(found.described) != grid_file.asked(json.loads(described)):
        raise kept.overtaken()
    return new, found


def opened(kept: BlockStore) -> Opened:
    """Return grid and layout of a store, rebuilt from what it says of itself.

    Raises
    ------
    InputError
        When there is no store; when other code made it; when a rule of one's own is not registered.
    """
    stored = read(kept)
    grid = grid_file.grid_of(stored.described)
    grid_file.check_same(kept.location, stored.described, grid)
    return Opened(grid, grid_file.layout_of(stored.described), stored.content)


def prepare(kept: BlockStore) -> None:
    """Make sure that a store can be written, and remove what dead writers left; `OSError` when it cannot."""
    try:
        kept.files.prepare()
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: the store {kept.location!r} cannot be written") from error


def read(kept: BlockStore) -> Stored:
    """Return what a store holds: the last of its grid files, each the successor of the one before.

    Raises
    ------
    InputError
        When there is none, or one is damaged.
    """
    *_, newest = _history(kept)
    return newest


def shown(kept: BlockStore) -> Stored:
    """Return what a store holds by the labels that are there, which may be those from before an extension.

    Raises
    ------
    InputError
        When labels are being written, or were not written to the end.
    """
    content = kept.labelled()
    for stored in _history(kept):
        if stored.content == content:
            return stored
    raise InputError(
        f"The store {kept.location!r} is just being begun or extended, or was cut short while it was; run its command "
        "again."
    )


def _history(kept: BlockStore) -> Iterator[Stored]:
    """Yield what a store held, from its begin to now."""
    name = grid_file.NAME
    try:
        while True:
            stored = _parsed(kept, name)
            yield stored
            if not kept.extended(stored.content):
                return
            name = grid_file.successor(stored.content)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"There is no store of sweep at {kept.location!r}.") from None


def _parsed(kept: BlockStore, name: str) -> Stored:
    content = kept.files.read(name)
    try:
        return Stored(grid_file.parsed(content), sha256(content).hexdigest())
    except ValueError as error:
        raise InputError(f"The file {name} of the store {kept.location!r} is damaged: {error}.") from error


@dataclass(frozen=True)
class Status:
    """How far a store is: its blocks, its simulated requests, and how fast they came in the last stretch of work."""

    blocks: int
    done: int
    requests: int
    requests_done: int
    requests_per_s: float

    @property
    def complete(self) -> bool:
        """Return whether nothing is missing."""
        return self.done == self.blocks

    @property
    def seconds_left(self) -> float:
        """Return how long the rest takes at the same rate; NaN when no rate is known."""
        left = self.requests - self.requests_done
        return left / self.requests_per_s if self.requests_per_s > 0 else float("nan")


def done_blocks(location: str | os.PathLike[str]) -> int:
    """Return how many blocks were computed for a location, 0 where there is no store."""
    return BlockStore(os.fspath(location)).record_count()


def status(location: str | os.PathLike[str]) -> Status:
    """Return how far a store is; `InputError` when there is none."""
    kept = BlockStore(os.fspath(location))
    stored = read(kept).described
    wanted = list(blocks(shape_of(stored), grid_file.layout_of(stored)))
    recorded = kept.recorded()
    done = [block for block in wanted if recorded.get((block.policy, block.place)) == block.shape]
    receipts = kept.receipts()
    first = len(receipts) - 1
    while first > 0:
        before, after = receipts[first - 1], receipts[first]
        if after.finished - before.finished > max(_PAUSE_S, 10 * after.seconds):
            break
        first -= 1
    stretch = receipts[max(first, 0) :]
    rate = 0.0
    if stretch:
        took = stretch[-1].finished - stretch[0].finished + stretch[0].seconds
        rate = sum(receipt.requests for receipt in stretch) / took if took > 0 else 0.0
    return Status(len(wanted), len(done), _requests(stored, wanted), _requests(stored, done), rate)


def shape_of(stored: Mapping[str, Any]) -> tuple[int, tuple[int, int, int]]:
    """Return the numbers of policies, and of slacks, heterogeneities and seeds of a ``grid.json``."""
    return len(stored["policies"]), (len(stored["slack"]), len(stored["heterogeneity"]), len(stored["seeds"]))


def _requests(stored: Mapping[str, Any], which: list[Block]) -> int:
    """Return the simulated requests of blocks: a policy that reads no slack is simulated for one."""
    cells = sum(
        (block.shape[0] if stored["reads_slack"][block.policy] else 1) * block.shape[1] * block.shape[2]
        for block in which
    )
    return cells * int(stored["requests_per_seed"])


def verify(location: str | os.PathLike[str]) -> list[str]:
    """Read every block of a store, and return a sentence for each that is damaged or missing, and for its labels.

    Needs neither the code that made the blocks nor rules of one's own.
    """
    kept = BlockStore(os.fspath(location))
    stored = read(kept)
    grid, layout = grid_file.grid_of(stored.described, computes=False), grid_file.layout_of(stored.described)
    found = [f"damaged: {block_text(grid, layout, block)}: {why}" for block, why in kept.damaged(grid, layout)]
    found += [
        f"{'incomplete' if any(block.have) else 'missing'}: {block_text(grid, layout, block)}"
        for block in kept.missing(grid, layout)
    ]
    if kept.labelled() != stored.content or not kept.labels_are_whole():
        found.append("damaged: the metadata or the coordinates")
    return found


def block_text(grid: Grid, layout: Layout, block: Block) -> str:
    """Return the cells of a block in words."""
    slack, heterogeneity, seed = block.ranges(layout)
    sides: list[tuple[str, tuple[float, ...]]] = [("seed", tuple(grid.seeds[seed]))]
    if slack.stop - slack.start < len(grid.slack):
        sides.append(("slack", grid.slack[slack]))
    if heterogeneity.stop - heterogeneity.start < len(grid.fleet.heterogeneity):
        sides.append(("heterogeneity", tuple(grid.fleet.heterogeneity[heterogeneity].tolist())))
    spans = [
        f"{name} {side[0]:.17g}" if len(side) == 1 else f"{name} {side[0]:.17g} to {side[-1]:.17g}"
        for name, side in sides
    ]
    return ", ".join([grid.policies[block.policy].label, *spans])
