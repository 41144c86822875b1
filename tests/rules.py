"""Routing rules that a user might register, for tests to register while they run."""

import contextlib

import numpy as np

import sweep
from sweep import policies


@contextlib.contextmanager
def registered(*rules):
    """Register rules given as (name, function, keyword arguments of `sweep.register`); forget them at the end."""
    before = dict(policies._RULES)
    for name, function, options in rules:
        sweep.register(name, **options)(function)
    try:
        yield
    finally:
        policies._RULES.clear()
        policies._RULES.update(before)


def random_replica(view, request, parameters):
    """Send a request to a random replica."""
    return int(view.uniform[request.position % 4] * view.wait_ms.size)


def everything(view, request, parameters):
    """Let every field of the view, the request and the parameters decide."""
    best = 0
    best_score = np.inf
    for r in range(view.wait_ms.size):
        score = view.wait_ms[r] + request.service_ms / view.speed[r] + parameters.weight * view.served[r]
        if view.holds_prefix[r]:
            score -= parameters.slack
        if r == view.owner:
            score -= parameters.bias * (view.now_ms - request.arrival_ms + 1.0)
        score += view.requests[r] + 0.01 * view.tokens[r] + view.kv[r] + 3.0 * view.utilisation[r]
        if (request.prefix + 2 * request.session + request.prompt_tokens + request.output_tokens) % 3 == 0:
            score += view.uniform[0] - view.uniform[1] * view.uniform[2] + view.uniform[3]
        if score < best_score:
            best = r
            best_score = score
    return best


def mirrored_locality(view, request, parameters):
    """Decide as locality_aware does, but with ties to the highest index instead of the lowest."""
    last = view.wait_ms.size - 1
    shortest = last
    for r in range(last, -1, -1):
        if view.wait_ms[r] < view.wait_ms[shortest]:
            shortest = r
    limit = view.wait_ms[shortest] + parameters.slack
    if view.owner >= 0 and view.wait_ms[view.owner] <= limit:
        return view.owner
    nearest = -1
    for r in range(last, -1, -1):
        if view.holds_prefix[r] and (nearest < 0 or view.wait_ms[r] < view.wait_ms[nearest]):
            nearest = r
    if nearest >= 0 and view.wait_ms[nearest] <= limit:
        return nearest
    return shortest


def least_wait(view, request, parameters):
    """Decide as queue_aware does, among the replicas that are held to be up."""
    best = -1
    for r in range(view.wait_ms.size):
        if view.up[r] and (best < 0 or view.wait_ms[r] < view.wait_ms[best]):
            best = r
    return best


def routed(view, request, parameters):
    """Let what a fleet with events, adapters and caches of blocks add to the view and the request decide as well."""
    best = -1
    best_score = np.inf
    for r in range(view.wait_ms.size):
        score = view.wait_ms[r] + 0.5 * view.served[r] + view.requests[r] + 0.01 * view.tokens[r] + 3.0 * view.kv[r]
        score += 2.0 * view.utilisation[r] + request.service_ms / view.speed[r]
        score -= 2.0 * view.matched_blocks[r] + 0.1 * view.matched_tokens[r]
        if view.holds_prefix[r]:
            score -= parameters.slack
        if view.holds_adapter[r]:
            score -= parameters.bias
        if r == view.owner:
            score -= view.now_ms - request.arrival_ms + 1.0
        if (request.prefix + request.session + request.adapter + request.blocks) % 3 == 0:
            score += view.uniform[0] - view.uniform[1] * view.uniform[2] + view.uniform[3]
        if view.up[r] and score < best_score:
            best = r
            best_score = score
    return best


RANDOM = ("random_replica", random_replica, {})
EVERYTHING = ("everything", everything, {"reads_slack": True, "parameters": {"weight": 0.25, "bias": 1.0}})
MIRRORED = ("mirrored_locality", mirrored_locality, {"reads_slack": True})
LEAST_WAIT = ("least_wait", least_wait, {})
ROUTED = ("routed", routed, {"reads_slack": True, "parameters": {"bias": 1.5}})
