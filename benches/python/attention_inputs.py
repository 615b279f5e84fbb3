"""Attention inputs that lead to large rounding errors, each in a different way, and an emulation of
FlashAttention-2.

Queries, keys and values are `[B, H, S, D]`. attention.py measures the errors of attention kernels on these
inputs. Tests check that the errors of oxiwarp are below a limit.
"""

import torch
from torch import Tensor

Heads = tuple[Tensor, Tensor, Tensor]
Sizes = tuple[int, int, int, int, int]
"""Sizes of an attention call: batches, heads, queries, keys, head dimension."""


def normal(sizes: Sizes, dtype: torch.dtype, device: torch.device, seed: int = 0, sharpness: float = 1.0) -> Heads:
    """Return normally distributed q, k and v. They have the same values on every device. `sharpness` scales
    the scores QKᵀ."""
    b, h, sq, sk, d = sizes
    generator = torch.Generator("cpu").manual_seed(seed)
    q, k, v = (torch.randn(b, h, s, d, generator=generator) for s in (sq, sk, sk))
    return tuple(x.to(dtype).to(device) for x in (q * sharpness, k, v))


def large(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Return inputs with scores QKᵀ of several tens. After softmax, a few keys have nearly all the attention
    probability."""
    return normal(sizes, dtype, device, sharpness=10.0)


def one_hot(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Return inputs in which one key per query has a larger score QKᵀ than all other keys.

    Which key this is differs from query to query. Its score exceeds the other scores by about 30 for the first query,
    and by less for later queries.
    """
    q, k, v = normal(sizes, torch.float32, device)
    keys, columns = sizes[3:]
    own = k[:, :, (torch.arange(sizes[2]) * 7919 + keys // 2) % keys]
    amounts = torch.linspace(30, 0, q[..., 0].numel(), device=device).view(*q.shape[:-1], 1) / columns**0.5
    return tuple(x.to(dtype) for x in (own * amounts, k, v))


def along_first_column(scores: Tensor, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Return inputs whose scores QKᵀ are `scores`, one value per key, plus noise.

    The scores are equal for all queries.
    """
    q, k, v = normal(sizes, torch.float32, device, sharpness=0.25)
    q[..., 0], k[..., 0] = sizes[4] ** 0.5, scores.to(device)
    return tuple(x.to(dtype) for x in (q, k, v))


def long_tail(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Return inputs whose score QKᵀ is about 6 for one key and about 0 for all other keys.

    The other keys together have a larger attention probability than this key.
    """
    scores = torch.zeros(sizes[3])
    scores[sizes[3] * 3 // 4] = 6
    return along_first_column(scores, sizes, dtype, device)


def rising(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Heads:
    """Return inputs in which every 41st key has a larger score than all keys before it. The running maximum
    of an online softmax therefore rises often."""
    scores = torch.zeros(sizes[3])
    scores[40::41] = torch.linspace(4, 9, sizes[3] // 41)
    return along_first_column(scores, sizes, dtype, device)


INPUTS = {"normal": normal, "large logits": large, "one-hot": one_hot, "long tail": long_tail, "rising": rising}


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with the roundings of FlashAttention-2.

    Scores and exponentials are computed in float32. The exponentials are rounded to the dtype of `q` for the
    PV matrix multiplication, but not for the row sum. The product is divided by the row sum in float32, and
    then rounded once.
    """
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return ((weights.to(q.dtype).float() @ v.float()) / weights.sum(-1, keepdim=True)).to(q.dtype)


def relative_error(y: Tensor, q: Tensor, k: Tensor, v: Tensor) -> float:
    """Return norm(y - ref) / norm(ref), where `ref` is attention of q, k and v in float64."""
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    right = scores.softmax(-1) @ v.double()
    return float((y.double() - right).norm() / right.norm())
