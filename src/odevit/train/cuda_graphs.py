"""Copy a batch in and replay: forward and backward passes as CUDA graphs.

A model of half a million parameters keeps a large GPU busy for microseconds at a time: launching its kernels one by one
takes longer than running them. A graph launches them all at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from odevit.core.base import Depth
from odevit.core.solver_config import SolverConfig
from odevit.train.loss import TrainingLoss

WARM_UP = 3
"""Passes before capture: compilation, autotuning and lazy allocations must be over."""


def can_be_replayed(network: nn.Module) -> bool:
    """Whether the control flow is the same for every batch; a graph cannot replay decisions of the host."""
    return all(module.fixed_graph for module in network.modules() if isinstance(module, Depth))


@dataclass(frozen=True)
class Replay:
    """A captured step: its graph, where that writes the loss and its parts, and how many evaluations it has."""

    graph: torch.cuda.CUDAGraph
    loss: Tensor
    parts: dict[str, Tensor]
    evaluations: list[int]


class CapturedStep:
    """loss, gradients = replay(batch), one graph per kind of step and solver config, all on the same buffers.

    Gradients are written into buffers that every call attaches to the parameters again, so the Trainer may set them to
    None between two steps.

    Args:
        model: takes a batch and a solver config, and gives an output with a loss.
        batch: an example; later batches must have the same shapes.
        autocast: the dtype of mixed precision, or None.
        loss: what is minimised; the model's own loss unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: dict[str, Tensor],
        autocast: torch.dtype | None,
        loss: TrainingLoss | None = None,
    ) -> None:
        self.model = model
        self.autocast = autocast
        self.loss = loss or TrainingLoss()
        self.inputs = {name: value.clone() for name, value in batch.items()}
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.graphs: dict[tuple[int, SolverConfig | None], Replay] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def fits(self, batch: dict[str, Tensor]) -> bool:
        """Whether the batch has the shapes that were captured."""
        return all(batch[name].shape == value.shape for name, value in self.inputs.items())

    def __call__(self, batch: dict[str, Tensor], solver_config: SolverConfig | None, kind: int = 0) -> Tensor:
        """The loss of a batch; steps of one `kind` and solver config replay the same graph."""
        torch._foreach_copy_(list(self.inputs.values()), [batch[name] for name in self.inputs])
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        if (kind, solver_config) not in self.graphs:
            self.graphs[kind, solver_config] = self._capture(solver_config)
        step = self.graphs[kind, solver_config]
        step.graph.replay()
        self.loss.set_parts(step.parts)
        self.loss.evaluations.extend(step.evaluations)
        return step.loss.clone()

    def _capture(self, solver_config: SolverConfig | None) -> Replay:
        before = len(self.loss.evaluations)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._pass(solver_config)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        del self.loss.evaluations[before:]  # the warm-up is not part of the training
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self._pass(solver_config)
        step = Replay(graph, loss, dict(self.loss.parts), self.loss.evaluations[before:])
        del self.loss.evaluations[before:]
        return step

    def _pass(self, solver_config: SolverConfig | None) -> Tensor:
        torch._foreach_zero_(self.gradients)
        with torch.autocast("cuda", dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False):
            loss = self.loss(self.model, self.inputs, solver_config)
        loss.backward()
        return loss.detach()
