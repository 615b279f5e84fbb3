"""A residual sum together with the LayerNorm that follows, where that has no modulation."""

import torch
from torch import Tensor, nn

from .._tables import lasts
from ._chains import gated_residual_ada_norm

_zeros: dict[tuple[torch.device, torch.dtype, int], Tensor] = {}


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
    dtype of the parameters: operands of one dtype have a kernel of their own."""
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
    if torch.compiler.is_compiling():
        return x.new_zeros(x.shape[-1])
    key = x.device, x.dtype, x.shape[-1]
    found = _zeros.get(key)
    return make_zeros(*key) if found is None else found


def make_zeros(device: torch.device, dtype: torch.dtype, cols: int) -> Tensor:
    """Zeros that later calls on any stream, in any grad mode, may read; a graph being captured keeps its own."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    with torch.inference_mode(False):
        made = torch.zeros(cols, dtype=dtype, device=device)
    if lasts(made) and not capturing:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        _zeros[device, dtype, cols] = made
    return made


__all__ = ["residual_layer_norm", "zeros"]
