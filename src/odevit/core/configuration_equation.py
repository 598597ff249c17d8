"""dx/dt = G(x) + F(x) - leak (x - x0), T in N steps: what a configuration says of an equation."""

from __future__ import annotations

import os
from collections.abc import Collection
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from odevit.core.attention import ATTENTIONS
from odevit.core.depth import DEPTHS
from odevit.core.field import TIME_ADDED
from odevit.core.grid import grid_problem
from odevit.core.mlp import ACTIVATIONS
from odevit.core.norm import NORMS
from odevit.core.solver import SOLVERS, FixedStepSolver
from odevit.core.solver_config import MOST_STEPS, SolverConfig
from odevit.errors import BOOLEAN, PROBABILITY, ConfigError, Expected, integer, list_of, real, unknown_name, validate
from odevit.hf.checks import FAILURES
from odevit.hf.remote_code import auto_map, write_code
from odevit.solvers.adaptive import AdaptiveSolver
from odevit.time_varying.knot_schedule import BLENDS
from odevit.version import __version__

WIDEST, FINEST = 2**14, 2**14
"""Channels of a token, pixels of a side. ViT-22B has 6,144 channels: what is wider is a slip, and fills the memory."""


OPTIONS = Expected("names and values, such as {'NAME': 1}", lambda value: value is None or isinstance(value, dict))


