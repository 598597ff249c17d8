"""Figures of unusual numbers: a hundred classes, nothing positive, gaps. They are checked by what they draw."""

import numpy as np
import pytest
import torch

from odevit.distill.bound_stopping import draw_tracking
from odevit.report.attention import draw_attention
from odevit.report.convergence import draw_exponents, draw_spectrum, draw_speed
from odevit.report.early_stopping import draw_stop
from odevit.report.groups import draw_classes
from odevit.report.section import to_builtins
from odevit.report.smoothness import draw_lipschitz, draw_radius
from odevit.report.solver_sensitivity import draw_grid, draw_horizons, draw_steps
from odevit.report.teacher_match import GROUPS, draw_bins, draw_correctness, draw_layers, nearness
from tests.report.test_verdict import GOOD, outcome, share, spread


def drawn(figure):
    """The axes of a figure that can be rendered."""
    figure.canvas.draw()
    return figure.axes


def line(axes, label):
    (found,) = [each for each in axes.lines if each.get_label() == label]
    return found.get_xdata(), found.get_ydata()


def words(axes):
    return [text.get_text() for text in axes.texts]


def title(figure):
    return figure.get_suptitle()


def classes(count):
    return {
        "classes": [
            {
                "class": f"class number {i}", "exponent": -0.3 + 0.001 * (i % 17), "error": 0.01, "count": 10,
                "accuracy": (i % 23) / 23, "accuracy_error": 0.1,
            }
            for i in range(count)
        ],
        "correlation": {"r": -0.1, "p": 0.3, "count": count} if count > 2 else None,
    }  # fmt: skip


@pytest.mark.parametrize(("count", "named"), [(1, 1), (10, 10), (100, 12)])
def test_draw_classes_labels_the_extreme_classes(count, named):
    numbers = classes(count)
    figure = draw_classes(numbers)
    axes = drawn(figure)[0]
    (bubbles,) = [each for each in axes.collections if hasattr(each, "get_sizes")]
    expected = [(100 * row["accuracy"], row["exponent"]) for row in numbers["classes"]]
    np.testing.assert_allclose(bubbles.get_offsets(), expected)
    names = words(axes)
    assert len(names) == len(set(names))
    assert 1 <= len(names) <= named
    assert "class number 0" in names, "the least accurate one"
    assert ("r = −0.10, p = 0.3" in title(figure)) == (count > 2)


def test_draw_exponents_accepts_missing_and_equal_values():
    part = {"values": [None, None], "negative": share(0, 2)}
    (axes,) = drawn(draw_exponents({"path": part, "rest": part}))
    assert not axes.patches
    part = {"values": [0.5, 0.5, -0.5], "negative": share(1, 3)}
    (axes,) = drawn(draw_exponents({"path": part, "rest": {**part, "values": [0.5, None, None]}}))
    heights = [sum(bar.get_height() for bar in container) for container in axes.containers]
    assert heights == [3, 1], "every finite value stands in a bar"
    assert axes.figure.legends[0].get_texts()[1].get_text() == "at rest (1 images)"


def test_draw_spectrum_draws_hollow_markers_where_not_converged():
    part = {"values": [[-0.1, -0.2], [-0.3, None]], "converged": [True, False]}
    left, right = drawn(draw_spectrum({"k": 2, "images": 2, "path": part, "rest": part}))
    for axes in (left, right):
        first, second = [each for each in axes.lines if len(each.get_xdata()) == 2 and each.get_marker() == "o"]
        assert list(first.get_ydata()) == [-0.1, -0.2]
        assert first.get_markerfacecolor() != "white"
        assert second.get_markerfacecolor() == "white"
    assert left.get_ylim() == right.get_ylim()


@pytest.mark.parametrize(("median", "scale"), [([0.1, None], "log"), ([0.0, 0.0], "linear")])
def test_draw_speed_accepts_gaps_and_zeros(median, scale):
    speed = {"times": [1.0, 2.0], "low": median, "median": median, "high": median, "horizon": 1.5}
    (axes,) = drawn(draw_speed(speed))
    times, values = line(axes, "median image")
    assert list(times) == [1.0, 2.0]
    np.testing.assert_array_equal(values, [np.nan if value is None else value for value in median])
    assert axes.get_yscale() == scale
    assert "its horizon" in words(axes)


