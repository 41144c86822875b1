"""Every dimension and variable of a result, once: dimensions, unit, sentence and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ENGINES = ("timeline", "token_step")


@dataclass(frozen=True)
class Variable:
    """One quantity of a result: its name, extra dimensions, unit, title, sentence and direction."""

    name: str
    units: str
    long_name: str
    comment: str
    dims: tuple[str, ...] = ()
    better: Literal["lower", "higher"] | None = None
    integer: bool = False

    @property
    def attrs(self) -> dict[str, str]:
        """Return the attributes that the variable carries in a Dataset."""
        attrs = {"units": self.units, "long_name": self.long_name, "comment": self.comment}
        return attrs | ({"better": self.better} if self.better else {})


def _quantile(name: str, title: str, what: str) -> Variable:
    rank = "the nearest-rank quantile: element ceil(q*n)-1 of the sorted values"
    return Variable(name, "ms", title, f"{what}; {rank}.", better="lower")


_WAIT = "Time from a request's arrival until its service starts"
_LATENCY = "Time from a request's arrival until it is finished"

_TIMELINE = (
    Variable("request_count", "1", "requests", "Requests in the statistics, warm-up left out.", integer=True),
    Variable("mean_queue_wait_ms", "ms", "mean queue wait", f"{_WAIT}, mean over requests.", better="lower"),
    _quantile("p50_queue_wait_ms", "P50 queue wait", _WAIT),
    _quantile("p95_queue_wait_ms", "P95 queue wait", _WAIT),
    _quantile("p99_queue_wait_ms", "P99 queue wait", _WAIT),
    Variable("max_queue_wait_ms", "ms", "largest queue wait", f"{_WAIT}, largest.", better="lower"),
    Variable("mean_latency_ms", "ms", "mean latency", f"{_LATENCY}, mean over requests.", better="lower"),
    _quantile("p95_latency_ms", "P95 latency", _LATENCY),
    _quantile("p99_latency_ms", "P99 latency", _LATENCY),
    Variable(
        "throughput_requests_per_s",
        "requests/s",
        "throughput",
        "Requests divided by the time from the first arrival to the last finish; NaN for a window of zero length.",
        better="higher",
    ),
    Variable(
        "cache_hit_rate",
        "1",
        "cache hit rate",
        "Share of requests whose prefix was cached on the replica that served them.",
        better="higher",
    ),
    Variable(
        "load_skew_ratio",
        "1",
        "load skew",
        "(Most minus fewest requests of a replica) divided by the mean requests per replica.",
        better="lower",
    ),
    Variable("makespan_ms", "ms", "makespan", "Time from the first arrival to the last finish.", better="lower"),
    Variable(
        "session_moves",
        "1",
        "session moves",
        "Requests that went to another replica than the previous request of their session.",
        better="lower",
        integer=True,
    ),
    Variable(
        "max_offered_load",
        "1",
        "largest offered load",
        "Largest over replicas of the effective service routed to it divided by the time from the first to "
        "the last arrival; at 1 or more that replica does not keep up and waits grow with the run length.",
        better="lower",
    ),
    Variable(
        "load_variance",
        "ms2",
        "load variance",
        "Sample variance over replicas of the outstanding work that an arriving request sees before it is "
        "routed, mean over arrivals; 0 with one replica.",
        better="lower",
    ),
    Variable(
        "peak_load_variance",
        "ms2",
        "peak load variance",
        "Sample variance over replicas of the outstanding work that an arriving request sees before it is "
        "routed, largest over arrivals; 0 with one replica.",
        better="lower",
    ),
    Variable(
        "slo_attainment",
        "1",
        "SLO attainment",
        "Share of requests whose queue wait is at most the objective `slo_ms`.",
        better="higher",
    ),
    Variable(
        "replica_requests", "1", "requests per replica", "Requests served by a replica.", ("replica",), integer=True
    ),
    Variable(
        "replica_busy_ms", "ms", "busy time per replica", "Effective service time served by a replica.", ("replica",)
    ),
    Variable("reason_count", "1", "requests per reason", "Requests routed for a reason.", ("reason",), integer=True),
    Variable(
        "mean_queue_wait_ms_by_reason",
        "ms",
        "mean queue wait by reason",
        f"{_WAIT}, mean over the requests routed for a reason; NaN where there are none.",
        ("reason",),
        better="lower",
    ),
    Variable(
        "p99_queue_wait_ms_by_reason",
        "ms",
        "P99 queue wait by reason",
        f"{_WAIT}, nearest-rank P99 over the requests routed for a reason; NaN where there are none.",
        ("reason",),
        better="lower",
    ),
)

_MATCHED = "a request matches the blocks from its front that the replica that serves it holds"

#: Only where requests bring chains of blocks, or a capacity is given.
_BLOCKS = (
    Variable("block_hit_rate", "1", "block hit rate", f"Matched blocks / all blocks; {_MATCHED}.", better="higher"),
    Variable(
        "token_hit_rate",
        "1",
        "token hit rate",
        "Prompt tokens of matched blocks / all prompt tokens; NaN where sizes are unknown.",
        better="higher",
    ),
    Variable(
        "evictions", "1", "evictions", "Blocks that made room for others, all replicas.", better="lower", integer=True
    ),
    Variable(
        "duplicate_residency",
        "1",
        "copies per block",
        "Resident blocks of all replicas / different resident blocks, at the end.",
    ),
    Variable(
        "recomputed_prefill_tokens",
        "tokens",
        "recomputed prefill",
        "Prompt tokens prefilled though an earlier request had the same blocks: on another replica, or evicted since; "
        "NaN where sizes are unknown.",
        better="lower",
    ),
    Variable(
        "replica_block_hit_rate",
        "1",
        "block hit rate per replica",
        f"Matched blocks / all blocks of the requests of a replica; {_MATCHED}.",
        ("replica",),
    ),
    Variable(
        "replica_token_hit_rate",
        "1",
        "token hit rate per replica",
        "Prompt tokens of matched blocks / all prompt tokens of a replica's requests; NaN where sizes are unknown.",
        ("replica",),
    ),
)
#: The names of the variables of blocks.
OF_BLOCKS = tuple(variable.name for variable in _BLOCKS)

_ROUTED = (
    Variable(
        "migrations",
        "1",
        "migrations",
        "Requests whose prefix was copied from another replica to the one that served them.",
        integer=True,
    ),
    Variable(
        "lost_requests",
        "1",
        "lost requests",
        "Requests that never finished: out of retries, or no replica to go to.",
        better="lower",
        integer=True,
    ),
    Variable(
        "retried_requests", "1", "retried requests", "Requests sent more than once.", better="lower", integer=True
    ),
    Variable(
        "misrouted_requests",
        "1",
        "misrouted requests",
        "Requests sent, once at least, to a replica that was down or draining.",
        better="lower",
        integer=True,
    ),
    Variable(
        "recovery_ms",
        "ms",
        "recovery time",
        "Time from the detection of an event until the P95 queue wait of a sliding window is within 10 % of that of "
        "the window before the event (of requests in service by then), the longest over events; NaN if never.",
        better="lower",
    ),
)


_STEP_WAIT = "Time from the step of a request's arrival to the step in which it enters service"
_STEP_WAIT_REST = "a request that never entered counts with its wait until the end of the run"

_TOKEN_STEP = (
    Variable(
        "request_count",
        "1",
        "requests",
        "Requests that arrived within the run and were not lost; `finished_requests` counts those that finished.",
        integer=True,
    ),
    Variable(
        "mean_queue_wait_ms",
        "ms",
        "mean queue wait",
        f"{_STEP_WAIT}, mean over requests; {_STEP_WAIT_REST}.",
        better="lower",
    ),
    _quantile("p95_queue_wait_ms", "P95 queue wait", f"{_STEP_WAIT} ({_STEP_WAIT_REST})"),
    _quantile("p99_queue_wait_ms", "P99 queue wait", f"{_STEP_WAIT} ({_STEP_WAIT_REST})"),
    Variable(
        "load_variance",
        "tokens2",
        "load variance",
        "Sample variance over replicas of the load (tokens in service and queued), mean over steps.",
        better="lower",
    ),
    Variable(
        "peak_load_variance",
        "tokens2",
        "peak load variance",
        "Sample variance over replicas of the load (tokens in service and queued), largest over steps.",
        better="lower",
    ),
    Variable(
        "unstarted_requests",
        "1",
        "unstarted requests",
        "Requests that had not entered service when the run ended.",
        better="lower",
        integer=True,
    ),
    Variable(
        "finished_tokens", "tokens", "finished tokens", "Tokens served within the run.", better="higher", integer=True
    ),
    Variable(
        "finished_requests",
        "1",
        "finished requests",
        "Requests all of whose tokens were served within the run.",
        better="higher",
        integer=True,
    ),
    Variable(
        "cumulative_load_tokens",
        "tokens",
        "cumulative load",
        "Sum over steps of a replica's load (tokens in service and queued).",
        ("replica",),
        integer=True,
    ),
)

#: Engine -> name -> variable, in the order of the Dataset.
VARIABLES: dict[str, dict[str, Variable]] = {
    "timeline": {variable.name: variable for variable in (*_TIMELINE, *_BLOCKS)},
    "token_step": {variable.name: variable for variable in _TOKEN_STEP},
}

#: What the policy ``migrate`` and a fleet with events add on either engine.
MIGRATIONS: dict[str, Variable] = {variable.name: variable for variable in _ROUTED[:1]}
FAILURES: dict[str, Variable] = {variable.name: variable for variable in _ROUTED[1:]}

#: Attributes of the coordinates.
COORDINATES: dict[str, dict[str, str]] = {
    "policy": {"long_name": "routing policy"},
    "slack": {
        "long_name": "locality slack",
        "units": "ms",
        "comment": "Extra queue wait accepted to reach a replica that holds the request's session or prefix.",
    },
    "heterogeneity": {"long_name": "heterogeneity"},
    "cache_blocks": {
        "long_name": "cache capacity",
        "units": "blocks",
        "comment": "Blocks that each replica's cache holds; infinity = unbounded.",
    },
    "seed": {"long_name": "seed"},
    "replica": {"long_name": "replica"},
    "reason": {"long_name": "reason a request went where it went"},
    "speed": {"long_name": "replica speed", "units": "1", "comment": "Service rate relative to nominal."},
    "reads_slack": {
        "long_name": "policy reads slack",
        "comment": "Where false the policy was simulated once and its result repeated along slack.",
    },
}
