"""What a user's rule sees in the router engine: its own arrays, filled anew for every decision."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from sweep.kernels.jit import kernel
from sweep.rules_api import UNIFORMS

#: What a rule leaves behind its parameters, and the choice recorded for one that raised an error instead.
ANSWERED = 1.0
RAISED = -(2**62)


class Looks(NamedTuple):
    """The arrays of a view that the engine has no other use for, by replica, and the uniforms."""

    prefix: np.ndarray
    adapter: np.ndarray
    speed: np.ndarray
    served: np.ndarray
    kv: np.ndarray
    utilisation: np.ndarray
    blocks: np.ndarray
    tokens: np.ndarray
    uniform: np.ndarray


@kernel
def new_looks(replicas):
    """Return room for the views of a cell."""
    return Looks(
        np.zeros(replicas, np.bool_),
        np.zeros(replicas, np.bool_),
        np.empty(replicas, np.float64),
        np.zeros(replicas, np.int64),
        np.empty(replicas, np.float64),
        np.empty(replicas, np.float64),
        np.zeros(replicas, np.int64),
        np.zeros(replicas, np.int64),
        np.empty(UNIFORMS, np.float64),
    )


def _lent(_typing: Any, array: Any) -> Any:
    """Return an array whose references nobody counts, for a view that ends before the array does.

    Counting those of a whole view costs more than most rules do.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = make_array(signature.args[0])(context, builder, arguments[0])
        found.meminfo = cgutils.get_null_value(found.meminfo.type)
        return found._getvalue()

    # A rule that could write would write into the engine's own state.
    return array.copy(readonly=True)(array), generate


lent: Any = intrinsic(_lent)
