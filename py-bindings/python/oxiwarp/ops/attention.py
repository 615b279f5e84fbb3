"""Scaled dot product attention and its gradient. The file defines the operators and the public function
`attention`.
"""

import math
import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ._function import Function, apply
from ._once_differentiable import once
from ._register import FLOATS, OPTIONAL, define, dtype_name, explain, needs_grad, refuse_types, write
from ._roles import Role
from .activation import check as check_beside

NUMBER = (float, int, type(None))
MOST_KEYS = 2**31 - 1  # maximum of a window limit; no tensor has more keys
LAYOUTS = {"bshd": False, "bhsd": True}
MOST_HEADS = 256
"""Limit for a warning.

Known models have fewer heads. If a tensor has more heads and few tokens, the caller may have passed the wrong
`layout`.
"""


def _check(
    op: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, starts: Sequence[Tensor | None], heads_first: bool
) -> None:
    """Raise RuntimeError if the kernels do not support one of the tensors.

    The check reads only shapes, dtypes and devices.


    `starts` is a pair of offset tensors. They say where each packed sequence starts in the queries (first tensor) and
    in the keys (second tensor). If sequences are not packed, both are None.
    """
    if q.dtype not in (torch.float16, torch.bfloat16):
        got = dtype_name(q.dtype)
        raise RuntimeError(f"{op}: q is {got}, expected f16 or bf16 (for f32 there is torch's own attention)")
    named = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1]}
    for name, tensor in {"k": k, "v": v, "mask": mask, **named}.items():
        if tensor is not None and tensor.device != q.device:
            raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {q.device}, the device of q")
    packed = starts[0] is not None
    if packed != (starts[1] is not None):
        given, lacking = named if packed else reversed(named)
        raise RuntimeError(f"{op}: {given} is given without {lacking}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected {FLOATS[q.dtype]}")
        if tensor.dim() != 4 - packed:
            dimensions = "three dimensions" if packed else "four dimensions"
            raise RuntimeError(f"{op}: {name} has shape {list(tensor.shape)}, expected {dimensions}")
    heads_at = -3 if heads_first else -2
    wanted = list(q.shape)
    for dim in (heads_at, -5 - heads_at):
        wanted[dim] = k.shape[dim]
    if list(k.shape) != wanted:
        hint = _layout_hint(q, k, heads_first)
        raise RuntimeError(f"{op}: k has shape {list(k.shape)}, expected {wanted}{hint}")
    if v.shape != k.shape:
        raise RuntimeError(f"{op}: v has shape {list(v.shape)}, expected {list(k.shape)}")
    if not 1 <= q.shape[-1] <= 256:
        raise RuntimeError(f"{op}: q has shape {list(q.shape)}, expected heads of 1 to 256 columns")
    heads, kv_heads = q.shape[heads_at], k.shape[heads_at]
    if kv_heads != heads and (heads == 0 or kv_heads == 0 or heads % kv_heads != 0):
        hint = _layout_hint(q, k, heads_first)
        raise RuntimeError(f"{op}: k has shape {list(k.shape)}, expected heads that divide the {heads} of q{hint}")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        got = dtype_name(mask.dtype)
        raise RuntimeError(f"{op}: mask is {got}, expected bool, f32 or {FLOATS[q.dtype]} (as q)")


def _layout_hint(q: Tensor, k: Tensor, heads_first: bool) -> str:
    """Return a hint for an error message, or "" if no hint applies.

    The hint says that the shapes of `q` and `k` would be valid with the other of the two layouts.
    """
    heads_at = -2 if heads_first else -3
    heads, kv_heads = q.shape[heads_at], k.shape[heads_at]
    if q.dim() < 4 or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1] or not kv_heads or heads % kv_heads:
        return ""
    return f"; the shapes are valid with layout={'bshd' if heads_first else 'bhsd'!r}"


def _warn_of_layout(k: Tensor, layout: str) -> None:
    """Warn if `layout` may be wrong: `k` has more than `MOST_HEADS` heads and at most `MOST_HEADS` tokens."""
    heads, tokens = (k.shape[-3], k.shape[-2]) if LAYOUTS[layout] else (k.shape[-2], k.shape[-3])
    if heads > MOST_HEADS >= tokens:
        other = "bshd" if LAYOUTS[layout] else "bhsd"
        message = (
            f"attention: with layout={layout!r}, k of shape {list(k.shape)} has {heads} heads and {tokens} tokens. If "
            f"these are {tokens} heads and {heads} tokens, pass layout={other!r}"
        )
        warnings.warn(message, stacklevel=3)


