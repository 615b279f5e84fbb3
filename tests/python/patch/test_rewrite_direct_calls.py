"""Tests of rewritten decoders that call their submodules without `nn.Module.__call__`."""

import copy
from collections import Counter

import pytest
import torch
from test_decoder import IDS, build
from test_decoder_calls import decode
from test_decoder_hooks import Adapted
from torch import nn

import oxiwarp
from oxiwarp.patching.rewrite.recipe import rewritten_from

PARTS = ["self_attn", "self_attn.q_proj", "self_attn.o_proj", "mlp", "mlp.down_proj", "post_self_attn_layernorm"]


@pytest.fixture
def model():
    """Return a patched model whose layers are rewritten."""
    model = build("Glm4")
    oxiwarp.patch(model, cpu_kernels=True)
    assert "_oxiwarp_direct(self, 'o_proj'" in rewritten_from(type(model.layers[0].self_attn).__base__.forward).source
    return model


def test_calls(model, monkeypatch):
    """If no gradients are needed, linears are not called as modules. The bits are the same."""
    calls, own = Counter(), nn.Module._call_impl

    def call(self, *args, **kwargs):
        calls[type(self).__name__] += 1
        return own(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "_call_impl", call)
    y = decode(model, 9)
    assert calls["Linear"] == calls["Glm4Attention"] == calls["Glm4MLP"] == 0 and calls["Glm4DecoderLayer"] > 0
    with torch.enable_grad():
        assert torch.equal(decode(model, 9), y)
    assert calls["Linear"] > 0


@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "own forward", "everywhere"])
def test_hooks(model, path, kind):
    """Hooks and an own `forward` of a submodule run."""
    y, seen = model(input_ids=IDS).last_hidden_state, []
    part = model.layers[1].get_submodule(path)
    handle = None
    if kind == "own forward":
        part.forward = lambda *args, **kwargs: seen.append(1) or type(part).forward(part, *args, **kwargs)
    elif kind == "everywhere":
        handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module is part) and None)
    else:
        getattr(part, f"register_{kind}")(lambda *_: seen.append(1) and None)
    try:
        torch.testing.assert_close(model(input_ids=IDS).last_hidden_state, y, rtol=0, atol=1e-6)
    finally:
        if handle is not None:
            handle.remove()
    assert sum(seen) == 1


def test_changed_linears(model, monkeypatch):
    """An adapter, an attribute that hides the weight, a compiled linear and another `nn.Linear.forward` are used."""
    stock = build("Glm4")
    for one in (stock, model):
        one.layers[0].mlp.down_proj = Adapted(one.layers[0].mlp.down_proj)
        hidden = one.layers[1].self_attn.o_proj
        hidden.__dict__["weight"] = hidden.weight * 2
        one.layers[0].self_attn.v_proj.compile(backend="eager")
    torch.testing.assert_close(decode(model), decode(stock), rtol=0, atol=1e-4)
    assert {len(shape) for shape in model.layers[0].mlp.down_proj.seen} == {3}
    seen, own = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: seen.append(self) or own(self, x))
    model(input_ids=IDS)
    assert len(seen) == 12


def test_trace(model):
    """torch.jit.trace calls the modules, so the traced module has their names."""
    layer = copy.deepcopy(model).layers[0].mlp
    x = torch.ones(1, 3, 64)
    traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x), layer(x))
    assert "(down_proj).forward(" in traced.code


def test_memory_order(monkeypatch):
    """Rotated queries and keys have the strides that they have in the unpatched model."""
    stock, model, seen = build("Olmo2"), build("Olmo2"), []
    oxiwarp.patch(model, cpu_kernels=True)
    own = torch.nn.functional.scaled_dot_product_attention
    spy = lambda *args, **options: seen.append([x.stride() for x in args[:2]]) or own(*args, **options)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    for each in (stock, model):
        each(input_ids=IDS, use_cache=False)
    assert len(seen) == 4 and seen[:2] == seen[2:]
