"""The result of a run as it grows: what is known before, the failure if there is one, the rows and the decision."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from sweep.console import Column, label_text, table
from sweep.errors import InputError
from sweep.tables import estimate
from sweep.torch_runner import decision, result
from sweep.torch_runner.devices import CPU_EVIDENCE, unknown_hardware
from sweep.torch_runner.job import Job
from sweep.torch_runner.watch import Failure, run_id

#: Set by `sweep validate`, which says itself in one sentence what failed: the file for what stands in no result.
QUIET = "SWEEP_VALIDATE"


class Report:
    """The document of this run, filled in step by step so that a failure at any time finds it whole.

    Parameters
    ----------
    job
        What was asked for.
    ranks
        How many there are.
    """

    def __init__(self, job: Job, ranks: int) -> None:
        self.path: Path = job.result_path
        self.force = job.force
        self.document: result.Document = {
            "schema_version": result.SCHEMA_VERSION,
            "run_id": run_id(),
            "label": job.label,
            "mode": job.mode,
            "workload": {
                "id": job.workload_id or job.default_workload_id,
                "compute_dim": job.compute_dim,
                "dtype": job.dtype,
                "warmup": job.warmup,
                "repeats": job.repeats,
                "tolerance": job.tolerance,
                "timeout_s": job.timeout,
                "concurrent_sharing": job.concurrent_sharing,
                "request_count": 0,
                "speeds": [],
            },
            "environment_profile": result.CPU_PROFILE,
            "hardware": unknown_hardware(ranks),
            "calibration": None,
            "metrics": {"rows": []},
            "prediction": {"points": [], "pairs": []},
            "evidence_level": CPU_EVIDENCE,
            "failure": None,
            "decision": decision.NOT_COMPARED,
            "decision_reasons": [],
            "cannot_conclude": list(result.CANNOT_CONCLUDE),
        }

    def refuse_if_taken(self) -> None:
        """Raise `InputError` when a result of this label exists and is not to be replaced, or none can be written."""
        result.refuse_place(self.path, force=self.force)

    def decide(self, verdicts: list[decision.Verdict]) -> None:
        """Set the decision that follows from the verdicts."""
        self.document["decision"], self.document["decision_reasons"] = decision.overall(verdicts)

    def write(self) -> None:
        """Write the result."""
        result.write(self.document, self.path, force=self.force)

    def write_failure(self, failure: Failure) -> str:
        """Write that the run failed, unless another rank of it has; return a sentence for the user."""
        document = self.document | {
            "metrics": {"rows": []},
            "prediction": {"points": [], "pairs": []},
            "failure": failure._asdict(),
            "decision": decision.NOT_COMPARED,
            "decision_reasons": [failure_text(failure._asdict())],
        }
        said = failure_text(failure._asdict())
        quiet = os.environ.get(QUIET)
        if self._is_written():
            return ""
        try:
            result.write(document, self.path, force=self.force)
        except Exception as error:
            if self._is_written():
                return ""
            said = f"{said} {error}"
            if quiet:
                # The first rank's sentence stands.
                with contextlib.suppress(FileExistsError), open(quiet, "x", encoding="utf-8") as file:
                    file.write(said)
                return ""
            return said
        return "" if quiet else f"{said} Wrote {self.path}."

    def _is_written(self) -> bool:
        """Return whether a result of this very run is there."""
        with contextlib.suppress(InputError):
            return bool(result.read(self.path)["run_id"] == self.document["run_id"])
        return False


def failure_text(failure: dict[str, Any]) -> str:
    """Return what failed as a sentence."""
    where = "The run failed" if failure["rank"] is None else f"Rank {failure['rank']} failed"
    return f"{where}: {failure['what'].rstrip('.')}."


def text_of(document: result.Document) -> str:
    """Return a result as tables and its decision as a sentence."""
    rows = document["metrics"]["rows"]
    columns = [Column("strategy", [name_of(row) for row in rows], left=True)]
    columns.append(Column("makespan", [f"{row['max_rank_makespan_ms']:.2f}" for row in rows], "ms"))
    shares = [_cpu_share(row) for row in rows]
    if any(shares):
        columns.append(Column("least share of a core", shares))
    parts = [table(columns)]
    compared: list[dict[str, Any]] = [
        point for point in document["prediction"]["points"] if point["verdict"] != decision.NOT_JUDGED
    ]
    compared += document["prediction"]["pairs"]
    if compared:
        names = [name_of(item) for item in compared]
        predicted = [label_text(_number(item["predicted"])) for item in compared]
        found = [item["measured"] for item in compared]
        parts.append(
            table(
                [
                    Column("compared", names, left=True),
                    Column("quantity", [item["quantity"] for item in compared], left=True),
                    Column("predicted", predicted),
                    Column("measured", [estimate(*(_number(m[k]) for k in ("mean", "lower", "upper"))) for m in found]),
                    Column("verdict", [item["verdict"] for item in compared], left=True),
                ]
            )
        )
    said = document["decision"].replace("_", " ").capitalize()
    reasons = "; ".join(document["decision_reasons"])
    parts.append(f"{said}{': ' + reasons if reasons else ''} ({document['evidence_level']}).")
    return "\n\n".join(parts)


def name_of(row: dict[str, Any]) -> str:
    """Return the name of a row or a comparison: the strategy, what it is compared with, how it was routed."""
    name = f"{row['against']} / {row['strategy']}" if "against" in row else str(row["strategy"])
    if row.get("measured_with"):
        return f"{name} (run as {row['measured_with']})"
    return f"{name}, {row['routing']}" if "routing" in row else name


def _cpu_share(row: dict[str, Any]) -> str:
    cpu, wall = row["repeats"].get("rank_cpu_ms"), row["repeats"].get("rank_busy_ms", row["repeats"]["rank_elapsed_ms"])
    if cpu is None:
        return ""
    shares = [sum(c) / sum(w) for c, w in zip(zip(*cpu, strict=True), zip(*wall, strict=True), strict=True) if sum(w)]
    return f"{min(shares):.2f}" if shares else ""


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
