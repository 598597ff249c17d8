"""Accuracy of a student with several solver settings, and of its teacher: `python examples/student.py RUN`."""

from __future__ import annotations

import sys

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from odevit import load
from odevit.distill.teacher import load_teacher
from odevit.train.splits import evaluation_batches, load_run_data


@torch.no_grad()
def main() -> None:
    logging.disable_progress_bar()
    (run,) = sys.argv[1:]
    student, teacher = load(run).eval(), load_teacher(run)
    if teacher is None:
        sys.exit(f"{run} has no teacher; give the folder of a distillation")
    own = student.solver_config
    settings = {
        **{
            f"{own.name}, {n} steps": own.replace(steps=n)
            for n in (own.steps // 2, own.steps, 2 * own.steps, 8 * own.steps)
        },
        f"rk4, {2 * own.steps} steps": own.replace(solver="rk4", steps=2 * own.steps),
        "twice the horizon": own.stretched(2),
        "8 x the horizon": own.stretched(8),
    }
    data = load_run_data(run, None, student)
    batches = list(evaluation_batches(data, "test", mean=student.config.image_mean, std=student.config.image_std))
    labels = torch.cat([batch["labels"] for batch in batches])
    expected = torch.cat([teacher(batch["pixel_values"]).logits.argmax(-1) for batch in batches])

    table = Table(box=None, header_style="bold")
    for name in ("", "top-1", "as the teacher", "as with own settings", "NFE"):
        table.add_column(name, justify="left" if name == "" else "right")
    table.add_row("teacher", f"{share(expected == labels)}", "", "", str(teacher.num_layers))
    outputs = {
        title: [student(batch["pixel_values"], solver_config=solver_config) for batch in batches]
        for title, solver_config in settings.items()
    }
    answers = {title: torch.cat([part.logits.argmax(-1) for part in parts]) for title, parts in outputs.items()}
    usual = answers[f"{own.name}, {own.steps} steps"]
    for title, given in answers.items():
        nfe = outputs[title][0].stats.nfe
        table.add_row(title, share(given == labels), share(given == expected), share(given == usual), str(nfe))
    print(f"\nThe student on {len(labels)} test images with several solver settings (its own: {own}):\n")
    Console(width=110).print(table)


def share(mask: torch.Tensor) -> str:
    return f"{mask.double().mean().item():.2%}"


if __name__ == "__main__":
    main()
