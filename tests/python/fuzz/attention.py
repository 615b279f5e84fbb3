"""Random calls of `attention`, and the formula for its results. The calls vary the layout ("bshd" or "bhsd"),
the mask, sliding windows, GQA and packed sequences."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, register
from .draw import BF16, F16, F32, Draw
from .precision import UNIT, Exact

HIDDEN = -1e9  # finite value of an additive mask that hides a key


def draw_attention(g: Draw) -> Case:
    packed = g.maybe(0.3)
    dtype, layout = g.pick(BF16, F16), g.pick("bshd", "bhsd")
    dim = g.pick(8, 16, 64, 64, 128, 72, 1 + g.below(40), 1 + g.below(256))
    heads, kv = g.pick((1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (3, 3))
    batches = g.pick(1, 2, 3)
    queries, keys = (g.pick(1, 3, 7, 17, 40, 1, 3, 7, 17, 40, 70, 130) for _ in range(2))
    keys = queries if g.maybe(0.4) else keys
    if heads * dim * max(queries, keys) * batches > 20_000:
        batches, queries, keys = 1, min(queries, 40), min(keys, 40)
    if g.maybe(0.03):
        queries, keys = g.pick((0, keys), (queries, 0))
    options: dict[str, Any] = dict(layout=layout)
    lead: list[int] = [batches]
    if packed:
        options["cu_seqlens"], queries, keys = sequences(g)
        lead = []
    scale = g.pick(1.0, 1.0, 0.2, 4.0)
    tensors: dict[str, Tensor | None] = {}
    for name, tokens, count in (("q", queries, heads), ("k", keys, kv), ("v", keys, kv)):
        # Whether the tensor has heads before tokens in memory. Its shape does not determine this.
        first = layout == "bhsd" and g.maybe(0.5)
        shape = [*lead, count, tokens, dim] if first else [*lead, tokens, count, dim]
        x = g.layout(len(shape))(g.normal(shape, dtype, scale))
        tensors[name] = x if first or layout == "bshd" else x.transpose(-3, -2)
    options["causal"] = g.maybe(0.35)
    if g.maybe(0.3):
        options["scale"] = g.pick(0.3, 1.0, -0.2, 0.0)
    if g.maybe(0.3):
        options["window"] = g.pick(3, 0, (2, None), (None, 5), (1, 20), 1000)
    if g.maybe(0.25):
        options["softcap"] = g.pick(5.0, 1.0, 50.0)
    if not packed and g.maybe(0.45):
        options["mask"] = mask(g, dtype, (batches, heads, queries, keys))
    options["return_lse"] = g.maybe(0.3)
    row = None if packed else ("q", (0, 1, 2))
    # In float16, the kernels round attention probabilities and their gradients to float16 before a matrix
    # multiplication. Values near 0 become multiples of 2^-24, which is a large relative error for small
    # gradients. The factor `floor` therefore multiplies the permitted absolute error of gradients by 64.
    case = Case(tensors, options, ("q", "k", "v"), row, floor=64.0)
    # If a finite additive mask is below about -8e6 for all keys of a query, the kernel computes zero
    # gradients for this query, but the formula does not. The gradients of such a case are therefore not
    # compared.
    return dataclasses.replace(case, differentiable=()) if hides_all(case, queries, keys, g.device) else case


def hides_all(c: Case, queries: int, keys: int, device: torch.device) -> bool:
    """Return True if, for some query, a finite additive mask (such as -1e9) hides all keys that the other masks
    permit.
    """
    added = c.options.get("mask")
    if added is None or added.dtype == torch.bool or not queries or not keys:
        return False
    seen = added.float().masked_fill(~visible(c, queries, keys, device), -math.inf)
    most = seen.amax(-1)
    return bool((most.isfinite() & (most < -1e6)).any())


def sequences(g: Draw) -> tuple[Any, int, int]:
    """Return `cu_seqlens` of random packed sequences, and the numbers of query and key tokens.

    A sequence may be empty. The tensors may have further tokens after the last sequence, which belong to no
    sequence.
    """
    count = 1 + g.below(4)
    same = g.maybe(0.6)
    totals, starts = [], []
    for _ in range(1 if same else 2):
        lengths = [g.pick(1, 5, 0, 12, 33) for _ in range(count)]
        starts.append(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(g.device))
        totals.append(sum(lengths) + (1 + g.below(4) if g.maybe(0.4) else 0))
    totals = totals * 2 if same else totals
    if not all(totals):  # An empty tensor gets one token, which belongs to no sequence.
        totals = [total or 1 for total in totals]
    return (starts[0] if same else tuple(starts)), totals[0], totals[1]


def mask(g: Draw, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a bool or additive attention mask whose shape broadcasts to `shape`."""
    own = g.pick(shape, (shape[0], 1, 1, shape[3]), (1, 1, *shape[2:]), shape[2:], (shape[2], 1), (shape[3],))
    kind = g.pick(torch.bool, F32, dtype)
    values = g.normal(own, F32)
    if kind == torch.bool:
        made = values > g.pick(-0.5, 0.5, -3.0)
    else:
        made = torch.where(values > 0.7, g.pick(-math.inf, HIDDEN, 0.0), values) if g.maybe(0.5) else values
        made = made.clamp(min=-3e4) if kind == F16 and HIDDEN < -6e4 else made
        made = made.to(kind)
    return made.transpose(-1, -2).contiguous().transpose(-1, -2) if made.dim() > 1 and g.maybe(0.2) else made


