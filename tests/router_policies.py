"""Policies of the router engine that between them turn every axis, as strategies for hypothesis."""

from hypothesis import strategies as st

import sweep

_SIGNALS = ["work", "requests", "tokens", "kv", "utilisation", "requests+0.01*tokens", "work+2*kv+3*utilisation"]

_VIEW = {
    "freshness_ms": st.sampled_from([0.0, 0.0, 1.0, 2.5, 7.0, 1000.0]),
    "phase": st.sampled_from(["together", "spread"]),
    "correction": st.sampled_from(["none", "own", "own_until_seen"]),
}
_ROUTERS = {
    "routers": st.sampled_from([1, 1, 2, 3]),
    "router_assignment": st.sampled_from(["round_robin", "random"]),
}
_GUESS = {"in_service_weight": st.sampled_from([1.0, 0.5, 0.0]), "work_error_cv": st.sampled_from([0.0, 0.0, 0.7])}
_SIGNAL = {
    "signal": st.sampled_from(_SIGNALS),
    "window_ms": st.sampled_from([3.0, 20.0]),
    "kv_capacity_tokens": st.just(300.0),
}
_CAPACITY = ("kv_capacity_tokens",)
_TIE = {"tie": st.sampled_from(["first", "random", "rotate"])}
_WORK = _VIEW | _ROUTERS | _GUESS | _TIE
_LOAD = _WORK | _SIGNAL

PARAMETERS = {
    "round_robin": _ROUTERS,
    "queue_aware": _WORK,
    "locality_aware": _WORK,
    "least_load": _LOAD
    | {"speed": st.sampled_from(["none", "known", "measured"]), "half_life_ms": st.sampled_from([2.0, 50.0])},
    "random": {},
    "weighted_random": _VIEW | _ROUTERS | _GUESS | _SIGNAL,
    "power_of_d": _LOAD | {"d": st.sampled_from([1, 2, 3, 70]), "draws": st.sampled_from(["distinct", "replacement"])},
    "weighted_round_robin": _ROUTERS
    | {"weights": st.sampled_from(["speed", "measured", "numbers"]), "half_life_ms": st.sampled_from([2.0, 50.0])},
    "shortest_expected_delay": _WORK,
    "sticky_session": _LOAD,
    "soft_sticky": _LOAD | {"threshold": st.sampled_from([0.0, 1.0, 8.0]), "relative": st.sampled_from([1.0, 1.5])},
    "migrate": _LOAD
    | {"transfer_ms": st.sampled_from([0.0, 1.0, 2.5]), "transfer_ms_per_token": st.sampled_from([0.0, 0.01])},
    "consistent_hash": _LOAD | {"virtual_nodes": st.sampled_from([1, 5])},
    "bounded_hash": _WORK | {"virtual_nodes": st.sampled_from([1, 5]), "bound": st.sampled_from([1.0, 1.25, 2.0])},
}


@st.composite
def policies(draw, replicas, names=tuple(PARAMETERS), bounded=False):
    """Return a policy, some of its parameters turned; `bounded` where caches of blocks say what fills a replica."""
    name = draw(st.sampled_from(names))
    chosen = {key: draw(values) for key, values in PARAMETERS[name].items() if not (bounded and key in _CAPACITY)}
    if chosen.get("weights") == "numbers":
        chosen["weights"] = [1 + 2 * (r % 3) for r in range(replicas)]
    return sweep.Policy(name, **chosen)


@st.composite
def events(draw, replicas, known_before_back=False):
    """Return the events of a fleet in the first 40 ms, often at the whole numbers at which requests come and finish.

    With `known_before_back` no replica is back up before its routers know that it was down.
    """
    heartbeat, misses = draw(st.sampled_from([0.0, 1.0, 2.5])), draw(st.integers(0, 3))
    found = []
    for replica in range(replicas):
        time = 0.0
        for _ in range(draw(st.integers(0, 2))):
            start = time + draw(st.one_of(st.integers(0, 12).map(float), st.floats(0.0, 12.0)))
            time = start + draw(st.one_of(st.integers(1, 15).map(float), st.floats(0.5, 15.0)))
            kind = draw(st.sampled_from([sweep.Down, sweep.Down, sweep.Drain, sweep.Slow]))
            if kind is sweep.Down and known_before_back:
                time = max(time, start + heartbeat * misses)
            extra = (draw(st.sampled_from([0.5, 0.3, 2.0])),) if kind is sweep.Slow else ()
            found.append(kind(replica, start, time, *extra))
    return {
        "events": found,
        "heartbeat_ms": heartbeat,
        "misses": misses,
        "retries": draw(st.integers(0, 3)),
        "breaker": draw(st.sampled_from([None, sweep.Breaker(1, 4.0), sweep.Breaker(2, 30.0)])),
        "no_replica": draw(st.sampled_from(["wait", "lose"])),
        "window_ms": draw(st.sampled_from([3.0, 12.0])),
    }
