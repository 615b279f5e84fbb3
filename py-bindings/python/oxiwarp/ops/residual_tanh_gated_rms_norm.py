"""Residual connection of the model Mochi, `x + rms(x_res) * tanh(gate)`, with or without the modulated
RMSNorm that follows it.

The operators are `residual_tanh_gated_rms_norm` and `residual_tanh_gated_rms_norm_modulated` in `torch.ops.oxiwarp`.
"""

from typing import Any

import torch
from torch import Tensor

from ._checks.rows import check_branch, check_eps, check_modulation
from ._function import Function, apply
from ._mixed import chosen, plain
from ._modulation_backward import Modulation, Norm, modulated, multiplied
from ._once_differentiable import once
from ._register import check_rows, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role
from .modulated_rms_norm import per_batch

NAME = "residual_tanh_gated_rms_norm"
CHAINED = "residual_tanh_gated_rms_norm_modulated"


def _check(op: str, x: Tensor, x_res: Tensor, gate: Tensor, eps: float) -> None:
    check_rows(op, x, None)
    check_branch(op, x, x_res, "x_res")
    check_modulation(op, "gate", gate, None, x, per_row=True, mixed=True)
    check_eps(op, eps)


def _fake(x: Tensor, x_res: Tensor, gate: Tensor, eps: float) -> Tensor:
    _check(NAME, x, x_res, gate, eps)
    return x.new_empty(x.shape)