def visible(c: Case, queries: int, keys: int, device: torch.device) -> Tensor:
    """Return a bool mask `[Sq, Sk]` of the visible keys.

    An element is true if query and key belong to the same sequence, and `causal` and `window` also permit the
    pair.
    """
    starts = c.options.get("cu_seqlens")
    q_starts, k_starts = starts if isinstance(starts, tuple) else (starts, starts)
    q_starts = [0, queries] if q_starts is None else q_starts.tolist()
    k_starts = [0, keys] if k_starts is None else k_starts.tolist()
    seen = torch.zeros(queries, keys, dtype=torch.bool, device=device)
    window = c.options.get("window")
    before, after = window if isinstance(window, tuple) else (window, window)
    after = 0 if c.options["causal"] else after
    for i in range(len(q_starts) - 1):
        rows, cols = (torch.arange(s[i], s[i + 1], device=device) for s in (q_starts, k_starts))
        # For the causal mask and the window, the last query of a sequence has the position of the last key.
        distance = (cols - k_starts[i + 1])[None] - (rows - q_starts[i + 1])[:, None]
        part = torch.ones_like(distance, dtype=torch.bool)
        part &= distance <= after if after is not None else part
        part &= distance >= -before if before is not None else part
        seen[q_starts[i] : q_starts[i + 1], k_starts[i] : k_starts[i + 1]] = part
    return seen


def attention(m: Exact, t: SimpleNamespace, c: Case) -> tuple[Tensor, ...]:
    o, packed = c.options, t.q.dim() == 3
    q, k, v = (x.unsqueeze(0) if packed else x for x in (t.q, t.k, t.v))
    q, k, v = (x.transpose(1, 2) if o["layout"] == "bshd" else x for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scale = o.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    with torch.no_grad():
        size = q.abs() @ k.abs().transpose(-1, -2) * abs(scale)
    scores = m.f32(m.edge(q) @ m.edge(k).transpose(-1, -2) * scale, 4.0, size)
    if o.get("softcap"):
        # Simulate a float32 error of `tanh`, and an independent error of its derivative `1 - tanh**2`.
        slope = m.slope(scores, 4 * UNIT)
        scores = m.f32(o["softcap"] * torch.tanh(scores / o["softcap"]), 4.0) + slope
        scores = m.f32(scores, 1.0, torch.full_like(scores, o["softcap"]))
    scores = m.back(scores, c.dtype)
    added = o.get("mask")
    seen = visible(c, q.shape[2], k.shape[2], q.device)
    if added is not None and added.dtype == torch.bool:
        seen = seen & added
    elif added is not None:
        scores = m.f32(scores + m.wide(added))
    scores = scores.masked_fill(~seen, -math.inf)
    top = scores.detach().amax(-1, keepdim=True) if k.shape[2] else scores.new_zeros(*scores.shape[:-1], 1)
    top = torch.where(top.isfinite(), top, 0.0)
    exponent = m.f32(torch.exp(m.f32(scores - top)), 4.0)
    total = m.f32(exponent.sum(-1, keepdim=True), 4.0)
    # The kernel rounds the exponentials (attention probabilities before the division) to the dtype of v
    # before it multiplies them by v.
    weights = m.back(m.round(exponent, c.dtype), c.dtype)
    divisor = torch.where(total > 0, total, torch.ones_like(total))  # a query without visible keys gets zeros
    if m.gradient:
        # The derivative with respect to `total` uses the rounded result.
        fixed = divisor.detach()
        y = m.f32(weights @ m.edge(v), 4.0) / fixed
        y = y - m.back(y.detach(), c.dtype) * (divisor - fixed) / fixed
        y = m.back(y, c.dtype)
    else:
        y = m.f32(weights / divisor @ v, 4.0)
    y = y.transpose(1, 2) if o["layout"] == "bshd" else y
    lse = (torch.log(total) + top)[..., 0]
    lse = m.f32(m.f32(lse, 4.0), 1.0, torch.ones_like(lse))
    y, lse = (y[0], lse[0]) if packed else (y, lse)
    return (y, lse) if o["return_lse"] else (y,)


def torch_attention(t: SimpleNamespace, c: Case) -> Tensor | None:
    """Return the result of torch's `scaled_dot_product_attention`, or None if torch does not support the
    options of this call."""
    o = c.options
    others = set(o) - {"layout", "causal", "scale", "mask", "return_lse"}
    if others or o["causal"] or o["return_lse"] or not t.q.numel() or not t.k.numel():
        return None
    if o.get("mask") is not None and o["mask"].dtype != torch.bool:
        return None
    # torch 2.11 on CUDA returns NaN for a zero or negative scale, so there is nothing to compare with.
    scale = o.get("scale")
    if t.q.is_cuda and scale is not None and scale <= 0.0:
        return None
    # Copy q, k and v to aligned tensors. On CUDA, torch reads wrong keys if the address of k is not a
    # multiple of 16 bytes.
    q, k, v = (x.clone(memory_format=torch.contiguous_format) for x in (t.q, t.k, t.v))
    q, k, v = (x.transpose(1, 2) if o["layout"] == "bshd" else x for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    seen = o.get("mask")
    seen = None if seen is None else seen.expand(*q.shape[:3], k.shape[2])
    # For a query without visible keys, torch returns 0 on the CPU, as oxiwarp does. Some of torch's CUDA
    # kernels return the mean of all rows of v.
    if t.q.is_cuda and seen is not None and not seen.any(-1).all():
        return None
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=o.get("scale"))
    return y.transpose(1, 2) if o["layout"] == "bshd" else y


register("attention", draw_attention, attention, torch=torch_attention, cases=20, contiguous=False)
