"""Rotary position embedding: `torch.ops.oxiwarp.rope` and `rope_pair`; the public `rope`, `rope_1d`, `rope_3d`."""

from typing import Any, overload

import torch
from torch import Tensor

from ._checks.heads import (
    FREQUENCIES,
    ROTATION,
    TABLE_ROLES,
    Rotation,
    check_head_dim,
    check_heads,
    check_numbers,
    readable,
    rotation,
    tables_want_grad,
    tensors_only,
)
from ._checks.positions import (
    NUMBERS,
    check_coordinates,
    check_inv_freq,
    check_theta,
    checked_grid,
    checked_splits,
    sizes,
)
from ._function import Function, apply
from ._once_differentiable import once
from ._register import define, explain, needs_grad
from ._roles import Role
from ._rope_tables import frequencies, grid_tables, ltx_tables


def _fake(q: Tensor, *how: Any) -> Tensor:
    check_heads("rope", q, None, Rotation(*how))
    return q.new_empty(q.shape)


def _fake_pair(q: Tensor, k: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    check_heads("rope", q, k, Rotation(*how))
    return q.new_empty(q.shape), k.new_empty(k.shape)


op = define(f"rope(Tensor q, {ROTATION}) -> Tensor", _fake, q=Role.HEADS, **TABLE_ROLES)
op_pair = define(
    f"rope_pair(Tensor q, Tensor k, {ROTATION}) -> (Tensor, Tensor)",
    _fake_pair,
    q=Role.HEADS,
    k=Role.HEADS,
    **TABLE_ROLES,
)
ROLES = {"positions": Role.POSITIONS, "inv_freq": Role.FREQUENCIES, "coordinates": Role.POSITIONS}


class _Rope(Function):
    """The gradient of a rotation is the rotation by the negative angle, by the same kernel."""

    @staticmethod
    def forward(q: Tensor, k: Tensor | None, *how: Any) -> Any:
        return op(q, *how) if k is None else op_pair(q, k, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        how = Rotation(*inputs[2:])
        ctx.save_for_backward(how.cos, how.sin)
        ctx.how = how._replace(cos=None, sin=None, conjugate=not how.conjugate)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Any) -> Any:
        cos, sin = ctx.saved_tensors
        how = ctx.how._replace(cos=cos, sin=sin)
        back = [None if grad is None else op(readable(grad), *how) for grad in grads]
        return (*back, *[None] * (2 + len(how) - len(back)))


def call(q: Tensor, k: Tensor | None, how: Rotation) -> Any:
    """The rotation of `q`, or of both, with its gradient where one is wanted."""
    tables_want_grad("rope", how.cos, how.sin)
    try:
        if needs_grad(q, k):
            return apply(_Rope, q, k, *how)
        return op(q, *how) if k is None else op_pair(q, k, *how)
    except RuntimeError as error:
        names = ("frequencies", "positions") if how.angles == FREQUENCIES else ("cos", "sin")
        tables = dict(zip(names, (how.cos, how.sin), strict=True))
        explain(error, "rope", 1 if k is None else 2, q, "q", k=k, **tables)
        raise


@overload
def rope(
    q: Tensor, k: None, cos: Tensor, sin: Tensor | None = None, *, interleaved: bool = True,
    rotary_dim: int | None = None, offset: int | None = None, mode: str = "exact", heads_first: bool = False,
    head_dim: int | None = None,
) -> Tensor: ...  # fmt: skip
@overload
def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None = None, *, interleaved: bool = True,
    rotary_dim: int | None = None, offset: int | None = None, mode: str = "exact", heads_first: bool = False,
    head_dim: int | None = None,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor | None = None,
    *,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    offset: int | None = None,
    mode: str = "exact",
    heads_first: bool = False,
    head_dim: int | None = None,
) -> Any:
    """Rotary position embedding from tables: each pair `(a, b)` of columns becomes `(a cos - b sin, b cos + a sin)`.

    Args:
        q: float32, float16 or bfloat16, `[B, S, heads, D]`, or `[B, heads, S, D]` with `heads_first`, or `[B, S, N]`:
            heads of `head_dim` columns side by side, or one head (LTX-Video rotates before it splits heads). The last
            dimension has stride 1, the others any (slices of a fused projection, transposed views).
        k: the same with any number of heads, or None.
        cos, sin: float32 or `q`'s dtype, `[S, R]`, `[B, S, R]` or, with dimensions as those of `q`, `[B, S, heads, R]`,
            where B and heads may be 1. R is the number of rotated columns or, with an entry for each pair, half of it.
            Or `cos` complex64 with R half of them, and no `sin` (Lumina, Qwen-Image). Mochi's `[S, heads, R]` is
            `cos[None]`. Both columns of a pair have the same angle; otherwise the gradient is not right.
        interleaved: pairs are neighbouring columns; False: columns half the rotated width apart (`rotate_half`).
        rotary_dim: columns that are rotated, the others are copied; None: all.
        offset: the first rotated token, where the tables have fewer tokens than `q`; those around pass (text tokens in
            CogVideoX and HunyuanVideo). None: the tables must have all tokens.
        mode: "exact" rounds where the eager modules do: once for tables in float32, after each of the three operations
            for tables in a 16-bit dtype (Llama). "fast" rounds once (which is also what Cohere does).
        heads_first, head_dim: the order of dimensions, and the columns of a head where heads are not a dimension.

    Returns:
        A contiguous tensor of `q`'s shape and dtype; with `k` a pair of them, from one launch.

    Products and sum are separate float32 operations, so that the bits are those of `x * cos + rotated * sin` in torch;
    for complex tables they are those of torch's CUDA kernel, which fuses one product of each sum.
    Differentiable with respect to `q` and `k`, not to the tables.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came.
        ValueError: for another `mode`, or numbers out of range.
        TypeError: for an argument that is no tensor.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv:2104.09864).
    """
    tensors_only("rope", q, k=k, cos=cos, sin=sin)
    if cos is None:
        raise TypeError("rope: cos is NoneType, expected a torch.Tensor")
    if head_dim is not None:
        check_head_dim("rope", q, head_dim)
    how = rotation(
        "rope",
        cos,
        sin,
        interleaved=interleaved,
        rotary_dim=rotary_dim,
        offset=offset,
        mode=mode,
        heads_first=heads_first,
        head_dim=head_dim,
    )
    return call(q, k, how)


