"""Tests of `oxiwarp.attention(out=...)`, where `out` is a view of a wider buffer.

The kernels must not write to the columns of the buffer that are not part of `out`.
"""

import pytest
import torch
from helpers import random
from test_attention import OPS, heads
from test_compile import backends

import oxiwarp

SIZES = (  # calls with 70 queries use the Hopper kernels; with 1030 keys, several blocks share the keys (split-KV)
    (2, 6, 40, 2, 1, 64),
    (1, 70, 33, 2, 2, 128),
    (2, 70, 37, 2, 1, 72),
    (1, 5, 9, 2, 2, 20),
    (1, 1, 1030, 4, 2, 64),
)


def beside(q, after, heads_first=False):
    """Return two tensors: a buffer filled with NaN, and a view of it with the shape of `q`, to pass as `out`.

    Each token of the buffer has the columns of its heads, and then `after` columns that do not belong to the
    view.
    """
    b, s, h, d = q.shape
    wide = q.new_full((b, s, h * d + after), torch.nan)
    place = wide[..., : h * d].unflatten(2, (h, d))
    return wide, place.transpose(1, 2) if heads_first else place


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_into_a_buffer(sizes, heads_first, device):
    """A call of `attention` with an aligned `out` gives the same bits as a call without `out`, for several
    token strides of `out`.

    Columns of the buffer that are not part of `out` stay unchanged.
    """
    q, k, v = heads(sizes, torch.bfloat16, device)
    options = {"layout": "bhsd"} if heads_first else {}
    inputs = [x.transpose(1, 2) for x in (q, k, v)] if heads_first else [q, k, v]
    right = oxiwarp.attention(*inputs, **options)
    for after in (0, 8, 64):
        wide, place = beside(q, after, heads_first)
        assert oxiwarp.attention(*inputs, out=place, **options) is place
        assert torch.equal(place, right), after
        assert wide[..., q.shape[2] * q.shape[3] :].isnan().all()
    for after in (1, 4):  # an unaligned `out` uses another kernel, whose last bits differ
        wide, place = beside(q, after, heads_first)
        oxiwarp.attention(*inputs, out=place, **options)
        torch.testing.assert_close(place, right, rtol=0.02, atol=0.02)
        assert wide[..., q.shape[2] * q.shape[3] :].isnan().all()


def test_masks_and_packed_sequences(device):
    q, k, v = heads((1, 70, 40, 2, 2, 64), torch.float16, device)
    mask = random((1, 1, 1, 40), torch.float32, device, seed=5) > -0.5
    _, place = beside(q, 8)
    assert torch.equal(oxiwarp.attention(q, k, v, mask=mask, out=place), oxiwarp.attention(q, k, v, mask=mask))
    starts = torch.tensor([0, 30, 70], dtype=torch.int32, device=device)
    _, place = beside(q, 8)
    packed = oxiwarp.attention(q[0], q[0], q[0], cu_seqlens=starts, out=place[0])
    assert torch.equal(packed, oxiwarp.attention(q[0], q[0], q[0], cu_seqlens=starts))


def test_refused(device):
    q, k, v = heads((1, 6, 6, 2, 2, 64), torch.bfloat16, device)
    for out, what in (
        (q, "out overlaps q"),
        (v, "out overlaps v"),
        (q.new_empty(1, 6, 2, 32), "out has shape"),
        (q.new_empty(q.shape, dtype=torch.float16), "out is f16"),
        (q.new_empty(1, 6, 2, 128)[..., ::2], "last dimension must be contiguous"),
        (q.new_empty(1, 1, 2, 64).expand(q.shape), "must not repeat its elements"),
    ):
        with pytest.raises(RuntimeError, match=what):
            oxiwarp.attention(q, k, v, out=out)
    with pytest.raises(TypeError, match="out is int"):
        oxiwarp.attention(q, k, v, out=1)
    with pytest.raises(ValueError, match="return_lse"):
        oxiwarp.attention(q, k, v, out=torch.empty_like(q), return_lse=True)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="no gradient with out"):
        oxiwarp.attention(q.requires_grad_(), k, v, out=torch.empty_like(k))


@pytest.mark.parametrize("backend", backends())
def test_compile(backend, device):
    @torch.compile(fullgraph=True, backend=backend)
    def block(q, k, v):
        wide = q.new_zeros(*q.shape[:2], 136)
        place = wide[..., :128].unflatten(2, (2, 64))
        assert oxiwarp.attention(q, k, v, out=place) is place
        return wide * 1

    inputs = heads((1, 6, 6, 2, 1, 64), torch.bfloat16, device)
    y = block(*inputs)
    assert torch.equal(y[..., :128].unflatten(2, (2, 64)), oxiwarp.attention(*inputs)) and not y[..., 128:].any()


def test_opcheck(device):
    q, k, v = heads((1, 4, 6, 2, 1, 64), torch.float16, device)
    _, place = beside(q, 8)
    torch.library.opcheck(OPS.attention_out.default, (q, k, v, *(None,) * 3, False, False, 0.125, -1, -1, 0.0, place))
