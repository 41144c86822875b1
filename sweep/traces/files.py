"""Bytes of a trace: plain, gzip or zstd, told apart by how they begin, and read as text with errors that say where."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sweep.errors import InputError
from sweep.traces.errors import TraceError

_GZIP, _ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
_BOM = b"\xef\xbb\xbf"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed; what goes wrong with it is a `TraceError`."""
    try:
        with contextlib.ExitStack() as stack:
            raw = stack.enter_context(path.open("rb"))
            start = raw.read(4)
            raw.seek(0)
            if start[:2] == _GZIP:
                yield io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=raw)))
            elif start == _ZSTD:
                yield io.BufferedReader(stack.enter_context(_zstd(raw)))
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"is not a whole gzip file ({reason_of(error)}).", path) from error
    except (OSError, ValueError) as error:
        if isinstance(error, (InputError, UnicodeDecodeError)):
            raise
        if isinstance(error, io.UnsupportedOperation):
            raise TraceError("must be a file that can be read twice, not a pipe.", path) from error
        raise TraceError(f"cannot be read: {reason_of(error)}.", path) from error


def reason_of(error: Exception) -> str:
    """Return what a library says is wrong, without the punctuation that it ends with."""
    return (getattr(error, "strerror", None) or str(error)).rstrip(" .?!")


def _zstd(raw: IO[bytes]) -> Any:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise needs("zstandard", "a file compressed with zstd") from None

    class Reader(io.RawIOBase):
        # zstandard's own reader ends silently where a frame is cut off.
        def __init__(self) -> None:
            self._frame: Any = None
            self._packed = self._left = b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            while not self._left:
                self._packed = self._packed or raw.read(2**17)
                if not self._packed:
                    if self._frame is not None:
                        raise OSError("it is not a whole zstd file")
                    return 0
                self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    self._left = self._frame.decompress(self._packed)
                except zstandard.ZstdError as error:
                    raise OSError(f"it is not a zstd file ({error})") from error
                self._packed = self._frame.unused_data
                if self._frame.eof:
                    self._frame = None
            count = min(len(buffer), len(self._left))
            buffer[:count] = self._left[:count]
            self._left = self._left[count:]
            return count

    return Reader()


def needs(package: str, what: str) -> InputError:
    """Return the error for a package of the extra ``traces`` that is not installed."""
    return InputError(f'{what[:1].upper()}{what[1:]} needs the package {package}: pip install "sweep[traces]".')


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, stripped, each with its number; a byte order mark is dropped."""
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                text = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                raise TraceError(f"is not a text file in UTF-8 ({error.reason}).", path, number) from error
            if text:
                yield number, text


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with one JSON object per line, each with the number of its line."""
    for number, text in text_lines(path):
        yield number, json_object(text, path, number)


def json_object(text: str, path: Path, line: int | None) -> dict[str, Any]:
    """Return the JSON object that a text is."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        at = line if line is not None else error.lineno
        raise TraceError(
            f"is not one JSON object ({error.msg} at character {error.colno}).", path, at, value=text[:60]
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise TraceError(f"is not JSON that can be read ({error}).", path, line, value=text[:60]) from error
    if not isinstance(found, dict):
        raise TraceError(f"is not a JSON object, but {text[:60]!r}.", path, line, value=found)
    return found


def first_line(path: Path) -> tuple[bytes, str]:
    """Return the first four bytes of a file as stored, and its first line that is not blank ('' if there is none)."""
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot be read: {reason_of(error)}.", path) from error
    if start == PARQUET:
        return start, ""
    return start, next((text for _, text in text_lines(path)), "")
