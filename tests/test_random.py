import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sweep import reference
from sweep.kernels.random import _mix, uniform

WORD = st.integers(0, 2**63 - 1)


def test_mix__is_the_finaliser_of_splitmix64():
    # The first outputs of SplitMix64 from state 0, as published with the generator's reference code.
    golden = 0x9E3779B97F4A7C15
    states = [np.uint64(k * golden % 2**64) for k in (1, 2, 3)]
    assert [int(_mix(state)) for state in states] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(WORD, st.integers(0, 100), WORD)
def test_uniform__equals_plain_python(seed, stream, index):
    assert uniform(np.uint64(seed), stream, np.uint64(index)) == reference.uniform(seed, stream, index)


def test_uniform__is_uniform_and_independent_of_its_neighbours():
    n = 200_000
    draws = np.array([uniform(np.uint64(5), 1, i) for i in range(n)])
    counts = np.histogram(draws, 100, (0.0, 1.0))[0]
    chi_squared = ((counts - n / 100) ** 2 / (n / 100)).sum()
    assert 40 < chi_squared < 180  # 99 degrees of freedom: six standard deviations either way
    others = {
        "next": np.roll(draws, 1),
        "another seed": np.array([uniform(np.uint64(6), 1, i) for i in range(n)]),
        "another stream": np.array([uniform(np.uint64(5), 2, i) for i in range(n)]),
    }
    for name, other in others.items():
        assert abs(np.corrcoef(draws, other)[0, 1]) < 5 / np.sqrt(n), name
