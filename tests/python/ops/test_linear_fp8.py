"""Tests of `oxiwarp.linear_fp8` against float64 and against torch's scaled products."""

import doctest

import pytest
import torch
import torch.nn.functional as F
from helpers import random, same_bits
from test_compile import backends_by_size

import oxiwarp

OPS = torch.ops.oxiwarp
E4M3, BF16, F16 = torch.float8_e4m3fn, torch.bfloat16, torch.float16
BLOCK = 128
# The sizes of the scales: per row, with each kind of accumulation, or per block.
FORMS = ("float32", "fast", "blocks")
SHAPES = [(1, 16, 8), (17, 144, 72), (65, 1040, 136), (17, 1040, 8), (65, 144, 72), (1, 144, 136), (70, 272, 264)]


def quantize_blocks():
    """Return the function of the docstring's example, which quantizes a matrix in blocks of 128 x 128 elements."""
    (source,) = (
        example.source
        for example in doctest.DocTestParser().get_examples(oxiwarp.linear_fp8.__doc__)
        if example.source.startswith("def quantize_blocks")
    )
    space = {"torch": torch, "oxiwarp": oxiwarp}
    exec(source, space)
    return space["quantize_blocks"]


def operands(shape, form, device, dtype=BF16, seed=0):
    """Return `x`, its scales, a weight, its scales, and a bias."""
    rows, depth, columns = shape
    x, weight = random((rows, depth), F16, device, seed, 2.0), random((columns, depth), F16, device, seed + 1)
    block = BLOCK if form == "blocks" else None
    quantized = quantize_blocks()(weight) if block else oxiwarp.quantize_fp8(weight)
    return *oxiwarp.quantize_fp8(x, block=block), *quantized, random((columns,), dtype, device, seed + 2)


def product(form, *arguments, **options):
    """Call the function in one of `FORMS`."""
    return oxiwarp.linear_fp8(*arguments, accumulate="fast" if form == "fast" else "float32", **options)


def whole(scales, shape):
    """Return the scale of each element of a matrix."""
    for dim, size in enumerate(shape):
        if scales.shape[dim] not in (1, size):
            scales = scales.repeat_interleave(BLOCK, dim).narrow(dim, 0, size)
    return scales.expand(shape)


def reference(x, x_scale, weight, weight_scale, bias=None):
    """Return the product in float64, and the sum of the magnitudes of its terms."""
    rows = x.flatten(0, -2).double() * whole(x_scale.flatten(0, -2), x.flatten(0, -2).shape).double()
    columns = weight.double() * whole_of_weight(weight_scale, weight.shape).double()
    y = rows @ columns.t() + (0 if bias is None else bias.double())
    return y, rows.abs() @ columns.abs().t()


def whole_of_weight(scales, shape):
    """As `whole`, for a weight: a single row of scales belongs to a block of rows."""
    return whole(scales.repeat_interleave(BLOCK, 0)[: shape[0]] if len(scales) < shape[0] else scales, shape)


