"""x_{l+1} = layer_l(x_l): depth as a number of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from odevit.depth.meaning import Depth, refuse
from odevit.solver import Equation, Penalty, Recompute, Save, Solution, Solver, Stats, Stop, Way, solve
from odevit.tokens import AttentionMap, Logits, Tokens


class LayeredDepth(Depth):
    """x_{l+1} = layer_l(x_l), l = 1, ..., L: no equation, so that neither solver nor horizon mean anything.

    A subclass walks through its layers with a `Walk`, which keeps what was asked for.
    """

    def choose(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> Way | None:
        given = {"solver": solver, "steps": steps, "horizon": horizon}
        refuse(self.subject, [self.refusal(name, value) for name, value in given.items() if value is not None])
        return None

    def walk(
        self,
        x0: Tokens,
        layers: int,
        way: Way | None = None,
        *,
        save: Save | str | Iterable[int] | None = None,
        penalties: Mapping[str, Penalty] | None = None,
        adjoint: bool = False,
        stop: str | Stop | None = None,
        read: Callable[[Tokens], Logits] | None = None,
    ) -> Walk:
        """A walk through so many layers, with the options of `forward`; what layers cannot do is refused."""
        given = {"way": way, "adjoint": adjoint or None, "stop": stop}
        problems = [self.refusal(name, value) for name, value in given.items() if value is not None]
        problems += [
            f"the penalty {name!r} asks where a field comes to rest, which layers have no way of doing; leave it out"
            for name, penalty in (penalties or {}).items()
            if penalty.is_terminal()
        ]
        refuse(self.subject, problems)
        return Walk(x0, layers, Save.parse(save), penalties or {}, self.recompute)

    @property
    def subject(self) -> str:
        """What it is called in an error."""
        return f"depth={type(self).__name__}"

    def refusal(self, name: str, value: object) -> str:
        """The sentence for an option of an equation."""
        return f"{name}={value!r} was given, but {self.describe()} are no equation; leave it out"


class RepeatedDepth(LayeredDepth):
    """x_{n+1} = layer(x_n), n < N: the same layers again and again, N times `steps`, which any call may change."""

    def choose(self, solver: str | Solver | None, steps: int | None, horizon: float | None) -> Way | None:
        super().choose(solver, None, horizon)
        return None if steps is None else self.way.but(steps=steps)

    def repetitions(self, way: Way | None) -> int:
        """N of a way, of which nothing else means anything; its own unless one is given."""
        if way is None:
            return self.way.steps
        if way != self.way.but(steps=way.steps):
            refuse(
                self.subject, [f"{self.refusal('way', str(way)).removesuffix('leave it out')}pass steps={way.steps}"]
            )
        return way.steps


class Walk:
    """The states, maps and costs of a walk through layers, kept as they come.

    Args:
        x0: the embedded image.
        layers: how many there will be; penalties are means over them.
        keep: what is asked for; a state has the number of the layer that made it.
        penalties: what a layer costs, by name.
        checkpoint: whether layers are computed again in the backward pass, or how.
    """

    def __init__(
        self, x0: Tokens, layers: int, keep: Save, penalties: Mapping[str, Penalty], checkpoint: Recompute = False
    ) -> None:
        self.layers, self.keep, self.penalties, self.checkpoint = layers, keep, penalties, checkpoint
        self.chosen = keep.chosen(layers)
        self.states = [x0] if 0 in self.chosen else []
        self.attentions: list[AttentionMap] = []
        self.totals = {name: x0.new_zeros(()) for name in penalties}
        self.nfe = 0

    def through(self, field: Equation, x: Tokens, way: Way | None = None, shares: float | None = None) -> Tokens:
        """The end of one layer: of a step of its field, x' = y + F(y), y = x + G(x), unless it goes another way.

        `shares` is how many such calls the penalties are a mean of, where a layer is not one of them. A layer that is
        gone through again comes as its dynamics, whose dropout masks stay the same.
        """
        way = way or BLOCK
        block = solve(
            field,
            x,
            solver=way.method,
            steps=way.steps,
            t1=way.horizon,
            save=Save(attentions=self.keep.attentions, detach=self.keep.detach),
            penalties=self.penalties,
            checkpoint=self.checkpoint,
        )
        self.attentions.extend(block.attentions)
        for name, cost in block.penalties.items():
            self.totals[name] = self.totals[name] + cost / (shares or self.layers)
        self.nfe += block.stats.nfe
        return block.state

    def reach(self, number: int, x: Tokens) -> Tokens:
        """Keep the state after layer `number`, if it was asked for; give it back."""
        if number in self.chosen:
            self.states.append(x)
        return x

    def solution(self, x: Tokens, **further: Any) -> Solution:
        """The end of the walk, with what was kept on it."""
        return Solution(
            state=x,
            time=float(self.layers),
            stats=Stats(nfe=self.nfe, steps=self.layers),
            states=self.keep.kept(self.states),
            times=tuple(float(number) for number in sorted(self.chosen)),
            attentions=tuple(self.attentions),
            penalties=self.totals,
            **further,
        )


BLOCK = Way("lie_trotter", 1, 1.0)
"""A pre-norm block, attention and then the MLP: one Lie-Trotter step of length 1."""
