"""Residual addition and RMSNorm in one pass: `torch.ops.oxiwarp.add_rms_norm` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_eps
from ._function import Function, apply
from ._once_differentiable import once
from ._register import (
    OPTIONAL,
    before_weight,
    check_number,
    check_rows,
    define,
    explain,
    needs_grad,
    refuse_forward_mode,
    refuse_types,
)
from ._roles import Role
from .rms_norm_backward import op as op_backward


def _fake(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool
) -> tuple[Tensor, Tensor]:
    check_rows("add_rms_norm", x, weight, residual=residual)
    check_eps("add_rms_norm", eps)
    check_number("add_rms_norm", "weight_offset", weight_offset)
    return x.new_empty(x.shape), x.new_empty(x.shape)


op = define(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset, "
    "bool round_before_weight) -> (Tensor, Tensor)",
    _fake,
    x=Role.ROWS,
    residual=Role.ROWS,
    weight=Role.VECTOR,
)


class _AddRmsNorm(Function):
    """Keeps the sum and the weight; what comes back for the sum is added in the pass that makes its gradient."""

    @staticmethod
    def forward(
        x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool
    ) -> tuple[Tensor, Tensor]:
        return op(x, residual, weight, eps, weight_offset, round_before_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, _, weight, ctx.eps, ctx.weight_offset, _ = inputs
        ctx.save_for_backward(output[1], weight)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor, dsum: Tensor) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        wants_x, wants_residual, wants_weight, *_ = ctx.needs_input_grad
        dy, dsum = dy.contiguous(), dsum.contiguous()
        try:
            dx, dweight = op_backward(dy, total, weight, dsum, ctx.eps, ctx.weight_offset, wants_weight)
        except RuntimeError as error:
            explain(error, "rms_norm_backward", 1, total)
            raise
        gradients = (dx if wants_x else None, dx if wants_residual else None, dweight if wants_weight else None)
        return *gradients, None, None, None


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> tuple[Tensor, Tensor]:
    """`sum = x + residual`, rounded to their dtype as torch's `+`; `y = rms_norm(sum, weight, eps)`, in one pass.

    Args:
        x, residual: float32, float16 or bfloat16, both of shape `[..., N]` with N at least 1, on one device, with
            last dimension of stride 1 and leading dimensions as for `rms_norm`. If both have gaps, these must be
            between the same groups of rows.
        weight, eps, weight_offset, rounding: as for `rms_norm`; the norm reads the rounded sum.

    Returns:
        `(y, sum)`: two contiguous tensors of `x`'s shape and dtype, the norm's output and the next residual.

    Gradients as `rms_norm`'s; what comes back for the sum is added before the one rounding.

    Raises:
        RuntimeError, ValueError, TypeError, torch.OutOfMemoryError: as `rms_norm`.

    Source: the pre-norm residual chain of LLaMA-like decoders, `h = h + f(h); y = norm(h)`; the norm is that of
    arXiv:1910.07467.
    """
    if not (isinstance(x, Tensor) and isinstance(residual, Tensor) and isinstance(weight, OPTIONAL)):
        refuse_types("add_rms_norm", {"x": x, "residual": residual}, {"weight": weight})
    before = before_weight("add_rms_norm", rounding)
    try:
        if needs_grad(x, residual, weight):
            refuse_forward_mode("add_rms_norm")
            return apply(_AddRmsNorm, x, residual, weight, eps, weight_offset, before)
        return op(x, residual, weight, eps, weight_offset, before)
    except RuntimeError as error:
        explain(error, "add_rms_norm", 2, x, residual=residual, weight=weight)
        raise


__all__ = ["add_rms_norm"]
