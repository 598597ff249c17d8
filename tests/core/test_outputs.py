"""Outputs have tensors as entries and the trajectory as an attribute."""

import pickle

import pytest
import torch
from torch.utils import _pytree as pytree
from transformers import Trainer, TrainingArguments

from odevit import OdeViTModel, get_ode_model
from odevit.objectives.penalties import Transport
from odevit.train.loss import TrainingLoss
from tests.tiny import tiny_config, tiny_images, tiny_model


def student():
    return get_ode_model(tiny_model(depth="stacked", leak=0.0, steps=2)).eval()


@pytest.mark.parametrize("make", [tiny_model, lambda: OdeViTModel(tiny_config()).eval(), student])
def test_output_entries_are_tensors_and_trajectory_is_an_attribute(make):
    output = make()(tiny_images(), output_hidden_states=True, output_attentions=True)
    leaves = pytree.tree_leaves(output)
    assert leaves
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert {"trajectory", "stats"}.isdisjoint(output)
    again = pickle.loads(pickle.dumps(output))
    assert output.trajectory.ok
    assert again.stats == output.stats == output.trajectory.stats
    # As Accelerate and DataParallel do.
    for rebuilt in (type(output)(dict(output)), type(output)((name, output[name]) for name in output)):
        assert rebuilt.keys() == output.keys()
        assert getattr(rebuilt, "trajectory", None) is None


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, i):
        return {"pixel_values": torch.full((3, 16, 16), i / 5), "labels": i}


def test_transformers_trainer_trains_evaluates_and_predicts(tmp_path):
    options = {"max_steps": 2, "per_device_eval_batch_size": 2, "use_cpu": True, "report_to": "none"}
    args = TrainingArguments(str(tmp_path), disable_tqdm=True, save_strategy="no", bf16_full_eval=True, **options)
    trainer = Trainer(tiny_model(), args, train_dataset=Noise(), eval_dataset=Noise())
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    trainer.model.config.output_hidden_states = True
    for ignored, count in ((None, None), ([], 2)):  # logits alone, or with the states
        predictions = trainer.predict(Noise(), ignore_keys=ignored).predictions
        logits = predictions if count is None else predictions[0]
        assert logits.shape == (5, 5)
        assert count is None or (len(predictions), len(predictions[1])) == (count, 3)


def test_rebuilt_output_keeps_penalties_without_trajectory():
    """Accelerate rebuilds outputs from their entries in mixed precision; penalties must be entries."""
    model = tiny_model().train()
    batch = {"pixel_values": tiny_images(), "labels": torch.tensor([0, 1, 2])}

    def rebuilding(**inputs):
        output = model(**inputs)
        return type(output)(dict(output))

    loss = TrainingLoss({"transport": 0.5}, {"transport": Transport()})
    torch.testing.assert_close(loss(rebuilding, batch, None), loss(model, batch, None))
