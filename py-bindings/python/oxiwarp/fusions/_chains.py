"""The operators as fused blocks call them: under torch.compile, Inductor has the chains that it runs as fast or faster.

There such a chain is written in torch, in the roundings of the models' own code, and becomes one kernel with whatever
is elementwise around it. Every other operator stays a kernel of ours in the compiled graph. Fused blocks import all
operators from here; eager, these are those of `oxiwarp.ops`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .._operands import summed
from ..ops import *  # noqa: F403
from ..ops.gated_residual import CLIP


class Share(NamedTuple):
    """Time of torch.compile's kernel as a share of ours: the least and the most over models' shapes."""

    least: float
    most: float
    only: str = ""
    """Where Inductor has the operator only there: " with an RMSNorm"."""


# Measured on one H200: benches/results/nvidia-h200/2026-11-20/3d174dd.
INDUCTOR = {
    "gated_residual": Share(0.90, 0.99),
    "gated_residual_ada_norm": Share(0.65, 0.85, only=" with an RMSNorm"),
    "geglu": Share(0.90, 0.92),
    "gelu_fast": Share(0.77, 0.77),
    "gelu_new": Share(0.76, 0.76),
    "gelu_quick": Share(0.74, 0.74),
    "gelu_tanh_and_mul": Share(0.97, 0.97),
    "silu": Share(0.82, 0.82),
    "silu_and_mul": Share(0.88, 0.88),
    "swiglu": Share(0.92, 0.95),
}

compiling = torch.compiler.is_compiling


def compiled(chain: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of the same name, and `chain` in its place under torch.compile where `INDUCTOR` has it."""
    name = chain.__name__
    op = getattr(ops, name)
    if name not in INDUCTOR:
        return op  # type: ignore[no-any-return]

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        return (chain if compiling() else op)(*args, **kwargs)

    return run


@compiled
def gated_residual(
    x: Tensor, y: Tensor, gate: Tensor, *, gate_table: Tensor | None = None, clip: bool = False, mode: str = "exact"
) -> Tensor:
    """See `oxiwarp.gated_residual`. A float32 gate makes the sum float32 until its one rounding."""
    total = x + y * summed(gate, gate_table)
    return (total.clip(-CLIP, CLIP) if clip else total).to(x.dtype)


def gated_residual_ada_norm(
    x: Tensor,
    y: Tensor,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    gate_table: Tensor | None = None,
    clip: bool = False,
    mode: str = "exact",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """See `oxiwarp.gated_residual_ada_norm`: Inductor's with an RMSNorm, ours with a LayerNorm."""
    if not compiling() or norm != "rms_norm" or "gated_residual_ada_norm" not in INDUCTOR:
        return ops.gated_residual_ada_norm(
            x, y, gate, scale, shift, norm=norm, gate_table=gate_table, clip=clip, mode=mode, **options
        )
    if gate is not None:
        total = gated_residual(x, y, gate, gate_table=gate_table, clip=clip)
    else:
        total = (x + y).clip(-CLIP, CLIP) if clip else x + y
    return rms_modulated(total, scale, shift, **options), total


def rms_modulated(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    scale_table: Tensor | None = None,
    shift_table: Tensor | None = None,
) -> Tensor:
    """`oxiwarp.ada_norm` with an RMSNorm: each step rounded, unless an operand is float32."""
    operands = (scale, shift, weight, bias, scale_table, shift_table)
    single = any(tensor is not None and tensor.dtype == torch.float32 for tensor in operands)
    h = x.float()
    n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    n = n if single else n.to(x.dtype)
    n = n if weight is None else n * weight
    n = n if bias is None else n + bias
    y = n * (1 + summed(scale, scale_table))
    return (y if shift is None else y + summed(shift, shift_table)).to(x.dtype)


def halves(x: Tensor, second: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The two operands of a gated activation, with their biases."""
    if second is None:
        first, second = (x if bias is None else x + bias).chunk(2, -1)
        return first, second
    if bias is None:
        return x, second
    of_first, of_second = bias.chunk(2, -1)
    return x + of_first, second + of_second


@compiled
def geglu(
    x: Tensor,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    mode: str = "exact",
) -> Tensor:
    """See `oxiwarp.geglu`."""
    first, second = halves(x, gate, bias)
    return first * F.gelu(second, approximate=approximate)


@compiled
def swiglu(x: Tensor, gate: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.swiglu`."""
    first, second = halves(x, gate, bias)
    return first * F.silu(second)


@compiled
def silu_and_mul(x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.silu_and_mul`."""
    first, second = halves(x, up, bias)
    return F.silu(first) * second


@compiled
def gelu_tanh_and_mul(
    x: Tensor, up: Tensor | None = None, bias: Tensor | None = None, *, mode: str = "exact"
) -> Tensor:
    """See `oxiwarp.gelu_tanh_and_mul`."""
    first, second = halves(x, up, bias)
    return F.gelu(first, approximate="tanh") * second


@compiled
def gelu_quick(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.gelu_quick`."""
    v = x if bias is None else x + bias
    return v * torch.sigmoid(1.702 * v)


@compiled
def gelu_new(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.gelu_new`."""
    v = x if bias is None else x + bias
    return 0.5 * v * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * torch.pow(v, 3.0))))


@compiled
def gelu_fast(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.gelu_fast`."""
    v = x if bias is None else x + bias
    return 0.5 * v * (1.0 + torch.tanh(v * 0.7978845608 * (1.0 + 0.044715 * v * v)))


@compiled
def silu(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.silu`."""
    return F.silu(x if bias is None else x + bias)


__all__ = ["INDUCTOR", *ops.__all__]
