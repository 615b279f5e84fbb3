"""Tests of `oxiwarp.ada_norm` and `ada_norm_pair` against float64, diffusers, and the bits of eager torch."""

import functools

import pytest
import torch
from activations import check_once
from helpers import DTYPES, random
from norms import BF16, EPS, F32, FORMS, NORMS, WIDTHS, ada_norm, check_chain, doubles, operand
from torch import nn

import oxiwarp

DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
NORM = pytest.mark.parametrize("norm", NORMS)
# Keyword arguments of the helper function `make`. They select the optional operands of `ada_norm`. With
# `single`, all operands except x are float32.
VARIANTS = [
    dict(),
    dict(shift=False),
    dict(table=True),
    dict(parameters=True),
    dict(table=True, parameters=True, shift=False),
    dict(single=True),
    dict(single=True, table=True, parameters=True),
]


def make(form, shape, dtype, device, shift=True, table=False, parameters=False, single=False):
    """Return the operands of one `ada_norm` call as a dict. If `parameters` is true, it also has a weight and
    a bias."""
    own = F32 if single else dtype
    operands = {"scale": operand(form, shape, own, device, 1)}
    if shift:
        operands["shift"] = operand(form, shape, own, device, 2)
    if table:
        operands["scale_table"] = random((shape[2],), own, device, 3, 0.3)
        if shift:
            operands["shift_table"] = random((shape[2],), own, device, 4, 0.3)
    if parameters:
        operands["weight"] = random((shape[2],), own, device, 5, 0.5)
        operands["bias"] = random((shape[2],), own, device, 6, 0.5)
    return operands


def terms(x, norm, operands):
    """Return the sum of the absolute values of the terms in the formula of `ada_norm`.

    The error bound of mode "fast" is relative to this sum.
    """
    double = x.double()
    mean = double.mean(-1, keepdim=True).abs() if norm == "layer_norm" else 0.0
    spread = double.std(-1, correction=0, keepdim=True) if norm == "layer_norm" else 1.0
    parts = {key: value.double().abs() for key, value in operands.items()}
    size = (1 + NORMS[norm](double).abs()) * (1 + mean / spread) * parts.get("weight", 1.0) + parts.get("bias", 0.0)
    scale, shift = (parts.get(key, 0.0) + parts.get(f"{key}_table", 0.0) for key in ("scale", "shift"))
    return size * (1 + scale) + shift


def check(x, norm, operands, what, *, bits):
    """Check both modes of `ada_norm`, "exact" and "fast", and return the result of mode "exact".

    Mode "exact" rounds after each step, as torch's operators do, and mode "fast" rounds once. If `x` has 16
    bits and `scale` is float32, both modes round once and must give the same bits. If `bits` is true, mode
    "exact" must equal torch bit for bit on a GPU.
    """
    y, fast = (oxiwarp.ada_norm(x, **operands, norm=norm, mode=mode) for mode in ("exact", "fast"))
    right = ada_norm(x.double(), **doubles(operands), norm=norm)
    check_chain(y, ada_norm(x, **operands, norm=norm), right, what, bits=bits)
    if x.dtype == F32 or operands["scale"].dtype != F32:
        rounded = operands  # both modes round the sum of a 16-bit table and value
        for key in ("scale", "shift"):
            if f"{key}_table" in operands and key in operands:
                total = operands[f"{key}_table"] + operands[key]
                rounded = {**rounded, key: total, f"{key}_table": torch.zeros_like(operands[f"{key}_table"])}
        right = ada_norm(x.double(), **doubles(rounded), norm=norm)
        check_once(fast, right, terms(x, norm, operands).expand_as(right), f"{what}, fast")
    else:
        assert torch.equal(fast, y), "with an operand in float32 there is one rounding in both modes"
    return y


@DTYPE
@NORM
@pytest.mark.parametrize("cols", WIDTHS)
def test_bits_of_torch(cols, norm, dtype, device):
    """On a GPU, `ada_norm` equals torch bit for bit, with the operands and hidden sizes of real models.

    The models are Flux, LTX, CogVideoX and Wan.
    """
    shape = (2, 16 if device.type == "cuda" else 2, cols)
    x = random(shape, dtype, device) + 0.5
    for variant in VARIANTS:
        operands = make("batch slice", shape, dtype, device, **variant)
        check(x, norm, operands, f"{cols} {dtype} {variant}", bits=True)


@DTYPE
@NORM
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cols", [3, 7, 64, 129])
def test_forms(cols, form, norm, dtype, device):
    shape = (3, 5, cols)
    x = random(shape, dtype, device)
    for variant in VARIANTS:
        check(x, norm, make(form, shape, dtype, device, **variant), f"{form} {variant}", bits=False)


@DTYPE
def test_modes_differ(dtype, device):
    """For 16-bit inputs, the modes "exact" and "fast" give different results. For float32 inputs, they give
    the same results.

    Mode "exact" rounds after each step, and mode "fast" rounds once.
    """
    shape = (2, 16, 640)
    x, operands = random(shape, dtype, device), make("batch", shape, dtype, device)
    exact, fast = (oxiwarp.ada_norm(x, **operands, mode=mode) for mode in ("exact", "fast"))
    differ = (exact != fast).double().mean()
    assert differ == 0 if dtype == F32 else differ > 0.05


