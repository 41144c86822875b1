"""Lists, decimal ranges, option types and config files of the command line."""

from __future__ import annotations

from decimal import localcontext
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from sweep.cli.options import (
    FILE,
    INTEGER,
    INTEGERS,
    NAMES,
    NUMBER,
    NUMBERS,
    Command,
    Option,
    Seeds,
    choice,
    numbers,
    read_config,
    split_list,
    whole_numbers,
)
from sweep.errors import InputError


def test_split_list__commas_outside_parentheses() -> None:
    assert split_list(" a, b(x=1, y=(2,3)) ,c") == ["a", "b(x=1, y=(2,3))", "c"]


@pytest.mark.parametrize("text", ["", "a,", ",a", "a,,b", "a(b", "a)b(", "a),(b"])
def test_split_list__broken(text: str) -> None:
    with pytest.raises(InputError):
        split_list(text)


def test_numbers__examples() -> None:
    assert numbers("0:0.7:0.1") == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    assert numbers("5, 20:50:10, 1e-3, inf") == (5.0, 20.0, 30.0, 40.0, 50.0, 0.001, float("inf"))
    assert numbers("0:1:0.3") == (0.0, 0.3, 0.6, 0.9)
    assert numbers("50:0:-25") == (50.0, 25.0, 0.0)
    assert numbers("7:7:1") == (7.0,)


@given(data=st.data(), places=st.integers(0, 40), count=st.integers(1, 200), short=st.booleans())
def test_numbers__a_range_holds_the_decimals_written_one_by_one(
    data: st.DataObject, places: int, count: int, short: bool
) -> None:
    decimals = st.decimals(-1000, 1000, allow_nan=False, allow_infinity=False, places=places)
    start, step = data.draw(decimals), data.draw(decimals.filter(bool))
    with localcontext(prec=100):
        values = [start + step * i for i in range(count)]
        stop = values[-1] + (step / 2 if short else 0)
    expected = tuple(float(str(value)) for value in values)
    assert numbers(f"{start}:{stop}:{step}") == expected
    assert numbers(",".join(map(str, values))) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1:2",
        "1:2:3:4",
        "0:1:0",
        "0:1:-1",
        "1:0:1",
        "0:inf:1",
        "nan:1:1",
        "0:x:1",
        "::",
        "0:1e999999999:1",
        "0:1:1e-9",
    ],
)
def test_numbers__broken(text: str) -> None:
    with pytest.raises(InputError) as caught:
        numbers(text)
    assert text in str(caught.value)


def test_whole_numbers__examples() -> None:
    assert whole_numbers("3,5,8") == (3, 5, 8)
    assert whole_numbers("0:10:5,1e3,9007199254740993") == (0, 5, 10, 1000, 9007199254740993)


@pytest.mark.parametrize("text", ["1.5", "0:1:0.5", "0.5:2.5:1", "nan", "inf", "one", "0:2"])
def test_whole_numbers__broken(text: str) -> None:
    with pytest.raises(InputError, match=text):
        whole_numbers(text)


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        (NUMBERS, "1,2", (1.0, 2.0)),
        (NUMBERS, 0.1, (0.1,)),
        (NUMBERS, [0, "10:20:5", 0.1], (0.0, 10.0, 15.0, 20.0, 0.1)),
        (NUMBER, "2", 2.0),
        (NUMBER, [2], 2.0),
        (INTEGER, 2000, 2000),
        (INTEGER, "1e3", 1000),
        (INTEGERS, [1, 2], (1, 2)),
        (NAMES, ["a", "b(x=1,y=2)"], ("a", "b(x=1,y=2)")),
        (FILE, "a,b.csv", Path("a,b.csv")),
        (Seeds(), "100", 100),
        (Seeds(), 100, 100),
        (Seeds(), "7:7:1", (7,)),
        (Seeds(), [7], (7,)),
        (Seeds(), "3,5", (3, 5)),
        (choice("a", "b"), "b", "b"),
        (choice("a", "b", many=True), "b,a", ("b", "a")),
    ],
)
def test_values__convert(type_: click.ParamType[Any], value: object, expected: object) -> None:
    found = type_.convert(value, None, None)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("type_", "value", "says"),
    [
        (NUMBER, "1,2", "only one value"),
        (NUMBER, True, "wrong kind"),
        (NUMBER, [], "empty"),
        (NUMBERS, [[1], [2]], "list inside a list"),
        (NUMBERS, {"a": 1}, "wrong kind"),
        (INTEGER, 1.5, "not a whole number"),
        (FILE, 3, "wrong kind"),
        (Seeds(), True, "wrong kind"),
        (choice("lower", "higher"), "highr", "Did you mean 'higher'"),
    ],
)
def test_values__refuse(type_: click.ParamType[Any], value: object, says: str) -> None:
    with pytest.raises(click.BadParameter, match=says):
        type_.convert(value, None, None)