def check(form, arguments, y):
    """Compare `y` with float64.

    A tensor core adds 32 products and its accumulator in one step. It cuts each of these 33 terms to a multiple of
    2^-13 of the largest term, and the sum to 14 bits. These errors are in proportion to the terms that the
    accumulator has added: those of 128 elements of K, or all. Then float32 has at most 4 roundings per sum of 128
    elements.
    """
    right, size = reference(*arguments)
    depth = arguments[0].shape[-1]
    steps = -(-(depth if form == "fast" and len(right) > 64 else min(depth, BLOCK)) // 32)
    error = size * (steps * 34 * 2.0**-13 + 4 * -(-depth // BLOCK) * 2.0**-24) + right.abs() * 2.0**-22
    info = torch.finfo(y.dtype)
    exponent = torch.frexp((right.abs() + error).clamp_min(info.smallest_normal))[1].double() - 1
    allowed = error + 0.5 * info.eps * torch.exp2(exponent)
    off = (y.flatten(0, -2).double() - right).abs()
    assert (off <= allowed).all(), f"{form}: {(off / allowed).max():.2f} of the allowed error"


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_table(shape, form, dtype, device):
    *inputs, bias = operands(shape, form, device, dtype)
    for arguments in ([*inputs, bias], inputs):
        y = product(form, *arguments, out_dtype=dtype)
        assert y.dtype is dtype and y.shape == (shape[0], shape[2]) and y.is_contiguous() and y.device == device
        check(form, arguments, y)


@pytest.mark.parametrize("form", ["float32", "fast"])
@pytest.mark.parametrize("shape", [(17, 144, 72), (70, 1040, 136)], ids=str)
def test_scaled_mm(shape, form, device):
    """`torch._scaled_mm` takes the same operands, also on the CPU, and gives nearly the same result."""
    if device.type == "cuda" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("scales per row need sm_90")
    x, x_scale, weight, weight_scale, bias = operands(shape, form, device)
    scales = {"scale_a": x_scale, "scale_b": weight_scale.t()}
    fast = form == "fast"
    own = torch._scaled_mm(x, weight.t(), **scales, bias=bias, out_dtype=BF16, use_fast_accum=fast).double()
    y = product(form, x, x_scale, weight, weight_scale, bias).double()
    assert (y - own).norm() <= 0.004 * own.norm()


@pytest.mark.parametrize("shape", [(17, 144, 72), (65, 1040, 136), (130, 272, 264)], ids=str)
def test_quantize_blocks(shape, device):
    """The function of the docstring gives each block the values and the scale that `quantize_fp8` gives the block
    as a row. A wrong order of the blocks would be a wrong product in `test_table`."""
    _, depth, columns = shape
    weight = random((columns, depth), BF16, device)
    values, scales = quantize_blocks()(weight)
    assert values.shape == weight.shape and values.is_contiguous()
    assert scales.shape == (-(-columns // BLOCK), -(-depth // BLOCK)) and scales.dtype is torch.float32
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK))
            row, scale = oxiwarp.quantize_fp8(weight[part].reshape(1, -1))
            assert same_bits(values[part].reshape(1, -1), row) and scales[i, j] == scale.item()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 33), (0,), (2, 0)], ids=str)
def test_ranks(lead, form, device):
    *_, weight, weight_scale, bias = operands((1, 144, 24), form, device)
    x, x_scale = oxiwarp.quantize_fp8(random((*lead, 144), F16, device), block=BLOCK if form == "blocks" else None)
    y = product(form, x, x_scale, weight, weight_scale, bias)
    assert y.shape == (*lead, 24)
    flat = product(form, x.reshape(-1, 144), x_scale.reshape(-1, x_scale.shape[-1]), weight, weight_scale, bias)
    assert torch.equal(y.reshape(-1, 24), flat)


@pytest.mark.parametrize("form", FORMS)
def test_empty(form, device):
    x, x_scale, weight, weight_scale, bias = operands((3, 144, 24), form, device)
    assert product(form, x[:0], x_scale[:0], weight, weight_scale, bias).shape == (0, 24)
    assert product(form, x, x_scale, weight[:0], weight_scale[:0], bias[:0]).shape == (3, 0)
    assert product(form, x[:0], x_scale[:0], weight[:0], weight_scale[:0]).shape == (0, 0)


def columns_first(t):
    """Return a copy whose rows are adjacent in memory, with a gap after each column."""
    return F.pad(t.t().contiguous(), (0, 3))[:, : t.shape[0]].t()


