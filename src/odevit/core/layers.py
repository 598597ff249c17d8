"""n(x), F(x) = W_2 s(W_1 x), y = W x: the norms, the MLP and the matrices that a field is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from odevit.core.base import AttentionHook
from odevit.registry import Registry
from odevit.tokens import Tokens

NORMS: Registry[Callable[[int], nn.Module]] = Registry("norm")
ACTIVATIONS: Registry[Callable[[], nn.Module]] = Registry("activation")
TIME_INPUTS: Registry[Callable[[int], nn.Module]] = Registry("time input")
"""How the input of a component depends on the time, see `odevit.time_varying.conditioning`."""
ACTIVATIONS.register("gelu")(nn.GELU)
ACTIVATIONS.register("gelu_tanh")(partial(nn.GELU, approximate="tanh"))
ACTIVATIONS.register("relu")(nn.ReLU)
ACTIVATIONS.register("silu")(nn.SiLU)


@NORMS.register("center")
class CenterNorm(nn.Module):
    """w * D/(D-1) * (x - mean_D(x)) + b.

    LipsFormer (Qi et al. 2023). Linear in x with spectral norm D/(D-1), hence Lipschitz, but its output is not bounded:
    over long horizons the state can grow, so use it with `leak=0` and short horizons.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.gain = dim / (dim - 1)

    def forward(self, x: Tokens) -> Tokens:
        return self.weight * (self.gain * (x - x.mean(dim=-1, keepdim=True))) + self.bias


@NORMS.register("layer")
class LayerNorm(nn.LayerNorm):
    """w * (x - mean) / sqrt(var + eps) + b. Its output is bounded, so that a field with a leak is bounded too."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)


@NORMS.register("rms")
class RMSNorm(nn.RMSNorm):
    """w * x / sqrt(mean(x^2) + eps). Bounded like LayerNorm, without the centring."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=1e-6)


class _Marking(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        linear: Any = nn.Linear(*args, **kwargs)
        linear.is_projection = True
        return linear

    def __instancecheck__(cls, module: object) -> bool:
        return getattr(module, "is_projection", False)


class Projection(nn.Linear, metaclass=_Marking):
    """y = W x + b. A linear map inside a field; spectral initialisation finds it by this class.

    The instance is an `nn.Linear` with a mark: tools that replace linear layers, such as torch's dynamic quantisation,
    compare the class itself and would pass over a subclass.
    """


def matrix_of(linear: nn.Module, like: Tensor) -> Tensor:
    """W of y = W x, as the module computes it: its weight, or what it makes of the unit vectors.

    The latter where the weight alone does not decide: with an adapter beside it, quantised, or stored elsewhere.

    Args:
        linear: maps the last dimension, which is as wide as that of `like`.
        like: has the dtype and the device of the unit vectors.
    """
    if type(linear) is nn.Linear and "forward" not in vars(linear) and not is_traceable_wrapper_subclass(linear.weight):
        return linear.weight
    return linear(torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)).transpose(-2, -1)


@torch.no_grad()
def spectral_(weight: Tensor) -> Tensor:
    """W <- W / sigma_max(W): Xavier-normal, then divided by its largest singular value (LipsFormer, Qi et al. 2023).

    A convolution is taken as the matrix [out, in * kernel]. On a meta device nothing is divided.
    """
    nn.init.xavier_normal_(weight)
    if weight.is_meta:
        return weight
    return weight.div_(torch.linalg.matrix_norm(weight.flatten(1).float(), ord=2))


class Mlp(nn.Module):
    """F(x) = W_2 s(W_1 x + b_1) + b_2, of hidden width `ratio * dim`.

    Gated, F(x) = W_2 (s(W_g x + b_g) * (W_1 x + b_1)) + b_2; with s = SiLU that is SwiGLU (Shazeer 2020).
    """

    def __init__(self, dim: int, ratio: float, bias: bool, activation: str = "gelu", gated: bool = False) -> None:
        super().__init__()
        hidden = round(dim * ratio)
        self.up_proj = Projection(dim, hidden, bias=bias)
        self.gate_proj = Projection(dim, hidden, bias=bias) if gated else None
        self.down_proj = Projection(hidden, dim, bias=bias)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tokens, mask: Tensor | None = None, hook: AttentionHook | None = None) -> Tokens:
        hidden = self.up_proj(x)
        hidden = self.activation(hidden) if self.gate_proj is None else self.activation(self.gate_proj(x)) * hidden
        if mask is not None:
            hidden = hidden * mask
        return self.down_proj(hidden)

    def mask_shape(self, x: Tokens) -> tuple[int, ...]:
        """The shape of its dropout mask: the hidden units."""
        batch, tokens, _ = x.shape
        return batch, tokens, self.up_proj.out_features
