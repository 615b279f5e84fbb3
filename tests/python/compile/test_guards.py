"""Tests of torch.compile's guards: a patched model has about as many guards as the unpatched model.

torch.compile evaluates all guards before each call, while the GPU is idle. `patch` must therefore not add
slow guards. In an earlier version, all patched modules had an attribute with the same object. For this
attribute, torch.compile added a slow guard to each module.
"""

import copy
import re
from collections import Counter

import pytest
import torch
from joint_models import FAMILIES, build, step
from models import ltx, ltx_input
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

import oxiwarp

# These kinds of guards are slow in torch 2.10 to 2.15, because they call Python or catch an AttributeError.
SLOW = ("LAMBDA_GUARD", "NO_HASATTR")
KIND = re.compile(r"\+- (?:\w+: )?(\w+):")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def guards(model, call):
    """Compile `model`, run it once, and return the number of guards of each kind (such as `LAMBDA_GUARD`)."""
    torch.compiler.reset()
    with torch.no_grad():
        call(torch.compile(model, backend="eager", fullgraph=True))
    method = type(model).forward  # torch.compile compiles diffusers' outermost decorator
    (entry,) = _debug_get_cache_entry_list(method.__code__)
    return Counter(KIND.findall(str(entry.guard_manager)))


def of_a_block(make, call, patched):
    """Return, for each kind of guard, how many guards a second transformer block adds to a compiled model."""
    found = []
    for blocks in (2, 1):
        model = make()
        for name in ("transformer_blocks", "single_transformer_blocks"):
            if hasattr(model, name):
                first = getattr(model, name)[0]
                setattr(model, name, nn.ModuleList(copy.deepcopy(first) for _ in range(blocks)))
        if patched:
            oxiwarp.patch(model, cpu_kernels=True)
        found.append(guards(model, call))
    return Counter({kind: found[0][kind] - found[1][kind] for kind in found[0]})


def cases():
    yield pytest.param(ltx, lambda model: model(**ltx_input()), id="ltx")
    for name, marks in (("flux", ()), ("qwen_image", pytest.mark.extra), ("hunyuan_video", pytest.mark.extra)):
        family = FAMILIES[name]
        yield pytest.param(lambda f=family: build(f), lambda model, f=family: step(f, model), id=name, marks=marks)


@pytest.mark.parametrize(("make", "call"), cases())
def test_guards_of_a_block(make, call):
    """A patched block has no more guards of each slow kind than an unpatched block, and at most 10 % more
    guards in total."""
    stock, ours = of_a_block(make, call, patched=False), of_a_block(make, call, patched=True)
    assert not [kind for kind in SLOW if ours[kind] > stock[kind]], (stock, ours)
    assert 0 < ours.total() <= 1.1 * stock.total(), (stock, ours)
