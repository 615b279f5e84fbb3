"""Tests of `oxiwarp.quantize_fp8` against its formulas in torch, against float64, and with torch's scaled products."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, SHAPES, random, same_bits
from test_compile import backends_by_size

import oxiwarp

OPS = torch.ops.oxiwarp
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
BLOCKS = (None, 128)


def split(x, block):
    """Return the elements that share a scale in the last dimension: `[..., scales, elements]`."""
    if block is None:
        return x.unsqueeze(-2)
    return F.pad(x, (0, -x.shape[-1] % block)).unflatten(-1, (-1, block))


def own(x, block, dtype):
    """Quantize with torch operators. torch's conversion does not saturate in all versions, so the values are
    clamped."""
    largest = torch.finfo(dtype).max
    parts = split(x.float(), block)
    scale = parts.abs().amax(-1, keepdim=True) / largest
    scale = torch.where(scale < 2.0**-126, 2.0**-126, scale)
    values = (parts * (1 / scale)).clamp(-largest, largest).flatten(-2)[..., : x.shape[-1]]
    return values.to(dtype), scale[..., 0]


def aligned(rows):
    return -(-rows // 4) * 4


def check(x, block, dtype=torch.float8_e4m3fn):
    values, scales = oxiwarp.quantize_fp8(x, block=block, dtype=dtype)
    expected, expected_scales = own(x, block, dtype)
    assert values.dtype is dtype and values.shape == x.shape and values.is_contiguous()
    assert scales.dtype is torch.float32 and scales.shape == expected_scales.shape
    assert values.device == scales.device == x.device
    assert torch.equal(scales, expected_scales) and same_bits(values, expected)
    if block is None:
        assert scales.is_contiguous()
    elif x.numel():
        flat = scales.flatten(0, -2) if x.dim() > 1 else scales[None]
        assert flat.data_ptr() == scales.data_ptr()
        assert (len(flat) == 1 or flat.stride(0) == 1) and flat.stride(1) == aligned(len(flat))
    return values, scales


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, block, device):
    check(random((rows, cols), dtype, device, scale=2.0), block)


@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 7, 128, 129, 2048])
def test_strided_rows(cols, dtype, block, fp8, device):
    wide = random((4, 3, 3 * cols), dtype, device)
    for x in (wide[..., :cols], wide[1:3, ::2, -cols:], wide[:, 1, :cols], wide[0, 0, :cols], wide[..., 1 : cols + 1]):
        check(x, block, fp8)
    check(random((1, cols), dtype, device).expand(5, cols), block, fp8)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("shape", [(8,), (2, 3, 8), (2, 1, 3, 300), (0, 3, 8), (2, 0, 300)])
def test_ranks(shape, block, device):
    check(random(shape, torch.float32, device), block)


@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error(dtype, block, fp8, device):
    """The product of value and scale differs from `x` by half a unit in the last place of the 8-bit format, and by
    three rounding errors of float32."""
    x = random((16, 700), dtype, device, scale=3.0)
    values, scales = oxiwarp.quantize_fp8(x, block=block, dtype=fp8)
    parts, quantized = (split(t.double(), block) for t in (x, values))
    quotient = parts / scales.double().unsqueeze(-1)
    info = torch.finfo(fp8)
    exponent = torch.frexp(quotient.abs().clamp_min(info.smallest_normal))[1] - 1
    allowed = 0.5 * info.eps * torch.exp2(exponent.double()) + 3 * 2.0**-24 * quotient.abs()
    assert ((quantized - quotient).abs() <= allowed).all()


@pytest.mark.parametrize("fp8", FP8, ids=str)
def test_conversion(fp8, device):
    """If the scale is 1, the values have the bits of torch's conversion, for all codes and all boundaries between
    two codes."""
    info = torch.finfo(fp8)
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(fp8).float()
    codes = codes[codes.isfinite()].sort().values
    middles = (codes[1:] + codes[:-1]) / 2
    towards = [torch.nextafter(middles, torch.full_like(middles, sign * float("inf"))) for sign in (-1, 1)]
    x = torch.cat([codes, middles, *towards])
    assert x.abs().max() == info.max
    values, scales = oxiwarp.quantize_fp8(x) if fp8 is FP8[0] else oxiwarp.quantize_fp8(x, dtype=fp8)
    assert scales.item() == 1.0 and same_bits(values, x.to(fp8))


@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes(dtype, block, fp8, device):
    info = torch.finfo(dtype)
    x = random((9, 300), dtype, device)
    x[0], x[1], x[2] = 0.0, info.max, info.smallest_normal
    x[3] = info.smallest_normal * info.eps  # the smallest subnormal number
    x[4, 7:] = x[4, 7:] * 1e-4
    x[5, 3], x[6, 4], x[6, 290] = info.max, info.tiny, -info.max
    x[7], x[8] = -0.0, x[8] * info.smallest_normal
    check(x, block, fp8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_not_finite(dtype, device):
    """A NaN makes its scale and its values NaN. An infinity makes its scale infinite, so that every product of
    value and scale is NaN. Other rows and blocks do not change."""
    x = torch.ones(3, 300, dtype=dtype, device=device)
    x[0, 5], x[1, 140] = float("nan"), -float("inf")
    for block, bad in ((None, slice(None)), (128, slice(128, 256))):
        values, scales = oxiwarp.quantize_fp8(x, block=block)
        expected, expected_scales = own(x, block, torch.float8_e4m3fn)
        assert torch.equal(scales.nan_to_num(-1.0), expected_scales.nan_to_num(-1.0))
        assert torch.equal(values.float().nan_to_num(-1.0), expected.float().nan_to_num(-1.0))
        back = (split(values.float(), block) * scales.unsqueeze(-1)).flatten(-2)[:, :300]
        assert back[0, : 128 if block else 300].isnan().all() and back[1, bad].isnan().all()
        assert back[2].isfinite().all() and back.isnan().sum() == (256 if block else 600)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [40, 129, 3072])
def test_batch_invariant(cols, dtype, block, device):
    x = random((37, cols), dtype, device)
    values, scales = oxiwarp.quantize_fp8(x, block=block)
    for row in (0, 17, 36):
        one, scale = oxiwarp.quantize_fp8(x[row : row + 1], block=block)
        assert same_bits(one[0], values[row]) and torch.equal(scale[0], scales[row])


def outputs(x, block, dtype, strides):
    """Return outputs full of NaN: values in a slice of a wider tensor, and scales with the given strides."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 8), float("nan"), dtype=dtype, device=x.device)
    count = 1 if block is None else -(-x.shape[-1] // block)
    scales = torch.full((500,), float("nan"), device=x.device).as_strided((*x.shape[:-1], count), strides)
    return wide, wide[..., : x.shape[-1]], scales


@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("strides", [(5, 1), (1, 10), (2, 30)])
def test_out(strides, block, fp8, device):
    x = random((7, 300), torch.bfloat16, device)
    wide, values, scales = outputs(x, block, fp8, strides)
    result = oxiwarp.quantize_fp8(x, block=block, dtype=fp8, out=(values, scales))
    assert result[0] is values and result[1] is scales
    expected = oxiwarp.quantize_fp8(x, block=block, dtype=fp8)
    assert same_bits(values, expected[0]) and torch.equal(scales, expected[1])
    assert wide[:, 300:].isnan().all(), "written beside the values"


@pytest.mark.parametrize("block", BLOCKS)
def test_columns_that_are_not_adjacent(block, device):
    """The operator copies an input whose last stride is not 1."""
    x = random((300, 7), torch.bfloat16, device).t()
    made, expected = oxiwarp.quantize_fp8(x, block=block), oxiwarp.quantize_fp8(x.contiguous(), block=block)
    assert same_bits(made[0], expected[0]) and torch.equal(made[1], expected[1])


def test_bad_input(device):
    x = random((4, 256), torch.bfloat16, device)

    def refused(text, call, error=RuntimeError):
        with pytest.raises(error, match=text):
            call()

    for block in (0, 64, 256, 128.5, "row", True):
        refused(
            f"block is {block!r}, expected None or 128", lambda b=block: oxiwarp.quantize_fp8(x, block=b), ValueError
        )
    for dtype in (torch.float16, torch.float8_e4m3fnuz, "e4m3"):
        refused("dtype is .*, expected torch.float8", lambda d=dtype: oxiwarp.quantize_fp8(x, dtype=d), ValueError)
    refused("x is float64, expected f32, f16 or bf16", lambda: oxiwarp.quantize_fp8(x.double()))
    refused("x is float8_e5m2, expected f32", lambda: oxiwarp.quantize_fp8(x.to(torch.float8_e5m2)))
    refused("x has shape", lambda: oxiwarp.quantize_fp8(x[0, 0]))
    refused("out is not a pair", lambda: oxiwarp.quantize_fp8(x, out=x), ValueError)
    refused("out.0. is NoneType", lambda: oxiwarp.quantize_fp8(x, out=(None, x)), TypeError)
    values, scales = oxiwarp.quantize_fp8(x)
    refused("values is bf16, expected float8_e4m3fn", lambda: oxiwarp.quantize_fp8(x, out=(x.clone(), scales)))
    refused(
        "values is float8_e4m3fn, expected float8_e5m2",
        lambda: oxiwarp.quantize_fp8(x, dtype=FP8[1], out=(values, scales)),
    )
    refused("scales is f16, expected f32", lambda: oxiwarp.quantize_fp8(x, out=(values, scales.half())))
    refused("scales is int32, expected f32", lambda: oxiwarp.quantize_fp8(x, out=(values, scales.int())))
    refused(
        r"scales has shape \[4, 1\], expected \[4, 2\]",
        lambda: oxiwarp.quantize_fp8(x, block=128, out=(values, scales)),
    )
    refused(
        r"values has shape \[3, 256\], expected \[4, 256\]", lambda: oxiwarp.quantize_fp8(x, out=(values[:3], scales))
    )
    refused("scales is on meta", lambda: oxiwarp.quantize_fp8(x, out=(values, scales.to("meta"))))
    refused("values is float64, expected float8_e4m3fn or", lambda: OPS.quantize_fp8_out(x, False, x.double(), scales))
    refused("an output must not repeat", lambda: oxiwarp.quantize_fp8(x, out=(values[:1].expand(4, 256), scales)))
    refused("out is float8_e4m3fn, expected bf16", lambda: oxiwarp.rms_norm(x, out=values))
    check(x, None)


def test_gradients_are_refused(device):
    x = random((4, 256), torch.float32, device).requires_grad_()
    values, scales = oxiwarp.quantize_fp8(x.detach())
    with torch.enable_grad():
        for out in (None, (values, scales)):
            with pytest.raises(RuntimeError, match="quantize_fp8: x requires grad.*fp8 is for inference"):
                oxiwarp.quantize_fp8(x, out=out)
        with pytest.raises(RuntimeError, match="fp8 is for inference"):
            torch.func.jvp(lambda t: oxiwarp.quantize_fp8(t)[1], (x.detach(),), (x.detach(),))
        with pytest.raises(RuntimeError, match="fp8 is for inference"):
            torch.func.grad(lambda t: oxiwarp.quantize_fp8(t)[1].sum())(x.detach())
    with torch.no_grad():
        assert not oxiwarp.quantize_fp8(x)[1].requires_grad


def test_lazy_views(device):
    """A lazily negated `x` gives the values of the negated tensor."""
    x = torch._neg_view(random((4, 256), torch.float32, device))
    plain = oxiwarp.quantize_fp8(x.resolve_neg())
    out = tuple(map(torch.empty_like, plain))
    for values, scales in (oxiwarp.quantize_fp8(x), oxiwarp.quantize_fp8(x, out=out)):
        assert same_bits(values, plain[0]) and torch.equal(scales, plain[1])


@pytest.mark.parametrize("fp8", FP8, ids=str)
@pytest.mark.parametrize("block", BLOCKS)
def test_opcheck(block, fp8, device):
    for x in (random((4, 3, 300), torch.bfloat16, device), random((5, 96), torch.float32, device)[:, 32:]):
        torch.library.opcheck(OPS.quantize_fp8.default, (x, block is not None, fp8 is FP8[1]))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
def test_compiles(backend, dynamic, block, device):
    """`quantize_fp8` compiles to one graph, for any number of rows, and the scales keep their layout."""

    def f(x):
        values, scales = oxiwarp.quantize_fp8(x * 2, block=block)
        return values, scales, split(values.float(), block) * scales.unsqueeze(-1)

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (3, 5):
        x = random((rows, 300), torch.float32, device)
        for got, expected in zip(compiled(x), f(x), strict=True):
            assert same_bits(got, expected) and got.stride() == expected.stride()


def test_compiles_out(device):
    def f(x, values, scales):
        oxiwarp.quantize_fp8(x, out=(values, scales))
        return scales * 2

    torch.compiler.reset()
    x = random((3, 300), torch.float32, device)
    expected = oxiwarp.quantize_fp8(x)
    values, scales = (torch.empty_like(t) for t in expected)
    doubled = torch.compile(f, fullgraph=True, backend="aot_eager")(x, values, scales)
    assert same_bits(values, expected[0]) and torch.equal(scales, expected[1]) and torch.equal(doubled, scales * 2)


def test_scaled_mm(cuda):
    """`torch._scaled_mm` takes the values and the scales, per row and per block."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("scales per row need sm_90")
    x, weight = (random(shape, torch.bfloat16, cuda, seed) for seed, shape in enumerate(((96, 512), (256, 512))))
    right = x.double() @ weight.double().t()
    for block in BLOCKS:
        (a, a_scale), (b, b_scale) = (oxiwarp.quantize_fp8(t, block=block) for t in (x, weight))
        y = torch._scaled_mm(a, b.t(), scale_a=a_scale, scale_b=b_scale.t(), out_dtype=torch.bfloat16)
        error = (y.double() - right).norm() / right.norm()
        assert error < 0.05, f"block {block}: relative error {error:.3f}"
