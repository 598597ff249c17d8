"""s_{n+1} = core(A [s_n; e]), e = prelude(x0), y = coda(s_r): depth as thinking again about the same image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import initialization as hf_init

from odevit.core.base import DEFAULT, DEPTHS, Dynamics, Field, Request
from odevit.core.field import VectorField
from odevit.core.layers import NORMS
from odevit.core.solution import Solution, Stats
from odevit.core.solver_config import MOST_STEPS, SolverConfig
from odevit.core.splitting import LieTrotter
from odevit.errors import Expected, integer, real, refuse
from odevit.solvers.early_exit import ActiveBatch, StopState, make_stop, stop_problems
from odevit.systems.layered import LayerRecorder, RepeatedDepth
from odevit.tokens import Tokens

START = math.sqrt(2 / 5)
"""Standard deviation of s_0, beside states that the norms of the core keep at 1."""


@DEPTHS.register("recurrent")
class RecurrentDepth(RepeatedDepth):
    """e = prelude(x0);  s_{n+1} = core(A [s_n; e]), n < r;  y = coda(s_r).

    Recurrent depth (Geiping et al. 2025). The image comes in anew at every step, s_0 is noise, and r is drawn: so the
    core learns a map whose answer depends neither on where it began nor on how often it was applied, and `steps` may be
    any number in evaluation. In training r = 1 + Poisson(tau) with log-normal tau, one r for a batch, s_0 a fresh
    truncated normal, and only the last `backprop` steps have a gradient. In evaluation r is `steps` and s_0 = 0, the
    mean of what training starts from: answers are reproducible, and a sample's is the same in every batch.

    The survey: "all recurrent steps share parameters, enabling the model to scale compute depth at test-time".

    Blocks are sandwiches, y = n_2(x + G(n_1 x)), x' = n_4(y + F(n_3 y)), with RMS norms for n_2 and n_4 and the field's
    own for n_1 and n_3. What differs: E[r] is `mean`, where the paper's formula gives one more; the norm that its code
    has before the coda is the last n_4 of the core; initial values of the blocks are those of all fields here.

    `stop` lets samples leave when they are done, as the paper's exit criteria do: "kl", "velocity" (the latent
    difference), "cosine", "entropy", "argmax". Each question to the head goes through the coda, which
    `Solution.evaluations` does not count. States that are kept are s_1, ..., s_r.

    Args:
        prelude, core, coda: their numbers of blocks.
        mean: E[r] in training; `steps` unless given.
        spread: standard deviation of log tau; 0 is a plain Poisson distribution.
        backprop: how many of the last steps have a gradient in training.
    """

    rules: ClassVar[Mapping[str, Expected]] = {
        **dict.fromkeys(("prelude", "coda"), integer(0, 64)),
        "core": integer(1, 64),
        "mean": real(minimum=1, maximum=MOST_STEPS / 10, optional=True),
        "spread": real(minimum=0, maximum=2),
        "backprop": integer(1, MOST_STEPS),
    }
    fixed_graph = False

    def __init__(
        self,
        make_field: Callable[[], Field],
        solver_config: SolverConfig,
        *,
        prelude: int = 1,
        core: int = 1,
        coda: int = 1,
        mean: float | None = None,
        spread: float = 0.5,
        backprop: int = 8,
    ) -> None:
        super().__init__(make_field, solver_config)
        self.prelude, self.core, self.coda = (
            nn.ModuleList(Sandwich(make_field()) for _ in range(count)) for count in (prelude, core, coda)
        )
        dim = cast(Sandwich, self.core[0]).field.dim
        self.adapter = nn.Linear(2 * dim, dim, bias=False)
        self.mean, self.spread, self.backprop = float(solver_config.steps if mean is None else mean), spread, backprop

    def scale_initial_weights(self) -> None:
        hf_init.trunc_normal_(self.adapter.weight, std=math.sqrt(2 / (5 * len(self.adapter.weight))))

    def draw(self) -> int:
        """r = 1 + Poisson(tau), log tau ~ N(log(mean - 1) - spread^2 / 2, spread^2), so that E[r] = mean."""
        log = torch.randn(()) * self.spread - self.spread**2 / 2
        return min(MOST_STEPS, 1 + int(torch.poisson((self.mean - 1.0) * log.exp())))

    def forward(self, x0: Tokens, request: Request = DEFAULT) -> Solution:
        own, stop, readout = request.solver_config, request.stop, request.readout
        steps = self.draw() if self.training and own is None else self.repetitions(own)
        recorder = self.recorder(x0, steps, replace(request, solver_config=None, stop=None))
        criterion = None if stop is None else make_stop(stop)
        kept = bool(recorder.chosen or recorder.keep.attentions or recorder.penalties)
        if criterion is not None:
            refuse(
                self.subject,
                stop_problems(criterion, recording=kept, training=self.training, has_head=readout is not None),
            )
        around, core = len(self.prelude) + len(self.coda), len(self.core)

        def through(blocks: Iterable[Any], x: Tokens) -> Tokens:
            for block in blocks:
                x = block(x, recorder, around + steps * core)
            return x

        if criterion is None:
            e = through(self.prelude, x0)
            return recorder.solution(through(self.coda, self._repeat(steps, recorder, through, e)))
        with torch.no_grad():
            asked = None if readout is None else lambda state: readout(through(self.coda, state))
            e = through(self.prelude, x0)
            active = ActiveBatch(criterion, asked, self._start(e))
            self._repeat(steps, recorder, through, e, active)
            taken, y = active.steps, through(self.coda, active.final)
        most = int(taken.max())
        return replace(
            recorder.solution(y),
            time=float(most),
            stats=Stats(nfe=around + most * core, steps=most),
            evaluations=around + taken * core,
            stop_times=taken.float(),
        )

    def _start(self, e: Tokens) -> Tokens:
        """s_0."""
        if not self.training:
            return torch.zeros_like(e)
        return nn.init.trunc_normal_(torch.empty_like(e), std=START, a=-3 * START, b=3 * START)

    def _repeat(
        self, steps: int, recorder: LayerRecorder, through: Through, e: Tokens, active: ActiveBatch | None = None
    ) -> Tokens:
        """s_r, of the samples that have not left before."""
        s, image = self._start(e), Dynamics({}, anchor=e)  # the image leaves with its sample
        # One dropout mask for all the steps, as along any trajectory of a shared field.
        core = [partial(block, dynamics=cast(Sandwich, block).field.dynamics(e)) for block in self.core]
        for n in range(1, steps + 1):
            before, alive = s, not self.training or n > steps - self.backprop
            with torch.set_grad_enabled(torch.is_grad_enabled() and alive):
                mixed = self.adapter(torch.cat([s, image.anchor], dim=-1)).to(e.dtype)  # whatever autocast makes of it
                s = recorder.record(n, through(core, mixed))
            if active is not None:
                s, image, _ = active.remove_done(n, n == steps, StopState(1.0, before, s), image, ())
                if len(s) == 0:
                    break
        return s

    @property
    def subject(self) -> str:
        return "a recurrent depth"

    def describe(self) -> str:
        prelude, core, coda = len(self.prelude), len(self.core), len(self.coda)
        return (
            f"{self.solver_config.steps} repetitions of a core between a prelude and a coda (blocks: {prelude}, {core}, "
            f"{coda})"
        )


Through = Callable[[Iterable[Any], Tokens], Tokens]
"""Some blocks, one after the other."""


class Sandwich(nn.Module):
    """x' = n_4(y + F(y)), y = n_2(x + G(x)): a block whose state is normed after every component, too.

    A state that goes through the same blocks again and again neither grows nor fades.
    """

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field
        self.norms = nn.ModuleList(NORMS["rms"](field.dim) for _ in cast(VectorField, field).components)

    def forward(self, x: Tokens, recorder: LayerRecorder, shares: int, dynamics: Dynamics | None = None) -> Tokens:
        solver_config = SolverConfig(NormedSplitting(self.norms), 1, 1.0)
        return recorder.run_layer(self.field if dynamics is None else dynamics, x, solver_config, shares)


@dataclass(frozen=True)
class NormedSplitting(LieTrotter):
    """y = n_2(x + h G(x)); x' = n_4(y + h F(y))."""

    norms: nn.ModuleList

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        for norm, name in zip(self.norms, dynamics.components, strict=True):
            x = norm(torch.add(x, dynamics.component(name, x, t + h / 2), alpha=h))
        return x
