"""From one stream and one policy to the cells of the token-step engine.

A plain policy without events runs in `sweep.kernels.token_step`; a rule or an axis that it does not know, and a fleet
with events, in `sweep.kernels.token_router`.
"""

from __future__ import annotations

import math
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
        check_policy(policy, settings.step_ms)
        routing.check_policy(policy, requests, replicas, events)
        self._policy, self._settings, self._seed, self._events = policy, settings, seed, events
        self._step = np.floor(requests.arrival_ms / settings.step_ms).astype(np.int64)
        self._requests = requests
        self._steps = _steps_of(requests, settings)
        self._routed = new_routed(len(requests))
        self._scalars = np.empty(len(token_step.COLUMNS))
        self._cumulative = np.empty(replicas, np.int64)
        self._plain = events is None and policy.name in _PLAIN and set(policy.changed) <= {"in_service_weight"}

    def statistics(self, speed: Array) -> dict[str, Any]:
        """Return the statistics of the cell of one speed vector, (replica,), named as in `sweep.variables`."""
        self._run(speed, np.empty((0, len(speed)), np.int64))
        found: dict[str, Any] = dict(zip(token_step.COLUMNS, self._scalars.tolist(), strict=True))
        found["cumulative_load_tokens"] = self._cumulative.copy()
        if self._policy.name == "migrate":
            found["migrations"] = float(self._routed.migrated.sum())
        return found if self._events is None else found | self._failures()

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
                _PLAIN[self._policy.name],
                float(self._policy.parameters.get("in_service_weight", 1.0)),
                self._step,
                self._requests.tokens,
                speed,
                float(self._settings.step_ms),
                self._steps,
                load,
                self._routed.replica,
                self._routed.entered,
                self._scalars,
                self._cumulative,
            )
            self._routed.reason[:] = 0
            return steps
        in_steps = None if self._events is None else events_in_steps(self._events, self._settings.step_ms)
        rules = routing.rules_of(self._policy, 0.0, self._settings, in_steps)
        period = float(round(rules.freshness / self._settings.step_ms))
        steps = run_token_router(
            self._stream,
            *routing.speed_pieces(speed, in_steps),
            rules._replace(freshness=period),
            routing.tables_of(self._policy, routing.ring_of(self._policy, len(speed), self._seed), self._seed, 0),
            routing.outages_of(len(speed), in_steps),
            np.uint64(self._seed),
            float(self._settings.step_ms),
            self._steps,
            load,
            self._routed,
            self._scalars,
            self._cumulative,
        )
        return steps

    @property
    def _stream(self) -> Steps:
        (session, sessions), (prefix, prefixes) = map(by_appearance, (self._requests.session, self._requests.prefix))
        requests = self._requests
        return Steps(self._step, requests.tokens, requests.prompt_tokens, session, prefix, sessions, prefixes)

    def _failures(self) -> dict[str, float]:
        """Return the statistics that only a fleet with events has."""
        assert self._events is not None
        routed, step_ms = self._routed, self._settings.step_ms
        in_steps = events_in_steps(self._events, step_ms)
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
        return {
            "lost_requests": float(routed.lost.sum()),
            "retried_requests": float((routed.attempts > 0).sum()),
            "misrouted_requests": float(routed.misrouted.sum()),
            "recovery_ms": float(np.max(recoveries)) if recoveries else np.nan,
        }


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
