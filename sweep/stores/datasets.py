"""Datasets on disk: written whole or not at all, and read back lazily."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import xarray as xr

from sweep.errors import InputError
from sweep.stores.block_store import BlockStore
from sweep.stores.files import is_url, without_scheme
from sweep.stores.grid_file import NAME
from sweep.stores.lifecycle import shown
from sweep.stores.partial import masked

_SUFFIXES = (".zarr", ".nc")


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return the path when a Dataset can be written there.

    Raises
    ------
    InputError
        For a suffix other than ``.zarr`` and ``.nc``, a path that exists, or a parent folder that does not.
    """
    target = Path(path)
    if target.suffix not in _SUFFIXES:
        raise InputError(f"The output {str(path)!r} must end in .zarr or .nc.")
    _check_extra(target)
    if target.exists():
        raise InputError(
            f"The output {str(path)!r} exists already and is not overwritten; remove it or choose another."
        )
    if not target.parent.is_dir():
        raise InputError(f"The folder {str(target.parent)!r} of the output does not exist; create it first.")
    return target


def write(ds: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Write a Dataset to a new ``.zarr`` or ``.nc`` path, which appears only when it is whole.

    Parameters
    ----------
    ds
        What `sweep.run` returned.
    path
        Must not exist. ``.nc`` needs the extra ``netcdf``.

    Raises
    ------
    InputError
        See `check_output`.

    Examples
    --------
    >>> import sweep, tempfile, pathlib
    >>> work = sweep.Workload.poisson(requests=100, utilisation=0.8, replicas=2)
    >>> ds = sweep.run(work, sweep.Fleet.fixed([1.0, 0.5]), policy="queue_aware", seed=4)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "out.zarr"
    >>> sweep.write(ds, path)
    >>> sweep.open(path).identical(ds)
    True
    """
    target = check_output(path)
    replace(ds, target)


def replace(ds: xr.Dataset, target: Path) -> None:
    """Write a Dataset beside `target`, then put it in its place, whatever stood there."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        if target.suffix == ".zarr":
            # Format 2 holds strings without a warning on every Python that is supported.
            ds.to_zarr(partial, mode="w-", zarr_format=2, consolidated=True)
        else:
            ds.to_netcdf(partial, engine="h5netcdf")
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(partial, target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


def open_dataset(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a Dataset that `write` or `sweep.run` left, lazily.

    Parameters
    ----------
    path
        Ends in ``.zarr`` or ``.nc``; or the fsspec URL of a store that `sweep.run` was given.

    Returns
    -------
    The Dataset. Of a store that is not finished, missing cells are NaN (integers become floats) and the boolean
    coordinate ``computed`` says for every policy and seed whether all of its cells are there.

    Raises
    ------
    InputError
        When there is no such path, or it ends in neither ``.zarr`` nor ``.nc``; in the moment in which a store is
        begun or extended, and after a cut in that moment, until its command is run again.
    """
    text = without_scheme(path)
    if not text.endswith(_SUFFIXES):
        raise InputError(f"A Dataset ends in .zarr or .nc, got {text!r}.")
    if not is_url(text) and not Path(text).exists():
        raise InputError(f"There is no Dataset at {text!r}.")
    if text.endswith(".nc"):
        _check_extra(Path(text))
        return _opened(text, "h5netcdf")
    kept = BlockStore(text)
    if kept.files.exists(NAME):
        stored = shown(kept)
        try:
            # The coordinates at once: an extension replaces them.
            ds = _opened(text, "zarr")
            ds = ds.assign_coords(ds.coords.to_dataset().load().coords)
        except Exception:
            shown(kept)
            raise
        return masked(ds, kept, stored.described)
    if is_url(text):
        raise InputError(f"There is no store of sweep at {text!r}.")
    return _opened(text, "zarr")


def _opened(path: str, engine: str) -> xr.Dataset:
    ds: xr.Dataset = xr.open_dataset(path, engine=engine)
    return ds


def _check_extra(path: Path) -> None:
    if path.suffix == ".nc":
        try:
            import h5netcdf  # noqa: F401
        except ImportError:
            raise InputError(f'{path.name} is netCDF, which needs an extra: pip install "sweep[netcdf]".') from None
