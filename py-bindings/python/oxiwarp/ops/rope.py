"""Rotary position embedding: operators `rope` and `rope_pair`, public functions `rope`, `rope_1d` and `rope_3d`."""

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


def _check(q: Tensor, k: Tensor | None, how: Rotation) -> None:
    if how.cos is None:
        raise RuntimeError("rope: cos is missing")
    check_heads("rope", q, k, how)


def _fake(q: Tensor, *how: Any) -> Tensor:
    _check(q, None, Rotation(*how))
    return q.new_empty(q.shape)


def _fake_pair(q: Tensor, k: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    _check(q, k, Rotation(*how))
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
    """Autograd function that saves the tables. In its backward, the forward's kernel rotates by the negative angle."""

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
    """Rotate `q` and, if it is given, `k`. Autograd records the call if an input requires grad."""
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
    """Rotate queries and keys by tabulated angles: each pair `(a, b)` becomes `(a * cos - b * sin, b * cos + a * sin)`.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. Shape `[B, S, heads, D]`,
            `[B, heads, S, D]` with `heads_first`, or `[B, S, N]` with heads of `head_dim` columns. The last stride is
            1; all other strides are free. LTX-Video rotates `[B, S, N]` as one head.
        k (Tensor | None): the same batch, tokens, D, dtype and device as `q`; the number of heads may differ.
        cos (Tensor): float32 or the dtype of `q`. Shape `[S, R]`, `[B, S, R]` or `[B, S, heads, R]` (with
            `heads_first`, `[B, heads, S, R]`); B and heads may be 1. R is the number of rotated columns, or half of it
            with one entry per pair. Mochi passes `[S, heads, R]` tables as `cos[None]`. A complex64 table, as in Lumina
            and Qwen-Image, has R equal to half of the rotated columns and no `sin`.
        sin (Tensor | None): shape and dtype of `cos`.
        interleaved (bool): True: a pair is two adjacent columns. False: the two columns of a pair are half of the
            rotated width apart, as in `rotate_half` of transformers.
        rotary_dim (int | None): number of columns to rotate; the other columns are copied. Default: all.
        offset (int | None): index of the first rotated token, if the tables have fewer tokens than `q`. Tokens before
            and after the tables are copied, as the text tokens of CogVideoX and HunyuanVideo are. None: the tables must
            cover all tokens.
        mode (str): "exact" or "fast", see Exactness.
        heads_first (bool): `q` and `k` are `[B, heads, S, D]`.
        head_dim (int | None): columns of a head, for `q` of shape `[B, S, N]`. Default: one head of N columns.

    Returns:
        Contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: the rotated `q` and the rotated `k`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            a table requires grad.
        ValueError: `mode` is unknown, only one real table is given, or an integer argument is too small.
        TypeError: `q`, `k`, `cos` or `sin` is not a tensor, or an integer argument is not an integer.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: "exact" rounds where the eager modules do: once for float32 tables, and after each of the three
            operations for 16-bit tables, as in Llama. "fast" rounds once, as Cohere does. Products and sum are separate
            float32 operations, so the bits are those of `x * cos + rotated * sin` in torch. For complex tables, the
            bits are those of torch's CUDA kernel, which computes each sum with one fused multiply-add.
        Gradients: `q` and `k` have gradients. Tables have no gradient. The backward rotates by the negative angle. It
            assumes that both columns of a pair have the same angle. A second derivative is 0 if the incoming gradient
            is constant, and raises RuntimeError otherwise. Forward-mode AD raises RuntimeError.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv:2104.09864).

    Example:
        >>> q = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4)
        >>> oxiwarp.rope(q, None, torch.zeros(1, 2), torch.ones(1, 2))  # both pairs by 90 degrees
        tensor([[[[ 0.,  1., -2.,  0.]]]])
    """
    tensors_only("rope", q, k=k, cos=cos, sin=sin)
    if cos is None:
        raise TypeError("rope: cos is NoneType, expected a torch.Tensor")
    if sin is None and not cos.is_complex():
        raise ValueError(
            "rope: sin is None, expected a table like cos. The arguments are rope(q, k, cos, sin): without keys, "
            "pass k=None"
        )
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
    """Rotate queries and keys by their positions: the angle of pair `i` is `position * theta**(-2i / rotary_dim)`.

    The kernel computes the angles, so no tables are needed. It computes sine and cosine once for several heads of a
    token.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. Shape `[B, S, heads, D]`,
            `[B, heads, S, D]` with `heads_first`, or `[B, S, N]` with heads of `head_dim` columns. The last stride is
            1; all other strides are free.
        k (Tensor | None): the same batch, tokens, D, dtype and device as `q`; the number of heads may differ.
        theta (float): base of the frequencies; finite, greater than 0.
        positions (Tensor | None): shape `[S]` or `[B, S]`, integers or floats, converted to float32. Default: 0, 1, 2,
            and so on.
        inv_freq (Tensor | None): float32, shape `[rotary_dim / 2]`: frequencies that replace
            `theta**(-2i / rotary_dim)`, for example for scaled RoPE.
        interleaved (bool): True: a pair is two adjacent columns. False: the two columns of a pair are half of the
            rotated width apart, as in `rotate_half` of transformers.
        rotary_dim (int | None): number of columns to rotate; the other columns are copied. Default: all.
        heads_first (bool): `q` and `k` are `[B, heads, S, D]`.
        head_dim (int | None): columns of a head, for `q` of shape `[B, S, N]`. Default: one head of N columns.

    Returns:
        Contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: the rotated `q` and the rotated `k`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            `positions` or `inv_freq` requires grad. Messages begin with `rope`.
        ValueError: `theta` is not finite or not greater than 0, or an integer argument is too small.
        TypeError: A tensor argument is not a tensor, or a number has the wrong type.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Frequencies, angles, sine and cosine are float32, as in the eager modules, and the result is rounded
            once. Up to angles of 105,615 sine and cosine have the bits of torch's CUDA kernels. Their error is at most
            2^-23 up to angles of 10^6, and at most 1e-5 up to 6.5 * 10^6. Results for larger angles are wrong.
        Gradients: `q` and `k` have gradients. `positions` and `inv_freq` have no gradient. A second derivative is 0 if
            the incoming gradient is constant, and raises RuntimeError otherwise. Forward-mode AD raises RuntimeError.

    Source:
        The rotary embeddings of transformers' models; arXiv:2104.09864.

    Example:
        >>> q = torch.tensor([1.0, 0.0]).repeat(1, 3, 1, 1)  # three tokens, one head of two columns
        >>> oxiwarp.rope_1d(q)[0, :, 0]  # (cos(position), sin(position))
        tensor([[ 1.0000,  0.0000],
                [ 0.5403,  0.8415],
                [-0.4161,  0.9093]])
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
    """Rotate the tokens of a video by frame, row and column: pair `i` of an axis is rotated by
    `index * theta**(-2i / split)`.

    The tokens are in the order of a contiguous `[frames, height, width]` array.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. Shape `[B, S, heads, D]`,
            `[B, heads, S, D]` with `heads_first`, or `[B, S, N]` with heads of `head_dim` columns. The last stride is
            1; all other strides are free.
        k (Tensor | None): the same batch, tokens, D, dtype and device as `q`; the number of heads may differ.
        grid (tuple[int, int, int] | None): frames, height and width in tokens. Their product is S, or with `offset` at
            most `S - offset`. Optional if `coordinates` are given.
        splits (tuple[int, int, int] | None): how many columns of a head are rotated by the frame, the row and the
            column of a token. The three numbers are even, and their sum is D. The default is Wan's split:
            `2 * (D // 6)` columns each for row and column, and the remainder for the frame (44, 42, 42 for D = 128).
        theta (float): base of the frequencies; finite, greater than 0, and not 1 with `coordinates`.
        coordinates (Tensor | None): LTX-Video's scheme in place of `splits`: shape `[S, 3]` or `[B, S, 3]`, each number
            a fraction of the largest frame, row or column. `q` is then `[B, S, N]` without a head dimension. With
            `n = N // 6` frequencies per axis, pair `3 * i + axis` is rotated by
            `pi / 2 * theta**(i / (n - 1)) * (2 * coordinate[axis] - 1)`. The first `N % 6` columns are copied.
        interleaved (bool): True: a pair is two adjacent columns. False: the two columns of a pair are half of the
            rotated width apart, as in `rotate_half` of transformers.
        offset (int | None): index of the first rotated token; tokens before and after the grid are copied.
        mode (str): "exact" or "fast", as for `rope`.
        heads_first (bool): `q` and `k` are `[B, heads, S, D]`.
        head_dim (int | None): columns of a head, for `q` of shape `[B, S, N]`. Default: one head of N columns.

    Returns:
        Contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: the rotated `q` and the rotated `k`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Messages begin
            with `rope`.
        ValueError: `grid` does not match the tokens, or `splits` do not fit a head or are given with `coordinates`.
            Also raised for an unsupported `theta` or `mode`, and for an integer argument that is too small.
        TypeError: A tensor argument is not a tensor, or a number has the wrong type.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: torch's operators compute the tables: for `splits` from float64 angles, as Wan and Flux do, and for
            `coordinates` from float32 angles, as LTX-Video does. The rotation has the exactness of `rope`. The tables
            of the last few grids are cached.
        Gradients: `q` and `k` have gradients. `coordinates` have no gradient. A second derivative is 0 if the incoming
            gradient is constant, and raises RuntimeError otherwise. Forward-mode AD raises RuntimeError.

    Source:
        `WanRotaryPosEmbed` and `LTXVideoRotaryPosEmbed` of diffusers; arXiv:2104.09864.

    Example:
        >>> q = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]).repeat(1, 2, 1, 1)  # two tokens of one head
        >>> oxiwarp.rope_3d(q, grid=(2, 1, 1))[0, :, 0]  # the second token is in frame 1, row 0, column 0
        tensor([[1.0000, 0.0000, 1.0000, 0.0000, 1.0000, 0.0000],
                [0.5403, 0.8415, 1.0000, 0.0000, 1.0000, 0.0000]])
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
