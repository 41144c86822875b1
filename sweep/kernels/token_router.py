"""The token-step engine under any rule, on the axes that steps allow, with replicas that fail.

Replicas serve as in `sweep.kernels.token_step`. All times here are numbers of steps. In a step happens, in this order:
replicas go down or come back, reports reach the routers, work lost with a replica is sent again, requests that waited
for a replica are sent, requests arrive, every replica serves and admits.

Axis letters: i request, r replica, k router, s step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sweep.kernels.codes import (
    BOUNDED_HASH,
    CONSISTENT_HASH,
    MIGRATE,
    NO_CORRECTION,
    POWER_OF_D,
    RANDOM,
    ROUND_ROBIN,
    ROUTER_DRAWS,
    SOFT_STICKY,
    SPEED_KNOWN,
    STICKY_SESSION,
    TIE_DRAWS,
    TIE_RANDOM,
    WEIGHTED_RANDOM,
    WEIGHTED_ROUND_ROBIN,
)
from sweep.kernels.failures import cold_since, count_failure, fill_up, known_up, new_later, next_chance, pop, push
from sweep.kernels.jit import kernel
from sweep.kernels.random import uniform
from sweep.kernels.replicas import OPEN_UNTIL, TRIAL, TRIAL_UNTIL, own_load, speed_at
from sweep.kernels.rules import Choice, at_random, first_on_ring, inversely, least, of_some, smooth, walk_ring
from sweep.kernels.token_replicas import (
    BEFORE,
    CONSUMED,
    FRONT,
    IN_FLIGHT,
    QUEUED,
    WAITING,
    append,
    crash,
    load_of,
    report,
    restart,
    serve,
)
from sweep.kernels.token_step import BATCH, fill_waits


class Steps(NamedTuple):
    """A stream in steps: arrays by request, and how many ids of each kind there are; -1 = none."""

    step: np.ndarray
    tokens: np.ndarray
    prompt: np.ndarray
    session: np.ndarray
    prefix: np.ndarray
    sessions: int
    prefixes: int


class Routed(NamedTuple):
    """What became of every request: the replica it was last sent to (-1 = none), when it entered (-1 = never), why."""

    replica: np.ndarray
    entered: np.ndarray
    reason: np.ndarray
    attempts: np.ndarray
    sent: np.ndarray
    lost: np.ndarray
    misrouted: np.ndarray
    migrated: np.ndarray


def new_routed(requests: int) -> Routed:
    """Return room for what becomes of a stream; the engine fills it."""
    return Routed(*(np.empty(requests, np.int64) for _ in range(5)), *(np.empty(requests, np.bool_) for _ in range(3)))


@kernel
def _next_chance(outages, seen, k, s):
    """Return the first step after `s` at which a router may hold another replica to be up; infinity: never."""
    soonest = next_chance(outages, seen, k, s)
    for r in range(seen.shape[2]):
        # The fate of a trial may show in any step.
        if seen[OPEN_UNTIL, k, r] > -np.inf and seen[TRIAL_UNTIL, k, r] == np.inf:
            soonest = min(soonest, s + 1.0)
    return soonest


@kernel
def run_token_router(
    stream, first, piece, rules, tables, outages, seed, step_ms, steps, load, routed, scalars, cumulative
):
    """Run one cell and fill its statistics; return the number of steps it took.

    Parameters
    ----------
    stream : Steps
    first : int64[replica + 1]
    piece : float64[2, piece]
        The speed of every replica over steps, see `sweep.kernels.replicas`.
    rules : Rules
        ``freshness`` in steps.
    tables : Tables
    outages : Outages
        Every time in steps.
    seed : uint64
    step_ms : float
    steps : int
        Length of the run; -1 = until every request has arrived and every replica that is up is empty.
    load : int64[step, replica]
        Zeros; filled as far as it reaches: tokens in service and queued after each step.
    routed : Routed
        Filled.
    scalars : float64[column]
        Filled: see `sweep.kernels.token_step.COLUMNS`.
    cumulative : int64[replica]
        Filled: sum of the load over steps.
    """
    step, tokens, prompt, session, prefix, sessions, prefixes = stream
    replica, entered, route, attempts, sent, lost, misrouted, migrated = routed
    n = step.size
    replicas = first.size - 1
    routers = rules.routers
    rule = rules.rule
    eventful = outages.total > 0
    period = np.int64(rules.freshness)
    stale = period > 0
    corrected = stale and rules.correction != NO_CORRECTION
    reads_load = rule != ROUND_ROBIN and rule != RANDOM and rule != WEIGHTED_ROUND_ROBIN

    state = np.zeros((5, replicas), np.int64)
    queue = np.full((4, replicas), -1, np.int64)
    queue[BEFORE] = 0
    seen = np.zeros((7, routers, replicas), np.float64)
    seen[OPEN_UNTIL:] = -np.inf
    later = new_later(n if eventful else 0)
    behind = np.full(n, -1, np.int64)
    ready = np.zeros(n, np.int64)
    router = np.zeros(n, np.int64)
    # The last column, which index -1 reaches, stands for "none" and is never written.
    owners = np.full((routers, sessions + 1), -1, np.int64)
    home = np.full((routers, sessions + 1), -1, np.int64)
    home_at = np.full((routers, sessions + 1), -np.inf)
    points = np.full((2, max(sessions, prefixes) + 1), -1, np.int64)
    outage = outages.first.copy()
    down = np.zeros(replicas, np.bool_)
    capacity = np.empty(replicas, np.int64)
    believed = np.zeros(replicas, np.float64)
    reported = np.zeros(replicas, np.float64)
    own = np.zeros((routers, replicas), np.float64)
    ordinal = np.full(replicas, -1, np.int64)
    offset = np.zeros(replicas, np.int64)
    alive = np.ones(replicas, np.bool_)
    up = np.ones(replicas, np.bool_)
    some = np.zeros(replicas, np.bool_)
    order = np.empty(replicas, np.int64)
    weight = np.ones(replicas, np.float64)
    current = np.zeros((routers, replicas), np.float64)
    position = np.zeros(routers, np.int64)
    start = np.empty(routers, np.int64)
    for r in range(replicas):
        capacity[r] = int(piece[1, first[r]] * 1.0 * BATCH)
        offset[r] = r * period // replicas if rules.spread else 0
    for k in range(routers):
        start[k] = replicas * k // routers
    replica[:] = -1
    entered[:] = -1
    route[:] = 0
    attempts[:] = 0
    sent[:] = 0
    lost[:] = False
    misrouted[:] = False
    migrated[:] = False
    cumulative[:] = 0
    variance = 0.0
    peak = 0.0
    finished = 0
    arrived = 0
    s = 0
    busy = False
    held = False
    while s < steps or (steps < 0 and (arrived < n or busy or later.length[0] > 0)):
        if not held and later.length[0] == 0 and (arrived == n or step[arrived] > s) and not (eventful and stale):
            # Nothing happens, and every load is 0, until the next arrival.
            ahead = steps if arrived == n else step[arrived]
            s = ahead if steps < 0 else min(ahead, steps)
            continue

        # --- The replicas, and what is known of them ------------------------------------------------------------------
        if eventful:
            for r in range(replicas):
                while outage[r] < outages.first[r + 1]:
                    j = outage[r]
                    if outages.start[j] > s:
                        break
                    if not outages.drain[j] and not down[r]:
                        crash(r, outages.start[j] + outages.delay, state, queue, behind, entered, later)
                        down[r] = True
                    if s < outages.end[j]:
                        break
                    if down[r]:
                        restart(r, state, queue)
                        down[r] = False
                    outage[r] += 1
                capacity[r] = int(speed_at(first, piece, r, s) * 1.0 * BATCH)
            known_up(outages, s, alive)
        if stale:
            for r in range(replicas):
                # After steps that were skipped, nothing has changed since the newest report.
                newest = (s - offset[r]) // period if s >= offset[r] else -1
                if newest > ordinal[r]:
                    ordinal[r] = newest
                    if not down[r]:
                        report(r, rules, tokens, router, state, queue, behind, reported, own)

        while True:
            # --- Which request is next --------------------------------------------------------------------------------
            failed = -1
            if later.length[0] > 0 and later.time[0] <= s:
                _, waited, i = pop(later)
                k = router[i]
                if not waited:
                    failed = replica[i]
            elif arrived < n and step[arrived] <= s:
                i = arrived
                arrived += 1
                k = i % routers
                if rules.random_router and routers > 1:
                    k = int(uniform(seed, ROUTER_DRAWS, i) * routers)
                router[i] = k
            else:
                break

            refused = failed >= 0
            while True:
                if refused:
                    count_failure(outages, seen, k, failed, i, s)
                    if attempts[i] >= outages.retries:
                        lost[i] = True
                        break
                    attempts[i] += 1

                # --- Which replicas this router holds to be up --------------------------------------------------------
                if eventful:
                    found = fill_up(alive, seen, k, failed, s, up)
                    if found == 0:
                        chance = _next_chance(outages, seen, k, s)
                        if outages.wait and chance < np.inf:
                            push(later, chance, True, i)
                        else:
                            lost[i] = True
                        break

                # --- What it believes of them -------------------------------------------------------------------------
                if reads_load:
                    for r in range(replicas):
                        believed[r] = reported[r] + own[k, r] if stale else load_of(r, rules, state)
                    if rules.speed == SPEED_KNOWN:
                        for r in range(replicas):
                            believed[r] /= speed_at(first, piece, r, s - outages.delay)

                # --- The choice ---------------------------------------------------------------------------------------
                number = attempts[i] * n + i
                tie_draw = uniform(seed, TIE_DRAWS, number) if rules.tie == TIE_RANDOM else 0.0
                choice = Choice(seed, number, start[k], rules.tie, tie_draw)
                start[k] = start[k] + 1 if start[k] + 1 < replicas else 0
                owner = owners[k, session[i]]
                reason = 0
                if rule == ROUND_ROBIN:
                    chosen = position[k] % replicas
                    while not up[chosen]:
                        position[k] += 1
                        chosen = position[k] % replicas
                    position[k] += 1
                elif rule == RANDOM:
                    chosen = at_random(up, choice)
                elif rule == WEIGHTED_RANDOM:
                    chosen = inversely(believed, up, choice)
                elif rule == POWER_OF_D:
                    chosen = of_some(believed, up, some, order, rules.draws, rules.replacement, choice)
                elif rule == WEIGHTED_ROUND_ROBIN:
                    for r in range(replicas):
                        weight[r] = (
                            tables.weight[r] if tables.weight.size > 0 else speed_at(first, piece, r, s - outages.delay)
                        )
                    chosen = smooth(current[k], weight, up)
                elif rule == STICKY_SESSION:
                    chosen = least(believed, up, choice)
                    reason = 1 if session[i] >= 0 else 2
                    if owner >= 0 and up[owner]:
                        chosen = owner
                        reason = 0
                elif rule == SOFT_STICKY:
                    chosen = least(believed, up, choice)
                    reason = 3 if session[i] < 0 else 2 if owner < 0 else 1
                    if owner >= 0 and up[owner]:
                        limit = max(believed[chosen] + rules.threshold, rules.relative * believed[chosen])
                        if believed[owner] <= limit:
                            chosen = owner
                            reason = 0
                elif rule == MIGRATE:
                    chosen = least(believed, up, choice)
                    reason = 2 if session[i] >= 0 else 3
                    if home[k, session[i]] >= 0:
                        reason = 0 if home[k, session[i]] == chosen else 1
                elif rule in (CONSISTENT_HASH, BOUNDED_HASH):
                    kind = 0 if session[i] >= 0 else 1
                    key = session[i] if session[i] >= 0 else prefix[i]
                    if key >= 0:
                        if points[kind, key] < 0:
                            points[kind, key] = first_on_ring(tables.ring, seed, kind, key)
                        chosen, on_ring = walk_ring(tables.ring_replica, points[kind, key], believed, up, rules.bound)
                        reason = 0 if chosen == on_ring else 1
                    else:
                        chosen = least(believed, up, choice)
                        reason = 2
                else:
                    chosen = least(believed, up, choice)

                # --- What the replica makes of it ---------------------------------------------------------------------
                r = chosen
                replica[i] = r
                route[i] = reason
                sent[i] += 1
                seen[TRIAL, k, r] = i if seen[OPEN_UNTIL, k, r] > -np.inf else -np.inf
                if session[i] >= 0:
                    owners[k, session[i]] = r
                j = outage[r]
                if eventful and j < outages.first[r + 1] and outages.start[j] <= s:
                    misrouted[i] = True
                    if outages.drain[j]:
                        refused = True
                        failed = r
                        continue
                migrated[i] = False
                ready[i] = s
                if rule == MIGRATE and session[i] >= 0 and not down[r]:
                    if reason == 1:
                        cold = cold_since(outages, home[k, session[i]], s, 0.0) if eventful else -np.inf
                        if home_at[k, session[i]] > cold:
                            migrated[i] = True
                            took = rules.transfer + rules.transfer_per_token * prompt[i]
                            ready[i] = s + np.int64(np.ceil(took / step_ms))
                    home[k, session[i]] = r
                    home_at[k, session[i]] = s
                if corrected:
                    own[k, r] += own_load(tokens[i], tokens[i], rules, 1.0)
                if down[r]:
                    state[QUEUED, r] += tokens[i]
                    state[WAITING, r] += 1
                    push(later, outages.start[j] + outages.delay, False, i)
                else:
                    append(r, i, tokens[i], state, queue, behind)
                if seen[OPEN_UNTIL, k, r] > -np.inf:
                    seen[TRIAL_UNTIL, k, r] = np.inf
                break

        # --- Every replica serves -------------------------------------------------------------------------------------
        busy = False
        held = False
        total = 0
        for r in range(replicas):
            if not down[r]:
                finished += serve(r, s, capacity[r], tokens, ready, router, state, queue, behind, entered, seen)
                busy |= queue[FRONT, r] >= 0
            now = state[IN_FLIGHT, r] + state[QUEUED, r]
            held |= now > 0 or queue[FRONT, r] >= 0
            total += now
            cumulative[r] += now
            if s < load.shape[0]:
                load[s, r] = now
        if replicas > 1:
            mean = total / replicas
            squares = 0.0
            for r in range(replicas):
                d = state[IN_FLIGHT, r] + state[QUEUED, r] - mean
                squares += d * d
            squares /= replicas - 1
            variance += squares
            peak = max(peak, squares)
        s += 1

    wait = np.empty(arrived, np.float64)
    count = 0
    unstarted = 0
    for i in range(arrived):
        if not lost[i]:
            until = entered[i] if entered[i] >= 0 else s
            unstarted += entered[i] < 0
            wait[count] = (until - step[i]) * step_ms
            count += 1
    scalars[:] = np.nan
    fill_waits(wait[:count], scalars)
    if s > 0:
        scalars[4] = variance / s
        scalars[5] = peak
    scalars[6] = unstarted
    scalars[7] = state[CONSUMED].sum()
    scalars[8] = finished
    return s