@DTYPE
@NORM
def test_mixed_dtypes(norm, dtype, device):
    """If any operand is float32, `ada_norm` computes in float32 in both modes and rounds once."""
    shape = (2, 16, 128)
    x, operands = random(shape, dtype, device), make("batch", shape, dtype, device, table=True, parameters=True)
    for name in operands:
        mixed = {**operands, name: operands[name].float()}
        y = oxiwarp.ada_norm(x, **mixed, norm=norm)
        assert torch.equal(y, oxiwarp.ada_norm(x, **mixed, norm=norm, mode="fast")), name
        sums = {**mixed}
        for key in ("scale", "shift"):  # the sum of a 16-bit table and value is rounded
            sums[key] = (sums[key] + sums.pop(f"{key}_table")).float()
        right = ada_norm(x.double(), **doubles(sums), norm=norm)
        check_once(y, right, terms(x, norm, operands).expand_as(right), name)


def rows(x, norm, **operands):
    return oxiwarp.ada_norm(x, **operands, norm=norm)


@DTYPE
@NORM
@pytest.mark.parametrize("cols", [40, 129, 3072, 30000])
def test_batch_invariant(cols, norm, dtype, device):
    x, operands = random((1, 37, cols), dtype, device), make("vector", (1, 37, cols), dtype, device)
    y = rows(x, norm, **operands)
    for row in (0, 17, 30):
        assert torch.equal(rows(x[:, row : row + 1], norm, **operands), y[:, row : row + 1])
        assert torch.equal(rows(x[:, row : row + 7], norm, **operands), y[:, row : row + 7])


@DTYPE
@NORM
@pytest.mark.parametrize("cols", [64, 129, 2048])
def test_strided_and_unaligned(cols, norm, dtype, device):
    """`ada_norm` gives the same bits if one operand is a slice or has an unaligned base address."""
    shape = (2, 3, cols)
    operands = {**make("token", shape, dtype, device, table=True, parameters=True), "x": random(shape, dtype, device)}
    packed = rows(norm=norm, **operands)
    for name, tensor in operands.items():
        wide = random((*tensor.shape[:-1], 2 * cols + 1), dtype, device)
        for start in (0, 1, cols):
            view = wide[..., start : start + cols].copy_(tensor)
            assert torch.equal(rows(norm=norm, **{**operands, name: view}), packed), f"{name} from {start} on"


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4, 8), (0, 8), (2, 0, 8), (0, 3, 8)], ids=str)
def test_ranks_and_no_rows(shape, device):
    x, vector = random(shape, BF16, device), random((8,), BF16, device, 1)
    y = oxiwarp.ada_norm(x, vector, vector)
    assert y.shape == x.shape and y.dtype == BF16
    check_chain(y, ada_norm(x, vector, vector), ada_norm(x.double(), vector.double(), vector.double()), str(shape))
    for output in oxiwarp.ada_norm_pair(x, vector, vector, vector, None):
        assert output.shape == x.shape


@DTYPE
@NORM
def test_extremes(norm, dtype, device):
    """`ada_norm` gives NaN and infinities in the same elements as torch."""
    shape = (1, 5, 72)
    x, operands = random(shape, dtype, device), make("batch", shape, dtype, device)
    x[0, 0, 3], x[0, 1, 5], x[0, 2, 7] = float("nan"), float("inf"), -float("inf")
    operands["scale"][0, 0, 9] = float("nan")
    for mode in ("exact", "fast"):
        y, own = oxiwarp.ada_norm(x, **operands, norm=norm, mode=mode), ada_norm(x, **operands, norm=norm)
        assert torch.equal(y.isnan(), own.isnan()) and torch.equal(y.isinf(), own.isinf())


@DTYPE
@NORM
@pytest.mark.parametrize("cols", [7, 640, 3072, 25000])
def test_pair_is_two(cols, norm, dtype, device):
    shape = (2, 16, cols)
    x = random(shape, dtype, device)
    for form, mode in (("batch slice", "exact"), ("token", "fast")):
        first, second = (make(form, shape, dtype, device, parameters=True) for _ in range(2))
        second["scale"], second["shift"] = second["shift"], None
        parameters = {key: first[key] for key in ("weight", "bias")}
        options = {**parameters, "norm": norm, "mode": mode}
        y, y2 = oxiwarp.ada_norm_pair(x, first["scale"], first["shift"], second["scale"], second["shift"], **options)
        assert torch.equal(y, oxiwarp.ada_norm(x, first["scale"], first["shift"], **options))
        assert torch.equal(y2, oxiwarp.ada_norm(x, second["scale"], None, **options))


def module_of_diffusers(name, *arguments, device, **options):
    """Return a module of the diffusers norm class `name`. Its projection (a linear layer) and its SiLU are
    replaced by identities.

    The caller must therefore pass an embedding that is already projected.
    """
    modules = pytest.importorskip("diffusers.models.normalization")
    with device:
        module = getattr(modules, name)(*arguments, **options)
    module.linear = module.silu = nn.Identity()
    return module


