"""Shared code of the fusions for MMDiT blocks, which attend over text and image tokens together. Flux and
HunyuanVideo have such blocks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ....ops._register import define_in_place, may_write, needs_grad
from ....ops._roles import Role
from ...class_swap import base_of
from ..core.fusion import same_dtype
from ..core.modules import is_exactly, is_plain
from ..core.operands import as_rows
from ..core.ops import gated_residual, gated_residual_ada_norm, qk_norm_rope
from ..core.recipe import FusedRecipe
from .feed_forward import add_branch, in_epilogue, later_branch

# A slice of a result must start at a multiple of this many 16-bit elements. cuBLASLt then chooses the same
# kernel as for a separate tensor.
ALIGNED = 128
PART = "_oxiwarp_part"
"""Name of an attribute of views under torch.compile. Its value is the tensor that was split, and the index of
the view in the split."""


class Stream(NamedTuple):
    """Query and key `[B, S, heads, D]` of the text tokens or of the image tokens, with the norms and rotary
    tables for query and key."""

    query: Tensor
    key: Tensor
    norm_q: Any = None
    norm_k: Any = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    offset: int | None = None
    """Index of the first rotated token, if `cos` and `sin` have rows for only some of the tokens. None: all
    tokens."""


def queries_and_keys(streams: Sequence[Stream], how: FusedRecipe, norm: str) -> tuple[Tensor, Tensor]:
    """Return two tensors: the queries and the keys of all streams (text, image), normalised, rotated and
    concatenated along the tokens.

    The kernel of each stream writes directly into a slice of the result, so that no `torch.cat` is necessary. Under
    autograd and torch.func transforms, the result of each kernel is a separate tensor, and `torch.cat` concatenates
    these tensors.
    """
    if len(streams) == 1:
        return normed(streams[0], how, norm)
    dim = 1
    recorded = torch.is_grad_enabled() and any(wants_grad(stream) for stream in streams)
    if recorded or not may_write(streams[0].query):
        both = [normed(stream, how, norm) for stream in streams]
        return torch.cat([query for query, _ in both], dim), torch.cat([key for _, key in both], dim)
    sizes = [stream.query.shape[dim] for stream in streams]
    shape = list(streams[0].query.shape)
    shape[dim] = sum(sizes)
    query, key = streams[0].query.new_empty(shape), streams[0].key.new_empty(shape)
    for stream, *out in zip(streams, query.split(sizes, dim), key.split(sizes, dim), strict=True):
        normed(stream, how, norm, out)
    return query, key


def normed(stream: Stream, how: FusedRecipe, norm: str, out: Any = None) -> tuple[Tensor, Tensor]:
    """Return the normalised and rotated query and key of one stream (text or image). If `out` (a query and a
    key tensor) is given, write them there."""
    query, key, norm_q, norm_k, cos, sin, offset = stream
    norms = (
        {"norm": None}
        if norm_q is None
        else {"norm": norm, "q_weight": norm_q.weight, "k_weight": norm_k.weight, "eps": norm_q.eps}
    )
    found: tuple[Tensor, Tensor] = qk_norm_rope(query, key, cos, sin, **norms, offset=offset, mode=how.mode, out=out)
    return found


def wants_grad(stream: Stream) -> bool:
    """Return whether the query, the key or a norm's weight of this stream (text or image) requires a
    gradient."""
    norms = [part.weight for part in (stream.norm_q, stream.norm_k) if part is not None]
    return needs_grad(stream.query, stream.key, *norms)


def norms_fit(x: Tensor, cls: type[nn.Module], *pairs: tuple[Any, Any]) -> bool:
    """Return whether the kernel `qk_norm_rope` can compute each pair of query norm and key norm.

    Each norm must have class `cls`, no hooks, no bias, and a weight in the dtype of `x` or none. Both norms
    of a pair must have the same eps.
    """
    for pair in pairs:
        for part in pair:
            if not (is_exactly(part, cls) and is_plain(part, x.device)) or part.eps is None or part.eps != pair[0].eps:
                return False
            if part._parameters.get("bias") is not None or not same_dtype(x, part.weight):
                return False
    return True


def tables_fit(tables: Any, tokens: int, columns: int, x: Tensor) -> bool:
    """Return whether `tables` is None, or has two float32 tensors `[tokens, columns]` on the device of `x`:
    rotary cosines and sines."""
    return tables is None or (
        len(tables) == 2
        and all(
            table.dtype == torch.float32 and table.shape == (tokens, columns) and table.device == x.device
            for table in tables
        )
    )


def after_attention(
    x: Tensor,
    attended: Tensor,
    modulation: Sequence[Tensor],
    norm: Any,
    feed_forward: Any,
    how: FusedRecipe,
    clip: bool = False,
    index: Tensor | None = None,
) -> Tensor:
    """Run the part of a block after the attention, for text tokens or image tokens `x`.

    Multiply `attended`, the result of the attention, by its gate, and add it to `x`. Normalise and modulate
    the sum, and apply the feed-forward. Multiply the result of the feed-forward by its gate, and add it to
    the sum.

    `modulation` has the gate of the attention, then shift, scale and gate of the feed-forward. Each tensor
    has shape `[B, D]` or `[B, S, D]`. With an `index` of shape `[B, S]`, each tensor has shape `[R, D]`, and the
    index chooses a row for each token.
    """
    one = index is None
    gate_msa, shift, scale, gate = (part.unsqueeze(1) if one and part.dim() == 2 else part for part in modulation)
    options: Any = {"eps": norm.eps, "mode": how.mode, "index": index}
    normed, x = gated_residual_ada_norm(as_rows(x), attended, gate_msa, scale, shift, **options)
    if index is None:
        return add_branch(how, x, later_branch(how, feed_forward, normed), gate, clip=clip)
    return gated_residual(x, feed_forward(normed), gate, index=index, clip=clip, mode=how.mode)


def streams_fit(temb: Tensor, *streams: Tensor) -> bool:
    """Return whether all token tensors `streams` have shape `[B, S, D]`, and the dtype and device of the time
    embedding `temb`, which must have two dimensions."""
    return temb.dim() == 2 and all(x.dim() == 3 and x.dtype == temb.dtype and x.device == temb.device for x in streams)


def products(parts: Sequence[tuple[Any, Tensor]]) -> Tensor | None:
    """Compute `torch.cat([linear(x) for linear, x in parts], 1)` without a copy. Return None if the modules
    or tensors do not permit this.

    Each matrix multiplication writes directly into its slice of the result. A slice must start at a multiple of
    `ALIGNED` elements. With this alignment, cuBLASLt chooses the same kernel as for a separate linear, so the result
    has the same bits.
    """
    linear, x = parts[0]
    sizes, width = [x.shape[1] for _, x in parts], linear.out_features if type(linear) is nn.Linear else 0
    if x.shape[0] != 1 or width == 0 or any(size * width % ALIGNED for size in sizes[:-1]):
        return None
    if not all(in_epilogue(linear, x) for linear, x in parts):
        return None
    both = x.new_empty(1, sum(sizes), width)
    for (linear, x), out in zip(parts, both[0].split(sizes), strict=True):
        write_product(linear.bias, x[0], linear.weight.t(), out)
    return both


def into(bias: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write `a @ b + bias` to `out`."""
    torch.addmm(bias, a, b, out=out)


