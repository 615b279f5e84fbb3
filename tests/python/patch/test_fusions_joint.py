"""Fused blocks over text and image tokens return the values of the original model and run oxiwarp's kernels."""

import inspect
from collections import Counter

import pytest
import torch
from fused_checks import Operators, close
from helpers import DTYPES
from joint_models import FAMILIES, build, ran, step
from test_compile import counting

import oxiwarp
from oxiwarp.patching.fusions import FUSIONS
from oxiwarp.patching.fusions.core.ops import INDUCTOR

LEFT = {*INDUCTOR, "layer_norm"}  # not in every compiled graph: a norm by itself is torch's own there
FAMILY = pytest.mark.parametrize("name", FAMILIES)


def fused(model, **options):
    oxiwarp.patch(model, cpu_kernels=True, **options)
    return model


@pytest.mark.parametrize(
    ("mode", "dtype"), [*(("exact", dtype) for dtype in DTYPES), ("fast", torch.bfloat16)], ids=str
)
@FAMILY
def test_values(name, dtype, mode, device):
    """Every fused chain runs, and nothing moves more than rounding moves it; unpatched, the model is the stock one."""
    family = FAMILIES[name]
    model = build(family, dtype, device)
    stock = step(family, model, dtype, device)
    report = oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    assert report.left == 0, report
    with Operators() as operators:
        ours = step(family, model, dtype, device)
    assert ran(operators) == family.kernels
    wider = step(family, build(family, torch.float32, device), torch.float32, device)
    for y, own, right in zip(ours, stock, wider, strict=True):
        assert y.dtype == own.dtype and y.shape == own.shape
        close(y, own, right.double())
    assert oxiwarp.unpatch(model) == report.replaced
    with Operators() as operators:
        assert all(map(torch.equal, step(family, model, dtype, device), stock))
    assert not operators.calls


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.bits])
def test_bits(name, dtype, cuda):
    """Mode "exact" gives the stock model's bits, where norms that run by themselves are its own."""
    family = FAMILIES[name]
    model = build(family, dtype, cuda)
    stock = step(family, model, dtype, cuda)
    oxiwarp.patch(model, skip="*RMSNorm")
    for ours, own in zip(step(family, model, dtype, cuda), stock, strict=True):
        assert torch.equal(ours, own), f"{(ours != own).sum()} of {own.numel()} differ"


def is_ours(node):
    return str(node.target).startswith("oxiwarp.")


@FAMILY
def test_compiles(name, device):
    """In one graph, with the kernels in it but for those that Inductor has."""
    family, graphs = FAMILIES[name], []
    model = fused(build(family, torch.bfloat16, device))
    expected = step(family, model, torch.bfloat16, device)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counting(graphs))
    got = step(family, compiled, torch.bfloat16, device)
    for y, right in zip(got, expected, strict=True):
        torch.testing.assert_close(y, right)
    found = Counter(str(node.target).split(".")[1] for graph in graphs for node in graph.graph.nodes if is_ours(node))
    for kernel, times in family.kernels.items():
        assert found[kernel] == (0 if kernel in LEFT and kernel not in found else times), kernel


@FAMILY
def test_gradients(name):
    """In grad mode the blocks are fused too, and give the stock model's gradients."""
    family, grads = FAMILIES[name], []
    for model in (build(family), fused(build(family))):
        model.requires_grad_()
        with torch.enable_grad(), Operators() as operators:
            sum(y.square().mean() for y in step(family, model)).backward()
        grads.append({key: value.grad for key, value in model.named_parameters()})
    assert operators.calls["gated_residual"] >= family.kernels["gated_residual"]
    for key, expected in grads[0].items():
        if expected is not None:
            torch.testing.assert_close(grads[1][key], expected, rtol=1e-4, atol=1e-6)


@FAMILY
def test_other_calls(name):
    """What no kernel is for goes through the stock methods: autocast, a dtype without kernels."""
    family = FAMILIES[name]
    stock, model = build(family), fused(build(family))
    with Operators() as operators:
        with torch.autocast("cpu", torch.bfloat16):
            expected, got = step(family, stock), step(family, model)
        assert all(map(torch.equal, got, expected))
        for each in (stock, model):
            each.double()
        assert all(map(torch.equal, step(family, model, torch.float64), step(family, stock, torch.float64)))
    assert not operators.calls


def fused_parts(model):
    """The objects of a patched model that have a fused method, one of each kind."""
    found = {}
    for module in model.modules():
        for part in (module, module.__dict__.get("processor")):
            name = getattr(getattr(part, "__dict__", {}).get("_oxiwarp"), "fusion", None)
            if name is not None:
                found[name] = part
    return found


@FAMILY
def test_changed_source(name, monkeypatch):
    """A method that is not the one that was read is left, with the reason in the report."""
    family = FAMILIES[name]
    model = build(family)
    oxiwarp.patch(model, cpu_kernels=True)
    kinds = {fusion: type(part)._oxiwarp_base for fusion, part in fused_parts(model).items()}
    oxiwarp.unpatch(model)
    assert kinds
    for fusion, cls in kinds.items():
        method = FUSIONS[fusion].method
        with monkeypatch.context() as patched:
            patched.setattr(cls, method, lambda self, *args, **kwargs: None)
            report = oxiwarp.patch(model, cpu_kernels=True)
            reasons = [row.reason for row in report if row.module_class.endswith(f".{cls.__name__}")]
            assert reasons and all(f"{method} is not the one that {fusion} knows" in reason for reason in reasons)
            oxiwarp.unpatch(model)


@pytest.mark.parametrize("name", ["qwen_image", "sd3.5"])
def test_signatures_of_processors(name, monkeypatch):
    """They are looked up once. Qwen-Image's processor has another third argument than its module, which hands the third
    on by name."""
    family, looked_up = FAMILIES[name], []
    model = build(family)
    expected = step(family, model)
    oxiwarp.patch(model, cpu_kernels=True)
    step(family, model)
    monkeypatch.setattr(inspect, "signature", lambda f, own=inspect.signature: looked_up.append(f) or own(f))
    for y, right in zip(step(family, model), expected, strict=True):
        torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
    assert not looked_up
