"""Top-k counts what it says."""

import pytest
import torch

from odevit.core.solver_config import SolverConfig
from odevit.data.batches import make_batches
from odevit.data.images import Images
from odevit.train.evaluate import evaluate_batches
from tests.tiny import tiny_model


def batches(count=50, size=16, **options):
    pixels = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8)
    labels = torch.arange(count) % 5
    return make_batches(Images(pixels, labels), size, mean=[0.5] * 3, std=[0.5] * 3, num_classes=5, **options)


def test_top_k_against_a_direct_count():
    model, data = tiny_model(), batches()
    score = evaluate_batches(model, data)
    logits = torch.cat([model(batch["pixel_values"]).logits for batch in data])
    labels = torch.cat([batch["labels"] for batch in data])
    rank = (logits > logits.gather(1, labels[:, None])).sum(1)
    assert score.top1 == pytest.approx((rank < 1).double().mean().item())
    assert score.top3 == pytest.approx((rank < 3).double().mean().item())
    assert score.top5 == 1.0
    assert score.images == 50
    assert score.ranks == {"top-1": score.top1, "top-3": score.top3}, "among five classes the label always is"
    assert score.nfe == 2
    assert score.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


def test_the_integration_can_be_chosen_and_the_mode_is_kept():
    model = tiny_model().train()
    by_pieces = evaluate_batches(model, batches(), solver="rk4", steps=3)
    assert by_pieces.nfe == 12
    assert model.training
    torch.manual_seed(0)
    data, solver_config = batches(), SolverConfig("rk4", 3, model.solver_config.horizon)
    assert (
        evaluate_batches(model, data, solver_config=solver_config).loss
        == evaluate_batches(model, data, solver="rk4", steps=3).loss
    )


def test_images_that_stop_on_their_own_cost_what_they_evaluated():
    model = tiny_model(steps=12, horizon=12.0)
    score = evaluate_batches(model, batches(), stop="velocity:0.5")
    assert 0 < score.nfe < 12


def test_processes_share_the_work():
    model = tiny_model()
    torch.manual_seed(0)
    whole = evaluate_batches(model, batches())
    parts = []
    for rank in range(2):
        torch.manual_seed(0)
        evaluate_batches(model, batches(rank=rank, world=2), reduce=lambda counts: parts.append(counts) or counts)
    total = sum(parts)
    assert total[-1] == 50
    assert total[0] / 50 == pytest.approx(whole.top1)
