"""What the settings of a configuration should be, alone and together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from odevit.core.attention import ATTENTIONS
from odevit.core.base import DEPTHS, FIELDS, HOOKS, SOLVERS, FixedStepSolver
from odevit.core.configuration import FINEST, WIDEST
from odevit.core.embedding import TOKENIZERS
from odevit.core.field import TIME_ADDED
from odevit.core.layers import ACTIVATIONS, NORMS
from odevit.core.pooling import POOLINGS
from odevit.core.solution import FAILURES
from odevit.core.solver_config import MOST_STEPS, grid_problem
from odevit.errors import BOOLEAN, MAX_TIME, PROBABILITY, Expected, integer, list_of, real, unknown_name, validate

OPTIONS = Expected("names and values, such as {'NAME': 1}", lambda value: value is None or isinstance(value, dict))
EQUATION_CHOICES: dict[str, Collection[str]] = {
    "attention": ATTENTIONS,
    "norm": NORMS,
    "activation": ACTIVATIONS,
    "depth": DEPTHS,
    "solver": SOLVERS,
}
"""The names that settings of an equation may have; the kinds of fields add theirs."""
EQUATION_RULES: dict[str, Expected] = {
    **dict.fromkeys(("depth_options", "attention_options"), OPTIONS),
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "output_dropout", "drop_path"), PROBABILITY),
    **dict.fromkeys(("bias", "gated", "qk_norm"), BOOLEAN),
    "steps": integer(1, MOST_STEPS),
    "mlp_ratio": real(above=0, maximum=1024),
    "leak": real(minimum=0),
    "tolerance": real(above=0, optional=True),
    "residual_scale": real(minimum=-1e6, maximum=1e6, optional=True),
    "norm_eps": real(above=0, optional=True),
    "rope_theta": Expected("0 or a number > 1", lambda v: real(above=1).accepts(v) or v == 0),
    "time_conditioned": Expected("true, false or add", lambda v: isinstance(v, bool) or v == TIME_ADDED),
    "on_failure": Expected(f"one of {', '.join(FAILURES)}, or None", lambda v: v in (None, *FAILURES)),
}
"""What its other settings should be; the kinds of fields add theirs."""
IMAGE_CHOICES: dict[str, Collection[str]] = {
    **EQUATION_CHOICES,
    "tokenizer": TOKENIZERS,
    "pooling": POOLINGS,
    "init": ("spectral", "normal"),
}
IMAGE_RULES: dict[str, Expected] = {
    **EQUATION_RULES,
    "hidden_size": integer(2, WIDEST),  # the norm of one channel is constant
    "num_attention_heads": integer(1, WIDEST),
    **dict.fromkeys(("image_size", "patch_size"), integer(1, FINEST)),
    "num_channels": integer(1, 1024),
    "num_register_tokens": integer(0, FINEST),
    "horizon": real(above=0, maximum=MAX_TIME),
    "embedding_dropout": PROBABILITY,
    "initializer_range": real(above=0, maximum=1000),
    **dict.fromkeys(("use_cls_token", "register_positions"), BOOLEAN),
    "tokenizer_channels": list_of(integer(1, WIDEST)),
    "image_mean": list_of(real()),
    "image_std": list_of(real(above=0)),
}


@HOOKS.register("config_problems")
def image_problems(config: Any) -> list[str]:
    """All that is wrong with the configuration of an image classifier, as sentences."""
    problems = equation_problems(config, IMAGE_CHOICES, IMAGE_RULES)
    if config.final_norm is not None and (problem := NORMS.problem(config.final_norm)):
        problems.append(f"final_norm: {problem}")
    if problems:
        return problems  # what follows computes with these values

    problems = head_problems(config)
    if config.vector_blend is not None and config.vector_knots is None:
        problems.append(f"vector_blend={config.vector_blend!r}, but vector_knots=None: pass vector_knots=12, say")
    tokenizer = TOKENIZERS[config.tokenizer]
    stride = tokenizer.stride_of(config.patch_size, config.tokenizer_channels)
    if config.image_size % stride:
        problems.append(
            f"image_size={config.image_size} is not a multiple of the {stride} pixels of a token; "
            f"change {tokenizer.setting}"
        )
    if POOLINGS[config.pooling].needs_cls and not config.use_cls_token:
        free = " or ".join(repr(name) for name, kind in POOLINGS.items() if not kind.needs_cls)
        problems.append(f"pooling={config.pooling!r} needs use_cls_token=True; or choose pooling={free}")
    if config.register_positions and not config.num_register_tokens:
        problems.append("register_positions=True, but num_register_tokens=0; set one of the two")
    channels = Expected(f"{config.num_channels} numbers, one per channel", lambda v: len(v) == config.num_channels)
    return problems + validate(config, {"image_mean": channels, "image_std": channels})


def equation_problems(
    config: Any,
    choices: Mapping[str, Collection[str]],
    rules: Mapping[str, Expected],
    inherited: Collection[str] = (),
) -> list[str]:
    """What is wrong with the settings of an equation; those that are `inherited` from a teacher may be None."""
    unset = {name for name in inherited if getattr(config, name) is None}
    for kind in FIELDS.values():
        choices, rules = {**kind.choices, **choices}, {**kind.rules, **rules}
    problems = [
        f"{name}: {unknown_name(name, value, known)}"
        for name, known in choices.items()
        if (value := getattr(config, name)) not in known and name not in unset
    ]
    if problem := grid_problem(config.grid):
        problems.append(problem)
    problems += validate(config, {name: rule for name, rule in rules.items() if name not in unset})
    if problems:
        return problems  # what follows computes with these values
    problems = DEPTHS[config.depth].option_problems(config.depth_options or {})
    if config.tolerance is not None and issubclass(SOLVERS[config.solver], FixedStepSolver):
        problems.append(f"tolerance={config.tolerance}, but solver={config.solver!r} makes fixed steps; leave it out")
    return [*problems, *(p for kind in FIELDS.values() for p in kind.problems(config)), *attention_problems(config)]


def attention_problems(config: Any) -> list[str]:
    """What is wrong with the settings of attention together."""
    problems, width, heads = [], config.hidden_size, config.num_attention_heads
    if config.attention is not None and not ATTENTIONS[config.attention].supports_rotary:
        able = " or ".join(repr(name) for name, kind in ATTENTIONS.items() if kind.supports_rotary)
        given = [f"{name}={value}" for name in ("qk_norm", "rope_theta") if (value := getattr(config, name))]
        problems += [f"{option} needs attention={able}, not {config.attention!r}" for option in given]
    if config.attention_options is not None and config.attention is not None:
        problems += ATTENTIONS[config.attention].option_problems(config.attention_options)
    if config.rope_theta and width and heads and width % (4 * heads):
        problems.append(
            f"rope_theta={config.rope_theta} turns quarters of a head, and 4 does not divide the "
            f"{width / heads:g} channels of one; change num_attention_heads, or pass rope_theta=0"
        )
    return problems


def head_problems(config: Any) -> list[str]:
    """Whether the heads divide the width, once both are numbers."""
    width, heads = config.hidden_size, config.num_attention_heads
    if width is None or heads is None or width % heads == 0:
        return []
    divisors = [n for n in range(1, 33) if width % n == 0]
    return [f"num_attention_heads={heads} does not divide hidden_size={width}; choose one of {divisors}"]
