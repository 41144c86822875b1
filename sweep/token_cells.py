"""From one stream and one policy to the cells of the token-step engine.

A plain policy without events runs in `sweep.kernels.token_step`; a rule or an axis that it does not know, and a fleet
with events, in `sweep.kernels.token_router`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sweep import routing
from sweep.columns import by_appearance
from sweep.errors import InputError
from sweep.events import Events, Slow
from sweep.kernels import codes, failures, token_step
from sweep.kernels.token_router import Routed, Steps, new_routed, run_token_router
from sweep.policies import Policy
from sweep.requests import Requests
from sweep.router_rules import signal_weights
from sweep.variables import FAILURES, MIGRATIONS

if TYPE_CHECKING:
    from sweep.engines import Settings

Array = NDArray[Any]

_PLAIN = {"round_robin": token_step.ROUND_ROBIN, "least_load": token_step.LEAST_LOAD}

# A load per step and replica is what `sweep.simulate` returns.
_MOST_STEPS = 10**9


def check_steps(requests: Requests, speeds: Array, settings: Settings, events: Events | None) -> None:
    """Raise `InputError` for a stream of too many steps, and for a replica that would never drain."""
    last = float(requests.arrival_ms[-1]) if len(requests) else 0.0
    if last / settings.step_ms > _MOST_STEPS:
        raise InputError(
            f"The last arrival, at {last:g} ms, is {last / settings.step_ms:.3g} steps of {settings.step_ms:g} ms off; "
            f"at most {_MOST_STEPS:.0e} are allowed: give a larger step_ms."
        )
    if _steps_of(requests, settings) >= 0:
        return
    forever = [e for e in (events.events if events else ()) if isinstance(e, Slow) and math.isinf(e.end_ms)]
    ends = [speeds, *(speeds[..., event.replica] * event.factor for event in forever)]
    idle = [float(speed) for found in ends for speed in found.flat if int(speed * 1.0 * token_step.BATCH) == 0]
    if idle:
        raise InputError(
            f"A replica of speed {idle[0]:g} serves {token_step.BATCH} x speed = 0 whole tokens a step and never "
            "drains; raise its speed or give steps."
        )


def check_policy(policy: Policy, step_ms: float) -> None:
    """Raise `InputError` when a policy asks for what steps do not have."""
    given: dict[str, Any] = dict(policy.parameters)
    if "signal" in given and signal_weights("signal", given["signal"])[codes.UTILISATION] > 0.0:
        raise InputError(
            f"Policy {policy.label!r}: the signal 'utilisation' is for the engine 'timeline'; on 'token_step' choose "
            "from work (the same as tokens), requests, tokens and kv."
        )
    for name, allowed in (("speed", "none or known"), ("weights", "speed or numbers such as 5:1:1")):
        if given.get(name) == "measured":
            raise InputError(
                f"Policy {policy.label!r}: {name}='measured' is for the engine 'timeline'; on 'token_step' {name} is "
                f"{allowed}."
            )
    freshness = float(given.get("freshness_ms", 0.0))
    if abs(round(freshness / step_ms) * step_ms - freshness) > 1e-9 * freshness:
        raise InputError(
            f"Policy {policy.label!r}: freshness_ms must be a whole number of steps of {step_ms:g} ms, got "
            f"{freshness:g}."
        )


class TokenRecord(NamedTuple):
    """One cell: per request what became of it, the load by (step, replica) and how many requests arrived."""

    routed: Routed
    load: Array
    arrived: int


class TokenCell:
    """A stream under a policy as the kernels take it, and the arrays that they fill; one after the other.

    Raises
    ------
    InputError
        When the policy cannot route the stream.
    """

    def __init__(
        self,
        requests: Requests,
        policy: Policy,
        replicas: int,
        seed: int,
        settings: Settings,
        events: Events | None,
    ) -> None:
        self._policy, self._seed, self._events = policy, seed, events
        self._step = np.floor(requests.arrival_ms / settings.step_ms).astype(np.int64)
        self._tokens, self._step_ms = requests.tokens, float(settings.step_ms)
        self._steps = _steps_of(requests, settings)
        self._routed = new_routed(len(requests))
        self._scalars = np.empty(len(token_step.COLUMNS))
        self._cumulative = np.empty(replicas, np.int64)
        self._in_steps = None if events is None else events_in_steps(events, settings.step_ms)
        self._plain = events is None and policy.name in _PLAIN and set(policy.changed) <= {"in_service_weight"}
        if self._plain:
            self._rule, self._weight = _PLAIN[policy.name], float(policy.parameters.get("in_service_weight", 1.0))
            self._routed.reason[:] = 0
        else:
            check_policy(policy, settings.step_ms)
            routing.check_policy(policy, requests, replicas, settings)
            session, prefix = (by_appearance(ids) for ids in (requests.session, requests.prefix))
            self._stream = Steps(
                self._step, requests.tokens, requests.prompt_tokens, session[0], prefix[0], session[1], prefix[1]
            )
            rules = routing.rules_of(policy, 0.0, settings, events)
            self._rules = rules._replace(freshness=float(round(rules.freshness / settings.step_ms)))
            self._tables = routing.tables_of(policy, routing.ring_of(policy, replicas, seed), seed, 0)
            self._outages = routing.outages_of(replicas, self._in_steps)

    def statistics(self, speeds: Array, check: Callable[[], None]) -> dict[str, Array]:
        """Return the statistics of the cells of speed vectors, (heterogeneity, replica), named as in `sweep.variables`.

        `check` is called before each cell.
        """
        names = [*token_step.COLUMNS, *(MIGRATIONS if self._policy.name == "migrate" else ())]
        names += FAILURES if self._events is not None else ()
        table = np.empty((len(speeds), len(names)))
        cumulative = np.empty(speeds.shape, np.int64)
        nothing = np.empty((0, speeds.shape[1]), np.int64)
        for row, speed in enumerate(speeds):
            check()
            self._run(speed, nothing)
            if len(names) > len(token_step.COLUMNS):
                moved = [self._routed.migrated.sum()] if self._policy.name == "migrate" else []
                table[row] = [*self._scalars, *moved, *self._failures()]
            else:
                table[row] = self._scalars
            cumulative[row] = self._cumulative
        return dict(zip(names, table.T, strict=True)) | {"cumulative_load_tokens": cumulative}

    def record(self, speed: Array) -> TokenRecord:
        """Return what happened to every request, of a load shaped (step, replica)."""
        steps = self._run(speed, np.empty((0, len(speed)), np.int64))
        load = np.zeros((steps, len(speed)), np.int64)
        self._run(speed, load)
        return TokenRecord(self._routed, load, int(np.searchsorted(self._step, steps)))

    def _run(self, speed: Array, load: Array) -> int:
        steps: int
        if self._plain:
            steps = token_step.run_token_cell(
                self._rule,
                self._weight,
                self._step,
                self._tokens,
                speed,
                self._step_ms,
                self._steps,
                load,
                self._routed.replica,
                self._routed.entered,
                self._scalars,
                self._cumulative,
            )
            return steps
        steps = run_token_router(
            self._stream,
            *routing.speed_pieces(speed, self._in_steps),
            self._rules,
            self._tables,
            self._outages,
            np.uint64(self._seed),
            self._step_ms,
            self._steps,
            load,
            self._routed,
            self._scalars,
            self._cumulative,
        )
        return steps

    def _failures(self) -> list[float]:
        """Return what only a fleet with events has, in the order of `sweep.variables.FAILURES`; else nothing."""
        if self._events is None or self._in_steps is None:
            return []
        routed, step_ms, in_steps = self._routed, self._step_ms, self._in_steps
        started = routed.entered >= 0
        arrival = self._step[started] * step_ms
        wait = (routed.entered[started] - self._step[started]) * step_ms
        recoveries = [
            failures.recovery_ms(
                arrival, wait, event.start_ms * step_ms, (event.start_ms + in_steps.delay_ms) * step_ms,
                self._events.window_ms,
            )
            for event in in_steps.events
        ]  # fmt: skip
        counts = (routed.lost.sum(), (routed.sent > 1).sum(), routed.misrouted.sum())
        return [*map(float, counts), float(np.max(recoveries)) if recoveries else np.nan]


def events_in_steps(events: Events, step_ms: float) -> Events:
    """Return events with steps for milliseconds: times rounded down, as arrivals are, and spans rounded up."""

    def step_of(time: float) -> float:
        return float(np.floor(time / step_ms))

    return replace(
        events,
        events=tuple(replace(e, start_ms=step_of(e.start_ms), end_ms=step_of(e.end_ms)) for e in events.events),
        heartbeat_ms=float(np.ceil(events.delay_ms / step_ms)),
        misses=1,
        breaker=events.breaker
        and replace(events.breaker, cooldown_ms=float(np.ceil(events.breaker.cooldown_ms / step_ms))),
    )


def _steps_of(requests: Requests, settings: Settings) -> int:
    steps = requests.steps if settings.steps is None else settings.steps
    return -1 if steps is None else steps
