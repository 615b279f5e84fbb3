"""Tests of patched blocks with joint attention over text and image tokens: results, gradients, kernels."""

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

LEFT = {*INDUCTOR, "layer_norm"}  # Graphs of torch.compile need not contain these operators.
FAMILY = pytest.mark.parametrize("name", FAMILIES)


def fused(model, **options):
    oxiwarp.patch(model, cpu_kernels=True, **options)
    return model


@pytest.mark.parametrize(
    ("mode", "dtype"), [*(("exact", dtype) for dtype in DTYPES), ("fast", torch.bfloat16)], ids=str
)
@FAMILY
def test_values(name, dtype, mode, device):
    """A patched model runs every expected kernel, and its results differ from the unpatched model only by
    rounding errors.

    After `unpatch`, the results equal the unpatched model's results bit for bit.
    """
    family = FAMILIES[name]
    model = build(family, dtype, device)
    stock = step(family, model, dtype, device)
    report = oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    left = [row.reason for row in report if row.status == "left"]
    # SD 3 has no norms of queries and keys, so `patch` has nothing to replace in its attention processors.
    assert left == (["patch was called without attention=True; it has no norm"] if name == "sd3" else []), report
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
    """On a GPU, a model that is patched with mode "exact" and without its RMSNorm modules gives the unpatched
    model's results, bit for bit."""
    family = FAMILIES[name]
    model = build(family, dtype, cuda)
    stock = step(family, model, dtype, cuda)
    oxiwarp.patch(model, skip="*RMSNorm")
    for ours, own in zip(step(family, model, dtype, cuda), stock, strict=True):
        assert torch.equal(ours, own), f"{(ours != own).sum()} of {own.numel()} differ"


def is_ours(node):
    return str(node.target).startswith("oxiwarp.")


# The compile tests of these models have the mark `extra`. For each of them, the tests without this
# mark contain a larger model with the same operators, for example "sd3.5".
SMALLER = ("flux2", "sd3", "hunyuan_video", "ltx2", "qwen_image")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.extra] * (name in SMALLER)) for name in FAMILIES]
)
def test_compiles(name, device):
    """A patched model compiles to one graph. The graph calls oxiwarp operators, except for those that Inductor computes
    under torch.compile.
    """
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
    """With gradients enabled, a patched model runs its kernels and gives the gradients of the unpatched model."""
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
    """Under autocast and in float64, a patched model runs the original code and calls no oxiwarp operator."""
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
    """Map the name of each fusion to one object in which this fusion replaces a method."""
    found = {}
    for module in model.modules():
        for part in (module, module.__dict__.get("processor")):
            name = getattr(getattr(part, "__dict__", {}).get("_oxiwarp"), "fusion", None)
            if name is not None:
                found[name] = part
    return found


@FAMILY
def test_changed_source(name, monkeypatch):
    """`patch` skips an object whose method has unknown source code. The report of `patch` gives the
    reason."""
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
    """Patched methods read the signature of a processor only at the first call.

    In Qwen-Image, the third argument of the attention module has another name than the third argument of the
    processor. Therefore the module passes its third argument by keyword.
    """
    family, looked_up = FAMILIES[name], []
    model = build(family)
    expected = step(family, model)
    oxiwarp.patch(model, cpu_kernels=True)
    step(family, model)
    monkeypatch.setattr(inspect, "signature", lambda f, own=inspect.signature: looked_up.append(f) or own(f))
    for y, right in zip(step(family, model), expected, strict=True):
        torch.testing.assert_close(y, right, rtol=1e-4, atol=1e-5)
    assert not looked_up
