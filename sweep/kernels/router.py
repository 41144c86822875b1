"""The router engine: one cell of the timeline under any built-in policy, on every axis.

An event loop over arrivals and over what happens to requests later (work lost with a replica, requests that wait for
one). Each step brings in the reports that are due, lets the router of the request choose, and queues it. Where nothing
is stale, guessed or failing, a policy gives the same bits as its form in `sweep.kernels.timeline`.

Axis letters: i request, r replica, k router.
"""

from __future__ import annotations

import numpy as np

from sweep.kernels.beliefs import fill_holders, hold, newest_report, put_back_unseen
from sweep.kernels.block_cache import clear, count_copies, touch
from sweep.kernels.block_match import holds, match_of, matches, tokens_of
from sweep.kernels.block_view import (
    believed_longest,
    clear_views,
    empty,
    empty_lost,
    longest_elsewhere,
    note_all,
    note_sent,
    notice,
    report,
    reveal_noting,
)
from sweep.kernels.codes import (
    BOUNDED_HASH,
    CONSISTENT_HASH,
    LOCALITY_AWARE,
    MIGRATE,
    NO_CORRECTION,
    OWN_UNTIL_SEEN,
    POWER_OF_D,
    RANDOM,
    ROUND_ROBIN,
    ROUTER_DRAWS,
    SHORTEST_EXPECTED_DELAY,
    SOFT_STICKY,
    SPEED_KNOWN,
    SPEED_MEASURED,
    STICKY_SESSION,
    TIE_DRAWS,
    TIE_RANDOM,
    WEIGHTED_RANDOM,
    WEIGHTED_ROUND_ROBIN,
)
from sweep.kernels.failures import (
    cold_since,
    count_failure,
    fill_up,
    is_down,
    known_up,
    new_later,
    next_chance,
    next_crash,
    pop,
    push,
    settle,
)
from sweep.kernels.jit import kernel
from sweep.kernels.own_view import ANSWERED, RAISED, lent, new_looks
from sweep.kernels.random import ROUTING, uniform
from sweep.kernels.replicas import (
    AVAILABLE,
    COUNT,
    HEAD,
    HELD,
    NEXT_FINISH,
    OPEN_UNTIL,
    REQUEST,
    SPEED,
    TRIAL,
    TRIAL_UNTIL,
    advance,
    append,
    busy_share,
    drain_time,
    fill_loads,
    measured_speed,
    new_queues,
    own_load,
    service_time,
    speed_at,
)
from sweep.kernels.rules import Choice, at_random, first_on_ring, inversely, least, of_some, smooth, walk_ring
from sweep.rules_api import UNIFORMS, Request, View


