"""Attention and its gradient: two operators and their public function."""

import math
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
MOST_KEYS = 2**31 - 1  # of a window: no tensor has more
LAYOUTS = {"bshd": False, "bhsd": True}


def _check(
    op: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, starts: Sequence[Tensor | None], heads_first: bool
) -> None:
    """Raise RuntimeError for what the kernels refuse, from shapes, dtypes and devices alone."""
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
        raise RuntimeError(f"{op}: k has shape {list(k.shape)}, expected {wanted}")
    if v.shape != k.shape:
        raise RuntimeError(f"{op}: v has shape {list(v.shape)}, expected {list(k.shape)}")
    if not 1 <= q.shape[-1] <= 256:
        raise RuntimeError(f"{op}: q has shape {list(q.shape)}, expected heads of 1 to 256 columns")
    heads, kv_heads = q.shape[heads_at], k.shape[heads_at]
    if kv_heads != heads and (heads == 0 or kv_heads == 0 or heads % kv_heads != 0):
        raise RuntimeError(f"{op}: k has shape {list(k.shape)}, expected heads that divide the {heads} of q")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        got = dtype_name(mask.dtype)
        raise RuntimeError(f"{op}: mask is {got}, expected bool, f32 or {FLOATS[q.dtype]} (as q)")


def _empty_heads(x: Tensor, heads_first: bool) -> Tensor:
    """An output: in memory the heads of a token lie side by side in both layouts."""
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
    """Keeps the inputs, the result and a number for each row: the gradient works the weights out again."""

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
    """Raise TypeError for options that the operator would take for others, or refuse by a page."""
    if not isinstance(causal, (bool, torch.SymBool)):
        kind = type(causal)  # numpy has a bool of its own
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise TypeError(f"attention: causal is {name}, expected a bool")
    for name, value in numbers.items():
        if not isinstance(value, (*NUMBER, Real, torch.SymInt, torch.SymFloat)):
            raise TypeError(f"attention: {name} is {type(value).__name__}, expected a number")


def _limits(window: Any) -> list[int]:
    """Keys before a query's position and after it, as the operator takes them: -1 is all."""
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
    """Where packed sequences begin: among queries, and among keys."""
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
    """Scaled dot product attention, `softmax(scale * q @ k.T + mask) @ v`, on tensor cores (FlashAttention-2).

    Products are of the inputs' dtype with float32 sums; scores and softmax are float32; weights are rounded to the
    dtype before they are multiplied with `v`, the result once.

    Args:
        q: float16 or bfloat16, of shape `[B, Sq, H, D]`, on the CPU or a CUDA device of compute capability 8.0 or
            newer. D is 1 to 256 and contiguous; all other strides are free. Heads whose D is a multiple of 8 and which
            begin at multiples of 16 bytes are read 16 bytes at a time; all others, element by element, are slow.
        k: `[B, Sk, Hkv, D]`; H is a multiple of Hkv, and each of these serves H / Hkv heads of `q` in a row.
        v: as `k`.
        causal: no key after a query's position is seen. The last query stands at the last key, so with more keys than
            queries (a cache) the first query sees `Sk - Sq + 1` of them; torch's `is_causal` puts the *first* query at
            the first key.
        scale: factor of the scores; `1 / sqrt(D)` without one.
        mask: bool (True: the key is seen), or float32 or `q`'s dtype (added to the scores); broadcasts to
            `[B, H, Sq, Sk]` in both layouts, without being copied: `[B, 1, 1, Sk]` pads keys. It has no gradient.
        window: the keys that a query sees before its position and after it, one number for both; None is all.
        softcap: scores become `softcap * tanh(score / softcap)`, before the mask; at most 1000.
        return_lse: also return the natural logarithm of each row's sum of exponentials.
        layout: "bshd", or "bhsd": `q` is `[B, H, Sq, D]`, `k` and `v` `[B, Hkv, Sk, D]`.
        cu_seqlens: int32, `[sequences + 1]`: sequences packed one after the other, and where each begins and the last
            ends; a pair for queries and keys if they differ. The tensors then have no B, and there is no mask. Tokens
            behind the last sequence see nothing and are seen by none. The numbers begin with 0 and ascend: others
            raise on the CPU. On a GPU, where they are not read before the launch, rows before the first number are not
            written, and results for numbers that do not ascend are unspecified.
        out: a tensor of `q`'s shape, dtype and device to write to, such as heads of a wider buffer, with D contiguous;
            it must not overlap an input. Without gradients, and without `return_lse`.

    Returns:
        A tensor of `q`'s shape and dtype, in memory `[B, Sq, H, D]` in both layouts, or `out`; with `return_lse` one of
        float32 too, `[B, H, Sq]` (`[H, Sq]` packed), without a gradient. A query that sees no key gets zeros, and -inf.
        One that an added mask hides from all keys by finite numbers, such as the minimum of float32 or bfloat16, gets
        the mean of the values; its `lse` is the mask's (-2.3e38 at least), and from -8e6 on it passes no gradient.
        Hidden keys and values must be finite: a key that a mask hides gives NaN if it is NaN, and so does, in queries
        of the same tile, a value that a mask, `causal` or a window hides (as in torch). Other sequences of `cu_seqlens`
        and other positions of `causal` and windows do not read a key. A query whose scores are all -inf gets zeros.

    Has gradients for `q`, `k` and `v`, once, not twice; they are the same bits every time. A CUDA tensor runs on
    torch's current stream and can be captured in a CUDA graph; a CPU tensor runs the same kernel on the CPU executor,
    which is meant for tests: it is slow. A query's result does not depend on the other queries' values nor on the
    batch; their number chooses the kernel, and with it the last bits: on a Hopper GPU another one takes calls of 64
    queries or more, and where up to 32 queries of all heads that share keys have 1024 keys or more, blocks share the
    keys.

    Raises:
        RuntimeError: for arguments other than these, naming the argument, what was expected and what came; where there
            is no driver or the GPU is older than sm_80.
        ValueError: for another `layout`, a `window` that is no number of keys nor a pair, `cu_seqlens` that are not one
            tensor nor a pair, or `out` with `return_lse`.
        TypeError: for tensors, numbers or a `causal` that are none.

    Source: FlashAttention-2, arXiv:2307.08691; the window and cap of scores as in flash-attn.
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
        _check("attention", q, k, v, mask, starts, LAYOUTS[layout])  # says more of dtypes than what reads the tensors
        raise
    return (out, lse) if return_lse else out


__all__ = ["attention"]
