"""Pictures of unusual numbers: a hundred classes, nothing positive, gaps."""

from io import BytesIO

import pytest
import torch
from PIL import Image

from odevit.report.figures.exponents import draw_classes, draw_exponents
from odevit.report.figures.integration import draw_grid, draw_speed, draw_steps
from odevit.report.figures.smoothness import draw_radius
from odevit.report.figures.teaching import draw_bins, draw_correctness
from odevit.report.plain import plain
from odevit.report.teaching import GROUPS, nearness
from tests.report.test_verdict import GOOD, outcome, share


def size(figure):
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer).size


def classes(count):
    return {
        "classes": [
            {
                "class": f"class number {i}", "exponent": -0.3 + 0.001 * (i % 17), "error": 0.01, "count": 10,
                "accuracy": (i % 23) / 23, "accuracy_error": 0.1,
            }
            for i in range(count)
        ],
        "correlation": {"r": 0.1, "p": 0.3, "count": count} if count > 2 else None,
    }  # fmt: skip


@pytest.mark.parametrize(("count", "named"), [(1, 1), (10, 10), (100, 12)])
def test_classes(count, named):
    figure = draw_classes(classes(count))
    texts = [text for axes in figure.axes for text in axes.texts]
    assert 1 <= len(texts) <= named
    assert size(figure)[0] >= 800


def test_exponents_that_are_all_missing_or_all_alike():
    part = {"values": [None, None], "negative": share(0, 2)}
    assert size(draw_exponents(part, part))[0] >= 800
    part = {"values": [0.5, 0.5], "negative": share(0, 2)}
    assert size(draw_exponents(part, part))[0] >= 800


def test_speed_with_gaps_and_at_a_standstill():
    for median in ([0.1, None], [0.0, 0.0]):
        speed = {"times": [1.0, 2.0], "low": median, "median": median, "high": median, "horizon": 1.0}
        assert size(draw_speed(speed))[0] >= 800


def test_ways_that_collapse_do_not_squeeze_the_others():
    solvers = [outcome(12, 0.9), {**outcome(6, 0.1, "euler"), "stable": False}, outcome(12, 0.89, "euler")]
    figure = draw_steps({**GOOD["sweep"], "solvers": [{**each, "images": 200} for each in solvers]})
    bottom, top = figure.axes[0].get_ylim()
    assert top - bottom < 20
    assert any("−80" in text.get_text() for text in figure.axes[0].texts)
    assert size(figure)[0] >= 800


def test_a_grid_of_equal_accuracies():
    grid = [outcome(n, 0.5, horizon=t) for n in (3, 6, 12) for t in (3.0, 6.0)]
    assert size(draw_grid(grid, outcome(6, 0.5)))[0] >= 800


def test_radii_that_were_not_found():
    radius = {
        "images": 2, "relative": [None, None], "margin": [0.5, 0.4], "right": [True, False],
        "quantiles": {"5%": None, "50%": None, "95%": None},
    }  # fmt: skip
    assert size(draw_radius(radius))[0] >= 800


@pytest.mark.parametrize("present", [(0, 1, 2, 3), (0, 3), (3,)])
def test_both_distances_stand_side_by_side(present):
    groups = torch.tensor(present).repeat(16)
    distances = torch.linspace(5.0, 9.0, len(groups))[None]
    found, relative = (nearness(d, d, groups, groups == 0) for d in (distances, distances / 10))
    teacher = plain({"groups": groups, "group_names": GROUPS, "token": "CLS", **found, "relative": relative})
    strips, bars = draw_correctness(teacher), draw_bins(teacher)
    for figure in (strips, bars):
        assert [axes.get_xlabel() for axes in figure.axes] == ["|x(T) − h|", "|x(T) − h| / |h|"]
        assert size(figure)[0] >= 800
    seen = [torch.cat([torch.tensor(c.get_offsets()[:, 0].data) for c in axes.collections]) for axes in strips.axes]
    torch.testing.assert_close(seen[0], 10 * seen[1], rtol=1e-4, atol=0)
    for axes in bars.axes:
        heights = torch.tensor([[bar.get_height() for bar in container] for container in axes.containers])
        torch.testing.assert_close(heights.sum(dim=0), torch.full((8,), 100.0, dtype=heights.dtype))