@kernel
def run_router(
    traffic, first, piece, rules, tables, outages, seed, warmup, record, fates, blocks, own_rule, parameters
):  # fmt: skip
    """Route and serve every request of one cell; record in lane 0 what happened.

    Numba compiles it anew for `blocks` and `own_rule` that are None or not, and leaves out the other branches; it does
    so for a bare test of an argument, without ``and``.

    Parameters
    ----------
    traffic : Traffic
    first : int64[replica + 1]
    piece : float64[2, piece]
        The speed of every replica over time, see `sweep.kernels.replicas`.
    rules : Rules
    tables : Tables
    outages : Outages
    seed : uint64
    warmup : int
        First arrivals left out of the record's moves, variance and peak.
    record : Record
        Lane 0 is filled; the rows of requests that were lost hold nothing of use.
    fates : Fates
        Filled.
    blocks : Blocks or None
        Caches of blocks, filled; None: caches of one key that hold every prefix.
    own_rule, parameters : pointer to a function and float64[:], or None
        A user's rule and what it is given, see `sweep.kernels.user_rule`; None: the rule of `rules`.

    Returns
    -------
    -1 and 0, or the first request that a user's rule sent where it may not, and there.
    """
    arrival, service, prefix, session, adapter, prompt, tokens, prefixes, sessions, adapters = traffic
    start_at, effective, sent_to, route = record.start, record.effective, record.replica, record.route
    attempts, sent, lost, misrouted, migrated = fates
    n = arrival.size
    replicas = first.size - 1
    routers = rules.routers
    rule = rules.rule
    eventful = outages.total > 0
    stale = rules.freshness > 0.0
    corrected = stale and rules.correction != NO_CORRECTION
    # Whether a decision needs the queues at its own time; reports bring them to theirs.
    counting = eventful or rules.fading > 0.0 or not (stale or rules.exact)
    if own_rule is not None:
        counting = True
        looks = new_looks(replicas)
    reads_load = rule != ROUND_ROBIN and rule != RANDOM and rule != WEIGHTED_ROUND_ROBIN
    if own_rule is not None:
        reads_load = False

    state, index, span, link, seen = new_queues(replicas, n * (outages.retries + 1), routers)
    later = new_later(n if eventful else 0)
    error = tables.error
    # The last row of each, which index -1 reaches, stands for "none" and is never written.
    cached_at = np.full((prefixes + 1, replicas), -np.inf)
    loaded_at = np.full((adapters + 1, replicas), -np.inf)
    sent_prefix = np.zeros((prefixes + 1 if corrected else 1, replicas), np.int64)
    sent_adapter = np.zeros((adapters + 1 if corrected else 1, replicas), np.int64)
    owners = np.full((routers, sessions + 1), -1, np.int64)
    keys = sessions
    for i in range(n):
        keys = max(keys, prefix[i] + 1)
    points = np.full((2, keys), -1, np.int64)
    outage = outages.first.copy()
    clock = np.empty(replicas, np.float64)
    wait = np.zeros(replicas, np.float64)
    load = np.zeros(replicas, np.float64)
    reported = np.zeros(replicas, np.float64)
    reported_at = np.full(replicas, -np.inf)
    own = np.zeros((routers, replicas), np.float64)
    ordinal = np.full(replicas, -1, np.int64)
    offset = np.zeros(replicas, np.float64)
    next_report = np.full(replicas, np.inf)
    alive = np.ones(replicas, np.bool_)
    up = np.ones(replicas, np.bool_)
    some = np.ones(replicas, np.bool_)
    order = np.empty(replicas, np.int64)
    weight = np.ones(replicas, np.float64)
    current = np.zeros((routers, replicas), np.float64)
    position = np.zeros(routers, np.int64)
    start = np.empty(routers, np.int64)
    router = np.zeros(n, np.int64)
    attempts[:] = 0
    sent[:] = 0
    lost[:] = False
    misrouted[:] = False
    migrated[:] = False
    for r in range(replicas):
        offset[r] = r * rules.freshness / replicas if rules.spread else 0.0
        if stale:
            next_report[r] = offset[r]
    for k in range(routers):
        start[k] = replicas * k // routers
    if blocks is not None:
        chain, offsets, holders = blocks.stream.chain, blocks.stream.offsets, blocks.caches.holders
        matching = np.zeros(holders.shape[1], np.int64)
        emptied = outages.first.copy()
        noticed = outages.first.copy()
        clear(blocks.caches)
        clear_views(blocks.views)
        blocks.evicted[:] = 0
    soonest = 0.0 if stale else np.inf
    change = 0
    entries = 0
    variance = 0.0
    peak = 0.0

    now = 0.0
    following = 0
    while following < n or later.length[0] > 0:
        # --- What happens next, and to which request ------------------------------------------------------------------
        failed = -1
        if later.length[0] > 0 and (following == n or later.time[0] <= arrival[following]):
            now, waited, i = pop(later)
            k = router[i]
            if not waited:
                failed = int(sent_to[i, 0])
            arrives = False
        else:
            i = following
            following += 1
            now = arrival[i]
            arrives = True
            k = i % routers
            if rules.random_router and routers > 1:
                k = int(uniform(seed, ROUTER_DRAWS, i) * routers)
            router[i] = k

        # --- The replicas, and what is known of them, now -------------------------------------------------------------
        if now >= soonest:
            soonest = np.inf
            due_from = -1
            for r in range(replicas):
                if now >= next_report[r]:
                    newest = newest_report(ordinal[r], now, offset[r], rules.freshness)
                    reports = newest
                    while (
                        eventful and reports > ordinal[r] and is_down(outages, r, reports * rules.freshness + offset[r])
                    ):
                        reports -= 1
                    if reports > ordinal[r]:
                        clock[r] = reports * rules.freshness + offset[r]
                        if eventful:
                            settle(
                                r, clock[r], outages, outage, state, index, span, link, seen, rules.fading, tokens,
                                service, error,
                            )  # fmt: skip
                        elif state[NEXT_FINISH, r] <= clock[r]:
                            advance(r, clock[r], state, index, span, link, seen, rules.fading, tokens, service, error)
                        if blocks is not None:
                            if eventful:
                                empty_lost(r, clock[r], outages, emptied, blocks.caches, blocks.views.news)
                            if blocks.late:
                                reveal_noting(clock[r], r, chain, offsets, blocks.caches, blocks.views.news)
                            until_seen = rules.correction == OWN_UNTIL_SEEN
                            report(r, until_seen, router, chain, offsets, blocks.caches, blocks.views)
                        reported_at[r] = clock[r]
                        if corrected:
                            own[:, r] = 0.0
                            if rules.correction == OWN_UNTIL_SEEN and rules.kv + rules.utilisation > 0.0:
                                known_speed = speed_at(first, piece, r, clock[r] - outages.delay)
                                put_back_unseen(r, own, rules, known_speed, index, link, tokens, service, error)
                        due_from = r if due_from < 0 else due_from
                    elif due_from >= 0:
                        fill_loads(due_from, r, clock, reported, rules, state, index, span, link, first, piece, tokens)
                        due_from = -1
                    ordinal[r] = newest
                    next_report[r] = (newest + 1) * rules.freshness + offset[r]
                elif due_from >= 0:
                    fill_loads(due_from, r, clock, reported, rules, state, index, span, link, first, piece, tokens)
                    due_from = -1
                soonest = min(soonest, next_report[r])
            if due_from >= 0:
                fill_loads(due_from, replicas, clock, reported, rules, state, index, span, link, first, piece, tokens)
        if eventful:
            for r in range(replicas):
                clock[r] = settle(
                    r, now, outages, outage, state, index, span, link, seen, rules.fading, tokens, service, error
                )
            if change < outages.changes.size and outages.changes[change] <= now:
                known_up(outages, now, alive)
                while change < outages.changes.size and outages.changes[change] <= now:
                    change += 1
        else:
            clock[:] = now
            if counting:
                for r in range(replicas):
                    if state[NEXT_FINISH, r] <= now:
                        advance(r, now, state, index, span, link, seen, rules.fading, tokens, service, error)

        if blocks is not None:
            for r in range(replicas if eventful or blocks.late else 0):
                if eventful:
                    empty_lost(r, now, outages, emptied, blocks.caches, blocks.views.news)
                    if stale:
                        notice(r, now, outages, noticed, reported_at[r], blocks.views)
                if blocks.late:
                    reveal_noting(clock[r], r, chain, offsets, blocks.caches, blocks.views.news)

        if arrives:
            total = 0.0
            if eventful:
                for r in range(replicas):
                    until = state[AVAILABLE, r]
                    wait[r] = drain_time(first, piece, r, clock[r], until) if until > clock[r] else 0.0
                    total += wait[r]
            else:
                for r in range(replicas):
                    wait[r] = max(0.0, state[AVAILABLE, r] - now)
                    total += wait[r]
            if i >= warmup and replicas > 1:
                mean = total / replicas
                squares = 0.0
                for r in range(replicas):
                    squares += (wait[r] - mean) * (wait[r] - mean)
                squares /= replicas - 1
                variance += squares
                peak = max(peak, squares)

        # --- A request whose replica failed it ------------------------------------------------------------------------
        refused = failed >= 0
        while True:
            if refused:
                count_failure(outages, seen, k, failed, i, now)
                if attempts[i] >= outages.retries:
                    lost[i] = True
                    break
                attempts[i] += 1

            # --- Which replicas this router holds to be up ------------------------------------------------------------
            if eventful:
                found = fill_up(alive, seen, k, failed, now, up)
                if found == 0:
                    chance = next_chance(outages, seen, k, now)
                    if outages.wait and chance < np.inf:
                        push(later, chance, True, i)
                    else:
                        lost[i] = True
                    break

            # --- What it believes of them -----------------------------------------------------------------------------
            if reads_load:
                if stale:
                    for r in range(replicas):
                        load[r] = reported[r] + own[k, r]
                else:
                    fill_loads(0, replicas, clock, load, rules, state, index, span, link, first, piece, tokens)
                if rules.speed == SPEED_KNOWN:
                    for r in range(replicas):
                        load[r] /= speed_at(first, piece, r, now - outages.delay)
                elif rules.speed == SPEED_MEASURED:
                    for r in range(replicas):
                        load[r] /= measured_speed(seen, k, r)

            # --- The choice -------------------------------------------------------------------------------------------
            number = attempts[i] * n + i
            tie_draw = uniform(seed, TIE_DRAWS, number) if rules.tie == TIE_RANDOM else 0.0
            choice = Choice(seed, number, start[k], rules.tie, tie_draw)
            start[k] = start[k] + 1 if start[k] + 1 < replicas else 0
            owner = owners[k, session[i]]
            reason = 0
            if blocks is not None:
                depth = 0
            if own_rule is not None:
                if not arrives:
                    for r in range(replicas):
                        until = state[AVAILABLE, r]
                        wait[r] = drain_time(first, piece, r, clock[r], until) if until > clock[r] else 0.0
                if blocks is None:
                    fill_holders(
                        prefix[i], k, now, cached_at, sent_prefix, reported_at, stale, corrected, outages, looks.prefix
                    )
                if adapters > 0:
                    fill_holders(
                        adapter[i], k, now, loaded_at, sent_adapter, reported_at, stale, corrected, outages,
                        looks.adapter,
                    )  # fmt: skip
                chain_length = 0
                for r in range(replicas):
                    if eventful or i == 0:
                        looks.speed[r] = speed_at(first, piece, r, now - outages.delay)
                    serving = tokens[link[REQUEST, index[HEAD, r]]] if index[COUNT, r] > 0 else 0
                    looks.kv[r] = serving / rules.kv_capacity
                    looks.utilisation[r] = busy_share(r, clock[r], rules.window, state, index, span, link)
                    looks.blocks[r] = looks.prefix[r]
                if blocks is not None:
                    chain_length = offsets[i + 1] - offsets[i]
                    matches(holders, chain, offsets[i], offsets[i + 1], looks.blocks)
                    for r in range(replicas):
                        looks.prefix[r] = looks.blocks[r] > 0
                        looks.tokens[r] = tokens_of(looks.blocks[r], offsets[i], chain, blocks.stream.reach, prompt[i])
                for u in range(UNIFORMS):
                    looks.uniform[u] = uniform(seed, ROUTING, UNIFORMS * number + u)
                view = View(
                    now, lent(wait), lent(looks.prefix), owner, lent(looks.speed), lent(looks.served),
                    lent(looks.uniform), lent(index[COUNT]), lent(index[HELD]), lent(looks.kv),
                    lent(looks.utilisation), lent(up), lent(looks.adapter), lent(looks.blocks), lent(looks.tokens),
                )  # fmt: skip
                asked = Request(
                    i, arrival[i], service[i], prefix[i], session[i], prompt[i], tokens[i] - prompt[i], adapter[i],
                    chain_length,
                )  # fmt: skip
                parameters[-1] = 0.0
                chosen = own_rule(view, asked, parameters)
                if parameters[-1] != ANSWERED:
                    return i, RAISED
                if chosen < 0 or chosen >= replicas or not up[chosen]:
                    return i, chosen
                looks.served[chosen] += 1
            elif rule == ROUND_ROBIN:
                chosen = position[k] % replicas
                while not up[chosen]:
                    position[k] += 1
                    chosen = position[k] % replicas
                position[k] += 1
            elif rule == RANDOM:
                chosen = at_random(up, choice)
            elif rule == WEIGHTED_RANDOM:
                chosen = inversely(load, up, choice)
            elif rule == POWER_OF_D:
                chosen = of_some(load, up, some, order, rules.draws, rules.replacement, choice)
            elif rule == WEIGHTED_ROUND_ROBIN:
                for r in range(replicas):
                    if tables.weight.size > 0:
                        weight[r] = tables.weight[r]
                    elif rules.fading > 0.0:
                        weight[r] = measured_speed(seen, k, r)
                    else:
                        weight[r] = speed_at(first, piece, r, now - outages.delay)
                chosen = smooth(current[k], weight, up)
            elif rule == SHORTEST_EXPECTED_DELAY:
                for r in range(replicas):
                    load[r] += service[i] * error[i] / speed_at(first, piece, r, now - outages.delay)
                chosen = least(load, up, choice)
            elif rule == STICKY_SESSION:
                chosen = least(load, up, choice)
                reason = 1 if session[i] >= 0 else 2
                if owner >= 0 and up[owner]:
                    chosen = owner
                    reason = 0
            elif rule == SOFT_STICKY:
                chosen = least(load, up, choice)
                reason = 3 if session[i] < 0 else 2 if owner < 0 else 1
                if owner >= 0 and up[owner]:
                    limit = max(load[chosen] + rules.threshold, rules.relative * load[chosen])
                    if load[owner] <= limit:
                        chosen = owner
                        reason = 0
            elif rule == MIGRATE:
                chosen = least(load, up, choice)
                reason = 3
                if prefix[i] >= 0:
                    reason = 2
                    if blocks is None:
                        fill_holders(
                            prefix[i], k, now, cached_at, sent_prefix, reported_at, stale, corrected, outages, some
                        )
                    else:
                        depth = believed_longest(
                            i, k, up, stale, corrected, chain, offsets, holders, blocks.views, matching, some
                        )
                    if some[chosen]:
                        reason = 0
                    else:
                        for r in range(replicas):
                            if some[r] and up[r]:
                                reason = 1
            elif rule in (CONSISTENT_HASH, BOUNDED_HASH):
                kind = 0 if session[i] >= 0 else 1
                key = session[i] if session[i] >= 0 else prefix[i]
                if key >= 0:
                    if points[kind, key] < 0:
                        points[kind, key] = first_on_ring(tables.ring, seed, kind, key)
                    chosen, home = walk_ring(tables.ring_replica, points[kind, key], load, up, rules.bound)
                    reason = 0 if chosen == home else 1
                else:
                    chosen = least(load, up, choice)
                    reason = 2
            else:
                chosen = least(load, up, choice)
                if rule == LOCALITY_AWARE:
                    limit = load[chosen] + rules.slack
                    reason = 2
                    if owner >= 0 and up[owner] and load[owner] <= limit:
                        chosen = owner
                        reason = 0
                    else:
                        near = -1
                        if prefix[i] >= 0:
                            if blocks is None:
                                fill_holders(
                                    prefix[i], k, now, cached_at, sent_prefix, reported_at, stale, corrected, outages,
                                    some,
                                )  # fmt: skip
                            else:
                                depth = believed_longest(
                                    i, k, up, stale, corrected, chain, offsets, holders, blocks.views, matching, some
                                )
                            near = least(load, some & up, choice)
                        if near >= 0 and load[near] <= limit:
                            chosen = near
                            reason = 1
                        elif adapter[i] >= 0:
                            fill_holders(
                                adapter[i],
                                k,
                                now,
                                loaded_at,
                                sent_adapter,
                                reported_at,
                                stale,
                                corrected,
                                outages,
                                some,
                            )
                            near = least(load, some & up, choice)
                            if near >= 0 and load[near] <= limit:
                                chosen = near
                                reason = 3

            # --- What the replica makes of it -------------------------------------------------------------------------
            r = chosen
            dead = False
            if eventful:
                j = outage[r]
                present = j < outages.first[r + 1] and outages.start[j] <= now
                sent_to[i, 0] = r
                sent[i] += 1
                seen[TRIAL, k, r] = i if seen[OPEN_UNTIL, k, r] > -np.inf else -np.inf
                if present:
                    misrouted[i] = True
                    if outages.drain[j]:
                        refused = True
                        failed = r
                        if session[i] >= 0:
                            owners[k, session[i]] = r
                        continue
                    dead = True
            cold = cold_since(outages, r, now, 0.0) if eventful else -np.inf
            warm = adapter[i] >= 0 and loaded_at[adapter[i], r] > cold and not dead
            begin = max(clock[r], state[AVAILABLE, r])
            transfer = 0.0
            copied = False
            if blocks is None:
                hit = prefix[i] >= 0 and cached_at[prefix[i], r] > cold and not dead
                if rule == MIGRATE and reason == 1 and not hit and not dead:
                    for other in range(replicas):
                        at = cached_at[prefix[i], other]
                        copied |= at > -np.inf and not (eventful and at <= cold_since(outages, other, now, 0.0))
                    if copied:
                        transfer = rules.transfer + rules.transfer_per_token * prompt[i]
                amount = service[i] * (1.0 - rules.speedup) if hit or copied else service[i]
            else:
                costs, reach = blocks.costs, blocks.stream.reach
                low, high = offsets[i], offsets[i + 1]
                matched = 0
                if not dead:
                    # What a live router saw of the replica is what there is.
                    seen_it = depth > 0 and not stale and holds(matching, r)
                    matched = depth if seen_it else match_of(holders, chain, low, high, r)
                matched_tokens = tokens_of(matched, low, chain, reach, prompt[i])
                if rule == MIGRATE and reason == 1 and not dead:
                    longest = longest_elsewhere(i, now, outages, outage, chain, offsets, holders, matching)
                    if longest > matched:
                        copied = True
                        found = tokens_of(longest, low, chain, reach, prompt[i])
                        copied_tokens = np.float64(found - matched_tokens)
                        if reach[chain[low + longest - 1]] == 0:
                            copied_tokens = prompt[i] * ((longest - matched) / (high - low))
                        transfer = rules.transfer + rules.transfer_per_token * copied_tokens
                        matched = longest
                        matched_tokens = found
                hit = matched > 0
                if costs.by_tokens:
                    prefill = costs.base + costs.prefill * np.float64(prompt[i] - matched_tokens)
                    amount = prefill + costs.decode * np.float64(tokens[i] - prompt[i])
                else:
                    share = matched / (high - low) if matched > 0 else 0.0
                    amount = service[i] * (1.0 - costs.speedup * share)
                    prefill = amount
                blocks.matched[i] = matched
                blocks.tokens[i] = matched_tokens
            if warm:
                amount = amount * (1.0 - rules.adapter_speedup)
            if first[r] + 1 == first[r + 1]:
                took = amount / piece[SPEED, first[r]]
            else:
                took = service_time(first, piece, r, begin + transfer, amount)
            if transfer > 0.0:
                took = transfer + took
            if blocks is not None:  # noqa: SIM102
                if not dead:
                    prefilled = begin + took
                    if blocks.late and costs.by_tokens:
                        if warm:
                            prefill = prefill * (1.0 - rules.adapter_speedup)
                        lasts = service_time(first, piece, r, begin + transfer, prefill)
                        prefilled = begin + (transfer + lasts if transfer > 0.0 else lasts)
                    blocks.evicted[i] += touch(
                        i, r, blocks.kind, blocks.capacity, blocks.late, prefilled, chain, offsets, blocks.caches,
                        blocks.views.news,
                    )  # fmt: skip
                    if corrected:
                        note_sent(i, r, k, chain, offsets, blocks.views)
                    elif stale:
                        note_all(i, r, chain, offsets, blocks.views.news)
            append(entries, r, i, k, begin, took, tokens[i], error[i], error[i] * amount, state, index, span, link)
            entries += 1
            if corrected:
                known_speed = speed_at(first, piece, r, now - outages.delay)
                own[k, r] += own_load(service[i] * error[i], tokens[i], rules, known_speed)
            if blocks is None:  # noqa: SIM102
                if prefix[i] >= 0 and not dead:
                    hold(prefix[i], r, k, now, hit, cached_at, sent_prefix, corrected)
            if adapter[i] >= 0 and not dead:
                hold(adapter[i], r, k, now, warm, loaded_at, sent_adapter, corrected)
            if session[i] >= 0:
                owners[k, session[i]] = r
            start_at[i, 0] = begin
            effective[i, 0] = took
            sent_to[i, 0] = r
            route[i, 0] = 2 * reason + (hit or copied)
            migrated[i] = copied
            if eventful:
                lost_at = outages.start[outage[r]] if dead else next_crash(outages, r, now)
                resolved = begin + took
                if dead or resolved > lost_at:
                    resolved = max(now, lost_at + outages.delay)
                    push(later, resolved, False, i)
                if seen[OPEN_UNTIL, k, r] > -np.inf:
                    seen[TRIAL_UNTIL, k, r] = resolved
            break

    moves = 0.0
    last = np.full(sessions + 1, -1, np.int64)
    for i in range(n):
        if session[i] >= 0 and not lost[i]:
            moves += i >= warmup and last[session[i]] >= 0 and last[session[i]] != sent_to[i, 0]
            last[session[i]] = sent_to[i, 0]
    record.moves[0] = moves
    record.variance[0] = variance
    record.peak[0] = peak
    if blocks is not None:
        for r in range(replicas):
            j = outage[r]
            if j < outages.first[r + 1] and outages.start[j] <= now and not outages.drain[j]:
                empty(r, blocks.caches, blocks.views.news)
        count_copies(blocks.caches.residents, blocks.caches.mark, holders, blocks.late, blocks.totals)
    return -1, 0
