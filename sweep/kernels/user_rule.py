"""The timeline engine around a user's own rule, one cell at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from sweep.kernels.jit import kernel_in_memory
from sweep.kernels.random import ROUTING, uniform
from sweep.kernels.replicas import COUNT, HEAD, HELD, REQUEST, advance, append, busy_share, new_queues
from sweep.rules_api import KV_CAPACITY_TOKENS, UNIFORMS, WINDOW_MS, Request, View


@cache
def engine_for(rule: Callable[..., int]) -> Any:
    """Return the engine that routes by `rule`, compiled once per process.

    The engine fills lane 0 of a `Record` and returns -1, or the index of the first request that the rule sent to
    a replica that does not exist.
    """
    route_one = kernel_in_memory(rule)

    @kernel_in_memory
    def run_cell(
        arrival, service, prefix, session, prefixes, sessions, prompt, output,
        speed, parameters, seed, speedup, warmup, record,
    ):  # fmt: skip
        replicas = speed.size
        available = np.zeros(replicas, np.float64)
        served = np.zeros(replicas, np.int64)
        wait = np.empty(replicas, np.float64)
        holds = np.empty(replicas, np.bool_)
        draws = np.empty(UNIFORMS, np.float64)
        tokens = prompt + output
        exact = np.ones(arrival.size, np.float64)
        state, index, span, link, seen = new_queues(replicas, arrival.size, 1)
        kv = np.empty(replicas, np.float64)
        utilisation = np.empty(replicas, np.float64)
        # The last row, which index -1 reaches, stands for "none" and is never written.
        held = np.zeros((prefixes + 1, replicas), np.bool_)
        owners = np.full(sessions + 1, -1, np.int64)
        moves = 0.0
        variance = 0.0
        peak = 0.0
        for i in range(arrival.size):
            t = arrival[i]
            total = 0.0
            for r in range(replicas):
                wait[r] = max(0.0, available[r] - t)
                holds[r] = held[prefix[i], r]
                total += wait[r]
                advance(r, t, state, index, span, link, seen, 0.0, tokens, service, exact)
                serving = tokens[link[REQUEST, index[HEAD, r]]] if index[COUNT, r] > 0 else 0
                kv[r] = serving / KV_CAPACITY_TOKENS
                utilisation[r] = busy_share(r, t, WINDOW_MS, state, index, span, link)
            squares = 0.0
            if replicas > 1:
                mean = total / replicas
                for r in range(replicas):
                    squares += (wait[r] - mean) * (wait[r] - mean)
                squares /= replicas - 1
            for k in range(UNIFORMS):
                draws[k] = uniform(seed, ROUTING, UNIFORMS * i + k)
            owner = owners[session[i]]
            view = View(t, wait, holds, owner, speed, served, draws, index[COUNT], index[HELD], kv, utilisation)
            request = Request(i, t, service[i], prefix[i], session[i], prompt[i], output[i])
            chosen = np.int64(route_one(view, request, parameters))
            if chosen < 0 or chosen >= replicas:
                return i
            hit = held[prefix[i], chosen]
            begin = max(t, available[chosen])
            took = (service[i] * (1.0 - speedup) if hit else service[i]) / speed[chosen]
            available[chosen] = begin + took
            append(i, chosen, i, 0, begin, took, tokens[i], 1.0, 0.0, state, index, span, link)
            served[chosen] += 1
            if prefix[i] >= 0:
                held[prefix[i], chosen] = True
            if session[i] >= 0:
                owners[session[i]] = chosen
            if i >= warmup:
                variance += squares
                peak = max(peak, squares)
                if owner >= 0 and owner != chosen:
                    moves += 1.0
            record.start[i, 0] = begin
            record.effective[i, 0] = took
            record.replica[i, 0] = chosen
            record.route[i, 0] = np.uint8(hit)
        record.moves[0] = moves
        record.variance[0] = variance
        record.peak[0] = peak
        return -1

    return run_cell
