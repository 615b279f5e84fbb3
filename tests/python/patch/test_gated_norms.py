"""Tests of RMSNorms whose `forward` takes a gate. `patch` determines whether the gate is applied before or
after the norm, and which intermediate results are rounded."""

import importlib

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, random
from torch import nn

import oxiwarp
from oxiwarp.patching.class_swap import is_replaced, recipe_of
from oxiwarp.patching.norms.probe import GatedFormula
from oxiwarp.patching.norms.recognise import recognise

WIDTH = 48
LM = "transformers.models"
KNOWN = [
    (f"{LM}.mamba2.modeling_mamba2", "MambaRMSNormGated", GatedFormula(True, "silu", True)),
    (f"{LM}.bamba.modeling_bamba", "BambaRMSNormGated", GatedFormula(True, "silu", True)),
    (f"{LM}.qwen3_next.modeling_qwen3_next", "Qwen3NextRMSNormGated", GatedFormula(True, "silu", False)),
]


class Gated(nn.Module):
    """Base class of gated norms. Its options: `first` applies the gate before the norm, `sigmoid` uses a
    sigmoid instead of SiLU, and `once` rounds only the final result."""

    def __init__(self, first, sigmoid, once, weight=True):
        super().__init__()
        self.first, self.eps, self.once = first, 1e-5, once
        self.act = torch.sigmoid if sigmoid else F.silu
        self.weight = nn.Parameter(torch.randn(WIDTH)) if weight else None


class OwnRMSNormGated(Gated):
    def forward(self, x, gate=None):
        h = x.float()
        factor = 1.0 if gate is None else self.act(gate.float())
        h = h * factor if self.first else h
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            h = self.weight.float() * h if self.once else self.weight * h.to(x.dtype)
        return (h if self.first else h * factor).to(x.dtype)


class NarrowRMSNormGated(Gated):
    """A norm that computes the activation of the gate in the gate's dtype, so the activation is rounded to
    this dtype."""

    def forward(self, x, gate):
        h = x.float() * self.act(gate)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight.float() * h).to(x.dtype)


class GroupedRMSNormGated(Gated):
    def forward(self, x, gate):
        h = (x.float() * self.act(gate.float())).unflatten(-1, (2, -1))
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2)
        return (self.weight.float() * h).to(x.dtype)


def exact(module, x, gate):
    """Return the result of the gated norm in float64."""
    h, factor = x.double(), module.act(gate.double())
    h = h * factor if module.first else h
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + module.eps)
    h = h if module.weight is None else h * module.weight.double()
    return h if module.first else h * factor


@pytest.mark.parametrize(("path", "name", "formula"), KNOWN)
def test_known(path, name, formula):
    formulas, _ = recognise(getattr(importlib.import_module(path), name)(96))
    assert formulas[torch.bfloat16, torch.bfloat16] == formula


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("once", [False, True], ids=["rounded", "once"])
@pytest.mark.parametrize("sigmoid", [False, True], ids=["silu", "sigmoid"])
@pytest.mark.parametrize("first", [False, True], ids=["norm first", "gate first"])
def test_formulas(first, sigmoid, once, dtype, device):
    """For each formula of a gated norm, the kernel rounds the same intermediate results as the module.

    The gate is a slice of a larger tensor.
    """
    module = OwnRMSNormGated(first, sigmoid, once).to(device, dtype)
    x = random((2, 5, WIDTH), dtype, device)
    gate = 3 * random((2, 5, 2 * WIDTH), dtype, device, 1)[..., WIDTH:]
    own, right = module(x, gate), exact(module, x, gate)
    report = oxiwarp.patch(module, cpu_kernels=True)
    made = module(x, gate=gate)
    assert [(row.op, row.kernels, row.fallbacks) for row in report.ran()] == [("rms_norm_gated", 1, {})]
    assert made.dtype == dtype and made.is_contiguous()
    errors = [(y.double() - right).norm() / right.norm() for y in (own, made)]
    assert errors[1] <= 1.5 * errors[0] + 1e-6
    if dtype != torch.float32:
        assert (made != own).double().mean() <= 0.02
    with torch.enable_grad():
        inputs = [own.requires_grad_() for own in (x.clone(), gate.clone())]
        ours = torch.autograd.grad(module(*inputs).sum(), inputs)
        wanted = torch.autograd.grad(OwnRMSNormGated.forward(module, *inputs).sum(), inputs)
        torch.testing.assert_close(ours, wanted, rtol=0.05, atol=0.1 if dtype != torch.float32 else 1e-4)


def test_a_float32_input(device):
    """A gated norm accepts a float32 input with a 16-bit gate and weight, as after the scan of Mamba 2."""
    module = OwnRMSNormGated(True, False, False).to(device, torch.bfloat16)
    x, gate = random((2, 5, WIDTH), torch.float32, device), random((2, 5, WIDTH), torch.bfloat16, device, 1)
    own = module(x, gate)
    report = oxiwarp.patch(module, cpu_kernels=True)
    torch.testing.assert_close(module(x, gate), own, rtol=1e-5, atol=1e-5)
    assert report.ran().kernels == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("once", [False, True], ids=["rounded", "once"])
def test_a_float32_gate(dtype, once):
    """The original `forward` runs if the gate is float32 and the input has 16 bits."""
    module = OwnRMSNormGated(True, False, once)
    module.weight.data = module.weight.to(dtype)
    x, gate = torch.randn(2, 5, WIDTH).to(dtype), torch.randn(2, 5, WIDTH)
    own = module(x, gate)
    report = oxiwarp.patch(module, cpu_kernels=True)
    assert torch.equal(module(x, gate), own)
    assert report.ran().kernels == 0


def test_calls_without_a_kernel():
    """A patched gated norm runs its original `forward` without a gate, with a gate of another shape, and for
    a transposed input."""
    module, x = OwnRMSNormGated(False, False, True), torch.randn(2, WIDTH, WIDTH)
    turned = x.transpose(0, 1)
    calls = [(x,), (x, None), (x, x[:1]), (x.mT, x), (turned, turned), (x[0, :1].expand(WIDTH, -1), x[0])]
    own = [module(*args) for args in calls]
    report = oxiwarp.patch(module, cpu_kernels=True)
    for args, before in zip(calls, own, strict=True):
        made = module(*args)
        assert torch.equal(made, before) and made.stride() == before.stride()
    assert report.ran().kernels == 0 and report.ran().fallbacks == len(calls)


def test_formulas_without_a_kernel():
    """A norm that rounds the activation of the gate runs its original `forward` if the gate has 16 bits.

    No kernel rounds this activation.
    """
    module = NarrowRMSNormGated(True, False, True)
    oxiwarp.patch(module, cpu_kernels=True)
    assert set(recipe_of(module).formulas) == {(torch.float32, torch.float32)}
    x, gate = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH).bfloat16()
    assert torch.equal(module(x, gate), NarrowRMSNormGated.forward(module, x, gate))
    grouped = GroupedRMSNormGated(True, False, True)
    oxiwarp.patch(grouped, cpu_kernels=True, allow_empty=True)
    assert recipe_of(grouped) is None or not hasattr(recipe_of(grouped), "formulas")


def test_no_weight():
    module, x, gate = OwnRMSNormGated(True, True, True, weight=False), torch.randn(5, WIDTH), torch.randn(5, WIDTH)
    own = module(x, gate)
    report = oxiwarp.patch(module, cpu_kernels=True)
    torch.testing.assert_close(module(x, gate), own, rtol=1e-5, atol=1e-6)
    assert is_replaced(module) and report.ran().kernels == 1
