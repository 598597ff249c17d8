"""W <- W - lr orthogonalise(momentum): Muon for matrices, AdamW for the rest, as one optimiser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from odevit.field import Projection


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
    orthogonalises all matrices of one shape together: a small model on a GPU spends its time launching kernels.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

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
                updates = orthogonalise(stacked).unbind()
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


class Together(Optimizer):
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
    model: nn.Module,
    *,
    name: str,
    learning_rate: float,
    weight_decay: float,
    muon_learning_rate: float = 0.02,
    muon_weight_decay: float = 0.0,
) -> Optimizer:
    """AdamW as in the paper, or Muon for the matrices of fields and tokenisers and AdamW for the rest.

    Vectors, tokens and positions are not decayed; the head and one-dimensional things never go to Muon, whose update
    has the same size whatever the gradient is.
    """
    trained = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
    inside = {id(m.weight) for m in model.modules() if isinstance(m, Projection | nn.Conv2d)}
    inner = [p for _, p in trained if name == "muon" and id(p) in inside]
    taken = {id(p) for p in inner}
    rest = [(key, p) for key, p in trained if id(p) not in taken]

    def is_matrix(key: str, parameter: nn.Parameter) -> bool:
        return key.endswith("weight") and parameter.ndim >= 2

    groups = [
        {"params": [p for key, p in rest if is_matrix(key, p)], "weight_decay": weight_decay},
        {"params": [p for key, p in rest if not is_matrix(key, p)], "weight_decay": 0.0},
    ]
    adamw = AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        fused=next(model.parameters()).is_cuda or None,
    )
    if not inner:
        return adamw
    return Together(Muon(inner, lr=muon_learning_rate, weight_decay=muon_weight_decay), adamw)
