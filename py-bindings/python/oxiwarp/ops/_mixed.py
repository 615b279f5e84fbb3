"""Conversions of operands for which only the forward pass has kernels: operands of another 16-bit dtype than the
rows, and modulations that an index chooses.

If a gradient is needed, the functions of this module convert such operands with torch's operators. The results of
the forward pass have the same bits as without these conversions.
"""

from typing import Any, overload

import torch
from torch import Tensor

from ._function import Function, apply
from ._once_differentiable import once


def widened(x: Tensor, tensor: Tensor | None) -> Tensor | None:
    """Return `tensor` in float32, if it has the 16-bit dtype that `x` does not have."""
    return tensor.float() if tensor is not None and is_other(x, tensor) else tensor


def is_other(x: Tensor, tensor: Tensor) -> bool:
    """Return whether `tensor` has a 16-bit dtype that `x` does not have."""
    return tensor.dtype in (torch.float16, torch.bfloat16) and tensor.dtype != x.dtype


FEW = 16
"""The largest number of rows for which `summed_by_row` reads the gradient once per row."""


def summed_by_row(dy: Tensor, index: Tensor, rows: int) -> Tensor:
    """Return `rows` sums of the rows of `dy`, in float32. `index` has the number of the sum for each row of `dy`.

    The order of the additions is fixed, so the bits of a sum are the same in each call. `Tensor.index_add` adds with
    atomics on a GPU, in a varying order. torch's kernel for `index_put_(accumulate=True)` on a GPU sorts the index. It
    adds the rows of each sum one after the other, which takes long if there are few sums.
    """
    if rows <= FEW:
        chosen_by = (index == torch.arange(rows, device=index.device).unsqueeze(-1)).unsqueeze(-1)
        return torch.stack([torch.where(row, dy, 0).sum(0, dtype=torch.float32) for row in chosen_by])
    total = dy.new_zeros(rows, dy.shape[-1], dtype=torch.float32)
    if dy.is_cuda:
        return total.index_put_((index,), dy.float(), accumulate=True)
    return total.index_add_(0, index, dy.float())


class _Chosen(Function):
    """Autograd function that selects rows. The backward adds the gradients of a row in float32."""

    @staticmethod
    def forward(value: Tensor, index: Tensor) -> Tensor:
        return value.index_select(0, index.flatten()).reshape(*index.shape, value.shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        value, index = inputs
        ctx.shape, ctx.dtype = value.shape, value.dtype
        ctx.save_for_backward(index)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (index,) = ctx.saved_tensors
        rows, cols = ctx.shape
        return summed_by_row(dy.reshape(-1, cols), index.flatten(), rows).to(ctx.dtype), None


def chosen(value: Tensor, index: Tensor | None) -> Tensor:
    """Return the rows of `value` that the index chooses, one for each integer of the index.

    Without an index, return `value`. A tensor without dimensions is returned in the shape `[1]`: torch's operators
    convert tensors without dimensions to the dtype of the other operand.
    """
    if index is None:
        return value if value.dim() else value.reshape(1)
    made: Tensor = apply(_Chosen, value, index)
    return made


@overload
def plain(x: Tensor, value: Tensor, table: Tensor | None, index: Tensor | None) -> tuple[Tensor, Tensor | None]: ...


@overload
def plain(
    x: Tensor, value: Tensor | None, table: Tensor | None, index: Tensor | None
) -> tuple[Tensor | None, Tensor | None]: ...


def plain(
    x: Tensor, value: Tensor | None, table: Tensor | None, index: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return a scale, shift or gate and its table, in forms that the gradients support.

    The caller has checked the operands, because the conversions accept more than the kernels.
    """
    if value is None:
        return None, table
    value = chosen(value, index)
    if table is not None and table.dtype == value.dtype and is_other(x, value):
        value, table = table + value, None
    return widened(x, value), widened(x, table)


__all__ = ["chosen", "is_other", "plain", "summed_by_row", "widened"]
