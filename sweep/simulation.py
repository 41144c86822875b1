"""One stream under one policy request by request, and one stream under every policy as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from sweep import engines
from sweep.block_cells import as_cache_blocks, uses_blocks
from sweep.engines import Settings
from sweep.errors import InputError, one_of, whole
from sweep.events import Events
from sweep.fleet import Fleet
from sweep.grid import as_slacks, as_speeds
from sweep.policies import Policy, as_policies, catalogue, default_names
from sweep.requests import Requests
from sweep.token_cells import TokenCell
from sweep.variables import ENGINES, FAILURES, MIGRATIONS, VARIABLES


def simulate(
    requests: Requests,
    speeds: ArrayLike | Fleet,
    *,
    policy: str | Policy,
    slack: float = 5.0,
    engine: str = "timeline",
    seed: int = 0,
    cache_hit_speedup: float = 0.30,
    adapter_speedup: float = 0.0,
    steps: int | None = None,
    step_ms: float = 1.0,
    cache_blocks: float | None = None,
    eviction: str = "lru",
    cache_visible: str = "dispatch",
) -> xr.Dataset:
    """Simulate one cell and return what happened to every request.

    ``simulate(workload.realise(s), speeds, ..., seed=s)`` is the cell of seed s of `sweep.run`, bit for bit.

    Parameters
    ----------
    requests
        The stream.
    speeds
        One speed per replica, or a fleet of one row, which may have events.
    policy, slack, engine, cache_hit_speedup, adapter_speedup, steps, step_ms, cache_blocks, eviction, cache_visible
        As for `sweep.run`, one value each.
    seed
        Of all that is random in routing: rules, ties, errors of the work, which router, uniforms of your own rules.

    Returns
    -------
    A Dataset over ``request``: ``arrival_ms``, ``service_ms``, ``replica_id``, ``route_reason`` (strings),
    ``cache_hit``, ``start_ms``, ``finish_ms``, ``queue_wait_ms`` and ``effective_service_ms``. The token-step engine
    gives ``replica_id`` (-1 = sent to none within the run), ``route_reason`` ("" then), ``start_ms`` (NaN = never) and
    ``queue_wait_ms``, and ``load`` (step, replica) in tokens. A fleet with events adds ``lost`` (then the times are
    NaN, the replica is -1 and the reason "") and ``attempts``, how often it was
    sent.

    Raises
    ------
    InputError
        For a mistake in any argument.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Requests.from_arrays([0.0, 1.0, 2.0], [10.0, 10.0, 10.0], session=["a", "a", "b"])
    >>> ds = sweep.simulate(work, [1.0, 1.0], policy="locality_aware", slack=20.0)
    >>> ds.route_reason.values.tolist()
    ['queue_fallback', 'sticky_session', 'queue_fallback']
    """
    requests = as_requests(requests)
    one_of("engine", engine, ENGINES)
    (chosen,) = as_policies([policy], engine)
    (slack,) = as_slacks(slack)
    events = speeds.events if isinstance(speeds, Fleet) else None
    vector = as_speeds(speeds.speeds if isinstance(speeds, Fleet) else speeds)
    settings = Settings(
        cache_hit_speedup=cache_hit_speedup,
        adapter_speedup=adapter_speedup,
        steps=steps,
        step_ms=step_ms,
        cache_blocks=as_cache_blocks(cache_blocks),
        eviction=eviction,
        cache_visible=cache_visible,
    )
    if len(settings.cache_blocks) > 1:
        raise InputError(f"cache_blocks must be one capacity here, got {len(settings.cache_blocks)}.")
    engines.check_stream(requests, vector, engine, settings, events)
    whole("seed", seed)
    if engine == "timeline":
        data = _timeline(requests, vector, chosen, slack, seed, settings, events)
    else:
        data = _token_step(requests, vector, chosen, seed, settings, events)
    coords = {
        "request_id": ("request", requests.request_id),
        "replica": np.arange(len(vector)),
        "speed": ("replica", vector),
    }
    attrs: dict[str, Any] = {"engine": engine, "policy": chosen.label, "slack": slack}
    if engine == "timeline" and uses_blocks(requests, settings):
        attrs["caches"] = "blocks"
    return xr.Dataset(data, coords, attrs)


def _timeline(
    requests: Requests,
    speeds: engines.Array,
    policy: Policy,
    slack: float,
    seed: int,
    settings: Settings,
    events: Events | None,
) -> dict[str, Any]:
    record, hit, fates = engines.record_of(requests, speeds, policy, slack, seed, settings, events)
    start, effective = record.start[:, 0], record.effective[:, 0]
    replica = record.replica[:, 0].astype(np.int64)
    ms = {"units": "ms"}
    failed: dict[str, Any] = {}
    if events is not None and fates is not None:
        start, effective = (np.where(fates.lost, np.nan, times) for times in (start, effective))
        replica = np.where(fates.lost, -1, replica)
        hit = hit & ~fates.lost
        failed = {"lost": ("request", fates.lost), "attempts": ("request", fates.sent)}
    return failed | {
        "arrival_ms": ("request", requests.arrival_ms, ms),
        "service_ms": ("request", requests.service_ms, ms | {"comment": "At speed 1, without a cache hit."}),
        "replica_id": ("request", replica),
        "route_reason": (
            "request",
            _reasons(policy.reasons(requests.adapter is not None), record.route[:, 0] >> 1, replica >= 0),
        ),
        "cache_hit": ("request", hit),
        "start_ms": ("request", start, ms),
        "finish_ms": ("request", start + effective, ms),
        "queue_wait_ms": ("request", start - requests.arrival_ms, ms),
        "effective_service_ms": ("request", effective, ms),
    }


def _token_step(
    requests: Requests, speeds: engines.Array, policy: Policy, seed: int, settings: Settings, events: Events | None
) -> dict[str, Any]:
    cell = TokenCell(requests, policy, len(speeds), seed, settings, events)
    routed, load, count = cell.record(speeds)
    step = np.floor(requests.arrival_ms / settings.step_ms)
    there = np.arange(len(requests)) < count
    failed: dict[str, Any] = {}
    if events is not None:
        there &= ~routed.lost
        failed = {"lost": ("request", routed.lost), "attempts": ("request", routed.sent)}
    entered = np.where(there & (routed.entered >= 0), routed.entered, np.nan)
    until = np.where(np.isnan(entered), len(load), entered)
    replica = np.where(there, routed.replica, -1)
    ms = {"units": "ms"}
    return failed | {
        "arrival_ms": ("request", requests.arrival_ms, ms),
        "tokens": ("request", requests.tokens, {"units": "tokens"}),
        "replica_id": ("request", replica),
        "route_reason": ("request", _reasons(policy.rule.reasons, routed.reason, replica >= 0)),
        "start_ms": ("request", entered * settings.step_ms, ms),
        "queue_wait_ms": ("request", np.where(there, (until - step) * settings.step_ms, np.nan), ms),
        "load": (("step", "replica"), load, {"units": "tokens"}),
    }


def _reasons(names: tuple[str, ...], codes: engines.Array, sent: engines.Array) -> engines.Array:
    """Return why each request went where it did; what was `sent` nowhere has no reason."""
    return np.where(sent, np.array(names)[np.where(sent, codes, 0)], "")


def compare(
    requests: Requests | Iterable[Mapping[str, Any]],
    replicas: int | None = None,
    *,
    speeds: ArrayLike | Fleet | None = None,
    policy: str | Policy | Iterable[str | Policy] | None = None,
    slack: float = 5.0,
    engine: str = "timeline",
    seed: int = 0,
    cache_hit_speedup: float = 0.30,
    adapter_speedup: float = 0.0,
    warmup: int = 0,
    slo_ms: float | None = None,
    cache_blocks: float | None = None,
    eviction: str = "lru",
    cache_visible: str = "dispatch",
) -> pd.DataFrame:
    """Run one stream under several policies and rank them.

    Parameters
    ----------
    requests
        A stream, or records as `Requests.from_records` takes them; never changed.
    replicas, speeds
        A number of equal replicas, or one speed per replica, or a fleet of one row, which may have events.
    policy
        By default round_robin, queue_aware and locality_aware (on the token-step engine, round_robin and least_load).
    slack, engine, cache_hit_speedup, adapter_speedup, warmup, slo_ms, cache_blocks, eviction, cache_visible
        As for `sweep.run`, one value each.
    seed
        Of all that is random in routing: rules, ties, errors of the work, which router, uniforms of your own rules.

    Returns
    -------
    A DataFrame indexed by policy with the scalar variables as columns, ordered by P95 queue wait, then by
    throughput (highest first; finished tokens on the token-step engine), then as in the catalogue. A fleet with events
    adds what was lost, sent again and sent in vain, and the recovery time.

    Raises
    ------
    InputError
        For a mistake in any argument.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Workload.poisson(requests=500, utilisation=0.9, replicas=4, sessions=50, prefixes=50).realise(1)
    >>> list(sweep.compare(work, replicas=4).index)
    ['locality_aware', 'queue_aware', 'round_robin']
    """
    stream = as_requests(requests)
    one_of("engine", engine, ENGINES)
    policies = as_policies(default_names(engine) if policy is None else policy, engine)
    slacks = np.array(as_slacks([slack]))
    events = speeds.events if isinstance(speeds, Fleet) else None
    vector = as_speeds(speeds.speeds if isinstance(speeds, Fleet) else speeds, replicas)[np.newaxis]
    settings = Settings(
        cache_hit_speedup=cache_hit_speedup,
        adapter_speedup=adapter_speedup,
        warmup=warmup,
        slo_ms=slo_ms,
        cache_blocks=as_cache_blocks(cache_blocks),
        eviction=eviction,
        cache_visible=cache_visible,
    )
    if len(settings.cache_blocks) > 1:
        raise InputError(f"cache_blocks must be one capacity here, got {len(settings.cache_blocks)}.")
    engines.check_stream(stream, vector, engine, settings, events)
    prepared = engines.prepared(stream, settings)
    known = VARIABLES[engine] | MIGRATIONS | FAILURES
    rows = {}
    for item in policies:
        arrays = engines.cells(prepared, vector, item, slacks, whole("seed", seed), engine, settings, events=events)
        rows[item.label] = {
            name: arrays[name].item() for name, variable in known.items() if not variable.dims and name in arrays
        }
    # Sorting is stable: what the two keys leave tied stays in catalogue order.
    names = [rule.name for rule in catalogue()]
    order = [item.label for item in sorted(policies, key=lambda item: names.index(item.name))]
    table = pd.DataFrame.from_dict(rows, orient="index").loc[order].rename_axis("policy")
    produced = "throughput_requests_per_s" if engine == "timeline" else "finished_tokens"
    return table.sort_values(["p95_queue_wait_ms", produced], ascending=[True, False], kind="stable")


def as_requests(requests: Requests | Iterable[Mapping[str, Any]]) -> Requests:
    """Return the stream itself, or the stream that records describe."""
    if isinstance(requests, Requests):
        return requests
    if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Iterable):
        raise InputError(f"requests must be a sweep.Requests or a list of records, got {type(requests).__name__}.")
    return Requests.from_records(requests)