write_product = define_in_place(
    "write_product(Tensor bias, Tensor a, Tensor b, Tensor(a!) out) -> ()",
    into,
    bias=Role.VECTOR,
    a=Role.ROWS,
    b=Role.FACTOR,
    out=Role.OUTPUT,
)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Compute `torch.cat((first, second), 1)`, without a copy if `apart` split `first` and `second` from one
    tensor.

    Each single-stream block takes and returns text and image tokens as two tensors, but computes on one tensor. It
    therefore concatenates two tensors that the previous block has split from one tensor.
    """
    if torch.compiler.is_compiling():
        whole, other = getattr(first, PART, None), getattr(second, PART, None)
        if whole is not None and other is not None and whole[0] is other[0] and (whole[1], other[1]) == (0, 1):
            return whole[0]
        return torch.cat((first, second), 1)
    batch, tokens, columns = first.shape
    both = tokens + second.shape[1]
    if (
        not needs_grad(first, second)
        and may_write(first)
        and may_write(second)
        and first.stride() == second.stride() == (both * columns, columns, 1)
        and second.storage_offset() == first.storage_offset() + tokens * columns
        and second.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    ):
        return first.as_strided((batch, both, columns), first.stride())
    return torch.cat((first, second), 1)


def apart(both: Tensor, tokens: int | None) -> tuple[Tensor, Tensor]:
    """Split `both` `[B, S, D]` into two views: the first `tokens` tokens, and the remaining tokens.

    Under torch.compile, each view gets the attribute `PART`, which refers to `both`, because `joined` cannot
    compare the addresses of the views.
    """
    parts = both[:, :tokens], both[:, tokens:]
    if torch.compiler.is_compiling():
        for at, part in enumerate(parts):
            setattr(part, PART, (both, at))
    return parts


def affine_norm(block: Any, *names: str) -> str | None:
    """Return the reason not to replace `block`. Return None if its submodules with these `names` are
    LayerNorms without weight and bias."""
    for name in names:
        part = getattr(block, name)
        if base_of(part) is not nn.LayerNorm or part.weight is not None or part.bias is not None:
            return f"its {name} is not torch's LayerNorm without weight and bias"
    return None


__all__ = [
    "Stream",
    "affine_norm",
    "after_attention",
    "apart",
    "as_rows",
    "joined",
    "norms_fit",
    "products",
    "queries_and_keys",
    "streams_fit",
    "tables_fit",
]
