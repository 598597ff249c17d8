"""L(x) = |df/dx|_2: how strongly a field can separate two neighbouring states."""

from __future__ import annotations

import torch
from torch import Tensor

from odevit.analysis.estimate import Estimate as Estimate
from odevit.field.dynamics import Dynamics, Field


@torch.no_grad()
def local_lipschitz(
    field: Field | Dynamics, x: Tensor, t: float = 0.0, *, x0: Tensor | None = None, iterations: int = 30, seed: int = 0
) -> Estimate:
    """|J|_2 by power iteration on J^T J, J = df/dx at x, one number a sample [batch].

    Samples do not see each other, so the Jacobian of a batch is block-diagonal and one iteration serves all of them.
    The estimate comes from below; `error` says whether it has settled.

    Args:
        field: a field, or the dynamics of a trajectory.
        x: states [batch, token, dim].
        t: the time.
        x0: where the trajectory started; matters only to a field with a leak, and to that only by its strength.
        iterations: of the power method.
        seed: of the first direction; the global generator is left alone.
    """
    dynamics = field if isinstance(field, Dynamics) else field.dynamics(x if x0 is None else x0)
    # The fused kernel knows no forward derivatives; whoever watches the maps gets attention written out.
    watched = dynamics.observed_by(lambda _: None)

    def velocity(state: Tensor) -> Tensor:
        return watched(state, t)

    state = x.detach()
    generator = torch.Generator().manual_seed(seed)
    direction = _unit(torch.randn(x.shape, generator=generator, dtype=torch.float64).to(state))
    previous = value = torch.zeros(len(x), device=x.device, dtype=state.dtype)
    for _ in range(iterations):
        pushed = torch.func.jvp(velocity, (state,), (direction,))[1]
        previous, value = value, _norm(pushed)
        pull = torch.func.vjp(velocity, state)[1]
        direction = _unit(pull(pushed)[0])
    return Estimate(value.detach(), ((value - previous).abs() / value.clamp_min(1e-12)).detach())


def _norm(v: Tensor) -> Tensor:
    return v.flatten(1).norm(dim=1)


def _unit(v: Tensor) -> Tensor:
    return v / _norm(v).clamp_min(1e-30).view(-1, *[1] * (v.ndim - 1))
