"""Kernels of a training step of a distillation by their kind, phase by phase.

    python -m benchmarks.step_profile OUT.json [steps=20] WORD [WORD ...]

WORDs are the options of `odevit distill`. Steps are trained in the same way, compiled and replayed with CUDA. Of each
phase the first solver settings and the most expensive ones are profiled. The kind follows from the kernel's name.
Milliseconds are those in which the device was busy, which may be less than the time of a step.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from odevit.core.solver_config import SolverConfig
from odevit.distill.distill_task import DistillTask
from odevit.distill.distillation import compose_distillation
from odevit.train.record import device_name, versions
from odevit.train.runner import make_trainer
from odevit.train.schedule import SchedulePhase
from odevit.train.trainer import OdeViTTrainer

KINDS = {
    "matrix products": r"gemm|nvjet|cutlass|cublas|addmm|::mm|bmm|linear",
    "attention": r"flash|fmha|attention|cudnn.*sdpa",
    "compiled": r"^triton",
    "copies and casts": r"memcpy|memset|copy|_to_copy|direct_copy|cat",
    "optimiser": r"multi_tensor|foreach|lerp",
    "sums and norms": r"reduce|norm|sum|mean",
}


def kind_of(kernel: str) -> str:
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel, re.IGNORECASE)), "others")


def steps_of(trainer: OdeViTTrainer, part: SchedulePhase, solver_config: SolverConfig, count: int) -> None:
    """Loss, gradients and update of `count` batches that go this way."""
    trainer.task.before_step(part.end - part.share, part)
    for _, batch in zip(range(count), trainer.task.batches, strict=False):
        if trainer._can_capture(batch) and trainer.captured is not None:
            trainer.captured(batch, solver_config, part.kind)
        else:
            trainer.loss(trainer.network, batch, solver_config).backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def profiled(trainer: OdeViTTrainer, part: SchedulePhase, solver_config: SolverConfig, count: int) -> dict[str, Any]:
    """Milliseconds and kernels of a step, in all and by kind."""
    on_gpu = torch.cuda.is_available()
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    steps_of(trainer, part, solver_config, 2)
    wait()
    began = time.perf_counter()
    steps_of(trainer, part, solver_config, count)
    wait()
    taken = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        steps_of(trainer, part, solver_config, count)
        wait()
    busy, number = defaultdict[str, float](float), defaultdict[str, float](float)
    for event in seen.key_averages():
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        busy[kind_of(event.key)] += spent / 1e3 / count
        number[kind_of(event.key)] += event.count / count
    kinds = {kind: {"ms": busy[kind], "kernels": number[kind]} for kind in sorted(busy, key=lambda name: -busy[name])}
    return {
        "phase": part.name,
        "way": str(solver_config),
        "ms": 1e3 * taken / count,
        "busy_ms": sum(busy.values()),
        "kinds": kinds,
    }


def chosen(part: SchedulePhase) -> Iterable[SolverConfig]:
    """The first way of a phase, and the one with the most evaluations."""
    ways = part.sampler.configs if part.sampler else []
    return dict.fromkeys(
        [
            *ways[:1],
            *sorted(ways, key=lambda solver_config: solver_config.method.evaluations(2) * solver_config.steps)[-1:],
        ]
    )


def main(out: str, *words: str) -> None:
    count = next((int(word.removeprefix("steps=")) for word in words if word.startswith("steps=")), 20)
    with TemporaryDirectory() as folder:
        given = [word for word in words if not word.startswith("steps=")]
        task = DistillTask(compose_distillation([*given, f"out={folder}/run"]))
        task.folder.acquire(task.recipe)
        task.recipe = task.recipe.on(task.process.device.type)
        task.build()
        trainer = make_trainer(task)
        trainer.create_optimizer()
        trainer.capture_all()
        rows = [
            profiled(trainer, part, solver_config, count) for part in task.schedule for solver_config in chosen(part)
        ]
        facts = {"words": given, "batch": task.batches.batch_size, "device": device_name(task.process.device)}
    Path(out).write_text(json.dumps({**facts, "versions": versions(), "steps": rows}, indent=2) + "\n")
    for row in rows:
        print(f"{row['phase']:10s} {row['way']}: {row['ms']:.1f} ms, busy {row['busy_ms']:.1f} ms")
        for kind, numbers in row["kinds"].items():
            print(f"    {kind:18s} {numbers['ms']:8.2f} ms  {numbers['kernels']:8.0f} kernels")


if __name__ == "__main__":
    main(*sys.argv[1:])