def rope_1d(
    q: Tensor,
    k: Tensor | None = None,
    *,
    theta: float = 10000.0,
    positions: Tensor | None = None,
    inv_freq: Tensor | None = None,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    heads_first: bool = False,
    head_dim: int | None = None,
) -> Any:
    """Rotary position embedding of a sequence, with angles made in the kernel: position times `theta**(-2i/D)`.

    There are no tables: the kernel reads D/2 frequencies and computes sine and cosine once for several heads of a
    token. Frequency, angle and both functions are float32 as in the eager modules. Sine and cosine are off by at most
    2^-23 for angles up to 10^6, and have the bits of torch's CUDA kernels up to 105,615. The error is at most 1e-5
    up to 6.5 * 10^6. Results for larger angles are wrong.

    Args:
        q, k, interleaved, rotary_dim, heads_first, head_dim: as for `rope`.
        theta: the base of the frequencies.
        positions: `[S]` or `[B, S]`, integers or floats (made float32); None: tokens count from 0.
        inv_freq: float32 `[rotary_dim / 2]`, instead of the frequencies of `theta` (scaled RoPE).

    Returns, Raises: as `rope`; ValueError for a theta that is not finite and above 0.
    """
    tensors_only("rope", q, k=k, positions=positions, inv_freq=inv_freq)
    check_numbers("rope", rotary_dim, head_dim, None)
    if not isinstance(theta, NUMBERS):
        check_theta(theta)
    sizes(q, heads_first)
    if head_dim is not None:
        check_head_dim("rope", q, head_dim)
    columns = rotary_dim or head_dim or q.shape[-1]
    if inv_freq is None:
        inv_freq = frequencies(columns, theta, q.device)
    else:
        check_inv_freq(inv_freq, columns)
    if positions is not None:
        if positions.is_complex() or positions.dtype is torch.bool:
            raise RuntimeError(f"rope: positions is {positions.dtype}, expected integers or floats")
        positions = positions.to(torch.float32)
    how = rotation(
        "rope",
        inv_freq,
        positions,
        interleaved=interleaved,
        rotary_dim=rotary_dim,
        offset=None,
        mode="exact",
        heads_first=heads_first,
        head_dim=head_dim,
        angles=FREQUENCIES,
    )
    return call(q, k, how)


def rope_3d(
    q: Tensor,
    k: Tensor | None = None,
    *,
    grid: tuple[int, int, int] | None = None,
    splits: tuple[int, int, int] | None = None,
    theta: float = 10000.0,
    coordinates: Tensor | None = None,
    interleaved: bool = True,
    offset: int | None = None,
    mode: str = "exact",
    heads_first: bool = False,
    head_dim: int | None = None,
) -> Any:
    """Rotary position embedding of a video's tokens, `frames * height * width` of them in that order.

    Args:
        q, k, interleaved, offset, mode, heads_first, head_dim: as for `rope`.
        grid: frames, height and width, in tokens: all of them, or those from `offset` on. May be left out with
            `coordinates`.
        splits: columns of a head that turn by the frame, the row and the column of a token; their sum is a head's.
            None: Wan's, rows and columns `2 * (D // 6)` each and frames the rest (44, 42, 42 of 128). Each axis has
            frequencies `theta**(-2i/split)`.
        theta: the base of the frequencies.
        coordinates: `[S, 3]` or `[B, S, 3]`, fractions of the largest frame, row and column: LTX-Video's scheme in
            place of `splits`, for `q` of shape `[B, S, N]` before heads are split. Frequencies from pi/2 to
            pi/2 * theta, those of the axes in turn, turn by `2 * coordinate - 1`; the first `N % 6` columns pass.

    Returns, Raises: as `rope`; ValueError for a grid that has not as many tokens as `q`, splits that do not fit or are
    given with coordinates, or a theta that is not finite and above 0 (nor 1, with coordinates).

    The tables are made by torch (angles in float64 for `splits`, as Wan and Flux do; float32 for LTX-Video's), and kept
    for the last few calls. Making them in the kernel would save little: float32 tables with an entry a pair are
    `4 * S * D` bytes, queries and keys in bfloat16 `8 * S * heads * D` read and written, so 2 % for 24 heads, and every
    layer shares them.
    """
    tensors_only("rope", q, k=k, coordinates=coordinates)
    check_numbers("rope", None, head_dim, offset)
    if not isinstance(theta, NUMBERS):
        check_theta(theta)
    _, tokens = sizes(q, heads_first)
    if head_dim is not None:
        check_head_dim("rope", q, head_dim)
    dim = head_dim or q.shape[-1]
    if grid is not None or coordinates is None:
        grid = checked_grid(grid, tokens, offset)
    if coordinates is not None:
        check_coordinates(coordinates, q, heads_first, offset, splits)
        cos, sin = ltx_tables(coordinates, dim, theta)
    else:
        cos, sin = grid_tables(grid, checked_splits(splits, dim), theta, q.device)
    return rope(
        q, k, cos, sin, interleaved=interleaved, offset=offset, mode=mode, heads_first=heads_first, head_dim=head_dim
    )


__all__ = ["rope", "rope_1d", "rope_3d"]
