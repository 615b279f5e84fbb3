"""Tests of `oxiwarp.attention` on tensors at any address, with rows and masks of any stride.

The kernels copy 16 bytes at a time if base address and strides are multiples of 16 bytes. On Hopper GPUs,
calls with such tensors and at least 64 queries use other kernels. The tests therefore use 70 queries for the
Hopper kernels, and 6 queries for the other kernels.
"""

import pytest
import torch
from helpers import random
from test_attention import check, heads, sdpa

import oxiwarp

DTYPE = torch.bfloat16


def moved(x, offset, gap=0):
    """Copy `x` into a buffer full of NaN, and return the view of the copy. The copy starts after `offset`
    elements of the buffer, and `gap` elements follow each row."""
    wide = x.new_full((offset + x.shape[:-1].numel() * (x.shape[-1] + gap),), torch.nan)
    y = wide[offset:].view(*x.shape[:-1], x.shape[-1] + gap)[..., : x.shape[-1]]
    return y.copy_(x)


@pytest.mark.parametrize("queries", [6, 70])
@pytest.mark.parametrize("dim", [64, 72, 128])
def test_offsets(dim, queries, device):
    """Each of q, k and v may start at any element of a buffer. Of the tested offsets, only 0 and 8 elements
    (16 bytes) are aligned."""
    q, k, v = heads((2, queries, 40, 2, 1, dim), DTYPE, device)
    for offset in range(9):
        check(moved(q, offset), k, v)
        check(q, moved(k, offset), v)
        check(q, k, moved(v, offset))


@pytest.mark.parametrize("queries", [6, 70])
def test_strides(queries, device):
    """The strides of rows, heads and batches need not be multiples of 16 bytes, even if the base address is
    aligned."""
    q, k, v = heads((2, queries, 40, 2, 1, 64), DTYPE, device)
    for gap in (1, 2, 4, 8):
        check(moved(q, 0, gap), k, v)
        check(q, moved(k, 0, gap), moved(v, 8, gap))
    wide = random((2, queries * 128 + 4), DTYPE, device)  # only the batch stride is unaligned
    check(wide[:, : queries * 128].view(2, queries, 2, 64), k, v)
    # The stride of a dimension of size 1 is never used.
    one = random((1, queries, 1, 64), DTYPE, device)
    odd = one.as_strided(one.shape, (3, 64, 5, 1))
    assert torch.equal(oxiwarp.attention(odd, odd, odd), oxiwarp.attention(one, one, one))


@pytest.mark.parametrize("queries", [6, 70])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32, DTYPE], ids=str)
def test_masks(kind, queries, device):
    """Masks may be unaligned, expanded or transposed, with or without a query dimension."""
    q, k, v = heads((2, queries, 37, 2, 2, 64), DTYPE, device)
    for shape in ((2, 1, 1, 37), (1, 2, 1, 37), (queries, 37), (2, 2, queries, 37)):
        values = random(shape, torch.float32, device)
        mask = (values > -0.5) | (values == values.amax(-1, keepdim=True)) if kind == torch.bool else values.to(kind)
        for offset in (1, 3):
            wide = mask.new_zeros(*shape[:-1], 40)
            wide[..., offset : 37 + offset] = mask
            check(q, k, v, mask=wide[..., offset : 37 + offset])
        check(q, k, v, mask=mask.expand(2, 2, queries, 37))
        check(q, k, v, mask=mask.mT.contiguous().mT)
    check(q, k, v, mask=mask[..., :1])
    check(q, k, v, mask=mask[..., :1].expand(2, 2, queries, 37))


def test_gradients_of_any_layout(device):
    """Inputs and incoming gradient may be unaligned. The incoming gradient may also be an expanded scalar."""
    inputs = heads((2, 6, 40, 2, 1, 64), DTYPE, device)
    dy = random((2, 6, 2, 64), DTYPE, device, seed=9)

    def gradients(tensors, dy):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in tensors]
            return torch.autograd.grad(oxiwarp.attention(*leaves), leaves, dy)

    dense = gradients(inputs, dy)
    for offset in (1, 4, 8):
        for got, right in zip(gradients([moved(x, offset) for x in inputs], dy), dense, strict=True):
            torch.testing.assert_close(got, right, rtol=2e-2, atol=2e-2)
        assert all(torch.equal(a, b) for a, b in zip(gradients(inputs, moved(dy, offset)), dense, strict=True))
    ones = gradients(inputs, torch.ones_like(dy))
    expanded = gradients(inputs, torch.ones((), dtype=DTYPE, device=device).expand(dy.shape))
    assert all(torch.equal(a, b) for a, b in zip(expanded, ones, strict=True))


def test_few_queries_and_many_keys(device):
    """With few queries and many keys, unaligned tensors give accurate results.

    For aligned tensors of such sizes, the kernels split the keys among several blocks (split-KV). For
    unaligned tensors, they do not split the keys.
    """
    q, k, v = heads((1, 1, 1100, 4, 2, 64), DTYPE, device)
    right = sdpa(q, k, v, dtype=torch.float64)
    for offset in (0, 1, 4, 8):
        for x in ((moved(q, offset), k, v), (q, moved(k, offset), v), (q, k, moved(v, offset))):
            y, lse = oxiwarp.attention(*x, return_lse=True)
            assert (y.double() - right).abs().max() <= 2e-2 * right.abs().max() and lse.isfinite().all()
