"""Tests of operations that only copy their operand, such as a division by 1, and of calls of
`inspect.signature`.

A rewritten method omits such copies, and reads the signature of an attention processor only once.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F
from helpers import random
from torch import nn

import oxiwarp
from oxiwarp.patching.rewrite.recipe import rewritten_from


class Attention(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x, rest, samples=1):
        parts = []
        for _ in range(samples):
            part = x * 2
            part = F.pad(part, (0, 0, 0, rest))
            parts.append(part)
        x = torch.cat(parts, dim=0)
        x = x / self.factor
        return x


class Changed(Attention):
    """A method that changes a copy of `x` in place, while another variable still refers to the original
    `x`."""

    def forward(self, x, rest, samples=1):
        own = x
        x = x / self.factor
        x.mul_(3)
        return own + x


class Other(Attention):
    """A method that assigns a copy of `x` to another variable."""

    def forward(self, x, rest, samples=1):
        y = x / self.factor
        return y


def launches(module, *args):
    with torch.profiler.profile() as profile:
        y = module(*args)
    return y, {event.key for event in profile.key_averages()} & {"aten::div", "aten::constant_pad_nd", "aten::cat"}


@pytest.mark.parametrize(
    ("factor", "rest", "samples", "wanted"),
    [
        (1.0, 0, 1, set()),
        (1, 0, 1, set()),
        (2.0, 0, 1, {"aten::div"}),
        (1.0, 3, 1, {"aten::constant_pad_nd"}),
        (1.0, 0, 2, {"aten::cat"}),
        (torch.ones(1), 0, 1, {"aten::div"}),
    ],
)
def test_copies(factor, rest, samples, wanted, device):
    module, x = Attention(factor), random((2, 5, 8), torch.bfloat16, "cpu")
    own = module(x, rest, samples)
    report = oxiwarp.patch(module, cpu_kernels=True)
    assert report.replaced == 1 and not report.ops and "a copy, left out" in str(report).replace("\n", " ")
    made, seen = launches(module, x, rest, samples)
    assert torch.equal(made, own) and made.dtype == own.dtype and made.stride() == own.stride()
    assert seen == wanted
    assert not report.ran()
    torch.compiler.reset()
    assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(x, rest, samples), own)


def test_integers():
    """A division of integers by 1 is not omitted, because it converts the integers to floating-point
    numbers."""
    module, x = Attention(), torch.arange(6).view(1, 2, 3)
    own = module(x, 0)
    oxiwarp.patch(module, cpu_kernels=True)
    assert module(x, 0).dtype == own.dtype == torch.float32


@pytest.mark.parametrize("cls", [Changed, Other])
def test_other_methods(cls):
    """A copy of a variable is not omitted if it may be changed in place, or if it is assigned to another
    variable."""
    assert not rewritten_from(cls.forward).chains
    module, x = cls(), random((2, 5, 8), torch.float32, "cpu")
    own = module(x.clone(), 0)
    oxiwarp.patch(module, cpu_kernels=True, allow_empty=True)
    assert torch.equal(module(x.clone(), 0), own)


class Processor:
    def __call__(self, owner, x, scale=1.0):
        return x * scale


class Signed(nn.Module):
    """An attention module like in diffusers, which passes only the arguments that its processor accepts."""

    def __init__(self):
        super().__init__()
        self.processor = Processor()

    def forward(self, x, **options):
        known = set(inspect.signature(self.processor.__call__).parameters.keys())
        return self.processor(self, x, **{name: value for name, value in options.items() if name in known})


def test_signature(monkeypatch):
    """A rewritten method reads the signature of a processor only once. If the processor is replaced, the
    method reads the new signature."""
    module, x, calls = Signed(), torch.ones(2), []
    report = oxiwarp.patch(module, cpu_kernels=True)
    assert report.replaced == 1 and not report.ops
    for _ in range(3):
        assert module(x, scale=2.0, other=3).tolist() == [2, 2]
    monkeypatch.setattr(inspect, "Signature", lambda *of: calls.append(of))
    assert module(x, scale=2.0, other=3).tolist() == [2, 2] and not calls
    monkeypatch.undo()
    module.processor = type("New", (), {"__call__": lambda self, owner, x, other=0: x + other})()
    assert module(x, scale=2.0, other=3).tolist() == [4, 4]
    # this is an attribute of the object, and `inspect.signature` reads it
    module.processor.__call__ = lambda owner, x: x
    assert module(x, scale=2.0).tolist() == [1, 1]
    torch.compiler.reset()
    module = Signed()
    oxiwarp.patch(module, cpu_kernels=True)
    assert torch.compile(module, backend="eager", fullgraph=True)(x, scale=2.0, other=3).tolist() == [2, 2]


class Transposed(nn.Module):
    """The end of Mochi's attention. If the rewritten method omits `F.pad` and `torch.cat`, which only copy
    here, the last `transpose` and `flatten` may return a view.
    """

    def forward(self, x):
        parts = []
        for one in x.unbind():
            part = one[None].transpose(1, 2)
            part = F.pad(part, (0, 0, 0, 0))
            parts.append(part)
        x = torch.cat(parts, dim=0)
        y = x.transpose(1, 2).flatten(2, 3)
        return y


class Viewed(nn.Module):
    """A method whose copies must be contiguous: `view` requires this for the first copy, and the caller gets
    the second copy."""

    def forward(self, x):
        parts = [x.transpose(1, 2)]
        y = torch.cat(parts)
        z = torch.cat(parts)
        return y.view(-1), z


def test_strides(device):
    """A copy is omitted only if the strides of the copy do not matter."""
    x = random((1, 5, 3, 8), torch.bfloat16, device)
    for module, wanted in ((Transposed(), set()), (Viewed(), {"aten::cat"})):
        own = module(x)
        oxiwarp.patch(module, cpu_kernels=True)
        made, seen = launches(module, x)
        assert seen == wanted
        for one, other in zip(made, own, strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
