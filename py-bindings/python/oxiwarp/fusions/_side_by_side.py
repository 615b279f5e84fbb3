"""Attention and feed-forward of a block of one stream, side by side for the projection that they share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._register import PLAIN, define_in_place, may_write, needs_grad
from ..ops import gelu, gelu_tanh
from ..replacement import RECIPE
from ._fusion import FusedRecipe
from ._modules import hooked
from .feed_forward import gelu_product, in_epilogue

CHAIN = "activation of the feed-forward, written beside the attention: {}"
"""A line of `Fusion.chains`."""

PLACE = "_oxiwarp_place"
"""The attribute of what a block gives its attention that says where the result should be, past the module's call."""

CHUNK = torch.complex128
"""A dtype of 16 bytes."""


def copy_chunks(y: Tensor, x: Tensor) -> None:
    """`y.copy_(x)`. Between tensors that are not contiguous torch copies an element at a time: here it has 16 bytes."""
    if y.dtype == x.dtype and in_chunks(y) and in_chunks(x):
        y, x = y.view(CHUNK), x.view(CHUNK)
    y.copy_(x)


def in_chunks(x: Tensor) -> bool:
    """Whether every row is aligned to 16 bytes and whole numbers of them long, in memory that can be looked at."""
    if type(x) is not Tensor or x.stride(-1) != 1:
        return False
    sizes = (x.shape[-1], *x.stride()[:-1], x.storage_offset())
    whole = all(size * x.element_size() % CHUNK.itemsize == 0 for size in sizes)
    return whole and x.data_ptr() % CHUNK.itemsize == 0


add_product = define_in_place("add_product(Tensor(a!) y, Tensor a, Tensor b) -> ()", Tensor.addmm_)
copy_into = define_in_place("copy_into(Tensor(a!) y, Tensor x) -> ()", copy_chunks)
Attend = Callable[[Tensor | None], Tensor]
"""An attention, `[B, S, columns]`; where it can it writes into the tensor that it is given, and returns that."""


def both_projected(x: Tensor, attend: Attend, expand: Any, activation: Any, project: Any, how: FusedRecipe) -> Tensor:
    """`project(torch.cat([attention, activation(expand(x))], 2))`.

    In mode "fast" a GELU is part of the product before it, and the projection is two products, each of one branch's
    columns: nothing is put side by side.
    """
    if how.mode == "fast" and in_epilogue(expand, x) and is_tanh(activation) and in_epilogue(project, x):
        inner = gelu_product(expand, x)
        attended = attend(None)
        if type(attended) in PLAIN and attended.dtype == x.dtype and not needs_grad(attended):
            return of_both(project, attended, inner)
        return project(torch.cat([attended, inner], dim=2))
    both = side_by_side(attend, x.shape[2], expand(x), activation, how, gelu_of(activation))
    return project(both)


def of_both(project: nn.Linear, attended: Tensor, inner: Tensor) -> Tensor:
    """A linear of two tensors side by side. The sum over the first's columns is rounded before the second's join it."""
    weight, first = project.weight.t(), attended.shape[-1]
    y = torch.addmm(project.bias, attended.reshape(-1, first), weight[:first])
    add_product(y, inner.reshape(-1, inner.shape[-1]), weight[first:])
    return y.view(*attended.shape[:-1], -1)


def side_by_side(
    attend: Attend,
    first: int,
    projected: Tensor,
    activation: Any,
    how: FusedRecipe,
    op: Callable[..., Tensor] | None,
    share: int = 1,
) -> Tensor:
    """`torch.cat([attention, activation(projected)], 2)`, where the attention has `first` columns.

    `op` is our operator for the activation, if it is one that is known, which leaves `1 / share` of the columns. It
    writes where the concatenation would copy to, and our attention does. Autograd and transforms need that copy.
    """
    if op is None or needs_grad(projected) or type(projected) not in PLAIN or not may_write(projected):
        return torch.cat([attend(None), activation(projected)], dim=2)
    batch, tokens, columns = projected.shape
    both = projected.new_empty(batch, tokens, first + columns // share)
    place = both[..., :first]
    attended = attend(place)
    if attended is not place:
        if attended.dtype != both.dtype or attended.shape != place.shape or needs_grad(attended):
            return torch.cat([attended, activation(projected)], dim=2)
        copy_into(place, attended)
    op(projected, mode=how.mode, out=both[..., first:])
    return both


def give_place(attn: Any, x: Tensor, out: Tensor | None) -> None:
    """Have an attention of `x` write to `out`: if its result is that of one call of our processor, and nobody else's to
    keep or to change."""
    if out is not None and RECIPE in getattr(attn.__dict__.get("processor"), "__dict__", ()) and not hooked(attn):
        setattr(x, PLACE, out)


def take_place(x: Tensor) -> Tensor | None:
    """Where to write an attention of `x`; another of the same tokens has a tensor of its own."""
    out = getattr(x, PLACE, None)
    if out is not None:
        setattr(x, PLACE, None)
    return out


def gelu_of(activation: Any) -> Callable[..., Tensor] | None:
    """Our operator for a module that is torch's GELU, if it is that."""
    if type(activation) is not nn.GELU or hooked(activation):
        return None
    return gelu_tanh if activation.approximate == "tanh" else gelu


def is_tanh(activation: Any) -> bool:
    """Whether a module is torch's GELU by the hyperbolic tangent, which a product of cuBLASLt has in its epilogue."""
    return gelu_of(activation) is gelu_tanh


__all__ = ["CHAIN", "both_projected", "gelu_of", "give_place", "side_by_side", "take_place"]
