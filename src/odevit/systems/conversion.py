"""depth="equilibrium" on an ODE checkpoint: another depth with the same field."""

from __future__ import annotations

from odevit.core.base import DEPTHS, HOOKS, Depth
from odevit.errors import shortened


@HOOKS.register("other_depth")
def other_depth(depth: Depth, name: str) -> Depth:
    """The depth of that name with the field of `depth`; no weight is copied."""
    other = DEPTHS[name]
    if other is type(depth):
        return depth
    if problem := other_depth_problem(depth, other):
        raise ValueError(f"depth={name!r} was asked of a {type(depth).__name__}, {problem}")
    return other(lambda: depth.field, depth.solver_config)


def other_depth_problem(depth: Depth, other: type[Depth]) -> str | None:
    """Why another depth cannot be used with the weights of `depth`, as the end of a sentence; None when it can."""
    if not (depth.shares_field and other.shares_field):
        names = ", ".join(repr(known) for known, kind in DEPTHS.items() if kind.shares_field)
        return f"and they share no field; only these depths can be exchanged: {names}"
    if other is not type(depth) and (own := depth.own_weights):
        return f"which has weights beside those of its field ({shortened(own)}); use the depth it was trained with"
    return None


@HOOKS.register("trajectory_problem")
def trajectory_problem(depth: Depth) -> str:
    """Why a depth has no trajectory, as a sentence."""
    own = shortened(depth.own_weights) if depth.shares_field else ""
    if depth.shares_field and not own:
        return (
            f"this model is {depth.describe()}: it has no trajectory. Its weights are those of an ODE; use "
            "odevit.load(folder, depth='ode'), or pass depth=ode to odevit eval and odevit analyze"
        )
    reason = f": it has weights beside those of its block ({own})" if own else ""
    return (
        f"this model is {depth.describe()}: it has no trajectory, because it is not one ODE{reason}; expected a "
        "model with depth='ode'. odevit distill makes one from a stack"
    )
