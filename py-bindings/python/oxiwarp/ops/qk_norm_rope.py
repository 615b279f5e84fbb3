"""Normalizes and rotates queries and keys in one kernel launch. The file defines the operator `qk_norm_rope`
and its public function.
"""

from collections.abc import Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from . import rope
from ._checks.heads import (
    ROTATION,
    TABLE_ROLES,
    Rotation,
    check_head_dim,
    check_heads,
    outputs,
    readable,
    rotation,
    same_device,
    sizes,
    tables_want_grad,
    tensors_only,
    transposed,
)
from ._checks.rows import check_eps
from ._function import Function, apply
from ._once_differentiable import once
from ._register import OPTIONAL, define, dtype_name, explain, needs_grad, or_f32, write
from ._roles import Role
from .layer_norm_backward import op as layer_norm_backward
from .rms_norm_backward import op as rms_norm_backward

NORMS = {None: 0, "layer_norm": 1, "rms_norm": 2, "llama_rms_norm": 3, "mochi_rms_norm": 4}
_PARAMETERS = (
    "Tensor? q_weight, Tensor? k_weight, Tensor? q_bias, Tensor? k_bias, int norm, bool across_heads, float eps"
)
_ROLES = dict.fromkeys(("q_weight", "k_weight", "q_bias", "k_bias"), Role.HEAD_VECTOR)
ROLES = {"out": Role.OUTPUT}


def _check(q: Tensor, k: Tensor | None, args: tuple[Any, ...], **outs: Tensor | None) -> None:
    q_weight, k_weight, q_bias, k_bias, norm, across_heads, eps, *how = args
    check_eps("qk_norm_rope", eps)
    check_heads("qk_norm_rope", q, k, Rotation(*how), **outs)
    for name, value in (("q_weight", q_weight), ("q_bias", q_bias), ("k_weight", k_weight), ("k_bias", k_bias)):
        x = q if name[0] == "q" else k
        if value is None or x is None:
            continue
        same_device("qk_norm_rope", name, value, q)
        _, _, heads, dim = sizes(x, Rotation(*how))
        cols = heads * dim if across_heads and norm else dim
        if value.dtype not in (x.dtype, torch.float32):
            got = dtype_name(value.dtype)
            raise RuntimeError(f"qk_norm_rope: {name} is {got}, expected {or_f32(x.dtype, 'q')}")
        if tuple(value.shape) != (cols,):
            raise RuntimeError(f"qk_norm_rope: {name} has shape {list(value.shape)}, expected [{cols}]")
        if "bias" in name and norm != NORMS["layer_norm"]:
            raise RuntimeError("qk_norm_rope: bias is given, expected none for an RMSNorm")
    if k is not None and norm == NORMS["llama_rms_norm"] and Rotation(*how).exact and q.dtype != torch.float32:
        single = [weight is not None and weight.dtype == torch.float32 for weight in (q_weight, k_weight)]
        if single[0] != single[1]:
            raise RuntimeError("qk_norm_rope: one of q_weight and k_weight is f32, expected both or none")


