"""x_{n+1} = block(x_n + P_n), y = sum_n w_n x_n: one block, repeated until each token halts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.core.base import DEFAULT, DEPTHS, Dynamics, Field, Request
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import SolverConfig
from odevit.errors import BOOLEAN, Expected, real
from odevit.systems.layered import LayerRecorder, RepeatedDepth
from odevit.tokens import Tokens


@DEPTHS.register("universal")
class UniversalDepth(RepeatedDepth):
    """x_{n+1} = z + F(z), z = s + G(s), s = x_n + P_n;  y = sum_n w_n x_n, sum_n w_n = 1, token by token.

    The Universal Transformer (Dehghani et al. 2018) with adaptive computation time (Graves 2016). P_n, sinusoids of the
    token index and of the step, is added at every step. A halting unit computes p_n = sigmoid(u s + b); a token halts
    when the sum of its p exceeds 1 - eps, or at the last of `steps` steps. The weights are w_n = p_n, and the remainder
    r for the last state. The ponder cost in training is the mean of n + r over tokens; only r has a gradient.

    The survey: depth "through layer reuse". Differences from tensor2tensor, which most implementations follow:

    - The result is the weighted sum of the paper. Their update y <- w_n x_n + (1 - w_n) y reduces the weights of older
      states: p = 1/2, 1/2 gives the weights 1/4, 1/2, which do not sum to one.
    - The state of a halted token does not change, as in the paper; other tokens still attend to it.
    - A token that has not halted at the last step gets its whole remainder there; `Solution.notice` counts such tokens.
    - In evaluation, a sample whose tokens have all halted is not computed. `Solution.evaluations` is how often a sample
      was computed: the maximum over its tokens, because a step needs all tokens.

    Saved states are the x_n; the result is their weighted sum.

    Args:
        halting: whether tokens halt; if not, all take `steps` steps and the last state is the result.
        ponder: weight of the ponder cost.
        eps: the weight that may be left when a token halts.
    """

    subject = "a universal depth"

    rules: ClassVar[Mapping[str, Expected]] = {
        "halting": BOOLEAN,
        "ponder": real(minimum=0),
        "eps": real(above=0, below=1),
    }

    def __init__(
        self,
        make_field: Callable[[], Field],
        solver_config: SolverConfig,
        *,
        halting: bool = True,
        ponder: float = 0.01,
        eps: float = 0.01,
    ) -> None:
        super().__init__(make_field, solver_config)
        self.field = make_field()
        self.ponder, self.eps = ponder, eps
        self.halting = nn.Linear(self.field.dim, 1) if halting else None

    def scale_initial_weights(self) -> None:
        if self.halting is not None:
            hf_init.ones_(self.halting.bias)  # tokens halt early at first

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        steps = self.repetitions(request.solver_config)
        recorder, dynamics = self.recorder(x0, steps, replace(request, solver_config=None)), self.field.dynamics(x0)
        if self.halting is not None:
            return self._forward_halting(x0, steps, recorder, dynamics, self.halting)
        x = x0
        for n in range(1, steps + 1):
            x = recorder.record(n, recorder.run_layer(dynamics, x + timing_signal(x, n)))
        return recorder.solution(x)

    def _forward_halting(
        self, x: Tokens, steps: int, recorder: LayerRecorder, dynamics: Dynamics, unit: nn.Linear
    ) -> Solution:
        # An exported or captured graph cannot depend on values.
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        fixed_graph = capturing or torch.compiler.is_exporting()
        stop_early = not (fixed_graph or recorder.is_recording)
        halting, result, steps_made = HaltingState(x, self.eps), torch.zeros_like(x), 0
        for n in range(1, steps + 1):
            samples = halting.running.any(dim=1)
            if stop_early and not samples.any():
                break
            running, steps_made = halting.running.unsqueeze(-1), n
            s = torch.where(running, x + timing_signal(x, n), x)
            weight = halting.update(unit(s).squeeze(-1).sigmoid(), last=n == steps)
            if stop_early and not self.training and not samples.all():
                indices = samples.nonzero().squeeze(1)
                after = s.index_copy(0, indices, recorder.run_layer(dynamics, s[indices]))
            else:
                after = recorder.run_layer(dynamics, s)
            x = recorder.record(n, torch.where(running, after, x))
            result = result + weight.unsqueeze(-1).to(x.dtype) * x
        return replace(
            recorder.solution(result, costs={"ponder": self.ponder * halting.cost}),
            time=float(steps_made),
            stats=Stats(nfe=steps_made, steps=steps_made),
            evaluations=halting.steps.amax(dim=1),
            unsettled=halting.truncated.any(dim=1),
            notice=None if fixed_graph else halting.notice(steps),
        )

    def describe(self) -> str:
        if self.halting is None:
            return f"{self.solver_config.steps} repetitions of one block"
        return f"up to {self.solver_config.steps} repetitions of one block on tokens that halt"


class HaltingState:
    """w_n = p_n while p_1 + ... + p_n <= 1 - eps, then w_n = r = 1 - (p_1 + ... + p_{n-1}), then 0: token by token.

    `running` are the tokens that have not halted, `steps` the steps of each token, `remainder` the weight of its last
    state, and `truncated` the tokens that had not halted at the last step.
    """

    def __init__(self, x: Tokens, eps: float) -> None:
        shape, self.eps = x.shape[:2], eps
        self.running = torch.ones(shape, dtype=torch.bool, device=x.device)
        self.truncated = torch.zeros_like(self.running)
        self.steps = torch.zeros(shape, dtype=torch.long, device=x.device)
        # In single precision: bfloat16 rounds 1 - eps to 1.
        self.total, self.remainder = (torch.zeros(shape, dtype=torch.float32, device=x.device) for _ in range(2))

    def update(self, p: Tensor, *, last: bool) -> Tensor:
        """The weights w_n [batch, token] of this step, from its halting probabilities."""
        p, left = p.float(), 1.0 - self.total
        halted = self.running & (self.total + p > 1.0 - self.eps)
        ending = halted
        if last:
            ending, self.truncated = self.running, self.running & ~halted
        self.steps = self.steps + self.running
        self.remainder = torch.where(ending, left, self.remainder)
        weight = torch.where(ending, left, p) * self.running
        self.running, self.total = self.running & ~ending, self.total + weight
        return weight

    @property
    def cost(self) -> Tensor:
        """mean (n + r): only r has a gradient."""
        return (self.steps + self.remainder).mean()

    def notice(self, steps: int) -> str | None:
        """A sentence about the truncated tokens; None if there are none."""
        count = int(self.truncated.sum())
        if not count:
            return None
        left = float(self.remainder[self.truncated].detach().mean())
        return (
            f"{count:,} of {self.truncated.numel():,} tokens had not halted after {steps} steps, the maximum; the "
            f"weight of their last state is {left:.2f} on average. Allow more steps."
        )


def timing_signal(x: Tokens, step: int) -> Tensor:
    """P[i, 2j] = sin(i / 10000^{2j/D}) + sin(n / 10000^{2j/D}), P[i, 2j + 1] the same of cos, for token i and step n.

    The first half of the channels holds the sines and the second the cosines, as in tensor2tensor.
    """
    tokens, dim = x.shape[1:]
    half = (dim + 1) // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)

    def sinusoids(numbers: Tensor) -> Tensor:
        angles = numbers.float().unsqueeze(-1) * rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :dim]

    indices = torch.arange(tokens, device=x.device)
    return (sinusoids(indices) + sinusoids(torch.full_like(indices[:1], step))).to(x.dtype)
