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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [7, 640, 20_480])
def test_in_place(cols, dtype, device):
    """`out` may be the inputs themselves, in any order. The results have the same bits."""
    x, residual = random((5, cols), dtype, device), random((5, cols), dtype, device, seed=2)
    weight = make_weight("same", cols, dtype, device)
    right = oxiwarp.add_rms_norm(x, residual, weight)
    for places in ((0, 1), (1, 0), (0, None), (None, 0), (None, 1)):
        inputs = x.clone(), residual.clone()
        out = tuple(torch.full_like(x, float("nan")) if at is None else inputs[at] for at in places)
        assert oxiwarp.add_rms_norm(*inputs, weight, out=out) is out
        for made, wanted in zip(out, right, strict=True):
            assert torch.equal(made, wanted), places


def test_in_place_of_slices(device):
    """The inputs may be slices of a wider tensor, whose other columns keep their values."""
    wide = random((4, 3, 3 * 64), torch.bfloat16, device)
    before = wide.clone()
    x, residual, _ = wide.chunk(3, dim=-1)
    right = oxiwarp.add_rms_norm(x, residual)
    oxiwarp.add_rms_norm(x, residual, out=(x, residual))
    assert torch.equal(x, right[0]) and torch.equal(residual, right[1])
    assert torch.equal(wide[..., 128:], before[..., 128:])


def test_in_place_counts_as_a_write(device):
    """If autograd has saved an input and `add_rms_norm` then overwrites it, the backward raises an error."""
    x, residual = random((2, 8), torch.float32, device), random((2, 8), torch.float32, device, seed=2)
    w = torch.ones(8, device=device, requires_grad=True)
    with torch.enable_grad():
        product = (w * residual).sum()
        with torch.no_grad():
            oxiwarp.add_rms_norm(x, residual, out=(x, residual))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


def test_out_is_refused(device):
    store = random((4, 24), torch.float32, device)
    before = store.clone()
    x, residual, other = store[:, :8], store[:, 8:16], store[:, 16:]
    for out, error, message in (
        ((store[:, 1:9], other), RuntimeError, "out overlaps x"),
        ((other, store[:, 7:15]), RuntimeError, "sum overlaps x"),
        ((x, x), RuntimeError, "out overlaps sum"),
        ((x, other[:, :4]), RuntimeError, r"sum has shape \[4, 4\], expected \[4, 8\]"),
        ((x.double(), other), RuntimeError, "out is float64, expected f32"),
        ((x,), ValueError, "out is not a pair"),
        (x, ValueError, "out is not a pair"),
        ((x, 3), TypeError, r"out\[1\] is int, expected a torch.Tensor"),
    ):
        with pytest.raises(error, match=f"^add_rms_norm: {message}"):
            oxiwarp.add_rms_norm(x, residual, out=out)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="^add_rms_norm: an input requires grad"):
        oxiwarp.add_rms_norm(x.clone().requires_grad_(), residual, out=(other, residual))
    assert torch.equal(store, before)
