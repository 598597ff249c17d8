"""pca_paths and the figures of trajectories."""

from itertools import product

import pytest
import torch

from odevit.report.trajectories import draw_paths, draw_plane, pca_paths


def in_space(flat, dim=9):
    """Points of a plane as points of a higher space: turned and shifted."""
    basis, _ = torch.linalg.qr(torch.randn(dim, 2, dtype=torch.float64))
    return (flat.double() @ basis.T + torch.randn(dim, dtype=torch.float64)).float()


def test_pca_paths_keep_distances_of_states_in_a_plane():
    flat = torch.randn(11, 3, 2)  # five states of the student, six of the teacher
    states = in_space(flat)
    paths = pca_paths(states[:5], states[5:])
    assert paths.student.shape == (3, 5, 2)
    assert paths.teacher.shape == (3, 6, 2)
    drawn = torch.cat([paths.student, paths.teacher], dim=1).transpose(0, 1)
    for a, b in product(range(11), range(11)):
        torch.testing.assert_close((drawn[a] - drawn[b]).norm(dim=-1), (flat[a] - flat[b]).norm(dim=-1))
    assert sum(paths.explained) == pytest.approx(1.0)
    assert paths.explained[0] >= paths.explained[1]


def test_pca_paths_use_the_axes_of_largest_variance():
    """Three uncorrelated directions of variance 4 : 2 : 1: four sevenths and two sevenths of it are seen."""
    states = torch.zeros(6, 1, 3)
    for axis, length in enumerate((4.0, 2.0, 1.0)):
        states[2 * axis, 0, axis], states[2 * axis + 1, 0, axis] = length**0.5, -(length**0.5)
    paths = pca_paths(states[:3], states[3:])
    assert paths.explained == pytest.approx((4 / 7, 2 / 7))
    assert paths.student[0, 0].abs().tolist() == pytest.approx([2.0, 0.0], abs=1e-6)


def test_pca_paths_show_a_student_off_its_teachers_plane():
    teacher = torch.zeros(4, 1, 5)
    teacher[:, 0, 0] = torch.arange(4.0)
    student = teacher.clone()
    student[2:, 0, 3] = 5.0
    paths = pca_paths(student, teacher)
    gap = (paths.student - paths.teacher)[0].norm(dim=-1)
    torch.testing.assert_close(gap, torch.tensor([0.0, 0.0, 5.0, 5.0]), atol=1e-5, rtol=1e-5)


def test_pca_paths_have_a_fixed_sign():
    states = in_space(torch.randn(8, 2, 2))
    one, other = pca_paths(states[:4], states[4:]), pca_paths(states[:4] + 7.0, states[4:] + 7.0)
    torch.testing.assert_close(one.student, other.student, atol=1e-4, rtol=1e-4)


def test_pca_paths_refuse_states_of_different_shapes():
    with pytest.raises(ValueError, match=r"\[4, 2, 8\], the teacher's \[4, 3, 8\]; expected \[step, image, dim\]"):
        pca_paths(torch.zeros(4, 2, 8), torch.zeros(4, 3, 8))
    with pytest.raises(ValueError, match="select one token"):
        pca_paths(torch.zeros(4, 2, 17, 8), torch.zeros(4, 2, 17, 8))


def test_draw_plane_marks_start_horizon_and_rest():
    points = [[0.0, 0.0], [1.0, 1.0], [2.0, 1.5]]
    paths = {
        "images": 2, "token": "CLS", "explained": [0.7, 0.2], "horizon_at": 1,
        "paths": [{"class": "cat", "points": points}, {"class": "dog", "points": points[::-1]}],
    }  # fmt: skip
    (axes,) = draw_plane(paths).axes
    marks = {line.get_marker(): (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[:4]}
    assert {marker: marks[marker] for marker in "o|*"} == {"o": (0.0, 0.0), "|": (1.0, 1.0), "*": (2.0, 1.5)}
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[-2:] == ["cat", "dog"]
    assert axes.get_xlabel() == "1st principal component (70% of the variance)"


@pytest.mark.parametrize("channels", [1, 3])
def test_draw_paths_draws_path_picture_and_lines_per_image(channels):
    paths = pca_paths(torch.randn(7, 2, 6), torch.randn(4, 2, 6))
    figure = draw_paths(paths, (2, 4, 6), torch.rand(2, channels, 8, 8), ["cat", "cat"])
    figure.canvas.draw()
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cat", "cat (2)"]
    assert len(axes.artists) == 2
    threads = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) == 2]
    assert len(threads) == 2 * 3
    second = torch.tensor(threads[1], dtype=torch.float32)
    torch.testing.assert_close(second, torch.stack([paths.student[0, 4], paths.teacher[0, 2]]))
