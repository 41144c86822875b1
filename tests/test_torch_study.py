"""The study of what was measured: its tables, its picture and its page, from results that are there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from measured_runs import document

from sweep.errors import InputError
from sweep.torch_runner import result
from sweep.torch_runner.picture import against_prediction, marks
from sweep.torch_runner.watch import Failure

spec = importlib.util.spec_from_file_location("validate", Path(__file__).parents[1] / "studies" / "validate.py")
assert spec is not None and spec.loader is not None
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A working directory with three results: confirmed, on a busy host, failed."""
    monkeypatch.chdir(tmp_path)
    for label, share in (("quiet", 1.0), ("busy", 0.6)):
        document(label=label, share=share).write()
    document(label="broken").write_failure(Failure(1, "the process died (pid 7)"))
    return tmp_path / "reports" / "torch"


def test_study__tables_picture_and_page(results, capsys):
    study.main(Path("reports/validate"))
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.startswith("par-replica")}
    assert len(rows) == 3
    runs = printed.partition("Points")[0]
    assert "confirmed" in runs
    assert "host_busy: rank 0 got 0.60 of its core" in runs
    assert "Rank 1 failed: the process died (pid 7)." in runs
    assert "1.529" in printed.partition("Pairs of policies")[2]
    found = {path.name for path in Path("reports/validate").iterdir()}
    assert found == {"report.html", "predicted.png"}
    page = Path("reports/validate/report.html").read_text(encoding="utf-8")
    assert "Of 3 runs: 1 not compared, 1 inconclusive, 1 confirmed. Evidence: cpu_mechanism." in page
    assert all(text.partition(":")[0] in page for text in result.CANNOT_CONCLUDE)


def test_study__only_failures_leave_no_picture(results, capsys):
    for path in results.glob("*.json"):
        if "broken" not in path.name:
            path.unlink()
    study.main(Path("reports/validate"))
    assert "Points" not in capsys.readouterr().out
    assert [path.name for path in Path("reports/validate").iterdir()] == ["report.html"]


def test_study__says_how_to_make_a_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="sweep validate --label"):
        study.main(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_study__names_the_field_that_a_result_lacks(results):
    path = results / "par-replica-load-routing_quiet.json"
    path.write_text(path.read_text().replace('"decision":', '"verdict":'))
    with pytest.raises(InputError, match="lacks the field 'decision'"):
        study.main(Path("reports/validate"))


def test_picture__a_mark_per_comparison_with_its_interval():
    pairs = document().document["prediction"]["pairs"]
    drawn = marks("one", pairs)
    assert [mark.predicted for mark in drawn] == [pair["predicted"] for pair in pairs]
    figure = against_prediction([], drawn, 0.1)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "Ratios of pairs"
    points = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    assert [float(line.get_ydata()[0]) for line in points] == [pair["measured"]["mean"] for pair in pairs]
    # The line of equality, and a bar per mark.
    assert len(axes.collections) == 1 + len(pairs)
    assert marks("one", [pairs[0] | {"predicted": None}, pairs[0] | {"predicted": 0.0}]) == []
    with pytest.raises(InputError, match="no comparison to draw"):
        against_prediction([], [], 0.1)
