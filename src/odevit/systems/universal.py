"""x_{n+1} = block(x_n + P_n), y = sum_n w_n x_n: one block again and again, until each token has had enough."""

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
    token's number and of the step's, is added at every step. A halting unit sees s and says p_n = sigmoid(u s + b); a
    token halts when the sum of its p passes 1 - eps, or at the last of `steps` steps. Its states count with w_n = p_n,
    the last one with what is left, the remainder r. In training n + r, the mean over the tokens, is the ponder cost;
    the number of steps n has no gradient, r has.

    The survey: depth "through layer reuse". What differs from tensor2tensor, which most others follow:

    - The answer is the weighted sum of the paper. Their update y <- w_n x_n + (1 - w_n) y takes weight away from
      earlier states: p = 1/2, 1/2 then counts as 1/4, 1/2, and the weights no longer sum to one.
    - A token that has halted keeps its state, as the paper says; others go on seeing it. Theirs moves on.
    - A token that has not halted at the last step gets all its remainder there, and `Solution.notice` says how many.
    - A sample whose tokens have all halted is not computed any more in evaluation. `Solution.evaluations` is how often
      a sample was computed: the most steps among its tokens, since it takes all of them to make a step.

    States that are kept are the x_n; the answer is their weighted sum.

    Args:
        halting: whether tokens halt; without, all take `steps` steps and the last state is the answer.
        ponder: weight of the ponder cost.
        eps: how much of a token's weight may be left when it halts.
    """

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
            hf_init.ones_(self.halting.bias)  # a new unit halts early, and learns to go on

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        steps = self.repetitions(request.solver_config)
        recorder, dynamics = self.recorder(x0, steps, replace(request, solver_config=None)), self.field.dynamics(x0)
        if self.halting is not None:
            return self._halt(x0, steps, recorder, dynamics, self.halting)
        x = x0
        for n in range(1, steps + 1):
            x = recorder.record(n, recorder.run_layer(dynamics, x + signal(x, n)))
        return recorder.solution(x)

    def _halt(self, x: Tokens, steps: int, recorder: LayerRecorder, dynamics: Dynamics, unit: nn.Linear) -> Solution:
        # A graph that is exported or captured cannot look at numbers; a state that is kept is there for every sample.
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        blind = capturing or torch.compiler.is_exporting()
        early = not (blind or recorder.chosen or recorder.keep.attentions or recorder.penalties)
        act, answer, made = Halting(x, self.eps), torch.zeros_like(x), 0
        for n in range(1, steps + 1):
            samples = act.running.any(dim=1)
            if early and not samples.any():
                break
            moving, made = act.running.unsqueeze(-1), n
            s = torch.where(moving, x + signal(x, n), x)
            weight = act.weigh(unit(s).squeeze(-1).sigmoid(), last=n == steps)
            if early and not self.training and not samples.all():
                some = samples.nonzero().squeeze(1)
                after = s.index_copy(0, some, recorder.run_layer(dynamics, s[some]))
            else:
                after = recorder.run_layer(dynamics, s)
            x = recorder.record(n, torch.where(moving, after, x))
            answer = answer + weight.unsqueeze(-1).to(x.dtype) * x
        return replace(
            recorder.solution(answer, costs={"ponder": self.ponder * act.cost}),
            time=float(made),
            stats=Stats(nfe=made, steps=made),
            evaluations=act.steps.amax(dim=1),
            unsettled=act.cut.any(dim=1),
            notice=None if blind else act.notice(steps),
        )

    @property
    def subject(self) -> str:
        return "a universal depth"

    def describe(self) -> str:
        if self.halting is None:
            return f"{self.solver_config.steps} repetitions of one block"
        return f"up to {self.solver_config.steps} repetitions of one block on tokens that halt"


class Halting:
    """w_n = p_n while p_1 + ... + p_n <= 1 - eps, then w_n = r = 1 - (p_1 + ... + p_{n-1}), then 0: token by token.

    `running` are the tokens that go on, `steps` how many each has made, `remainder` the weight of its last one; `cut`
    are those that were still running at the last step.
    """

    def __init__(self, x: Tokens, eps: float) -> None:
        shape, self.eps = x.shape[:2], eps
        self.running = torch.ones(shape, dtype=torch.bool, device=x.device)
        self.cut = torch.zeros_like(self.running)
        self.steps = torch.zeros(shape, dtype=torch.long, device=x.device)
        # Sums of probabilities in single precision: in half of it 1 - eps is 1.
        self.total, self.remainder = (torch.zeros(shape, dtype=torch.float32, device=x.device) for _ in range(2))

    def weigh(self, p: Tensor, *, last: bool) -> Tensor:
        """The weights [batch, token] of the states that this step leads to."""
        p, left = p.float(), 1.0 - self.total
        enough = self.running & (self.total + p > 1.0 - self.eps)
        ending = enough
        if last:
            ending, self.cut = self.running, self.running & ~enough
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
        """A sentence about the tokens that were cut short, if any were."""
        count = int(self.cut.sum())
        if not count:
            return None
        left = float(self.remainder[self.cut].detach().mean())
        return (
            f"{count:,} of {self.cut.numel():,} tokens had not halted after {steps} steps, the most there may be; "
            f"their last state counts with the {left:.2f} that were left on average. Allow more steps."
        )


def signal(x: Tokens, step: int) -> Tensor:
    """P[i, 2j] = sin(i / 10000^{2j/D}) + sin(n / 10000^{2j/D}), P[i, 2j + 1] the same of cos: where, and when.

    The sines fill the first half of the channels and the cosines the second, as in tensor2tensor.
    """
    tokens, dim = x.shape[1:]
    half = (dim + 1) // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)

    def waves(numbers: Tensor) -> Tensor:
        angles = numbers.float().unsqueeze(-1) * rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :dim]

    places = torch.arange(tokens, device=x.device)
    return (waves(places) + waves(torch.full_like(places[:1], step))).to(x.dtype)
