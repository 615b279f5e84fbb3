"""Tests of `oxiwarp.rms_norm` against float64, for many shapes, strides and options."""

import pytest
import torch
from helpers import (
    DTYPES,
    GPU_SHAPES,
    SHAPES,
    VARIANTS,
    check_error,
    make_weight,
    poisoned_like,
    random,
    reference,
    torch_chain,
)

import oxiwarp


def check(x, variant, out=None, eps=1e-6):
    options = {key: variant[key] for key in ("weight_offset", "rounding")}
    weight = make_weight(variant["weight"], x.shape[-1], x.dtype, x.device)
    y = oxiwarp.rms_norm(x, weight, eps, out=out, **options)
    assert y.shape == x.shape and y.dtype == x.dtype and y.device == x.device
    right, own = (f(x, weight, eps, **options) for f in (reference, torch_chain))
    check_error(y, own, right, f"{list(x.shape)} {x.dtype} {variant}")
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, device):
    x = random((rows, cols), dtype, device)
    for variant in VARIANTS:
        y = check(x, variant)
        assert y.is_contiguous()


@pytest.mark.parametrize(("rows", "cols", "gib"), GPU_SHAPES)
def test_large_table(rows, cols, gib, cuda):
    free, _ = torch.cuda.mem_get_info()
    if free < gib * 2**30:
        pytest.skip(f"needs {gib} GiB of GPU memory")
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device=cuda).normal_()
    weight = make_weight("same", cols, x.dtype, cuda)
    y = poisoned_like(x)
    oxiwarp.rms_norm(x, weight, out=y)
    assert not any(bool(part.isnan().any()) for part in y.chunk(64))
    for at in (slice(0, 3), slice(rows // 2, rows // 2 + 3), slice(rows - 3, rows)):
        right, own = reference(x[at], weight), torch_chain(x[at], weight)
        check_error(y[at], own, right, f"rows {at} of {rows} x {cols}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), [(3, 7), (5, 64), (2, 257), (3, 3072)])
def test_out(rows, cols, dtype, device):
    x = random((rows, cols), dtype, device)
    for variant in VARIANTS:
        out = poisoned_like(x)
        assert check(x, variant, out=out) is out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [1, 7, 64, 129, 2048])
def test_strided_rows(cols, dtype, device):
    """`x` may be a slice, a chunk or an expanded row, and `out` may be a slice of a wider tensor."""
    wide = random((4, 3, 3 * cols), dtype, device)
    for x in (
        wide[..., :cols],
        wide[..., cols : 2 * cols],
        wide[1:3, ::2, -cols:],
        wide[:, 1, :cols],
        wide[0, 0, :cols],
    ):
        for variant in VARIANTS[:4]:
            check(x, variant)
    row = random((1, cols), dtype, device)
    check(row.expand(5, cols), VARIANTS[1])
    out = torch.full((4, 3, 2 * cols), float("nan"), dtype=dtype, device=device)
    check(wide[..., :cols], VARIANTS[1], out=out[..., cols:])
    assert out[..., :cols].isnan().all(), "written beside the output"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [8, 33, 640])
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_unaligned(offset, cols, dtype, device):
    """The base addresses of the tensors need not be aligned to 16 bytes, only to the element size."""

    def shifted(values):
        store = torch.full((values.numel() + 16,), float("nan"), dtype=values.dtype, device=device)
        store[offset : offset + values.numel()] = values.flatten()
        return store[offset : offset + values.numel()].view(values.shape), store

    values, weights = random((3, cols), dtype, device), make_weight("same", cols, dtype, device)
    (x, _), (weight, _), (out, store) = shifted(values), shifted(weights), shifted(poisoned_like(values))
    right, own = reference(values, weights), torch_chain(values, weights)
    for inputs in ((x, weights), (values, weight), (x, weight)):
        check_error(oxiwarp.rms_norm(*inputs), own, right, f"offset {offset}")
    oxiwarp.rms_norm(x, weight, out=out)
    check_error(out, own, right, f"all with offset {offset}")
    assert store[:offset].isnan().all() and store[offset + out.numel() :].isnan().all(), "written beside the output"


@pytest.mark.parametrize(
    "shape", [(8,), (2, 3, 8), (2, 1, 3, 8), (2, 2, 2, 2, 2, 8), (0, 3, 8), (2, 0, 8), (1, 1, 1, 8)]
)
def test_ranks(shape, device):
    check(random(shape, torch.float32, device), VARIANTS[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eps(dtype, device):
    x = random((4, 96), dtype, device, scale=1e-3)
    for eps in (0.0, 1e-12, 1e-5, 0.1, 10.0):
        check(x, VARIANTS[1], eps=eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extremes(dtype, device):
    """NaN and infinities propagate as in torch. Rows of zeros give zeros. Rows with very large or small values are
    accurate."""
    x = random((7, 72), dtype, device)
    x[0, 3], x[1, 5], x[2, 7], x[3] = float("nan"), float("inf"), -float("inf"), 0.0
    x[4], x[5] = x[4] * 1e3, x[5] * 1e-3
    weight = make_weight("same", 72, dtype, device)
    for rounding in ("once", "before_weight"):
        y, own = oxiwarp.rms_norm(x, weight, rounding=rounding), torch_chain(x, weight, rounding=rounding)
        assert torch.equal(y.isnan(), own.isnan()) and torch.equal(y.isinf(), own.isinf())
        assert (y[3] == 0).all()
        for row in (4, 5, 6):
            check_error(y[row], own[row], reference(x[row], weight), f"row {row}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_orders(dtype, device):
    """For each value of the option `rounding`, at least 99 % of the 16-bit results equal torch operators that
    round after the same steps.

    The test also checks that the two values of `rounding` give different 16-bit results.
    """
    x, weight = random((32, 512), dtype, device), make_weight("same", 512, dtype, device)
    for rounding in ("once", "before_weight"):
        y, own = oxiwarp.rms_norm(x, weight, rounding=rounding), torch_chain(x, weight, rounding=rounding)
        if dtype == torch.float32:
            torch.testing.assert_close(y, own, rtol=2e-6, atol=0)
            continue
        flips = (y != own).double().mean().item()
        assert flips <= 0.01, f"{rounding}: {flips:.1%} of the values differ"
    once, before = (oxiwarp.rms_norm(x, weight, rounding=rounding) for rounding in ("once", "before_weight"))
    if dtype == torch.float32:
        assert torch.equal(once, before)
    else:
        assert (once != before).double().mean() > 0.05


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [40, 129, 3072])
def test_batch_invariant(cols, dtype, device):
    """The bits of a row's result do not depend on the number of rows in the tensor or on the index of the
    row."""
    x, weight = random((37, cols), dtype, device), make_weight("same", cols, dtype, device)
    y = oxiwarp.rms_norm(x, weight)
    for row in (0, 17, 36):
        assert torch.equal(oxiwarp.rms_norm(x[row : row + 1], weight)[0], y[row])


def test_matches_torch_functional(device):
    x, weight = random((5, 64), torch.bfloat16, device), make_weight("same", 64, torch.bfloat16, device)
    y, own = oxiwarp.rms_norm(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (64,), weight, 1e-5)
    assert (y != own).double().mean() <= 0.01


def test_lazily_negated(device):
    """`rms_norm` accepts inputs with a negative bit (torch's lazy negation) and negates them. It rejects an
    `out` with such a bit.

    Without this check, an `out` with a negative or conjugate bit would crash in torch's fallback kernel.
    """
    x, weight = random((4, 64), torch.float32, device), make_weight("same", 64, torch.float32, device)
    assert torch.equal(oxiwarp.rms_norm(torch._neg_view(x), weight), -oxiwarp.rms_norm(x, weight))
    plain = torch.zeros(4, 64, dtype=torch.complex64, device=device)
    for out in (plain.conj().imag, plain.conj()):
        with pytest.raises(RuntimeError, match=r"^rms_norm: out is a lazily negated .* call \.resolve_neg\(\) first$"):
            oxiwarp.rms_norm(x, weight, out=out)
    assert (plain == 0).all()


def test_lazily_negated_for_the_operator(device):
    """The torch operator `rms_norm_out` accepts inputs with a negative bit (torch's lazy negation) and
    negates them.

    It rejects an `out` that has a negative or conjugate bit, and does not write to it.
    """
    op = torch.ops.oxiwarp.rms_norm_out
    x, weight = random((4, 64), torch.float32, device), make_weight("same", 64, torch.float32, device)
    out = torch.zeros_like(x)
    op(torch._neg_view(x), torch._neg_view(weight), 1e-6, 0.0, False, out)
    assert torch.equal(out, oxiwarp.rms_norm(x, weight))
    plain = torch.zeros(4, 64, dtype=torch.complex64, device=device)
    for bad in (plain.conj().imag, plain.conj()):
        with pytest.raises(RuntimeError, match=r"^rms_norm: out is a lazily negated .* call \.resolve_neg\(\) first$"):
            op(x, weight, 1e-6, 0.0, False, bad)
    assert (plain == 0).all()


def test_the_operator_leaves_counting_to_the_function(device):
    """The torch operator `rms_norm_out` does not change the version counter of `out`.

    The public function `oxiwarp.rms_norm`, which calls this operator, increments the counter.
    """
    x = random((4, 64), torch.float32, device)
    out = torch.empty_like(x)
    version = out._version
    torch.ops.oxiwarp.rms_norm_out(x, None, 1e-6, 0.0, False, out)
    assert out._version == version and torch.equal(out, oxiwarp.rms_norm(x))
    oxiwarp.rms_norm(x, out=out)
    assert out._version == version + 1


def test_out_counts_as_a_write(device):
    """If autograd has saved a tensor and `rms_norm` then overwrites it as `out`, the backward pass raises an
    error.

    Inference tensors, which have no version counter, can be passed as `out`.
    """
    x, w = random((4, 64), torch.float32, device), torch.ones(4, 64, device=device, requires_grad=True)
    out = torch.ones_like(x)
    with torch.enable_grad():
        product = (w * out).sum()
        oxiwarp.rms_norm(x, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
    with torch.inference_mode():
        assert torch.equal(oxiwarp.rms_norm(x, out=torch.empty_like(x)), out)


def affine_vectors(x, kind, seed):
    """Return a weight or bias: none, one vector, one vector per head, or one float32 vector per head."""
    if kind is None:
        return None
    shape = x.shape[-1:] if kind == "all heads" else x.shape[-2:]
    return random(shape, torch.float32 if kind == "float32" else x.dtype, x.device, seed, 0.5)


AFFINE = pytest.mark.parametrize(
    ("weight", "bias"),
    [("heads", None), ("float32", "heads"), ("all heads", "float32"), (None, "all heads"), ("heads", "all heads")],
)


@AFFINE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 3, 7), (3, 4, 128), (2, 3, 2, 640)], ids=str)
def test_heads_and_bias(shape, dtype, weight, bias, device):
    """A weight and a bias may differ between heads. The bias is added before or after a rounding."""
    x = random(shape, dtype, device)
    weight, bias = affine_vectors(x, weight, 1), affine_vectors(x, bias, 2)
    for rounding in ("once", "before_weight"):
        out = poisoned_like(x)
        y = oxiwarp.rms_norm(x, weight, bias=bias, rounding=rounding)
        assert oxiwarp.rms_norm(x, weight, bias=bias, rounding=rounding, out=out) is out and torch.equal(y, out)
        if bias is None:
            right, own = reference(x, weight), torch_chain(x, weight, rounding=rounding)
            check_error(y, own, right, f"{shape} {dtype} {rounding}")
            continue
        # The sum can be near 0, so the error is relative to its terms.
        product = reference(x, weight)
        size = product.abs() + bias.double().abs()
        off = (y.double() - (product + bias.double())).abs() / size / torch.finfo(dtype).eps
        assert off.max() <= (4.0 if dtype == torch.float32 else 0.51 if rounding == "once" else 1.6)


@AFFINE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_heads_and_bias(dtype, weight, bias, device):
    """The gradients match float64 autograd of the formula."""
    x = random((2, 5, 3, 24), dtype, device)
    weight, bias = affine_vectors(x, weight, 1), affine_vectors(x, bias, 2)
    given = {name: value for name, value in (("x", x), ("weight", weight), ("bias", bias)) if value is not None}

    def formula(x, weight=None, bias=None):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    dy = random(x.shape, dtype, device, 3)
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    wide = {name: value.double().requires_grad_() for name, value in given.items()}
    with torch.enable_grad():
        (oxiwarp.rms_norm(**leaves) * dy).sum().backward()
        (formula(**wide) * dy.double()).sum().backward()
    for name, leaf in leaves.items():
        right = wide[name].grad
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.shape == leaf.shape
        assert (leaf.grad.double() - right).abs().max() <= 8 * torch.finfo(dtype).eps * right.abs().max(), name
    for name in given:  # a single operand may require grad
        alone = {key: value.clone().requires_grad_(key == name) for key, value in given.items()}
        with torch.enable_grad():
            (oxiwarp.rms_norm(**alone) * dy).sum().backward()
        assert torch.equal(alone[name].grad, leaves[name].grad), name


@pytest.mark.parametrize("layout", ["contiguous", "slice", "tokens"])
def test_gradient_of_heads_is_one_launch(layout, device):
    """One operator computes the gradients of `x` and of a weight per head, with the bits of a call per head."""
    x = random((2, 5, 3, 24), torch.bfloat16, device)
    if layout == "slice":
        x = random((2, 5, 9, 24), torch.bfloat16, device)[:, :, 3:6]
    elif layout == "tokens":  # the backward copies x, because its rows have two strides
        x = random((2, 9, 3, 24), torch.bfloat16, device)[:, :5]
    weight, dy = random((3, 24), torch.bfloat16, device, 1), random((2, 5, 3, 24), torch.bfloat16, device, 2)
    leaves = [value.clone().requires_grad_() for value in (x, weight)]
    called = []

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.enable_grad():
        y = oxiwarp.rms_norm(x.requires_grad_(), leaves[1])
        with Count():
            dx, dweight = torch.autograd.grad(y, (x, leaves[1]), dy)
    assert [name for name in called if name.startswith("oxiwarp")] == ["oxiwarp.rms_norm_affine_backward.default"]
    assert not [name for name in called if "stack" in name or "cat" in name]
    for head in range(3):
        rows = x.detach()[:, :, head].clone().requires_grad_()
        own = weight[head].clone().requires_grad_()
        with torch.enable_grad():
            wanted = torch.autograd.grad(oxiwarp.rms_norm(rows, own), (rows, own), dy[:, :, head])
        assert torch.equal(dx[:, :, head], wanted[0]) and torch.equal(dweight[head], wanted[1])


def test_gradient_of_a_single_row(device):
    """The gradient of a bias with the shape of `x` is the incoming gradient."""
    x = random((8,), torch.float32, device)
    bias = torch.zeros(8, device=device, requires_grad=True)
    with torch.enable_grad():
        oxiwarp.rms_norm(x, bias=bias).backward(x)
    assert torch.equal(bias.grad, x)


def test_heads_and_bias_are_refused(device):
    x = random((2, 4, 8), torch.float32, device)
    vectors = random((8, 8), torch.float32, device)
    for options, error, message in (
        (dict(weight=vectors[:3]), RuntimeError, r"weight has shape \[3, 8\], expected \[4, 8\]"),
        (dict(bias=vectors), RuntimeError, r"bias has shape \[8, 8\], expected \[4, 8\]"),
        (dict(bias=vectors[0, :7]), RuntimeError, r"bias has shape \[7\], expected \[8\]"),
        (dict(bias=vectors[0].half()), RuntimeError, "bias is f16, expected f32"),
        (dict(bias=vectors[:4].t().contiguous().t()), RuntimeError, "bias .*must be contiguous: call bias.contig"),
        (dict(bias=vectors[0], eps=-1.0), RuntimeError, "eps is -1"),
        (dict(bias=[0.0] * 8), TypeError, "bias is list, expected a torch.Tensor"),
    ):
        with pytest.raises(error, match=f"^rms_norm: {message}"):
            oxiwarp.rms_norm(x, **options)
        if error is RuntimeError and "contiguous" not in message:
            meta = {
                name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in options.items()
            }
            with pytest.raises(error, match=f"^rms_norm: {message}"):
                oxiwarp.rms_norm(x.to("meta"), **meta)