@pytest.mark.parametrize("form", FORMS)
def test_strides(form, device):
    """Scales may have any strides. Matrices are copied if necessary."""
    x, x_scale, weight, weight_scale, bias = operands((20, 272, 136), form, device)
    right = product(form, x, x_scale, weight, weight_scale, bias)
    wide = [F.pad(t, (1, 2))[:, 1:-2] for t in (x_scale, weight_scale)]
    twice = [t.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2] for t in (x_scale, weight_scale)]
    tall = [columns_first(t) for t in (x_scale, weight_scale)]
    for scales in (wide, twice, tall):
        assert torch.equal(product(form, x, scales[0], weight, scales[1], bias), right)
    bytes_of = lambda t: t.view(torch.uint8)  # noqa: E731  torch cannot pad 8-bit floats
    gaps = [F.pad(bytes_of(t), (16, 32)).view(E4M3)[:, 16:-32] for t in (x, weight)]
    across = [bytes_of(t).t().contiguous().t().view(E4M3) for t in (x, weight)]
    for matrices in (gaps, across):
        assert torch.equal(product(form, matrices[0], x_scale, matrices[1], weight_scale, bias), right)
    batches = [t.view(2, 10, -1).expand(2, 10, -1)[:, ::3] for t in (x, x_scale)]
    y = product(form, *batches, weight, weight_scale, bias)
    assert torch.equal(y, right.view(2, 10, -1)[:, ::3])


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [17, 70])
def test_out(rows, form, dtype, device):
    arguments = operands((rows, 144, 72), form, device, dtype)
    wide = torch.full((rows, 104), float("nan"), dtype=dtype, device=device)
    out = wide[:, 16:88]
    assert product(form, *arguments, out_dtype=dtype, out=out) is out
    assert torch.equal(out, product(form, *arguments, out_dtype=dtype))
    assert wide[:, :16].isnan().all() and wide[:, 88:].isnan().all(), "written beside the result"


@pytest.mark.parametrize("form", ["float32", "blocks"])
def test_batch_invariant(form, device):
    x, x_scale, *others = operands((130, 272, 72), form, device)
    y = product(form, x, x_scale, *others)
    for rows in (slice(0, 1), slice(3, 20), slice(60, 125)):
        assert torch.equal(product(form, x[rows], x_scale[rows], *others), y[rows])


def test_few_rows_are_not_fast(device):
    """With at most 64 rows, fast accumulation gives the bits of the accumulation in float32. With more rows, it
    gives others."""
    arguments = operands((65, 1040, 72), "fast", device)
    few = [t[:64] for t in arguments[:2]]
    assert torch.equal(product("fast", *few, *arguments[2:]), product("float32", *few, *arguments[2:]))
    assert not torch.equal(product("fast", *arguments), product("float32", *arguments))


def bad_calls(right, blocks):
    """Return calls with one wrong argument each, with a part of the message."""
    x, x_scale, weight, weight_scale, bias = right.values()
    out = torch.empty(4, 24, dtype=BF16, device=x.device)
    return [
        ("x is bf16, expected float8_e4m3fn", {"x": x.bfloat16()}),
        ("x is float8_e5m2, expected float8_e4m3fn", {"x": x.to(torch.float8_e5m2)}),
        ("x is uint8, expected float8_e4m3fn", {"x": x.view(torch.uint8)}),
        (r"x has shape \[4, 152\], expected \[..., K\] with K a positive multiple of 16", {"x": wider(x)}),
        (r"x has shape \[\], expected", {"x": x[0, 0]}),
        ("x_scale is f16, expected f32", {"x_scale": x_scale.half()}),
        ("x_scale is int32, expected f32", {"x_scale": x_scale.int()}),
        (r"x_scale has shape \[3, 1\], expected \[4, 1\]", {"x_scale": x_scale[:3]}),
        (r"x_scale has shape \[4, 2\], expected \[4, 1\]", {"x_scale": blocks[1]}),
        (r"x_scale has shape \[4\], expected \[4, 1\]", {"x_scale": x_scale[:, 0]}),
        ("weight is bf16, expected float8_e4m3fn", {"weight": weight.bfloat16()}),
        ("weight is int8, expected float8_e4m3fn", {"weight": weight.view(torch.int8)}),
        (r"weight has shape \[24, 128\], expected \[24, 144\]", {"weight": weight[:, :128].contiguous()}),
        (r"weight has shape \[20, 144\], expected \[N, 144\] with N a multiple of 8", {"weight": weight[:20]}),
        (r"weight has shape \[144\], expected \[N, 144\]", {"weight": weight[0]}),
        ("weight_scale is bf16, expected f32", {"weight_scale": weight_scale.bfloat16()}),
        (r"weight_scale has shape \[16, 1\], expected \[24, 1\]", {"weight_scale": weight_scale[:16]}),
        (r"x_scale has shape \[4, 1\], expected \[4, 2\]", {"weight_scale": blocks[3]}),
        ("bias is f16, expected bf16", {"bias": bias.half()}),
        ("bias is int32, expected bf16", {"bias": bias.int()}),
        ("bias is bf16, expected f16", {"out_dtype": F16}),
        (r"bias has shape \[16\], expected \[24\]", {"bias": bias[:16]}),
        ("out is f16, expected bf16, the out_dtype", {"out": out.half()}),
        (r"out has shape \[3, 24\], expected \[4, 24\]", {"out": out[:3]}),
        (
            "fast accumulation needs scales per row",
            {"x_scale": blocks[1], "weight_scale": blocks[3], "accumulate": "fast"},
        ),
    ]


