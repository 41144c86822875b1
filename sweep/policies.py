"""The catalogue of routing policies: names, parameters, signals, tie-breaks and sources."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from sweep.errors import InputError, distinct, number, unknown
from sweep.router_rules import AXES, BUILT_IN
from sweep.rule import Parameter, Rule, RuleFunction, shown

_RULES: dict[str, Rule] = {rule.name: rule for rule in BUILT_IN}


def catalogue() -> tuple[Rule, ...]:
    """Return every rule known, built-in ones first, in catalogue order."""
    return tuple(_RULES.values())


def rule_named(name: str) -> Rule:
    """Return the catalogue entry of `name`; raise `InputError` with the nearest name if there is none."""
    if name not in _RULES:
        raise unknown("policy", name, _RULES)
    return _RULES[name]


@dataclass(frozen=True, init=False)
class Policy:
    """A routing rule with its parameters.

    Parameters
    ----------
    name
        A name of the catalogue (`sweep policies` lists it).
    **parameters
        Values for the rule's parameters; those left out keep their defaults.

    Raises
    ------
    InputError
        For an unknown name or parameter, or a value out of range.

    Examples
    --------
    >>> import sweep
    >>> sweep.Policy("least_load", in_service_weight=0.5).label
    'least_load(in_service_weight=0.5)'
    >>> sweep.Policy.parse("least_load(in_service_weight=1.0)").label
    'least_load'
    """

    name: str
    parameters: Mapping[str, float | str]
    # Held, not looked up: a policy that travels to another process takes its rule along.
    rule: Rule = field(compare=False, repr=False)

    def __init__(self, name: str, **parameters: Any) -> None:
        rule = rule_named(name)
        for key in parameters:
            if key not in rule.parameters:
                if not rule.parameters:
                    raise InputError(f"Policy {name!r} has no parameters, got {key!r}.")
                raise unknown(f"parameter of policy {name!r}", key, rule.parameters)
        values = {
            key: spec.checked(f"Parameter {key!r} of policy {name!r}", parameters.get(key, spec.default))
            for key, spec in rule.parameters.items()
        }
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "parameters", values)
        object.__setattr__(self, "rule", rule)

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.parameters.items())))

    @property
    def label(self) -> str:
        """Return the name, followed by the parameters that differ from their defaults."""
        changed = [f"{key}={shown(self.parameters[key])}" for key in self.changed]
        return f"{self.name}({', '.join(changed)})" if changed else self.name

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the names of the parameters that differ from their defaults."""
        return tuple(key for key, value in self.parameters.items() if value != self.rule.parameters[key].default)

    def reasons(self, adapters: bool) -> tuple[str, ...]:
        """Return the reasons of the rule, in order of their codes; one more where requests have adapters."""
        return (*self.rule.reasons, *(self.rule.adapter_reasons if adapters else ()))

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Return the policy that a label such as ``least_load(in_service_weight=0.5)`` names."""
        match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
        if match is None:
            raise InputError(f"Policy {text!r} is not of the form name or name(parameter=value, ...).")
        name, inner = match.groups()
        parameters: dict[str, Any] = {}
        known = _RULES[name].parameters if name in _RULES else {}
        for part in filter(None, (part.strip() for part in (inner or "").split(","))):
            key, equals, value = part.partition("=")
            if equals and key.strip() in known and known[key.strip()].is_text:
                parameters[key.strip()] = None if value.strip() == "None" else value.strip().strip("'\"")
                continue
            try:
                parameters[key.strip()] = ast.literal_eval(value.strip())
            except (SyntaxError, ValueError):
                # What Python writes as float("nan"), and any other text that is no number.
                if value.strip().lstrip("+-").lower() in ("nan", "inf"):
                    parameters[key.strip()] = float(value)
                else:
                    equals = ""
            if not equals:
                raise InputError(
                    f"Policy {text!r}: {part!r} is not of the form parameter=value with a number as value."
                )
        return cls(name, **parameters)


def register(
    name: str, *, reads_slack: bool = False, parameters: Mapping[str, float] | None = None
) -> Callable[[RuleFunction], RuleFunction]:
    """Make a plain function a policy that is swept beside the built-in ones, on the engine ``timeline``.

    Parameters
    ----------
    name
        Its name in the catalogue; also the reason recorded for every request that it routes.
    reads_slack
        Whether the rule reads ``parameters.slack``. If not, it is simulated once for all slacks.
    parameters
        Names and defaults of the rule's own parameters, all numbers.

    Returns
    -------
    A decorator that returns the function unchanged. The function takes ``(view, request, parameters)``, see
    `sweep.rules_api`, and returns the index of a replica that is up (``view.up``; on a fleet without events all are).
    It is compiled by Numba in a sweep (once per process) and run as plain Python by `sweep.reference`. It works on
    fleets with events, where a request that is sent again is decided anew, with adapters and with caches of blocks.

    Raises
    ------
    InputError
        For a name that is not an identifier or that a built-in policy has, a function that takes other arguments, or
        a parameter that is not a number or has the name of an axis (a rule sees the replicas live). Registering
        one's own name again replaces the rule.

    Examples
    --------
    >>> import sweep
    >>> @sweep.register("least_served")
    ... def least_served(view, request, parameters):
    ...     return view.served.argmin()
    >>> sweep.Policy("least_served").label
    'least_served'

    Where a replica may fail and caches hold blocks, the longest match that is up, and the shorter wait of equals:

    >>> @sweep.register("longest_match")
    ... def longest_match(view, request, parameters):
    ...     best = -1
    ...     for r in range(view.up.size):
    ...         if view.up[r]:
    ...             more = best < 0 or view.matched_blocks[r] > view.matched_blocks[best]
    ...             same = best >= 0 and view.matched_blocks[r] == view.matched_blocks[best]
    ...             if more or (same and view.wait_ms[r] < view.wait_ms[best]):
    ...                 best = r
    ...     return best
    >>> work = sweep.Requests.from_records(
    ...     {"arrival_ms": 100.0 * i, "service_ms": 10.0, "blocks": ["system", "user"[: 3 + i % 2]]} for i in range(8)
    ... )
    >>> fleet = sweep.Fleet.fixed([1.0, 1.0]).with_events([sweep.Down(0, 250.0, 450.0)], heartbeat_ms=10, misses=1)
    >>> sweep.simulate(work, fleet, policy="longest_match", cache_blocks=100).replica_id.values.tolist()
    [0, 0, 0, 1, 1, 1, 1, 1]
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"A policy's name must be a plain identifier such as 'my_rule', got {name!r}.")
    if name in _RULES and _RULES[name].function is None:
        raise InputError(f"Policy {name!r} is built in; give your rule another name.")
    defaults = {}
    for key, default in (parameters or {}).items():
        if not key.isidentifier() or iskeyword(key) or key.startswith("_") or key == "slack":
            raise InputError(
                f"Parameter {key!r} of policy {name!r} must be a plain identifier other than 'slack': no keyword, no "
                "underscore in front."
            )
        if key in AXES:
            raise InputError(
                f"Parameter {key!r} of policy {name!r} is the name of an axis of the built-in policies, which would "
                "have no effect here: a rule of your own sees the replicas live; choose another name."
            )
        defaults[key] = Parameter(number(f"Default of parameter {key!r} of policy {name!r}", default))

    def add(function: RuleFunction) -> RuleFunction:
        if not inspect.isfunction(function) or len(inspect.signature(function).parameters) != 3:
            raise InputError(f"The rule of policy {name!r} must be a function of (view, request, parameters).")
        _RULES[name] = Rule(
            name,
            (inspect.getdoc(function) or "A rule of your own.").splitlines()[0],
            engines=("timeline",),
            reasons=(name,),
            signals="its own",
            ties="its own",
            source=f"registered from {function.__module__}",
            parameters=defaults,
            reads_slack=reads_slack,
            function=function,
        )
        return function

    return add


