"""The study of recorded traffic: its quick form on the example traces, and what it needs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import sweep
from sweep.analysis import recommend

STUDY = Path(__file__).parents[1] / "studies" / "real_traces.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("real_traces", STUDY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def quick(study: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what the quick form leaves; no public trace is within its reach."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SWEEP_TRACES", str(folder / "none"))
        study.main(folder / "out", quick=True, seeds=3, workers=1)
    return folder / "out"


def test_quick__runs_on_the_examples_alone(quick: Path, study: ModuleType) -> None:
    slugs = [trace.slug for trace in study.EXAMPLES]
    expected = {"report.html", *(f"{slug}.{kind}" for slug in slugs for kind in ("png", "zarr"))}
    assert {path.name for path in quick.iterdir()} == expected
    page = (quick / "report.html").read_text(encoding="utf-8")
    assert page.count("This traffic is invented: nothing follows from it.") == len(slugs)
    assert page.count("made by studies/make_example_traces.py") == len(slugs)


def test_quick__says_what_the_recommendation_is(quick: Path, study: ModuleType) -> None:
    page = " ".join((quick / "report.html").read_text(encoding="utf-8").split())
    ds = sweep.open(quick / "example-of-mooncake.zarr")
    assert dict(ds.p99_queue_wait_ms.sizes) == {
        "policy": len(study.POLICIES), "slack": 3, "heterogeneity": 1, "cache_blocks": 2, "seed": 3
    }  # fmt: skip
    row = recommend(ds, study.WAIT).iloc[1]
    slack = "" if row.slack != row.slack else f" with a slack of {row.slack:,g} ms"
    assert f"The choice with unbounded caches is {row.policy}{slack}" in page
    cell = ds.token_hit_rate.sel(policy="round_robin", cache_blocks=float("inf")).isel(slack=0).mean()
    assert f"round_robin {float(cell):.2f}" in page


def test_quick__what_shares_nothing_has_no_policy_that_stays_close(quick: Path) -> None:
    ds = sweep.open(quick / "example-of-azure.zarr")
    assert ds.policy.values.tolist() == ["round_robin", "queue_aware"]
    assert ds.sizes["seed"] == 1 and ds.sizes["heterogeneity"] == 4
    page = (quick / "report.html").read_text(encoding="utf-8")
    assert page.count("does drawing sessions or families shift the figures?") == 4


def test_traces__their_folder_is_named_or_asked_for(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_TRACES", str(tmp_path))
    with pytest.raises(sweep.InputError, match=r"No public trace is here; .* With --quick the study takes"):
        study.main(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "azure").mkdir()
    path = tmp_path / "azure" / "AzureLLMInferenceTrace_conv.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    assert study.found() == [(study.TRACES[-1], path)]


def test_capacities__are_round_and_hold_a_prompt(study: ModuleType) -> None:
    records = [{"arrival_ms": 0.0, "service_ms": 1.0, "blocks": range(100 * k, 100 * k + 100)} for k in range(30)]
    blocks = sweep.Requests.from_records(records).blocks
    assert study.capacities(blocks, (0.005, 0.01, 0.1, None)) == [100.0, 300.0, None]


def test_found__what_is_named_must_be_a_folder(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    monkeypatch.setenv("SWEEP_TRACES", str(tmp_path / "tarces"))
    with pytest.raises(sweep.InputError, match=r"SWEEP_TRACES must name a folder, got '.*tarces'"):
        study.found()
