"""RMSNorm over the last dimension: `torch.ops.oxiwarp.rms_norm` and its public function."""

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
    define_lazy,
    explain,
    needs_grad,
    refuse_forward_mode,
    refuse_types,
    write,
)
from ._roles import Role
from .rms_norm_backward import op as op_backward


def _fake(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool) -> Tensor:
    check_rows("rms_norm", x, weight)
    check_eps("rms_norm", eps)
    check_number("rms_norm", "weight_offset", weight_offset)
    return x.new_empty(x.shape)


def _fake_out(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool, out: Tensor
) -> None:
    check_rows("rms_norm", x, weight, out=out)
    check_eps("rms_norm", eps)
    check_number("rms_norm", "weight_offset", weight_offset)


op = define(
    "rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight) -> Tensor",
    _fake,
    x=Role.ROWS,
    weight=Role.VECTOR,
)
# Unlike the public function it does not count as a write to `out` for autograd: a kernel that counts, in Python, would
# cost each call more than all the rest.
op_out = define(
    "rms_norm_out(Tensor x, Tensor? weight, float eps, float weight_offset, bool round_before_weight, "
    "Tensor(a!) out) -> ()",
    _fake_out,
    x=Role.ROWS,
    weight=Role.VECTOR,
    out=Role.OUTPUT,
)


def _resolve_out(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool, out: Tensor
) -> None:
    if out.is_neg() or out.is_conj():
        raise RuntimeError(
            "rms_norm: out is a lazily negated (or conjugated) view, expected a plain tensor; call .resolve_neg() first"
        )
    plain = weight if weight is None else weight.resolve_conj().resolve_neg()
    op_out(x.resolve_conj().resolve_neg(), plain, eps, weight_offset, round_before_weight, out)


define_lazy("rms_norm_out", _resolve_out)


def call(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool) -> Tensor:
    """The operator with nothing checked in Python but the allocation of its output."""
    try:
        return op(x, weight, eps, weight_offset, round_before_weight)
    except RuntimeError as error:
        explain(error, "rms_norm", 1, x, weight=weight)
        raise


class _RmsNorm(Function):
    """Keeps x and the weight: the gradients are made of them and of what comes back."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor | None, eps: float, weight_offset: float, round_before_weight: bool
    ) -> Tensor:
        return op(x, weight, eps, weight_offset, round_before_weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.eps, ctx.weight_offset, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, *_ = ctx.needs_input_grad
        try:
            dx, dweight = op_backward(dy.contiguous(), x, weight, None, ctx.eps, ctx.weight_offset, wants_weight)
        except RuntimeError as error:
            explain(error, "rms_norm_backward", 1, x)
            raise
        return dx if wants_x else None, dweight if wants_weight else None, None, None, None


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    out: Tensor | None = None,
) -> Tensor:
    """RMSNorm over the last dimension, in one pass: `x / sqrt(mean(x**2, -1) + eps) * (weight_offset + weight)`.

    The mean of squares, its root and the product are computed in float32.

    Args:
        x: float32, float16 or bfloat16, of shape `[..., N]` with N at least 1 (tested to 262,144), on the CPU or a CUDA
            device. The last dimension must have stride 1; the leading ones may be strided as far as two strides
            describe them (slices and chunks of a contiguous tensor). If `x` and `out` both have gaps, these must be
            between the same groups of rows. No rows is fine.
        weight: contiguous `[N]` in `x`'s dtype or float32, or None for no weight (no tensor of ones is needed).
        eps: added to the mean of squares; finite, 0 or more.
        weight_offset: added to the weight in float32: 1.0 for Gemma's zero-centred weights.
        rounding: "once", a single cast to `x`'s dtype at the end, as torch.nn.RMSNorm, Gemma and Olmo do; or
            "before_weight", a cast before the multiplication and one after it, as LLaMA, Qwen, T5 and diffusers'
            RMSNorm do. The same for float32.
        out: a tensor of `x`'s shape, dtype and device to write to; it must not overlap an input. Without gradients.

    Returns:
        A contiguous tensor of `x`'s shape and dtype, or `out`.

    Gradients for `x` and `weight` are computed in float32 from `x`, and rounded once, whatever `rounding` is; the
    weight's, a sum over rows, has the same bits each time. Once, not twice.

    A CUDA tensor runs on torch's current stream and can be captured in a CUDA graph. A CPU tensor runs the same kernel
    on the CPU executor, which is meant for tests: it is slow. A row's result does not depend on how many rows there
    are; where base and strides are no multiples of 16 bytes it is summed in another order.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_75; with `out` where an input requires grad in grad mode; and in
            forward-mode AD.
        ValueError: for another `rounding`.
        torch.OutOfMemoryError: where the output does not fit.
        TypeError: for an `x`, `weight` or `out` that is no tensor.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (arXiv:1910.07467).
    """
    if not (isinstance(x, Tensor) and isinstance(weight, OPTIONAL) and isinstance(out, OPTIONAL)):
        refuse_types("rms_norm", {"x": x}, {"weight": weight, "out": out})
    before, grad = before_weight("rms_norm", rounding), needs_grad(x, weight, out)
    if grad:
        refuse_forward_mode("rms_norm")
    if out is None and not grad:
        return call(x, weight, eps, weight_offset, before)
    if out is None:
        try:
            return apply(_RmsNorm, x, weight, eps, weight_offset, before)
        except RuntimeError as error:
            explain(error, "rms_norm", 1, x, weight=weight)
            raise
    try:
        write("rms_norm", op_out, (x, weight, eps, weight_offset, before), (out,), grad)
    except RuntimeError as error:
        explain(error, "rms_norm", 0, x, weight=weight, out=out)
        raise
    return out


__all__ = ["rms_norm"]
