"""Tests of norms that multiply the normalized row by their second argument, as in Mochi.

The second argument is `1 + scale`, or `tanh(gate)` if the result is added to the residual stream.
"""

import pytest
import torch
from helpers import DTYPES, random
from test_rewrite_forms import run
from torch import nn

import oxiwarp

WIDTH = 24


class OwnRMSNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Factor(nn.Module):
    """An RMSNorm that computes in float32, multiplies by a factor, and rounds once."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.norm = OwnRMSNorm(eps)

    def forward(self, x, scale=None):
        y = self.norm(x.float())
        return (y if scale is None else y * scale).to(x.dtype)


class Rounded(Factor):
    """A norm that rounds its result before the multiplication by the factor."""

    def forward(self, x, scale=None):
        return (self.norm(x) * scale).to(x.dtype)


class Added(Factor):
    """A norm that adds its second argument instead of multiplying by it."""

    def forward(self, x, scale=None):
        return (self.norm(x.float()) + scale).to(x.dtype)


class Block(nn.Module):
    def __init__(self, norm=Factor, eps=1e-5):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = norm(1e-5), norm(eps), norm(1e-5)

    def forward(self, x, y, gate, scale):
        x = x + self.norm1(y, torch.tanh(gate).unsqueeze(1))
        z = self.norm2(x, (1 + scale.unsqueeze(1).to(torch.float32)))
        x = x + self.norm3(z * 2, torch.tanh(gate)[:, None].contiguous())
        return x, z


class Between(Block):
    """A block with other statements between the sum and the norm of this sum."""

    def forward(self, x, y, gate, scale):
        x = self.norm1(y, gate.tanh().unsqueeze(1)) + x
        if x.ndim == 4:
            x = x[0]
        z = self.norm2(x, 1 + scale.unsqueeze(1).float())
        return x, z


class Narrow(Block):
    """A block whose original code rounds `1 + scale` to 16 bits."""

    def forward(self, x, y, gate, scale):
        return self.norm2(x, 1 + scale.unsqueeze(1)), x


class CastLater(nn.Module):
    """A block in which a later statement casts the modulated norm."""

    def __init__(self):
        super().__init__()
        self.norm = OwnRMSNorm(1e-5)

    def forward(self, x, y, gate, scale):
        dtype = x.dtype
        x = self.norm(x.to(torch.float32)) * (1 + scale[:, None].to(torch.float32))
        x = x.to(dtype)
        return x, y


def inputs(dtype, device):
    heads = [random((2, 5, WIDTH), dtype, device, seed) for seed in (0, 1)]
    return [*heads, *(random((2, WIDTH), dtype, device, seed) for seed in (2, 3))]


def close(made, own):
    for one, other in zip(made, own, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        tolerance = 2 * torch.finfo(one.dtype).eps
        torch.testing.assert_close(one, other, rtol=tolerance, atol=4 * tolerance)


def kernels(rows):
    return {row.op.rpartition(", ")[2]: row.kernels for row in rows if row.kernels}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("cls", "wanted"),
    [
        (Block, {"residual_tanh_gated_rms_norm_modulated": 1}),
        (Between, {"residual_tanh_gated_rms_norm_modulated": 1}),
        (CastLater, {"ada_norm": 1}),
    ],
)
def test_kernels(cls, wanted, dtype, device):
    module, given = cls().to(device), inputs(dtype, device)
    own, made, rows = run(module, *given)
    close(made, own)
    assert wanted.items() <= kernels(rows).items() and not any(row.fallbacks for row in rows), rows
    torch.compiler.reset()
    close(torch.compile(module, backend="eager", fullgraph=True)(*given), own)
    with torch.enable_grad():
        leaves = [[x.clone().requires_grad_() for x in given[:3]] for _ in range(2)]
        grads = [
            torch.autograd.grad(sum(y.float().square().sum() for y in one(*held, given[3])), held, allow_unused=True)
            for one, held in zip((module, cls().to(device)), leaves, strict=True)
        ]
    for ours, theirs in zip(*grads, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05 * float(theirs.abs().max()))


@pytest.mark.parametrize("norm", [Rounded, Added])
def test_other_norms(norm):
    """If a norm has a different formula, its original `forward` runs."""
    module, given = Block(norm), inputs(torch.bfloat16, "cpu")
    own, made, rows = run(module, *given)
    assert all(map(torch.equal, made, own)) and not kernels(rows)


def test_roundings():
    """If the original code computes `1 + scale` in 16 bits, no kernel runs, because the kernel computes `1 +
    scale` in float32."""
    given = inputs(torch.bfloat16, "cpu")
    own, made, rows = run(Narrow(), *given)
    assert all(map(torch.equal, made, own)) and not kernels(rows)
    own, made, rows = run(Narrow(), *(x.float() for x in given))
    close(made, own)
    assert kernels(rows) == {"ada_norm": 1}


def test_two_eps(device):
    """If two norms have different eps values, two kernels compute them."""
    given = inputs(torch.float32, device)
    given[0], given[1] = given[0] * 1e-2, given[1] * 1e-2
    own, made, rows = run(Between(eps=0.1).to(device), *given)
    close(made, own)
    assert sum(kernels(rows).values()) == 2


def test_hooks(device):
    """A hook runs if it is on the norm, or on the inner module of the norm."""
    for path in ("norm1", "norm2.norm"):
        module, given, seen = Block().to(device), inputs(torch.float32, device), []
        oxiwarp.patch(module, cpu_kernels=True)
        module.get_submodule(path).register_forward_hook(lambda *of, seen=seen: seen.append(1))
        module(*given)
        assert seen == [1], path
