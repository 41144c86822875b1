"""What an entry of the catalogue of policies is made of: a rule and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweep.errors import InputError, number

RuleFunction = Callable[..., Any]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a policy: its default, what is allowed and a sentence.

    A number by default, inside the bounds given; a whole number where ``whole``; one of ``choices`` where there are
    any; where ``text`` is given, whatever that function of (name, value) accepts and returns as a string.
    """

    default: float | str
    sentence: str = ""
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    whole: bool = False
    choices: tuple[str, ...] = ()
    text: Callable[[str, Any], str] | None = None

    @property
    def is_text(self) -> bool:
        """Return whether its values are strings."""
        return bool(self.choices) or self.text is not None

    def checked(self, what: str, value: Any) -> float | str:
        """Return a value of the parameter, checked; `what` names it in an error."""
        if self.text is not None:
            return str(self.text(what, value))
        if self.choices:
            if value not in self.choices:
                raise InputError(f"{what} must be one of {', '.join(self.choices)}, got {value!r}.")
            return str(value)
        found = number(what, value, at_least=self.at_least, at_most=self.at_most, above=self.above)
        if self.whole and not found.is_integer():
            raise InputError(f"{what} must be a whole number >= {self.at_least or 0:g}, got {value!r}.")
        return found


@dataclass(frozen=True)
class Rule:
    """One entry of the catalogue: what a policy does, what it reads and where it comes from.

    ``reasons`` are the values of ``route_reason`` in the order of the codes that the kernels record.
    ``function`` is a user's own rule (see `sweep.register`); the built-in rules live in the kernels, under ``code``.
    ``step_parameters`` are the parameters that the engine ``token_step`` knows as well, ``adapter_reasons`` the reasons
    that come after the others where requests have adapters.
    """

    name: str
    sentence: str
    engines: tuple[str, ...]
    reasons: tuple[str, ...]
    signals: str
    ties: str
    source: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    reads_slack: bool = False
    function: RuleFunction | None = None
    step_parameters: tuple[str, ...] = ()
    code: int = -1
    adapter_reasons: tuple[str, ...] = ()


def shown(value: float | str) -> str:
    """Return a parameter's value as a label writes it.

    Examples
    --------
    >>> shown(0.5), shown(2.0), shown("random")
    ('0.5', '2', 'random')
    """
    if isinstance(value, str):
        return value
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
