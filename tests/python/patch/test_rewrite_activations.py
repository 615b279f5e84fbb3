"""Tests of rewritten methods that compute a GELU, or the product of a GELU and another tensor.

Some methods have a branch for devices for which oxiwarp has no kernels, such as Apple GPUs.
"""

import pytest
import torch
import torch.nn.functional as F
from helpers import DTYPES, random
from test_rewrite_forms import close, kernels, run
from torch import nn

import oxiwarp

WIDTH = 24


class Gelu(nn.Module):
    def __init__(self, approximate="none"):
        super().__init__()
        self.approximate = approximate

    def activation(self, x):
        if x.device.type == "mps" and torch.__version__ < "2.0.0":
            return F.gelu(x.float(), approximate=self.approximate).to(x.dtype)
        return F.gelu(x, approximate=self.approximate)

    def forward(self, x):
        return self.activation(x)


class PlainGelu(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x)


class GatedGelu(nn.Module):
    """diffusers' GEGLU activation, with a branch for Apple GPUs."""

    def gelu(self, gate):
        if gate.device.type == "mps":
            return F.gelu(gate.float()).to(dtype=gate.dtype)
        return F.gelu(gate)

    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return x * self.gelu(gate)


class OnCpu(nn.Module):
    """A GELU that uses another formula for CPU tensors. oxiwarp can run kernels on the CPU, so `patch` must
    not ignore the branch for CPU tensors.
    """

    def gelu(self, gate):
        if gate.device.type == "cpu":
            return F.gelu(gate) + 1
        return F.gelu(gate)

    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return x * self.gelu(gate)


class Doubled(nn.Module):
    def gelu(self, gate):
        return 2 * F.gelu(gate)

    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return x * self.gelu(gate)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("make", "op"),
    [
        (Gelu, "gelu"),
        (lambda: Gelu("tanh"), "gelu"),
        (PlainGelu, "gelu"),
        (GatedGelu, "gelu_and_mul"),
    ],
)
def test_gelu(make, op, dtype, device):
    module, x = make().to(device), random((2, 5, 2 * WIDTH), dtype, device)
    own, made, rows = run(module, x)
    close(made, own)
    assert kernels(rows) == {op: 1} and not any(row.fallbacks for row in rows)
    torch.compiler.reset()
    assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(x), made)
    with torch.enable_grad():
        y = x.clone().requires_grad_()
        ours, theirs = (torch.autograd.grad(one(y).sum(), y)[0] for one in (module, make()))
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("cls", [OnCpu, Doubled])
def test_other_formulas(cls):
    """If a method computes more than a GELU, no kernel replaces a call of this method."""
    x = random((2, 5, 2 * WIDTH), torch.bfloat16, "cpu")
    own, made, rows = run(cls(), x)
    close(made, own)
    assert kernels(rows).get("gelu_and_mul", 0) == 0


def test_replaced_after_patch(monkeypatch):
    """A subclass, or an assignment after `patch`, may replace the method whose formula the kernel computes.

    The new method then runs.
    """
    x = random((2, 5, 2 * WIDTH), torch.float32, "cpu")
    module, quiet = GatedGelu(), type("Quiet", (GatedGelu,), {"gelu": lambda self, gate: gate * 0})()
    with oxiwarp.patched(quiet, cpu_kernels=True, allow_empty=True):
        assert not quiet(x).any()
    oxiwarp.patch(module, cpu_kernels=True)
    assert module(x).any()
    monkeypatch.setattr(GatedGelu, "gelu", lambda self, gate: gate * 0)
    assert not module(x).any()


def test_unusual_operands():
    """For a transposed tensor, a float64 tensor or an unknown approximation, torch's function runs."""
    x = random((2, 5, WIDTH), torch.float32, "cpu")
    for other in (x.double(), x.transpose(1, 2)):
        own, made, rows = run(PlainGelu(), other)
        assert torch.equal(made, own) and made.stride() == own.stride() and kernels(rows) == {"gelu": 0}
    module = Gelu("other")
    oxiwarp.patch(module, cpu_kernels=True)
    with pytest.raises(RuntimeError, match="approximate argument must be either none or tanh"):
        module(x)
