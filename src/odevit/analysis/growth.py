"""g(t) = 1/h log( |D step v| / |v| ): where along its path a small perturbation grows, and where it dies out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from odevit.analysis.lyapunov import Exponents, maximal_exponent
from odevit.analysis.settling import in_fixed_steps
from odevit.core.dynamics import Field
from odevit.core.solver_config import SolverConfig
from odevit.tokens import Tokens


@dataclass(frozen=True)
class Growth:
    """g_n, the growth rate of a small perturbation during each step, per unit of time; negative where paths meet.

    Args:
        rates: [steps, batch]; their mean is the exponent.
        times: t_0, ..., t_N, between which the steps lie.
        exponents: the measurement that they come from, with the error and whether it converged.
    """

    rates: Tensor
    times: tuple[float, ...]
    exponents: Exponents


def local_growth(field: Field, x0: Tokens, solver_config: SolverConfig, *, seed: int = 0) -> Growth:
    """g_n along the path from x0 to the horizon: the terms of which the maximal exponent is the mean.

    A solver that chooses its own steps is replaced by RK4, whose steps can be differentiated.

    Args:
        field: f of dx/dt = f(x, t).
        x0: where the paths begin [batch, token, dim]; the leak pulls there, too.
        way: whose steps are differentiated; two steps at least.
        seed: of the direction in which the perturbation begins.
    """
    solver_config = in_fixed_steps(solver_config)
    steps = max(2, solver_config.steps)
    exponents = maximal_exponent(
        field, x0, horizon=solver_config.horizon, steps=steps, solver=solver_config.solver, seed=seed
    )
    # The running mean after n steps is r_n: the step itself contributed n r_n - (n - 1) r_{n-1}.
    sums = exponents.running[..., 0] * torch.arange(1, steps + 1, device=x0.device).unsqueeze(-1)
    rates = torch.cat([sums[:1], sums.diff(dim=0)])
    return Growth(rates, (0.0, *exponents.times), exponents)
