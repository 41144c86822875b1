"""One self-contained HTML page and its pictures, and the safe replacement of what an earlier run left."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from sweep.analysis import NOT_SIMULTANEOUS
from sweep.console import Column, label_text
from sweep.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What no result of this package can show, whatever its size.
LIMITS = (
    "Model execution: a request occupies its replica for a service time that is an input. Real time per token depends "
    "on the model, the kernels and what else is in the batch.",
    "KV memory: without caches of blocks of a given capacity, a replica's cache never fills and prefixes match whole "
    "or not at all, so reuse is an upper bound. What running requests hold while they decode is never counted.",
    "The network and the router: routing takes no time. Unless a policy or the fleet says otherwise, every signal is "
    "fresh and exact, nothing fails, and no request is retried, cancelled or moved once routed.",
    "Batching: the timeline engine serves one request at a time per replica, the token engine a fixed number of tokens "
    "per step; neither slows down as a batch grows.",
    "Traffic: clients do not react to waits, and a generated stream has the regularities it was given and no others.",
)


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its PNG file without suffix, and what it shows in words for who cannot see it."""

    name: str
    figure: Figure
    alt: str


@dataclass(frozen=True)
class Section:
    """A part of a report: a title, paragraphs, tables, a picture, and paragraphs after those."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Sequence[Column]] = ()
    picture: Picture | None = None
    after: Sequence[str] = ()


def write_report(
    folder: Path,
    title: str,
    question: str,
    answer: Sequence[str],
    sections: Sequence[Section],
    facts: Mapping[str, str],
) -> None:
    """Write ``report.html`` with its pictures inside, and each picture as a PNG file beside it.

    Parameters
    ----------
    folder
        An existing folder.
    title, question
        The heading, and the question the report answers.
    answer
        Paragraphs that answer it, first on the page.
    sections
        The parts of the page, in order.
    facts
        How the numbers were measured; see `facts_of`.

    Notes
    -----
    The page ends with `LIMITS`. Nothing in the files depends on when or where they were written.
    """
    import jinja2

    from sweep.plots import style

    pictures = {}
    for section in sections:
        if section.picture is not None:
            path = folder / f"{section.picture.name}.png"
            style.save(section.picture.figure, path)
            pictures[section.picture.name] = base64.b64encode(path.read_bytes()).decode("ascii")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sweep", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=title,
        question=question,
        answer=answer,
        sections=sections,
        pictures=pictures,
        facts=facts,
        limits=LIMITS,
    )
    (folder / "report.html").write_text(page, encoding="utf-8")


def facts_of(ds: xr.Dataset, level: float = 0.95) -> dict[str, str]:
    """Return how the numbers of a result were measured, for the end of a report.

    Parameters
    ----------
    ds
        A result of `sweep.run`.
    level
        The confidence level of the intervals in the report.
    """
    from sweep.workload import Workload

    settings = json.loads(ds.attrs["settings"])
    seeds, cells = ds.sizes["seed"], int(np.prod([ds.sizes[dim] for dim in ds["request_count"].dims]))
    facts = {
        "Sample": f"n = {seeds:,} seeds; {cells:,} runs, one per policy, slack, heterogeneity and seed. The requests "
        "of a run depend on each other, so seeds are counted and not requests.",
        "Intervals": f"{100 * level:g} % Student t intervals over seeds; ratios by Fieller's theorem. "
        f"{NOT_SIMULTANEOUS} A cell that was chosen as the best of many looks a little better than it is.",
        "Pairing": "Every policy, slack and heterogeneity sees the same request stream of a seed, so differences are "
        "taken seed by seed.",
        "Engine": str(ds.attrs["engine"]),
        "Workload": repr(Workload.from_dict(json.loads(ds.attrs["workload"]))),
    }
    facts["Policies"] = ", ".join(str(label) for label in ds["policy"].values)
    for name, title in (("slack", "Slack [ms]"), ("heterogeneity", "Heterogeneity")):
        if name in ds.dims:
            facts[title] = ", ".join(label_text(value) for value in ds[name].values)
    if "speed" in ds.coords:
        first, last = (", ".join(f"{speed:.3g}" for speed in ds["speed"].values[index]) for index in (0, -1))
        facts["Speeds"] = first if ds.sizes["heterogeneity"] == 1 else f"from {first} to {last}"
    facts["Settings"] = ", ".join(f"{key} = {value}" for key, value in settings.items() if value is not None)
    facts["Made by"] = f"sweep {ds.attrs['sweep_version']}, grid {ds.attrs['fingerprint'][:12]}"
    return facts


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give an empty folder to write to; at the end all it holds takes the place of what `folder` has of those names.

    Other files of `folder` stay. When the block raises, `folder` is as it was.

    Raises
    ------
    InputError
        When `folder` cannot be a folder.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp()) / "mine"
    >>> with replacing(folder) as new:
    ...     _ = (new / "a.txt").write_text("1")
    >>> [path.name for path in folder.iterdir()]
    ['a.txt']
    """
    created = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    except OSError as error:
        raise InputError(f"Cannot write to the folder {str(folder)!r}: {error.strerror}.") from error
    try:
        yield new
        old = new / ".old"
        old.mkdir()
        for path in sorted(new.iterdir()):
            if path != old:
                target = folder / path.name
                # A folder cannot replace one that is not empty, so that one goes first.
                if target.is_dir() and not target.is_symlink():
                    os.replace(target, old / path.name)
                os.replace(path, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if created:
            with contextlib.suppress(OSError):
                folder.rmdir()
