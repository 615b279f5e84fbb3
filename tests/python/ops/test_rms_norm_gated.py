"""Tests of `oxiwarp.rms_norm_gated` against float64, and against transformers' classes that round after the
same steps."""

import importlib
import itertools
import re

import pytest
import torch
from helpers import DTYPES, SHAPES, check_error, make_weight, random, same_roundings
from norms import rms_norm_gated

import oxiwarp

ORDERS = [dict(gate_first=first, activation=f) for first in (False, True) for f in ("silu", "sigmoid")]
# Maps the name of a transformers class to a pair. Its first element has the options with which
# `rms_norm_gated` gives the results of this class. Its second element is a function that takes the class and
# a number of columns, and makes a module.
CLASSES = {
    "qwen3_next.Qwen3NextRMSNormGated": ({}, lambda cls, cols: cls(cols)),
    "qwen3_5.Qwen3_5RMSNormGated": ({}, lambda cls, cols: cls(cols)),
    "olmo_hybrid.OlmoHybridRMSNormGated": ({}, lambda cls, cols: cls(cols)),
    "kimi_linear.KimiLinearRMSNormGated": (
        {"rounding": "once", "activation": "sigmoid"},
        lambda cls, cols: cls(cols),
    ),
    "mamba2.MambaRMSNormGated": ({"gate_first": True}, lambda cls, cols: cls(cols, cols)),
    "zamba2.Zamba2RMSNormGated": ({"gate_first": True}, lambda cls, cols: cls(cols, cols)),
    "falcon_h1.FalconH1RMSNormGated": ({"rounding": "once"}, lambda cls, cols: cls(cols)),
}


def check(x, gate, weight, **options):
    y = oxiwarp.rms_norm_gated(x, gate, weight, **options)
    assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous()
    double = None if weight is None else weight.double()
    right = rms_norm_gated(x.double(), gate.double(), double, **options)
    check_error(y, rms_norm_gated(x, gate, weight, **options), right, f"{list(x.shape)} {x.dtype} {options}")
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_table(rows, cols, dtype, device):
    x, gate = random((rows, cols), dtype, device), random((rows, cols), dtype, device, seed=2)
    kinds = itertools.cycle([None, "same", "f32"])
    for options in ORDERS:
        weight = make_weight(next(kinds), cols, dtype, device)
        check(x, gate, weight, rounding="once", **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_has_the_roundings_of(name, dtype, device):
    """The result equals the result of a transformers class, except for a few values that are rounded
    differently.

    The reason is that oxiwarp and torch add the squares of a row in different orders and use different exp
    functions.
    """
    module, cls = name.split(".")
    try:
        cls = getattr(importlib.import_module(f"transformers.models.{module}.modeling_{module}"), cls)
    except (ImportError, AttributeError):
        pytest.skip(f"this transformers has no {name}")
    options, make = CLASSES[name]
    x, gate = random((4, 16, 640), dtype, device), random((4, 16, 640), dtype, device, seed=2)
    own = make(cls, 640)
    eps = own.variance_epsilon
    own.weight = torch.nn.Parameter(make_weight("same", 640, dtype, device), requires_grad=False)
    y, expected = oxiwarp.rms_norm_gated(x, gate, own.weight, eps, **options), own(x, gate)
    if dtype == torch.float32:
        torch.testing.assert_close(y, expected, rtol=4e-6, atol=1e-30)
    else:
        assert same_roundings(y, expected, units=4)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("kind", [None, "same", "f32"])
@pytest.mark.parametrize("options", ORDERS, ids=str)
def test_rounding_orders(options, kind, dtype, device):
    """For each value of the option `rounding`, nearly all results equal the results of torch operators that
    round after the same steps.

    The test also checks that the two values of `rounding` give different results.
    """
    x, gate = random((32, 512), dtype, device), random((32, 512), dtype, device, seed=2)
    weight = make_weight(kind, 512, dtype, device)
    found = {}
    for rounding in ("once", "before_weight"):
        y = found[rounding] = oxiwarp.rms_norm_gated(x, gate, weight, rounding=rounding, **options)
        assert same_roundings(y, rms_norm_gated(x, gate, weight, rounding=rounding, **options), units=4), rounding
    if kind is not None or not options["gate_first"]:
        assert (found["once"] != found["before_weight"]).double().mean() > 0.02


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", [7, 64, 129, 2048])
def test_strided(cols, dtype, device):
    """`x` and `gate` may be slices of one projection, or start at unaligned addresses."""
    projection = random((4, 3, 2 * cols), dtype, device)
    x, gate = projection.chunk(2, -1)
    store = random((12 * cols + 8,), dtype, device, seed=3)
    odd = store[1 : 1 + 12 * cols].view(4, 3, cols)
    for options in ORDERS:
        check(x, gate, make_weight("same", cols, dtype, device), rounding="once", **options)
        check(odd, gate, None, rounding="once", **options)
        check(x, odd, make_weight("f32", cols, dtype, device), rounding="once", **options)


def test_batch_invariant(device):
    x, gate = random((37, 3072), torch.bfloat16, device), random((37, 3072), torch.bfloat16, device, seed=2)
    for options in ORDERS:
        y = oxiwarp.rms_norm_gated(x, gate, **options)
        for row in (0, 17, 36):
            assert torch.equal(oxiwarp.rms_norm_gated(x[row], gate[row], **options), y[row])


def test_no_rows(device):
    empty = torch.empty(0, 8, device=device)
    assert oxiwarp.rms_norm_gated(empty, empty).shape == (0, 8)


@pytest.mark.parametrize("bad", ["relu", "", None, True, ["silu"]])
def test_names(bad):
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match=rf"^rms_norm_gated: activation is {re.escape(repr(bad))}, expected 'silu' or"):
        oxiwarp.rms_norm_gated(x, x, activation=bad)
    with pytest.raises(ValueError, match=rf"^rms_norm_gated: rounding is {re.escape(repr(bad))}, expected 'once' or"):
        oxiwarp.rms_norm_gated(x, x, rounding=bad)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gradients_of_products_beyond_float16(activation, device):
    """The gradients are correct even if `x * activation(gate)` exceeds the range of float16.

    Neither this product nor its gradient is rounded to float16.
    """
    x = (random((8, 64), torch.float32, device) * 2e4).clamp(-6e4, 6e4)
    gate = random((8, 64), torch.float32, device, 1).abs() * 20
    f = torch.nn.functional.silu if activation == "silu" else torch.sigmoid

    def gradients(call, *leaves):
        leaves = [leaf.requires_grad_() for leaf in leaves]
        call(*leaves).sum().backward()
        return [leaf.grad for leaf in leaves]

    def reference(x, gate):
        product = x * f(gate)
        return product * torch.rsqrt(product.square().mean(-1, keepdim=True) + 1e-6)

    half = [x.half(), gate.half()]
    with torch.enable_grad():
        expected = gradients(reference, *[leaf.double() for leaf in half])
        got = gradients(
            lambda x, gate: oxiwarp.rms_norm_gated(x, gate, gate_first=True, rounding="once", activation=activation),
            *half,
        )
    assert (half[0].double() * f(half[1].double())).abs().max() > 2 * 65504 or activation == "sigmoid"
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-3, atol=2e-3 * b.abs().max().item())


