"""Computes a parallel block, such as Flux's single-stream block, in which attention and feed-forward have the
same input.

The block computes `project(torch.cat([attention(x), activation(expand(x))], 2))`. The functions in this file
write the results of attention and activation directly into the concatenated tensor, or apply `project`
without a concatenated tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ....ops import gelu, gelu_tanh
from ....ops._register import FLOATS, PLAIN, define_in_place, may_write, needs_grad
from ....ops._roles import Role
from ...class_swap import RECIPE
from ..core.linear import LaterLinear, later
from ..core.modules import hooked
from ..core.recipe import FusedRecipe
from .feed_forward import gelu_product, in_epilogue, later_branch

CHAIN = "activation of the feed-forward, written next to the attention: {}"
"""A line of `Fusion.chains`, the fused steps that the report names. `{}` is the name of the operator."""

PLACE = "_oxiwarp_place"
"""Name of an attribute of the attention's input: the `Place` (memory) into which the attention writes its
result."""

CHUNK = torch.complex128
"""A dtype whose elements have 16 bytes. A view with this dtype makes torch copy 16 bytes at a time."""


def copy_chunks(y: Tensor, x: Tensor) -> None:
    """Compute `y.copy_(x)`, in chunks of 16 bytes if alignment and dtypes permit.

    torch copies a tensor that is not contiguous one element at a time. This function therefore copies views of the
    tensors with the dtype `complex128`, whose elements have 16 bytes.
    """
    if y.dtype == x.dtype and in_chunks(y) and in_chunks(x):
        y, x = y.view(CHUNK), x.view(CHUNK)
    y.copy_(x)


def in_chunks(x: Tensor) -> bool:
    """Return whether each row of `x` starts at a multiple of 16 bytes and has a multiple of 16 bytes.

    Return False for tensor subclasses, because they may have no memory address.
    """
    if type(x) is not Tensor or x.stride(-1) != 1:
        return False
    sizes = (x.shape[-1], *x.stride()[:-1], x.storage_offset())
    whole = all(size * x.element_size() % CHUNK.itemsize == 0 for size in sizes)
    return whole and x.data_ptr() % CHUNK.itemsize == 0


add_product = define_in_place(
    "add_product(Tensor(a!) y, Tensor a, Tensor b) -> ()", Tensor.addmm_, y=Role.OUTPUT, a=Role.ROWS, b=Role.FACTOR
)
copy_into = define_in_place("copy_into(Tensor(a!) y, Tensor x) -> ()", copy_chunks, y=Role.OUTPUT, x=Role.ROWS)


class Place:
    """A tensor `[B, S, columns]` for two results side by side: the attention's in the first columns, and the
    feed-forward's in the others.

    The tensor is allocated when the attention calls `columns` or `heads`. The number of columns is not known
    earlier, because a rank of tensor parallelism computes only some of the heads.
    """

    def __init__(self, projected: Tensor | LaterLinear, others: int) -> None:
        self.projected, self.others = projected, others
        self.both: Tensor | None = None
        self.first: Tensor | None = None

    def columns(self, count: int) -> Tensor:
        """Return the first `count` columns of the tensor, into which the attention is written. Allocate the
        tensor if necessary."""
        if self.first is None or self.first.shape[2] != count:
            batch, tokens, _ = self.projected.shape
            like = self.projected.x if isinstance(self.projected, LaterLinear) else self.projected
            self.both = like.new_empty(batch, tokens, count + self.others)
            self.first = self.both[..., :count]
        return self.first

    def heads(self, query: Tensor) -> Tensor | None:
        """Return the part of the concatenated tensor into which the attention writes its result, as a view with
        the shape of `query`: `[B, S, H, D]`.

        Return None if `query` and the input of the feed-forward's activation differ in dtype, batch size or
        number of tokens.
        """
        if query.dtype != self.projected.dtype or query.shape[:2] != self.projected.shape[:2]:
            return None
        return self.columns(query.shape[2] * query.shape[3]).unflatten(2, query.shape[2:])


Attend = Callable[[Place | None], Tensor]
"""A function that computes an attention `[B, S, columns]`.

