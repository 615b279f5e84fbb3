"""Tests of `oxiwarp.attention` on tensors that span more than 2^31 elements, for which 32-bit offsets
would overflow."""

import functools

import pytest
import torch
from helpers import random
from test_attention import heads
from test_attention_gradients import gradients, same

import oxiwarp

FAR = 2**31
GIB = 2**30


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def storage(request):
    """Return a bfloat16 buffer of more than 2^32 elements.

    On the CPU, only the few memory pages that the tests access are allocated. On a GPU, the whole buffer is
    allocated.
    """
    if request.param == "cuda" and (not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 12 * GIB):
        pytest.skip("no CUDA device with 12 GiB free")
    try:
        return torch.empty(2 * FAR + 2**23, dtype=torch.bfloat16, device=request.param)
    except RuntimeError as error:
        pytest.skip(f"no memory: {error}")


def spread(tensors, storage, dim):
    """Copy each tensor into the buffer `storage`, with a large stride in dimension `dim`, and yield a view of
    the copy.

    The first and the last index of `dim` are at least 2^31 elements apart. Each copy lies in the gaps between
    the elements of the other copies.
    """
    at = 0
    for x in tensors:
        strides = list(x.contiguous().stride())
        if x.shape[dim] > 1:
            strides[dim] = (FAR // (x.shape[dim] - 1) + 8) // 8 * 8  # 16-byte aligned, as the Hopper kernels require
        yield storage[at:].as_strided(x.shape, strides).copy_(x)
        at += x.numel()


@functools.cache
def contiguous(sizes, device):
    """Return contiguous inputs, an incoming gradient, and the results and gradients of the inputs."""
    inputs = heads(sizes, torch.bfloat16, device)
    dy = random(inputs[0].shape, torch.bfloat16, device, seed=9)
    return inputs, dy, oxiwarp.attention(*inputs, return_lse=True), gradients(inputs, dy)


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["batches", "tokens", "heads"])
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 70, 40, 4, 2, 64),  # the Hopper kernels take 64 queries or more
        (2, 70, 40, 2, 2, 128),
        (2, 6, 40, 4, 2, 72),
        (2, 2, 1100, 4, 2, 64),  # the keys are split among blocks (split-KV)
    ],
    ids=str,
)
def test_far(sizes, dim, storage):
    """Tensors that span more than 2^31 elements give the same results and gradients as contiguous copies.

    The test uses such tensors as queries, keys, values, incoming gradient and `out`.
    """
    inputs, dy, right, right_gradients = contiguous(sizes, storage.device)
    *far, far_dy = spread([*inputs, dy], storage, dim)
    # `out` does not lie between elements of the inputs
    (out,) = spread([torch.zeros_like(dy)], storage[FAR + 2**22 :], dim)
    assert all((x.shape[dim] - 1) * x.stride(dim) >= FAR for x in (*far, out, far_dy))
    assert same(oxiwarp.attention(*far, return_lse=True), right)
    assert oxiwarp.attention(*far, out=out) is out and torch.equal(out, right[0])
    assert same(gradients(far, far_dy), right_gradients)
    assert same(far, inputs) and torch.equal(far_dy, dy), "an input was written to"


@pytest.mark.parametrize("dim", [0, 1, 2, 3], ids=["batches", "heads", "queries", "keys"])
def test_far_mask(dim, storage):
    """A mask that spans more than 2^31 elements in one dimension gives the same results as its contiguous
    copy."""
    inputs = heads((2, 70, 40, 2, 2, 64), torch.bfloat16, storage.device)
    dy, mask = (random(x, torch.bfloat16, storage.device, seed=9) for x in (inputs[0].shape, (2, 2, 70, 40)))
    (far,) = spread([mask], storage, dim)
    assert same(oxiwarp.attention(*inputs, mask=far, return_lse=True),
                oxiwarp.attention(*inputs, mask=mask, return_lse=True))  # fmt: skip
    assert same(gradients(inputs, dy, mask=far), gradients(inputs, dy, mask=mask))