@click.command(
    cls=Command,
    example="show --slack 0:10:5",
    others=[Option("--elsewhere", group="Other", type=INTEGER, text="An option of another command.")],
    params=[
        Option("--slack", group="First", type=NUMBERS, text="Extra wait.", unit="ms", shown="5"),
        Option("--policy", group="Second", type=NAMES, text="Policies."),
        Option("--slo-ms", group="First", type=NUMBER, text="Objective."),
        Option("--keep/--no-keep", group="Second", text="A switch."),
        Option("-q", "--quiet", group="Second", is_flag=True, text="Quiet."),
        Option(
            "--config", group="Second", type=FILE, text="TOML.", is_eager=True, expose_value=False, callback=read_config
        ),
    ],
)
def show(**values: Any) -> None:
    """Show what was given."""
    click.echo(sorted((name, value) for name, value in values.items() if value is not None))


def _show(tmp_path: Path, config: str, *arguments: str) -> Result:
    path = tmp_path / "grid.toml"
    path.write_text(config, encoding="utf-8")
    return CliRunner().invoke(show, ["--config", str(path), *arguments])


def _given(**values: Any) -> str:
    return str(sorted(values.items())) + "\n"


def test_help__headings_units_defaults_and_example() -> None:
    lines = CliRunner().invoke(show, ["--help"]).output.splitlines()
    assert [line for line in lines if line.endswith(":") and not line.startswith(" ")] == [
        "First:",
        "Second:",
        "Other:",
        "Example:",
    ]
    assert any("Extra wait.  [ms; default: 5]" in line for line in lines)
    assert lines[-1] == "  show --slack 0:10:5"


def test_config__arrays_and_strings_say_the_same(tmp_path: Path) -> None:
    expected = _given(slack=(0.0, 5.0, 10.0), policy=("a(x=1, y=2)", "b"), slo_ms=3.0)
    arrays = 'slack = [0, 5, 10.0]\npolicy = ["a(x=1, y=2)", "b"]\nslo-ms = 3'
    texts = 'slack = "0:10:5"\npolicy = "a(x=1, y=2),b"\nslo_ms = "3"'
    assert _show(tmp_path, arrays).output == expected
    assert _show(tmp_path, texts).output == expected


def test_config__the_command_line_goes_first(tmp_path: Path) -> None:
    found = _show(tmp_path, 'slack = "0:10:5"\nkeep = true', "--slack", "7", "--no-keep")
    assert found.output == _given(slack=(7.0,), keep=False)
    assert _show(tmp_path, "keep = true").output == _given(keep=True)


def test_config__options_of_other_commands_have_no_effect(tmp_path: Path) -> None:
    assert _show(tmp_path, "elsewhere = 3\nslack = 1").output == _given(slack=(1.0,))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("slak = 5", "'slak' is not an option; did you mean 'slack'?"),
        ("slo = 5", "did you mean 'slo-ms'?"),
        ("config = 'other.toml'", "'config' is not an option"),
        ("quiet = true", "'quiet' is not an option"),
        ("slack = 'x'", "slack = 'x': 'x' is not a number"),
        ("slack = true", "slack = True: True is of the wrong kind"),
        ("slack = []", "slack = []: the list is empty"),
        ("slo-ms = [1, 2]", "slo-ms = [1, 2]: [1, 2] is a list of 2"),
        ("policy = 2024-01-01", "policy = datetime.date(2024, 1, 1)"),
        ("keep = 1", "keep = 1: 1 is not true or false"),
        ("elsewhere = 'x'", "elsewhere = 'x': 'x' is not a number"),
        ("slo-ms = 1\nslo_ms = 1", "'slo_ms' is given twice"),
        ("[slack]\na = 1", "slack = {'a': 1}: {'a': 1} is of the wrong kind"),
        ("slack = ", "is not TOML"),
    ],
)
def test_config__one_sentence_says_what_is_wrong(tmp_path: Path, config: str, says: str) -> None:
    found = _show(tmp_path, config)
    assert isinstance(found.exception, InputError)
    message = str(found.exception)
    assert says in message
    assert str(tmp_path / "grid.toml") in message


def test_config__a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        found = CliRunner().invoke(show, ["--config", str(path)])
        assert isinstance(found.exception, InputError)
        assert str(path) in str(found.exception)
    (tmp_path / "latin.toml").write_bytes(b"slack = '\xe9'")
    found = CliRunner().invoke(show, ["--config", str(tmp_path / "latin.toml")])
    assert "is not TOML" in str(found.exception)
