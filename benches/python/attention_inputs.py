"""Inputs on which kernels of attention lose digits in different ways, and what FlashAttention-2 makes of them.

Queries, keys and values are `[B, H, S, D]`. attention.py measures errors on them, and tests bound them.
"""

import torch
from torch import Tensor

Heads = tuple[Tensor, Tensor, Tensor]
Sizes = tuple[int, int, int, int, int]
"""Batches, heads, queries, keys, columns."""


def normal(sizes: Sizes, dtype: torch.dtype, device: torch.device, seed: int = 0, sharpness: float = 1.0) -> Heads:
    """Normally distributed, the same on every device; scores are `sharpness` wide."""
    b, h, sq, sk, d = sizes
    generator = torch.Generator("cpu").manual_seed(seed)
    q, k, v = (torch.randn(b, h, s, d, generator=generator) for s in (sq, sk, sk))
    return tuple(x.to(dtype).to(device) for x in (q * sharpness, k, v))


def large(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Scores of some tens: few keys have nearly all the weight."""
    return normal(sizes, dtype, device, sharpness=10.0)


def one_hot(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Each query has one key of its own, anywhere, that stands out: by 30 for one of them, and less for the others."""
    q, k, v = normal(sizes, torch.float32, device)
    keys, columns = sizes[3:]
    own = k[:, :, (torch.arange(sizes[2]) * 7919 + keys // 2) % keys]
    amounts = torch.linspace(30, 0, q[..., 0].numel(), device=device).view(*q.shape[:-1], 1) / columns**0.5
    return tuple(x.to(dtype) for x in (own * amounts, k, v))


def along_first_column(scores: Tensor, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """All queries have `scores` of the keys, but for some noise."""
    q, k, v = normal(sizes, torch.float32, device, sharpness=0.25)
    q[..., 0], k[..., 0] = sizes[4] ** 0.5, scores.to(device)
    return tuple(x.to(dtype) for x in (q, k, v))


def long_tail(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """One key, three quarters along, is 6 above many, which weigh more together."""
    scores = torch.zeros(sizes[3])
    scores[sizes[3] * 3 // 4] = 6
    return along_first_column(scores, sizes, dtype, device)


def rising(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Every 41st key is above all before it, from 4 to 9 above the others."""
    scores = torch.zeros(sizes[3])
    scores[40::41] = torch.linspace(4, 9, sizes[3] // 41)
    return along_first_column(scores, sizes, dtype, device)


INPUTS = {"normal": normal, "large logits": large, "one-hot": one_hot, "long tail": long_tail, "rising": rising}


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlashAttention-2's roundings: scores and weights of float32; the weights, at most 1, are rounded for the product
    with values and not for their sum; the result is rounded once."""
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return ((weights.to(q.dtype).float() @ v.float()) / weights.sum(-1, keepdim=True)).to(q.dtype)


def relative_error(y: Tensor, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Of all elements together, against float64."""
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    right = scores.softmax(-1) @ v.double()
    return float((y.double() - right).norm() / right.norm())