def wider(x):
    return torch.cat([x.view(torch.uint8), x.view(torch.uint8)[:, :8]], -1).view(E4M3)


def arguments(form, device):
    names = ("x", "x_scale", "weight", "weight_scale", "bias")
    return dict(zip(names, operands((4, 144, 24), form, device), strict=True))


def test_bad_input(device):
    """The kernel and the fake kernel refuse the same calls with the same words."""
    right = arguments("float32", device)
    for text, change in bad_calls(right, list(arguments("blocks", device).values())):
        call = {**right, **change}
        meta = {name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in call.items()}
        for made in (call, meta):
            with pytest.raises(RuntimeError, match=f"^linear_fp8: {text}"):
                oxiwarp.linear_fp8(**made)
    for name, value in (("accumulate", "f32"), ("accumulate", None), ("accumulate", [])):
        with pytest.raises(ValueError, match="accumulate is .*, expected 'float32' or 'fast'"):
            oxiwarp.linear_fp8(**right, **{name: value})
    for value in (torch.float32, E4M3, "bf16"):
        with pytest.raises(ValueError, match="out_dtype is .*, expected torch.bfloat16 or torch.float16"):
            oxiwarp.linear_fp8(**right, out_dtype=value)
    for name in (*right, "out"):
        with pytest.raises(TypeError, match=f"{name} is str, expected a torch.Tensor"):
            oxiwarp.linear_fp8(**{**right, name: "x"})
    with pytest.raises(RuntimeError, match="out is f32, expected f16 or bf16"):
        OPS.linear_fp8_out(*right.values(), False, torch.empty(4, 24, device=device))
    with pytest.raises(RuntimeError, match="out is int32, expected f16 or bf16"):
        OPS.linear_fp8_out(*right.values(), False, torch.empty(4, 24, device=device, dtype=torch.int32))
    oxiwarp.linear_fp8(**right)


def test_strides_that_are_refused(device):
    """The rows of a matrix and of `out` have addresses that are multiples of 16."""
    right = arguments("float32", device)
    apart = {name: wider(right[name])[:, :144] for name in ("x", "weight")}
    apart["out"] = torch.empty(4, 28, dtype=BF16, device=device)[:, :24]
    for name, tensor in apart.items():
        with pytest.raises(RuntimeError, match=f"linear_fp8: {name} of shape .* all rows must be aligned to 16 bytes"):
            oxiwarp.linear_fp8(**{**right, name: tensor})
    with pytest.raises(RuntimeError, match=r"bias of shape .* must be contiguous: call bias.contiguous\(\)"):
        oxiwarp.linear_fp8(**{**right, "bias": right["bias"].repeat_interleave(2)[::2]})


@pytest.mark.parametrize("name", ["x", "x_scale", "weight", "weight_scale", "bias"])
def test_overlap(name, device):
    right = arguments("float32", device)
    memory = torch.zeros(8192, dtype=torch.uint8, device=device)
    value = right[name].contiguous()
    begin = memory[: value.numel() * value.element_size()]
    shared = begin.view(value.dtype).view(value.shape).copy_(value)
    out = memory[: 4 * 24 * 2].view(BF16).view(4, 24)
    with pytest.raises(RuntimeError, match=f"linear_fp8: out overlaps {name}"):
        oxiwarp.linear_fp8(**{**right, name: shared}, out=out)


