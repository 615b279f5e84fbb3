"""Tests of `fusions.core.ops`, the operators that patched modules call. Under torch.compile, some of them run as torch
code, so that Inductor can fuse them."""

import inspect

import pytest
import torch
from helpers import random

import oxiwarp
from oxiwarp.patching.fusions import notes
from oxiwarp.patching.fusions.core import ops

WIDE = torch.float32


def cases(dtype, device):
    """Yield name, positional and keyword arguments of test calls for the operators that are left to Inductor."""
    x, bias = random((2, 5, 32), dtype, device), random((32,), dtype, device, 5)
    yield "gelu_quick", (x,), {}
    yield "gelu_quick", (x, bias), {}


def flat(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_same_as_the_operators(dtype, device, monkeypatch):
    """Each operator that is left to Inductor has a version in torch code for torch.compile, which returns the
    operator's result within rounding errors. On a GPU, the 16-bit results of both versions are equal bit for
    bit. On the CPU, the exponentials of torch and oxiwarp differ in the last bits."""
    seen = set()
    for name, args, options in cases(dtype, device):
        expected = flat(getattr(oxiwarp, name)(*args, **options))
        assert all(map(torch.equal, flat(getattr(ops, name)(*args, **options)), expected)), "eager: the operator"
        monkeypatch.setattr(ops, "compiling", lambda: True)
        made = flat(getattr(ops, name)(*args, **options))
        monkeypatch.undo()
        seen.add(name)
        for y, own in zip(made, expected, strict=True):
            close = 1e-6 if dtype == WIDE else 4 * torch.finfo(dtype).eps
            assert y.dtype == own.dtype and y.shape == own.shape
            assert torch.allclose(y, own, rtol=close, atol=close), (name, options.keys())
            assert device.type == "cpu" or dtype == WIDE or torch.equal(y, own), (name, options.keys())
    assert seen == ops.INDUCTOR.keys()


def test_signatures():
    """Operators in `fusions.core.ops`, which patched modules import, have the signatures of the public operators."""
    for name in oxiwarp.ops.__all__:
        ours, public = getattr(ops, name), getattr(oxiwarp, name)
        assert inspect.signature(ours) == inspect.signature(public), name


def test_the_others_are_the_operators():
    """In `fusions.core.ops`, only operators that are left to Inductor differ from the public operators.

    For these operators, the code that Inductor generates is faster.
    """
    for name in oxiwarp.ops.__all__:
        ours = inspect.unwrap(getattr(ops, name))
        assert (ours is getattr(oxiwarp, name)) == (name not in ops.INDUCTOR), name


def test_the_report_names_them():
    """If and only if the patched model uses an operator that is left to Inductor, the report's notes name
    it."""
    for name in ops.INDUCTOR:
        (note,) = notes({name, "rms_norm"}, decoder=False)
        assert note == f"left to Inductor under torch.compile: {name}"
    assert notes({"rms_norm"}, decoder=False) == []
