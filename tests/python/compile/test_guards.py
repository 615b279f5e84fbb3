"""Tests of torch.compile's guards: a patched model has about as many guards as the unpatched model.

torch.compile evaluates all guards before each call, while the GPU is idle. `patch` must therefore not add
slow guards. In an earlier version, all patched modules referred to one common object. This reference caused a
slow attribute guard for each module.
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

# These guards call Python or catch an AttributeError (torch 2.10 to 2.15).
SLOW = ("LAMBDA_GUARD", "NO_HASATTR")
KIND = re.compile(r"\+- (?:\w+: )?(\w+):")


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def guards(model, call):
    """Return the number of guards of each kind after one compiled call of `model`."""
    torch.compiler.reset()
    with torch.no_grad():
        call(torch.compile(model, backend="eager", fullgraph=True))
    method = type(model).forward  # torch.compile compiles diffusers' outermost decorator
    (entry,) = _debug_get_cache_entry_list(method.__code__)
    return Counter(KIND.findall(str(entry.guard_manager)))


def of_a_block(make, call, patched):
    """Return, for each kind of guard, how many guards of a compiled model are due to its second
    transformer block."""
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
    """A patched block adds no guard of a slow kind. It adds at most 10 % more guards than an unpatched
    block."""
    stock, ours = of_a_block(make, call, patched=False), of_a_block(make, call, patched=True)
    assert not [kind for kind in SLOW if ours[kind] > stock[kind]], (stock, ours)
    assert 0 < ours.total() <= 1.1 * stock.total(), (stock, ours)