def _empty_heads(x: Tensor, heads_first: bool) -> Tensor:
    """Return an uninitialized tensor with the shape of `x`, for a result.

    Whatever the layout, the heads of a token are adjacent in the memory of this tensor.
    """
    if not heads_first:
        return x.new_empty(x.shape)
    return x.new_empty([*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]]).transpose(-3, -2)


def _fake(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    mask, *starts, heads_first, _, _, _, _, _, with_lse = args
    _check("attention", q, k, v, mask, starts, heads_first)
    rows = (q if heads_first else q.transpose(-3, -2)).shape[:-1]
    return _empty_heads(q, heads_first), q.new_empty(rows if with_lse else [0], dtype=torch.float32)


def _fake_out(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> None:
    mask, *starts, heads_first, _, _, _, _, _, out = args
    _check("attention", q, k, v, mask, starts, heads_first)
    check_beside("attention", q, None, 1, out=out)


def _fake_backward(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    mask, *starts, heads_first = args[:4]
    _check("attention_backward", q, k, v, mask, starts, heads_first)
    dq, dk, dv = (_empty_heads(x, heads_first) for x in (q, k, v))
    return dq, dk, dv


_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, bool heads_first, "
    "bool causal, float scale, int before, int after, float softcap"
)
_ROLES = {
    **dict.fromkeys(("q", "k", "v"), Role.HEADS),
    "mask": Role.MASK,
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), Role.OFFSETS),
}
ROLES = {"cu_seqlens": Role.OFFSETS}
op = define(f"attention({_INPUTS}, bool with_lse) -> (Tensor, Tensor)", _fake, **_ROLES)
op_out = define(f"attention_out({_INPUTS}, Tensor(a!) out) -> ()", _fake_out, **_ROLES, out=Role.OUTPUT)
op_backward = define(
    f"attention_backward({_INPUTS}, Tensor out, Tensor lse, Tensor dout) -> (Tensor, Tensor, Tensor)",
    _fake_backward,
    **_ROLES,
    out=Role.HEADS,
    lse=Role.PER_HEAD,
    dout=Role.HEADS,
)


