"""Results on disk: Datasets written whole, and stores of blocks that can be gone on with, extended and repaired."""

from sweep.stores.block_store import BlockStore
from sweep.stores.datasets import check_output, open_dataset, write
from sweep.stores.lifecycle import (
    Opened,
    block_text,
    check_place,
    done_blocks,
    label,
    opened,
    prepare,
    status,
    stored_grid,
    verify,
)

__all__ = [
    "BlockStore",
    "Opened",
    "block_text",
    "check_output",
    "check_place",
    "done_blocks",
    "label",
    "open_dataset",
    "opened",
    "prepare",
    "status",
    "stored_grid",
    "verify",
    "write",
]
