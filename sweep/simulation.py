"""One stream under one policy request by request, and one stream under every policy as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from sweep import engines
from sweep.engines import Settings
from sweep.errors import InputError, one_of, whole
from sweep.events import Events
from sweep.fleet import Fleet
from sweep.grid import as_slacks, as_speeds
from sweep.policies import Policy, as_policies, catalogue
from sweep.requests import Requests
from sweep.variables import ENGINES, VARIABLES

_THREE = ("round_robin", "queue_aware", "locality_aware")


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
) -> xr.Dataset:
    """Simulate one cell and return what happened to every request.

    ``simulate(workload.realise(s), speeds, ..., seed=s)`` is the cell of seed s of `sweep.run`, bit for bit.

    Parameters
    ----------
    requests
        The stream.
    speeds
        One speed per replica, or a fleet of one row, which may have events.
    policy, slack, engine, cache_hit_speedup, adapter_speedup, steps, step_ms
        As for `sweep.run`, one value each.
    seed
        Of the uniforms that a rule of your own may use.

    Returns
    -------
    A Dataset over ``request``: ``arrival_ms``, ``service_ms``, ``replica_id``, ``route_reason`` (strings),
    ``cache_hit``, ``start_ms``, ``finish_ms``, ``queue_wait_ms`` and ``effective_service_ms``. The token-step engine
    gives ``replica_id`` (-1 = did not arrive within the run), ``route_reason``, ``start_ms`` (NaN = never) and
    ``queue_wait_ms``, and ``load`` (step, replica) in tokens. A fleet with events adds ``lost`` (then the times are
    NaN and the replica is -1) and ``attempts``.

    Raises
    ------
    InputError
        For a mistake in any argument.

    Examples
    --------
    >>> import sweep
    >>> work = sweep.Requests.from_arrays([0.0, 1.0, 2.0], [10.0, 10.0, 10.0], session=["a", "a", "b"])
    >>> ds = sweep.simulate(work, [1.0, 1.0], policy="locality_aware", slack=20.0)
    >>> list(ds.route_reason.values)
    ['queue_fallback', 'sticky_session', 'queue_fallback']
    """
    requests = as_requests(requests)
    one_of("engine", engine, ENGINES)
    (chosen,) = as_policies([policy], engine)
    (slack,) = as_slacks(slack)
    events = speeds.events if isinstance(speeds, Fleet) else None
    vector = as_speeds(speeds.speeds if isinstance(speeds, Fleet) else speeds)
    settings = Settings(cache_hit_speedup, steps=steps, step_ms=step_ms, adapter_speedup=adapter_speedup)
    engines.check_stream(requests, vector, engine, settings)
    if events and engine != "timeline":
        raise InputError(f"Events of a fleet are for the engine 'timeline', got {engine!r}; use a fleet without.")
    whole("seed", seed)
    if engine == "timeline":
        data = _timeline(requests, vector, chosen, slack, seed, settings, events)
    else:
        data = _token_step(requests, vector, chosen, settings)
    coords = {
        "request_id": ("request", requests.request_id),
        "replica": np.arange(len(vector)),
        "speed": ("replica", vector),
    }
    return xr.Dataset(data, coords, {"engine": engine, "policy": chosen.label, "slack": slack})


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
    replica, reason = record.replica[:, 0].astype(np.int64), record.route[:, 0] >> 1
    reasons = np.array(policy.reasons(requests.adapter is not None))
    ms = {"units": "ms"}
    failed: dict[str, Any] = {}
    if events is not None and fates is not None:
        start, replica, reason = (np.where(fates.lost, *pair) for pair in ((np.nan, start), (-1, replica), (0, reason)))
        hit = hit & ~fates.lost
        failed = {"lost": ("request", fates.lost), "attempts": ("request", fates.attempts + 1)}
    return failed | {
        "arrival_ms": ("request", requests.arrival_ms, ms),
        "service_ms": ("request", requests.service_ms, ms | {"comment": "At speed 1, without a cache hit."}),
        "replica_id": ("request", replica),
        "route_reason": ("request", reasons[reason]),
        "cache_hit": ("request", hit),
        "start_ms": ("request", start, ms),
        "finish_ms": ("request", start + effective, ms),
        "queue_wait_ms": ("request", start - requests.arrival_ms, ms),
        "effective_service_ms": ("request", effective, ms),
    }


def _token_step(requests: Requests, speeds: engines.Array, policy: Policy, settings: Settings) -> dict[str, Any]:
    record = engines.token_record_of(requests, speeds, policy, settings)
    entered = np.where(record.entered < 0, np.nan, record.entered)
    arrived = record.replica >= 0
    step = np.floor(requests.arrival_ms / settings.step_ms)
    until = np.where(record.entered < 0, len(record.load), record.entered)
    ms = {"units": "ms"}
    return {
        "arrival_ms": ("request", requests.arrival_ms, ms),
        "tokens": ("request", requests.tokens, {"units": "tokens"}),
        "replica_id": ("request", record.replica),
        "route_reason": ("request", np.where(arrived, policy.rule.reasons[0], "")),
        "start_ms": ("request", entered * settings.step_ms, ms),
        "queue_wait_ms": ("request", np.where(arrived, (until - step) * settings.step_ms, np.nan), ms),
        "load": (("step", "replica"), record.load, {"units": "tokens"}),
    }


def compare(
    requests: Requests | Iterable[Mapping[str, Any]],
    replicas: int | None = None,
    *,
    speeds: ArrayLike | None = None,
    policy: str | Policy | Iterable[str | Policy] | None = None,
    slack: float = 5.0,
    engine: str = "timeline",
    seed: int = 0,
    cache_hit_speedup: float = 0.30,
    adapter_speedup: float = 0.0,
    warmup: int = 0,
    slo_ms: float | None = None,
) -> pd.DataFrame:
    """Run one stream under several policies and rank them.

    Parameters
    ----------
    requests
        A stream, or records as `Requests.from_records` takes them; never changed.
    replicas, speeds
        A number of equal replicas, or one speed per replica.
    policy
        By default round_robin, queue_aware and locality_aware (on the token-step engine, all of its policies).
    slack, engine, cache_hit_speedup, adapter_speedup, warmup, slo_ms
        As for `sweep.run`, one value each.
    seed
        Of the uniforms that a rule of your own may use.

    Returns
    -------
    A DataFrame indexed by policy with the scalar variables as columns, ordered by P95 queue wait, then by
    throughput (highest first; finished tokens on the token-step engine), then as in the catalogue.

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
    if policy is None:
        policy = _THREE if engine == "timeline" else [rule.name for rule in catalogue() if engine in rule.engines]
    policies = as_policies(policy, engine)
    slacks = np.array(as_slacks([slack]))
    vector = as_speeds(speeds, replicas)[np.newaxis]
    settings = Settings(cache_hit_speedup, warmup, slo_ms, adapter_speedup=adapter_speedup)
    engines.check_stream(stream, vector, engine, settings)
    prepared = engines.Stream.of(stream)
    rows = {}
    for item in policies:
        arrays = engines.cells(prepared, vector, item, slacks, whole("seed", seed), engine, settings)
        rows[item.label] = {
            name: arrays[name].item()
            for name, variable in VARIABLES[engine].items()
            if not variable.dims and name in arrays
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
