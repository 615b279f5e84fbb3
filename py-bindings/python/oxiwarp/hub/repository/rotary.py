"""Rotary embedding with the signatures of `kernels-community/rotary`."""

import torch
from torch import Tensor

from ._oxiwarp import rope


def apply_rotary(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool) -> None:
    """Compute `out1 = x1 cos - x2 sin` and `out2 = x1 sin + x2 cos`. With `conj`, rotate by the negative angle.

    `x1` and `x2` are the two halves of the heads, `[..., S, H, D / 2]`. `cos` and `sin` broadcast to that shape. The
    outputs may be the inputs.
    """
    sin = -sin if conj else sin
    first = torch.addcmul(x1.float() * cos, x2.float(), sin, value=-1)
    second = torch.addcmul(x1.float() * sin, x2.float(), cos)
    out1.copy_(first)
    out2.copy_(second)


def apply_rotary_transformers(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """Compute transformers' `apply_rotary_pos_emb` for `q` and `k` in one launch.

    `q` and `k` have shape `[B, H, S, D]` with `unsqueeze_dim=1`, or `[B, S, H, D]` with 2. `cos` and `sin` have shape
    `[B, S, D]`.
    """
    return rope(q, k, cos, sin, interleaved=False, heads_first=unsqueeze_dim == 1)
