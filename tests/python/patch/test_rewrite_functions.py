"""Tests of rewritten code in helper functions and in methods other than `forward`. Some methods call modules
between the statements that a kernel replaces."""

import ast
import sys
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oxiwarp
from oxiwarp.patching.rewrite.flow import Read
from oxiwarp.patching.rewrite.formulas import formula_in
from oxiwarp.patching.rewrite.recipe import found_in, methods_of

WIDTH = 32
LOG = []


def scale_and_shift(normed, x, scale, shift):
    """Modulate the result of a norm in float32. Scale and shift have one row per batch entry."""
    if x.ndim > 2 and scale.ndim == 2:
        shape = (scale.shape[0],) + (1,) * (x.ndim - 2) + (scale.shape[-1],)
        scale, shift = scale.reshape(shape), shift.reshape(shape)
    return (normed * (scale.float() + 1.0) + shift.float()).to(dtype=x.dtype)


def add_gated(x, out, gate):
    gate = gate.unsqueeze(1) if gate.ndim == 2 else gate
    return (x.float() + gate.float() * out.float()).to(dtype=x.dtype)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Named(nn.Linear):
    """A linear that appends its name to a log when it is called."""

    def __init__(self, name):
        super().__init__(WIDTH, WIDTH)
        self.name = name

    def forward(self, x):
        LOG.append(self.name)
        return super().forward(x)


class Part(nn.Module):
    """Base class of the test blocks. It creates the modules that the blocks call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.act = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.GELU()
        self.first, self.second, self.third = (Named(name) for name in ("first", "second", "third"))


class Helpers(Part):
    def forward(self, x, s):
        b = s * 0.5
        x = add_gated(x, self.first(scale_and_shift(self.norm(x.float()), x, s, b)), s).type_as(x)
        return add_gated(x, self.second(x), s.unsqueeze(1))


class Chosen(Part):
    """A block whose gates are expressions of the form `a if test else b`, as in the cross-attentions of
    Kandinsky 6.
    """

    swapped = False

    def forward(self, x, s):
        x = add_gated(x, self.first(x), s if not self.swapped else -s).type_as(x)
        return add_gated(x, self.second(x), s if not self.swapped else x[:, 0])


class Argument(Part):
    """A block that passes the result of a module call to a helper function. Only a part of the function's
    formula reads this result."""

    def forward(self, x, s):
        return modulate(self.norm(x), self.first(s), s)


class Methods(Part):
    def forward(self, x, s):
        return self.gated(self.first(x), x) if s.dim() else x

    def gated(self, x, y):
        both = torch.cat([x, self.second(y)], dim=-1)
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up


class Activated(Part):
    def forward(self, x, s):
        gate = self.act(self.first(x))
        up = self.second(x)
        x = gate * up
        return x


class GatedLater(Part):
    def forward(self, x, s):
        gate_s = s.unsqueeze(1)
        one = gate_s * self.first(x)
        two = gate_s * self.second(x)
        x = one + x
        if s.dim():
            one = self.third(x)
            x = x + one
        return two + x


class Context(Part):
    def forward(self, x, s):
        dtype = x.dtype
        y = x * 2
        n = self.norm(x).to(dtype)
        m = self.norm(y).to(dtype)
        s = self.first(s).unsqueeze(1)
        x = n * (1 + s) + s
        y = m * (1 + s) + s
        return x - y


CHAINS = {
    Helpers: {"ada_norm": 1, "gated_residual": 2},
    Chosen: {"gated_residual": 2},
    Argument: {},
    Methods: {"silu_and_mul": 1},
    Activated: {"silu_and_mul": 1},
    GatedLater: {"gated_residual": 2},
    Context: {"ada_norm": 2},
}
"""Maps each test block to the kernels that one call of the block runs."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", CHAINS)
def test_chains(block, dtype, device):
    """A rewritten block runs the expected kernels, gives the original results, and calls its modules in
    the same order."""
    module = block().to(device, dtype)
    x, s = torch.randn(2, 5, WIDTH, device=device).to(dtype), torch.randn(2, WIDTH, device=device).to(dtype)
    with torch.no_grad():
        LOG.clear()
        stock, order = module(x.clone(), s), LOG.copy()
        report = oxiwarp.patch(module, cpu_kernels=True, allow_empty=True)
        LOG.clear()
        made = module(x.clone(), s)
    assert order == LOG
    kernels = Counter({row.op.partition(", ")[0]: row.kernels for row in report.ran() if row.line and row.kernels})
    for op in kernels:
        kernels[op] = sum(row.kernels for row in report.ran() if row.line and row.op.startswith(op))
    assert kernels == CHAINS[block], str(report.ran())
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(made, stock, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("block", CHAINS)
def test_original_expressions(block):
    """If no kernel runs, the rewritten block runs the original expressions. The result has the same bits, and
    the block calls the same modules."""
    module, x, s = block(), torch.randn(2, 5, WIDTH), torch.randn(2, WIDTH)
    results = []
    for patch in (False, True):
        if patch:
            oxiwarp.patch(module, allow_empty=True)
        LOG.clear()
        with torch.no_grad():
            results.append((module(x.clone(), s), LOG.copy()))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]


