"""Residual addition and RMSNorm in one kernel: `torch.ops.oxiwarp.add_rms_norm` and its public function."""

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
    write,
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


def _fake_out(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    round_before_weight: bool,
    out: Tensor,
    sum: Tensor,  # noqa: A002  the name of the result
) -> None:
    check_rows("add_rms_norm", x, weight, residual=residual, out=out, sum=sum)
    check_eps("add_rms_norm", eps)
    check_number("add_rms_norm", "weight_offset", weight_offset)


# `out` and `sum` may be the tensors `x` and `residual`. The kernel reads each element before it writes it.
op_out = define(
    "add_rms_norm_out(Tensor x, Tensor residual, Tensor? weight, float eps, float weight_offset, "
    "bool round_before_weight, Tensor(a!) out, Tensor(b!) sum) -> ()",
    _fake_out,
    x=Role.ROWS,
    residual=Role.ROWS,
    weight=Role.VECTOR,
    out=Role.OUTPUT,
    sum=Role.OUTPUT,
)


class _AddRmsNorm(Function):
    """Autograd function that saves the sum `x + residual` and the weight.

    The operator has two outputs, the norm `y` and `sum`, and each has an incoming gradient. The backward kernel
    computes the gradient of the norm's input from the gradient of `y`, and adds the gradient of `sum`.
    """

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
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Add a residual and normalize the sum: `sum = x + residual`, `y = rms_norm(sum, weight, eps)`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA
            device. It may have the strides that `rms_norm` supports.
        residual (Tensor): shape, dtype and device of `x`. `Tensor.view` must be able to merge all dimensions of
            `residual` except the last into at most two. It must be able to merge `x` in the same way.
        weight (Tensor | None): contiguous, shape `[N]`, in the dtype of `x` or in float32.
        eps (float): added to the mean of squares; finite, 0 or more.
        weight_offset (float): number that is added to `weight` in float32, as in `rms_norm`.
        rounding (str): "once" or "before_weight", as in `rms_norm`.
        out (tuple[Tensor, Tensor] | None): pair of tensors with the shape, dtype and device of `x`, to which
            `y` and `sum` are written. To compute in place, pass `x` and `residual` as this pair, in any order.
            Otherwise, the tensors must not overlap an input.

    Returns:
        `(y, sum)`: `out` if it is given. Otherwise, two contiguous tensors with the shape and dtype of `x`. `sum` is
        the residual of the next layer.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD, and if `out` is given and an input requires grad.
        ValueError: `rounding` is not "once" or "before_weight", or `out` is not a pair.
        TypeError: `x`, `residual`, `weight` or an element of `out` is not a tensor, or `eps` or `weight_offset` is not
            a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: `sum` is bitwise equal to torch's `x + residual`. The norm is computed from this rounded sum, and is
            as exact as `rms_norm`.
        Gradients: The gradients are computed as for `rms_norm`. The result `sum` has an incoming gradient, too, which
            the backward kernel adds to the gradient of `x` before rounding. A second derivative and forward-mode AD
            raise RuntimeError.

    Source:
        The operations `h = h + f(h); y = norm(h)` of decoders such as LLaMA. The norm is defined in
        arXiv:1910.07467.

    Example:
        >>> oxiwarp.add_rms_norm(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.ones(1, 4))
        (tensor([[0.5443, 0.8165, 1.0887, 1.3608]]), tensor([[2., 3., 4., 5.]]))
    """
    if not (isinstance(x, Tensor) and isinstance(residual, Tensor) and isinstance(weight, OPTIONAL)):
        refuse_types("add_rms_norm", {"x": x, "residual": residual}, {"weight": weight})
    before, grad = before_weight("add_rms_norm", rounding), needs_grad(x, residual, weight)
    arguments = (x, residual, weight, eps, weight_offset, before)
    if grad:
        refuse_forward_mode("add_rms_norm")
    if out is not None:
        _write(arguments, out, grad)
        return out
    try:
        return apply(_AddRmsNorm, *arguments) if grad else op(*arguments)
    except RuntimeError as error:
        explain(error, "add_rms_norm", 2, x, residual=residual, weight=weight)
        raise


def _write(arguments: tuple[Any, ...], out: tuple[Tensor, Tensor], grad: bool) -> None:
    """Call the operator that writes to the pair `out`. Raise ValueError or TypeError unless `out` is a pair of
    tensors.
    """
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise ValueError("add_rms_norm: out is not a pair, expected the tensors for y and for sum")
    y, total = out
    if not (isinstance(y, Tensor) and isinstance(total, Tensor)):
        refuse_types("add_rms_norm", {"out[0]": y, "out[1]": total}, {})
    x, residual, weight, *_ = arguments
    try:
        write("add_rms_norm", op_out, arguments, (y, total), grad)
    except RuntimeError as error:
        explain(error, "add_rms_norm", 0, x, residual=residual, weight=weight, out=y, sum=total)
        raise


__all__ = ["add_rms_norm"]