If its argument is a `Place`, it may write the result there, and then returns `Place.first`."""


def both_projected(
    x: Tensor, attend: Attend, expand: Any, activation: Any, project: Any, how: FusedRecipe
) -> Tensor | LaterLinear:
    """Compute `project(torch.cat([attention, activation(expand(x))], 2))`. The function `attend` returns `attention`.
    The result may be a placeholder for the linear `project`, which `add_branch` computes together with the residual
    sum.

    In mode "fast", if `expand` and `project` are unmodified linears and `activation` is a tanh GELU, no concatenation
    is made. One matrix multiplication then computes `expand` and the GELU. `project` becomes the sum of two matrix
    multiplications, one for the attention and one for the feed-forward.
    """
    op = gelu_of(activation)
    product = None if op is None else later(how, op.__name__, expand, x)
    if op is not None and product is not None:
        return later_branch(how, project, side_by_side(attend, product, how, op))
    if how.mode == "fast" and in_epilogue(expand, x) and is_tanh(activation) and in_epilogue(project, x):
        inner = gelu_product(expand, x)
        attended = attend(None)
        if type(attended) in PLAIN and attended.dtype == x.dtype and not needs_grad(attended):
            return of_both(project, attended, inner)
        return project(torch.cat([attended, inner], dim=2))
    inner = expand(x)
    if op is None or not writes_beside(inner):
        inner = activation(inner)
        return project(torch.cat([attend(None), inner], dim=2))
    return later_branch(how, project, side_by_side(attend, inner, how, op))


def of_both(project: nn.Linear, attended: Tensor, inner: Tensor) -> Tensor:
    """Compute `project(torch.cat([attended, inner], -1))` without the concatenation.

    The weight of `project` has columns for `attended` and columns for `inner`. First, `attended` is
    multiplied by the first columns, the bias is added, and the sum is rounded. Then `inner` is multiplied by
    the other columns, and this product is added.
    """
    weight, first = project.weight.t(), attended.shape[-1]
    y = torch.addmm(project.bias, attended.reshape(-1, first), weight[:first])
    add_product(y, inner.reshape(-1, inner.shape[-1]), weight[first:])
    return y.view(*attended.shape[:-1], -1)


def writes_beside(projected: Tensor) -> bool:
    """Return whether an activation operator with the input `projected` may write its result into a slice of a
    larger tensor.

    Return False under autograd and torch.func transforms, which need a `torch.cat` call.
    """
    if type(projected) not in PLAIN or projected.dtype not in FLOATS or projected.stride(-1) != 1:
        return False
    return not needs_grad(projected) and may_write(projected)


def side_by_side(
    attend: Attend, projected: Tensor | LaterLinear, how: FusedRecipe, op: Callable[..., Tensor]
) -> Tensor:
    """Compute `torch.cat([attention, op(projected)], 2)`. The function `attend` returns `attention`.

    `op` is an activation operator. `op` and `oxiwarp.attention` write directly into the concatenated tensor. If
    torch computes the attention, the attention is copied into it.
    """
    place = Place(projected, projected.shape[2])
    attended = attend(place)
    if attended is not place.first:
        same = type(attended) in PLAIN and attended.dtype == projected.dtype and not needs_grad(attended)
        if not same or attended.shape[:2] != projected.shape[:2]:
            return torch.cat([attended, activated(projected, op, how)], dim=2)
        copy_into(place.columns(attended.shape[2]), attended)
    both: Any = place.both
    activated(projected, op, how, both[..., both.shape[2] - place.others :])
    return both


def activated(
    projected: Tensor | LaterLinear, op: Callable[..., Tensor], how: FusedRecipe, out: Tensor | None = None
) -> Tensor:
    """Apply the activation operator `op` to the result of a linear, or to a placeholder for it."""
    if isinstance(projected, LaterLinear):
        return projected.activated(op, out)
    return op(projected, mode=how.mode, out=out)


def give_place(attn: Any, x: Tensor, out: Place | None) -> None:
    """Store `out` as an attribute of `x`. The attention with the input `x` then writes its result into `out`.

    Store `out` only if `patch` replaced the processor of `attn` and `attn` has no hooks. A hook could change
    the attention's result, or keep a reference to it.
    """
    if out is not None and RECIPE in getattr(attn.__dict__.get("processor"), "__dict__", ()) and not hooked(attn):
        setattr(x, PLACE, out)


def take_place(x: Tensor) -> Place | None:
    """Return the `Place` (memory) that is stored as an attribute of `x`, or None. The attention with the input `x` must
    write its result there. Remove the attribute from `x`.

    A second attention with the same input then allocates new memory for its result.
    """
    out = getattr(x, PLACE, None)
    if out is not None:
        setattr(x, PLACE, None)
    return out


def gelu_of(activation: Any) -> Callable[..., Tensor] | None:
    """If `activation` is an `nn.GELU` without hooks, return the oxiwarp operator that computes it. Otherwise
    return None."""
    if type(activation) is not nn.GELU or hooked(activation):
        return None
    return gelu_tanh if activation.approximate == "tanh" else gelu


def is_tanh(activation: Any) -> bool:
    """Return whether `activation` is torch's GELU with the tanh approximation. cuBLASLt can compute this GELU
    in the epilogue of a matrix multiplication."""
    return gelu_of(activation) is gelu_tanh


__all__ = ["CHAIN", "Place", "both_projected", "gelu_of", "give_place", "side_by_side", "take_place", "writes_beside"]
