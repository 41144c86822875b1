"""Replicas in steps of a token batch: what they hold and serve, what is lost with one, and the load that routers see.

State stands in arrays with named rows, as in `sweep.kernels.replicas`.
"""

from __future__ import annotations

from sweep.kernels.codes import OWN_UNTIL_SEEN
from sweep.kernels.failures import push
from sweep.kernels.jit import kernel
from sweep.kernels.replicas import count_success, own_unseen_load
from sweep.kernels.token_step import BATCH

#: Rows of ``state``, by replica: tokens and requests in service and queued, and the tokens served so far.
IN_FLIGHT, QUEUED, SERVING, WAITING, CONSUMED = range(5)
#: Rows of ``queue``, by replica: the first request that is not finished, the first that waits, the last, and the tokens
#: that are served before the first is.
FRONT, HEAD, TAIL, BEFORE = range(4)


@kernel
def append(r, i, tokens, state, queue, behind):
    """Queue request `i` on a replica."""
    behind[i] = -1
    if queue[FRONT, r] < 0:
        queue[FRONT, r] = i
    else:
        behind[queue[TAIL, r]] = i
    if queue[HEAD, r] < 0:
        queue[HEAD, r] = i
    queue[TAIL, r] = i
    state[QUEUED, r] += tokens
    state[WAITING, r] += 1


@kernel
def serve(r, s, capacity, tokens, ready, router, state, queue, behind, entered, seen):
    """Serve a step, admit whole requests while there is room, and let the routers see what finished; return how many.

    Tokens are served in the order in which they entered.
    """
    served = min(state[IN_FLIGHT, r], capacity)
    state[IN_FLIGHT, r] -= served
    state[CONSUMED, r] += served
    while queue[HEAD, r] >= 0 and state[IN_FLIGHT, r] < BATCH and ready[queue[HEAD, r]] <= s:
        i = queue[HEAD, r]
        state[IN_FLIGHT, r] += tokens[i]
        state[QUEUED, r] -= tokens[i]
        state[SERVING, r] += 1
        state[WAITING, r] -= 1
        entered[i] = s
        queue[HEAD, r] = behind[i]
    finished = 0
    while queue[FRONT, r] != queue[HEAD, r]:
        i = queue[FRONT, r]
        if queue[BEFORE, r] + tokens[i] > state[CONSUMED, r]:
            break
        queue[BEFORE, r] += tokens[i]
        queue[FRONT, r] = behind[i]
        state[SERVING, r] -= 1
        count_success(seen, router[i], r, i)
        finished += 1
    return finished


@kernel
def crash(r, detected, state, queue, behind, entered, later):
    """Lose what a replica holds: its requests fail when that is detected. Its counters stand still until it is back."""
    i = queue[FRONT, r]
    while i >= 0:
        push(later, detected, False, i)
        entered[i] = -1
        i = behind[i]
    queue[FRONT, r] = -1
    queue[HEAD, r] = -1


@kernel
def restart(r, state, queue):
    """Let a replica that was down come back empty."""
    state[IN_FLIGHT, r] = 0
    state[QUEUED, r] = 0
    state[SERVING, r] = 0
    state[WAITING, r] = 0
    queue[BEFORE, r] = state[CONSUMED, r]


@kernel
def load_of(r, rules, state):
    """Return the load of a replica; on token steps work is counted in tokens."""
    tokens = state[QUEUED, r] + rules.in_service * state[IN_FLIGHT, r]
    load = rules.work * tokens
    load += rules.requests * (state[WAITING, r] + rules.in_service * state[SERVING, r])
    load += rules.tokens * tokens
    return load + rules.kv * (state[IN_FLIGHT, r] / rules.kv_capacity)


@kernel
def report(r, rules, tokens, router, state, queue, behind, reported, own):
    """Let the state of a replica reach the routers."""
    reported[r] = load_of(r, rules, state)
    own[:, r] = 0.0
    if rules.correction == OWN_UNTIL_SEEN and rules.kv > 0.0:
        i = queue[HEAD, r]
        while i >= 0:
            own[router[i], r] += own_unseen_load(0.0, tokens[i], rules, 1.0)
            i = behind[i]
