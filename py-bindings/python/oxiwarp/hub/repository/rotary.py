"""Rotary embedding, as `kernels-community/rotary` has it."""

import torch
from torch import Tensor

from ._oxiwarp import rope


def apply_rotary(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool) -> None:
    """`out1 = x1 cos - x2 sin` and `out2 = x1 sin + x2 cos`; with `conj` the rotation back. Outputs may be the inputs.

    `x1` and `x2` are halves of heads, `[..., S, H, D / 2]`; `cos` and `sin` broadcast against them.
    """
    sin = -sin if conj else sin
    first = torch.addcmul(x1.float() * cos, x2.float(), sin, value=-1)
    second = torch.addcmul(x1.float() * sin, x2.float(), cos)
    out1.copy_(first)
    out2.copy_(second)


def apply_rotary_transformers(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """transformers' `apply_rotary_pos_emb`: `q`, `k` `[B, H, S, D]` (`unsqueeze_dim=1`) or `[B, S, H, D]` (2), `cos`
    and `sin` `[B, S, D]`; one launch for both."""
    return rope(q, k, cos, sin, interleaved=False, heads_first=unsqueeze_dim == 1)
