"""The text of estimates and the columns made of what the analysis found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from synthetic import result

from sweep import tables
from sweep.analysis import frontier, paired, recommend

WAIT, VARIANCE = "p99_queue_wait_ms", "load_variance"


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((266_024.6, 263_641.6, 268_407.4), "266,025 [263,642, 268,407]"),
        ((0.0047339, 0.0046729, 0.0047948), "0.004734 [0.004673, 0.004795]"),
        ((5.0, 5.0, 5.0), "5.00 [5.00, 5.00]"),
        ((0.0, 0.0, 0.0), "0 [0, 0]"),
        ((1e-4, -2.0, 2.0), "0.0 [-2.0, 2.0]"),
        ((math.nan, math.nan, math.nan), "-"),
        ((math.inf, math.nan, math.nan), "inf"),
        ((12.0, math.nan, math.nan), "12.0"),
        ((-7.0, -9.5, -4.5), "-7.0 [-9.5, -4.5]"),
    ],
)
def test_estimate__shows_the_digits_that_the_interval_leaves(bounds: tuple[float, float, float], text: str) -> None:
    assert tables.estimate(*bounds) == text


def test_estimates__marks_what_is_not_significant() -> None:
    rows = [(1.1, 0.9, 1.3), (1.1, 1.05, 1.15), (1.0, math.nan, math.nan), (1.5, 1.0, 2.0)]
    assert [cell.endswith("n.s.") for cell in tables.estimates("ratio", rows, no_effect=1.0).cells] == [
        True,
        False,
        False,
        True,
    ]
    assert not any("n.s." in cell for cell in tables.estimates("ratio", rows).cells)


def test_chosen_cells__are_the_recommendation() -> None:
    ds = result(extra={"utilisation": [0.5, 0.9]})
    chosen = recommend(ds)
    columns = {column.title: column for column in tables.chosen_cells(ds, chosen, WAIT)}
    assert list(columns) == [
        "heterogeneity",
        "utilisation",
        "policy",
        "slack",
        "P99 queue wait",
        "ratio to round_robin",
    ]
    assert columns["policy"].cells == chosen["policy"].tolist()
    for cell, slack in zip(columns["slack"].cells, chosen["slack"], strict=True):
        assert cell == ("-" if math.isnan(slack) else f"{slack:g}")
    assert columns["P99 queue wait"].cells[0] == tables.estimate(*chosen.loc[0, ["mean", "lower", "upper"]])
    without = ds.sel(policy=["queue_aware", "locality_aware"])
    assert "ratio to round_robin" not in [c.title for c in tables.chosen_cells(without, recommend(without), WAIT)]


def test_tied_cells__group_slacks_by_policy() -> None:
    wait = np.array([[9.0, 9.4], [5.0, 5.2], [5.1, 5.1]])[:, None, None, :] + np.zeros((3, 3, 2, 2))
    wait[:, :, 1] += np.array([0.0, 3.0])
    wait[0, :, 1] = wait[1, :, 1] = 99.0
    wait[2, 1:, 1] = 98.0
    chosen = recommend(result({WAIT: wait}, seeds=2))
    assert tables.tied_cells(chosen).cells == ["queue_aware; locality_aware, slack 0, 5, 10", "-"]


def test_frontier_cells__are_the_frontier() -> None:
    ds = result()
    found = frontier(ds)
    columns = tables.frontier_cells(ds, found)
    assert [column.title for column in columns] == [
        "heterogeneity",
        "policy",
        "slack",
        "load variance",
        "P99 queue wait",
    ]
    assert [column.unit for column in columns] == ["", "", "ms", "ms²", "ms"]
    assert columns[1].cells == found["policy"].tolist()


def test_against__is_the_paired_difference_of_the_chosen_cells() -> None:
    ds = result(draw=2)
    chosen = recommend(ds)
    difference, correlation = tables.against(ds, chosen, WAIT, "queue_aware")
    pairs = paired(ds, WAIT, "queue_aware")
    for place, row in enumerate(chosen.to_dict("records")):
        cell = pairs.sel(policy=row["policy"], heterogeneity=row["heterogeneity"])
        cell = cell.isel(slack=0) if math.isnan(row["slack"]) else cell.sel(slack=row["slack"])
        expected = tables.estimate(*(float(cell[name]) for name in ("mean", "lower", "upper")))
        assert difference.cells[place].removesuffix(" n.s.") == expected
        assert difference.cells[place].endswith("n.s.") == bool((cell["lower"] <= 0) & (cell["upper"] >= 0))
        assert correlation.cells[place] == f"{float(cell['correlation']):.2f}"


def test_tables__nothing_to_choose() -> None:
    ds = result({WAIT: np.nan})
    chosen = recommend(ds)
    assert tables.chosen_cells(ds, chosen, WAIT)[1].cells == ["-", "-"]
    assert tables.against(ds, chosen, WAIT, "queue_aware")[0].cells == ["-", "-"]
    assert tables.tied_cells(chosen).cells == ["-", "-"]
