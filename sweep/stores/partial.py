"""A store that is not finished, as a Dataset: what is missing reads as NaN, and `computed` says what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core.indexing import ExplicitIndexer, IndexingSupport, LazilyIndexedArray, explicit_indexing_adapter

from sweep.blocks import blocks
from sweep.stores.block_store import BlockStore
from sweep.stores.grid_file import layout_of
from sweep.stores.lifecycle import shape_of

_AXES = ("policy", "slack", "heterogeneity", "seed")


class _Masked(BackendArray):
    """A lazy array of which the cells that are not there read as NaN."""

    def __init__(self, variable: xr.Variable, there: xr.Variable) -> None:
        self.variable, self.there = variable, there
        self.shape, self.dtype = variable.shape, np.dtype(np.float64)

    def __getitem__(self, key: ExplicitIndexer) -> Any:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> Any:
        along = dict(zip(self.variable.dims, key, strict=True))
        found = self.variable.isel(along)
        there = self.there.isel({dim: along[dim] for dim in _AXES})
        # The axes of the cells come in the same order; those of list parameters, replicas and reasons stand between.
        beside = [axis for axis, dim in enumerate(found.dims) if dim not in there.dims]
        return np.where(np.expand_dims(there.values, beside), found.values, np.nan)


def masked(ds: xr.Dataset, kept: BlockStore, stored: Mapping[str, Any]) -> xr.Dataset:
    """Return the Dataset of a store as it is when finished, else with `computed` and NaN for missing cells.

    `stored` describes the grid that the Dataset has the labels of.
    """
    shape = shape_of(stored)
    layout = layout_of(stored)
    recorded = kept.recorded()
    # Of a store that was extended since, a block may hold more.
    found = [
        (block, tuple(map(min, block.shape, recorded.get((block.policy, block.place), (0, 0, 0)))))
        for block in blocks(shape, layout)
    ]
    if all(cells == block.shape for block, cells in found):
        return ds
    there = np.zeros((shape[0], *shape[1]), np.bool_)
    for block, (low, middle, high) in found:
        there[(block.policy, *block._replace(shape=(low, middle, high)).ranges(layout))] = True
    mask = xr.Variable(_AXES, there)
    lazy = {
        name: xr.Variable(ds[name].dims, LazilyIndexedArray(_Masked(ds[name].variable, mask)), ds[name].attrs)
        for name in ds.data_vars
    }
    computed = mask.all(("slack", "heterogeneity"))
    computed.attrs = {
        "long_name": "computed",
        "comment": "Whether all cells of a policy and seed are there; NaN is also a legal result.",
    }
    return ds.assign(lazy).assign_coords(computed=computed)
