"""The result file: one versioned schema, checked when written and when read."""

from __future__ import annotations

import json
import math
import os
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from sweep.errors import InputError

SCHEMA_VERSION = 1
CUDA_PROFILE, CPU_PROFILE = "PAR-CUDA-MECHANISM", "PAR-CPU-MECHANISM"

#: What no run of this module shows, whatever it confirms.
CANNOT_CONCLUDE = (
    "Model KV hits: a prefix hit is a shorter queue of matrix products, not a reuse of keys and values.",
    "Network entry: requests start on the machine that serves them; no client, no connection, no gateway is involved.",
    "Real back-end scheduling: a rank serves one request at a time, without batching, preemption or memory pressure.",
    "Online tail latency: repeats of one short stream on idle devices say nothing of the tail under live traffic.",
)

Document = dict[str, Any]


class Exists(InputError):
    """There is a result of that label already."""


def write(document: Document, path: Path, *, force: bool = False) -> None:
    """Check a result against the schema and put it at `path` whole, by exclusive create.

    Raises
    ------
    Exists
        When a file stands there and is not to be replaced.
    InputError
        When the document does not fit the schema or the folder cannot be written to.
    """
    document = json.loads(json.dumps(_finite(document)))
    check(document, str(path))
    try:
        # Not `exist_ok`: where a file stands in place of the folder, that would raise what a taken name raises.
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
    except FileExistsError:
        # Another rank made it in between, or it is no folder, which shows next.
        pass
    except OSError as error:
        raise InputError(_unwritable(path, error.strerror)) from error
    try:
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        try:
            partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            if force:
                os.replace(partial, path)
            else:
                # Unlike a rename, a link fails when the name is taken, and the name appears with its whole content.
                os.link(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except FileExistsError:
        raise Exists(taken(path)) from None
    except OSError as error:
        raise InputError(_unwritable(path, error.strerror)) from error


def read(path: Path) -> Document:
    """Return the result at `path`, checked against the schema.

    Raises
    ------
    InputError
        When there is no such file, it is not JSON, or it lacks a field or holds a wrong one (named).
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"The result {str(path)!r} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"The result {str(path)!r} is not JSON: {error}.") from None
    check(document, str(path))
    found: Document = document
    return found


def check(document: Any, name: str) -> None:
    """Raise `InputError` naming the first field of a result that is missing or wrong."""
    if isinstance(document, dict) and document.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise InputError(
            f"{name} has schema_version {document['schema_version']!r}; this version of sweep reads {SCHEMA_VERSION}."
        )
    # A field that is missing is said first: a misspelt one is missing and unknown at once.
    order = {"required": 0}
    errors = sorted(_validator().iter_errors(document), key=lambda error: order.get(error.validator, 1))
    for error in errors:
        place = ".".join(map(str, error.absolute_path))
        if error.validator == "required":
            missing = next(field for field in error.validator_value if field not in error.instance)
            raise InputError(f"{name} lacks the field {f'{place}.{missing}' if place else missing!r}.")
        raise InputError(f"{name}, field {place!r}: {error.message}.")


def refuse_place(path: Path, *, force: bool) -> None:
    """Raise `InputError` when a result cannot be put at `path`: it is taken, or its folder cannot be written to."""
    if os.path.exists(path) and not force:
        raise Exists(taken(path))
    folder = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not folder.is_dir():
        raise InputError(_unwritable(path, f"{str(folder)!r} is not a folder"))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(_unwritable(path, f"the folder {str(folder)!r} is closed to writing"))


def _unwritable(path: Path, why: str | None) -> str:
    return f"The result cannot be written to {str(path)!r}: {why}."


def taken(path: Path) -> str:
    """Return the sentence that refuses to overwrite a result."""
    return (
        f"The result {str(path)!r} exists and is not overwritten, so that history is kept; choose another --label, or "
        "give --force."
    )


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator

    text = Path(__file__).with_name("result.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def _finite(value: Any) -> Any:
    """Return JSON-safe values: NaN and infinity, which JSON lacks, become null."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
