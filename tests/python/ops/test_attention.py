"""Tests of `oxiwarp.attention`: compared with float64 and `F.scaled_dot_product_attention`, eager and compiled."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import random
from test_compile import backends
from torch.nn.attention import SDPBackend, sdpa_kernel

import oxiwarp

HALVES = (torch.float16, torch.bfloat16)
OPS = torch.ops.oxiwarp


def heads(sizes, dtype, device, seed=0):
    """Return random queries, keys and values, each `[B, S, H, D]`, for `sizes` = `(B, Sq, Sk, H, Hkv, D)`."""
    b, sq, sk, h, hkv, d = sizes
    shapes = ((b, sq, h, d), (b, sk, hkv, d), (b, sk, hkv, d))
    return [random(shape, dtype, device, seed=seed + i) for i, shape in enumerate(shapes)]


def sdpa(q, k, v, *, mask=None, scale=None, dtype=None):
    """Compute `F.scaled_dot_product_attention` of `[B, S, H, D]` tensors, in `dtype` if it is given.

    This function avoids faults of torch 2.11 on an H200. torch's FlashAttention-2 fails on unaligned rows, so
    the inputs are copied to contiguous tensors. torch's cuDNN backend fails on masks that are broadcast along
    the keys, and reads float32 masks as 16-bit values. It is therefore disabled.
    """
    q, k, v = (x.transpose(1, 2).to(dtype or x.dtype, copy=True).contiguous() for x in (q, k, v))
    if mask is not None:
        mask = (mask if mask.dtype == torch.bool else mask.to(q.dtype)).expand(*q.shape[:3], k.shape[2]).contiguous()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)


def check(q, k, v, *, seen=None, **options):
    """Check that the error of `oxiwarp.attention` is at most twice torch's error. Return the result.

    `seen` is a boolean mask for torch with the effect of the options `causal` and `window` in `options`.
    """
    y = oxiwarp.attention(q, k, v, **options)
    assert y.shape == q.shape and y.dtype == q.dtype and y.device == q.device
    mask = options.get("mask") if seen is None else seen
    right = sdpa(q, k, v, mask=mask, scale=options.get("scale"), dtype=torch.float64)
    own = sdpa(q, k, v, mask=mask, scale=options.get("scale"))
    error, least = (y.double() - right).abs().max(), torch.finfo(q.dtype).eps * right.abs().max()
    assert error <= max(2 * (own.double() - right).abs().max(), least), f"{error:.2e}, torch {least:.2e}"
    return y


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1, 64),
        (2, 5, 70, 4, 2, 64),  # grouped-query attention
        (1, 130, 20, 2, 2, 72),  # two query tiles; the head dimension is padded
        (1, 3, 7, 3, 1, 96),
        (1, 9, 33, 1, 1, 128),
        (1, 4, 17, 1, 1, 256),
        (1, 6, 11, 2, 1, 20),  # the head dimension is not a multiple of 8
        (2, 1, 1030, 4, 2, 64),  # with one query, several blocks share the keys (split-KV)
    ],
    ids=str,
)
def test_sizes(sizes, dtype, device):
    check(*heads(sizes, dtype, device))


def test_layouts(device):
    q, k, v = heads((2, 7, 7, 3, 3, 64), torch.bfloat16, device)
    y = check(q, k, v)
    other = oxiwarp.attention(*(x.transpose(1, 2) for x in (q, k, v)), layout="bhsd")
    assert torch.equal(other.transpose(1, 2), y) and other.transpose(1, 2).is_contiguous()
    dense = oxiwarp.attention(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), layout="bhsd")
    assert torch.equal(dense, other)
    fused = torch.stack((q, k, v), 2)
    assert torch.equal(oxiwarp.attention(*fused.unbind(2)), y)
    wide = random((2, 7, 3, 65), torch.bfloat16, device)
    check(wide[..., 1:], wide[..., :64], wide[..., 1:])  # unaligned q and v
    check(q, k[:, :, :1].expand(-1, -1, 3, -1), v)


def test_causal_and_window(device):
    for sq, sk in ((20, 20), (4, 30)):
        q, k, v = heads((1, sq, sk, 2, 1, 64), torch.bfloat16, device)
        distance = torch.arange(sk, device=device) - torch.arange(sk - sq, sk, device=device)[:, None]
        check(q, k, v, causal=True, seen=distance <= 0)
        check(q, k, v, window=5, seen=distance.abs() <= 5)
        check(q, k, v, window=(3, None), causal=True, seen=(distance <= 0) & (distance >= -3))
        check(q, k, v, window=(None, 2), seen=distance <= 2)


@pytest.mark.parametrize("kind", [torch.bool, torch.float32, torch.bfloat16], ids=str)
def test_masks(kind, device):
    q, k, v = heads((2, 6, 40, 2, 2, 64), torch.bfloat16, device)
    for shape in ((6, 40), (2, 1, 1, 40), (1, 2, 6, 40), (2, 2, 6, 40), (6, 1)):
        mask = random(shape, torch.float32, device)
        check(q, k, v, mask=(mask > -0.5) | (mask == mask.max()) if kind == torch.bool else mask.to(kind))
    same = oxiwarp.attention(*(x.transpose(1, 2) for x in (q, k, v)), mask=mask, layout="bhsd")
    assert torch.equal(same.transpose(1, 2), oxiwarp.attention(q, k, v, mask=mask))


def test_rows_that_see_nothing(device):
    q, k, v = heads((1, 4, 10, 1, 1, 64), torch.float16, device)
    mask = torch.ones(4, 10, dtype=torch.bool, device=device)
    mask[2] = False
    y, lse = oxiwarp.attention(q, k, v, mask=mask, return_lse=True)
    assert (y[0, 2] == 0).all() and lse[0, 0, 2] == -math.inf and lse[0, 0, [0, 1, 3]].isfinite().all()
    y, lse = oxiwarp.attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert (y == 0).all() and (lse == -math.inf).all()
    assert oxiwarp.attention(q[:, :0], k, v).shape == (1, 0, 1, 64)
    y = oxiwarp.attention(q, k[:, :2], v[:, :2], causal=True)
    assert (y[:, :2] == 0).all() and y[:, 2:].abs().sum() > 0


@pytest.mark.parametrize("hidden", ["minimum", -1e9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("queries", [1, 70], ids=["by query", "by key"])
def test_rows_hidden_by_finite_masks(queries, dtype, hidden, device):
    """If a finite mask value, such as -1e9, hides all keys of a query, its result is the mean of all rows of
    `v`.

    torch gives the same result. Such a query adds nothing to the gradients of q, k and v.
    """
    hidden = torch.finfo(dtype).min if hidden == "minimum" else hidden
    q, k, v = (x.requires_grad_() for x in heads((2, 70, 40, 2, 1, 64), torch.bfloat16, device))
    mask = torch.zeros(2, 1, 70 // queries, 40, device=device, dtype=dtype)
    mask[0, :, :2], mask[1, :, :2, 5:] = hidden, hidden
    y = check(q.detach(), k.detach(), v.detach(), mask=mask)
    torch.testing.assert_close(y[0, 0, 0], v[0].detach().float().mean(0)[0].to(y.dtype), rtol=2e-2, atol=1e-3)
    dy = random(y.shape, y.dtype, device, seed=3)
    dead = dy.clone()
    # These are the queries whose keys are all hidden. If the mask has only one row, they are all queries of
    # batch entry 0.
    dead[0, : 2 * queries] = 0
    with torch.enable_grad():
        gradients, without = (
            torch.autograd.grad(oxiwarp.attention(q, k, v, mask=mask), (q, k, v), grad) for grad in (dy, dead)
        )
    for gradient, other in zip(gradients, without, strict=True):
        assert torch.equal(gradient, other)


@pytest.mark.parametrize("scale", [1e-38, 1e-40])
@pytest.mark.parametrize("queries", [1, 70])
def test_tiny_scales(scale, queries, device):
    """With a scale of 1e-38 or less, every key has the same attention probability, as with a scale of 0."""
    q, k, v = heads((1, queries, 1100, 2, 2, 64), torch.bfloat16, device)
    y, lse = oxiwarp.attention(q, k, v, scale=scale, return_lse=True)
    assert torch.equal(y, oxiwarp.attention(q, k, v, scale=0.0))
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(1100)))


def test_lse_scale_and_softcap(device):
    q, k, v = heads((2, 5, 9, 2, 1, 64), torch.float16, device)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double().repeat_interleave(2, 2))
    for scale, cap in ((None, None), (0.3, None), (-0.1, None), (0.5, 4.0)):
        y, lse = oxiwarp.attention(q, k, v, scale=scale, softcap=cap, return_lse=True)
        right = scores * (scale or 0.125)
        right = right if cap is None else cap * (right / cap).tanh()
        torch.testing.assert_close(lse.double(), right.logsumexp(-1), rtol=1e-5, atol=1e-5)
        out = torch.einsum("bhqk,bkhd->bqhd", right.softmax(-1), v.double().repeat_interleave(2, 2))
        torch.testing.assert_close(y.double(), out, rtol=2e-3, atol=2e-3)
    y, lse = oxiwarp.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout="bhsd", return_lse=True)
    assert lse.shape == (2, 2, 5)


def test_packed_sequences(device):
    q, k, v = (x[0] for x in heads((1, 20, 31, 2, 1, 64), torch.bfloat16, device))
    starts = torch.tensor([0, 3, 3, 20], dtype=torch.int32, device=device)
    key_starts = torch.tensor([0, 10, 14, 31], dtype=torch.int32, device=device)
    y, lse = oxiwarp.attention(q, k, v, cu_seqlens=(starts, key_starts), causal=True, return_lse=True)
    assert lse.shape == (2, 20)
    for (a, b), (c, d) in (((0, 3), (0, 10)), ((3, 20), (14, 31))):
        alone, own = oxiwarp.attention(q[None, a:b], k[None, c:d], v[None, c:d], causal=True, return_lse=True)
        assert torch.equal(y[a:b], alone[0]) and torch.equal(lse[:, a:b], own[0])
    one = oxiwarp.attention(q, q[:, :1], q[:, :1], cu_seqlens=starts)
    assert torch.equal(one[:3], oxiwarp.attention(q[None, :3], q[None, :3, :1], q[None, :3, :1])[0])


def test_tokens_behind_the_last_sequence(device):
    """For tokens after the last packed sequence, results and gradients are zero, even if these tokens are
    NaN."""
    q, k, v = (x[0] for x in heads((1, 300, 300, 2, 1, 64), torch.bfloat16, device))
    starts = torch.tensor([0, 100, 170], dtype=torch.int32, device=device)
    for x in (q, k, v):
        x[170:] = float("nan")
        x.requires_grad_()
    whole = [x.detach()[:170].requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        y, lse = oxiwarp.attention(q, k, v, cu_seqlens=starts, return_lse=True)
        right = oxiwarp.attention(*whole, cu_seqlens=starts)
    assert torch.equal(y[:170], right) and torch.equal(y[170:], torch.zeros_like(y[170:]))
    assert (lse[:, 170:] == -torch.inf).all()
    dy = random(y.shape, y.dtype, device)
    gradients = zip(torch.autograd.grad(y, (q, k, v), dy), torch.autograd.grad(right, whole, dy[:170]), strict=True)
    for name, (got, expected) in zip("qkv", gradients, strict=True):
        assert torch.equal(got[:170], expected) and torch.equal(got[170:], torch.zeros_like(got[170:])), name
    with pytest.raises(RuntimeError, match=r"^attention: cu_seqlens_q has shape \[1\], expected one sequence at least"):
        oxiwarp.attention(q.detach(), k.detach(), v.detach(), cu_seqlens=starts[:1])
    assert oxiwarp.attention(q.detach()[:0], k.detach()[:0], v.detach()[:0], cu_seqlens=starts[:1]).shape == (0, 2, 64)


def test_a_query_does_not_depend_on_the_others(device):
    q, k, v = heads((2, 40, 50, 2, 1, 64), torch.bfloat16, device)
    y = oxiwarp.attention(q, k, v)
    assert torch.equal(oxiwarp.attention(q[:1, 7:8], k[:1], v[:1]), y[:1, 7:8])
    assert torch.equal(oxiwarp.attention(q, k, v), y)


@pytest.mark.parametrize("backend", backends())
def test_compile(backend, device):
    @torch.compile(fullgraph=True, backend=backend)
    def block(q, k, v):
        return oxiwarp.attention(q + 0, k, v, causal=True) * 1

    inputs = heads((1, 6, 6, 2, 1, 64), torch.bfloat16, device)
    assert torch.equal(block(*inputs), oxiwarp.attention(*inputs, causal=True))


def test_opcheck(device):
    q, k, v = heads((1, 4, 6, 2, 1, 64), torch.float16, device)
    mask = torch.ones(1, 1, 1, 6, dtype=torch.bool, device=device)
    for heads_first in (False, True):
        x = [y.transpose(1, 2) for y in (q, k, v)] if heads_first else [q, k, v]
        shared = (*x, mask, None, None, heads_first, False, 0.125, -1, -1, 0.0)
        torch.library.opcheck(OPS.attention.default, (*shared, True))
        out, lse = OPS.attention(*shared, True)
        torch.library.opcheck(OPS.attention_backward.default, (*shared, out, lse, torch.ones_like(x[0])))
