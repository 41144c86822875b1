"""What the pictures say: order, numbers, shared scales, marks and captions, read back from the drawn figures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection, QuadMesh
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from synthetic import result

import sweep
from sweep import plots
from sweep.analysis import interval, recommend
from sweep.errors import InputError
from sweep.plots import style
from sweep.plots.maps import axis_map

WAIT, VARIANCE = "p99_queue_wait_ms", "load_variance"
SIXTEEN = [5.0 * k for k in range(16)]
EIGHT = [0.0, 0.1, 0.2, 0.1 + 0.2, 0.4, 0.5, 0.6, 0.7]


def blocks(figure: Figure) -> list[Axes]:
    """Return the axes that hold cells, in the order drawn: all policies of the first quantity, then of the second."""
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def mesh(axes: Axes) -> QuadMesh:
    return next(found for found in axes.collections if isinstance(found, QuadMesh))


def texts(axes: Axes) -> list[list[str]]:
    """Return the numbers printed in the cells of a block, from the top row."""
    rows, columns = mesh(axes).get_array().shape
    found = [["" for _ in range(columns)] for _ in range(rows)]
    for text in axes.texts:
        x, y = text.get_position()
        found[int(y)][int(x)] = text.get_text()
    return found


def frames(axes: Axes) -> set[tuple[int, int]]:
    """Return the (row, column) of framed cells."""
    return {(int(p.get_y()), int(p.get_x())) for p in axes.patches if isinstance(p, Rectangle)}


def captions(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def hatched(axes: Axes) -> set[tuple[int, int]]:
    """Return the (row, column) of hatched cells."""
    cells = set()
    for lines in (found for found in axes.collections if isinstance(found, LineCollection)):
        for segment in lines.get_segments():
            x, y = segment.mean(axis=0)
            cells.add((int(y), int(x)))
    return cells


# --- heatmaps ---------------------------------------------------------------------------------------------------------


def test_heatmaps__two_quantities_side_by_side_one_block_per_policy() -> None:
    figure = plots.heatmaps(result(slack=SIXTEEN, heterogeneity=EIGHT))
    found = blocks(figure)
    assert [axes.get_title(loc="left") for axes in found] == ["round_robin", "queue_aware", "locality_aware"] * 2
    # A policy that reads no slack is one strip.
    assert [mesh(axes).get_array().shape for axes in found] == [(1, 8), (1, 8), (16, 8)] * 2
    left, right = found[2].get_position(), found[5].get_position()
    assert left.x1 < right.x0 and left.y0 == right.y0 and left.height == right.height
    widths = {round(axes.get_position().width, 9) for axes in found}
    assert len(widths) == 1


def test_heatmaps__slack_grows_upward_whatever_the_order_of_the_grid() -> None:
    ds = result(slack=[10.0, 0.0, 5.0])
    axes = blocks(plots.heatmaps(ds))[2]
    heights = {
        label.get_text(): axes.transData.transform((0, tick))[1]
        for label, tick in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    }
    assert heights["0"] < heights["5"] < heights["10"]
    expected = ds[VARIANCE].sel(policy="locality_aware", slack=[10.0, 5.0, 0.0]).mean("seed").values
    np.testing.assert_allclose(mesh(axes).get_array(), expected)


def test_heatmaps__numbers_and_labels_are_written_sanely() -> None:
    figure = plots.heatmaps(result({VARIANCE: 0.1 + 0.2}, slack=SIXTEEN, heterogeneity=EIGHT))
    strip = blocks(figure)[0]
    assert texts(strip) == [["0.300"] * 8]
    lowest = blocks(figure)[2]
    assert [label.get_text() for label in lowest.get_xticklabels()] == [f"0.{k}" if k else "0" for k in range(8)]
    everything = [text.get_text() for axes in figure.axes for text in [*axes.texts, *axes.get_xticklabels()]]
    assert not any("0000" in text or "9999" in text for text in everything)


def test_heatmaps__one_logarithmic_scale_per_quantity_across_policies() -> None:
    ds = result(draw=3)
    found = blocks(plots.heatmaps(ds))
    for name, group in ((VARIANCE, found[:3]), (WAIT, found[3:])):
        norms = {id(mesh(axes).norm) for axes in group}
        assert len(norms) == 1
        norm = mesh(group[0]).norm
        means = ds[name].mean("seed")
        assert isinstance(norm, LogNorm)
        assert (norm.vmin, norm.vmax) == pytest.approx((float(means.min()), float(means.max())))


def test_heatmaps__a_share_has_a_linear_scale_and_is_light_where_it_is_high() -> None:
    ds = result()
    figure = plots.heatmaps(ds, ["cache_hit_rate"])
    drawn = mesh(blocks(figure)[0])
    assert type(drawn.norm) is Normalize
    assert sum(drawn.cmap(1.0)[:3]) > sum(drawn.cmap(0.0)[:3])
    assert "higher is better" in captions(figure)


@pytest.mark.parametrize("better", ["lower", "higher", None])
def test_colour_map__is_in_order_in_grey(better: str | None) -> None:
    colours = style.colour_map(better)(np.linspace(0, 1, 64))[:, :3]
    grey = colours @ [0.299, 0.587, 0.114]
    steps = np.diff(grey) * (1 if better == "higher" else -1)
    assert (steps > 0).all()


def test_heatmaps__frames_the_recommendation_and_dots_what_cannot_be_told_apart() -> None:
    ds = result(slack=[0.0, 5.0, 10.0], heterogeneity=[0.0, 0.3, 0.5], draw=5)
    found = blocks(plots.heatmaps(ds))
    rows = {"10": 0, "5": 1, "0": 2, "nan": 0}
    for column, row in enumerate(recommend(ds).to_dict("records")):
        for axes in found:
            expected = {(rows[f"{row['slack']:g}"], column)} if axes.get_title(loc="left") == row["policy"] else set()
            assert {cell for cell in frames(axes) if cell[1] == column} == expected
    dots = sum(len(line.get_xdata()) for axes in found[3:] for line in axes.lines)
    assert dots == sum(len(tied) - 1 for tied in recommend(ds)["tied"])


def test_heatmaps__hatches_exactly_what_does_not_keep_up_and_says_so() -> None:
    load = np.full((3, 3, 2), 0.9)
    load[0, :, 1] = 1.2
    load[2, 0, 0] = 1.0
    figure = plots.heatmaps(result({"max_offered_load": load[..., None]}))
    round_robin, queue_aware, locality = blocks(figure)[:3]
    assert hatched(round_robin) == {(0, 1)}
    assert hatched(queue_aware) == set()
    assert hatched(locality) == {(2, 0)}
    assert "does not keep up" in captions(figure) and "run length" in captions(figure)
    assert "keep up" not in captions(plots.heatmaps(result({"max_offered_load": 0.9})))


def test_heatmaps__zeros_have_the_lowest_colour_and_a_note() -> None:
    wait = np.array([0.0, 4.0, 40.0])[None, :, None, None]
    figure = plots.heatmaps(result({WAIT: wait}, policies=["locality_aware"]), [WAIT])
    (axes,) = blocks(figure)
    assert texts(axes) == [["40.0", "40.0"], ["4.00", "4.00"], ["0", "0"]]
    colours = mesh(axes).to_rgba(mesh(axes).get_array())
    assert (colours[2] == colours[1]).all() and not (colours[2] == colours[0]).all()
    assert "0 has the colour of the lower end" in captions(figure)
    assert "lower end" not in captions(plots.heatmaps(result()))


def test_heatmaps__cells_without_a_value_are_grey_and_unframed() -> None:
    wait = np.where(np.arange(2) == 0, np.nan, 5.0)[None, None, :, None]
    axes = blocks(plots.heatmaps(result({WAIT: wait}), [WAIT]))[2]
    assert [row[0] for row in texts(axes)] == ["-"] * 3
    assert to_rgb(axes.get_facecolor()) != (1.0, 1.0, 1.0)
    assert all(
        column == 1 for axes in blocks(plots.heatmaps(result({WAIT: wait}), [WAIT])) for _, column in frames(axes)
    )


@pytest.mark.parametrize("value", [0.0, 7.0, np.nan])
def test_heatmaps__one_value_everywhere(value: float) -> None:
    ds = result({WAIT: value, VARIANCE: value})
    for figure in (plots.heatmaps(ds), plots.excess(ds), plots.tradeoff(ds)):
        figure.draw_without_rendering()


@pytest.mark.parametrize(
    ("slack", "heterogeneity", "policies", "seeds"),
    [
        ([5.0], [0.3], ["locality_aware"], 4),
        ([5.0], [0.3], ["round_robin"], 1),
        ([5.0], EIGHT, ["round_robin", "locality_aware"], 3),
        (SIXTEEN, [0.3], ["round_robin", "queue_aware", "locality_aware"], 2),
        ([0.0, 5.0, np.inf], [0.0, 0.3], ["locality_aware", "round_robin", "locality_aware(x=2)"], 3),
        (list(np.arange(60.0)), list(np.arange(40) / 40), ["round_robin", "locality_aware"], 2),
    ],
)
def test_pictures__any_grid(
    slack: Sequence[float], heterogeneity: Sequence[float], policies: Sequence[str], seeds: int
) -> None:
    ds = result(slack=slack, heterogeneity=heterogeneity, policies=policies, seeds=seeds)
    figure = plots.heatmaps(ds)
    width, height = figure.get_size_inches() * figure.dpi
    renderer = FigureCanvasAgg(figure).get_renderer()
    inside = [text for text in figure.texts if text.get_text()]
    inside += [axes.title for axes in figure.axes]
    for text in inside:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text.get_text()
    if len(heterogeneity) <= 16:
        plots.tradeoff(ds).draw_without_rendering()


def test_heatmaps__caption_states_the_seeds() -> None:
    assert "n = 6 seeds" in captions(plots.heatmaps(result()))
    assert "one seed cannot say" in captions(plots.heatmaps(result(seeds=1)))


def test_heatmaps__further_dimensions_need_a_selection() -> None:
    ds = result(extra={"utilisation": [0.5, 0.9]})
    with pytest.raises(
        InputError, match=r"one value of 'utilisation' and the result has 2; .* ds.sel\(utilisation=0.5\)"
    ):
        plots.heatmaps(ds)
    plots.heatmaps(ds.isel(utilisation=[1]))
    plots.heatmaps(ds.isel(utilisation=1))
    with pytest.raises(InputError, match="Unknown variable"):
        plots.heatmaps(ds.isel(utilisation=1), ["p99"])


def test_excess__percent_above_the_best_of_each_heterogeneity() -> None:
    wait = np.array([[10.0, 20.0], [11.0, 10.0], [30.0, 25.0]])[None, :, :, None]
    (axes,) = blocks(plots.excess(result({WAIT: wait}, policies=["locality_aware"])))
    assert texts(axes) == [["200", "150"], ["10", "0.0"], ["0.0", "100"]]
    hits = np.array([[0.5], [0.25], [0.4]])[None, :, :, None]
    ds = result({"cache_hit_rate": hits}, policies=["locality_aware"], heterogeneity=[0.0])
    assert texts(blocks(plots.excess(ds, "cache_hit_rate"))[0]) == [["20"], ["50"], ["0.0"]]


# --- curves -----------------------------------------------------------------------------------------------------------


def test_tradeoff__a_panel_per_heterogeneity_with_means_intervals_and_the_recommendation() -> None:
    wait = np.array([[60.0, 60.0, 60.0], [50.0, 50.0, 50.0], [48.0, 40.0, 45.0]])[:, :, None, None]
    variance = np.array([[5e4, 5e4, 5e4], [80.0, 80.0, 80.0], [70.0, 90.0, 200.0]])[:, :, None, None]
    noise = np.random.default_rng(1).lognormal(0.0, 0.01, (3, 3, 2, 6))
    noise[:2] = noise[:2, :1]
    ds = result({WAIT: wait * noise, VARIANCE: variance * noise})
    figure = plots.tradeoff(ds)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["heterogeneity 0", "heterogeneity 0.3"]
    x, y = interval(ds, VARIANCE), interval(ds, WAIT)
    for index, axes in enumerate(figure.axes):
        assert axes.get_xscale() == axes.get_yscale() == "log"
        curve = next(line for line in axes.lines if line.get_linestyle() == "-" and len(line.get_xdata()) == 3)
        place = {"policy": "locality_aware", "heterogeneity": [0.0, 0.3][index]}
        np.testing.assert_allclose(curve.get_xdata(), x["mean"].sel(place))
        np.testing.assert_allclose(curve.get_ydata(), y["mean"].sel(place))
        crosses = [segment for found in axes.collections for segment in found.get_segments()]
        ends = {(round(a[0], 6), round(b[0], 6)) for a, b in crosses}
        for slack in ds["slack"].values:
            cell = x.sel({**place, "slack": slack})
            assert (round(float(cell["lower"]), 6), round(float(cell["upper"]), 6)) in ends
        ring = next(line for line in axes.lines if line.get_markersize() == 11)
        chosen = recommend(ds).iloc[index]
        assert ring.get_ydata()[0] == pytest.approx(chosen["mean"])
        notes = " ".join(text.get_text() for text in axes.texts)
        assert "beyond this scale\nround_robin at 50" in notes and "queue_aware" not in notes
    assert "n = 6 seeds" in captions(figure) and "not simultaneous" in captions(figure)


def test_tradeoff__panels_share_their_axes_and_a_zero_makes_an_axis_linear() -> None:
    ds = result(heterogeneity=EIGHT)
    figure = plots.tradeoff(ds)
    assert len(figure.axes) == 8
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    ds[WAIT][:, :, 0, :] = 0.0
    axes = plots.tradeoff(ds).axes[0]
    assert axes.get_xscale() == "log" and axes.get_yscale() == "linear"


def test_tradeoff__a_panel_for_each_further_value() -> None:
    figure = plots.tradeoff(result(extra={"utilisation": [0.5, 0.9]}))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[1] == "heterogeneity 0, utilisation 0.9" and len(titles) == 4


def test_lines__bands_are_the_intervals_and_hollow_marks_do_not_keep_up() -> None:
    load = np.where(np.arange(3) == 2, 1.5, 0.5)[None, None, :, None]
    ds = result({"max_offered_load": load}, heterogeneity=[0.0, 0.3, 0.6]).isel(slack=[0])
    figure = plots.lines(ds, "heterogeneity", [WAIT, "cache_hit_rate"], title="Waits")
    axes = figure.axes[0]
    found = interval(ds, WAIT).isel(slack=0)
    band = next(item for item in axes.collections if isinstance(item, PolyCollection)).get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(float(found["lower"][0].min()))
    assert band[:, 1].max() == pytest.approx(float(found["upper"][0].max()))
    marks = [line for line in axes.lines if line.get_marker() != "None"]
    assert [line.get_xdata()[0] for line in marks if line.get_mfc() == "white"] == [0.6] * 3
    assert "Hollow" in captions(figure) and "Waits" in captions(figure)


def test_lines__wide_axes_are_logarithmic_but_shares_are_not() -> None:
    wide = np.array([1.0, 20.0, 300.0])[None, None, :, None]
    ds = result({WAIT: wide, "cache_hit_rate": wide / 1000}, heterogeneity=[1.0, 2.0, 8.0]).isel(slack=[0])
    first, second = plots.lines(ds, "heterogeneity", [WAIT, "cache_hit_rate"]).axes
    assert (first.get_xscale(), first.get_yscale(), second.get_yscale()) == ("log", "log", "linear")
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "2", "8"]


def test_lines__what_cannot_be_negative_starts_at_zero() -> None:
    ds = result({WAIT: np.array([0.0, 0.0, 0.0, 0.0, 0.0, 60.0])}).isel(slack=[0])
    assert interval(ds, WAIT)["lower"].min() < 0
    assert plots.lines(ds, "heterogeneity", [WAIT]).axes[0].get_ylim()[0] == 0


def test_lines__need_one_value_of_the_other_dimensions() -> None:
    with pytest.raises(InputError, match=r"need one value of 'slack', the result has 3.*isel\(slack=\[0\]\)"):
        plots.lines(result(), "heterogeneity", [WAIT])


# --- one axis of the policies -----------------------------------------------------------------------------------------


def test_axis_map__means_marks_and_a_heading() -> None:
    found = result({WAIT: np.array([1.0, 2.0, 4.0])[:, None, None, None] * np.linspace(0.9, 1.1, 6)}, seeds=6)
    figure = axis_map(found.isel(slack=[0]), "heterogeneity", [WAIT], against="queue_aware", title="Waits")
    axes = figure.axes[0]
    assert [row[0] for row in texts(axes)] == ["1.00", "2.00", "4.00"]
    dots = {int(line.get_ydata()[0]) for line in axes.lines}
    assert dots == {2}
    heading, title = (
        next(t for t in figure.texts if t.get_text() == text) for text in ("Waits", "P99 queue wait [ms]")
    )
    assert heading.get_position()[1] > title.get_position()[1] + 0.05
    assert "Dot: worse than queue_aware" in captions(figure)


# --- replays ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream() -> sweep.Requests:
    return sweep.Workload.poisson(requests=60, utilisation=0.9, replicas=3, sessions=8, prefixes=8).realise(1)


def test_timeline__a_bar_per_request_from_start_to_finish(stream: sweep.Requests) -> None:
    ds = sweep.simulate(stream, [1.0, 1.0, 0.5], policy="locality_aware")
    upper, lower = plots.timeline(ds).axes
    bars = next(item for item in upper.collections if isinstance(item, PolyCollection))
    boxes = np.array([path.vertices[:4] for path in bars.get_paths()])
    np.testing.assert_allclose(boxes[:, 0, 0], ds["start_ms"])
    np.testing.assert_allclose(boxes[:, 2, 0], ds["finish_ms"])
    np.testing.assert_allclose(boxes[:, :, 1].mean(axis=1), ds["replica_id"])
    colours = bars.get_facecolors()[:, :3]
    for reason in np.unique(ds["route_reason"]):
        for hit in (False, True):
            kind = colours[(ds["route_reason"].values == reason) & (ds["cache_hit"].values == hit)]
            assert len(np.unique(kind, axis=0)) <= 1
    waits = np.concatenate([line.get_ydata() for line in lower.lines])
    np.testing.assert_allclose(np.sort(waits), np.sort(ds["queue_wait_ms"]))


def test_timeline__of_the_token_engine_is_its_load() -> None:
    stream = sweep.Workload.dplb_burst().realise(42)
    ds = sweep.simulate(stream, [1.0, 0.3, 1.2], policy="round_robin", engine="token_step")
    (axes,) = plots.timeline(ds).axes
    for replica, line in enumerate(axes.lines):
        assert (line.get_ydata() == ds["load"].values[:, replica]).all()


def test_timeline__errors(stream: sweep.Requests) -> None:
    ds = sweep.simulate(stream, [1.0, 1.0], policy="queue_aware")
    with pytest.raises(InputError, match="at least one request"):
        plots.timeline(ds.isel(request=slice(0)))
    with pytest.raises(InputError, match="at least one request"):
        plots.timeline(result())
    for wrong in ({}, {"a": ds}):
        with pytest.raises(InputError, match="token_step"):
            plots.loads(wrong)


# --- all of them ------------------------------------------------------------------------------------------------------


def test_pictures__leave_pyplot_and_the_settings_alone() -> None:
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    plots.heatmaps(result())
    plots.tradeoff(result())
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_save__writes_the_same_bytes_without_a_date(tmp_path: Path) -> None:
    found = set()
    for name in ("a.png", "b.png"):
        style.save(plots.heatmaps(result()), tmp_path / name)
        data = (tmp_path / name).read_bytes()
        assert data.startswith(b"\x89PNG") and b"Software" not in data and b"Date" not in data and b"tIME" not in data
        found.add(hashlib.sha256(data).hexdigest())
    assert len(found) == 1