class EquationConfig(PreTrainedConfig):
    """What every model of continuous depth is configured by, whether made from scratch or put in a ViT's place.

    Args:
        hidden_size, num_attention_heads: D and H, which divides D.
        mlp_ratio, attention, norm, leak, bias, activation, gated, qk_norm, residual_scale, time_conditioned: as for
            `VectorField`.
        rope_theta: the base of rotary positions in attention, see `Rotary`; 0 does without.
        norm_eps: epsilon of the norms in the field; matters where tokens are small.
        knots: K, the number of times between which every weight of the field moves; 1 is an autonomous field.
        blend: `linear`, straight from knot to knot, or `constant`, K pieces.
        knot_times: when the weights are at their knots, or a piece begins, as shares of the horizon; None is evenly.
        rank: makes the knots changes of this rank of one shared weight, with vectors of their own; None is K weights.
        weights_over_time: `knots`, or `network`: a small network makes the weights of the time, see `HyperField`.
        basis: R, how many weights the network mixes; `rank` is theirs.
        vector_knots: how many knots the changes of vectors alone have (norms, biases, scales), which cost little.
        vector_blend: how these move between their knots, `linear` or `constant`; None is as `blend` says.
        fade: share of the horizon after T over which the velocity fades away, so that the state rests; 0 leaves it on.
        attention_dropout, hidden_dropout, output_dropout, drop_path: probabilities, one mask per trajectory, as for
            `VectorField`.
        depth: what depth means, see `DEPTHS`.
        depth_options: what only that depth knows, by name; the rest is as it has it by default.
        attention_options: what only that kind of attention knows, by name, such as the `updates` of a Hopfield network.
        solver, steps, horizon, grid: how the model is integrated unless told otherwise, see `Way`.
        tolerance: rtol of an adaptive solver, with atol a tenth of it; None is the solver's own.
        on_failure: what to do when that fails: `raise`, `warn`, or `ignore`, which does not look; None is an error in
            training and a warning in evaluation.
    """

    auto_classes = {}  # type: ignore[var-annotated] # noqa: RUF012 (annotated, it would be a field)
    """What transformers' Auto classes make of such a configuration, by name."""
    # A list: the Trainer adds to it.
    keys_to_ignore_at_inference = ["hidden_states", "attentions", "penalties"]  # noqa: RUF012

    hidden_size: int | None = None
    num_attention_heads: int | None = 4
    mlp_ratio: float | None = 1.0
    attention: str | None = "dot"
    norm: str | None = "layer"
    norm_eps: float | None = None
    leak: float = 1.0
    bias: bool | None = False
    activation: str | None = "gelu"
    gated: bool | None = False
    qk_norm: bool | None = False
    rope_theta: float | None = 0.0
    residual_scale: float | None = None
    time_conditioned: bool | str = False
    knots: int = 1
    blend: str = "linear"
    knot_times: list[float] | tuple[float, ...] | None = None
    rank: int | None = None
    vector_knots: int | None = None
    vector_blend: str | None = None
    weights_over_time: str = "knots"
    basis: int = 4
    fade: float = 0.0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    drop_path: float = 0.0
    depth: str = "ode"
    depth_options: dict[str, Any] | None = None
    attention_options: dict[str, Any] | None = None
    solver: str = "exponential_euler"
    steps: int = 12
    horizon: float | None = 6.0
    tolerance: float | None = None
    grid: str | list[float] | tuple[float, ...] = "uniform"
    on_failure: str | None = None
    odevit_version: str = __version__

    choices: ClassVar[dict[str, Collection[str]]] = {
        "attention": ATTENTIONS,
        "norm": NORMS,
        "activation": ACTIVATIONS,
        "blend": BLENDS,
        "weights_over_time": ("knots", "network"),
        "depth": DEPTHS,
        "solver": SOLVERS,
    }
    """The names that are known; a subclass adds its own."""
    rules: ClassVar[dict[str, Expected]] = {
        **dict.fromkeys(("depth_options", "attention_options"), OPTIONS),
        "steps": integer(1, MOST_STEPS),
        "mlp_ratio": real(above=0, maximum=1024),
        "leak": real(minimum=0),
        "knots": integer(1, MOST_STEPS),
        "rank": integer(1, WIDEST, optional=True),
        "vector_knots": integer(2, MOST_STEPS, optional=True),
        "vector_blend": Expected(f"None or one of {', '.join(BLENDS)}", lambda v: v is None or v in BLENDS),
        "knot_times": list_of(real(minimum=0, maximum=1), optional=True),
        "fade": real(minimum=0),
        "tolerance": real(above=0, optional=True),
        "residual_scale": real(minimum=-1e6, maximum=1e6, optional=True),
        "norm_eps": real(above=0, optional=True),
        "rope_theta": Expected("0 or a number > 1", lambda v: real(above=1).accepts(v) or v == 0),
        **dict.fromkeys(("bias", "gated", "qk_norm"), BOOLEAN),
        "time_conditioned": Expected("true, false or add", lambda v: isinstance(v, bool) or v == TIME_ADDED),
        "basis": integer(1, 256),
        "attention_dropout": PROBABILITY,
        "hidden_dropout": PROBABILITY,
        "output_dropout": PROBABILITY,
        "drop_path": PROBABILITY,
        "on_failure": Expected(f"one of {', '.join(FAILURES)}, or None", lambda v: v in (None, *FAILURES)),
    }
    """What the numbers should be; a subclass adds its own."""
    inherited: ClassVar[tuple[str, ...]] = ()
    """What may be None, which then stands for a teacher's value."""

    def __post_init__(self, **kwargs: Any) -> None:
        misspelt = [
            f"unknown key {key!r}. Did you mean {near[0]!r}?"
            for key in kwargs
            if (near := get_close_matches(key, self.own_fields(), n=1, cutoff=0.75))
        ]
        super().__post_init__(**kwargs)
        problems = misspelt + self.problems()
        if problems:
            raise ConfigError(type(self).__name__, problems)

    @classmethod
    def own_fields(cls) -> list[str]:
        """The names of what this library adds to Hugging Face's configuration, for users to set."""
        classes = [kind for kind in cls.__mro__ if issubclass(kind, EquationConfig)]
        names = dict.fromkeys(name for kind in classes for name in kind.__annotations__)
        return [name for name in names if name not in ("odevit_version", "choices", "rules", "inherited")]

    @property
    def solver_config(self) -> SolverConfig:
        """How the model integrates on its own."""
        grid = self.grid if isinstance(self.grid, str) else tuple(self.grid)
        method = SOLVERS[self.solver]
        adaptive = self.tolerance is not None and issubclass(method, AdaptiveSolver)
        solver = method(rtol=self.tolerance, atol=self.tolerance / 10) if adaptive else self.solver  # type: ignore[call-arg, operator]
        return SolverConfig(solver, self.steps, float(self.horizon or 0.0), grid)

    def to_dict(self) -> dict[str, Any]:
        """The content of config.json, with the version of the library that writes it, and where its classes are."""
        return {**super().to_dict(), "odevit_version": __version__, "auto_map": auto_map(self.auto_classes)}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers has it; read with another depth, a configuration loses the options of the one it had."""
        if kwargs.get("depth") not in (None, config_dict.get("depth")):
            config_dict = {**config_dict, "depth_options": None}
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write config.json, and the file that leads transformers to this library."""
        super().save_pretrained(save_directory, *args, **kwargs)
        write_code(save_directory)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: transformers would copy the source of this class into the folder, and `auto_map` has it already."""

    def problems(self) -> list[str]:
        """All that is wrong, as sentences."""
        open_ = {name for name in self.inherited if getattr(self, name) is None}
        unknown = [
            f"{name}: {unknown_name(name, value, known)}"
            for name, known in self.choices.items()
            if (value := getattr(self, name)) not in known and name not in open_
        ]
        if problem := grid_problem(self.grid):
            unknown.append(problem)
        problems = unknown + validate(self, {name: rule for name, rule in self.rules.items() if name not in open_})
        return problems or self.depth_problems() + self.time_problems() + self.attention_problems()

    def depth_problems(self) -> list[str]:
        """What is wrong with the options of the depth, once it has a name."""
        return DEPTHS[self.depth].option_problems({} if self.depth_options is None else self.depth_options)

    def attention_problems(self) -> list[str]:
        """Whether this kind of attention has queries and keys that can be normed and turned."""
        problems = []
        if self.attention is not None and not ATTENTIONS[self.attention].can_turn:
            able = " or ".join(repr(name) for name, kind in ATTENTIONS.items() if kind.can_turn)
            given = [f"{name}={value}" for name in ("qk_norm", "rope_theta") if (value := getattr(self, name))]
            problems += [f"{option} needs attention={able}, not {self.attention!r}" for option in given]
        if self.attention_options is not None and self.attention is not None:
            problems += ATTENTIONS[self.attention].option_problems(self.attention_options)
        width, heads = self.hidden_size, self.num_attention_heads
        if self.rope_theta and width and heads and width % (4 * heads):
            problems.append(
                f"rope_theta={self.rope_theta} turns quarters of a head, and 4 does not divide the "
                f"{width / heads:g} channels of one; change num_attention_heads, or pass rope_theta=0"
            )
        return problems

    def time_problems(self) -> list[str]:
        """What is wrong with how the weights move in time, once its parts are numbers and names."""
        problems = []
        moving = {"knots": 1, "vector_knots": None, "fade": 0, "time_conditioned": False}
        if not DEPTHS[self.depth].shares_field:
            problems += [
                f"{name}={getattr(self, name)}, but depth={self.depth!r} has no time for it to matter in; leave it out"
                for name, none in moving.items()
                if getattr(self, name) != none
            ]
        steps = self.steps if issubclass(SOLVERS[self.solver], FixedStepSolver) else None
        counts = {"knots": self.knots, "vector_knots": self.vector_knots}
        problems += [
            f"{name}={count}, but steps={steps}: some knots would be passed over; expected {name} <= steps, take more "
            "steps or fewer knots"
            for name, count in counts.items()
            if steps is not None and isinstance(count, int) and count > steps
        ]
        network = self.weights_over_time == "network"
        moves = {"knots": 1, "vector_knots": None, "knot_times": None}
        problems += [
            f"weights_over_time=network and {name}={getattr(self, name)}: weights move in one way or the other; leave "
            "one out"
            for name, none in moves.items()
            if network and getattr(self, name) != none
        ]
        if network and not DEPTHS[self.depth].shares_field:
            problems.append(f"weights_over_time=network, but depth={self.depth!r} has no time; leave it out")
        if self.rank is not None and self.knots == 1 and not network:
            problems.append(f"rank={self.rank}, but knots=1 has nothing to change; pass knots=12, say")
        if self.tolerance is not None and issubclass(SOLVERS[self.solver], FixedStepSolver):
            problems.append(f"tolerance={self.tolerance}, but solver={self.solver!r} makes fixed steps; leave it out")
        if self.rank is not None and isinstance(self.vector_knots, int):
            problems.append("rank and vector_knots: changes of a rank have their own vectors; leave vector_knots out")
        if self.knot_times is not None:
            times = list(self.knot_times)
            rising = all(isinstance(time, int | float) and 0 <= time <= 1 for time in times) and all(
                early < late for early, late in pairwise(times)
            )
            # Where there is one knot, they are the times of the changes of its vectors.
            wanted = self.vector_knots if self.knots == 1 else self.knots
            if wanted is None:
                problems.append(f"knot_times={times}, but knots=1 stands still; pass knots={max(2, len(times))}")
            elif wanted != "blocks" and (len(times) != wanted or not rising):
                problems.append(
                    f"knot_times={times}; expected {wanted} increasing shares of the horizon in [0, 1], one a knot"
                )
        if self.fade and self.leak and DEPTHS[self.depth].shares_field:
            problems.append(f"fade={self.fade} and leak={self.leak}: a leak rests on its own; pass leak=0 or fade=0")
        return problems

    def head_problems(self) -> list[str]:
        """Whether the heads divide the width, once both are numbers."""
        width, heads = self.hidden_size, self.num_attention_heads
        if width is None or heads is None or width % heads == 0:
            return []
        fitting = [n for n in range(1, 33) if width % n == 0]
        return [f"num_attention_heads={heads} does not divide hidden_size={width}; choose one of {fitting}"]
