"""The verdict, made by code: predicted against measured, with an interval over repeats, within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sweep.intervals import Estimate, fieller, t_interval

CONFIRMED, NOT_CONFIRMED, INCONCLUSIVE, NOT_COMPARED = "confirmed", "not_confirmed", "inconclusive", "not_compared"
NOT_JUDGED = "not_judged"
HOST_BUSY, SHARING, TOO_WIDE = "host_busy", "concurrent_sharing", "interval too wide"
LATE = "started late"
#: A CPU rank that got less of its core than this shared it with something else.
LEAST_CPU_SHARE = 0.95
LEVEL = 0.95


class Verdict(NamedTuple):
    """What is decided, and why where that is not plain."""

    verdict: str
    reason: str = ""


def judge(measured: Estimate, predicted: float, tolerance: float, caveats: Sequence[str] = ()) -> Verdict:
    """Compare an interval with a prediction.

    Confirmed when the whole interval lies within `tolerance` of the prediction, not confirmed when all of it lies
    outside, else inconclusive. `caveats` are reasons for which the measurement can confirm or refute nothing.

    Examples
    --------
    >>> narrow = t_interval(np.array([1.52, 1.53, 1.54]), 0.95)
    >>> judge(narrow, 26 / 17, 0.1).verdict, judge(narrow, 1.0, 0.1).verdict, judge(narrow, 1.7, 0.1).verdict
    ('confirmed', 'not_confirmed', 'inconclusive')
    """
    if caveats:
        return Verdict(INCONCLUSIVE, "; ".join(caveats))
    mean, lower, upper = (float(value) for value in measured[:3])
    if not predicted > 0 or not math.isfinite(mean):
        return Verdict(INCONCLUSIVE, "there is nothing to compare: the quantity is 0 or was not measured")
    if math.isnan(lower):
        return Verdict(INCONCLUSIVE, f"{TOO_WIDE}: {int(measured.n)} repeats give no interval")
    low, high = predicted * (1 - tolerance), predicted * (1 + tolerance)
    if low <= lower and upper <= high:
        return Verdict(CONFIRMED)
    if upper < low or lower > high:
        return Verdict(NOT_CONFIRMED, f"[{lower:.3f}, {upper:.3f}] lies outside [{low:.3f}, {high:.3f}]")
    return Verdict(INCONCLUSIVE, f"{TOO_WIDE}: [{lower:.3f}, {upper:.3f}] against [{low:.3f}, {high:.3f}]")


def judge_sharing(measured: Estimate, predicted: float, tolerance: float) -> Verdict:
    """Compare ranks that share a device at once with the prediction of total work: never confirmed."""
    found = judge(measured, predicted, tolerance)
    if found.verdict == CONFIRMED:
        return Verdict(INCONCLUSIVE, f"{SHARING}: as total work predicts, which does not test the strategies")
    return found


def overall(verdicts: Iterable[Verdict]) -> tuple[str, list[str]]:
    """Return the decision of a run, and the reasons of what is not confirmed, the first of each kind.

    One refuted claim refutes the run; one open claim leaves it open.

    Examples
    --------
    >>> overall([Verdict(CONFIRMED), Verdict(INCONCLUSIVE, "interval too wide")])
    ('inconclusive', ['interval too wide'])
    """
    judged = [item for item in verdicts if item.verdict != NOT_JUDGED]
    for worst in (NOT_CONFIRMED, INCONCLUSIVE):
        reasons = [item.reason for item in judged if item.verdict == worst]
        if reasons:
            # One of a kind is enough: a busy host is busy in every row.
            kinds = {reason.partition(":")[0]: reason for reason in reversed(reasons)}
            return worst, list(reversed(kinds.values()))
    return (CONFIRMED, []) if judged else (INCONCLUSIVE, ["there is only one strategy, so nothing to compare"])


def busy_caveats(cpu_ms: Any, wall_ms: Any) -> list[str]:
    """Return the reason not to trust CPU ranks that got too little of their cores; times are per repeat and rank."""
    if cpu_ms is None:
        return []
    cpu, wall = np.asarray(cpu_ms, dtype=float), np.asarray(wall_ms, dtype=float)
    worked = wall > 0
    if not worked.any():
        return []
    # Per rank over all repeats: a single short round is too coarse for the clock of processor time.
    shares = cpu.sum(axis=0) / np.where(wall.sum(axis=0) > 0, wall.sum(axis=0), np.nan)
    rank = int(np.nanargmin(shares))
    if shares[rank] < LEAST_CPU_SHARE:
        return [f"{HOST_BUSY}: rank {rank} got {shares[rank]:.2f} of its core, {LEAST_CPU_SHARE:g} is needed"]
    return []


def late_caveats(late_ms: Any) -> list[str]:
    """Return the reason not to trust a replay whose ranks were late for its start; times are per repeat and rank.

    The requests that came in meanwhile waited for the rank, not for each other.
    """
    late = np.asarray(late_ms, dtype=float)
    if not late.any():
        return []
    rank = int(late.max(axis=0).argmax())
    return [f"{LATE}: in {late.any(axis=1).sum()} of {len(late)} repeats, rank {rank} by up to {late.max():.1f} ms"]


def interval_of(values: Sequence[float]) -> Estimate:
    """Return the mean over repeats and its t interval."""
    return t_interval(np.asarray(values, dtype=float), LEVEL)


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the ratio of two means over the same repeats and Fieller's interval."""
    return fieller(np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float), LEVEL)


def as_dict(found: Estimate) -> dict[str, Any]:
    """Return an estimate as the result file holds it."""
    values = {name: float(value) for name, value in zip(("mean", "lower", "upper"), found[:3], strict=True)}
    return values | {"n": int(found.n)}
