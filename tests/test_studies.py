"""Each study end to end at a small size: what it prints, what it leaves, that it can run again."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

import sweep
from sweep.analysis import recommend
from sweep.errors import InputError

STUDIES = Path(__file__).parents[1] / "studies"


def study(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fingerprints(folder: Path) -> dict[str, str]:
    """Return a digest of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_tradeoff__leaves_the_dataset_pictures_and_report_and_prints_the_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "tradeoff"
    study("tradeoff").main(output, quick=True, seeds=6, workers=1)
    printed = capsys.readouterr()
    assert printed.err == ""
    found = {path.name for path in output.iterdir()}
    assert found == {"tradeoff.zarr", "report.html", "heatmaps.png", "excess.png", "tradeoff.png", "reuse.png"}
    ds = sweep.open(output / "tradeoff.zarr")
    assert dict(ds["p99_queue_wait_ms"].sizes) == {"policy": 3, "slack": 4, "heterogeneity": 3, "seed": 6}
    chosen = recommend(ds)
    rows = re.findall(r"^ *([\d.]+) +(\w+) +([\d.-]+) +([\d.]+) \[", printed.out, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "0.3", "0.6"]
    for row, (_, expected) in zip(rows, chosen.iterrows(), strict=True):
        assert row[1] == expected["policy"] and float(row[2]) == expected["slack"]
        assert float(row[3]) == pytest.approx(expected["mean"], rel=0.05)
    assert "n = 6 seeds [95 % interval]" in printed.out
    page = (output / "report.html").read_text(encoding="utf-8")
    for sentence in chosen["certainty"]:
        assert sentence in page
    assert "What this cannot show" in page and "without the first quarter" in page


def test_tradeoff__runs_again_over_its_own_output_with_the_same_bytes(tmp_path: Path) -> None:
    module = study("tradeoff")
    module.main(tmp_path / "out", quick=True, seeds=2, workers=1)
    first = fingerprints(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("the user's own")
    module.main(tmp_path / "out", quick=True, seeds=2, workers=2)
    again = fingerprints(tmp_path / "out")
    assert again.pop("notes.txt")
    assert again == first


def test_tradeoff__one_seed_is_not_sure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study("tradeoff").main(tmp_path / "out", quick=True, seeds=1)
    assert "n = 1 seeds" in capsys.readouterr().out
    assert "Not sure: one seed" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_tradeoff__default_size_is_the_one_of_the_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = {}

    def run(work: sweep.Workload, fleet: sweep.Fleet, **settings: object) -> None:
        asked.update(settings, work=work, fleet=fleet)
        raise InterruptedError

    monkeypatch.setattr(sweep, "run", run)
    with pytest.raises(InterruptedError):
        study("tradeoff").main(tmp_path / "out")
    assert asked["policy"] == ("round_robin", "queue_aware", "locality_aware")
    assert list(asked["slack"]) == list(range(0, 80, 5)) and asked["seed"] == 256
    assert asked["fleet"].heterogeneity.tolist() == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert (asked["fleet"].speeds == sweep.Fleet.one_slow(4, asked["fleet"].heterogeneity.tolist()).speeds).all()
    expected = sweep.Workload.poisson(
        requests=2_000, utilisation=0.9, replicas=4, mean_service_ms=10.0, sessions=500, prefixes=500
    )
    assert asked["work"].fingerprint() == expected.fingerprint()
    assert not (tmp_path / "out").exists()


def test_dplb__prints_the_published_table_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study("dplb").main(tmp_path / "out", quick=True, seeds=8)
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    for expected in (
        "round_robin 2,727 70,559 2,566 233,004.64667 - 784,385.33333",
        "least_load 4,266 6,325 3,540 862.80333 99.6 9,185.33333",
        "least_load(in_service_weight=0.5) 4,283 6,483 3,391 968.88333 99.6 8,321.33333",
    ):
        assert expected.split() in rows
    assert "over 8 seeds" in printed and "Over heterogeneity, 8 seeds" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "loads.png", "heterogeneity.png"}


def test_dplb__heterogeneity_keeps_the_total_speed_of_the_published_fleet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleets = []
    actual = sweep.run

    def run(work: sweep.Workload, fleet: sweep.Fleet, **settings: object) -> object:
        fleets.append(fleet)
        return actual(work, fleet, **settings)

    monkeypatch.setattr(sweep, "run", run)
    study("dplb").main(tmp_path / "out", quick=True, seeds=2)
    assert fleets[0].speeds.tolist() == [[1.0, 0.3, 1.2]]
    assert fleets[-1].speeds.sum(axis=1) == pytest.approx([2.5] * 3)


def test_replicas__prints_throughput_and_p99_per_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study("replicas").main(tmp_path / "out", quick=True, seeds=4)
    printed = capsys.readouterr().out
    assert printed.count("P99 wait") >= 3 and printed.count("throughput") >= 3
    # With one replica every policy is the same, which is marked.
    single = next(line for line in printed.splitlines() if line.split()[:1] == ["1"])
    assert single.count("n.s.") == 3
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html",
        "fixed.png",
        "equal.png",
        "unequal.png",
    }


@pytest.mark.parametrize("name", ["tradeoff", "dplb", "replicas"])
def test_study__refuses_zero_seeds_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        study(name).main(tmp_path / "out", quick=True, seeds=0)
    assert not (tmp_path / "out").exists()


def test_study__runs_as_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["dplb.py", "--quick", "--seeds", "2", "--output", str(output)])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(STUDIES / "dplb.py"), run_name="__main__")
    assert stopped.value.code in (0, None)
    assert (output / "report.html").is_file()
