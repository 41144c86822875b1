"""Randomness as an argument: a counter-based uniform of (seed, stream, index).

The bits are the SplitMix64 finaliser applied to a counter under a key made from the seed and the stream.
A draw depends on nothing that was drawn before it, so any split into blocks gives the same bits and a
new policy shifts nobody's numbers.
"""

from __future__ import annotations

import numpy as np

from sweep.kernels.jit import kernel

#: Stream of the uniforms that a routing rule sees.
ROUTING = 1

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STREAM = np.uint64(0xD1342543DE82EF95)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_S11 = np.uint64(11)
_ONE = np.uint64(1)


@kernel
def _mix(z):
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@kernel
def uniform(seed, stream, index):
    """Return a float in [0, 1) that is a function of its three whole-number arguments alone."""
    # Every operand is uint64: mixing in a signed integer would turn the sum into a float.
    key = _mix(_mix(np.uint64(seed) + _GOLDEN) + np.uint64(stream) * _STREAM)
    bits = _mix(key + (np.uint64(index) + _ONE) * _GOLDEN)
    return np.float64(bits >> _S11) * 2.0**-53
