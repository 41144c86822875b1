"""The statistics against scipy, against sums by hand, and the recommendation on results made for each case."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from synthetic import result

from sweep.analysis import frontier, interval, paired, ratio, recommend
from sweep.errors import InputError
from sweep.intervals import fieller

WAIT = "p99_queue_wait_ms"


# --- interval ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_interval__is_the_t_interval_of_scipy(level: float) -> None:
    ds = result(seeds=7)
    found = interval(ds, WAIT, level)
    expected = stats.ttest_1samp(ds[WAIT].values, 0.0, axis=-1).confidence_interval(level)
    np.testing.assert_allclose(found["mean"], ds[WAIT].mean("seed"), rtol=1e-14)
    np.testing.assert_allclose(found["lower"], expected.low, rtol=1e-12)
    np.testing.assert_allclose(found["upper"], expected.high, rtol=1e-12)
    assert (found["n"] == 7).all()
    assert found["mean"].dims == ("policy", "slack", "heterogeneity")
    assert found["mean"].attrs["units"] == "ms"
    assert found.attrs["level"] == level
    assert list(found["policy"].values) == ["round_robin", "queue_aware", "locality_aware"]


def test_interval__two_seeds_by_hand() -> None:
    # With one degree of freedom the 95 % quantile is tan(0.475 pi) = 12.7062; the standard error of 1 and 3 is 1.
    ds = xr.Dataset({"wait": ("seed", [1.0, 3.0])})
    found = interval(ds, "wait")
    assert float(found["lower"]) == pytest.approx(2.0 - math.tan(0.475 * math.pi), rel=1e-9)
    assert float(found["upper"]) == pytest.approx(2.0 + math.tan(0.475 * math.pi), rel=1e-9)


def test_interval__one_seed_has_no_bounds() -> None:
    found = interval(xr.Dataset({"wait": ("seed", [3.0])}), "wait")
    assert float(found["mean"]) == 3.0
    assert np.isnan(found["lower"]) and np.isnan(found["upper"])
    assert int(found["n"]) == 1


@pytest.mark.parametrize("value", [0.1, 0.0, 1e300, 5e-324])
@pytest.mark.parametrize("n", [2, 3, 10, 255])
def test_interval__equal_seeds_have_no_width(value: float, n: int) -> None:
    found = interval(xr.Dataset({"wait": ("seed", [value] * n)}), "wait")
    assert float(found["mean"]) == float(found["lower"]) == float(found["upper"]) == value


def test_interval__leaves_out_nan_and_counts_the_rest() -> None:
    values = [[1.0, np.nan, 3.0, 5.0], [np.nan] * 4, [2.0, np.nan, np.nan, np.nan]]
    found = interval(xr.Dataset({"wait": (("slack", "seed"), values)}), "wait")
    alone = interval(xr.Dataset({"wait": ("seed", [1.0, 3.0, 5.0])}), "wait")
    assert found["n"].values.tolist() == [3, 0, 1]
    for name in ("mean", "lower", "upper"):
        assert float(found[name][0]) == float(alone[name])
        assert np.isnan(found[name][1])
    assert float(found["mean"][2]) == 2.0 and np.isnan(found["lower"][2])


def test_interval__keeps_replicas_and_any_order_of_dimensions() -> None:
    values = np.random.default_rng(1).random((5, 3, 2))
    ds = xr.Dataset({"busy": (("seed", "policy", "replica"), values)})
    found = interval(ds, "busy")
    assert found["mean"].dims == ("policy", "replica")
    np.testing.assert_allclose(found["mean"], values.mean(axis=0), rtol=1e-14)


def test_interval__infinity_has_no_bounds() -> None:
    found = interval(xr.Dataset({"wait": ("seed", [1.0, np.inf])}), "wait")
    assert float(found["mean"]) == np.inf and np.isnan(found["upper"])


def test_interval__covers_at_its_level() -> None:
    draws = np.random.default_rng(3).exponential(1.0, (4_000, 40))
    found = interval(xr.Dataset({"wait": (("cell", "seed"), draws)}), "wait", 0.9)
    inside = float(((found["lower"] <= 1.0) & (found["upper"] >= 1.0)).mean())
    # 4,000 trials of 0.9 have a standard error of 0.005; a skewed sample of 40 costs about 0.015 of coverage.
    assert 0.86 < inside < 0.92


def test_interval__errors_name_what_is_wrong() -> None:
    ds = result()
    with pytest.raises(InputError, match="Did you mean 'p99_queue_wait_ms'"):
        interval(ds, "p99_queue_wait")
    with pytest.raises(InputError, match="no dimension 'seed'"):
        interval(ds.mean("seed", keep_attrs=True), WAIT)
    for level in (0.0, 1.0, 95, math.nan):
        with pytest.raises(InputError, match="level must be"):
            interval(ds, WAIT, level)


# --- paired and ratio -------------------------------------------------------------------------------------------------


def test_paired__by_hand() -> None:
    base, ours = [10.0, 20.0, 33.0, 41.0], [9.0, 18.0, 30.0, 39.0]
    ds = xr.Dataset({WAIT: (("policy", "seed"), [base, ours])}, {"policy": ["round_robin", "queue_aware"]})
    found = paired(ds, WAIT).sel(policy="queue_aware")
    # Differences -1 -2 -3 -2: mean -2, squares 1 + 0 + 1 + 0, variance 2/3, standard error sqrt(2/3/4); t(3) = 3.1824.
    half = 3.182446305284263 * math.sqrt(2 / 3 / 4)
    assert float(found["mean"]) == -2.0
    assert float(found["lower"]) == pytest.approx(-2.0 - half, rel=1e-12)
    assert float(found["upper"]) == pytest.approx(-2.0 + half, rel=1e-12)
    assert int(found["n"]) == 4
    assert float(found["correlation"]) == pytest.approx(np.corrcoef(base, ours)[0, 1], rel=1e-12)


def test_paired__is_scipys_paired_test_in_every_cell() -> None:
    ds = result(seeds=9)
    found = paired(ds, WAIT, "queue_aware", 0.9)
    values = ds[WAIT].values
    expected = stats.ttest_rel(values, np.broadcast_to(values[1], values.shape), axis=-1).confidence_interval(0.9)
    for i in (0, 2):
        np.testing.assert_allclose(found["lower"][i], expected.low[i], rtol=1e-9)
        np.testing.assert_allclose(found["upper"][i], expected.high[i], rtol=1e-9)
    assert (found["mean"][1] == 0).all() and (found["lower"][1] == 0).all() and (found["upper"][1] == 0).all()
    assert found.attrs["against"] == "queue_aware"


def test_paired__is_far_narrower_than_unpaired_on_common_streams() -> None:
    base = np.random.default_rng(2).lognormal(0.0, 1.0, 50)
    ds = xr.Dataset({WAIT: (("policy", "seed"), [base, 1.02 * base])}, {"policy": ["round_robin", "queue_aware"]})
    found, alone = paired(ds, WAIT).isel(policy=1), interval(ds, WAIT).isel(policy=1)
    assert float(found["upper"] - found["lower"]) < 0.03 * float(alone["upper"] - alone["lower"])
    assert float(found["correlation"]) == pytest.approx(1.0)


def test_paired__nan_on_either_side_leaves_the_seed_out() -> None:
    values = [[1.0, np.nan, 2.0, 4.0], [2.0, 5.0, np.nan, 7.0]]
    ds = xr.Dataset({WAIT: (("policy", "seed"), values)}, {"policy": ["round_robin", "queue_aware"]})
    found = paired(ds, WAIT).isel(policy=1)
    assert int(found["n"]) == 2 and float(found["mean"]) == 2.0


def test_paired__correlation_is_nan_where_a_side_does_not_vary() -> None:
    ds = xr.Dataset({WAIT: (("policy", "seed"), [[1.0, 1.0], [2.0, 5.0]])}, {"policy": ["round_robin", "queue_aware"]})
    assert np.isnan(paired(ds, WAIT)["correlation"]).all()


def test_paired__against_another_result_aligns_seeds_by_label() -> None:
    ds = result(seeds=[3, 1, 2])
    other = ds.isel(seed=[2, 0, 1]).copy(deep=True)
    other[WAIT] = other[WAIT] + 1.0
    found = paired(ds, WAIT, other)
    np.testing.assert_allclose(found["mean"], -1.0, rtol=1e-12)
    np.testing.assert_allclose(found["correlation"], 1.0, rtol=1e-12)


def test_paired__one_value_of_another_result_meets_every_cell() -> None:
    ds = result()
    baseline = ds.sel(policy=["queue_aware"], slack=[5.0])
    found = paired(ds, WAIT, baseline)
    expected = ds[WAIT] - ds[WAIT].sel(policy="queue_aware", slack=5.0, drop=True)
    np.testing.assert_allclose(found["mean"], expected.mean("seed"), rtol=1e-9)
    assert found["mean"].dims == ("policy", "slack", "heterogeneity")


def test_paired__refuses_what_does_not_pair() -> None:
    ds = result()
    with pytest.raises(InputError, match=r"different request streams: .*2000.* against .*999"):
        paired(ds, WAIT, ds.assign_attrs(stream_fingerprint="others", workload="999"))
    with pytest.raises(InputError, match="unknown streams"):
        paired(ds, WAIT, ds.drop_attrs(deep=False))
    with pytest.raises(InputError, match=r"different seeds \(6 and 5\).*seed 5"):
        paired(ds, WAIT, ds.isel(seed=slice(5)))
    with pytest.raises(InputError, match=r"differ along 'slack': \[0.0, 5.0, 10.0\] against \[0.0, 10.0\]"):
        paired(ds, WAIT, ds.isel(slack=[0, 2]))
    tokens = ds.copy()
    tokens[WAIT] = tokens[WAIT].assign_attrs(units="steps")
    with pytest.raises(InputError, match="'ms' in one result and in 'steps'"):
        paired(ds, WAIT, tokens)
    with pytest.raises(InputError, match="Did you mean 'round_robin'"):
        paired(ds, WAIT, "roundrobin")
    with pytest.raises(InputError, match="no dimension 'policy'"):
        paired(ds.isel(policy=0), WAIT)


def test_ratio__bounds_are_where_the_paired_interval_touches_zero() -> None:
    ds = result(seeds=12)
    found = ratio(ds, WAIT)
    base = ds[WAIT].sel(policy="round_robin", drop=True)
    np.testing.assert_allclose(found["mean"], ds[WAIT].mean("seed") / base.mean("seed"), rtol=1e-12)
    for name, end in (("lower", "lower"), ("upper", "upper")):
        rest = (ds[WAIT] - found[name] * base).isel(policy=[1, 2])
        touched = interval(xr.Dataset({"rest": rest}), "rest")[end]
        np.testing.assert_allclose(touched, 0.0, atol=1e-9)
    assert (found["lower"] < found["mean"]).isel(policy=[1, 2]).all()
    assert (found["mean"] < found["upper"]).isel(policy=[1, 2]).all()
    np.testing.assert_allclose(found["lower"].isel(policy=0), 1.0, rtol=1e-7)


def test_ratio__a_baseline_around_zero_has_no_bounds() -> None:
    found = fieller(np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.5, 1.0]), 0.95)
    assert np.isfinite(found.mean) and np.isnan(found.lower) and np.isnan(found.upper)
    zero = fieller(np.zeros(3), np.zeros(3), 0.95)
    assert np.isnan([zero.mean, zero.lower, zero.upper]).all()


def test_ratio__one_seed_has_no_bounds() -> None:
    found = ratio(result(seeds=1), WAIT)
    assert np.isfinite(found["mean"]).all() and np.isnan(found["lower"]).all()


# --- frontier ---------------------------------------------------------------------------------------------------------


def beaten(cell: tuple[float, float], others: list[tuple[float, float]]) -> bool:
    return any(x <= cell[0] and y <= cell[1] and (x < cell[0] or y < cell[1]) for x, y in others)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12), st.sampled_from([1, -1]))
def test_frontier__is_what_brute_force_finds(cells: list[tuple[int, int]], sign: int) -> None:
    x, y = np.transpose(cells)
    shape = (1, len(cells), 1, 1)
    values = {"load_variance": np.reshape(x, shape), WAIT: np.reshape(sign * y, shape)}
    slack = [float(k) for k in range(len(cells))]
    ds = result(values, policies=["locality_aware"], slack=slack, heterogeneity=[0.0], seeds=1)
    ds[WAIT].attrs["better"] = "lower" if sign == 1 else "higher"
    found = frontier(ds)
    kept = sorted(cell for cell in cells if not beaten(cell, cells))
    assert list(zip(found["load_variance"], sign * found[WAIT], strict=True)) == kept
    assert [cells[int(slack)] for slack in found["slack"]] == kept


def test_frontier__separates_heterogeneity_and_further_dimensions() -> None:
    ds = result(extra={"utilisation": [0.5, 0.9]})
    found = frontier(ds)
    assert list(found.columns) == ["heterogeneity", "utilisation", "policy", "slack", "load_variance", WAIT]
    for (heterogeneity, utilisation), rows in found.groupby(["heterogeneity", "utilisation"]):
        one = frontier(ds.sel(heterogeneity=heterogeneity, utilisation=utilisation))
        assert one["slack"].fillna(-1).tolist() == rows["slack"].fillna(-1).tolist()
        assert one[WAIT].tolist() == rows[WAIT].tolist()
        assert rows[WAIT].is_monotonic_decreasing and rows["load_variance"].is_monotonic_increasing


def test_frontier__a_policy_without_slack_is_one_cell_and_nan_is_left_out() -> None:
    wait = np.array([[4.0, 4.0], [5.0, 5.0], [np.nan, 1.0]]).reshape(3, 2, 1, 1)
    variance = np.array([[1.0, 1.0], [2.0, 2.0], [0.0, 3.0]]).reshape(3, 2, 1, 1)
    ds = result({WAIT: wait, "load_variance": variance}, slack=[5.0, 0.0], heterogeneity=[0.0], seeds=1)
    found = frontier(ds)
    assert found["policy"].tolist() == ["round_robin", "locality_aware"]
    assert math.isnan(found["slack"][0]) and found["slack"][1] == 0.0


def test_frontier__errors() -> None:
    ds = result({"request_count": 3.0})
    with pytest.raises(InputError, match="two different variables"):
        frontier(ds, WAIT, WAIT)
    with pytest.raises(InputError, match=r"'request_count' has no better direction; set ds\['request_count'\]"):
        frontier(ds, "request_count")
    with pytest.raises(InputError, match="no dimension 'heterogeneity'"):
        frontier(ds.isel(heterogeneity=0, drop=True))
    by_reason = ds.assign(busy=ds[WAIT].expand_dims(replica=4, axis=-1).assign_attrs(better="lower"))
    with pytest.raises(InputError, match="a value per replica"):
        frontier(by_reason, "busy")


# --- recommend --------------------------------------------------------------------------------------------------------


def locality(*rows: list[float], slack: list[float] | None = None, **more: object) -> xr.Dataset:
    """Return a result of locality_aware alone at one heterogeneity: one row of seeds per slack."""
    slack = slack or [5.0 * k for k in range(len(rows))]
    values = np.array(rows)[None, :, None, :]
    return result(
        {WAIT: values, **more}, policies=["locality_aware"], slack=slack, heterogeneity=[0.3], seeds=len(rows[0])
    )


def three(round_robin: list[float], queue_aware: list[float], *rows: list[float]) -> xr.Dataset:
    """Return a result of the three policies at one heterogeneity."""
    values = np.stack([np.tile(round_robin, (len(rows), 1)), np.tile(queue_aware, (len(rows), 1)), np.array(rows)])
    slack = [5.0 * k for k in range(len(rows))]
    return result({WAIT: values[:, :, None, :]}, slack=slack, heterogeneity=[0.3], seeds=len(round_robin))


def test_recommend__a_clear_winner() -> None:
    row = recommend(locality([9.0, 9.1, 9.2], [1.0, 1.1, 1.2], [5.0, 5.1, 5.3])).iloc[0]
    assert (row.policy, row.slack, row.best_slack, row.n) == ("locality_aware", 5.0, 5.0, 3)
    assert row.tied == ("locality_aware, slack 5 ms",)
    assert row.certainty == "Clear: every other cell is worse (95 %, n = 3)."
    expected = stats.ttest_1samp([1.0, 1.1, 1.2], 0.0).confidence_interval()
    assert (row["mean"], row.lower, row.upper) == pytest.approx((1.1, expected.low, expected.high), rel=1e-12)
    assert "ratio" not in row


def test_recommend__the_smallest_slack_that_cannot_be_told_apart() -> None:
    row = recommend(locality([9.0, 9.1, 9.2], [5.1, 5.0, 5.3], [5.0, 5.1, 5.2], [5.2, 5.0, 5.4])).iloc[0]
    assert (row.slack, row.best_slack) == (5.0, 10.0)
    assert row.certainty == "locality_aware is clear; slack 5 to 15 ms cannot be told apart (95 %, n = 3)."


def test_recommend__tied_slacks_with_a_gap_are_listed() -> None:
    row = recommend(locality([5.0, 5.1, 5.2], [9.0, 9.1, 9.4], [5.1, 5.0, 5.2])).iloc[0]
    assert "slack 0, 10 ms cannot be told apart" in row.certainty


def test_recommend__the_interval_is_paired() -> None:
    # The means differ by a tenth of the spread over seeds, yet every seed says the same: slack 5 is better by 1.
    base = np.array([10.0, 20.0, 30.0, 40.0])
    row = recommend(locality(list(base + np.array([1.0, 1.1, 0.9, 1.0])), list(base))).iloc[0]
    assert row.slack == 5.0 and row.certainty.startswith("Clear")


def test_recommend__level_decides_what_is_tied() -> None:
    ds = locality([2.0, 2.0, 3.5, 2.6], [1.0, 2.1, 2.5, 2.4])
    p = stats.ttest_rel([2.0, 2.0, 3.5, 2.6], [1.0, 2.1, 2.5, 2.4]).pvalue
    assert recommend(ds, level=1 - p - 0.01).iloc[0].slack == 5.0
    assert recommend(ds, level=1 - p + 0.01).iloc[0].slack == 0.0


def test_recommend__policies_that_cannot_be_told_apart() -> None:
    ds = three([9.0, 9.5, 9.1], [5.1, 5.0, 5.3], [5.2, 5.0, 5.2], [5.0, 5.1, 5.2])
    row = recommend(ds).iloc[0]
    # queue_aware reads no slack, so it stands at the smallest slack, before locality_aware in the catalogue.
    assert row.policy == "queue_aware" and math.isnan(row.slack)
    assert (row.best_policy, row.best_slack) == ("locality_aware", 5.0)
    assert row.tied == ("queue_aware", "locality_aware, slack 0 ms", "locality_aware, slack 5 ms")
    assert row.certainty == (
        "Policies cannot be told apart: queue_aware; locality_aware, slack 0 to 5 ms (95 %, n = 3)."
    )


def test_recommend__catalogue_order_not_the_order_of_the_result() -> None:
    ds = three([9.0, 9.5, 9.1], [5.0, 5.1, 5.2], [5.0, 5.1, 5.2]).isel(policy=[2, 1, 0])
    assert recommend(ds).iloc[0].policy == "queue_aware"


def test_recommend__exact_ties_choose_the_simplest() -> None:
    row = recommend(three([5.0, 5.1], [5.0, 5.1], [5.0, 5.1], [5.0, 5.1])).iloc[0]
    assert row.policy == row.best_policy == "round_robin"
    assert len(row.tied) == 4
    assert (row.difference, row.difference_lower, row.difference_upper) == (0.0, 0.0, 0.0)
    assert (row.ratio, row.ratio_lower, row.ratio_upper) == pytest.approx((1.0, 1.0, 1.0))


def test_recommend__against_round_robin_by_hand() -> None:
    ds = three([10.0, 12.0, 11.0], [20.0, 20.0, 21.0], [4.0, 5.0, 4.2])
    row = recommend(ds).iloc[0]
    expected = stats.ttest_rel([4.0, 5.0, 4.2], [10.0, 12.0, 11.0]).confidence_interval()
    assert row.difference == pytest.approx(-6.6)
    assert (row.difference_lower, row.difference_upper) == pytest.approx((expected.low, expected.high))
    assert row.ratio == pytest.approx(0.4)
    assert row.ratio_lower < 0.4 < row.ratio_upper


def test_recommend__one_seed_is_not_sure() -> None:
    row = recommend(three([9.0], [5.0], [5.1], [4.0])).iloc[0]
    assert (row.policy, row.slack) == ("locality_aware", 5.0)
    assert math.isnan(row.lower) and math.isnan(row.ratio_lower)
    assert row.certainty.startswith("Not sure: one seed")
    assert recommend(three([9.0], [5.0], [5.0])).iloc[0].policy == "queue_aware"


def test_recommend__equal_seeds_say_nothing_about_other_streams() -> None:
    row = recommend(three([9.0, 9.0], [5.0, 5.0], [5.0, 5.0], [4.0, 4.0])).iloc[0]
    assert row.slack == 5.0 and row["mean"] == row.lower == row.upper == 4.0
    assert row.certainty == (
        "Clear: every other cell is worse (95 %, n = 2). "
        "All seeds give the same values, so nothing is known about other streams."
    )


def test_recommend__nan_cells_are_left_out_and_said() -> None:
    row = recommend(locality([np.nan] * 3, [5.0, 5.1, 5.2], [1.0, np.nan, 1.0], [np.inf, 1.0, 1.0])).iloc[0]
    assert row.slack == 5.0 and row.n == 3
    assert row.certainty == "There is no other cell to compare with (n = 3). Left out: 3 cells without a value."


def test_recommend__a_seed_without_a_value_in_any_cell_is_left_out() -> None:
    row = recommend(locality([1.0, np.nan, 1.1], [2.0, np.nan, 2.3])).iloc[0]
    assert row.slack == 0.0 and row.n == 2 and "Left out" not in row.certainty


def test_recommend__nothing_has_a_value() -> None:
    ds = result({WAIT: np.nan})
    table = recommend(ds)
    assert table["certainty"].unique().tolist() == ["Nothing to choose from: no cell has a value."]
    assert table["policy"].isna().all() and table["slack"].isna().all() and table["n"].eq(0).all()
    assert table["tied"].map(len).eq(0).all()
    assert np.isnan(table[["mean", "lower", "difference", "ratio_upper"]].to_numpy()).all()


def test_recommend__higher_is_better() -> None:
    hits = np.array([[0.2, 0.21], [0.7, 0.71], [0.5, 0.52]])[None, :, None, :]
    ds = result({"cache_hit_rate": hits}, policies=["locality_aware"], heterogeneity=[0.3], seeds=2)
    assert recommend(ds, "cache_hit_rate").iloc[0].slack == 5.0
    assert "largest value" in recommend(ds.isel(seed=[0]), "cache_hit_rate").iloc[0].certainty


def test_recommend__one_row_per_heterogeneity_and_further_dimension() -> None:
    ds = result(extra={"utilisation": [0.5, 0.9], "requests": [100, 200, 300]})
    table = recommend(ds)
    assert list(table.columns[:4]) == ["heterogeneity", "utilisation", "requests", "policy"]
    assert len(table) == 12
    for _, row in table.iterrows():
        point = {name: row[name] for name in ("heterogeneity", "utilisation", "requests")}
        alone = recommend(ds.sel(point)).iloc[0]
        assert alone.policy == row.policy and alone["mean"] == row["mean"] and alone.certainty == row.certainty


def test_recommend__slack_order_of_the_grid_does_not_matter() -> None:
    ds = locality([9.0, 9.1, 9.2], [5.1, 5.0, 5.3], [5.0, 5.1, 5.2])
    back = recommend(ds.isel(slack=[2, 0, 1])).iloc[0]
    there = recommend(ds).iloc[0]
    assert (back.slack, back.certainty) == (there.slack, there.certainty)


def test_recommend__says_when_the_value_depends_on_the_run_length() -> None:
    load = np.array([0.9, 1.1])[None, :, None, None]
    rows = ([9.0, 9.1, 9.2], [1.0, 1.1, 1.2])
    said = recommend(locality(*rows, max_offered_load=load)).iloc[0].certainty
    assert said.endswith("does not keep up there, so the value depends on the run length.")
    assert "run length" not in recommend(locality(*rows, max_offered_load=load[:, ::-1])).iloc[0].certainty


def test_recommend__a_user_policy_unknown_here_comes_after_the_catalogue() -> None:
    ds = three([9.0, 9.5], [5.0, 5.1], [5.0, 5.1]).assign_coords(
        policy=["round_robin", "mine(bias=2)", "locality_aware"]
    )
    ds = ds.assign_coords(reads_slack=("policy", [False, False, True]))
    assert recommend(ds).iloc[0].policy == "locality_aware"
