"""Tests of `oxiwarp.add_rms_norm`: the sum `x + residual` has torch's bits, and the norm is computed from the
rounded sum."""

import pytest
import torch
from helpers import DTYPES, SHAPES, VARIANTS, check_error, make_weight, random, reference, torch_chain

import oxiwarp


def check(x, residual, variant, eps=1e-6):
    options = {key: variant[key] for key in ("weight_offset", "rounding")}
    weight = make_weight(variant["weight"], x.shape[-1], x.dtype, x.device)
    y, total = oxiwarp.add_rms_norm(x, residual, weight, eps, **options)
    assert torch.equal(total, x + residual), "the sum is not torch's"
    assert y.shape == total.shape == x.shape and y.is_contiguous() and total.is_contiguous()
    right, own = (f(total, weight, eps, **options) for f in (reference, torch_chain))
    check_error(y, own, right, f"{list(x.shape)} {x.dtype} {variant}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, device):
    x, residual = random((rows, cols), dtype, device), random((rows, cols), dtype, device, seed=2)
    for variant in VARIANTS:
        check(x, residual, variant)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [7, 64, 129])
def test_strided(cols, dtype, device):
    wide = random((4, 3, 2 * cols), dtype, device)
    residual = random((4, 3, cols), dtype, device, seed=2)
    check(wide[..., cols:], residual, VARIANTS[1])
    check(residual, wide[..., :cols], VARIANTS[3])
    check(wide[..., cols:], wide[..., :cols], VARIANTS[0])


def test_unaligned(device):
    store = random((3 * 33 + 8,), torch.bfloat16, device)
    x, residual = store[1 : 1 + 99].view(3, 33), store[3 : 3 + 99].view(3, 33)
    check(x, residual, VARIANTS[1])


def test_same_tensor_twice(device):
    x = random((3, 64), torch.float16, device)
    check(x, x, VARIANTS[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_the_two_steps(dtype, device):
    """`add_rms_norm` gives the same bits as `+` followed by `rms_norm`."""
    x, residual = random((9, 640), dtype, device), random((9, 640), dtype, device, seed=2)
    weight = make_weight("same", 640, dtype, device)
    y, total = oxiwarp.add_rms_norm(x, residual, weight)
    assert torch.equal(y, oxiwarp.rms_norm(total, weight))


def test_no_rows(device):
    y, total = oxiwarp.add_rms_norm(*(torch.empty(0, 8, device=device) for _ in range(2)))
    assert y.shape == total.shape == (0, 8)
