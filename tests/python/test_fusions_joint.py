"""Fused blocks of transformers over text and image tokens: the stock model's values, by our kernels alone."""

import pytest
import torch
from helpers import DTYPES
from joint_models import FAMILIES, Kernels, build, step
from test_compile import counting

import oxiwarp
from oxiwarp.fusions import FUSIONS

FAMILY = pytest.mark.parametrize("name", FAMILIES)


def fused(model, **options):
    oxiwarp.patch(model, cpu_kernels=True, **options)
    return model


def assert_near(ours, stock, wider, times=2.0):
    """No further from the stock model than `times` its own distance from a wider dtype."""
    for y, own, right in zip(ours, stock, wider, strict=True):
        assert y.dtype == own.dtype and y.shape == own.shape
        error, difference = (own.double() - right.double()).abs(), (y.double() - own.double()).abs()
        assert difference.mean() <= times * error.mean() + 1e-7 and difference.max() <= times * error.max() + 1e-6


def wider_step(family, dtype, device):
    """What the stock model gives in the next wider dtype."""
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    return step(family, build(family, dtype, device).to(wide), wide, device)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@FAMILY
def test_values(name, dtype, mode, device):
    """Every fused chain runs; mode "exact" gives the stock model's bits on CUDA; unpatched, they are its own again."""
    family = FAMILIES[name]
    model = build(family, dtype, device)
    stock = step(family, model, dtype, device)
    report = oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    assert report.left == 0, report
    with Kernels() as kernels:
        ours = step(family, model, dtype, device)
    assert kernels.ours == family.kernels
    if mode == "exact" and device.type == "cuda":
        assert all(map(torch.equal, ours, stock))
    assert_near(ours, stock, wider_step(family, dtype, device))
    assert oxiwarp.unpatch(model) == report.replaced
    with Kernels() as kernels:
        assert all(map(torch.equal, step(family, model, dtype, device), stock))
    assert not kernels.ours


@FAMILY
def test_compiles(name, device):
    """In one graph, with the kernels in it."""
    family, graphs = FAMILIES[name], []
    model = fused(build(family, torch.bfloat16, device))
    expected = step(family, model, torch.bfloat16, device)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counting(graphs))
    got = step(family, compiled, torch.bfloat16, device)
    assert all(map(torch.equal, got, expected))
    found = [str(node.target) for graph in graphs for node in graph.graph.nodes if "oxiwarp" in str(node.target)]
    assert len(found) == sum(family.kernels.values())


@FAMILY
def test_gradients(name):
    """In grad mode the blocks are fused too, and give the stock model's gradients."""
    family, grads = FAMILIES[name], []
    for model in (build(family), fused(build(family))):
        model.requires_grad_()
        with torch.enable_grad(), Kernels() as kernels:
            sum(y.square().mean() for y in step(family, model)).backward()
        grads.append({key: value.grad for key, value in model.named_parameters()})
    assert kernels.ours["gated_residual"] >= family.kernels["gated_residual"]
    for key, expected in grads[0].items():
        if expected is not None:
            torch.testing.assert_close(grads[1][key], expected, rtol=1e-4, atol=1e-6)


@FAMILY
def test_other_calls(name):
    """What no kernel is for goes through the stock methods: autocast, a dtype without kernels."""
    family = FAMILIES[name]
    stock, model = build(family), fused(build(family))
    with Kernels() as kernels:
        with torch.autocast("cpu", torch.bfloat16):
            expected, got = step(family, stock), step(family, model)
        assert all(map(torch.equal, got, expected))
        for each in (stock, model):
            each.double()
        assert all(map(torch.equal, step(family, model, torch.float64), step(family, stock, torch.float64)))
    assert not kernels.ours


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