def _fake(q: Tensor, k: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    _check(q, k, args)
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _fake_one(q: Tensor, *args: Any) -> Tensor:
    _check(q, None, args)
    return q.new_empty(q.shape)


def _fake_out(q: Tensor, k: Tensor | None, *args: Any) -> None:
    *rest, q_out, k_out = args
    _check(q, k, tuple(rest), q_out=q_out, k_out=k_out)


op = define(
    f"qk_norm_rope(Tensor q, Tensor k, {_PARAMETERS}, {ROTATION}) -> (Tensor, Tensor)",
    _fake,
    q=Role.HEADS,
    k=Role.HEADS,
    **_ROLES,
    **TABLE_ROLES,
)
op_one = define(
    f"qk_norm_rope_one(Tensor q, {_PARAMETERS}, {ROTATION}) -> Tensor", _fake_one, q=Role.HEADS, **_ROLES, **TABLE_ROLES
)
op_out = define(
    f"qk_norm_rope_out(Tensor q, Tensor? k, {_PARAMETERS}, {ROTATION}, Tensor(a!) q_out, Tensor(b!)? k_out) -> ()",
    _fake_out,
    q=Role.HEADS,
    k=Role.HEADS,
    **_ROLES,
    **TABLE_ROLES,
    q_out=Role.OUTPUT,
    k_out=Role.OUTPUT,
)


def _norm_backward(
    grad: Tensor,
    x: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    wants: Sequence[bool],
    how: tuple[int, float],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return three gradients of a norm: of `x`, of the weight and of the bias. A gradient of the weight or the bias
    that the caller does not need is None.

    `grad` is the incoming gradient. `parameters` is the pair of weight and bias. `wants` has two flags: whether the
    caller needs the gradient of the weight, and whether it needs the gradient of the bias. The gradient of `x` is
    always computed. `how` is a pair of numbers: the number of the norm in the dict `NORMS`, and its eps.
    """
    (weight, bias), (wants_weight, wants_bias), (norm, eps) = parameters, wants, how
    if norm == 0:
        return grad, None, None
    grad, x = grad.contiguous(), x.contiguous()
    if norm == NORMS["layer_norm"]:
        dx, dweight, dbias = layer_norm_backward(grad, x, weight, bias, None, eps, wants_weight, wants_bias)
    else:
        dx, dweight = rms_norm_backward(grad, x, weight, None, eps, 0.0, wants_weight)
        dbias = None
    return dx, dweight if wants_weight else None, dbias if wants_bias else None


def _forward(q: Tensor, k: Tensor | None, args: tuple[Any, ...]) -> Any:
    return op_one(q, *args) if k is None else op(q, k, *args)


class _Function(Function):
    """Autograd function that saves its tensor operands.

    The backward first rotates the incoming gradient by the negative angles, with the kernel of `rope`. Then
    it calls the backward kernel of the norm.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor | None, *args: Any) -> Any:
        return _forward(q, k, args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, q_weight, k_weight, q_bias, k_bias, norm, across_heads, eps, *rest = inputs
        how = Rotation(*rest)
        ctx.save_for_backward(q, k, q_weight, k_weight, q_bias, k_bias, how.cos, how.sin, how.positions)
        ctx.norm = norm, across_heads, eps
        ctx.how = how._replace(cos=None, sin=None, positions=None)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, q_weight, k_weight, q_bias, k_bias, cos, sin, positions = ctx.saved_tensors
        norm, across_heads, eps = ctx.norm
        how = ctx.how._replace(cos=cos, sin=sin, positions=positions)
        back = transposed(how, q)
        found: list[tuple[Tensor | None, ...]] = []
        parameters = (q_weight, q_bias), (k_weight, k_bias)
        _, _, *wants = ctx.needs_input_grad[:6]
        for x, own, wanted, grad in zip((q, k), parameters, (wants[0::2], wants[1::2]), (*grads, None), strict=False):
            if x is None or grad is None:
                found.append((None, None, None))
                continue
            grad = readable(grad) if cos is None else rope.op(readable(grad), *back)
            rows, grad_rows = _rows(x, across_heads, how), _rows(grad, across_heads, how)
            grad_x, *of_parameters = _norm_backward(grad_rows, rows, own, wanted, (norm, eps))
            found.append((_heads(grad_x, x, how), *of_parameters))
        (grad_q, *of_q), (grad_k, *of_k) = found
        return (grad_q, grad_k, of_q[0], of_k[0], of_q[1], of_k[1], *[None] * (3 + len(how)))


def _rows(x: Tensor, across_heads: bool, how: Rotation) -> Tensor:
    """Reshape `x` so that its last dimension contains the columns of one norm. These are the columns of one
    head, or the columns of all heads of a token.
    """
    _, _, heads, dim = sizes(x, how)
    if x.dim() == 3:
        return x if across_heads or heads == 1 else x.unflatten(2, (heads, dim))
    if not across_heads:
        return x
    x = x.transpose(1, 2) if how.heads_first else x
    # Use `reshape` instead of `flatten`, because `flatten` has no batching rule under
    # `torch.autograd.functional.jacobian(..., vectorize=True)`.
    return x.reshape(*x.shape[:2], heads * dim)


def _heads(rows: Tensor, x: Tensor, how: Rotation) -> Tensor:
    """Reshape `rows` to the shape of `x`. `rows` has the shape that the function `_rows` returns for `x`."""
    if x.dim() == 4 and rows.dim() == 3 and how.heads_first:
        return rows.unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)
    return rows.reshape(x.shape)


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    norm: str | None = "rms_norm",
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    q_bias: Tensor | None = None,
    k_bias: Tensor | None = None,
    eps: float = 1e-6,
    across_heads: bool = False,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    offset: int | None = None,
    positions: Tensor | None = None,
    mode: str = "exact",
    heads_first: bool = False,
    head_dim: int | None = None,
    out: tuple[Tensor, Tensor | None] | Tensor | None = None,
) -> Any:
    """Normalize queries and keys, then rotate them: `rope(norm(q) * q_weight + q_bias, cos, sin)`.

    For `k`, the function computes the same formula with `k_weight` and `k_bias`. One kernel launch processes `q` and
    `k`, and reads and writes each element once.

    Args:
        q (Tensor): float32, float16 or bfloat16, on the CPU or a CUDA device. The shape is
            `[B, S, heads, D]`, or `[B, heads, S, D]` with `heads_first`. It may also be `[B, S, N]`, where N
            is the number of heads times `head_dim`. The strides are arbitrary. If the last stride is not 1, a
            contiguous copy is made first.
        k (Tensor | None): keys, with the same batch size, number of tokens, D, dtype and device as `q`. The
            number of heads may differ.
        cos (Tensor | None): table of cosines, as for `rope`. If it is None, the function only normalizes.
        sin (Tensor | None): table of sines, as for `rope`.
        norm (str | None): name of the norm. Each name stands for a norm module. The kernel adds the terms of sums in
            the order of this module, and rounds at the same points. "rms_norm" is torch.nn.RMSNorm, which rounds once
            (Flux, LTX-Video, Wan). "llama_rms_norm" is the RMSNorm of Llama, Qwen and diffusers, which rounds before
            and after the multiplication by the weight. "mochi_rms_norm" is Mochi's RMSNorm, which computes with torch's
            operators in float32 and rounds once. "layer_norm" is torch.nn.LayerNorm (CogVideoX, GLM). None means no
            norm.
        q_weight (Tensor | None): weight of the norm for `q`, contiguous, in the dtype of `q` or in float32.
            Its shape is `[D]`, or `[heads * D]` with `across_heads`.
        k_weight (Tensor | None): weight of the norm for `k`, with the shapes and dtypes that `q_weight` may
            have. If `k` is None, `k_weight` and `k_bias` are ignored.
        q_bias (Tensor | None): bias of the norm for `q`, only for "layer_norm". It may have the shapes and
            dtypes that `q_weight` may have.
        k_bias (Tensor | None): bias of the norm for `k`, only for "layer_norm". It may have the shapes and
            dtypes that `q_weight` may have.
        eps (float): added to the variance (LayerNorm) or to the mean of squares (RMSNorm); finite, 0 or more.
        across_heads (bool): if True, one norm is computed over all heads of a token together, as in LTX-Video
            and Wan. The heads of a token must then be adjacent in memory. If False, one norm is computed per
            head.
        interleaved (bool): if True, columns `2 * i` and `2 * i + 1` form a pair. If False, columns `i` and `i + n / 2`
            form a pair, where n is the number of rotated columns, as in `rotate_half` of transformers.
        rotary_dim (int | None): number of columns to rotate; the other columns are copied. Default: all.
        offset (int | None): index of the first rotated token, as for `rope`.
        positions (Tensor | None): int64 or int32, `[S]` or `[B, S]`: for each token, the row of the tables, as for
            `rope`. The tables then have the shape `[M, R]`.
        mode (str): "exact" or "fast". The section "Exactness" describes both.
        heads_first (bool): if True, `q` and `k` have shape `[B, heads, S, D]`.
        head_dim (int | None): number of columns per head, if `q` has shape `[B, S, N]`. Default: N, which
            means one head.
        out (Tensor | tuple | None): tensor to which the result is written, with the shape and dtype of `q`.
            If `k` is given, `out` is a pair of tensors: one with the shape of `q` and one with the shape of
            `k`. The tensors may be slices of a larger tensor. For example, text and image tokens can be
            written into one buffer, so that no concatenation is needed afterwards. They must not overlap an input.
            With `norm=None`, the tensors may also be `q` and `k`.

    Returns:
        The result for `q`: a contiguous Tensor with the shape and dtype of `q`. If `k` is given, a pair: this
        Tensor, and the result for `k` with the shape and dtype of `k`. If `out` is given, the function returns
        `out`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            a table requires grad, or if `out` is given and an input requires grad.
        ValueError: `norm` or `mode` is unknown, an integer argument is too small, or `out` has the wrong
            number of tensors. Also raised for arguments that cannot be combined, for example `q_weight` and
            `norm=None`.
        TypeError: A tensor argument is not a tensor, or a number has the wrong type.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: `mode="exact"` rounds after the norm, and then at the points where `rope` rounds, like a model that
            computes norm and rotation separately. On a GPU, if D is divisible by 4, the result is bitwise equal to the
            result of the model's eager code. With float32 weights and "llama_rms_norm", the norm is not rounded before
            the rotation, as in diffusers. In this case, `q_weight` and `k_weight` must both be float32. `mode="fast"`
            rounds only the result.
        Gradients: The backward runs two kernels: the backward of `rope`, and then the backward of `rms_norm` or
            `layer_norm`. The gradient between the two kernels is rounded to the dtype of `q`. Tables have no gradient.
            A second derivative and forward-mode AD raise RuntimeError.

    Source:
        RMSNorm, arXiv:1910.07467; LayerNorm, arXiv:1607.06450; rotary embedding, arXiv:2104.09864.

    Example:
        >>> q = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
        >>> oxiwarp.qk_norm_rope(q)  # only the norm
        tensor([[[[0.3651, 0.7303, 1.0954, 1.4606]]]])
        >>> oxiwarp.qk_norm_rope(q, cos=torch.zeros(1, 2), sin=torch.ones(1, 2))  # both pairs by 90 degrees
        tensor([[[[-0.7303,  0.3651, -1.4606,  1.0954]]]])
    """
    name = "qk_norm_rope"
    operands = isinstance(q, Tensor) and isinstance(k, OPTIONAL) and isinstance(cos, OPTIONAL)
    weights = isinstance(q_weight, OPTIONAL) and isinstance(k_weight, OPTIONAL)
    biases = isinstance(q_bias, OPTIONAL) and isinstance(k_bias, OPTIONAL)
    tables = isinstance(sin, OPTIONAL) and isinstance(positions, OPTIONAL)
    if not (operands and tables and weights and biases):
        tensors_only(
            name, q, k=k, cos=cos, sin=sin, q_weight=q_weight, k_weight=k_weight, q_bias=q_bias, k_bias=k_bias,
            positions=positions,
        )  # fmt: skip
    if not isinstance(norm, (str, NoneType)) or norm not in NORMS:
        raise ValueError(f"{name}: norm is {norm!r}, expected one of {', '.join(map(repr, NORMS))}")
    if norm is None and (q_weight is not None or k_weight is not None or q_bias is not None or k_bias is not None):
        raise ValueError(f"{name}: norm is None, expected a norm for a weight or a bias")
    if cos is None and (rotary_dim is not None or offset is not None or positions is not None):
        raise ValueError(f"{name}: cos is None, expected tables for rotary_dim, offset or positions")
    if head_dim is not None:
        check_head_dim(name, q, head_dim)
    how = rotation(
        name,
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
    args = (q_weight, k_weight, q_bias, k_bias, NORMS[norm], across_heads, eps, *how)
    wants_grad = needs_grad(q, k, q_weight, k_weight, q_bias, k_bias, cos, sin)
    if wants_grad:
        tables_want_grad(name, cos, sin)
    try:
        if out is not None:
            write(name, op_out, (q, k, *args), outputs(name, k, out), wants_grad)
            return out
        return apply(_Function, q, k, *args) if wants_grad else _forward(q, k, args)
    except RuntimeError as error:
        parameters = {"q_weight": q_weight, "k_weight": k_weight, "q_bias": q_bias, "k_bias": k_bias}
        explain(error, name, 1 if k is None else 2, q, "q", k=k, cos=cos, sin=sin, positions=positions, **parameters)
        raise


__all__ = ["qk_norm_rope"]
