"""Sweeps of routing policies for LLM inference fleets, over slack, heterogeneity and seeds, in one labelled result."""

from importlib.metadata import version

__version__ = version("sweep")

from sweep import analysis, traces
from sweep.errors import InputError
from sweep.events import Breaker, Down, Drain, Slow
from sweep.fleet import Fleet
from sweep.policies import Policy, register
from sweep.requests import Requests, ServiceModel
from sweep.runner import repair, run
from sweep.simulation import compare, simulate
from sweep.stores import open_dataset as open
from sweep.stores import write
from sweep.workload import Workload

__all__ = [
    "Breaker",
    "Down",
    "Drain",
    "Fleet",
    "InputError",
    "Policy",
    "Requests",
    "ServiceModel",
    "Slow",
    "Workload",
    "analysis",
    "compare",
    "open",
    "register",
    "repair",
    "run",
    "simulate",
    "traces",
    "write",
]
