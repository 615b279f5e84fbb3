"""Tests of `oxiwarp.layer_norm` against float64. On a GPU, its results must also equal torch and diffusers
bit for bit."""

import pytest
import torch
from activations import check_once
from helpers import DTYPES, GPU_SHAPES, SHAPES, random
from norms import BF16, F32, WIDTHS, check_chain, layer_norm

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
PARAMETERS = [(None, None), ("same", "same"), ("f32", "f32"), ("same", None), (None, "f32")]


def make(kinds, cols, dtype, device):
    """Return a weight and a bias. `kinds` has a value for each of them: None for no tensor, "same" for the
    dtype of x, or "f32"."""
    return [
        None if kind is None else random((cols,), F32 if kind == "f32" else dtype, device, seed, 0.5)
        for seed, kind in enumerate(kinds, 1)
    ]


def check(x, weight=None, bias=None, eps=1e-5):
    """Check `layer_norm` against float64, and return its result.

    The permitted error is half a unit in the last place, plus a float32 error that grows with the absolute
    value of the row's mean.
    """
    y = oxiwarp.layer_norm(x, weight, bias, eps)
    assert y.shape == x.shape and y.dtype == x.dtype and y.device == x.device and y.is_contiguous()
    double = x.double()
    mean = double.mean(-1, keepdim=True)
    inv = ((double - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    n = (double - mean) * inv
    terms = (1 + n.abs()) * (1 + mean.abs() * inv)
    for parameter, product in ((weight, True), (bias, False)):
        if parameter is not None:
            parameter = parameter.double()
            n = n * parameter if product else n + parameter
            terms = terms * parameter.abs() if product else terms + parameter.abs()
    check_once(y, n, terms, f"{list(x.shape)} {x.dtype}")
    return y


@DTYPE
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, device):
    x = random((rows, cols), dtype, device)
    for kinds in PARAMETERS:
        check(x, *make(kinds, cols, dtype, device))
    check(x + 100)


@pytest.mark.parametrize(("rows", "cols", "gib"), GPU_SHAPES)
def test_large_table(rows, cols, gib, cuda):
    free, _ = torch.cuda.mem_get_info()
    if free < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of GPU memory")
    x = torch.empty(rows, cols, dtype=BF16, device=cuda).normal_()
    y = oxiwarp.layer_norm(x)
    assert not any(bool(part.isnan().any()) for part in y.chunk(64))
    for at in (slice(0, 3), slice(rows // 2, rows // 2 + 3), slice(rows - 3, rows)):
        assert torch.equal(check(x[at]), y[at])


@DTYPE
@pytest.mark.parametrize("cols", WIDTHS)
def test_bits_of_torch(cols, dtype, device):
    """On a GPU, `layer_norm` equals torch bit for bit. With float32 parameters, it equals diffusers' FP32LayerNorm."""
    x = random((16, cols), dtype, device) + 0.5
    for kinds in PARAMETERS[:3]:
        weight, bias = make(kinds, cols, dtype, device)
        for eps in (1e-5, 1e-6):
            wide = [tensor if tensor is None else tensor.double() for tensor in (x, weight, bias)]
            y, own = oxiwarp.layer_norm(x, weight, bias, eps), layer_norm(x, weight, bias, eps)
            check_chain(y, own, layer_norm(*wide, eps), f"{cols} {dtype} {kinds}")


@DTYPE
def test_fp32_layer_norm_of_diffusers(dtype, device):
    FP32LayerNorm = pytest.importorskip("diffusers.models.normalization").FP32LayerNorm
    module = FP32LayerNorm(640, eps=1e-6).to(device)
    torch.nn.init.normal_(module.weight)
    torch.nn.init.normal_(module.bias)
    x = random((2, 16, 640), dtype, device)
    right = module.double()(x.double())
    module.float()
    check_chain(oxiwarp.layer_norm(x, module.weight.data, module.bias.data, 1e-6), module(x), right, "FP32LayerNorm")


@DTYPE
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2048])
def test_strided_and_unaligned(cols, dtype, device):
    """Slices, expanded rows and unaligned base addresses give the same bits as contiguous rows at aligned
    addresses."""
    wide = random((4, 3, 3 * cols), dtype, device)
    weight, bias = make(("same", "f32"), cols, dtype, device)
    views = (wide[..., :cols], wide[..., cols : 2 * cols], wide[1:3, ::2, -cols:], wide[:, 1, :cols], wide[0, 0, :cols])
    for x in (*views, wide[..., 1 : cols + 1], random((1, cols), dtype, device).expand(5, cols)):
        assert torch.equal(check(x, weight, bias), oxiwarp.layer_norm(x.contiguous(), weight, bias))
    odd = torch.empty(cols + 1, dtype=dtype, device=device)[1:].copy_(random((cols,), dtype, device))
    x = random((5, cols), dtype, device)
    assert torch.equal(oxiwarp.layer_norm(x, odd), oxiwarp.layer_norm(x, odd.clone()))


@pytest.mark.parametrize("shape", [(8,), (2, 3, 8), (2, 1, 3, 8), (0, 8), (0, 3, 8), (2, 0, 8)], ids=str)
def test_ranks_and_no_rows(shape, device):
    check(random(shape, F32, device), *make(("same", "same"), 8, F32, device))


@DTYPE
def test_extremes(dtype, device):
    """A row with NaN or an infinity becomes NaN, as in torch. All other rows, including constant rows, are
    accurate."""
    x = random((6, 72), dtype, device)
    x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), -float("inf"), 3.0
    weight, bias = make(("same", "same"), 72, dtype, device)
    y, own = oxiwarp.layer_norm(x, weight, bias), layer_norm(x, weight, bias, 1e-5)
    assert torch.equal(y.isnan(), own.isnan()) and y[:3].isnan().all()
    check(x[3:], weight, bias)


@DTYPE
@pytest.mark.parametrize("cols", [40, 129, 3072, 30000])
def test_batch_invariant(cols, dtype, device):
    x, (weight, bias) = random((37, cols), dtype, device), make(("same", "f32"), cols, dtype, device)
    y = oxiwarp.layer_norm(x, weight, bias)
    for row in (0, 17, 30):
        assert torch.equal(oxiwarp.layer_norm(x[row : row + 1], weight, bias)[0], y[row])
        assert torch.equal(oxiwarp.layer_norm(x[row : row + 7], weight, bias), y[row : row + 7])


def test_out_of_memory_cpu():
    x = torch.ones(1, 64).expand(2**42, 64)
    with pytest.raises(RuntimeError, match="can't allocate memory|not enough memory"):
        oxiwarp.layer_norm(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [5, 7, 9, 17, 33, 1001])
def test_constant_rows(cols, dtype, device):
    """The variance of a constant row is exactly 0, as in torch.

    For the odd numbers of columns in this test, torch's CUDA kernel has no vectorized loads. Its variance is
    0, too.
    """
    x = torch.full((2, cols), 1000.1, device=device).to(dtype)
    scale, shift = torch.zeros(2, cols, dtype=x.dtype, device=device), torch.ones(cols, dtype=x.dtype, device=device)
    assert (oxiwarp.layer_norm(x) == 0).all()
    assert (oxiwarp.ada_norm(x, scale, shift) == 1).all()
    heads = x.unsqueeze(0).unsqueeze(2)
    assert (oxiwarp.qk_norm_rope(heads, norm="layer_norm") == 0).all()
    assert oxiwarp.layer_norm(x, eps=0.0).isnan().all()
    if device.type == "cuda":  # torch's CPU kernel has a rounding error here
        assert (torch.nn.functional.layer_norm(x, (cols,)) == 0).all()
