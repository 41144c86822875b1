"""How the command line reads values: lists, decimal ranges, option types, help under headings, config files."""

from __future__ import annotations

import difflib
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from sweep.errors import InputError, unknown

#: The longest list that one range may stand for.
LONGEST_RANGE = 1_000_000


def split_list(text: str) -> list[str]:
    """Cut `text` at its commas outside parentheses.

    Raises
    ------
    InputError
        When an item is empty or a parenthesis has no partner.

    Examples
    --------
    >>> split_list("round_robin, least_load(in_service_weight=0.5)")
    ['round_robin', 'least_load(in_service_weight=0.5)']
    """
    items = [""]
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            items.append("")
        else:
            items[-1] += letter
    if depth != 0:
        raise InputError(f"{text!r} has a parenthesis without its partner.")
    items = [item.strip() for item in items]
    if "" in items:
        raise InputError(f"{text!r} has an empty item; write a list as a,b,c.")
    return items


def numbers(text: str) -> tuple[float, ...]:
    """Return the numbers that a list such as ``0,5,20:50:10`` stands for, in the order given.

    A range ``start:stop:step`` holds every value from start on that does not pass stop, computed in
    decimal: the result is what the same decimals would give one by one.

    Raises
    ------
    InputError
        For anything that is not a number or a range.

    Examples
    --------
    >>> numbers("0:0.7:0.1")
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    """
    return tuple(value for item in split_list(text) for value in _number_item(item))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers that a list such as ``1,2,10:20:5`` stands for, in the order given.

    Raises
    ------
    InputError
        For anything that is not a whole number or a range of whole numbers.

    Examples
    --------
    >>> whole_numbers("7,0:4:2")
    (7, 0, 2, 4)
    """
    values: list[int] = []
    for item in split_list(text):
        parts = [_decimal(part, item) for part in item.split(":")]
        if any(part.denominator != 1 for part in parts):
            raise InputError(f"{item!r} is not a whole number.")
        values.extend(int(value) for value in (_range(*parts, item=item) if len(parts) > 1 else parts))
    return tuple(values)


def _number_item(item: str) -> Iterable[float]:
    if ":" not in item:
        try:
            return (float(item),)
        except ValueError:
            raise _not_a_number(item) from None
    return (float(value) for value in _range(*(_decimal(part, item) for part in item.split(":")), item=item))


def _range(*parts: Fraction, item: str) -> list[Fraction]:
    if len(parts) != 3:
        raise InputError(f"{item!r} is not a range; write it as start:stop:step, such as 0:50:5.")
    start, stop, step = parts
    if step == 0 or (stop - start) / step < 0:
        raise InputError(f"The range {item!r} never reaches its end: the step is {float(step):g}.")
    count = (stop - start) // step + 1
    if count > LONGEST_RANGE:
        raise InputError(f"The range {item!r} has {count:.3g} values; at most {LONGEST_RANGE:,} are allowed.")
    return [start + step * i for i in range(count)]


def _decimal(text: str, item: str) -> Fraction:
    # A fraction adds decimals exactly, however many digits they have. Exponents no float can hold are
    # turned away before they become integers of as many digits.
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise _not_a_number(item) from None
    if not value.is_finite() or abs(value.adjusted()) > 308:
        raise _not_a_number(item)
    return Fraction(value)


def _not_a_number(item: str) -> InputError:
    return InputError(f"{item!r} is not a number, nor a range such as 0:50:5 (start:stop:step).")


class Values(click.ParamType):  # type: ignore[type-arg]  # generic in recent click only
    """One value or a list of values, given as text or as what a TOML file holds."""

    def __init__(self, name: str, parse: Callable[[str], Sequence[Any]], *, many: bool) -> None:
        self.name = name
        self.parse = parse
        self.many = many
        self.numeric = parse in (numbers, whole_numbers)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a tuple, or the one value where no list is allowed."""
        try:
            found = self._read(value)
        except InputError as error:
            self.fail(str(error), param, ctx)
        if self.many:
            return found
        if len(found) != 1:
            self.fail(f"{value!r} is a list of {len(found)}, and only one value is allowed.", param, ctx)
        return found[0]

    def _read(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (list, tuple)):
            if any(isinstance(item, (list, tuple)) for item in value):
                raise InputError(f"{value!r} is a list inside a list.")
            found = tuple(item for part in value for item in self._read(part))
        elif isinstance(value, str):
            found = tuple(self.parse(value))
        elif self.numeric and isinstance(value, (int, float)) and not isinstance(value, bool):
            found = tuple(self.parse(repr(value)))
        else:
            raise InputError(f"{value!r} is of the wrong kind; write {self.name} as on the command line.")
        if not found:
            raise InputError("the list is empty.")
        return found


