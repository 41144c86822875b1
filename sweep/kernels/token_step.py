"""The token-step engine: fixed steps, a batch of 100 tokens, a FIFO queue of whole requests per replica."""

from __future__ import annotations

import numpy as np

from sweep.kernels.jit import kernel

ROUND_ROBIN, LEAST_LOAD = range(2)

#: Tokens that a replica of speed 1 serves in a step, and the level up to which it admits requests.
BATCH = 100

#: The scalar statistics, in the order of the columns that `run_token_cell` fills.
COLUMNS = (
    "request_count",
    "mean_queue_wait_ms",
    "p95_queue_wait_ms",
    "p99_queue_wait_ms",
    "load_variance",
    "peak_load_variance",
    "unstarted_requests",
    "finished_tokens",
    "finished_requests",
)


@kernel
def _route(rule, weight, i, in_flight, queued):
    replicas = in_flight.size
    if rule == ROUND_ROBIN:
        return i % replicas
    best = 0
    least = np.inf
    for r in range(replicas):
        load = weight * in_flight[r] + queued[r]
        if load < least:
            least = load
            best = r
    return best


@kernel
def fill_waits(wait, scalars):
    """Fill the number, mean and quantiles of the waits of requests in order of arrival; sorts them."""
    n = wait.size
    scalars[0] = n
    if n > 0:
        total = 0.0
        for i in range(n):
            total += wait[i]
        wait.sort()
        scalars[1] = total / n
        scalars[2] = wait[(95 * n + 99) // 100 - 1]
        scalars[3] = wait[(99 * n + 99) // 100 - 1]


@kernel
def run_token_cell(rule, weight, step, tokens, speed, step_ms, steps, load, replica, entered, scalars, cumulative):
    """Run one cell and fill its statistics; return the number of steps it took.

    Parameters
    ----------
    rule : int
        ``ROUND_ROBIN`` or ``LEAST_LOAD``.
    weight : float
        Of the tokens in service in the load that ``LEAST_LOAD`` compares.
    step, tokens : int64[request]
        Step of arrival (not decreasing) and size.
    speed : float64[replica]
    step_ms : float
    steps : int
        Length of the run; -1 = until every queue is empty and every request has arrived.
    load : int64[step, replica]
        Zeros; filled as far as it reaches: tokens in service and queued after each step.
    replica, entered : int64[request]
        Filled: the replica chosen, -1 = not arrived, and the step in which the request entered service, -1 = never.
    scalars : float64[column]
        Filled: see `COLUMNS`.
    cumulative : int64[replica]
        Filled: sum of the load over steps.
    """
    n = step.size
    replicas = speed.size
    in_flight = np.zeros(replicas, np.int64)
    queued = np.zeros(replicas, np.int64)
    consumed = np.zeros(replicas, np.int64)
    capacity = np.empty(replicas, np.int64)
    first = np.full(replicas, -1, np.int64)
    head = np.full(replicas, -1, np.int64)
    tail = np.full(replicas, -1, np.int64)
    behind = np.full(n, -1, np.int64)
    for r in range(replicas):
        capacity[r] = int(speed[r] * 1.0 * BATCH)
    replica[:] = -1
    entered[:] = -1
    cumulative[:] = 0
    variance = 0.0
    peak = 0.0
    arrived = 0
    s = 0
    waiting = 0
    while s < steps or (steps < 0 and (arrived < n or waiting > 0)):
        if waiting == 0 and (arrived == n or step[arrived] > s):
            # Nothing happens, and every load is 0, until the next arrival.
            ahead = steps if arrived == n else step[arrived]
            s = ahead if steps < 0 else min(ahead, steps)
            continue
        while arrived < n and step[arrived] <= s:
            r = _route(rule, weight, arrived, in_flight, queued)
            replica[arrived] = r
            queued[r] += tokens[arrived]
            if tail[r] < 0:
                first[r] = arrived
            else:
                behind[tail[r]] = arrived
            if head[r] < 0:
                head[r] = arrived
            tail[r] = arrived
            arrived += 1
        waiting = 0
        total = 0
        for r in range(replicas):
            served = min(in_flight[r], capacity[r])
            in_flight[r] -= served
            consumed[r] += served
            while head[r] >= 0 and in_flight[r] < BATCH:
                i = head[r]
                in_flight[r] += tokens[i]
                queued[r] -= tokens[i]
                entered[i] = s
                head[r] = behind[i]
            now = in_flight[r] + queued[r]
            waiting += now + (head[r] >= 0)
            total += now
            cumulative[r] += now
            if s < load.shape[0]:
                load[s, r] = now
        if replicas > 1:
            mean = total / replicas
            squares = 0.0
            for r in range(replicas):
                d = in_flight[r] + queued[r] - mean
                squares += d * d
            squares /= replicas - 1
            variance += squares
            peak = max(peak, squares)
        s += 1

    wait = np.empty(arrived, np.float64)
    unstarted = 0
    for i in range(arrived):
        until = entered[i] if entered[i] >= 0 else s
        unstarted += entered[i] < 0
        wait[i] = (until - step[i]) * step_ms
    finished = 0
    for r in range(replicas):
        # Tokens are served in the order in which they entered.
        i = first[r]
        due = 0
        while i >= 0 and entered[i] >= 0:
            due += tokens[i]
            if due > consumed[r]:
                break
            finished += 1
            i = behind[i]
    scalars[:] = np.nan
    fill_waits(wait, scalars)
    if s > 0:
        scalars[4] = variance / s
        scalars[5] = peak
    scalars[6] = unstarted
    scalars[7] = consumed.sum()
    scalars[8] = finished
    return s
