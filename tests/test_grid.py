import numpy as np
import pytest

import sweep
from sweep import InputError
from sweep.engines import Settings
from sweep.grid import Grid

WORK = sweep.Workload.poisson(requests=20, utilisation=0.5, replicas=2)
FLEET = sweep.Fleet.one_slow(replicas=2, heterogeneity=[0.0, 0.5])


def grid(work=WORK, fleet=FLEET, policy="queue_aware", slack=5.0, seed=2, engine="timeline", **settings):
    return Grid.of(work, fleet, policy, slack, seed, engine, Settings(**settings))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slack": -1.0}, "slack [ms] must be a number >= 0, got -1.0"),
        ({"slack": [0.0, float("nan")]}, "got nan"),
        ({"slack": []}, "slack is empty"),
        ({"slack": [5, 5.0]}, "slack 5.0 is given twice"),
        ({"slack": "5"}, "must be a number"),
        ({"seed": 0}, "whole number >= 1"),
        ({"seed": -3}, "whole number >= 1"),
        ({"seed": 2.5}, "whole number >= 1"),
        ({"seed": []}, "seed is empty"),
        ({"seed": [1, 2, 1]}, "seed 1 is given twice"),
        ({"seed": [-1]}, "seed must be a whole number >= 0"),
        ({"seed": [2**63]}, "below 2**63"),
        ({"engine": "timelime"}, "Did you mean 'timeline'?"),
        ({"work": "poisson"}, "workload must be a sweep.Workload"),
        ({"fleet": [1.0, 2.0]}, "fleet must be a sweep.Fleet"),
        ({"policy": 3}, "policy"),
        ({"cache_hit_speedup": 1.5}, "cache_hit_speedup must be"),
        ({"warmup": -1}, "warmup must be a whole number"),
        ({"slo_ms": -1}, "slo_ms must be"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"step_ms": 0}, "step_ms must be"),
    ],
)
def test_bad_input__is_one_clear_sentence(given, said):
    with pytest.raises(InputError) as error:
        grid(**given)
    assert said in str(error.value)


def test_memory__too_large_a_result_is_refused_with_its_size():
    with pytest.raises(InputError, match=r"would take [\d.]+ GiB of memory.*1,000,000,000,000 cells"):
        grid(slack=range(1_000), seed=500_000_000).check_memory()


def test_shape__keeps_the_orders_given_and_adds_the_lists_of_the_workload():
    work = sweep.Workload.poisson(requests=20, utilisation=[0.9, 0.5], replicas=2)
    found = grid(work, policy=["queue_aware", "round_robin"], slack=[20, 0], seed=[7, 3])
    assert list(found.dims) == ["policy", "slack", "heterogeneity", "utilisation", "seed"]
    assert found.dims["utilisation"] == (0.9, 0.5)
    assert found.dims["seed"] == (7, 3)
    assert found.shape == (2, 2, 2, 2, 2)


def test_fingerprint__changes_with_everything_that_decides_numbers():
    others = [
        {"slack": 6.0},
        {"seed": 3},
        {"policy": "round_robin"},
        {"fleet": sweep.Fleet.fixed([1.0, 0.5])},
        {"work": sweep.Workload.poisson(requests=21, utilisation=0.5, replicas=2)},
        {"warmup": 1},
        {"cache_hit_speedup": 0.2},
    ]
    prints = {grid().fingerprint, *(grid(**other).fingerprint for other in others)}
    assert len(prints) == len(others) + 1
    assert grid().fingerprint == grid(slack=np.float64(5.0)).fingerprint
