"""W <- W - lr orthogonalise(momentum): Muon for matrices, AdamW for the rest, as one optimiser.

W_avg <- d W_avg + (1 - d) W: the average of the weights that is evaluated and saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import TrainerCallback

from odevit.core.layers import Projection
from odevit.train.recipe import TrainRecipe


def orthogonalise(matrices: Tensor, iterations: int = 5) -> Tensor:
    """U V^T of each matrix U S V^T in [count, rows, columns], approximately, by a quintic Newton-Schulz iteration.

    The coefficients (Jordan et al. 2024) trade exactness for speed: singular values end in about [0.7, 1.2].
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    transposed = x.shape[-2] > x.shape[-1]
    if transposed:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if transposed else x).to(matrices.dtype)


class Muon(Optimizer):
    """M <- mu M + g;  W <- (1 - lr decay) W - lr sqrt(max(1, rows/columns)) orthogonalise(g + mu M).

    torch's own Muon takes only 2-D weights, one after the other. This one takes convolutions as [out, in * kernel] and
    orthogonalises all matrices of one shape together, compiled if asked to: a small model on a GPU spends its time
    launching kernels.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        compiled: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._orthogonalise = torch.compile(orthogonalise, dynamic=False) if compiled else orthogonalise

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rows = parameter.shape[0]
                    by_shape[(rows, parameter.numel() // rows)].append(parameter)
            for (rows, columns), parameters in by_shape.items():
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                momenta = [self._momentum(parameter) for parameter in parameters]
                torch._foreach_mul_(momenta, group["momentum"])
                torch._foreach_add_(momenta, gradients)
                ahead = torch._foreach_add(gradients, momenta, alpha=group["momentum"])
                stacked = torch.stack([gradient.view(rows, columns) for gradient in ahead])
                updates = self._orthogonalise(stacked).unbind()
                weights: list[Tensor] = list(parameters)
                torch._foreach_mul_(weights, 1.0 - group["lr"] * group["weight_decay"])
                step = -group["lr"] * max(1.0, rows / columns) ** 0.5
                torch._foreach_add_(weights, [u.view_as(w) for u, w in zip(updates, weights, strict=True)], alpha=step)
        return loss

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


class CombinedOptimizer(Optimizer):
    """Several optimisers that step, save and load as one. A schedule sees the groups of all of them."""

    def __init__(self, *optimisers: Optimizer) -> None:
        self.optimisers = optimisers
        super().__init__([group for part in optimisers for group in part.param_groups], {})
        # The same dictionaries, not copies: what a scheduler writes here is what the parts read.
        self.param_groups = [group for part in optimisers for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.optimisers:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.optimisers:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.optimisers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.optimisers, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        # Loading makes new group dictionaries; look at those.
        self.param_groups = [group for part in self.optimisers for group in part.param_groups]


def make_optimiser(
    model: nn.Module, recipe: TrainRecipe, rate_of: Callable[[str], float] = lambda name: 1.0
) -> Optimizer:
    """AdamW as in the paper, or Muon for the matrices of fields and tokenisers and AdamW for the rest.

    Vectors, tokens and positions are not decayed; the head and one-dimensional things never go to Muon, whose update
    has the same size whatever the gradient is. `rate_of` gives a factor on the rates of a parameter by its name.
    """
    matrices = {id(m.weight) for m in model.modules() if isinstance(m, Projection | nn.Conv2d)}
    groups: dict[str, dict[float, list[nn.Parameter]]] = {
        kind: defaultdict(list) for kind in ("muon", "decayed", "free")
    }
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if recipe.optimizer == "muon" and id(parameter) in matrices:
            kind = "muon"
        else:
            kind = "decayed" if name.endswith("weight") and parameter.ndim >= 2 else "free"
        groups[kind][rate_of(name)].append(parameter)

    def with_rates(kind: str, rate: float, decay: float) -> list[dict[str, Any]]:
        return [
            {"params": p, "lr": rate * factor, "weight_decay": decay, "factor": factor}
            for factor, p in groups[kind].items()
        ]

    rate = recipe.learning_rate
    adamw = AdamW(
        with_rates("decayed", rate, recipe.weight_decay) + with_rates("free", rate, 0.0),
        fused=next(model.parameters()).is_cuda or None,
    )
    if not groups["muon"]:
        return adamw
    muon = Muon(
        with_rates("muon", recipe.muon_learning_rate, recipe.muon_weight_decay),
        compiled=recipe.compile is True and next(model.parameters()).is_cuda,
    )
    return CombinedOptimizer(muon, adamw)


class WeightAverage(TrainerCallback):
    """w_avg <- d w_avg + (1 - d) w after every step, d rising to `decay` as (1 + n)/(10 + n).

    Early on the average is short, so that it does not drag the initial weights along.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters: list[Tensor] = list(model.parameters())
        self.average: list[Tensor] = [parameter.detach().clone() for parameter in self.parameters]
        self.updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Include the current weights."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1.0 - decay)
        self.updates += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.update()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside this block the model has the averaged weights. Values are copied, so captured graphs stay valid."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._copy_in(self.average)
        try:
            yield
        finally:
            self._copy_in(own)

    @torch.no_grad()
    def _copy_in(self, values: list[Tensor]) -> None:
        torch._foreach_copy_(self.parameters, values)

    def save(self, path: Path) -> None:
        """Write the average and the number of steps it has seen."""
        tensors = {name: value.contiguous() for name, value in zip(self.names, self.average, strict=True)}
        save_file(tensors, path, metadata={"updates": str(self.updates)})

    def load(self, path: Path) -> None:
        """Continue from a saved average."""
        with torch.no_grad(), safe_open(path, framework="pt") as file:
            for name, value in zip(self.names, self.average, strict=True):
                value.copy_(file.get_tensor(name))
            self.updates = int(file.metadata()["updates"])
