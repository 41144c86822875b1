"""The built-in policies and the axes that they share: what a router sees, how old it is, who else routes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from sweep.errors import InputError, number, unknown
from sweep.kernels import codes
from sweep.rule import Parameter, Rule, shown

# --- Parameters written as text ---------------------------------------------------------------------------------------


def signal_text(what: str, value: Any) -> str:
    """Return a load signal or a weighted sum of them in its one spelling, terms in the order of `codes.SIGNALS`.

    Examples
    --------
    >>> signal_text("signal", "0.010 * tokens + requests")
    'requests+0.01*tokens'
    """
    weights = signal_weights(what, value)
    terms = [(weight, name) for weight, name in zip(weights, codes.SIGNALS, strict=True) if weight > 0.0]
    return "+".join(name if weight == 1.0 else f"{shown(weight)}*{name}" for weight, name in terms)


def signal_weights(what: str, value: Any) -> list[float]:
    """Return the weight of each of `codes.SIGNALS` in a signal such as ``requests+0.01*tokens``."""
    if not isinstance(value, str):
        raise InputError(f"{what} must be a signal such as 'work' or 'requests+0.01*tokens', got {value!r}.")
    weights = [0.0] * len(codes.SIGNALS)
    for term in re.split(r"(?<![eE])\+", value):
        factor, star, name = (part.strip() for part in term.rpartition("*"))
        if name not in codes.SIGNALS:
            raise unknown(f"signal in {what[:1].lower() + what[1:]}:", name, codes.SIGNALS)
        at = codes.SIGNALS.index(name)
        if weights[at]:
            raise InputError(f"{what} names the signal {name!r} twice in {value!r}.")
        try:
            weights[at] = number(
                f"The weight of {name!r} in {what[:1].lower() + what[1:]}", float(factor or 1), above=0.0
            )
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{what}: {term.strip()!r} is not of the form number*signal.") from error
        if star and not factor:
            raise InputError(f"{what}: {term.strip()!r} is not of the form number*signal.")
    return weights


def weights_text(what: str, value: Any) -> str:
    """Return weights in their one spelling: ``speed``, ``measured``, or numbers joined by colons.

    Examples
    --------
    >>> weights_text("weights", (5, 1, 0.5)), weights_text("weights", None)
    ('5:1:0.5', 'speed')
    """
    if value is None or value in ("speed", "measured"):
        return value or "speed"
    parts: list[Any] = (
        value.split(":") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    )
    numbers = []
    for part in parts:
        try:
            weight = float(part)
        except (TypeError, ValueError):
            weight = math.nan
        if not 0.0 < weight < math.inf:
            raise InputError(
                f"{what} must be 'speed', 'measured' or positive numbers, one per replica, such as 5:1:1, got {part!r}."
            )
        numbers.append(weight)
    return ":".join(shown(weight) for weight in numbers)


# --- The axes ---------------------------------------------------------------------------------------------------------

_ROUTERS = {
    "routers": Parameter(
        1.0,
        "independent routers; each sees every report but only what it sent itself",
        whole=True,
        at_least=1,
        at_most=64,
    ),
    "router_assignment": Parameter(
        "round_robin", "which router gets a request: in turn, or at random", choices=("round_robin", "random")
    ),
}
_FRESHNESS = {
    "freshness_ms": Parameter(
        0.0, "a replica's state reaches the routers at multiples of this; 0 = live", at_least=0.0
    ),
    "phase": Parameter(
        "together", "all replicas report at one time, or one after the other", choices=("together", "spread")
    ),
    "correction": Parameter(
        "none",
        "own: add what was sent since the last report; own_until_seen: until a report includes it",
        choices=codes.CORRECTIONS,
    ),
}
_TIE = {
    "tie": Parameter(
        "first", "the lowest index, a random one, or the next from a start that rotates", choices=codes.TIES
    )
}
_GUESS = {
    "in_service_weight": Parameter(1.0, "weight of what is being served", at_least=0.0),
    "work_error_cv": Parameter(
        0.0, "coefficient of variation of the error in what the router believes of a request's work", at_least=0.0
    ),
}
_SIGNAL = {
    "signal": Parameter(
        "work",
        "work [ms; tokens on token steps], requests, tokens, kv, utilisation, or a weighted sum such as "
        "requests+0.01*tokens",
        text=signal_text,
    ),
    "window_ms": Parameter(100.0, "window of the signal utilisation", above=0.0),
    "kv_capacity_tokens": Parameter(8192.0, "tokens that fill a replica, for the signal kv", above=0.0),
}
_WORK = _GUESS | _FRESHNESS | _TIE | _ROUTERS
_LOAD = _SIGNAL | _WORK
_HALF_LIFE = {"half_life_ms": Parameter(1000.0, "half-life of a measured speed", above=0.0)}
_VIRTUAL_NODES = {
    "virtual_nodes": Parameter(160.0, "points of a replica on the ring", whole=True, at_least=1, at_most=10_000)
}

#: What the engine token_step knows of these.
_STEP_VIEW = ("freshness_ms", "phase", "correction", "routers", "router_assignment")
#: What the engines do for a rule, and no rule for itself.
AXES = (*_STEP_VIEW, "tie", "work_error_cv")
_STEP_LOAD = ("signal", "kv_capacity_tokens", "in_service_weight", *_STEP_VIEW, "tie")

_ANY_SIGNAL = "any load signal, live or reported"
_ANY_TIE = "lowest index, random or rotating"

#: Every built-in policy, in catalogue order.
BUILT_IN = (
    Rule(
        "round_robin",
        "Request i goes to replica i mod R.",
        engines=("timeline", "token_step"),
        reasons=("round_robin",),
        signals="none",
        ties="none",
        source="nginx and vLLM production-stack `roundrobin`; the DPLB baseline",
        parameters=_ROUTERS,
        step_parameters=tuple(_ROUTERS),
        code=codes.ROUND_ROBIN,
    ),
    Rule(
        "queue_aware",
        "The replica with the smallest queue wait.",
        engines=("timeline",),
        reasons=("shortest_queue",),
        signals="queue wait, live or reported",
        ties=_ANY_TIE,
        source="least work; equals the central queue M/M/c on equal replicas",
        parameters=_WORK,
        code=codes.QUEUE_AWARE,
    ),
    Rule(
        "locality_aware",
        "The session's owner, else a replica that holds the prefix (else the adapter, where requests have one), if its "
        "queue wait is within `slack` of the shortest; else the shortest queue.",
        engines=("timeline",),
        reasons=("sticky_session", "prefix_locality", "queue_fallback"),
        signals="queue wait, session owner, prefix caches, live or reported",
        ties="smaller wait, then lowest index, random or rotating",
        source="PAR-REPLICA serving replica routing",
        parameters=_WORK,
        reads_slack=True,
        code=codes.LOCALITY_AWARE,
        adapter_reasons=("adapter_locality",),
    ),
    Rule(
        "least_load",
        "The replica with the smallest load; on token steps work is counted in tokens.",
        engines=("timeline", "token_step"),
        reasons=("least_load",),
        signals=_ANY_SIGNAL,
        ties=_ANY_TIE,
        source="JSQ; SGLang and llm-d least-request scorers; DPLB least load, weight 0.5 its discounted variant",
        parameters={"in_service_weight": _GUESS["in_service_weight"]}
        | _LOAD
        | {
            "speed": Parameter(
                "none",
                "divide the load by the replica's known speed, or by the speed measured over finished work",
                choices=codes.SPEEDS,
            )
        }
        | _HALF_LIFE,
        step_parameters=(*_STEP_LOAD, "speed"),
        code=codes.LEAST_LOAD,
    ),
    Rule(
        "random",
        "A uniformly random replica.",
        engines=("timeline", "token_step"),
        reasons=("random",),
        signals="none",
        ties="none",
        source="smg, AIBrix and Envoy `random`; M/M/1 per replica under Poisson traffic",
        code=codes.RANDOM,
    ),
    Rule(
        "weighted_random",
        "A random replica with probability proportional to 1 / load; uniform among the replicas of load 0 if there "
        "are any.",
        engines=("timeline", "token_step"),
        reasons=("weighted_random",),
        signals=_ANY_SIGNAL,
        ties="none",
        source="Dahlin, Interpreting Stale Load Information, 2000; llm-d weighted-random picker",
        parameters=_SIGNAL | _GUESS | _FRESHNESS | _ROUTERS,
        step_parameters=_STEP_LOAD[:-1],
        code=codes.WEIGHTED_RANDOM,
    ),
    Rule(
        "power_of_d",
        "The least loaded of `d` replicas drawn at random.",
        engines=("timeline", "token_step"),
        reasons=("power_of_d",),
        signals=_ANY_SIGNAL,
        ties=_ANY_TIE,
        source="Mitzenmacher 2001; smg and Ray Serve power of two; Envoy least_request draws with replacement",
        parameters={
            "d": Parameter(2.0, "replicas drawn", whole=True, at_least=1, at_most=1024),
            "draws": Parameter(
                "distinct", "different replicas, or with replacement", choices=("distinct", "replacement")
            ),
        }
        | _LOAD,
        step_parameters=("d", "draws", *_STEP_LOAD),
        code=codes.POWER_OF_D,
    ),
    Rule(
        "weighted_round_robin",
        "Smooth weighted round robin: every replica gains its weight, the highest is chosen and loses the sum of all.",
        engines=("timeline", "token_step"),
        reasons=("weighted_round_robin",),
        signals="none, or the speed measured over finished work",
        ties="lowest index",
        source="nginx smooth weighted round robin",
        parameters={
            "weights": Parameter("speed", "speed (as known), measured, or numbers such as 5:1:1", text=weights_text)
        }
        | _HALF_LIFE
        | _ROUTERS,
        step_parameters=("weights", *_ROUTERS),
        code=codes.WEIGHTED_ROUND_ROBIN,
    ),
    Rule(
        "shortest_expected_delay",
        "The replica with the smallest queue wait plus service time at its speed.",
        engines=("timeline",),
        reasons=("shortest_expected_delay",),
        signals="queue wait, live or reported, and known speed",
        ties=_ANY_TIE,
        source="shortest expected delay (SED) routing",
        parameters=_WORK,
        code=codes.SHORTEST_EXPECTED_DELAY,
    ),
    Rule(
        "sticky_session",
        "The session's owner as long as it is up, whatever its load; a new session goes to the least loaded replica.",
        engines=("timeline", "token_step"),
        reasons=("sticky_session", "new_session", "no_key"),
        signals=f"session owner; {_ANY_SIGNAL}",
        ties=_ANY_TIE,
        source="vLLM router sticky_least_loaded and smg manual, without their expiry",
        parameters=_LOAD,
        step_parameters=_STEP_LOAD,
        code=codes.STICKY_SESSION,
    ),
    Rule(
        "soft_sticky",
        "The session's owner while its load is at most `threshold` above the least, or `relative` times the least; "
        "else the least loaded replica.",
        engines=("timeline", "token_step"),
        reasons=("sticky_session", "session_moved", "new_session", "no_key"),
        signals=f"session owner; {_ANY_SIGNAL}",
        ties=_ANY_TIE,
        source="the per-request form of the smg cache_aware gate",
        parameters={
            "threshold": Parameter(20.0, "load above the least that is accepted, in units of the signal", at_least=0.0),
            "relative": Parameter(1.0, "multiple of the least load that is accepted", at_least=1.0),
        }
        | _LOAD,
        step_parameters=("threshold", "relative", *_STEP_LOAD),
        code=codes.SOFT_STICKY,
    ),
    Rule(
        "migrate",
        "The least loaded replica; where another one holds the prefix, its cache is copied there first and the request "
        "is a hit. On token steps, which have no caches, it is the state of the session that moves, and the request "
        "waits for it.",
        engines=("timeline", "token_step"),
        reasons=("in_place", "migrated", "least_load", "no_key"),
        signals=f"prefix caches; {_ANY_SIGNAL}",
        ties=_ANY_TIE,
        source="Mooncake and DualMap migrate hot prefixes; here every miss that can be is copied",
        parameters={
            "transfer_ms": Parameter(1.0, "time of a copy", at_least=0.0),
            "transfer_ms_per_token": Parameter(0.0, "time of a copy per prompt token", at_least=0.0),
        }
        | _LOAD,
        step_parameters=("transfer_ms", "transfer_ms_per_token", *_STEP_LOAD),
        code=codes.MIGRATE,
    ),
    Rule(
        "consistent_hash",
        "The first replica that is up, clockwise on a hash ring from the session, or the prefix where there is none.",
        engines=("timeline", "token_step"),
        reasons=("consistent_hash", "next_on_ring", "no_key"),
        signals=f"none; without a key {_ANY_SIGNAL}",
        ties=_ANY_TIE,
        source="vLLM production-stack `session` (160 virtual nodes), smg consistent_hashing, nginx ketama",
        parameters=_VIRTUAL_NODES | _LOAD,
        step_parameters=("virtual_nodes", *_STEP_LOAD),
        code=codes.CONSISTENT_HASH,
    ),
    Rule(
        "bounded_hash",
        "The first replica clockwise on the ring whose load is at most bound * (total + 1) / N.",
        engines=("timeline", "token_step"),
        reasons=("consistent_hash", "next_on_ring", "no_key"),
        signals="requests, live or reported",
        ties=_ANY_TIE,
        source="consistent hashing with bounded loads (KubeAI PrefixHash, load factor 1.25)",
        parameters={"bound": Parameter(1.25, "load factor c", at_least=1.0)} | _VIRTUAL_NODES | _WORK,
        step_parameters=("bound", "virtual_nodes", "in_service_weight", *_STEP_VIEW, "tie"),
        code=codes.BOUNDED_HASH,
    ),
)
