"""What a run was asked to do: the options, checked once and the same on every rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sweep.errors import InputError, number, one_of, whole
from sweep.requests import ServiceModel

MAKESPAN, REPLAY = "makespan", "replay"
#: The name under which the published tool knows the makespan mode.
MODES = {MAKESPAN: MAKESPAN, REPLAY: REPLAY, "replica_routing": MAKESPAN}
DEFAULT_LABEL, DEFAULT_SLACK_MS = "default", 5.0
_ALTERNATIVES = (
    ("unit_ms", "products_per_unit"),
    *(("dataset", name) for name in ("trace", "speeds", "policy", "slack")),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Job:
    """The options of a run; None where the default depends on the device or on the mode.

    ``reading`` holds the options that say how the trace is read and shaped.

    Raises
    ------
    InputError
        For a value out of range, a name that no file can have, or options that exclude each other.
    """

    mode: str | None = None
    label: str = DEFAULT_LABEL
    workload_id: str | None = None
    output: Path | None = None
    force: bool = False
    ranks: int | None = None
    dataset: Path | None = None
    select: tuple[str, ...] = ()
    trace: Path | None = None
    service_model: ServiceModel = field(default_factory=ServiceModel)
    reading: Mapping[str, Any] = field(default_factory=dict)
    requests: int | None = None
    policy: tuple[str, ...] | None = None
    slack: float | None = None
    speeds: tuple[float, ...] | None = None
    compute_dim: int = 768
    dtype: str | None = None
    unit_ms: float | None = None
    products_per_unit: int | None = None
    time_scale: float | None = None
    warmup: int = 2
    repeats: int = 5
    concurrent_sharing: bool = False
    tolerance: float = 0.10
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for what, name in (("label", self.label), ("workload-id", self.workload_id)):
            if name is not None and not _NAME.fullmatch(name):
                raise InputError(f"--{what} {name!r} becomes a file name; use letters, digits, '.', '_' and '-' only.")
        mode = MODES[one_of("mode", self.mode, list(MODES))] if self.mode else None
        object.__setattr__(self, "mode", mode or (REPLAY if self.dataset or self.trace else MAKESPAN))
        if self.ranks is not None and self.ranks < 1:
            raise InputError(f"There are no ranks: --ranks must be at least 1, got {self.ranks}.")
        for name, least in (("compute_dim", 1), ("repeats", 1), ("warmup", 0)):
            whole("--" + name.replace("_", "-"), getattr(self, name), at_least=least)
        if self.slack is not None:
            number("--slack [ms]", self.slack, at_least=0, finite=False)
        number("--tolerance", self.tolerance, above=0, below=1)
        number("--timeout [s]", self.timeout, at_least=1)
        for name in ("unit_ms", "time_scale"):
            if getattr(self, name) is not None:
                number("--" + name.replace("_", "-"), getattr(self, name), above=0)
        for name in ("products_per_unit", "requests"):
            if getattr(self, name) is not None:
                whole("--" + name.replace("_", "-"), getattr(self, name), at_least=1)
        for speed in self.speeds or ():
            number("--speeds", speed, above=0)
        self._check_combination()

    def _check_combination(self) -> None:
        for one, other in _ALTERNATIVES:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
                raise InputError(f"{flags[0]} and {flags[1]} exclude each other; give only one of them.")
        if self.select and self.dataset is None:
            raise InputError("--select chooses points of a Dataset; give it with --dataset.")
        if self.mode == MAKESPAN:
            for name in ("dataset", "trace", "requests", "time_scale"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"--{name.replace('_', '-')} applies only to --mode {REPLAY}: the makespan mode runs its own "
                        "eight requests."
                    )
        else:
            for name in ("unit_ms", "products_per_unit"):
                if getattr(self, name) is not None:
                    raise InputError(f"--{name.replace('_', '-')} applies only to --mode {MAKESPAN}; use --time-scale.")
            if self.concurrent_sharing:
                raise InputError(f"--concurrent-sharing applies only to --mode {MAKESPAN}.")

    @classmethod
    def of(cls, found: dict[str, Any]) -> Job:
        """Return the job that the options given on a command line describe."""
        from sweep.cli.arguments import SERVICE_MODEL, flag, make_service
        from sweep.cli.trace_arguments import READER, SHAPE, refuse_without_trace

        names = {item.name for item in fields(cls)}
        given = {name: value for name, value in found.items() if name in names}
        if "trace" not in found:
            refuse_without_trace(found)
            for option in SERVICE_MODEL:
                if option.name in found:
                    raise InputError(f"{flag(str(option.name))} applies only to --trace.")
        reading = {str(option.name): found[str(option.name)] for option in (*READER, *SHAPE) if option.name in found}
        return cls(**given, service_model=make_service(found), reading=reading)

    @property
    def slack_ms(self) -> float:
        """Return the slack of policies that are not points of a Dataset."""
        return DEFAULT_SLACK_MS if self.slack is None else self.slack

    @property
    def default_workload_id(self) -> str:
        """Return the name of the workload in the result when the user gives none."""
        if self.dataset or self.trace:
            stem = (self.dataset or self.trace or Path()).stem
            return re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-") or "stream"
        return "par-replica-load-routing" if self.mode == MAKESPAN else "par-replica-replay"

    @property
    def result_path(self) -> Path:
        """Return where the result goes: ``--output`` when it names a .json file, else a file in that folder."""
        folder = self.output or Path("reports") / "torch"
        if folder.suffix == ".json":
            return folder
        return folder / f"{self.workload_id or self.default_workload_id}_{self.label}.json"
