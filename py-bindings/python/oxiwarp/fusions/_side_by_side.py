"""Attention and feed-forward of a block of one stream, side by side for the projection that they share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._register import PLAIN, needs_grad
from ..ops import gelu, gelu_tanh
from ._fusion import FusedRecipe, hooked

CHAIN = "activation of the feed-forward, written beside the attention: {}"
"""A line of `Fusion.chains`."""


def side_by_side(
    attended: Tensor,
    projected: Tensor,
    activation: Any,
    how: FusedRecipe,
    op: Callable[..., Tensor] | None,
    share: int = 1,
) -> Tensor:
    """`torch.cat([attended, activation(projected)], 2)`.

    `op` is our operator for the activation, if it is one that is known, which leaves `1 / share` of the columns: it
    writes where the concatenation would copy to. Autograd needs that copy, and torch.compile fuses it.
    """
    if (
        op is None
        or torch.compiler.is_compiling()
        or needs_grad(attended, projected)
        or type(projected) not in PLAIN
        or projected.dtype != attended.dtype
    ):
        return torch.cat([attended, activation(projected)], dim=2)
    batch, tokens, first = attended.shape
    both = attended.new_empty(batch, tokens, first + projected.shape[2] // share)
    op(projected, mode=how.mode, out=both[..., first:])
    both[..., :first].copy_(attended)
    return both


def gelu_of(activation: Any) -> Callable[..., Tensor] | None:
    """Our operator for a module that is torch's GELU, if it is that."""
    if type(activation) is not nn.GELU or hooked(activation):
        return None
    return gelu_tanh if activation.approximate == "tanh" else gelu


__all__ = ["CHAIN", "gelu_of", "side_by_side"]
