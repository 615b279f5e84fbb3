"""Mochi's residual: `torch.ops.oxiwarp.residual_tanh_gated_rms_norm`, alone and with the norm that follows."""

import torch
from torch import Tensor

from ._checks.rows import check_eps, check_modulation
from ._register import check_rows, define, explain, needs_grad, refuse_types
from ._roles import Role
from .modulated_rms_norm import per_batch

NAME = "residual_tanh_gated_rms_norm"
CHAINED = "residual_tanh_gated_rms_norm_modulated"


def _check(op: str, x: Tensor, x_res: Tensor, gate: Tensor, eps: float) -> None:
    check_rows(op, x, None, x_res=x_res)
    check_modulation(op, "gate", gate, None, x)
    check_eps(op, eps)


def _fake(x: Tensor, x_res: Tensor, gate: Tensor, eps: float) -> Tensor:
    _check(NAME, x, x_res, gate, eps)
    return x.new_empty(x.shape)


def _fake_chained(
    x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor, scale_table: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    _check(CHAINED, x, x_res, gate, eps)
    check_modulation(CHAINED, "scale", scale, scale_table, x)
    return x.new_empty(x.shape), x.new_empty(x.shape)


op = define(
    f"{NAME}(Tensor x, Tensor x_res, Tensor gate, float eps) -> Tensor",
    _fake,
    x=Role.ROWS,
    x_res=Role.ROWS,
    gate=Role.BROADCAST,
)
op_chained = define(
    f"{CHAINED}(Tensor x, Tensor x_res, Tensor gate, Tensor scale, Tensor? scale_table, float eps) -> (Tensor, Tensor)",
    _fake_chained,
    x=Role.ROWS,
    x_res=Role.ROWS,
    gate=Role.BROADCAST,
    scale=Role.BROADCAST,
    scale_table=Role.VECTOR,
)
ROLES = {"gate": Role.PER_BATCH, "scale": Role.PER_BATCH}


def _rms(x: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _formula(x: Tensor, x_res: Tensor, gate: Tensor, eps: float) -> Tensor:
    return x + (_rms(x_res, eps) * torch.tanh(gate)).to(x.dtype)


def residual_tanh_gated_rms_norm(x: Tensor, x_res: Tensor, gate: Tensor, eps: float = 1e-6) -> Tensor:
    """`x + rms(x_res) * tanh(gate)` over the last dimension, in one pass, with the roundings of Mochi's modules.

    `tanh(gate)` is rounded to the gate's dtype, the product is computed in float32 and rounded, and so is the sum.

    Args:
        x, x_res: float32, float16 or bfloat16, both of shape `[..., N]`, on one device, with last dimension of stride
            1: the residual stream, and the branch that comes back to it.
        gate: broadcasts against `x` (`[B, 1, N]`; `[B, N]` where `x` is `[B, S, N]`), in its dtype or float32.
        eps: added to the mean of squares; finite, 0 or more.

    Returns:
        A contiguous tensor of `x`'s shape and dtype.

    Where a gradient is needed the formula runs in torch's own operators.

    Raises:
        RuntimeError, TypeError, torch.OutOfMemoryError: as `layer_norm`.

    Source: genmo's Mochi 1 (`residual_tanh_gated_rmsnorm`) and diffusers' MochiTransformerBlock.
    """
    if not (isinstance(x, Tensor) and isinstance(x_res, Tensor) and isinstance(gate, Tensor)):
        refuse_types(NAME, {"x": x, "x_res": x_res, "gate": gate}, {})
    gate = per_batch(gate, x)
    if needs_grad(x, x_res, gate):
        _check(NAME, x, x_res, gate, eps)
        return _formula(x, x_res, gate, eps)
    try:
        return op(x, x_res, gate, eps)
    except RuntimeError as error:
        explain(error, NAME, 1, x, x_res=x_res, gate=gate)
        raise


def residual_tanh_gated_rms_norm_modulated(
    x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """`residual_tanh_gated_rms_norm` and `modulated_rms_norm` of its result, chained in one launch.

    Args:
        x, x_res, gate, eps: as for `residual_tanh_gated_rms_norm`; both norms have this eps.
        scale: as for `modulated_rms_norm`.

    Returns:
        `(normed, out)`: two contiguous tensors of `x`'s shape and dtype, with the bits of the two ops one after the
        other.

    Raises:
        RuntimeError, TypeError, torch.OutOfMemoryError: as `layer_norm`.

    Source: as for the two.
    """
    tensors = isinstance(x, Tensor) and isinstance(x_res, Tensor)
    if not (tensors and isinstance(gate, Tensor) and isinstance(scale, Tensor)):
        refuse_types(CHAINED, {"x": x, "x_res": x_res, "gate": gate, "scale": scale}, {})
    gate, scale = per_batch(gate, x), per_batch(scale, x)
    if needs_grad(x, x_res, gate, scale):
        _check(CHAINED, x, x_res, gate, eps)
        check_modulation(CHAINED, "scale", scale, None, x)
        out = _formula(x, x_res, gate, eps)
        return (_rms(out, eps) * (1 + scale.float())).to(x.dtype), out
    try:
        return op_chained(x, x_res, gate, scale, None, eps)
    except RuntimeError as error:
        explain(error, CHAINED, 2, x, x_res=x_res, gate=gate, scale=scale)
        raise


__all__ = ["residual_tanh_gated_rms_norm", "residual_tanh_gated_rms_norm_modulated"]
