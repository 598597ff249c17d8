"""Which step is compared with which layer, computed by hand."""

import math
from itertools import pairwise

import pytest
import torch

from odevit.distill.alignment import Alignment, layer_distances
from odevit.errors import ConfigError


def states(lengths, batch=3, tokens=4, dim=5):
    """h_l = h_{l-1} + lengths[l] * a unit vector, the same for all tokens."""
    direction = torch.zeros(dim)
    direction[0] = 1.0
    path = [torch.randn(batch, tokens, dim)]
    for length in lengths:
        path.append(path[-1] + length * direction)
    return path


def test_layer_distances_are_mean_token_movements():
    distances = layer_distances([states([1.0, 2.0, 0.5]), states([1.0, 2.0, 0.5], batch=7)])
    assert distances == pytest.approx((1.0, 2.0, 0.5), rel=1e-5)


def test_layer_distances_of_chosen_tokens_ignore_the_others():
    path = states([1.0])
    path[1][:, 0] += torch.tensor([2.0, 0, 0, 0, 0])
    assert layer_distances([path], slice(0, 1)) == pytest.approx((3.0,), rel=1e-5)
    assert layer_distances([path]) == pytest.approx(((3.0 + 3 * 1.0) / 4,), rel=1e-5)


def test_indices_equal_those_computed_by_hand():
    """d = (1, 1, 2), mean 4/3, T = 1: softmax(0.75, 0.75, 1.5) = (0.243, 0.243, 0.514); of 12 steps: 2.9, 5.8, 12."""
    weights = [math.exp(0.75), math.exp(0.75), math.exp(1.5)]
    alignment = Alignment("distance", (1.0, 1.0, 2.0))
    assert alignment.shares == pytest.approx([w / sum(weights) for w in weights])
    assert alignment.indices(12) == (3, 6, 12)
    assert Alignment("arc", (1.0, 1.0, 2.0)).indices(12) == (3, 6, 12)
    assert Alignment("arc", (1.0, 1.0, 4.0)).indices(12) == (2, 4, 12)
    assert Alignment("uniform", (1.0, 1.0, 4.0)).indices(12) == (4, 8, 12)


def test_indices_of_measured_distances_equal_those_computed_by_hand():
    distances = layer_distances([states([1.0, 3.0, 1.0, 5.0])])
    assert Alignment("arc", distances).indices(20) == (2, 8, 10, 20)


@pytest.mark.parametrize("kind", ["distance", "arc", "uniform"])
@pytest.mark.parametrize("steps", [5, 6, 12, 100])
def test_indices_increase_strictly_and_end_at_the_last_step(kind, steps):
    alignment = Alignment(kind, (1e-6, 10.0, 1e-6, 1e-6, 3.0), temperature=0.1)
    meetings = alignment.indices(steps)
    assert all(a < b for a, b in pairwise(meetings))
    assert meetings[0] >= 1
    assert meetings[-1] == steps


def test_shares_at_low_temperature_take_one_layer_and_at_high_are_uniform():
    cold, hot = Alignment("distance", (1.0, 2.0), 0.01), Alignment("distance", (1.0, 2.0), 1e6)
    assert cold.shares[1] == pytest.approx(1.0)
    assert hot.shares == pytest.approx((0.5, 0.5), abs=1e-5)


def test_indices_refuse_fewer_steps_than_layers():
    with pytest.raises(
        ValueError, match=r"3 checkpoints .* do not fit into 2 steps; take at least 3 steps, or match the last"
    ):
        Alignment("uniform", (1.0, 1.0, 1.0)).indices(2)


def test_alignment_reports_all_problems_together():
    with pytest.raises(ConfigError) as caught:
        Alignment("distanse", (float("nan"),), temperature=0)
    assert len(caught.value.problems) == 3
    assert "Did you mean 'distance'" in caught.value.problems[0]


def test_alignment_load_reads_what_save_wrote(tmp_path):
    alignment = Alignment("distance", (1.0, 2.5), temperature=0.7)
    alignment.save(tmp_path / "alignment.json")
    assert Alignment.load(tmp_path / "alignment.json") == alignment
