"""A residual sum together with the LayerNorm that follows, where that has no modulation."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...._cache import kept
from ..core.fusion import same_dtype
from ..core.ops import compiling, gated_residual_ada_norm


def residual_layer_norm(
    x: Tensor,
    y: Tensor,
    norm: nn.LayerNorm,
    mode: str,
    *,
    gate: Tensor | None = None,
    gate_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`sum = x + gate * y` and `norm(sum)`, as `(norm(sum), sum)`: arguments, results and errors as
    `gated_residual_ada_norm`, whose scale is 0 here, so that a row is multiplied by 1, which changes no bit. It has the
    dtype of the parameters: operands of one dtype have a kernel of their own.

    Without a gate Inductor has it while compiling: its one kernel of both costs less Python to launch, and takes what
    comes before the sum along."""
    if gate is None and compiling() and same_dtype(x, norm.weight, norm.bias):
        total = x + y
        return F.layer_norm(total, norm.normalized_shape, norm.weight, norm.bias, norm.eps), total
    return gated_residual_ada_norm(
        x,
        y,
        gate,
        zeros(x if norm.weight is None else norm.weight),
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
        gate_table=gate_table,
        mode=mode,
    )


def zeros(x: Tensor) -> Tensor:
    """`[N]` zeros for `x` of shape `[..., N]`, in its dtype and on its device: made once, as every block wants them."""
    return row(x.shape[-1], x.dtype, x.device)


@kept
def row(cols: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """That many zeros."""
    return torch.zeros(cols, dtype=dtype, device=device)


__all__ = ["residual_layer_norm", "zeros"]
