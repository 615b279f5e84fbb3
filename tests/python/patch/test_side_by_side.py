"""Tests of `copy_chunks`. This function copies aligned tensors by a kernel in 16-byte chunks, and all other
tensors by torch's copy."""

import pytest
import torch
from helpers import random
from torch._subclasses.fake_tensor import FakeTensorMode

from oxiwarp.patching.fusions.shared import parallel_block
from oxiwarp.patching.fusions.shared.parallel_block import copy_chunks

BF16 = torch.bfloat16


def beside(columns, first=0, dtype=BF16, device="cpu"):
    """Return a tensor of NaN with 40 columns, and a view of `columns` of its columns, starting at column
    `first`."""
    whole = torch.full((2, 3, 40), torch.nan, device=device, dtype=dtype)
    return whole, whole[..., first : first + columns]


@pytest.mark.parametrize(
    ("columns", "first", "dtype", "chunks"),
    [(16, 0, BF16, True), (16, 8, BF16, True), (16, 4, BF16, False), (12, 0, BF16, False), (4, 8, torch.float32, True)],
)
def test_copy(columns, first, dtype, chunks, device):
    """`copy_chunks` copies every element and writes nothing outside of the destination."""
    (whole, y), x = beside(columns, first, dtype, device), random((2, 3, columns), dtype, device)
    assert parallel_block.in_chunks(y) == chunks and parallel_block.in_chunks(x) == (columns % 8 == 0 or chunks)
    copy_chunks(y, x)
    assert torch.equal(y, x) and whole.isnan().sum() == whole.numel() - x.numel()


def test_other_tensors(device):
    """`copy_chunks` also copies between different dtypes, from non-contiguous columns, and between fake tensors."""
    (_, y), x = beside(16, device=device), random((2, 3, 16), torch.float32, device)
    copy_chunks(y, x)
    assert torch.equal(y, x.to(y.dtype))
    turned = random((2, 16, 3), y.dtype, device).transpose(1, 2)
    copy_chunks(y, turned)
    assert torch.equal(y, turned)
    with FakeTensorMode():
        copy_chunks(*[torch.empty(2, 3, 16, device=device) for _ in range(2)])
