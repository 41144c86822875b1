"""``grid.json`` and its successors: what a store holds, and whether a command asks for the same."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import sweep
from sweep.blocks import Layout
from sweep.engines import Settings
from sweep.errors import InputError
from sweep.fleet import Fleet
from sweep.grid import Grid
from sweep.policies import Policy
from sweep.provenance import code_hash, machine, rule_hash
from sweep.rule import Rule
from sweep.workload import Workload

NAME = "grid.json"

#: What a store can be extended along.
_GROWS = ("policies", "slack", "heterogeneity", "seeds")

_PARTS = {"code", "engine", "events", "layout", "machine", "reads_slack", "replicas", "requests_per_seed", "rules"}
_PARTS |= {"settings", "speeds", "workload", *_GROWS}


def successor(content: str) -> str:
    """Return the name of the file that says what a store holds after the extension of what a file said before.

    `content` is the hash of that file.
    """
    return f"grid-{content}.json"


def asked(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a description says of the sweep, whoever wrote it."""
    return {name: value for name, value in described.items() if name not in ("sweep_version", "machine")}


def describe(grid: Grid, layout: Layout, requests_per_seed: int) -> dict[str, Any]:
    """Return the content of ``grid.json``."""
    return {
        **_identity(grid),
        "speeds": grid.fleet.speeds.tolist(),
        "layout": layout._asdict(),
        "requests_per_seed": requests_per_seed,
        "reads_slack": [policy.rule.reads_slack for policy in grid.policies],
        "sweep_version": sweep.__version__,
        "machine": machine(),
    }


def parsed(content: bytes) -> dict[str, Any]:
    """Return what the content of a file says; `ValueError` when it is not a description."""
    described = json.loads(content)
    if not isinstance(described, dict):
        raise ValueError("it holds no object")
    missing = sorted(_PARTS - described.keys())
    if missing:
        raise ValueError(f"it says nothing of {missing[0]!r}")
    return described


def _identity(grid: Grid) -> dict[str, Any]:
    """Return what must be the same for a store to be gone on with."""
    return {
        "code": code_hash(),
        "engine": grid.engine,
        "workload": grid.workload.to_dict(),
        "settings": grid.settings.to_dict(),
        "replicas": grid.fleet.replicas,
        "policies": [policy.label for policy in grid.policies],
        "rules": {p.label: rule_hash(p.rule.function) for p in grid.policies if p.rule.function},
        "slack": list(grid.slack),
        "heterogeneity": grid.fleet.heterogeneity.tolist(),
        "seeds": list(grid.seeds),
        "events": None if grid.fleet.events is None else grid.fleet.events.to_dict(),
    }


def grid_of(stored: Mapping[str, Any], *, computes: bool = True) -> Grid:
    """Return the grid that a ``grid.json`` describes.

    Parameters
    ----------
    computes
        Whether blocks will be computed. If not, rules of one's own may be unknown here.

    Raises
    ------
    InputError
        When a rule of one's own is not registered in this process.
    """
    return Grid(
        Workload.from_dict(stored["workload"]),
        Fleet.from_dict({name: stored[name] for name in ("speeds", "heterogeneity", "events") if stored[name]}),
        tuple(
            Policy.parse(label) if computes or label not in stored["rules"] else _stand_in(label)
            for label in stored["policies"]
        ),
        tuple(stored["slack"]),
        tuple(stored["seeds"]),
        stored["engine"],
        Settings.from_dict(stored["settings"]),
    )


def _stand_in(label: str) -> Policy:
    """Return what stands for the policy of an unknown rule: it has the label and the reason, and routes nothing."""
    name = label.partition("(")[0]
    rule = Rule(name, "", ("timeline",), reasons=(name,), signals="", ties="", source="")
    policy = object.__new__(Policy)
    for attribute, value in {"name": label, "parameters": {}, "rule": rule}.items():
        object.__setattr__(policy, attribute, value)
    return policy


def layout_of(stored: Mapping[str, Any]) -> Layout:
    """Return the layout of the blocks, fixed when the store was created."""
    return Layout(**stored["layout"])


