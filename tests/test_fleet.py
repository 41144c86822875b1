"""Fleets: speeds along heterogeneity, constant capacity, exact round trips, errors."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.errors import InputError
from sweep.fleet import Fleet

LEVELS = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


def test_one_slow__last_replica_at_one_minus_h_and_capacity_kept():
    fleet = Fleet.one_slow(replicas=4, heterogeneity=LEVELS)
    assert fleet.speeds.shape == (8, 4) and fleet.replicas == 4
    assert fleet.heterogeneity.tolist() == LEVELS
    assert fleet.speeds.sum(axis=1) == pytest.approx(np.full(8, 4.0), rel=1e-15)
    for h, row in zip(LEVELS, fleet.speeds, strict=True):
        assert row[:3].tolist() == [4 / (4 - h)] * 3
        assert row[3] == pytest.approx((1 - h) * row[0], rel=1e-15)


@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 64, 1024])
def test_equal_fleets__run_at_exactly_one(replicas):
    ones = [[1.0] * replicas]
    assert Fleet.one_slow(replicas, 0.0).speeds.tolist() == ones
    assert Fleet.spread(replicas, 1.0).speeds.tolist() == ones
    assert Fleet.lognormal(replicas, 0.0).speeds.tolist() == ones


def test_one_slow__without_constant_capacity():
    fleet = Fleet.one_slow(3, [0.0, 0.25], constant_capacity=False)
    assert fleet.speeds.tolist() == [[1.0, 1.0, 1.0], [1.0, 1.0, 0.75]]


def test_spread__geometric_from_one_to_one_over_ratio():
    fleet = Fleet.spread(3, [1.0, 4.0, 9.0], constant_capacity=False)
    assert fleet.speeds == pytest.approx(np.array([[1, 1, 1], [1, 1 / 2, 1 / 4], [1, 1 / 3, 1 / 9]]), rel=1e-15)
    kept = Fleet.spread(3, [4.0])
    assert kept.speeds.sum() == pytest.approx(3.0, rel=1e-15)
    assert kept.speeds[0, 0] / kept.speeds[0, 2] == pytest.approx(4.0, rel=1e-15)
    assert Fleet.spread(1, 4.0).speeds.tolist() == [[1.0]]


def test_lognormal__mean_one_and_the_cv_asked_for():
    n = 200_000
    speeds = Fleet.lognormal(n, [0.2, 0.5], seed=3, constant_capacity=False).speeds
    for cv, row in zip((0.2, 0.5), speeds, strict=True):
        # Five standard errors; the kurtosis of a lognormal of CV 0.5 is about 8.
        assert abs(row.mean() - 1.0) < 5 * cv / math.sqrt(n)
        assert row.std() / row.mean() == pytest.approx(cv, rel=5 * math.sqrt(8 / n))
    assert Fleet.lognormal(n, 0.5, seed=3).speeds.sum() == pytest.approx(n, rel=1e-12)


def test_lognormal__one_draw_per_replica_stretched_along_the_axis():
    speeds = Fleet.lognormal(6, [0.1, 0.4], seed=1, constant_capacity=False).speeds
    variance = np.log1p(np.square([0.1, 0.4]))[:, None]
    normal = (np.log(speeds) + variance / 2) / np.sqrt(variance)
    assert normal[0] == pytest.approx(normal[1], rel=1e-9)
    more = Fleet.lognormal(9, [0.1, 0.4], seed=1, constant_capacity=False).speeds
    assert more[:, :6].tolist() == speeds.tolist()
    assert Fleet.lognormal(6, 0.4, seed=1) == Fleet.lognormal(6, 0.4, seed=1) != Fleet.lognormal(6, 0.4, seed=2)


def test_fixed__as_given_with_its_coefficient_of_variation():
    fleet = Fleet.fixed([1.0, 0.3, 1.2])
    assert fleet.speeds.tolist() == [[1.0, 0.3, 1.2]]
    mean = 2.5 / 3
    expected = math.sqrt(sum((speed - mean) ** 2 for speed in (1.0, 0.3, 1.2)) / 3) / mean
    assert fleet.heterogeneity.tolist() == [pytest.approx(expected, rel=1e-15)]
    assert Fleet.fixed([0.1, 0.1, 0.1]).heterogeneity.tolist() == [0.0]


def test_fleet__takes_rows_as_given():
    fleet = Fleet([[1, 2], [3, 4]], [0.5, 0.1])
    assert fleet.speeds.tolist() == [[1.0, 2.0], [3.0, 4.0]] and fleet.speeds.dtype == np.float64
    assert fleet.heterogeneity.tolist() == [0.5, 0.1]
    assert Fleet([[1, 2], [3, 4]]).heterogeneity.tolist() == pytest.approx([1 / 3, 1 / 7])
    assert Fleet(np.array([2.0, 1.0]), 0.5).heterogeneity.tolist() == [0.5]


def test_fleet__is_a_read_only_copy():
    speeds = np.array([[1.0, 2.0]])
    fleet = Fleet(speeds)
    speeds[0, 0] = 9.0
    assert fleet.speeds.tolist() == [[1.0, 2.0]]
    for copy in (fleet, pickle.loads(pickle.dumps(fleet))):
        assert not copy.speeds.flags.writeable and not copy.heterogeneity.flags.writeable
    with pytest.raises(AttributeError):
        fleet.speeds = speeds


positive = st.floats(1e-9, 1e9)


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(positive, min_size=n, max_size=n), min_size=1, max_size=4))
)
def test_dict__round_trip_exact_through_json(rows):
    fleet = Fleet(rows, list(range(len(rows))))
    again = Fleet.from_dict(json.loads(json.dumps(fleet.to_dict())))
    assert again == fleet and hash(again) == hash(fleet)
    assert again.speeds.tolist() == rows
    assert again.fingerprint() == fleet.fingerprint()


def test_fingerprint__differs():
    fleets = [Fleet([1, 2]), Fleet([2, 1]), Fleet([1, 2], 0.5), Fleet([1, 2, 3]), Fleet.one_slow(2, [0.1, 0.2])]
    assert len({fleet.fingerprint() for fleet in fleets}) == len(fleets)
    assert Fleet([1, 2]) != [1, 2]


def test_repr__names_the_axis():
    assert repr(Fleet.one_slow(4, [0, 0.5])) == "Fleet(4 replicas, heterogeneity=[0.0, 0.5])"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fleet([]), "speeds is empty; give at least one replica"),
        (lambda: Fleet([[]]), "speeds is empty"),
        (lambda: Fleet([1.0, 0.0]), "Speed of replica 1 must be a finite number >= 1e-09 .* got 0.0"),
        (lambda: Fleet([1.0, -1.0]), "Speed of replica 1 must be .* got -1.0"),
        (lambda: Fleet([[1.0, 1.0], [math.nan, 1.0]]), "Speed of replica 0 in row 1 must be .* got nan"),
        (lambda: Fleet([math.inf]), "Speed of replica 0 must be .* got inf"),
        (lambda: Fleet(["fast"]), "Speed of replica 0 must be .* got 'fast'"),
        (lambda: Fleet([None, 1.0]), "Speed of replica 0 must be .* got None"),
        (lambda: Fleet([[1.0], [1.0, 2.0]]), "rows of equal length"),
        (lambda: Fleet(1.0), "speeds must be one row of numbers"),
        (lambda: Fleet(np.ones((1, 1, 1))), "speeds must be one row of numbers"),
        (lambda: Fleet([1.0, 2.0], [0.1, 0.2]), "heterogeneity has 2 values for 1 rows of speeds"),
        (lambda: Fleet([[1.0], [2.0]], [0.1, 0.1]), "heterogeneity 0.1 is given twice"),
        (lambda: Fleet([[1.0], [2.0]], [0.1, math.nan]), "heterogeneity must be a finite number, got nan"),
        (lambda: Fleet([[1.0], [2.0]]), "Two rows of speeds are equally unequal; give heterogeneity"),
        (lambda: Fleet([1.0], []), "heterogeneity is empty"),
        (lambda: Fleet.fixed([[1.0, 2.0], [1.0, 3.0]]), "speeds must be one row, got 2"),
        (lambda: Fleet.one_slow(0, 0.1), "replicas must be a whole number >= 1, got 0"),
        (lambda: Fleet.one_slow(2.0, 0.1), "replicas must be a whole number >= 1, got 2.0"),
        (lambda: Fleet.one_slow(4, 1.0), "heterogeneity must be a finite number >= 0 and < 1, got 1.0"),
        (lambda: Fleet.one_slow(4, [0.1, -0.1]), "heterogeneity must be .* got -0.1"),
        (lambda: Fleet.one_slow(4, [0.1, 0.1]), "heterogeneity 0.1 is given twice"),
        (lambda: Fleet.one_slow(4, "0.1"), "heterogeneity must be .* got '0.1'"),
        (lambda: Fleet.one_slow(4, None), "heterogeneity must be .* got None"),
        (lambda: Fleet.spread(4, 0.5), "heterogeneity must be a finite number >= 1 .* got 0.5"),
        (lambda: Fleet.lognormal(4, -0.5), "heterogeneity must be a finite number >= 0 .* got -0.5"),
        (lambda: Fleet.lognormal(4, 0.5, seed=-1), "seed must be a whole number >= 0, got -1"),
        (lambda: Fleet.from_dict({"speeds": [[1.0]]}), "has the keys 'speeds' and 'heterogeneity'"),
        (lambda: Fleet.from_dict(7), "has the keys 'speeds' and 'heterogeneity', got 7"),
    ],
)
def test_fleet__bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


anything = st.none() | st.booleans() | st.floats() | st.integers(-2, 3) | st.text(max_size=2)


@given(st.lists(anything | st.lists(anything, max_size=3), max_size=4), anything | st.lists(anything, max_size=3))
def test_fuzz__gives_a_fleet_or_an_input_error(speeds, heterogeneity):
    for make in (
        lambda: Fleet(speeds, heterogeneity),
        lambda: Fleet.one_slow(3, heterogeneity),
        lambda: Fleet.spread(3, heterogeneity),
        lambda: Fleet.lognormal(3, heterogeneity),
    ):
        try:
            fleet = make()
        except InputError:
            continue
        assert np.isfinite(fleet.speeds).all() and (fleet.speeds > 0.0).all()
        assert len(set(fleet.heterogeneity.tolist())) == len(fleet.speeds)