@pytest.mark.parametrize("kind", ["f32", "same"])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("rounding", ["once", "before_weight"])
def test_gradients_of_norms_beyond_float16(rounding, activation, kind, device):
    """The gradients are correct even if the weighted norm and its gradient exceed the range of float16.

    Large weights, gates and incoming gradients cause such values. Neither the weighted norm nor its gradient
    is rounded to float16.
    """
    if (rounding, kind) == ("before_weight", "same"):
        pytest.skip("the forward rounds the norm to float16 there")
    large = torch.arange(64, device=device) % 2 == 0
    f = torch.nn.functional.silu if activation == "silu" else torch.sigmoid
    x = (random((8, 64), torch.float32, device) * torch.where(large, 1.0, 0.01)).half()
    weight = torch.where(large, 6e4, 1e-3).to(torch.float16 if kind == "same" else torch.float32)
    gate = torch.where(large, -8.0, 300.0).expand(8, 64).half().contiguous()
    dy = torch.where(large, 1e-3, 1e3).expand(8, 64).half().contiguous()

    def gradients(call, dy, *leaves):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        y = call(*leaves)
        y.backward(dy)
        return y, [leaf.grad for leaf in leaves]

    def reference(x, gate, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight * f(gate)

    with torch.enable_grad():
        _, expected = gradients(reference, dy.double(), x.double(), gate.double(), weight.double())
        y, got = gradients(
            lambda x, gate, weight: oxiwarp.rms_norm_gated(x, gate, weight, rounding=rounding, activation=activation),
            dy,
            *(x, gate, weight),
        )
    assert y.isfinite().all(), "the forward has no number beyond float16"
    for name, a, b in zip(("x", "gate", "weight"), got, expected, strict=True):
        assert b.abs().max() < 65504
        torch.testing.assert_close(
            a.double(), b, rtol=4e-3, atol=2e-3 * b.abs().max().item(), msg=lambda m, n=name: f"{n}: {m}"
        )