class _Attention(Function):
    """Autograd function that saves the inputs, the result and `lse`.

    For each query, `lse` is the logarithm of the softmax denominator. The backward recomputes the attention
    probabilities from the inputs and `lse`.
    """

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *params: Any) -> tuple[Tensor, Tensor]:
        return op(q, k, v, *params)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, mask, starts_q, starts_k, *ctx.params, _ = inputs
        ctx.save_for_backward(q, k, v, mask, starts_q, starts_k, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once
    def backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, lse = ctx.saved_tensors
        if dout.stride(-1) != 1:
            dout = dout.contiguous()
        try:
            return *op_backward(*inputs, *ctx.params, out, lse, dout), *(None,) * 10
        except RuntimeError as error:
            explain(error, "attention_backward", 3, inputs[0], "q")
            raise


def _refuse_options(causal: Any, **numbers: Any) -> None:
    """Raise TypeError unless `causal` is a bool and each of `numbers` is a number or None.

    Without this check, torch would convert a value of a wrong type, or raise an error whose message contains
    the operator's whole schema.
    """
    if not isinstance(causal, (bool, torch.SymBool)):
        kind = type(causal)  # name the module too, because numpy.bool is also called bool
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise TypeError(f"attention: causal is {name}, expected a bool")
    for name, value in numbers.items():
        if not isinstance(value, (*NUMBER, Real, torch.SymInt, torch.SymFloat)):
            raise TypeError(f"attention: {name} is {type(value).__name__}, expected a number")


def _limits(window: Any) -> list[int]:
    """Return the two limits of a sliding window: the numbers of keys before and after a query's position.

    A limit of -1 means that the number of keys is not limited.
    """
    limits, pair = [], window if isinstance(window, (tuple, list)) else (window, window)
    for limit in pair:
        if limit is None:
            limits.append(-1)
        elif isinstance(limit, (int, Integral)) and limit is not True and limit is not False and int(limit) >= 0:
            limits.append(min(int(limit), MOST_KEYS))
    if len(pair) != 2 or len(limits) != 2:
        raise ValueError(f"attention: window is {window!r}, expected numbers of keys, 0 or more, or None")
    return limits


def _starts(cu_seqlens: Any) -> Sequence[Tensor]:
    """Convert the argument `cu_seqlens` to a pair of offset tensors: one for the queries and one for the
    keys.
    """
    starts = cu_seqlens if isinstance(cu_seqlens, (tuple, list)) else (cu_seqlens, cu_seqlens)
    for each in starts:
        if not isinstance(each, OPTIONAL):
            refuse_types("attention", {"cu_seqlens": each}, {})
    if len(starts) != 2:
        raise ValueError(f"attention: cu_seqlens has {len(starts)} tensors, expected one, or two of queries and keys")
    return starts


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
    window: tuple[int | None, int | None] | int | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    layout: str = "bshd",
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | list[Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention: `softmax(scale * q @ k.T + mask) @ v`.

    The kernels use tensor cores. The default layout of the tensors is `[B, S, H, D]`, unlike torch's
    `[B, H, S, D]`.

    Args:
        q (Tensor): float16 or bfloat16, shape `[B, Sq, H, D]` with D from 1 to 256, on the CPU or a CUDA
            device of compute capability 8.0 or newer. The strides are arbitrary. If the last stride is not 1, a
            contiguous copy is made first.
            If D is a multiple of 8 and the address of every head is a multiple of 16 bytes, the kernels use
            16-byte loads. Otherwise they load single elements, which is slow.
        k (Tensor): shape `[B, Sk, Hkv, D]`, dtype and device of `q`. In grouped-query attention, H is a
            multiple of Hkv, and `H / Hkv` consecutive heads of `q` use one head of `k`.
        v (Tensor): shape, dtype and device of `k`.
        causal (bool): if True, a query attends to no key after its position. The last query has the position of the
            last key. With a KV cache (Sk > Sq), the first query therefore attends to Sk - Sq + 1 keys. torch's
            `is_causal` instead gives the first query the position of the first key. The matrices below show the
            difference for 2 queries (rows) and 4 keys (columns). A 1 means that the query attends to the key.

                oxiwarp   1 1 1 0    torch's is_causal   1 0 0 0
                          1 1 1 1                        1 1 0 0

        scale (float | None): factor of the scores. Default: `1 / sqrt(D)`.
        mask (Tensor | None): a bool mask (True: the query attends to the key), or an additive mask in float32 or the
            dtype of `q`. It must broadcast to `[B, H, Sq, Sk]`, whatever the `layout`. The kernel reads it without
            making a broadcast copy. A padding mask has shape `[B, 1, 1, Sk]`.
        window (int | tuple | None): sliding window. With a pair `(before, after)`, a query attends to at most `before`
            keys before its position and `after` keys after it. A single number is the limit in both directions. None
            means no limit. As with `causal`, the last query has the position of the last key.
        softcap (float | None): limit of the scores, at most 1000. Each score is replaced by
            `softcap * tanh(score / softcap)` before the mask is added.
        return_lse (bool): if True, also return `lse`: for each query, the natural logarithm of the sum of the
            exponentials of its scores.
        layout (str): "bshd" or "bhsd". With "bhsd", `q` has shape `[B, H, Sq, D]`, and `k` and `v` have shape
            `[B, Hkv, Sk, D]`. The function warns if `k` has more than 256 heads and at most 256 tokens, because
            `layout` is then probably wrong.
        cu_seqlens (Tensor | pair of Tensors | None): offsets of packed sequences, int32, shape `[sequences + 1]`: the
            start of each sequence, and the end of the last sequence. The first offset is 0, and the offsets ascend.
            Pass a pair of tensors if queries and keys have different offsets. If offsets are given, `q`, `k` and `v`
            have no dimension B, and `mask` must be None. Tokens after the last sequence attend to no key.
        out (Tensor | None): tensor to which the result is written. It has the shape, dtype and device of `q`, and its
            last stride is 1. It may be a slice of a wider buffer. It must not overlap an input.

    Returns:
        `out` if it is given. Otherwise, a Tensor with the shape and dtype of `q`. Whatever the `layout`, the memory of
        this tensor has the order `[B, Sq, H, D]`. If `return_lse` is True, the function returns the pair
        `(result, lse)`. `lse` is float32 of shape `[B, H, Sq]` (`[H, Sq]` for packed sequences) and has no
        gradient.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_80 or the CUDA driver is missing. Also raised if
            `mask` requires grad, or if `out` is given and an input requires grad. On the CPU, also raised if
            `cu_seqlens` does not start with 0 or does not ascend.
        ValueError: `layout` or `window` has an unsupported value, or `cu_seqlens` is neither a tensor nor a
            pair. Also raised if both `out` and `return_lse` are given.
        TypeError: A tensor, a number or `causal` has the wrong type.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Matrix multiplications have operands in the dtype of `q` and accumulate in float32. Scores and
            softmax are computed in float32. The attention probabilities are rounded to the dtype of `q` before the
            product with `v`, and the result is rounded once. A query's result does not depend on the values of other
            queries or on the batch. However, its last bits depend on the kernel, which the function selects by the
            number of queries. On Hopper GPUs, calls with 64 queries or more use other kernels than calls with fewer
            queries. For decoding, a third kind of kernel distributes the keys of a key head over several thread blocks
            (split-KV). It runs for calls with 1024 keys or more, if the number of queries times the number of query
            heads per key head is at most 32.
        Gradients: `q`, `k` and `v` have gradients. `mask` has no gradient. The gradients are deterministic. A second
            derivative and forward-mode AD raise RuntimeError.
        Special values: If a query attends to no key, or if its scores are all -inf, its result is 0 and its `lse` is
            -inf. If an additive mask has the same large negative finite value, such as the minimum of float32, for all
            keys of a query, the result of this query is the mean of the rows of `v`. Its `lse` is then the mask value,
            or -2.3e38 if the mask value is lower. A query whose `lse` is below -8e6 has no gradient. Rows of `k` that a
            mask hides must be finite, because NaN in these rows gives NaN results. Rows of `v` that a mask, `causal` or
            `window` hides must be finite too. NaN in such a row can reach the results of other queries that the kernel
            processes together, as in torch. Rows of `k` that `causal`, `window` or `cu_seqlens` excludes may have any
            values, because they do not affect the result.
        Unchecked offsets: On a GPU, the values of `cu_seqlens` are not checked, because the host does not
            read them. If the first offset is not 0, the rows of the result before this offset are not
            written. If the offsets do not ascend, the results are unspecified.

    Source:
        FlashAttention-2 (arXiv:2307.08691). `window` and `softcap` are defined as in the package flash-attn.

    Example:
        >>> q = k = torch.zeros(1, 2, 1, 8, dtype=torch.bfloat16)
        >>> v = torch.tensor([1.0, 3.0], dtype=torch.bfloat16).repeat_interleave(8).view(1, 2, 1, 8)
        >>> oxiwarp.attention(q, k, v, causal=True)[0, :, 0, 0]
        tensor([1., 2.], dtype=torch.bfloat16)
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        refuse_types("attention", {"q": q, "k": k, "v": v}, {})
    if not (isinstance(mask, OPTIONAL) and isinstance(out, OPTIONAL)):
        refuse_types("attention", {}, {"mask": mask, "out": out})
    if not (isinstance(causal, bool) and isinstance(scale, NUMBER) and isinstance(softcap, NUMBER)):
        _refuse_options(causal, scale=scale, softcap=softcap)
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("attention: mask requires grad, and there is no gradient of masks: detach it")
    if not (isinstance(layout, str) and layout in LAYOUTS):
        raise ValueError(f"attention: layout is {layout!r}, expected 'bshd' or 'bhsd'")
    limits = (-1, -1) if window is None else _limits(window)
    starts = (None, None) if cu_seqlens is None else _starts(cu_seqlens)
    recorded = needs_grad(q, k, v)
    if out is not None and return_lse:
        raise ValueError("attention: out is given with return_lse")
    try:
        scale = 1.0 / math.sqrt(math.prod(q.shape[-1:]) or 1) if scale is None else scale
        params = (mask, *starts, LAYOUTS[layout], causal, scale, *limits, 0.0 if softcap is None else softcap)
        if out is not None:
            write("attention", op_out, (q, k, v, *params), (out,), recorded)
            return out
        arguments = (q, k, v, *params, recorded or return_lse)
        out, lse = apply(_Attention, *arguments) if recorded else op(*arguments)
    except RuntimeError as error:
        explain(error, "attention", 1, q, "q", k=k, v=v, mask=mask)
        _check("attention", q, k, v, mask, starts, LAYOUTS[layout])  # raises a clearer message if a dtype is wrong
        raise
    if not torch.compiler.is_compiling():
        _warn_of_layout(k, layout)
    return (out, lse) if return_lse else out


__all__ = ["attention"]
