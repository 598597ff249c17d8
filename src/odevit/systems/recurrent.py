"""s_{n+1} = core(A [s_n; e]), e = prelude(x0), y = coda(s_r): recurrent depth with input injection."""

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

INITIAL_STD = math.sqrt(2 / 5)
"""Standard deviation of s_0; the norms of the core keep that of later states at 1."""


@DEPTHS.register("recurrent")
class RecurrentDepth(RepeatedDepth):
    """e = prelude(x0);  s_{n+1} = core(A [s_n; e]), n < r;  y = coda(s_r).

    Recurrent depth (Geiping et al. 2025). The image is an input of every step, s_0 is noise, and r is random: the core
    learns a map whose result does not depend on s_0 and r, and `steps` can be any number in evaluation. In training r =
    1 + Poisson(tau) with log-normal tau, one r for a batch, s_0 is a new truncated normal, and only the last `backprop`
    steps have a gradient. In evaluation r is `steps` and s_0 = 0, so that results are reproducible and do not depend on
    the other samples of a batch.

    The survey: "all recurrent steps share parameters, enabling the model to scale compute depth at test-time".

    Blocks are sandwiches, y = n_2(x + G(n_1 x)), x' = n_4(y + F(n_3 y)), with RMS norms n_2 and n_4 and the norms of
    the field n_1 and n_3. Differences from the paper: E[r] is `mean`, where its formula gives mean + 1; the norm before
    the coda in its code is the last n_4 of the core; blocks are initialised like all fields here.

    With `stop`, each sample stops on its own, as with the paper's exit criteria: "kl", "velocity" (the latent
    difference), "cosine", "entropy", "argmax". `Solution.evaluations` leaves out the codas that logits for a criterion
    need. Saved states are s_1, ..., s_r.

    Args:
        prelude, core, coda: their numbers of blocks.
        mean: E[r] in training; `steps` unless given.
        spread: standard deviation of log tau; 0 is a Poisson distribution.
        backprop: how many of the last steps have a gradient in training.
    """

    subject = "a recurrent depth"

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
        config, stop, readout = request.solver_config, request.stop, request.readout
        steps = self.draw() if self.training and config is None else self.repetitions(config)
        recorder = self.recorder(x0, steps, replace(request, solver_config=None, stop=None))
        criterion = None if stop is None else make_stop(stop)
        if criterion is not None:
            options = {"recording": recorder.is_recording, "training": self.training, "has_head": readout is not None}
            refuse(self.subject, stop_problems(criterion, **options))
        outer, core = len(self.prelude) + len(self.coda), len(self.core)
        run = partial(run_blocks, recorder=recorder, runs=outer + steps * core)
        if criterion is None:
            e = run(self.prelude, x0)
            return recorder.solution(run(self.coda, self._iterate(steps, recorder, run, e)))
        with torch.no_grad():
            state_to_logits = None if readout is None else lambda state: readout(run(self.coda, state))
            e = run(self.prelude, x0)
            active = ActiveBatch(criterion, state_to_logits, self._initial_state(e))
            self._iterate(steps, recorder, run, e, active)
            y = run(self.coda, active.final)
        most = int(active.steps.max())
        return replace(
            recorder.solution(y),
            time=float(most),
            stats=Stats(nfe=outer + most * core, steps=most),
            evaluations=outer + active.steps * core,
            stop_times=active.steps.float(),
        )

    def _initial_state(self, e: Tokens) -> Tokens:
        """s_0."""
        if not self.training:
            return torch.zeros_like(e)
        return nn.init.trunc_normal_(torch.empty_like(e), std=INITIAL_STD, a=-3 * INITIAL_STD, b=3 * INITIAL_STD)

    def _iterate(
        self, steps: int, recorder: LayerRecorder, run: RunBlocks, e: Tokens, active: ActiveBatch | None = None
    ) -> Tokens:
        """s_r of the samples that did not stop earlier."""
        # As the anchor of a Dynamics, e is indexed together with the active samples.
        s, image = self._initial_state(e), Dynamics({}, anchor=e)
        # One dropout mask for all steps, as in every trajectory.
        core = [partial(block, dynamics=cast(Sandwich, block).field.dynamics(e)) for block in self.core]
        for n in range(1, steps + 1):
            before, has_gradient = s, not self.training or n > steps - self.backprop
            with torch.set_grad_enabled(torch.is_grad_enabled() and has_gradient):
                injected = self.adapter(torch.cat([s, image.anchor], dim=-1)).to(e.dtype)  # autocast changes the dtype
                s = recorder.record(n, run(core, injected))
            if active is not None:
                s, image, _ = active.remove_done(n, n == steps, StopState(1.0, before, s), image, ())
                if len(s) == 0:
                    break
        return s

    def describe(self) -> str:
        prelude, core, coda = len(self.prelude), len(self.core), len(self.coda)
        blocks = f"(blocks: {prelude}, {core}, {coda})"
        return f"{self.solver_config.steps} repetitions of a core between a prelude and a coda {blocks}"


RunBlocks = Callable[[Iterable[Any], Tokens], Tokens]
"""`run_blocks` with its last two arguments set."""


def run_blocks(blocks: Iterable[Any], x: Tokens, recorder: LayerRecorder, runs: int) -> Tokens:
    """x after the blocks, one after the other."""
    for block in blocks:
        x = block(x, recorder, runs)
    return x


class Sandwich(nn.Module):
    """x' = n_4(y + F(y)), y = n_2(x + G(x)): a block with a norm after every component as well.

    The norms keep the size of the state constant, however often the blocks are applied.
    """

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field
        self.norms = nn.ModuleList(NORMS["rms"](field.dim) for _ in cast(VectorField, field).components)

    def forward(self, x: Tokens, recorder: LayerRecorder, runs: int, dynamics: Dynamics | None = None) -> Tokens:
        solver_config = SolverConfig(NormedSplitting(self.norms), 1, 1.0)
        return recorder.run_layer(self.field if dynamics is None else dynamics, x, solver_config, runs)


@dataclass(frozen=True)
class NormedSplitting(LieTrotter):
    """y = n_2(x + h G(x)); x' = n_4(y + h F(y))."""

    norms: nn.ModuleList

    def step(self, dynamics: Dynamics, x: Tensor, t: float, h: float) -> Tensor:
        for norm, name in zip(self.norms, dynamics.components, strict=True):
            x = norm(torch.add(x, dynamics.component(name, x, t + h / 2), alpha=h))
        return x
