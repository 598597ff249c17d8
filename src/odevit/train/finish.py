"""best weights -> test score, record, curves, card: how a run ends."""

from __future__ import annotations

import json
import shutil
from typing import Any

import torch

from odevit.data import DataSet
from odevit.model import OdeViTForImageClassification
from odevit.train.card import write_card
from odevit.train.curves import draw_curves
from odevit.train.evaluate import Score, evaluate_batches
from odevit.train.recipe import Recipe
from odevit.train.record import make_record, versions
from odevit.train.splits import EVALUATION_BATCH, evaluation_batches


def finish(recipe: Recipe, validation: float, data: DataSet, device: torch.device, command: str) -> None:
    """Take the best weights, read the test split once, and write everything down."""
    folder = recipe.folder
    model = OdeViTForImageClassification.from_pretrained(folder / "best", dtype=torch.float32).to(device)
    test = evaluation_batches(data, "test", device=device, workers=recipe.train.workers)
    score = evaluate_batches(model, test)
    model.save_pretrained(folder)
    params = sum(parameter.numel() for parameter in model.parameters())
    record = make_record(recipe, score, params=params, validation=validation, device=device, command=command)
    (folder / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    draw_curves(folder / "metrics.jsonl", folder / "curves.png", recipe.name)
    facts = {"classes": data.num_classes, "seed": recipe.seed, "validation": validation}
    write_card(folder, {**_card_facts(model, score), **record, **facts, "version": versions()["odevit"]})
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "best", ignore_errors=True)
    print(
        f"test top-1 {score.top1:.2%}  top-3 {score.top3:.2%}  top-5 {score.top5:.2%}  nfe {score.nfe}  "
        f"{score.milliseconds:.3f} ms/image  ->  {folder}"
    )


def _card_facts(model: OdeViTForImageClassification, score: Score) -> dict[str, Any]:
    config = model.config
    stacked = config.depth == "stacked"
    leak = f" - {config.leak:g} (x - x0)" if config.leak and not stacked else ""
    return {
        "equation": f"{config.steps} untied layers" if stacked else f"dx/dt = G(x) + F(x){leak}",
        "solver": config.solver,
        "steps": config.steps,
        "horizon": config.horizon,
        "image_size": config.image_size,
        "eval_batch": min(EVALUATION_BATCH, score.images),
    }
