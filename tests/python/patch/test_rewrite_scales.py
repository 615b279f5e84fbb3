"""Tests of modulations whose factor `1 + scale` is stored in a variable, read through a view, or part of a
gated activation."""

import pytest
import torch
from helpers import DTYPES, random
from test_rewrite_forms import WIDTH, close, kernels, run
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(WIDTH, WIDTH)


class View(Scaled):
    def forward(self, x, c):
        return self.norm(x) * (1 + c).unsqueeze(1)


class Reassigned(Scaled):
    """A method that assigns the factor `1 + scale` to a variable, and then a view of this factor to the same
    variable, as in the final layer of Z-Image."""

    def forward(self, x, c):
        scale = 1.0 + self.proj(c)
        scale = scale.unsqueeze(1)
        x = self.norm(x) * scale
        return x


class Loop(Scaled):
    """A loop that assigns the factor `1 + scale` in one branch and reads it in the other branch, in the next
    iteration. The rewritten method must therefore not remove the assignment.
    """

    def forward(self, x, c):
        for step in range(3):
            if step % 2:
                x = x + scale  # noqa: F821
            else:
                scale = 1.0 + c[:, None]
                x = self.norm(x) * scale
        return x


class Index(Scaled):
    """A method with two expressions that look like views of the factor `1 + scale`, but are not. The first is
    a slice whose start depends on the values of the factor. The second computes new values."""

    def forward(self, x, c):
        scale = 1.0 + c
        scale = scale[scale.argmax() :]
        x = self.norm(x) * scale
        width = 1.0 + c
        width = width.square()
        return self.norm(x) * width


class Gate(nn.Module):
    """The activation function of GPT-OSS."""

    def forward(self, x):
        gate, up = x[..., ::2], x[..., 1::2]
        gate, up = gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)
        glu = gate * torch.sigmoid(gate * 1.702)
        return (up + 1) * glu


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", [View, Reassigned])
def test_views(cls, dtype, device):
    """One kernel computes the product of a norm and a view of `1 + scale`."""
    module = cls().to(device, dtype)
    own, made, rows = run(module, random((2, 5, WIDTH), dtype, device), random((2, WIDTH), dtype, device, 1))
    close(made, own)
    assert sum(row.kernels for row in rows) == 1 and kernels(rows)["ada_norm"] == 1


@pytest.mark.parametrize("cls", [Loop, Index])
def test_factors_that_stay(cls):
    """If the factor `1 + scale` is read again, or changes before the norm, the rewritten method gives the
    original result."""
    module, x, c = cls(), torch.randn(WIDTH, 5, WIDTH), torch.randn(WIDTH, WIDTH)[:, :WIDTH]
    if cls is Index:
        x, c = x[0, 0], c[0]
        c[0] = c.max() + 1
    own, made, _ = run(module, x, c)
    torch.testing.assert_close(made, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_units(dtype, device):
    """The kernel for modulations also computes `(up + 1) * glu`, although no variable in this product is
    named like a scale."""
    x = 4 * random((6, 2 * WIDTH), dtype, device)
    own, made, rows = run(Gate(), x)
    gate, up = x[..., ::2].double().clamp(max=7.0), x[..., 1::2].double().clamp(-7.0, 7.0)
    exact = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    limit = 8 * torch.finfo(dtype).eps
    assert ((made.double() - exact).abs() <= limit * exact.abs() + limit).all()
    close(made, own)
    assert [row.kernels for row in rows] == [1, 1] and rows[1].op == "modulate"


class Wide(nn.Module):
    """A modulation of a float32 tensor whose result has another dtype, as at the end of Wan-Animate."""

    def forward(self, x, scale, shift, dtype):
        return (x * (1 + scale) + shift).to(dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_results_of_another_dtype(dtype, device):
    x, scale, shift = (random((2, 5, WIDTH), torch.float32, device, seed) for seed in range(3))
    own, made, rows = run(Wide(), x, scale, shift, dtype)
    close(made, own)
    assert [row.kernels for row in rows] == [int(dtype != torch.float64)]


class TorchRmsNorm(nn.Module):
    """The norm and the modulation of MiniMax-H3."""

    def __init__(self, affine=True):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6, elementwise_affine=affine)

    def forward(self, x, c):
        return self.norm(x) * (1.0 + c[:, None]) + c[:, None]


class GateOfToken(Scaled):
    """A residual whose gate has one number per token, and the norm of the sum."""

    def forward(self, x, c):
        x = x + x[..., :1] * self.proj(x)
        return self.norm(x) * (1 + c[:, None]), x


class Float32Residual(Scaled):
    """A float32 residual with a 16-bit branch and gate."""

    def forward(self, x, c):
        branch = self.proj(c[:, None].expand(-1, x.shape[1], -1))
        x = x + c[:, None] * branch
        return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_torch_rms_norm(affine, dtype, device):
    """One kernel computes torch.nn.RMSNorm and a modulation. On a GPU, all bits are equal."""
    module = TorchRmsNorm(affine).to(device, dtype)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    own, made, rows = run(module, random((2, 5, WIDTH), dtype, device), random((2, WIDTH), dtype, device, 1))
    close(made, own)
    assert made.is_cpu or torch.equal(made, own)
    assert kernels(rows)["ada_norm"] == 1 and sum(row.kernels for row in rows) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gate_of_token(dtype, device):
    """One kernel computes a residual with one gate per token, and the modulated norm of the sum."""
    module = GateOfToken().to(device, dtype)
    own, made, rows = run(module, random((2, 5, WIDTH), dtype, device), random((2, WIDTH), dtype, device, 1))
    for one, other in zip(made, own, strict=True):
        close(one, other)
    assert torch.equal(made[1], own[1])
    assert sum(row.kernels for row in rows) == 1 and "gated_residual_ada_norm" in rows[0].op


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_residual(dtype, device):
    """One kernel adds a 16-bit branch to a float32 residual, with the bits of torch."""
    module = Float32Residual().to(device, dtype)
    x = random((2, 5, WIDTH), torch.float32, device)
    own, made, rows = run(module, x, random((2, WIDTH), dtype, device, 1))
    assert made.dtype == torch.float32 and torch.equal(made, own)
    assert kernels(rows)["gated_residual"] == 1