class Seeds(Values):
    """How many seeds (0, 1, ...) or which: a single number is a count, a list or a range is explicit."""

    def __init__(self) -> None:
        super().__init__("COUNT or INTEGERS", whole_numbers, many=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return an int (a count) or a tuple of seeds."""
        found = super().convert(value, param, ctx)
        explicit = isinstance(value, (list, tuple)) or (isinstance(value, str) and ("," in value or ":" in value))
        return found if explicit else found[0]


def choice(*allowed: str, many: bool = False) -> Values:
    """Return the type of one word, or a list of words, out of `allowed`."""

    def parse(text: str) -> list[str]:
        items = split_list(text)
        for item in items:
            if item not in allowed:
                raise unknown("value", item, allowed)
        return items

    return Values("|".join(allowed), parse, many=many)


NUMBER = Values("NUMBER", numbers, many=False)
NUMBERS = Values("NUMBERS", numbers, many=True)
INTEGER = Values("INTEGER", whole_numbers, many=False)
INTEGERS = Values("INTEGERS", whole_numbers, many=True)
NAMES = Values("NAMES", split_list, many=True)
FILE = Values("FILE", lambda text: [Path(text)], many=False)
PLACE = Values("FILE or URL", lambda text: [text if "://" in text else Path(text)], many=False)


class Option(click.Option):
    """An option that stands under a heading of ``--help`` and shows its unit and default there.

    Its value is None unless the user gives it, so that what is left out keeps the default of the
    Python function it is passed to; `shown` is that default as text.
    """

    def __init__(self, *flags: str, group: str, text: str, unit: str = "", shown: str = "", **attrs: Any) -> None:
        notes = [note for note in (unit, f"default: {shown}" if shown else "") if note]
        attrs.setdefault("default", None)
        if isinstance(attrs.get("type"), Values):
            attrs.setdefault("metavar", attrs["type"].name)
        super().__init__(list(flags), help=text + (f"  [{'; '.join(notes)}]" if notes else ""), **attrs)
        self.group = group
        self.shown = shown


class Command(click.Command):
    """A command whose ``--help`` lists its options under headings.

    A config file may also hold the options `others`, which then have no effect: one file serves several commands.
    `example` is a command line to show.
    """

    def __init__(self, *args: Any, example: str = "", others: Sequence[Option] = (), **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.example = example
        self.others = others

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per group, in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(param.group if isinstance(param, Option) else "Other", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, broken where a shell can take it."""
        if self.example:
            lines = textwrap.wrap(self.example, formatter.width - 6, break_long_words=False, break_on_hyphens=False)
            with formatter.section("Example"):
                formatter.write("".join(f"  {line}\n" for line in " \\\n    ".join(lines).split("\n")))


def read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make the values of a TOML file the defaults of the command (the callback of ``--config``).

    Raises
    ------
    InputError
        When the file cannot be read, is not TOML, has a key that is no option, or a value of a wrong type.
    """
    if path is None:
        return
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Config {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"Config {path} is not TOML: {error}.") from None
    own = {str(option.name): option for option in ctx.command.params if isinstance(option, Option)}
    known = own | {str(option.name): option for option in getattr(ctx.command, "others", ())}
    for name in {str(param.name), "quiet"}:
        known.pop(name, None)
    defaults: dict[str, Any] = {}
    for key, value in settings.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise InputError(
                f"Config {path}: {key!r} is not an option; did you mean {near.replace('_', '-')!r}? "
                f"({ctx.command_path} --help lists the options.)"
            )
        if name in defaults:
            raise InputError(f"Config {path}: {key!r} is given twice, with - and with _.")
        try:
            if known[name].is_flag and not isinstance(value, bool):
                raise InputError(f"{value!r} is not true or false.")
            known[name].type_cast_value(ctx, value)
        except (click.BadParameter, InputError) as error:
            what = error.message if isinstance(error, click.BadParameter) else error
            raise InputError(f"Config {path}, {key} = {value!r}: {what}") from None
        defaults[name] = value
    ctx.default_map = {name: value for name, value in defaults.items() if name in own}