def test_draw_steps_puts_diverged_outcomes_at_the_lower_edge():
    solvers = [outcome(12, 0.9), {**outcome(6, 0.1, "euler"), "stable": False}, outcome(12, 0.89, "euler")]
    sweep = {**GOOD["sweep"], "solvers": [{**each, "images": 200} for each in solvers]}
    figure = draw_steps(sweep)
    axes = drawn(figure)[0]
    bottom, top = axes.get_ylim()
    assert top - bottom < 20
    assert words(axes) == ["−80"]
    nfe, gains = line(axes, "lie trotter, its own")
    assert list(nfe) == [4, 6, 12, 24]
    np.testing.assert_allclose(gains, [-5.0, -0.3, 0.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(line(axes, "euler")[1], [-80.0, -1.0], atol=1e-9)
    assert "0.5 points over 6 to 64 steps" in title(figure)


def test_draw_horizons_draws_every_time_once():
    sweep = {**GOOD["sweep"], "horizons": [outcome(12, 0.92), outcome(24, 0.93, horizon=12.0, agreement=0.9)]}
    sweep["stops"] = [outcome(6, 0.5, horizon=3.0), outcome(12, 0.92)]
    (axes,) = drawn(draw_horizons(sweep))
    times, accuracies = line(axes, "accuracy")
    assert list(times) == [3.0, 6.0, 12.0]
    np.testing.assert_allclose(accuracies, [50, 92, 93])
    np.testing.assert_allclose(line(axes, "same answer as at its own horizon")[1], [100, 100, 90])


def test_draw_grid_frames_own_settings_and_stars_unstable_ones():
    grid = [outcome(n, 0.5, horizon=t) for n in (3, 6, 12) for t in (3.0, 6.0)]
    grid[1] = {**grid[1], "stable": False}
    axes = drawn(draw_grid(grid, outcome(6, 0.5)))[0]
    assert sorted(words(axes)) == ["50.0"] * 5 + ["50.0*"]
    (frame,) = axes.patches
    assert frame.get_xy() == (0.5, 0.5), "six steps are the second column, T = 6 the second row"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["3  (0.5x)", "6  (1x)"]
    assert "steps: 50.0% where the step is stable" in title(draw_grid(grid, outcome(6, 0.5)))


def test_draw_lipschitz_without_attention_draws_the_field():
    band = {"smallest": 1.0, "median": 2.0, "largest": 3.0}
    rows = [{"time": t, "field": band} for t in (0.0, 1.0)]
    (axes,) = drawn(draw_lipschitz(rows))
    assert [each.get_label() for each in axes.lines] == ["whole field, measured"]
    rows = [{**row, "attention": band, "attention_bound": {**band, "median": None}} for row in rows]
    (axes,) = drawn(draw_lipschitz(rows))
    assert len(axes.lines) == 3
    assert axes.get_ylim()[0] == 0
    assert title(draw_lipschitz(rows)) == "Lipschitz constant along the path: 2.0 in the median"


def test_draw_radius_accepts_radii_that_were_not_found():
    radius = {
        "images": 2, "relative": [None, 0.02], "margin": [0.5, 0.4], "right": [True, False],
        "quantiles": {"5%": None, "50%": None, "95%": None},
    }  # fmt: skip
    figure = draw_radius(radius)
    (axes,) = drawn(figure)
    right, wrong = (collection.get_offsets() for collection in axes.collections)
    assert np.isnan(np.ma.filled(right, np.nan)).any(), "nothing is drawn for a radius that was not found"
    np.testing.assert_allclose(wrong, [(0.4, 2.0)])
    assert "no disturbance changed an answer" in title(figure)


@pytest.mark.parametrize("teacher", [False, True])
def test_draw_attention_overlays_maps_and_outlines(teacher):
    maps = [[[0.1, 0.2], [0.3, 0.4]]] * 2
    outlined = [[[False, False], [True, True]]] * 2
    attention = {"images": 2, "names": ["cat", "dog"], "query": "CLS", "maps": maps, "outlined": outlined}
    if teacher:
        attention |= {"teacher": maps, "teacher_outlined": outlined}
    figure = draw_attention(attention, torch.rand(2, 3, 8, 8))
    grid = drawn(figure)
    assert len(grid) == (6 if teacher else 4)
    assert [axes.get_title() for axes in grid[:2]] == ["cat", "dog"]
    for axes in grid[2:]:
        picture, shown = axes.images
        np.testing.assert_allclose(shown.get_array(), maps[0])
        assert picture.get_extent() == shown.get_extent() == [0, 8, 8, 0]
        (border,) = axes.collections
        length = sum(np.linalg.norm(np.diff(path.vertices, axis=0), axis=1).sum() for path in border.get_paths())
        assert length == pytest.approx(2 * (8 + 4)), "the border of the lower half"


@pytest.mark.parametrize("present", [(0, 1, 2, 3), (0, 3), (3,)])
def test_draw_correctness_and_bins_show_both_distances(present):
    groups = torch.tensor(present).repeat(16)
    distances = torch.linspace(5.0, 9.0, len(groups))[None]
    found, relative = (nearness(d, d, groups, groups == 0) for d in (distances, distances / 10))
    teacher = to_builtins(
        {"groups": groups, "group_names": list(GROUPS), "token": "CLS", **found, "relative": relative}
    )
    strips, bars = drawn(draw_correctness(teacher)), drawn(draw_bins(teacher))
    for panels in (strips, bars):
        assert [axes.get_xlabel() for axes in panels] == ["|x(T) − h|", "|x(T) − h| / |h|"]
    seen = [torch.cat([torch.tensor(c.get_offsets()[:, 0].data) for c in axes.collections]) for axes in strips]
    torch.testing.assert_close(seen[0], 10 * seen[1], rtol=1e-4, atol=0)
    for axes in bars:
        heights = torch.tensor([[bar.get_height() for bar in container] for container in axes.containers])
        torch.testing.assert_close(heights.sum(dim=0), torch.full((8,), 100.0, dtype=heights.dtype))


def test_draw_layers_draws_the_measured_bands():
    bands = {"low": [1.0, 3.0], "median": [2.0, 4.0], "high": [9.0, 5.0], "standstill": [4.0, 8.0]}
    figure = draw_layers({"cls": bands, "patches": bands})
    columns = drawn(figure)
    assert [axes.get_title() for axes in columns] == ["CLS", "patches"]
    for axes in columns:
        assert list(line(axes, "student, median image")[1]) == [2.0, 4.0]
        assert list(line(axes, "if it never moved")[1]) == [4.0, 8.0]
        assert axes.get_ylim()[0] == 0
    assert title(figure) == "Distance at the last layer: 4.00, against 8.00 without moving"


def test_draw_stop_shows_saved_epochs_and_points():
    stopping = {
        "epochs": [1.0, 2.0, 4.0], "bound": [3.0, 2.0, 1.5], "running": [[4.0, 5.0], [1.0, 1.5], [0.5, 1.0]],
        "patience": 1, "stop": 2.0, "end": 4.0, "score_at_stop": 0.5, "score_at_end": 0.75,
    }  # fmt: skip
    figure = draw_stop(stopping)
    (axes,) = drawn(figure)
    assert [bar.get_width() for bar in axes.patches] == [50.0, 75.0]
    assert words(axes) == ["50.00%", "75.00%"]
    assert title(figure) == "Stopping early saves 50% of the epochs and costs 25.00 points"
    (axes,) = drawn(draw_tracking(stopping["epochs"], stopping["running"], stopping["bound"]))
    assert list(line(axes, "layer 2")[1]) == [5.0, 1.5, 1.0]
    assert list(line(axes, "bound")[1]) == [3.0, 2.0, 1.5]


def test_draw_figures_without_a_spread_have_short_titles():
    none = {"steps": None, "solvers": None, "horizons": None}
    figure = draw_horizons({**GOOD["sweep"], "horizons": [outcome(12, 0.92)], "spreads": none})
    assert title(figure) == "Accuracy along the model's own path"
    assert "varies by 1.0 points" in title(
        draw_horizons({**GOOD["sweep"], "horizons": [outcome(12, 0.92)], "spreads": {"horizons": spread(0.01)}})
    )
