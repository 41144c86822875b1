"""The options that say what happens to replicas, and the fleet with these events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweep.cli.options import INTEGER, NUMBER, Option, Values, choice, split_list
from sweep.errors import InputError
from sweep.events import NO_REPLICA, Breaker, Down, Drain, Slow

if TYPE_CHECKING:
    from sweep.fleet import Fleet

_GROUP = "Failures"
_FORMS: dict[type, str] = {
    Down: "REPLICA:START:END",
    Drain: "REPLICA:START:END",
    Slow: "REPLICA:START:END:FACTOR",
    Breaker: "FAILURES:COOLDOWN",
}
_EXAMPLES = {Down: "0:3000:6000", Drain: "0:3000:6000", Slow: "0:3000:6000:0.5", Breaker: "3:1000"}


def _type(kind: type[Any], *, many: bool) -> Values:
    """Return the type of what is written as numbers with colons between them, the first one whole."""

    def read(item: str) -> Any:
        first, *rest = item.split(":")
        try:
            if len(rest) == _FORMS[kind].count(":"):
                return kind(int(first), *map(float, rest))
        except ValueError:
            pass
        raise InputError(f"{item!r} is not of the form {_FORMS[kind]}, times in ms, such as {_EXAMPLES[kind]}.")

    return Values(
        _FORMS[kind] + (",..." if many else ""), lambda text: [read(item) for item in split_list(text)], many=many
    )


HAPPENING = [
    Option(
        "--down",
        group=_GROUP,
        type=_type(Down, many=True),
        unit="ms",
        text="Replicas that stop, lose what they hold and come back cold; END may be inf.",
    ),
    Option(
        "--drain",
        group=_GROUP,
        type=_type(Drain, many=True),
        unit="ms",
        text="Replicas that finish what they have and refuse new work.",
    ),
    Option(
        "--slow",
        group=_GROUP,
        type=_type(Slow, many=True),
        unit="ms",
        text="Replicas that run at FACTOR times their speed.",
    ),
]
HANDLING = [
    Option(
        "--heartbeat-ms",
        group=_GROUP,
        type=NUMBER,
        unit="ms",
        text="How often replicas report that they are there.",
        shown="100",
    ),
    Option(
        "--misses",
        group=_GROUP,
        type=INTEGER,
        text="Reports that must be missed before routers know of an event.",
        shown="3",
    ),
    Option(
        "--retries",
        group=_GROUP,
        type=INTEGER,
        text="How often a request is sent again before it counts as lost.",
        shown="1",
    ),
    Option(
        "--breaker",
        group=_GROUP,
        type=_type(Breaker, many=False),
        text="Circuit breaker of a router for a replica: FAILURES in a row open it for COOLDOWN ms.",
        shown="none",
    ),
    Option(
        "--no-replica",
        group=_GROUP,
        type=choice(*NO_REPLICA),
        text="What a request does when its router holds no replica to be up.",
        shown="wait",
    ),
]
EVENTS = [*HAPPENING, *HANDLING]


def with_events(fleet: Fleet, found: dict[str, Any]) -> Fleet:
    """Return the fleet with the events that the user gave, the fleet itself where there are none.

    Raises
    ------
    InputError
        For events that the fleet cannot have, and for how to handle events where there are none.
    """
    events = [event for option in HAPPENING for event in found.get(str(option.name), ())]
    handling = {str(option.name): found[str(option.name)] for option in HANDLING if option.name in found}
    if events:
        return fleet.with_events(events, **handling)
    if handling:
        name = "--" + next(iter(handling)).replace("_", "-")
        raise InputError(f"{name} says how failures are handled; give what happens as --down, --drain or --slow.")
    return fleet
