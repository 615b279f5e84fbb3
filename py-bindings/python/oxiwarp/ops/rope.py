"""Rotary position embedding: the operators `rope` and `rope_pair`, and the public functions `rope`, `rope_1d`
and `rope_3d`.
"""

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
    outputs,
    readable,
    rotation,
    tables_want_grad,
    tensors_only,
    transposed,
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
from ._register import define, explain, needs_grad, write
from ._roles import Role
from ._rope_tables import frequencies, grid_tables, ltx_tables


def _check(q: Tensor, k: Tensor | None, how: Rotation, **outs: Tensor | None) -> None:
    if how.cos is None:
        raise RuntimeError("rope: cos is missing")
    check_heads("rope", q, k, how, **outs)


def _fake(q: Tensor, *how: Any) -> Tensor:
    _check(q, None, Rotation(*how))
    return q.new_empty(q.shape)


def _fake_pair(q: Tensor, k: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    _check(q, k, Rotation(*how))
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _fake_out(q: Tensor, k: Tensor | None, *args: Any) -> None:
    *how, q_out, k_out = args
    _check(q, k, Rotation(*how), q_out=q_out, k_out=k_out)


op = define(f"rope(Tensor q, {ROTATION}) -> Tensor", _fake, q=Role.HEADS, **TABLE_ROLES)
op_pair = define(
    f"rope_pair(Tensor q, Tensor k, {ROTATION}) -> (Tensor, Tensor)",
    _fake_pair,
    q=Role.HEADS,
    k=Role.HEADS,
    **TABLE_ROLES,
)
# `q_out` and `k_out` may be the tensors `q` and `k`. The kernel reads both columns of a pair before it writes
# them.
op_out = define(
    f"rope_out(Tensor q, Tensor? k, {ROTATION}, Tensor(a!) q_out, Tensor(b!)? k_out) -> ()",
    _fake_out,
    q=Role.HEADS,
    k=Role.HEADS,
    **TABLE_ROLES,
    q_out=Role.OUTPUT,
    k_out=Role.OUTPUT,
)
ROLES = {
    "rope_1d.positions": Role.POSITIONS,
    "inv_freq": Role.FREQUENCIES,
    "coordinates": Role.POSITIONS,
    "out": Role.OUTPUT,
}


class _Rope(Function):
    """Autograd function that saves `cos` and `sin` (tables, or frequencies and positions), and the positions that
    choose the rows of tables.

    The backward calls the kernel of the forward with the incoming gradients, and rotates them by the negative angles.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor | None, *how: Any) -> Any:
        return op(q, *how) if k is None else op_pair(q, k, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        how = Rotation(*inputs[2:])
        ctx.save_for_backward(how.cos, how.sin, how.positions)
        ctx.how = how._replace(cos=None, sin=None, positions=None)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Any) -> Any:
        cos, sin, positions = ctx.saved_tensors
        how = ctx.how._replace(cos=cos, sin=sin, positions=positions)
        how = transposed(how, next(grad for grad in grads if grad is not None))
        back = [None if grad is None else op(readable(grad), *how) for grad in grads]
        return (*back, *[None] * (2 + len(how) - len(back)))


def call(q: Tensor, k: Tensor | None, how: Rotation, out: Any = None) -> Any:
    """Rotate `q`, and also `k` if it is not None. Write the results to `out` if it is not None.

    If `q` or `k` requires grad, autograd records the call. Such a call raises RuntimeError if `out` is not None.
    """
    tables_want_grad("rope", how.cos, how.sin)
    try:
        if out is not None:
            write("rope", op_out, (q, k, *how), outputs("rope", k, out), needs_grad(q, k))
            return out
        if needs_grad(q, k):
            return apply(_Rope, q, k, *how)
        return op(q, *how) if k is None else op_pair(q, k, *how)
    except RuntimeError as error:
        names = ("frequencies", "positions") if how.angles == FREQUENCIES else ("cos", "sin")
        tables = dict(zip(names, (how.cos, how.sin), strict=True))
        if how.positions is not None:
            tables["positions"] = how.positions
        explain(error, "rope", 1 if k is None else 2, q, "q", k=k, **tables)
        raise


@overload
def rope(
    q: Tensor, k: None, cos: Tensor, sin: Tensor | None = None, *, interleaved: bool = True,
    rotary_dim: int | None = None, offset: int | None = None, positions: Tensor | None = None, mode: str = "exact",
    heads_first: bool = False, head_dim: int | None = None, out: Tensor | tuple[Tensor] | None = None,
) -> Tensor: ...  # fmt: skip
@overload
def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None = None, *, interleaved: bool = True,
    rotary_dim: int | None = None, offset: int | None = None, positions: Tensor | None = None, mode: str = "exact",
    heads_first: bool = False, head_dim: int | None = None, out: tuple[Tensor, Tensor] | None = None,
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
    positions: Tensor | None = None,
    mode: str = "exact",
    heads_first: bool = False,
    head_dim: int | None = None,
    out: Any = None,
) -> Any:
    """Rotate queries and keys by angles from tables: a pair `(a, b)` becomes
    `(a * cos - b * sin, b * cos + a * sin)`.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. The shape is
            `[B, S, heads, D]`, or `[B, heads, S, D]` with `heads_first`. It may also be `[B, S, N]`, where N
            is the number of heads times `head_dim`. The strides are arbitrary. If the last stride is not 1, a
            contiguous copy is made first.
            For example, LTX-Video rotates tensors of shape `[B, S, N]` as one head of N columns.
        k (Tensor | None): keys, with the same batch size, number of tokens, D, dtype and device as `q`. The
            number of heads may differ.
        cos (Tensor): float32 or the dtype of `q`. Shape `[S, R]`, `[B, S, R]` or `[B, S, heads, R]` (with
            `heads_first`, `[B, heads, S, R]`). The dimensions B and heads may be 1. R is the number of
            rotated columns, or half of this number if the table has one entry per pair. Pass a table of shape
            `[S, heads, R]`, as in Mochi, as `cos[None]`. Alternatively, `cos` is a complex64 table with one
            entry per pair, as in Lumina and Qwen-Image. In this case, `sin` is None.
        sin (Tensor | None): table of sines, with the shape and dtype of `cos`.
        interleaved (bool): if True, columns `2 * i` and `2 * i + 1` form a pair. If False, columns `i` and `i + n / 2`
            form a pair, where n is the number of rotated columns, as in `rotate_half` of transformers.
        rotary_dim (int | None): number of columns to rotate; the other columns are copied. Default: all.
        offset (int | None): index of the first rotated token, if the tables have fewer tokens than `q`. Tokens before
            and after these tokens are copied, for example the text tokens of CogVideoX and HunyuanVideo. If `offset` is
            None, the tables must have all tokens of `q`.
        positions (Tensor | None): int64 or int32, shape `[S]` or `[B, S]`, with any strides: for each token, the row of
            the tables. `cos` and `sin` then have the shape `[M, R]`, with at least one row. A negative position, or M
            or more, names row M - 1, and raises no error. For positions from 0 to M - 1, the result is that of the
            tables `cos[positions]` and `sin[positions]`. With `offset`, there is one position for each rotated token.
        mode (str): "exact" or "fast". The section "Exactness" describes both.
        heads_first (bool): if True, `q` and `k` have shape `[B, heads, S, D]`.
        head_dim (int | None): number of columns per head, if `q` has shape `[B, S, N]`. Default: N, which
            means one head.
        out (Tensor | tuple | None): tensor to which the result is written, with the shape and dtype of `q`. If `k` is
            given, `out` is a pair of tensors: one with the shape of `q` and one with the shape of `k`. To rotate in
            place, pass `q` and `k` themselves. Otherwise, the tensors must not overlap an input.

    Returns:
        The rotated `q`: a contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: the rotated
        `q`, and the rotated `k` with the shape and dtype of `k`. If `out` is given, the function returns `out`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            a table requires grad, or if `out` is given and an input requires grad.
        ValueError: `mode` is unknown, `sin` is missing for a real table `cos`, an integer argument is too
            small, or `out` has the wrong number of tensors.
        TypeError: `q`, `k`, `cos` or `sin` is not a tensor, or an integer argument is not an integer.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Let `rotated` be `x` with each pair `(a, b)` replaced by `(-b, a)`, such as `rotate_half(x)`.
            `mode="exact"` rounds at the same points as eager models. For float32 tables, it rounds only the result. For
            16-bit tables, as in Llama, it rounds `x * cos`, `rotated * sin` and their sum. `mode="fast"` always rounds
            only the result, as Cohere's model does. For real tables, the kernel computes the products and the sum as
            separate float32 operations, without fused multiply-add. The result is therefore bitwise equal to that of
            `x * cos + rotated * sin` in torch. For complex tables, the result is bitwise equal to the complex product
            of torch's CUDA kernel, which computes each sum with one fused multiply-add.
        Gradients: `q` and `k` have gradients. Tables have no gradient. The backward rotates the incoming gradient by
            the negative angles. The gradients of `q` and `k` do not depend on the values of `q` and `k`. A second
            derivative is therefore 0, if the incoming gradient is a constant, as after `y.sum()`. If the incoming
            gradient requires grad, a second derivative raises RuntimeError. Forward-mode AD raises RuntimeError.

    Source:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv:2104.09864).

    Example:
        >>> q = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4)
        >>> oxiwarp.rope(q, None, torch.zeros(1, 2), torch.ones(1, 2))  # both pairs by 90 degrees
        tensor([[[[ 0.,  1., -2.,  0.]]]])
    """
    tensors_only("rope", q, k=k, cos=cos, sin=sin, positions=positions)
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
        positions=positions,
    )
    return call(q, k, how, out)


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
    """Rotate queries and keys by angles that depend on the token position: pair `i` has the angle
    `position * theta**(-2i / rotary_dim)`.

    The kernel computes the angles, so no tables are needed. It computes the sine and cosine of each angle once for
    several heads of the token.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. The shape is
            `[B, S, heads, D]`, or `[B, heads, S, D]` with `heads_first`. It may also be `[B, S, N]`, where N
            is the number of heads times `head_dim`. The strides are arbitrary. If the last stride is not 1, a
            contiguous copy is made first.
        k (Tensor | None): keys, with the same batch size, number of tokens, D, dtype and device as `q`. The
            number of heads may differ.
        theta (float): base of the frequencies; finite, greater than 0.
        positions (Tensor | None): position of each token, as integers or floats, with shape `[S]` or
            `[B, S]`. The function converts the positions to float32. Default: 0, 1, 2, and so on.
        inv_freq (Tensor | None): frequencies that replace `theta**(-2i / rotary_dim)`, for example for scaled
            RoPE. The dtype is float32, and the shape is `[rotary_dim / 2]`.
        interleaved (bool): if True, columns `2 * i` and `2 * i + 1` form a pair. If False, columns `i` and `i + n / 2`
            form a pair, where n is the number of rotated columns, as in `rotate_half` of transformers.
        rotary_dim (int | None): number of columns to rotate; the other columns are copied. Default: all.
        heads_first (bool): if True, `q` and `k` have shape `[B, heads, S, D]`.
        head_dim (int | None): number of columns per head, if `q` has shape `[B, S, N]`. Default: N, which
            means one head.

    Returns:
        The rotated `q`: a contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: the rotated
        `q`, and the rotated `k` with the shape and dtype of `k`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its
            value and the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is
            missing. Also raised if `positions` or `inv_freq` requires grad. The messages begin with `rope`,
            the name of the operator.
        ValueError: `theta` is not finite or not greater than 0, or an integer argument is too small.
        TypeError: A tensor argument is not a tensor, or a number has the wrong type.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Frequencies, angles, sine and cosine are float32, as in eager models, and the result is rounded once.
            For angles up to 105,615, sine and cosine are bitwise equal to the results of torch's CUDA kernels. For
            angles up to 10^6, their absolute error is at most 2^-23, and for angles up to 6.5 * 10^6 at most 1e-5. For
            larger angles, sine and cosine are wrong.
        Gradients: `q` and `k` have gradients. `positions` and `inv_freq` have no gradient. The gradient of `q` and `k`
            does not depend on their values. If the incoming gradient is constant, a second derivative is therefore 0.
            Otherwise, a second derivative raises RuntimeError. Forward-mode AD raises RuntimeError.

    Source:
        The rotary embeddings of the models in transformers; arXiv:2104.09864.

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
    """Rotate the tokens of a video by frame, row and column: pair `i` of an axis has the angle
    `index * theta**(-2i / split)`.

    The three axes are frame, row and column. `index` is the token's index on one of these axes, and `split`
    is the number of columns that are rotated for this axis. The tokens are in the order of a contiguous
    `[frames, height, width]` array.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. The shape is
            `[B, S, heads, D]`, or `[B, heads, S, D]` with `heads_first`. It may also be `[B, S, N]`, where N
            is the number of heads times `head_dim`. The strides are arbitrary. If the last stride is not 1, a
            contiguous copy is made first.
        k (Tensor | None): keys, with the same batch size, number of tokens, D, dtype and device as `q`. The
            number of heads may differ.
        grid (tuple[int, int, int] | None): number of frames, rows and columns of the video, in tokens. The
            product of the three numbers is S. With `offset`, the product is at most `S - offset`. `grid` may
            be None if `coordinates` is given.
        splits (tuple[int, int, int] | None): how many columns of a head are rotated for the axes frame, row
            and column. The three numbers are even, and their sum is D. The default is the choice of the model
            Wan: `2 * (D // 6)` columns for the row, the same number for the column, and the remaining columns
            for the frame. For D = 128, the default is `(44, 42, 42)`.
        theta (float): base of the frequencies; finite, greater than 0, and not 1 with `coordinates`.
        coordinates (Tensor | None): selects the scheme of LTX-Video instead of `splits`. Shape `[S, 3]` or
            `[B, S, 3]`. Each coordinate is the frame, row or column of a token, divided by the maximum of
            this axis. In this scheme, `q` has shape `[B, S, N]` without a head dimension, and there are `n =
            N // 6` frequencies per axis. Pair `3 * i + axis` has the angle `pi / 2 * theta**(i / (n - 1)) *
            (2 * coordinate[axis] - 1)`. The first `N % 6` columns are copied, and pair 0 starts after these
            columns.
        interleaved (bool): if True, columns `2 * i` and `2 * i + 1` form a pair. If False, columns `i` and `i + n / 2`
            form a pair, where n is the number of rotated columns, as in `rotate_half` of transformers.
        offset (int | None): index of the first rotated token, which is the first token of the grid. Tokens
            before and after the grid are copied.
        mode (str): "exact" or "fast", as for `rope`.
        heads_first (bool): if True, `q` and `k` have shape `[B, heads, S, D]`.
        head_dim (int | None): number of columns per head, if `q` has shape `[B, S, N]`. Default: N, which
            means one head.

    Returns:
        The rotated `q`: a contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: the rotated
        `q`, and the rotated `k` with the shape and dtype of `k`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its
            value and the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is
            missing. The messages begin with `rope`, the name of the operator.
        ValueError: `grid` does not match the number of tokens, or `splits` are not three even numbers whose
            sum is D. Also raised if `splits` and `coordinates` are both given. Also raised for an unsupported
            `theta` or `mode`, and for an integer argument that is too small.
        TypeError: A tensor argument is not a tensor, or a number has the wrong type.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: The tables of cosines and sines are computed with torch's operators, before the kernel.
            With `splits`, the angles are float64, as in Wan and Flux. With `coordinates`, the angles are
            float32, as in LTX-Video. The rotation has the exactness of `rope`. The tables of the most recent
            grids are cached.
        Gradients: `q` and `k` have gradients. `coordinates` have no gradient. The gradients of `q` and `k` do
            not depend on the values of `q` and `k`. A second derivative is therefore 0, if the incoming gradient
            is a constant, as after `y.sum()`. If the incoming gradient requires grad, a second derivative raises
            RuntimeError. Forward-mode AD raises RuntimeError.

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