def check_same(location: str, stored: Mapping[str, Any], grid: Grid, *, extend: bool = False) -> None:
    """Warn when the machine differs, and refuse a grid, workload or code other than the one stored.

    Parameters
    ----------
    extend
        Leave out what a store can be extended along.

    Raises
    ------
    InputError
        Naming what differs, the value in the store and the value asked for.
    """
    asked = json.loads(json.dumps(_identity(grid) | {"speeds": _speeds_by_level(grid)}))
    known = {**stored, "speeds": _speeds_by_level(stored)}
    both = asked["speeds"].keys() & known["speeds"].keys()
    different = [
        difference
        for name in asked
        if not (extend and name in _GROWS)
        for difference in (
            _differences(name, _of(known[name], both), _of(asked[name], both))
            if name == "speeds"
            else _differences(name, _shared(known[name], asked[name]), _shared(asked[name], known[name]))
            if name == "rules" and extend
            else _differences(name, known[name], asked[name])
        )
    ]
    if different:
        names = {name.partition(".")[0] for name, _, _ in different}
        shown = "; ".join(f"{name} is {old} in the store and {new} here" for name, old, new in different[:3])
        more = f"; and {len(different) - 3} more differences" if len(different) > 3 else ""
        advice = (
            " Add --extend (extend=True) to add to what a finished store holds."
            if names <= {*_GROWS, "rules"}
            else " (code is a hash of the sources that decide numbers.)"
            if "code" in names
            else ""
        )
        raise InputError(
            f"The store {location!r} holds another sweep: {shown}{more}. Choose another path, or ask for the same."
            f"{advice}"
        )
    for name, value in machine().items():
        if stored["machine"].get(name) != value:
            warnings.warn(
                f"The store {location!r} was begun with {name} {stored['machine'].get(name)!r}, this is {value!r}: "
                "the last bits of its blocks may differ.",
                stacklevel=3,
            )


def united(stored: Grid, grid: Grid) -> Grid:
    """Return the stored grid with what `grid` adds to its policies, slacks, heterogeneities and seeds at the ends."""
    levels = stored.fleet.heterogeneity.tolist()
    added = [row for row, level in enumerate(grid.fleet.heterogeneity.tolist()) if level not in levels]
    speeds = np.concatenate([stored.fleet.speeds, grid.fleet.speeds[added]])
    content = {"speeds": speeds, "heterogeneity": [*levels, *grid.fleet.heterogeneity[added].tolist()]}
    fleet = Fleet.from_dict(stored.fleet.to_dict() | content)
    labels = {policy.label for policy in stored.policies}
    return replace(
        stored,
        fleet=fleet,
        policies=(*stored.policies, *(policy for policy in grid.policies if policy.label not in labels)),
        slack=_with(stored.slack, grid.slack),
        seeds=_with(stored.seeds, grid.seeds),
    )


def _with(old: Sequence[Any], new: Iterable[Any]) -> tuple[Any, ...]:
    known = set(old)
    return (*old, *(value for value in new if value not in known))


def _speeds_by_level(content: Grid | Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the speed vector of each heterogeneity, by its name."""
    if isinstance(content, Grid):
        rows = zip(content.fleet.heterogeneity.tolist(), content.fleet.speeds.tolist(), strict=True)
    else:
        rows = zip(content["heterogeneity"], content["speeds"], strict=True)
    return {f"{level!r}": row for level, row in rows}


def _of(content: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: content[name] for name in sorted(names)}


def _shared(content: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return _of(content, content.keys() & other.keys())


def _differences(name: str, old: Any, new: Any) -> list[tuple[str, str, str]]:
    """Return what differs between two values of JSON: the name, and the old and the new value in short."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in dict.fromkeys([*old, *new]):
            found += _differences(f"{name}.{key}", old.get(key), new.get(key))
        return found
    if old == new:
        return []
    # A traffic recorded in full is told apart by its bytes, which nobody wants to read.
    return [(name.replace("workload.parameters.", "workload "), _shown(old), _shown(new))]


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [str(item) for item in value]
        if len(items) <= 6:
            return "[" + ", ".join(items) + "]"
        return f"[{', '.join(items[:3])}, ... {items[-1]}] ({len(items)} values)"
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}...{text[-12:]}"