def test_gradients_are_refused(device):
    right = arguments("float32", device)
    out = torch.empty(4, 24, dtype=BF16, device=device)
    with torch.enable_grad():
        for name in right:
            leaf = {**right, name: right[name].detach().clone().requires_grad_()}
            for options in ({}, {"out": out}):
                with pytest.raises(RuntimeError, match=f"linear_fp8: {name} requires grad.*fp8 is for inference"):
                    oxiwarp.linear_fp8(**leaf, **options)
            with torch.no_grad():
                assert not oxiwarp.linear_fp8(**leaf).requires_grad
        scaled = lambda scale: oxiwarp.linear_fp8(**{**right, "x_scale": scale})  # noqa: E731
        scale = right["x_scale"]
        with pytest.raises(RuntimeError, match="fp8 is for inference"):
            torch.func.jvp(scaled, (scale,), (scale,))
        with pytest.raises(RuntimeError, match="fp8 is for inference"):
            torch.func.grad(lambda t: scaled(t).float().sum())(scale)


def test_lazy_views(device):
    """Lazily negated scales and a lazily negated bias give the result of the negated tensors."""
    right = arguments("float32", device)
    lazy = {name: torch._neg_view(right[name]) for name in ("x_scale", "weight_scale", "bias")}
    plain = oxiwarp.linear_fp8(**{**right, **{name: t.resolve_neg() for name, t in lazy.items()}})
    out = torch.empty_like(plain)
    oxiwarp.linear_fp8(**{**right, **lazy}, out=out)
    assert torch.equal(oxiwarp.linear_fp8(**{**right, **lazy}), plain) and torch.equal(out, plain)


def test_vmap(device):
    """`torch.func.vmap` gives the results of a loop, over `x` or over the weights."""
    batch = [operands((5, 144, 24), "float32", device, seed=seed) for seed in (0, 7, 14)]
    stacked = [torch.stack([b[at].view(torch.uint8) for b in batch]).view(batch[0][at].dtype) for at in range(5)]
    for dims in ((0, 0, None, None, None), (None, None, 0, 0, 0), (0, 0, 0, 0, 0)):
        given = [t if dim == 0 else t[0] for t, dim in zip(stacked, dims, strict=True)]
        y = torch.func.vmap(oxiwarp.linear_fp8, in_dims=dims)(*given)
        for at in range(3):
            one = [t[at] if dim == 0 else t for t, dim in zip(given, dims, strict=True)]
            assert torch.equal(y[at], oxiwarp.linear_fp8(*one))


@pytest.mark.parametrize("form", FORMS)
def test_opcheck(form, device):
    inputs = operands((70, 272, 136), form, device)
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for arguments in (inputs, (*inputs[:-1], None)):
        torch.library.opcheck(OPS.linear_fp8.default, (*arguments, form == "fast", False), test_utils=checks)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
def test_compiles(backend, dynamic, form, device):
    """`quantize_fp8` and `linear_fp8` compile to one graph, for any number of rows."""
    _, _, *others = operands((1, 144, 24), form, device)

    def f(x):
        values, scales = oxiwarp.quantize_fp8(x * 2, block=BLOCK if form == "blocks" else None)
        return product(form, values, scales, *others) + 1

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in (3, 5):
        x = random((2, rows, 144), torch.float32, device)
        assert torch.equal(compiled(x), f(x))


def test_compiles_out(device):
    right = arguments("float32", device)

    def f(out, **operands):
        oxiwarp.linear_fp8(**operands, out=out)
        return out * 2

    torch.compiler.reset()
    out = torch.empty(4, 24, dtype=BF16, device=device)
    doubled = torch.compile(f, fullgraph=True, backend="aot_eager")(out, **right)
    expected = oxiwarp.linear_fp8(**right)
    assert torch.equal(out, expected) and torch.equal(doubled, expected * 2)
