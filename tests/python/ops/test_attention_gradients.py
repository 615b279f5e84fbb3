"""Tests of the gradient of `oxiwarp.attention` against float64.

Other tests compare the gradient bit for bit with the gradients of equivalent calls, for example one call per
packed sequence.
"""

import pytest
import torch
from helpers import random
from test_attention import HALVES, heads

import oxiwarp


def formula(q, k, v, *, mask=None, seen=None, scale=None, softcap=None):
    """Compute attention of `[B, S, H, D]` tensors with torch operators.

    Scores and softmax are computed in float32, or in float64 if `q` is float64. The attention probabilities
    and the result are rounded to the dtype of `q`.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2).to(wide) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    scores = scores if mask is None else scores + mask
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).to(q.dtype).to(wide), v).to(q.dtype)


def gradients(inputs, dy, call=oxiwarp.attention, **options):
    """Call `call` with detached `inputs`, and return the gradients with respect to them for the incoming
    gradient `dy`."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        return torch.autograd.grad(call(*leaves, **options), leaves, dy)


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients(dtype, device):
    inputs, dy = heads((1, 6, 20, 4, 2, 64), dtype, device), random((1, 6, 4, 64), dtype, device, seed=9)
    distance = torch.arange(20, device=device) - torch.arange(14, 20, device=device)[:, None]
    mask = random((1, 1, 6, 20), torch.float32, device)
    for options, seen in (
        ({}, None),
        ({"causal": True}, distance <= 0),
        ({"mask": mask}, None),
        ({"mask": mask > 0}, mask > 0),
        ({"window": 4}, distance.abs() <= 4),
        ({"window": (3, None)}, distance >= -3),
        ({"window": (5, 0), "causal": True}, (distance <= 0) & (distance >= -5)),
        ({"scale": 0.4}, None),
        ({"scale": -0.2}, None),
        ({"softcap": 2.0}, None),
        ({"softcap": 1.5, "scale": 0.4, "mask": mask}, None),
        ({"softcap": 3.0, "causal": True, "window": (7, None)}, (distance <= 0) & (distance >= -7)),
    ):
        given = {name: options[name] for name in ("scale", "softcap", "mask") if name in options} | {"seen": seen}
        given = {name: x for name, x in given.items() if not (name == "mask" and x.dtype == torch.bool)}
        wide = gradients([x.double() for x in inputs], dy.double(), formula, **given)
        own, ours = gradients(inputs, dy, formula, **given), gradients(inputs, dy, **options)
        for name, x, theirs, right in zip("qkv", ours, own, wide, strict=True):
            error, least = (x.double() - right).abs().max(), torch.finfo(dtype).eps * right.abs().max()
            bound = max(2 * (theirs.double() - right).abs().max(), 2 * least)
            assert error <= bound, f"d{name}, {options}: {error:.2e}, allowed {bound:.2e}"


def test_gradients_in_the_other_layout(device):
    inputs = [x.requires_grad_() for x in heads((1, 5, 9, 2, 2, 64), torch.float16, device)]
    dy = random((1, 5, 2, 64), torch.float16, device, seed=9)
    with torch.enable_grad():
        right = torch.autograd.grad(oxiwarp.attention(*inputs), inputs, dy)
        y = oxiwarp.attention(*(x.transpose(1, 2) for x in inputs), layout="bhsd").transpose(1, 2)
        own = torch.autograd.grad(y, inputs, dy.clone().as_strided(dy.shape, dy.stride()))
    assert all(torch.equal(a, b) for a, b in zip(own, right, strict=True))


# numbers of queries and keys of each packed sequence
LENGTHS = ((3, 10), (0, 4), (40, 40), (7, 0), (0, 0), (33, 150), (20, 3))


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (9, 2)}, {"softcap": 2.0, "scale": 0.3}], ids=str)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_packed_gradients(layout, options, device):
    """The gradients of packed sequences equal the gradients of one call per sequence, bit for bit.

    The Hopper kernels do not accept packed sequences and give other bits. The calls for single sequences must
    therefore not use these kernels, so every sequence has fewer than 64 queries.
    """
    starts = [torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32) for lengths in zip(*LENGTHS, strict=True)]
    queries, keys = (int(x[-1]) for x in starts)
    packed = [x[0] for x in heads((1, queries, keys, 4, 2, 64), torch.bfloat16, device)]
    dy = random((queries, 4, 64), torch.bfloat16, device, seed=9)

    def turned(x):
        return x.transpose(-3, -2) if layout == "bhsd" else x

    options = {**options, "layout": layout}
    whole = gradients([turned(x) for x in packed], turned(dy), cu_seqlens=tuple(starts), **options)
    for at in range(len(LENGTHS)):
        places = [slice(int(x[at]), int(x[at + 1])) for x in (starts[0], starts[1], starts[1])]
        inputs = [turned(x[None, s]) for x, s in zip(packed, places, strict=True)]
        alone = gradients(inputs, turned(dy[None, places[0]]), **options)
        for name, x, s, right in zip("qkv", whole, places, alone, strict=True):
            assert torch.equal(turned(x)[s], turned(right)[0]), f"d{name} of sequence {at}"
            assert right.isfinite().all() and (right.numel() == 0 or 0 in LENGTHS[at] or right.any())


@pytest.mark.parametrize(
    "sizes",
    [
        (2, 70, 130, 4, 2, 64),  # the Hopper kernels take 64 queries or more
        (2, 70, 70, 2, 1, 128),
        (2, 6, 40, 2, 1, 72),
        (2, 1, 1100, 4, 2, 64),  # the keys are split among blocks (split-KV)
    ],
    ids=str,
)
def test_batches_and_repetition(sizes, device):
    """The results and gradients of a batch entry have the same bits in a call with only this batch entry."""
    if device.type == "cpu" and sizes[4] == 2:
        # use half as many query heads and key heads, because the CPU executor is slow
        sizes = (*sizes[:3], 2, 1, sizes[5])
    inputs = heads(sizes, torch.bfloat16, device)
    dy = random(inputs[0].shape, torch.bfloat16, device, seed=9)
    for options in ({}, {"causal": True}):
        y, both = oxiwarp.attention(*inputs, return_lse=True, **options), gradients(inputs, dy, **options)
        assert same(oxiwarp.attention(*inputs, return_lse=True, **options), y)
        assert same(gradients(inputs, dy, **options), both)
        for at in range(2):
            one = [x[at : at + 1] for x in inputs]
            assert same(oxiwarp.attention(*one, return_lse=True, **options), [x[at : at + 1] for x in y])
            assert same(gradients(one, dy[at : at + 1], **options), [x[at : at + 1] for x in both])
