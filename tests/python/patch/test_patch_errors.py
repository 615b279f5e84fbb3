"""Tests of `oxiwarp.patch` with repeated calls, invalid arguments and interruptions."""

import importlib

import pytest
import torch
from models import NORMS, BareRMSNorm, ltx, net, net_input
from torch import nn

import oxiwarp
from oxiwarp.patching import class_swap


class FinalRMSNorm(BareRMSNorm):
    """A norm that `patch` cannot replace, because its class forbids subclasses."""

    def __init_subclass__(cls):
        raise TypeError("no subclasses")


def with_final(model):
    """Append to the model a norm that makes `patch` raise an error, and return the model."""
    model.last = FinalRMSNorm()
    return model


def test_excluded_but_patched_before():
    """A patched module stays patched if a second call of `patch` excludes it. The report of the second call says so."""
    model = net()
    oxiwarp.patch(model, cpu_kernels=True)
    report = oxiwarp.patch(model, only="before")
    assert (report.replaced, report.left) == (4, 0) and report.names["offset"] == "replaced"
    reasons = {row.module_class.rpartition(".")[2]: row.reason for row in report}
    assert reasons["OffsetRMSNorm"] == "excluded now, patched before" and reasons["BeforeWeightRMSNorm"] == ""
    assert model.offset._oxiwarp.cpu_kernels and not model.before._oxiwarp.cpu_kernels
    with pytest.raises(RuntimeError, match="nothing to replace in Net"):
        oxiwarp.patch(model, only="befroe")
    block = "LTXVideoTransformerBlock"
    model = ltx()
    oxiwarp.patch(model)
    again = oxiwarp.patch(model, mode="fast", skip=block)
    exactness = {row.module_class.rpartition(".")[2]: row.exactness for row in again}
    assert exactness[block] == "bit-exact", "it keeps its mode"
    assert exactness["LTXVideoTransformer3DModel"] == "one rounding"


def test_atomic():
    """If `patch` fails for one module, it restores all modules and then raises an error. The message names
    the module that failed."""
    model = with_final(net())
    before = {name: (type(module), set(module.__dict__)) for name, module in model.named_modules()}
    message = r"^patch: last \(test_patch_errors\.FinalRMSNorm\): TypeError: no subclasses"
    with pytest.raises(RuntimeError, match=message) as caught:
        oxiwarp.patch(model)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(RuntimeError, match=message), oxiwarp.patched(model):
        pytest.fail("the block was entered")
    assert {name: (type(module), set(module.__dict__)) for name, module in model.named_modules()} == before
    assert oxiwarp.patch(model, skip="last").replaced == 4


def test_atomic_keeps_earlier_patches():
    """If `patch` raises an exception, modules from an earlier call of `patch` stay patched with their
    earlier options."""
    model = net()
    oxiwarp.patch(model, only="before", cpu_kernels=True)
    with pytest.raises(RuntimeError, match="^patch: last"):
        oxiwarp.patch(with_final(model))
    assert [class_swap.is_replaced(getattr(model, name)) for name in NORMS] == [True, False, False, False]
    assert model.before._oxiwarp.cpu_kernels


def test_atomic_when_interrupted(monkeypatch):
    """KeyboardInterrupt during `patch` restores all modules and is raised unchanged."""
    model, replace = net(), class_swap.replace

    def interrupted(module, recipe):
        if module is model.bare:
            raise KeyboardInterrupt
        replace(module, recipe)

    monkeypatch.setattr(importlib.import_module("oxiwarp.patching"), "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        oxiwarp.patch(model)
    assert not any(map(class_swap.is_replaced, model.modules()))


def test_unpatched_in_the_block():
    """If the code inside `with oxiwarp.patched(model)` calls `unpatch`, the end of the `with` block restores
    the earlier state.

    Modules that were patched before the `with` block are then patched again.
    """
    model = net()
    oxiwarp.patch(model, cpu_kernels=True)
    expected = model(net_input())
    with oxiwarp.patched(model):
        oxiwarp.unpatch(model)
    assert torch.equal(model(net_input()), expected) and oxiwarp.unpatch(model) == 4
    assert type(model.bare) is BareRMSNorm


def test_taken_out_in_the_block():
    """At its end, a `with oxiwarp.patched(model)` block also restores modules that the code inside has
    removed from the model.

    Modules that the code has inserted in their place stay unchanged.
    """
    model = nn.Sequential(BareRMSNorm(), BareRMSNorm())
    oxiwarp.patch(model, only="1", cpu_kernels=True)
    with oxiwarp.patched(model, cpu_kernels=True):
        first, second = model
        model[0], model[1] = BareRMSNorm(), nn.Linear(64, 64)
        oxiwarp.patch(model)
    assert type(first) is BareRMSNorm and not class_swap.is_replaced(first)
    assert class_swap.recipe_of(second).cpu_kernels
    assert [type(part) for part in model] == [BareRMSNorm, nn.Linear]


@pytest.mark.parametrize("bad", [nn.RMSNorm, [nn.RMSNorm], ["before", 3], 3], ids=str)
@pytest.mark.parametrize("argument", ["only", "skip"])
def test_patterns_are_strings(argument, bad):
    model = net()
    got = "3" if "3" in str(bad) else "the class RMSNorm"
    with pytest.raises(TypeError, match=f"^patch: {argument} has {got}, expected class names or dotted names"):
        oxiwarp.patch(model, **{argument: bad})
    assert not any(map(class_swap.is_replaced, model.modules()))
