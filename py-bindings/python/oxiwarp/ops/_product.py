"""Checks, layouts and gradients of matrix products."""

import math

import torch
from torch import Tensor

from ._register import FLOATS, dtype_name

MULTIPLE = 8
"""K and the number of columns of the result are multiples of this number, so that the rows of contiguous
matrices are multiples of 16 bytes."""


def check_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    parts: int = 1,
    *,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[int, ...]:
    """Return the shape of the result. Raise RuntimeError if the kernels do not support one of the inputs.

    The check reads only shapes, dtypes and devices. The result has `weight.shape[0] / parts` columns, where `parts` is
    2 for a gated activation and otherwise 1. `residual` and `out` must have the shape of the result, and the dtype and
    device of `x`.
    """
    if x.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(f"linear: x is {dtype_name(x.dtype)}, expected f16 or bf16")
    named = {"weight": weight, "bias": bias, "residual": residual, "out": out}
    tensors = [(name, tensor) for name, tensor in named.items() if tensor is not None]
    for name, tensor in tensors:
        if tensor.device != x.device:
            raise RuntimeError(f"linear: {name} is on {tensor.device}, expected {x.device}, the device of x")
    for name, tensor in tensors:
        if tensor.dtype != x.dtype:
            raise RuntimeError(f"linear: {name} is {dtype_name(tensor.dtype)}, expected {FLOATS[x.dtype]}")
    depth = x.shape[-1] if x.dim() else 0
    if depth == 0 or depth % MULTIPLE != 0:
        allowed = f"[..., K] with K a positive multiple of {MULTIPLE}"
        raise RuntimeError(f"linear: x has shape {list(x.shape)}, expected {allowed}")
    if weight.dim() != 2:
        raise RuntimeError(f"linear: weight has shape {list(weight.shape)}, expected [N, {depth}]")
    rows = weight.shape[0]
    if weight.shape[1] != depth:
        raise RuntimeError(f"linear: weight has shape {list(weight.shape)}, expected [{rows}, {depth}]")
    if rows % (parts * MULTIPLE) != 0:
        allowed = f"[N, {depth}] with N a multiple of {parts * MULTIPLE}"
        raise RuntimeError(f"linear: weight has shape {list(weight.shape)}, expected {allowed}")
    shape = (*x.shape[:-1], rows // parts)
    # The kernels check the shapes in this order.
    for name, expected in (("out", shape), ("bias", (rows,)), ("residual", shape)):
        operand = named[name]
        if operand is not None and operand.shape != expected:
            raise RuntimeError(f"linear: {name} has shape {list(operand.shape)}, expected {list(expected)}")
    return shape


def matrix(x: Tensor) -> Tensor:
    """Return `x`, or a contiguous copy if the kernels cannot read `x` as a matrix.

    The kernels can read `x` if the elements of a row are contiguous, and if the distance from each row to the next is
    the same. All dimensions except the last become rows.
    """
    if x.is_contiguous() or x.dim() == 0:
        return x
    return x if (x.shape[-1] == 1 or x.stride(-1) == 1) and has_one_distance(x) else x.contiguous()


def has_one_distance(x: Tensor) -> bool:
    """Return whether the distance from each row to the next is the same."""
    expected = None
    for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if expected is not None and stride != expected:
            return False
        expected = stride * size
    return True


def _rows(x: Tensor) -> Tensor:
    """Return `x` as a matrix. All dimensions except the last become its rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _is_column_major(x: Tensor) -> bool:
    """Return whether `x` is a matrix whose columns are contiguous and have no gaps between them."""
    return x.dim() == 2 and x.stride(0) == 1 and x.stride(1) == x.shape[0]


def transposed(x: Tensor, weight: Tensor) -> tuple[bool, bool]:
    """Return two bools, for `x` and for the weight: whether torch computes the gradient in transposed form.

    torch multiplies `x` by `weight.t()`. If an operand is column-major, torch computes the transpose of its gradient.
    """
    return _is_column_major(x), _is_column_major(weight.t())


def product_gradients(
    dy: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    of_transposed: tuple[bool, bool],
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of `x`, of the weight and of the bias, or None for those that the caller does not need.

    `dy` is the gradient of the product. The function calls the same operators of torch, with the same operands,
    as the backward of `torch.nn.functional.linear`. The gradients therefore have the bits of torch's gradients.
    """
    of_x, of_weight, of_bias = wanted
    x_transposed, weight_transposed = of_transposed
    rows = _rows(dy)
    dx = dweight = None
    if of_x:
        assert weight is not None
        dx = weight.t().mm(rows.t()).t() if x_transposed else rows.mm(weight)
        dx = dx.view(*dy.shape[:-1], weight.shape[1])
    if of_weight:
        assert x is not None
        dweight = rows.t().mm(_rows(x)) if weight_transposed else _rows(x).t().mm(rows).t()
    return dx, dweight, rows.sum(0) if of_bias else None
