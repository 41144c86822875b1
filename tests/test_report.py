"""The page is self-contained, says how it was measured, and takes the place of an older one whole or not at all."""

from __future__ import annotations

import base64
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sweep
from sweep import plots
from sweep.console import Column
from sweep.errors import InputError
from sweep.report import LIMITS, Picture, Section, facts_of, replacing, write_report


@pytest.fixture(scope="module")
def ds() -> object:
    work = sweep.Workload.poisson(requests=50, utilisation=0.8, replicas=2, sessions=5, prefixes=5)
    fleet = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.4])
    return sweep.run(work, fleet, policy=["round_robin", "locality_aware"], slack=[0, 10], seed=3)


class Page(HTMLParser):
    """What a browser would load and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.alts: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.sources += [value for key, value in attrs if key in ("src", "href", "srcset") and value]
        if tag == "img":
            self.alts.append(found.get("alt") or "")
        if tag not in ("img", "meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data.strip())


def written(folder: Path, ds: object, **changes: object) -> str:
    given = {
        "title": "A title",
        "question": "Which?",
        "answer": ["This one & <that>."],
        "sections": [
            Section(
                "The table",
                ["Before."],
                [[Column("policy", ["a<b>", "c"], left=True), Column("wait", ["1", "2 n.s."], "ms")]],
                Picture("map", plots.heatmaps(ds), "A map"),
                ["After."],
            )
        ],
        "facts": facts_of(ds),
    }
    write_report(folder, **(given | changes))
    return (folder / "report.html").read_text(encoding="utf-8")


def test_report__is_self_contained_and_well_formed(tmp_path: Path, ds: object) -> None:
    page = Page(written(tmp_path, ds))
    assert len(page.sources) == 1 and page.sources[0].startswith("data:image/png;base64,")
    assert base64.b64decode(page.sources[0].partition(",")[2]) == (tmp_path / "map.png").read_bytes()
    assert page.alts == ["A map"]
    assert not re.search(r"https?://|url\(|@import|<script", (tmp_path / "report.html").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.png", "report.html"]


def test_report__escapes_what_it_is_given(tmp_path: Path, ds: object) -> None:
    page = Page(written(tmp_path, ds, title="<script>alert(1)</script>"))
    words = " ".join(page.words)
    assert "This one & <that>." in words and "a<b>" in words and "alert(1)" in words


def test_report__says_the_sample_the_intervals_and_ends_with_the_limits(tmp_path: Path, ds: object) -> None:
    words = [word for word in Page(written(tmp_path, ds)).words if word]
    text = " ".join(words)
    assert "n = 3 seeds" in text and "not simultaneous" in text and "exploratory" in text and "seed by seed" in text
    assert tuple(words[-len(LIMITS) :]) == LIMITS
    assert words[-len(LIMITS) - 1] == "What this cannot show"
    for subject in ("Model execution", "KV memory", "network", "Batching"):
        assert any(subject in limit for limit in LIMITS)
    order = [words.index(word) for word in ("A title", "Which?", "The table", "Before.", "policy", "2 n.s.", "After.")]
    assert order == sorted(order)


def test_report__the_same_bytes_again(tmp_path: Path, ds: object) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    assert written(first, ds) == written(second, ds)
    assert (first / "map.png").read_bytes() == (second / "map.png").read_bytes()


def test_facts__describe_the_run(ds: object) -> None:
    facts = facts_of(ds)
    assert facts["Workload"].startswith("Workload.poisson(requests=50, ")
    assert facts["Slack [ms]"] == "0, 10" and facts["Heterogeneity"] == "0, 0.4"
    assert facts["Policies"] == "round_robin, locality_aware"
    assert facts["Speeds"] == "from 1, 1 to 1.25, 0.75"
    assert facts["Sample"].startswith("n = 3 seeds; 24 runs")
    assert "cache_hit_speedup = 0.3" in facts["Settings"] and "None" not in facts["Settings"]


def test_replacing__takes_the_place_of_its_own_names_only(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "mine"
    for generation in ("first", "second"):
        with replacing(folder) as new:
            (new / "a.txt").write_text(generation)
            (new / "data.zarr").mkdir()
            (new / "data.zarr" / generation).write_text(generation)
        (folder / "notes.txt").write_text("the user's own")
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "data.zarr", "notes.txt"]
    assert (folder / "a.txt").read_text() == "second"
    assert [path.name for path in (folder / "data.zarr").iterdir()] == ["second"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_replacing__leaves_everything_as_it_was_when_interrupted(tmp_path: Path, error: type[BaseException]) -> None:
    folder = tmp_path / "mine"
    with replacing(folder) as new:
        (new / "a.txt").write_text("old")
    with pytest.raises(error), replacing(folder) as new:
        (new / "a.txt").write_text("half")
        raise error
    assert [path.name for path in folder.iterdir()] == ["a.txt"]
    assert (folder / "a.txt").read_text() == "old"
    with pytest.raises(error), replacing(tmp_path / "never"):
        raise error
    assert not (tmp_path / "never").exists()


def test_replacing__a_file_of_the_name_of_a_folder_and_back(tmp_path: Path) -> None:
    (tmp_path / "thing").write_text("file")
    with replacing(tmp_path) as new:
        (new / "thing.txt").mkdir()
    with replacing(tmp_path) as new:
        (new / "thing.txt").write_text("file now")
    assert (tmp_path / "thing.txt").read_text() == "file now"


def test_replacing__a_path_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot write to the folder .*file"), replacing(tmp_path / "file"):
        pass
    with pytest.raises(InputError, match="Cannot write to the folder"), replacing(tmp_path / "file" / "below"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_replacing__a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"), replacing(tmp_path / "below"):
        pass
