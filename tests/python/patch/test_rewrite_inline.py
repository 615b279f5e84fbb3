"""Tests of methods that modulate a tensor and return a tuple. `patch` replaces a call of such a method by the
statements of the method."""

import pytest
import torch
from helpers import DTYPES, random
from test_rewrite_forms import close, run
from torch import nn

import oxiwarp
from oxiwarp.patching.rewrite.recipe import rewritten_from

WIDTH = 24
total = 3


class Block(nn.Module):
    """The block of Qwen-Image. The calling method and the called method have variables of the same names."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.ff = nn.Linear(WIDTH, WIDTH)

    def modulate(self, x, parameters, index=None):
        """Return the modulated tensor and the gate."""
        shift, scale, gate = parameters.chunk(3, dim=-1)
        if index is not None:
            half = shift.size(0) // 2
            first, second = shift[:half].unsqueeze(1), shift[half:].unsqueeze(1)
            shift = torch.where(index.unsqueeze(-1) == 0, first, second)
            scale = torch.where(index.unsqueeze(-1) == 0, scale[:half].unsqueeze(1), scale[half:].unsqueeze(1))
            gate = torch.where(index.unsqueeze(-1) == 0, gate[:half].unsqueeze(1), gate[half:].unsqueeze(1))
        else:
            shift, scale, gate = shift.unsqueeze(1), scale.unsqueeze(1), gate.unsqueeze(1)
        return x * (1 + scale) + shift, gate

    def forward(self, x, y, parameters, index=None):
        shift = x
        x = x + y
        normed = self.norm(x)
        normed, gate = self.modulate(normed, parameters, index)
        other, second = self.modulate(self.norm(shift), parameters[: shift.shape[0]])
        return x + gate * self.ff(normed), other * second


class Order(Block):
    """A method with two results. The caller assigns the first result to the variable `x`, which it also
    passes as the argument. The second result must read the old value of `x`."""

    def scaled(self, x, scale):
        return x * (1 + scale), x

    def forward(self, x, y, parameters, index=None):
        x, own = self.scaled(x, y)
        return x, own


class Globals(Block):
    """A method that reads a global variable, called from a method that has a local variable of the same
    name."""

    def scaled(self, x, scale):
        return x * (1 + scale), scale + total

    def forward(self, x, y, parameters, index=None):
        total = self.norm(x)
        x, own = self.scaled(total, y)
        return x, own * total


class Once(Block):
    """A call of `scaled` whose argument is another call. `scaled` reads this argument twice, but the inner
    call must run once."""

    def scaled(self, x, scale):
        x = x * 2
        return x * (1 + scale), x * scale

    def counted(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return x

    def forward(self, x, y, parameters, index=None):
        z, own = self.scaled(scale=self.counted(y), x=x)
        return z, own, x


class EarlyReturn(Block):
    def scaled(self, x, scale):
        if scale is None:
            return x, 0
        return x * (1 + scale), scale

    def forward(self, x, y, parameters, index=None):
        z, own = self.scaled(self.norm(x), y)
        return z, own


def inputs(dtype, device, index=False):
    x, y = (random((2, 5, WIDTH), dtype, device, seed) for seed in (0, 1))
    parameters = random((4 if index else 2, 3 * WIDTH), dtype, device, 2)
    return x, y, parameters, (torch.arange(10, device=device).view(2, 5) % 3 if index else None)


def names(cls):
    return rewritten_from(cls.forward).inlined.keys()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("index", [False, True])
def test_modulation_in_a_method(index, dtype, device):
    """One kernel computes a sum, its norm and the modulation, although the modulation is in another
    method."""
    module, given = Block().to(device, dtype), inputs(dtype, device, index)
    own, made, rows = run(module, *given)
    for one, other in zip(made, own, strict=True):
        torch.testing.assert_close(
            one, other, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=8 * torch.finfo(dtype).eps
        )
    counts = {row.op: row.kernels for row in rows}
    assert counts["ada_norm"] == 1 and not any(row.fallbacks for row in rows), rows
    assert sum(count for op, count in counts.items() if "gated_residual_ada_norm" in op) == 1, rows
    torch.compiler.reset()
    close(torch.compile(module, backend="eager", fullgraph=True)(*given), made)


@pytest.mark.parametrize(("cls", "inlined"), [(Order, 0), (Globals, 0), (Once, 1), (EarlyReturn, 0)])
def test_same_meaning(cls, inlined, device):
    module, given = cls().to(device), inputs(torch.float32, device)
    assert len(names(cls)) == inlined
    own, made, _ = run(module, *given)
    close(made, own)
    assert getattr(module, "calls", 2) == 2


def test_replaced_methods(monkeypatch, device):
    """A subclass, an instance attribute or a later assignment may replace the method whose statements were
    inserted. The new method then runs."""
    given = inputs(torch.float32, device)

    def other(self, x, parameters, index=None):
        return x * 0, parameters[:, None, :WIDTH] * 0

    subclass = type("Sub", (Block,), {"modulate": other})().to(device)
    with oxiwarp.patched(subclass, cpu_kernels=True, allow_empty=True):
        assert not subclass(*given)[1].any()
    module = Block().to(device)
    oxiwarp.patch(module, cpu_kernels=True)
    assert module(*given)[1].any()
    module.modulate = other.__get__(module)
    assert not module(*given)[1].any()
    del module.modulate
    assert module(*given)[1].any()
    monkeypatch.setattr(Block, "modulate", other)
    assert not module(*given)[1].any()
