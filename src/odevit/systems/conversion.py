"""Another depth around the same field: an ODE, its rest point, or one repeated block."""

from __future__ import annotations

from odevit.core.base import DEPTHS, HOOKS, Depth
from odevit.errors import shortened


@HOOKS.register("other_depth")
def other_depth(depth: Depth, name: str) -> Depth:
    """The depth of that name around the field of `depth`; no weight is copied."""
    other = DEPTHS[name]
    if other is type(depth):
        return depth
    if problem := other_depth_problem(depth, other):
        raise ValueError(f"depth={name!r} was asked of a {type(depth).__name__}, {problem}")
    return other(lambda: depth.field, depth.solver_config)


def other_depth_problem(depth: Depth, other: type[Depth]) -> str | None:
    """Why another depth cannot be used with the weights of `depth`, as the end of a sentence; None when it can."""
    if not (depth.shares_field and other.shares_field):
        able = ", ".join(repr(known) for known, kind in DEPTHS.items() if kind.shares_field)
        return f"and they share no field; only these can take each other's place: {able}"
    if other is not type(depth) and (own := depth.own_weights):
        return (
            f"whose weights are not those of one field alone ({shortened(own)}); it can only be what it was trained as"
        )
    return None


@HOOKS.register("trajectory_problem")
def trajectory_problem(depth: Depth) -> str:
    """Why a depth has no trajectory to follow, as a sentence."""
    own = shortened(depth.own_weights) if depth.shares_field else ""
    if depth.shares_field and not own:
        return (
            f"this model is {depth.describe()}: it follows no trajectory itself. Its weights are those of an equation, "
            "which can be followed: odevit.load(folder, depth='ode'), or depth=ode with odevit eval and odevit analyze"
        )
    because = f": it has weights beside those of its block ({own})" if own else ""
    return (
        f"this model is {depth.describe()}: it has no trajectory to follow, since it obeys no single equation{because}; "
        "expected one with depth='ode'. odevit distill turns a stack into one"
    )
