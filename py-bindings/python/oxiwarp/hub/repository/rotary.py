"""Rotary embedding with the same signatures as in `kernels-community/rotary`."""

import torch
from torch import Tensor

from ._oxiwarp import rope


def apply_rotary(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool) -> None:
    """Compute `out1 = x1 * cos - x2 * sin` and `out2 = x1 * sin + x2 * cos`. If `conj` is True, rotate by the
    negative angle.

    `x1` and `x2` have shape `[..., S, H, D / 2]`: each has half of the columns of every head. They are often views of
    one tensor: its two halves, or its even and its odd columns. The kernel then reads this tensor directly, unless a
    gradient is recorded. In all other cases, `x1` and `x2` are concatenated first. `cos` and `sin` broadcast to
    `[..., S, H, D / 2]`. Each sum of two products is computed in float32 and rounded once. `out1` and `out2` may be the
    same tensors as `x1` and `x2`.
    """
    x, interleaved = _whole(x1, x2)
    cos, sin = (_table(table, x1) for table in (cos, -sin if conj else sin))
    heads = x.flatten(0, -4) if x.dim() > 3 else x.unsqueeze(0)
    rotated = rope(heads, None, cos, sin, interleaved=interleaved, mode="fast").view(x.shape)
    half = x1.shape[-1]
    first, second = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.split(half, -1)
    out1.copy_(first)
    out2.copy_(second)


def _whole(x1: Tensor, x2: Tensor) -> tuple[Tensor, bool]:
    """Return one tensor that contains the columns of `x1` and `x2`, and a flag. The flag is True if the even
    columns of this tensor are `x1` and the odd columns are `x2`. It is False if the first half is `x1` and
    the second half is `x2`.

    If the addresses of `x1` and `x2` show that they are views of one tensor, this tensor is returned without
    a copy. Otherwise, the tensor is a concatenation.
    """
    # If autograd records the call, do not return a view of the whole tensor. Such a view would be made from
    # `x1`, so autograd would add the gradient of `x2` to the gradient of `x1`.
    recorded = torch.is_grad_enabled() and (x1.requires_grad or x2.requires_grad)
    if not recorded and not torch.compiler.is_compiling() and x1.shape == x2.shape and x1.stride() == x2.stride():
        same = x1.untyped_storage().data_ptr() == x2.untyped_storage().data_ptr()
        distance = x2.storage_offset() - x1.storage_offset()
        whole = (*x1.shape[:-1], 2 * x1.shape[-1])
        for step, expected in ((1, x1.shape[-1]), (2, 1)):
            if same and x1.stride(-1) == step and distance == expected:
                return x1.as_strided(whole, (*x1.stride()[:-1], 1)), step == 2
    return torch.cat((x1, x2), -1), False


def _table(table: Tensor, x1: Tensor) -> Tensor:
    """Return the rotary table `table`, which broadcasts to `x1`, in the shape that `rope` requires:
    `[batches, S, heads, D / 2]`.
    """
    if table.dtype not in (torch.float32, x1.dtype):
        table = table.float()
    table = table[(None,) * (3 - table.dim())] if table.dim() < 3 else table
    if table.dim() == 3:
        table = table.unsqueeze(0)
    elif table.dim() > 4 or x1.dim() != 4:
        table = table.expand(*x1.shape[:-3], *table.shape[-3:]).flatten(0, -4)
    return table.expand(table.shape[0], x1.shape[-3], table.shape[2], x1.shape[-1]).contiguous()


def apply_rotary_transformers(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Compute transformers' `apply_rotary_pos_emb` for `q` and `k` in one kernel launch.

    `q` and `k` have shape `[B, H, S, D]` if `unsqueeze_dim` is 1, and shape `[B, S, H, D]` if `unsqueeze_dim` is 2.
    `cos` and `sin` have shape `[B, S, D]`.
    """
    return rope(q, k, cos, sin, interleaved=False, heads_first=unsqueeze_dim == 1)