def as_policies(policy: str | Policy | Iterable[str | Policy], engine: str) -> tuple[Policy, ...]:
    """Return the policies asked for, each checked to run on `engine` and none twice."""
    given = list(policy) if isinstance(policy, Iterable) and not isinstance(policy, str) else [policy]
    if not given:
        raise InputError(f"policy is empty; choose from {', '.join(names_for(engine))}.")
    policies = tuple(Policy.parse(item) if isinstance(item, str) else item for item in given)
    for item in policies:
        if not isinstance(item, Policy):
            raise InputError(f"policy must be a name or a sweep.Policy, got {item!r}.")
        if engine not in item.rule.engines:
            raise InputError(
                f"Policy {item.name!r} does not run on the engine {engine!r} (it runs on "
                f"{', '.join(item.rule.engines)}); policies of {engine!r}: {', '.join(names_for(engine))}."
            )
        strange = [key for key in item.changed if engine == "token_step" and key not in item.rule.step_parameters]
        if strange:
            raise InputError(
                f"Parameter {strange[0]!r} of policy {item.name!r} is for the engine 'timeline'; on 'token_step' it "
                f"has {', '.join(item.rule.step_parameters) or 'no parameters'}."
            )
    distinct("policy", [item.label for item in policies])
    return policies


def names_for(engine: str) -> list[str]:
    """Return the names of the policies that run on `engine`, in catalogue order."""
    return [rule.name for rule in catalogue() if engine in rule.engines]


def default_names(engine: str) -> list[str]:
    """Return the policies that a command compares when it is not told which."""
    return ["round_robin", "queue_aware", "locality_aware"] if engine == "timeline" else ["round_robin", "least_load"]
