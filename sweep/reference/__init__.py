"""The model in plain Python: the oracle that the kernels are held to, written for reading.

``timeline`` serves one request at a time per replica, ``token_step`` a batch of tokens in fixed steps. Nothing
here imports a kernel. The order of every floating-point operation is part of the contract, because the kernels
must give the same bits: sums run from left to right in order of arrival, or of replica index.
"""

from sweep.reference.block_cache import BlockCache
from sweep.reference.blocks import simulate_block_routing, summarize_blocks
from sweep.reference.router import Simulation
from sweep.reference.timeline import (
    STRATEGIES,
    compare_replica_strategies,
    load_variance_of,
    select_replica,
    simulate_replica_routing,
    summarize_replica_service,
)
from sweep.reference.token_step import (
    LeastLoadLB,
    Replica,
    RoundRobinLB,
    simulate,
    simulate_token_step,
    summarize_token_step,
)
from sweep.reference.user_rules import uniform

__all__ = [
    "STRATEGIES",
    "BlockCache",
    "LeastLoadLB",
    "Replica",
    "RoundRobinLB",
    "Simulation",
    "compare_replica_strategies",
    "load_variance_of",
    "select_replica",
    "simulate",
    "simulate_block_routing",
    "simulate_replica_routing",
    "simulate_token_step",
    "summarize_blocks",
    "summarize_replica_service",
    "summarize_token_step",
    "uniform",
]