def test_a_replaced_helper_is_called(monkeypatch):
    """If the user replaces a helper function that has several statements, the new function runs."""
    module, x, s = Helpers(), torch.randn(2, 5, WIDTH), torch.randn(2, WIDTH)
    oxiwarp.patch(module, cpu_kernels=True)
    monkeypatch.setattr(sys.modules[__name__], "add_gated", lambda x, out, gate: x * 0)
    with torch.no_grad():
        assert not module(x, s).any()


def test_functions_without_a_formula():
    """`patch` cannot convert a function to a formula if a statement of the function has a side effect, is a
    loop, or returns early."""

    def changes(x, scale):
        x.mul_(2)
        return x * scale

    def loops(x, scale):
        for _ in range(2):
            x = x * scale
        return x

    def early(x, scale):
        if scale.ndim == 2:
            return x
        return x * scale

    def other(x, scale):
        y = LOG
        return x * scale + y

    assert [formula_in(function) for function in (changes, loops, early, other)] == [None] * 4


class Late(Part):
    """A block in which the product `one` must not be deferred, because a module may change the operand of the
    product in place."""

    def forward(self, x, s):
        y = self.first(x)
        one = s.unsqueeze(1) * y
        self.second(y)
        return x + one


class Changed(nn.Module):
    """A module that changes its argument in place."""

    def forward(self, x):
        return x.mul_(2)


def test_a_changed_tensor():
    """A product is not deferred until the sum that reads it, if a module gets the operand of the product
    before the sum."""
    module, x, s = Late(), torch.randn(2, 5, WIDTH), torch.randn(2, WIDTH)
    module.second = Changed()
    with torch.no_grad():
        stock = module(x, s)
        oxiwarp.patch(module, cpu_kernels=True, allow_empty=True)
        assert torch.equal(module(x, s), stock)


def test_passed_tensors():
    """`patch` analyses the source code of a method to find which variables a called function may change in
    place.

    The function may change `x` in `f(x)`, `f([x])` and `f(module(x))`, but not in `f(x * y)`.
    """

    def passed(text):
        return Read(ast.parse(text)).passed

    assert passed("f(x, [y, self.m(z)], **{'k': w})") >= {"x", "y", "z", "w"}
    assert passed("f(a + [b])") >= {"a", "b"}
    assert passed("f(x * y)") == {"f"}
    assert passed("x.view(-1)") == set()


class Unfused(nn.Module):
    """A method whose operations look like a norm with a modulation, or like a gated sum, but for which there is no
    kernel.
    """

    def forward(self, x, scale, shift, gate):
        x = self.norm(x) * scale[:, None]
        return (1 - gate) * x + gate * shift[:, None]

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)


class Both(Unfused):
    """A method with one sequence of operations for which there is no kernel, and two sequences that kernels replace."""

    def forward(self, x, scale, shift, gate):
        x = (1 - gate) * x + gate * shift[:, None]
        x = x * (1 + scale)[:, None, :] + shift[:, None, :]
        return x + gate * F.relu(x)


def test_unfused():
    """The report of `patch` names sequences of operations for which there is no kernel, with the reason."""
    assert methods_of(Unfused) == ("forward",)
    reasons = [chain.reason for chain in found_in(Unfused.forward)]
    assert len(set(reasons)) == 2 and all(reasons)
    module, other = Unfused(), Both()
    args = [torch.randn(2, 5, WIDTH), *(torch.randn(2, WIDTH) for _ in range(2)), torch.randn(2, 1, WIDTH)]
    stock = other(*args)
    (left,) = (row for row in oxiwarp.patch(module, cpu_kernels=True) if row.module_class.endswith("Unfused"))
    assert not left.op and all(reason in left.reason for reason in reasons)
    report = oxiwarp.patch(other, cpu_kernels=True)
    torch.testing.assert_close(other(*args), stock, rtol=1e-5, atol=1e-5)
    first, *others = (row for row in report.ran() if row.line)
    assert first.fallbacks == {reasons[1]: 1} and [row.kernels for row in others] == [1, 1]
