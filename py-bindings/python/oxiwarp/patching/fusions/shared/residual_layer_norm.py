"""Computes in one kernel a residual sum and the LayerNorm of the sum. The LayerNorm has no modulation."""

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
    """Compute `sum = x + gate * y` and return two tensors: `norm(sum)` and `sum`.

    This function calls the operator `gated_residual_ada_norm` with a scale of zeros. The operator multiplies each row
    by `1 + scale`, which is 1 and changes no bit. The zeros have the dtype of the norm's parameters, because the
    operator has a separate kernel for equal dtypes. The arguments and the errors are those of the operator.

    Under torch.compile without a gate, this function uses torch operations, from which Inductor generates a kernel.
    Inductor's kernel needs less Python time per launch than the operator, and can also compute the operation before the
    sum.
    """
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
    """Return a vector of N zeros for `x` of shape `[..., N]`, with the dtype and the device of `x`. The vector
    is cached.
    """
    return row(x.shape[-1], x.dtype, x.device)


@kept
def row(cols: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `cols` zeros."""
    return torch.zeros(cols, dtype=dtype, device=device)


__all__ = ["residual_layer_norm", "zeros"]
