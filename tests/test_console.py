"""Tables for a terminal."""

from __future__ import annotations

import pytest

from sweep import console


@pytest.mark.parametrize(
    ("values", "cells"),
    [
        ([1.0, 20.0], ["1", "20"]),
        ([0.12345, 0.5], ["0.123", "0.500"]),
        ([1.5, 123456.7], ["2", "123,457"]),
        ([float("nan"), 2.25], ["-", "2.250"]),
        ([float("inf"), 1.0], ["inf", "1.000"]),
        ([], []),
    ],
)
def test_number_column(values: list[float], cells: list[str]) -> None:
    assert list(console.number_column("x", values).cells) == cells


def test_table__titles_break_and_columns_align() -> None:
    columns = [
        console.Column("name", ["a", "bcd"], left=True),
        console.number_column("a long title here", [1, 1000], "ms"),
    ]
    lines = console.table(columns, title_width=8).splitlines()
    assert lines == [
        "      a long",
        "       title",
        "name    here",
        "          ms",
        "----  ------",
        "a          1",
        "bcd    1,000",
    ]
