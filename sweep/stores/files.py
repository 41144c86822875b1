"""Where a store's files are: a folder, or any fsspec URL. A file appears whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import psutil

from sweep.errors import InputError

_TEMPORARY = "tmp"
_LOCAL = re.compile("^(file|local)://")


class Files(Protocol):
    """The few operations that a store needs; names are relative and use slashes."""

    def read(self, name: str) -> bytes:
        """Return a file's content; `FileNotFoundError` where there is none."""

    def write(self, *groups: Mapping[str, bytes]) -> None:
        """Write files, each whole or not at all and one group after the other, replacing what has their names."""

    def create(self, name: str, content: bytes) -> None:
        """Write a file unless it is there already."""

    def exists(self, name: str) -> bool:
        """Return whether the file is there."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, empty where there is none."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, those that are gone already included."""

    def prepare(self) -> None:
        """Make the place usable for writing, and remove what dead writers left; `OSError` when it is not."""


def files_at(location: str | os.PathLike[str]) -> Files:
    """Return the files at a path or an fsspec URL such as ``s3://bucket/out.zarr``."""
    text = absolute(location)
    return _Objects(text) if is_url(text) else _Folder(Path(text))


def without_scheme(location: str | os.PathLike[str]) -> str:
    """Return a location, as a path where it is a URL of the local file system."""
    return _LOCAL.sub("", os.fspath(location))


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that means the same to workers in other folders: a URL, or an absolute path."""
    text = without_scheme(location)
    return text if is_url(text) else os.path.abspath(text)


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URL of something else than the local file system."""
    return "://" in without_scheme(location)


class _Folder:
    """A folder that every worker sees: files are written under a temporary name and renamed into place.

    What has a name survives a power failure: its content is on the disk before, and the last name of a call, a block's
    record, is on the disk when the call returns. File systems that keep a journal keep the names before it as well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, *groups: Mapping[str, bytes]) -> None:
        contents = {name: content for group in groups for name, content in group.items()}
        temporaries: dict[str, str] = {}
        try:
            for name, content in contents.items():
                temporaries[name] = self._temporary(content)
            # All of them first, and then one after the other: the disk does most of it in one go.
            for temporary in temporaries.values():
                _sync(temporary)
            for name in contents:
                try:
                    os.replace(temporaries[name], self.path / name)
                except FileNotFoundError:
                    (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(temporaries[name], self.path / name)
                del temporaries[name]
        finally:
            for temporary in temporaries.values():
                Path(temporary).unlink(missing_ok=True)
        _sync((self.path / name).parent)

    def create(self, name: str, content: bytes) -> None:
        temporary = self._temporary(content)
        try:
            _sync(temporary)
            os.link(temporary, self.path / name)
            _sync((self.path / name).parent)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def names(self, folder: str = "") -> list[str]:
        try:
            return [entry for entry in os.listdir(self.path / folder) if entry != _TEMPORARY]
        except FileNotFoundError:
            return []

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def prepare(self) -> None:
        (self.path / _TEMPORARY).mkdir(parents=True, exist_ok=True)
        os.unlink(self._temporary(b""))
        for left in (self.path / _TEMPORARY).iterdir():
            if _is_dead(left.name.rpartition("-")[0]):
                left.unlink(missing_ok=True)

    def _temporary(self, content: bytes) -> str:
        path = f"{self.path}/{_TEMPORARY}/{_owner(os.getpid())}-{uuid.uuid4().hex}"
        try:
            with open(path, "xb", buffering=0) as file:
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise
        return path


def _sync(path: str | Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have nothing to sync of a folder.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


@cache
def _owner(pid: int) -> str:
    """Return what names this process for as long as anyone may ask: host, number and start."""
    return f"{socket.gethostname()}-{pid}-{psutil.Process(pid).create_time():.0f}"


def _is_dead(owner: str) -> bool:
    """Return whether the process that wrote a temporary file is gone; of another host, nobody here can say."""
    match = re.fullmatch(re.escape(socket.gethostname()) + r"-(\d+)-(\d+)", owner)
    if match is None:
        return False
    pid, start = map(int, match.groups())
    try:
        process = psutil.Process(pid)
        # A clock that was put right moves the start a little.
        return bool(process.status() == psutil.STATUS_ZOMBIE or abs(process.create_time() - start) > 10)
    except psutil.NoSuchProcess:
        return True


class _Objects:
    """An fsspec file system: an object is written whole, and there is no rename."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec

            self.fs: Any
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise InputError(
                f'The store {url!r} needs a package that is not installed: {error}; pip install "sweep[cluster]" and '
                "the fsspec package of that kind of URL, such as s3fs."
            ) from error
        except ValueError as error:
            raise InputError(f"The store {url!r} cannot be reached: {error}.") from error

    def read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(self._path(name)))

    def write(self, *groups: Mapping[str, bytes]) -> None:
        for group in groups:
            contents = {self._path(name): content for name, content in group.items()}
            self._in_folders(contents, partial(self.fs.pipe, contents))

    def create(self, name: str, content: bytes) -> None:
        if self.exists(name):
            return
        try:
            # Of two who begin at once only one writes it, where the store knows conditional writes.
            path = self._path(name)
            self._in_folders([path], partial(self.fs.pipe_file, path, content, mode="create"))
        except OSError:
            if not self.exists(name):
                self.write({name: content})

    def exists(self, name: str) -> bool:
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self._path(name)))

    def names(self, folder: str = "") -> list[str]:
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def remove(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names if self.exists(name)]
        if paths:
            self.fs.rm(paths)

    def prepare(self) -> None:
        # Objects need no folder and leave no temporaries; whether they can be written shows at the first.
        return

    def _in_folders(self, paths: Iterable[str], write: Callable[[], None]) -> None:
        """Write; where the file system has folders, which object stores have not, and one is missing, make it first."""
        try:
            write()
        except FileNotFoundError:
            for folder in {path.rpartition("/")[0] for path in paths}:
                self.fs.makedirs(folder, exist_ok=True)
            write()

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}".rstrip("/")
