"""Residual connection of the model Mochi, `x + rms(x_res) * tanh(gate)`, with or without the modulated
RMSNorm that follows it.

The operators are `residual_tanh_gated_rms_norm` and `residual_tanh_gated_rms_norm_modulated` in `torch.ops.oxiwarp`.
"""

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
    """Add a normalized and gated branch to a residual, as Mochi does: `x + rms(x_res) * tanh(gate)`.

    `rms(v)` is `v * rsqrt(mean(v**2) + eps)` over the last dimension.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]`, last stride 1, on the CPU or a CUDA
            device.
        x_res (Tensor): output of the branch (attention or MLP), with the shape, dtype and device of `x`.
        gate (Tensor): broadcasts to `x`, in the dtype of `x` or in float32. For `x` of shape `[B, S, N]`, the
            gate has shape `[B, 1, N]` or `[B, N]`.
        eps (float): added to the mean of squares; finite, 0 or more.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing.
        TypeError: `x`, `x_res` or `gate` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The kernel rounds where Mochi's modules round. `tanh(gate)` is rounded to the dtype of
            `gate`. The product `rms(x_res) * tanh(gate)` is computed in float32. This product and the sum are
            each rounded to the dtype of `x`.
        Gradients: If an input requires grad, or in forward-mode AD, the function computes the result with
            torch's operators instead of the kernel. Second derivatives and forward-mode AD are supported.

    Source:
        `residual_tanh_gated_rmsnorm` of genmo's Mochi 1 and diffusers' `MochiTransformerBlock`.

    Example:
        >>> gate = torch.tensor([0.0, 1.0, -1.0, 10.0])
        >>> oxiwarp.residual_tanh_gated_rms_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.ones(1, 4), gate)
        tensor([[1.0000, 2.7616, 2.2384, 5.0000]])
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
    """Compute Mochi's residual connection and the norm that follows it: `out = x + rms(x_res) * tanh(gate)`,
    `normed = rms(out) * (1 + scale)`.

    `rms(v)` is `v * rsqrt(mean(v**2) + eps)` over the last dimension.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]`, last stride 1, on the CPU or a CUDA
            device.
        x_res (Tensor): output of the branch (attention or MLP), with the shape, dtype and device of `x`.
        gate (Tensor): broadcasts to `x`, in the dtype of `x` or in float32. For `x` of shape `[B, S, N]`, the
            gate has shape `[B, 1, N]` or `[B, N]`.
        scale (Tensor): scale of the norm of `out`, with a shape and dtype that `gate` may have.
        eps (float): added to the mean of squares in both norms; finite, 0 or more.

    Returns:
        `(normed, out)`: two contiguous tensors with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing.
        TypeError: `x`, `x_res`, `gate` or `scale` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The results do not fit in GPU memory.

    Note:
        Exactness: The results are bitwise equal to the results of `residual_tanh_gated_rms_norm` followed by
            `modulated_rms_norm`.
        Gradients: If an input requires grad, or in forward-mode AD, the function computes the result with
            torch's operators instead of the kernel. Second derivatives and forward-mode AD are supported.

    Source:
        `residual_tanh_gated_rmsnorm` and `modulated_rmsnorm` of genmo's Mochi 1; diffusers' `MochiTransformerBlock`.

    Example:
        >>> x, gate = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([0.0, 1.0, -1.0, 10.0])
        >>> normed, out = oxiwarp.residual_tanh_gated_rms_norm_modulated(x, torch.ones(1, 4), gate, torch.ones(4))
        >>> normed
        tensor([[0.6435, 1.7771, 1.4404, 3.2176]])
        >>> out
        tensor([[1.0000, 2.7616, 2.2384, 5.0000]])
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
