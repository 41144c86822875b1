"""Which routing policy, with how much locality slack, on replicas this unequal, under this traffic - and how sure?"""

from importlib.metadata import version

__version__ = version("sweep")

from sweep import analysis
from sweep.errors import InputError
from sweep.fleet import Fleet
from sweep.policies import Policy, register
from sweep.requests import Requests, ServiceModel
from sweep.runner import run
from sweep.simulation import compare, simulate
from sweep.store import open_dataset as open  # noqa: A004 - `sweep.open` mirrors `xarray.open_*`
from sweep.store import write
from sweep.workload import Workload

__all__ = [
    "Fleet",
    "InputError",
    "Policy",
    "Requests",
    "ServiceModel",
    "Workload",
    "analysis",
    "compare",
    "open",
    "register",
    "run",
    "simulate",
    "write",
]
