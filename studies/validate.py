"""What `sweep validate` measured on real devices, against what was predicted.

``python studies/validate.py [options]`` is ``sweep study validate [options]``. It reads every result in reports/torch
and runs nothing, so the options for seeds, workers and a quick version change nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sweep.console import Column, label_text, table
from sweep.errors import InputError
from sweep.report import Picture, Section, replacing, write_report
from sweep.tables import estimate
from sweep.torch_runner import decision, result
from sweep.torch_runner.picture import against_prediction, marks
from sweep.torch_runner.report import failure_text, name_of

RESULTS = Path("reports/torch")
BOUNDS = ("mean", "lower", "upper")


def main(
    output: Path = Path("reports/validate"),
    quick: bool = False,
    seeds: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> None:
    """Print what was compared, and write the picture and the report to `output`."""
    documents = {path.stem: result.read(path) for path in sorted(RESULTS.glob("*.json"))}
    if not documents:
        raise InputError(f"There is no result in {RESULTS}; make one with sweep validate --label NAME.")
    sections = [runs(documents), *filter(None, (points(documents), pairs(documents))), limits(documents)]
    for part in sections[:-1]:
        for columns in part.tables:
            print(f"{part.title}\n\n{table(columns)}\n")
    with replacing(output) as new:
        write_report(
            new,
            "Does the simulator predict what devices do?",
            "The same uneven work, on ranks that compute and wait for real: is a policy faster by the factor that was "
            "predicted?",
            answer(documents),
            sections,
            facts(documents),
        )
    print(f"Wrote {output}: report.html and its pictures.")


def answer(documents: dict[str, result.Document]) -> list[str]:
    """Return the result in a few sentences."""
    found = [document["decision"] for document in documents.values()]
    counts = [f"{found.count(name)} {name.replace('_', ' ')}" for name in dict.fromkeys(found)]
    levels = ", ".join(dict.fromkeys(document["evidence_level"] for document in documents.values()))
    said = [f"Of {len(found)} run{'' if len(found) == 1 else 's'}: {', '.join(counts)}. Evidence: {levels}."]
    if any(document["failure"] for document in documents.values()):
        said.append("A run that failed compares nothing.")
    return said


def runs(documents: dict[str, result.Document]) -> Section:
    """Return what was run, where, and what was decided."""
    columns = [
        Column("run", list(documents), left=True),
        Column("mode", [document["mode"] for document in documents.values()], left=True),
        Column("devices", [devices(document) for document in documents.values()], left=True),
        Column("evidence", [document["evidence_level"] for document in documents.values()], left=True),
        Column("decision", [document["decision"] for document in documents.values()], left=True),
        Column("because", [reason(document) for document in documents.values()], left=True),
    ]
    return Section("The runs", tables=[columns])


def points(documents: dict[str, result.Document]) -> Section | None:
    """Return the judged quantity of every point, and the picture of all comparisons; None where there is none."""
    rows = [(name, item) for name, document in documents.items() for item in shown_points(document)]
    if not rows:
        return None
    drawn = [mark for name, document in documents.items() for mark in marks(name, shown_points(document))]
    paired = [mark for name, document in documents.items() for mark in marks(name, document["prediction"]["pairs"])]
    tolerance = max(float(document["workload"]["tolerance"]) for document in documents.values())
    columns = [
        Column("run", [name for name, _ in rows], left=True),
        Column("point", [name_of(item) for _, item in rows], left=True),
        Column("quantity", [item["quantity"] for _, item in rows], left=True),
        Column("from calibration", [number(item["predicted_from_calibration"]) for _, item in rows], "ms"),
        Column("predicted", [number(item["predicted"]) for _, item in rows], "ms"),
        Column("measured", [spread(item["measured"]) for _, item in rows], "ms"),
        Column("measured / predicted", [spread(item["ratio"]) for _, item in rows]),
        Column("verdict", [item["verdict"] for _, item in rows], left=True),
    ]
    return Section(
        "Points",
        [
            "A replay is predicted anew from the pace that each rank achieved and the whole products it ran; the "
            "prediction from the calibration stands beside it and is not judged."
        ],
        [columns],
        Picture(
            "predicted",
            against_prediction(drawn, paired, tolerance),
            "Measured against predicted values, with intervals over repeats and the line of equality",
        ),
    )


def pairs(documents: dict[str, result.Document]) -> Section | None:
    """Return the ratios of strategies; None where there is none."""
    rows = [(name, item) for name, document in documents.items() for item in document["prediction"]["pairs"]]
    if not rows:
        return None
    columns = [
        Column("run", [name for name, _ in rows], left=True),
        Column("pair", [name_of(item) for _, item in rows], left=True),
        Column("quantity", [item["quantity"] for _, item in rows], left=True),
        Column("predicted", [number(item["predicted"]) for _, item in rows]),
        Column("measured", [spread(item["measured"]) for _, item in rows]),
        Column("verdict", [item["verdict"] for _, item in rows], left=True),
    ]
    return Section("Pairs of policies", ["How many times as long the first takes as the second."], [columns])


def limits(documents: dict[str, result.Document]) -> Section:
    """Return what the results say of themselves that they do not show."""
    said = dict.fromkeys(text for document in documents.values() for text in document["cannot_conclude"])
    return Section("What these runs do not show", list(said))


def facts(documents: dict[str, result.Document]) -> dict[str, str]:
    """Return how the numbers were measured."""
    found = {
        "Intervals": f"{100 * decision.LEVEL:g} % Student t intervals over repeats; ratios by Fieller's theorem.",
        "Decision": "Confirmed when the whole interval lies within the tolerance of the prediction, not confirmed when "
        "all of it lies outside, else inconclusive; so is what was measured on processor ranks that got less than "
        f"{100 * decision.LEAST_CPU_SHARE:g} % of their cores.",
    }
    for name, document in documents.items():
        work, hardware = document["workload"], document["hardware"]
        found[name] = (
            f"{work['request_count']} requests, {work['repeats']} repeats after {work['warmup']}, products of "
            f"{work['compute_dim']} x {work['compute_dim']} {work['dtype']}, torch {hardware['torch']}, "
            f"{hardware['backend']}, {hardware['host_cores']} cores of {hardware['host_cpu']}"
        )
    return found


def shown_points(document: result.Document) -> list[dict[str, Any]]:
    """Return the points of a result in the quantity that its mode is about."""
    quantity = "makespan_ms" if document["mode"] == "makespan" else "p95_queue_wait_ms"
    return [item for item in document["prediction"]["points"] if item["quantity"] == quantity]


def devices(document: result.Document) -> str:
    """Return the devices of a run in few words."""
    names = document["hardware"]["device_names"]
    kinds = dict.fromkeys(name.partition(" (")[0] for name in names)
    return ", ".join(f"{sum(name.startswith(kind) for name in names)} x {kind}" for kind in kinds) or "-"


def reason(document: result.Document) -> str:
    """Return why a run was not confirmed, - where it was."""
    if document["failure"]:
        return failure_text(document["failure"])
    return "; ".join(document["decision_reasons"]) or "-"


def number(value: float | None) -> str:
    """Return a number, - where there is none."""
    return "-" if value is None else label_text(float(f"{value:.4g}"))


def spread(found: dict[str, Any]) -> str:
    """Return an estimate with its interval."""
    return estimate(*(float("nan") if found[name] is None else found[name] for name in BOUNDS))


if __name__ == "__main__":
    from sweep.cli.program import main as command

    command(["study", "validate", *sys.argv[1:]])
