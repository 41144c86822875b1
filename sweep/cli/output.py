"""What commands write, and the packages they need for it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweep.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A package that comes with an extra, and that extra.
EXTRAS = {"matplotlib": "plot", "seaborn": "plot", "jinja2": "plot", "h5netcdf": "netcdf", "h5py": "netcdf"}
EXTRAS |= {"torch": "torch", "jsonschema": "torch", "distributed": "cluster", "fsspec": "cluster"}


def missing_extra(package: str) -> click.ClickException:
    """Return the error that says which extra a package comes with."""
    return click.ClickException(f'This needs the package {package}: pip install "sweep[{EXTRAS[package]}]"')


def need(*packages: str) -> None:
    """Stop before computing when a package of an extra is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package)


def check_picture(path: Path) -> None:
    """Raise `InputError` when no picture can be written to `path`."""
    if path.suffix != ".png":
        raise InputError(f"The picture {str(path)!r} must end in .png.")
    if path.exists():
        raise InputError(
            f"The picture {str(path)!r} exists already and is not overwritten; remove it or choose another."
        )
    if not path.parent.is_dir():
        raise InputError(f"The folder {str(path.parent)!r} of the picture does not exist; create it first.")


def save_picture(figure: Figure, path: Path) -> None:
    """Write a picture under another name and rename it, so that no half-written one is left."""
    from sweep.plots.style import save

    part = path.with_name(f".{path.name}.part")
    try:
        save(figure, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