def _fake_chained(
    x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor, scale_table: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    _check(CHAINED, x, x_res, gate, eps)
    check_modulation(CHAINED, "scale", scale, scale_table, x, per_row=True, mixed=True)
    return x.new_empty(x.shape), x.new_empty(x.shape)


op = define(
    f"{NAME}(Tensor x, Tensor x_res, Tensor gate, float eps) -> Tensor",
    _fake,
    x=Role.ROWS,
    x_res=Role.BRANCH,
    gate=Role.MODULATION,
)
op_chained = define(
    f"{CHAINED}(Tensor x, Tensor x_res, Tensor gate, Tensor scale, Tensor? scale_table, float eps) -> (Tensor, Tensor)",
    _fake_chained,
    x=Role.ROWS,
    x_res=Role.BRANCH,
    gate=Role.MODULATION,
    scale=Role.MODULATION,
    scale_table=Role.ANY_VECTOR,
)
ROLES = {"gate": Role.PER_BATCH, "scale": Role.PER_BATCH}


class _Residual(Function):
    """Autograd function that saves `x_res` and the gate."""

    @staticmethod
    def forward(x: Tensor, x_res: Tensor, gate: Tensor, eps: float) -> Tensor:
        return op(x, x_res, gate, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x_res, gate, ctx.eps = inputs
        ctx.save_for_backward(x_res, gate)

    @staticmethod
    @once
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x_res, gate = ctx.saved_tensors
        of_branch = _branch_gradients(dout.contiguous(), x_res, gate, ctx.eps, ctx.needs_input_grad[1:3])
        return dout if ctx.needs_input_grad[0] else None, *of_branch, None


class _Modulated(Function):
    """Autograd function that saves the first result `out` (the sum), `x_res`, the gate and the scale.

    The operator has two outputs, `normed` and `out`, and each has an incoming gradient. The backward kernel of the norm
    computes the gradient of the norm's input from the gradient of `normed`, and adds the gradient of `out`.
    """

    @staticmethod
    def forward(x: Tensor, x_res: Tensor, gate: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return op_chained(x, x_res, gate, scale, None, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, x_res, gate, scale, ctx.eps = inputs
        ctx.save_for_backward(output[1], x_res, gate, scale)

    @staticmethod
    @once
    def backward(ctx: Any, dnormed: Tensor, dout: Tensor) -> tuple[Tensor | None, ...]:
        out, x_res, gate, scale = ctx.saved_tensors
        wanted, norm = ctx.needs_input_grad, Norm(True, ctx.eps, None, None)
        by = Modulation(scale, None)
        of_norm = modulated(dnormed.contiguous(), out, norm, by, None, dout.contiguous(), wanted[3])
        of_branch = _branch_gradients(of_norm.x, x_res, gate, ctx.eps, wanted[1:3])
        dscale = None if of_norm.scale is None else of_norm.scale.to(scale.dtype)
        return of_norm.x if wanted[0] else None, *of_branch, dscale, None


def _branch_gradients(
    dout: Tensor, x_res: Tensor, gate: Tensor, eps: float, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return two gradients of `rms(x_res) * tanh(gate)`: of `x_res` and of the gate.

    `dout` is the incoming gradient. `wanted` has one flag per gradient: whether the caller needs it.
    """
    factor, dtype = torch.tanh(gate.float()), x_res.dtype
    if dtype != dout.dtype:
        dout, x_res = dout.float(), x_res.float()
    dx_res, dfactor = multiplied(dout, x_res, Norm(True, eps, None, None), factor, wanted)
    dgate = None if dfactor is None else (dfactor * (1 - factor.square())).to(gate.dtype)
    return dx_res.to(dtype) if wanted[0] and dx_res is not None else None, dgate


def residual_tanh_gated_rms_norm(x: Tensor, x_res: Tensor, gate: Tensor, eps: float = 1e-6) -> Tensor:
    """Add a normalized and gated branch to a residual, as Mochi does: `x + rms(x_res) * tanh(gate)`.

    `rms(v)` is `v * rsqrt(mean(v**2) + eps)` over the last dimension.

    Args:
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]`, on the CPU or a CUDA device. If the last
            stride is not 1, a contiguous copy is made first.
        x_res (Tensor): output of the branch (attention or MLP), with the shape and device of `x`: float32, float16
            or bfloat16.
        gate (Tensor): float32, float16 or bfloat16; broadcasts to `x`, with its last dimension or 1. For `x` of shape
            `[B, S, N]`, the gate has shape `[B, 1, N]` or `[B, N]`.
        eps (float): added to the mean of squares; finite, 0 or more.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        TypeError: `x`, `x_res` or `gate` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The kernel rounds where Mochi's modules round. It rounds `tanh(gate)` to the dtype of `gate`. It
            computes the product `rms(x_res) * tanh(gate)` in float32, and rounds this product to the dtype of `x_res`
            and the sum to the dtype of `x`.
        Gradients: All operands have gradients. They are computed in float32 and rounded once. They ignore that the
            forward rounds `tanh(gate)`. A second derivative and forward-mode AD raise RuntimeError.

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
    try:
        if needs_grad(x, x_res, gate):
            refuse_forward_mode(NAME)
            _check(NAME, x, x_res, gate, eps)
            return apply(_Residual, x, x_res, chosen(gate, None), eps)
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
        x (Tensor): residual, float32, float16 or bfloat16, shape `[..., N]`, on the CPU or a CUDA device. If the last
            stride is not 1, a contiguous copy is made first.
        x_res (Tensor): output of the branch (attention or MLP), with the shape and device of `x`: float32, float16
            or bfloat16.
        gate (Tensor): float32, float16 or bfloat16; broadcasts to `x`, with its last dimension or 1. For `x` of shape
            `[B, S, N]`, the gate has shape `[B, 1, N]` or `[B, N]`.
        scale (Tensor): scale of the norm of `out`, with a shape and dtype that `gate` may have.
        eps (float): added to the mean of squares in both norms; finite, 0 or more.

    Returns:
        `(normed, out)`: two contiguous tensors with the shape and dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        TypeError: `x`, `x_res`, `gate` or `scale` is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The results do not fit in GPU memory.

    Note:
        Exactness: The results are bitwise equal to the results of `residual_tanh_gated_rms_norm` followed by
            `modulated_rms_norm`.
        Gradients: All operands have gradients, which are computed in float32 and rounded once. The gradients of `x_res`
            and `gate` have one more rounding, because they are computed from the rounded gradient of `out`. A second
            derivative and forward-mode AD raise RuntimeError.

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
    try:
        if needs_grad(x, x_res, gate, scale):
            refuse_forward_mode(CHAINED)
            _fake_chained(x, x_res, gate, scale, None, eps)
            return apply(_Modulated, x, x_res, chosen(gate, None), plain(x, scale, None, None)[0], eps)
        return op_chained(x, x_res, gate, scale, None, eps)
    except RuntimeError as error:
        explain(error, CHAINED, 2, x, x_res=x_res, gate=gate, scale=scale)
        raise


__all__ = ["residual_tanh_gated_rms_norm", "residual_tanh_gated_rms_norm_modulated"]
