"""A user's own rule as the router engine takes it: a pointer to a function, compiled once per process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

import numpy as np
from numba import types
from numba.np.unsafe import ndarray
from numpy.typing import NDArray

from sweep.kernels.jit import function_pointer, kernel_in_memory
from sweep.kernels.own_view import ANSWERED
from sweep.rules_api import Request, View, parameters_type

# As a type checker does not see it: called with the value and its length.
_fixed_tuple: Any = ndarray.to_fixed_tuple

_FLAGS, _COUNTS, _NUMBERS = (
    types.Array(kind, 1, "C", readonly=True) for kind in (types.boolean, types.int64, types.float64)
)
_TYPES: dict[Any, Any] = {
    NDArray[np.bool_]: _FLAGS,
    NDArray[np.int64]: _COUNTS,
    NDArray[np.float64]: _NUMBERS,
    float: types.float64,
    int: types.int64,
}


def _type_of(fields: type) -> Any:
    return types.NamedTuple(tuple(_TYPES[kind] for kind in get_type_hints(fields).values()), fields)


_SIGNATURE = types.int64(_type_of(View), _type_of(Request), types.Array(types.float64, 1, "C"))


@cache
def compiled(rule: Callable[..., int], names: tuple[str, ...]) -> Any:
    """Return `rule` as a function of a view, a request and what it is given: slack, its parameters, and a last place.

    There it leaves `ANSWERED`: an exception does not find its way out of a pointer, so that nothing else tells of it.
    """
    route = kernel_in_memory(rule)
    parameters = parameters_type(names)
    count = 1 + len(names)

    def choose(view, request, values):
        found = route(view, request, parameters(*_fixed_tuple(values, count)))
        chosen = np.int64(found)
        values[count] = ANSWERED
        # Half a replica is none.
        return chosen if chosen == found else np.int64(-1)

    return function_pointer(_SIGNATURE, choose)
