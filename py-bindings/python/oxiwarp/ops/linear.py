"""The matrix product `x @ weight.T + bias`: `torch.ops.oxiwarp.linear` and its public function."""

import math
from typing import Any

import torch
from torch import Tensor

from ._function import Function, apply
from ._once_differentiable import once
from ._register import (
    FLOATS,
    OPTIONAL,
    define,
    dtype_name,
    explain,
    needs_grad,
    refuse_forward_mode,
    refuse_types,
    write,
)
from ._roles import Role

MULTIPLE = 8
"""K and N are multiples of this number, so that the rows of contiguous matrices are multiples of 16 bytes."""


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> None:
    """Raise RuntimeError if the kernels do not support one of the inputs. The check reads only shapes, dtypes
    and devices.
    """
    if x.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"linear: x is {dtype_name(x.dtype)}, expected f16 or bf16")
    others = [(name, t) for name, t in (("weight", weight), ("bias", bias), ("out", out)) if t is not None]
    for name, tensor in others:
        if tensor.device != x.device:
            raise RuntimeError(f"linear: {name} is on {tensor.device}, expected {x.device}, the device of x")
    for name, tensor in others:
        if tensor.dtype != x.dtype:
            raise RuntimeError(f"linear: {name} is {dtype_name(tensor.dtype)}, expected {FLOATS[x.dtype]}")
    depth = x.shape[-1] if x.dim() else 0
    if depth == 0 or depth % MULTIPLE != 0:
        expected = f"[..., K] with K a positive multiple of {MULTIPLE}"
        raise RuntimeError(f"linear: x has shape {list(x.shape)}, expected {expected}")
    if weight.dim() != 2:
        raise RuntimeError(f"linear: weight has shape {list(weight.shape)}, expected [N, {depth}]")
    columns = weight.shape[0]
    if weight.shape[1] != depth:
        raise RuntimeError(f"linear: weight has shape {list(weight.shape)}, expected [{columns}, {depth}]")
    if columns % MULTIPLE != 0:
        expected = f"[N, {depth}] with N a multiple of {MULTIPLE}"
        raise RuntimeError(f"linear: weight has shape {list(weight.shape)}, expected {expected}")
    if out is not None and out.shape != (*x.shape[:-1], columns):
        raise RuntimeError(f"linear: out has shape {list(out.shape)}, expected {[*x.shape[:-1], columns]}")
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != columns):
        raise RuntimeError(f"linear: bias has shape {list(bias.shape)}, expected [{columns}]")


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    _check(x, weight, bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _fake_out(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    _check(x, weight, bias, out)


op = define(
    "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _fake,
    x=Role.ROWS,
    weight=Role.MATRIX,
    bias=Role.BIAS,
)
op_out = define(
    "linear_out(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) out) -> ()",
    _fake_out,
    x=Role.ROWS,
    weight=Role.MATRIX,
    bias=Role.BIAS,
    out=Role.OUTPUT,
)


def _matrix(x: Tensor) -> Tensor:
    """Return `x`, or a contiguous copy if the kernels cannot read `x` as a matrix.

    The elements of a row must be contiguous. All dimensions before the last become rows, which must have one
    distance.
    """
    if x.is_contiguous() or x.dim() == 0:
        return x
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        return x.contiguous()
    expected = None
    for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if expected is not None and stride != expected:
            return x.contiguous()
        expected = stride * size
    return x


def _rows(x: Tensor) -> Tensor:
    """Return `x` as a matrix: all dimensions except the last become rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _is_column_major(x: Tensor) -> bool:
    """Return whether `x` is a matrix whose columns are contiguous and have no gaps between them."""
    return x.dim() == 2 and x.stride(0) == 1 and x.stride(1) == x.shape[0]


class _Linear(Function):
    """Autograd function that saves `x` for the gradient of the weight, and the weight for the gradient of
    `x`.

    The backward calls the same operators of torch, with the same operands, as the backward of
    `torch.nn.functional.linear`. The gradients therefore have the bits of torch's gradients.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return op(_matrix(x), _matrix(weight), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _ = inputs
        of_x, of_weight, _ = ctx.needs_input_grad
        # torch multiplies `x` by `weight.t()`. If an operand is column-major, torch computes its transposed
        # gradient.
        ctx.transposed = _is_column_major(x), _is_column_major(weight.t())
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        x_transposed, weight_transposed = ctx.transposed
        rows = _rows(dy)
        dx = dweight = None
        if of_x:
            dx = weight.t().mm(rows.t()).t() if x_transposed else rows.mm(weight)
            dx = dx.view(*dy.shape[:-1], weight.shape[1])
        if of_weight:
            dweight = rows.t().mm(_rows(x)) if weight_transposed else _rows(x).t().mm(rows).t()
        return dx, dweight, rows.sum(0) if of_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """Compute the matrix product `x @ weight.T + bias`.

    Args:
        x (Tensor): float16 or bfloat16, shape `[..., K]`, on the CPU or a CUDA device. K is a multiple of 8,
            and at least 8. The number of rows may be 0. `x` may have any strides. The kernel reads `x`
            directly if the last stride is 1, and if `Tensor.view` can merge all dimensions before the last.
            Otherwise, a contiguous copy is made first.
        weight (Tensor): shape `[N, K]`, in the dtype of `x`. N is a multiple of 8. `weight` may have any
            strides. If its last stride is not 1, a contiguous copy is made first.
        bias (Tensor | None): shape `[N]`, contiguous, in the dtype of `x`.
        out (Tensor | None): tensor with the shape `[..., N]` and the dtype and device of `x`, to which the
            result is written. It may be a slice of a wider buffer: the last stride is 1, and `Tensor.view`
            must be able to merge all dimensions before the last. It must not overlap an input.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the shape `[..., N]` and the dtype of `x`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_80 or the CUDA driver is missing. Also raised in
            forward-mode AD. Also raised if `out` is given and an input requires grad.
        TypeError: `x`, `weight`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The products of a row and a column are added in float32, in the order of K. The bias is
            added in float32, and the sum is rounded once. A row's result does not depend on the other rows.
            On a Hopper GPU, with torch 2.11 for CUDA 13.0, all measured results with 512 or more rows are
            bitwise equal to those of `torch.nn.functional.linear`. With fewer rows, cuBLAS may split K, and
            its result then has other bits. If `x` has three or more dimensions, is not contiguous, and there
            is a bias, torch rounds the product before it adds the bias. Its result then has other bits, too.
        Gradients: The gradients are computed by torch's operators. They are the matrix products and the sum
            over rows that `torch.nn.functional.linear` computes in its backward, with the same bits. A second
            derivative and forward-mode AD raise RuntimeError.

    Source:
        `torch.nn.functional.linear`.

    Example:
        >>> x, weight = torch.arange(8).bfloat16(), torch.eye(8).bfloat16()
        >>> oxiwarp.linear(x, weight, torch.ones(8).bfloat16())
        tensor([1., 2., 3., 4., 5., 6., 7., 8.], dtype=torch.bfloat16)
    """
    if not (
        isinstance(x, Tensor)
        and isinstance(weight, Tensor)
        and isinstance(bias, OPTIONAL)
        and isinstance(out, OPTIONAL)
    ):
        refuse_types("linear", {"x": x, "weight": weight}, {"bias": bias, "out": out})
    grad = needs_grad(x, weight, bias, out)
    try:
        if grad:
            refuse_forward_mode("linear")
        if out is not None:
            write("linear", op_out, (_matrix(x), _matrix(weight), bias), (out,), grad)
            return out
        if grad:
            return apply(_Linear, x, weight, bias)
        return op(_matrix(x), _matrix(weight), bias)
    except RuntimeError as error:
        # The result has the size of this many tensors like `x`.
        count = (
            -(-weight.shape[0] // x.shape[-1]) if weight.dim() == 2 and not x.is_nested and x.dim() and x.numel() else 1
        )
        explain(error, "linear", 0 if out is not None else count, x, weight=weight, bias=bias, out=out)
        raise


__all__ = ["linear"]
