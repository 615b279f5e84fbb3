"""Tests of the operators that patched modules call. They are defined in the module `fusions.core.ops`.

Under torch.compile, some of these operators run as torch operations instead of a kernel, so that torch's compiler
Inductor can fuse them with other operations. The report that `patch` returns names them.
"""

import inspect

import pytest
import torch
from helpers import random

import oxiwarp
from oxiwarp.patching.fusions import notes
from oxiwarp.patching.fusions.core import ops

WIDE = torch.float32


def cases(dtype, device):
    """Yield test calls of the operators that run as torch code under torch.compile.

    A call has three parts: the operator's name, its positional arguments, and its keyword arguments.
    """
    x, bias = random((2, 5, 32), dtype, device), random((32,), dtype, device, 5)
    yield "gelu_quick", (x,), {}
    yield "gelu_quick", (x, bias), {}


def flat(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_same_as_the_operators(dtype, device, monkeypatch):
    """An operator may run as torch code under torch.compile, so that Inductor can fuse it with other
    operations.

    The torch code and the kernel return the same result within rounding errors. On a GPU, their 16-bit
    results are equal bit for bit. On the CPU, the exponentials of torch and oxiwarp differ in the last bits.
    """
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
    """Every operator in `fusions.core.ops` has the signature of the public operator with the same name."""
    for name in oxiwarp.ops.__all__:
        ours, public = getattr(ops, name), getattr(oxiwarp, name)
        assert inspect.signature(ours) == inspect.signature(public), name


def test_the_others_are_the_operators():
    """An operator in `fusions.core.ops` is the public function or a wrapper of this function, unless it runs
    as torch code under torch.compile.

    An operator runs as torch code if the kernel that Inductor generates is faster than oxiwarp's kernel.
    """
    for name in oxiwarp.ops.__all__:
        ours = inspect.unwrap(getattr(ops, name))
        assert (ours is getattr(oxiwarp, name)) == (name not in ops.INDUCTOR), name


def test_the_report_names_them():
    """The report of `patch` has a note with the operators that run as torch code under torch.compile.

    The note names only operators that the patched model uses. If it uses no such operator, there is no note.
    """
    for name in ops.INDUCTOR:
        (note,) = notes({name, "rms_norm"}, decoder=False)
        assert note == f"left to Inductor under torch.compile: {name}"
    assert notes({"rms_norm"}, decoder=False) == []