@DTYPE
@pytest.mark.parametrize("cols", [1536, 3072])
def test_modules_of_diffusers(cols, dtype, device):
    """`ada_norm` equals AdaLayerNormZero (Flux), and `ada_norm_pair` equals SD35AdaLayerNormZeroX.

    AdaLayerNormZero and SD35AdaLayerNormZeroX are classes of diffusers. As in diffusers, scale and shift are
    slices of one tensor.
    """
    x = random((2, 16, cols), dtype, device) + 0.5
    emb = random((2, 9 * cols), dtype, device, 1, 0.3)
    shift, scale, *_, shift2, scale2, _ = (part[:, None] for part in emb.chunk(9, dim=1))
    meta = torch.device("meta")  # the module's norm has no parameters
    module = module_of_diffusers("SD35AdaLayerNormZeroX", cols, device=meta)
    right = module(x.double(), emb.double())
    own = module(x, emb)
    ours = oxiwarp.ada_norm_pair(x, scale, shift, scale2, shift2)
    check_chain(ours[0], own[0], right[0], "SD35AdaLayerNormZeroX")
    check_chain(ours[1], own[5], right[5], "SD35AdaLayerNormZeroX, second")

    emb = emb[:, : 6 * cols].contiguous()
    shift, scale = (part[:, None] for part in emb.chunk(6, dim=1)[:2])
    module = module_of_diffusers("AdaLayerNormZero", cols, device=meta)
    right = module(x.double(), emb=emb.double())[0]
    check_chain(oxiwarp.ada_norm(x, scale, shift), module(x, emb=emb)[0], right, "AdaLayerNormZero")


@DTYPE
@NORM
def test_continuous_of_diffusers(norm, dtype, device):
    """`ada_norm` equals AdaLayerNormContinuous, whose projection returns the scale before the shift."""
    cols = 1152
    module = module_of_diffusers("AdaLayerNormContinuous", cols, cols, eps=EPS, norm_type=norm, device=device)
    module.to(dtype)
    for parameter in module.norm.parameters():
        nn.init.normal_(parameter)
    x, emb = random((2, 16, cols), dtype, device), random((2, 2 * cols), dtype, device, 1, 0.3)
    scale, shift = (part[:, None] for part in emb.chunk(2, dim=1))
    own = module(x, emb)
    ours = functools.partial(oxiwarp.ada_norm, norm=norm, weight=module.norm.weight.data)
    bias = getattr(module.norm, "bias", None)
    y = ours(x, scale, shift, bias=None if bias is None else bias.data)
    check_chain(y, own, module.double()(x.double(), emb.double()), "AdaLayerNormContinuous")


@pytest.mark.parametrize(("rows", "columns"), [(16, 128), (16, 1536), (17, 8128), (777, 132), (4096, 3072)])
def test_rms_norm_adds_as_torch(rows, columns, cuda):
    """On a GPU, `ada_norm` with an RMSNorm has the bits of torch's operators for at least 16 rows of 128 to
    8128 columns."""
    x, scale, shift = (
        random((rows, columns), F32, cuda),
        random((columns,), F32, cuda, 1),
        random((columns,), F32, cuda, 2),
    )
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    assert torch.equal(oxiwarp.ada_norm(x, scale, shift, norm="rms_norm", eps=EPS), normed * (1 + scale) + shift)


@DTYPE
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1536), (10, 12), (16, 128), (3, 2304), (17, 3840), (5, 12288)])
def test_rounds_and_adds_as_torch_rms_norm(rows, columns, weighted, dtype, device):
    """With `rounding="once"`, `ada_norm` equals torch.nn.RMSNorm and a modulation. On a GPU, all bits are equal,
    also with few rows."""
    x, scale, shift = (random((rows, columns), dtype, device, seed, 0.5) for seed in range(3))
    weight = random((columns,), dtype, device, 3, 0.5) + 1 if weighted else None
    y = oxiwarp.ada_norm(x, scale, shift, norm="rms_norm", weight=weight, rounding="once")
    own = torch.nn.functional.rms_norm(x, (columns,), weight, EPS) * (1 + scale) + shift
    wide = [None if tensor is None else tensor.double() for tensor in (x, scale, shift, weight)]
    right = torch.nn.functional.rms_norm(wide[0], (columns,), wide[3], EPS) * (1 + wide[1]) + wide[2]
    check_chain(y, own, right, f"{rows} x {columns}", bits=True)
    if weighted and dtype != F32:
        assert not torch.equal(y, oxiwarp.ada_norm(x, scale, shift, norm="rms_norm", weight=weight))


def test_rounding_is_checked(device):
    x = random((2, 8), F32, device)
    for call in (oxiwarp.ada_norm, functools.partial(oxiwarp.gated_residual_ada_norm, x, x)):
        with pytest.raises(ValueError, match="rounding is 'twice', expected 'once' or 'before_weight'"):
            call(x, x, norm="rms_norm", rounding="twice")
