"""Tests of optimizations in patched language models.

There are three optimizations. If no gradients are needed, a patched layer computes the results of its submodules
without calling them. Under torch.compile, a patched model does not make an attention mask if attention needs none. For
small inputs on a GPU, torch.compile traces the original code of the model.
"""

import copy
import functools
from collections import Counter

import pytest
import torch
from test_decoder import IDS, build
from torch import nn

import oxiwarp
from oxiwarp.patching import inductor
from oxiwarp.patching.class_swap import is_replaced

BF16 = torch.bfloat16
CACHED = [(name, BF16) for name in ("Llama", "Mistral", "Qwen2", "Gemma2", "Gemma3Text", "Phi3", "Granite", "Mixtral")]
CACHED += [("Qwen3", BF16), ("Qwen3", torch.float16), ("Qwen3", torch.float32)]


def decode(model, prompt=11):
    """Decode with a KV cache: first the prompt, then tokens one by one. Return the hidden states of all tokens."""
    ids = IDS.to(model.device)
    y = model(input_ids=ids[:, :prompt], use_cache=True)
    states = [y.last_hidden_state]
    for at in range(prompt, ids.shape[1]):
        y = model(input_ids=ids[:, at : at + 1], past_key_values=y.past_key_values, use_cache=True)
        states.append(y.last_hidden_state)
    return torch.cat(states, 1)


@pytest.mark.parametrize(("name", "dtype"), CACHED)
def test_without_gradients(name, dtype, device):
    """If no gradients are needed, a patched layer computes its linears without calling the `nn.Linear`
    modules.

    If gradients are needed, the layer calls the modules. Both ways give the same result bit for bit.
    """
    model = build(name, dtype, device)
    oxiwarp.patch(model, cpu_kernels=True)
    with torch.enable_grad():
        called = decode(model, 9)
    with torch.no_grad():
        assert torch.equal(decode(model, 9), called)
    with torch.inference_mode():
        assert torch.equal(decode(model, 9), called)


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_one_by_one(name, monkeypatch):
    """If gradients are needed, the patched layers call all of their submodules. Otherwise, they call no
    submodule."""
    model, calls, own = build(name), Counter(), nn.Module.__call__

    def call(self, *args, **kwargs):
        calls[type(self).__name__.removeprefix(name)] += 1
        return own(self, *args, **kwargs)

    oxiwarp.patch(model, cpu_kernels=True)
    monkeypatch.setattr(nn.Module, "__call__", call)
    model(input_ids=IDS)
    assert set(calls) == {"Model", "Embedding", "RotaryEmbedding", "DecoderLayer", "RMSNorm"}
    assert calls["DecoderLayer"] == 2 and calls["RMSNorm"] == 1
    with torch.enable_grad():
        model(input_ids=IDS)
    assert calls["Linear"] == 14 and calls["Attention"] == calls["MLP"] == 2


@pytest.mark.parametrize("grad", [False, True])
def test_subclass_in_another_module(grad):
    """`patch` also replaces an attention module of a class that another Python file derives from a supported
    class.

    The patched module calls the transformers functions of the file that defines the supported class.
    """
    model = build("Llama")
    for layer in model.layers:
        layer.self_attn.__class__ = type("Inherited", (type(layer.self_attn),), {"__module__": __name__})
    with torch.set_grad_enabled(grad):
        own = model(input_ids=IDS).last_hidden_state
        report = oxiwarp.patch(model, cpu_kernels=True)
        assert all(row.status == "replaced" for row in report if row.module_class.endswith(".Inherited"))
        assert is_replaced(model.layers[0].self_attn)
        torch.testing.assert_close(model(input_ids=IDS).last_hidden_state, own)


def test_attributes_over_parameters():
    """If an instance attribute hides the parameter `weight` of a submodule, a patched layer uses the
    attribute.

    If no gradients are needed, the layer reads the weight itself instead of calling `linear`. `nn.Linear.forward` would
    read the instance attribute, so the layer must do so, too.
    """
    model = build("Llama")
    oxiwarp.patch(model, cpu_kernels=True)
    attention, norm = model.layers[0].self_attn, model.layers[0].input_layernorm
    attention.q_proj.__dict__["weight"] = torch.randn_like(attention.q_proj.weight)
    norm.__dict__["weight"] = torch.randn_like(norm.weight)
    with torch.enable_grad():
        called = decode(model, 9)
    assert torch.equal(decode(model, 9), called)
    oxiwarp.unpatch(model)
    torch.testing.assert_close(decode(model, 9), called)


def test_linear_with_other_parameters():
    """A patched layer matches the unpatched layer even if one of its linears has unusual attributes.

    The attribute `weight` of this linear is a plain tensor, and the linear has an additional parameter
    `scale`.
    """
    model = build("Llama")
    linear = model.layers[0].mlp.down_proj
    weight = linear.weight.detach()
    del linear.weight
    linear.weight = weight
    linear.register_parameter("scale", nn.Parameter(torch.ones(1), requires_grad=False))
    own = decode(model, 9)
    oxiwarp.patch(model, cpu_kernels=True)
    torch.testing.assert_close(decode(model, 9), own)


def graphs(model, *steps, dynamic=None):
    """Compile the model and call it once for each function in `steps`, with the keyword arguments that the
    function returns.

    Return a pair for each graph that torch.compile captures: the number of oxiwarp operators, and a list of
    booleans. The list says for each attention call whether it has a mask.
    """
    seen = []

    def backend(graph, _):
        targets = Counter(str(node.target).partition(".")[0] for node in graph.graph.nodes)
        masks = [node.kwargs.get("attn_mask") for node in graph.graph.nodes if "scaled_dot" in str(node.target)]
        seen.append((targets["oxiwarp"], [mask is not None for mask in masks]))
        return graph

    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for step in steps:
        y = run(**step())
        assert torch.allclose(y.last_hidden_state, model(**step()).last_hidden_state, rtol=0, atol=1e-5)
    return seen


def after_prompt(model, cache):
    """Run a prompt, which fills the KV cache `cache`. Return the model's arguments for the next token."""
    model(input_ids=IDS[:, :-1], past_key_values=cache, use_cache=True)
    return dict(input_ids=IDS[:, -1:], past_key_values=cache, use_cache=True)


@pytest.fixture(scope="module")
def patched():
    """Return an unpatched Qwen3 model and a patched copy.

    The models have only one layer. torch.compile traces each layer separately, so more layers would take more
    time.
    """
    stock = build("Qwen3", num_hidden_layers=1)
    model = copy.deepcopy(stock)
    assert oxiwarp.patch(model, cpu_kernels=True).left == 0
    return stock, model


@pytest.mark.parametrize("dynamic", [None, True])
def test_no_masks(patched, dynamic):
    """Under torch.compile, a patched language model passes no attention mask to SDPA if SDPA does not need
    one.

    A prompt without padding, and one token after the prompt, need no mask.
    """
    transformers = pytest.importorskip("transformers")
    steps = [lambda: dict(input_ids=IDS, use_cache=False), lambda: dict(input_ids=IDS, use_cache=True)]
    steps.append(lambda: after_prompt(patched[1], transformers.DynamicCache()))
    assert [masks for _, masks in graphs(patched[1], *steps, dynamic=dynamic)] == [[False]] * 3


def masked_steps():
    """Yield pairs: the name of a model call that needs an attention mask, and a function that returns the
    call's arguments.

    The calls have padding, packed sequences, a static cache, or several tokens after a prompt.
    """
    transformers = pytest.importorskip("transformers")
    padding = torch.ones_like(IDS)
    padding[0, :4] = 0
    two = torch.arange(6).repeat(2)[None].expand(2, -1)
    yield "padding", lambda model: dict(input_ids=IDS, attention_mask=padding)
    yield "packed", lambda model: dict(input_ids=IDS, position_ids=two, use_cache=False)
    static = functools.partial(transformers.StaticCache, max_cache_len=16)
    yield "static", lambda model: after_prompt(model, static(config=model.config))
    yield "some", lambda model: dict(after_prompt(model, transformers.DynamicCache()), input_ids=IDS[:, :3])


@pytest.mark.parametrize("name", ["padding", "packed", "static", "some"])
def test_masks(patched, name):
    """Under torch.compile, a patched language model passes the attention mask in the calls that need it."""
    (stock, model), step = patched, dict(masked_steps())[name]
    assert [masks for _, masks in graphs(model, lambda: step(model))] == [[True]]
    assert torch.allclose(model(**step(model))[0], stock(**step(stock))[0], rtol=0, atol=1e-5)


def test_window():
    """In a compiled model, layers with sliding-window attention keep their masks."""
    model = build("Qwen3", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    oxiwarp.patch(model, cpu_kernels=True)
    assert True in graphs(model, lambda: dict(input_ids=IDS, use_cache=False))[0][1]


def test_few_rows(monkeypatch):
    """On a GPU, torch.compile traces the original code of a patched model for inputs of at most
    `inductor.MOST` elements.

    For such small inputs, the kernels that Inductor generates are faster. For larger inputs and for dynamic
    shapes, the graph contains oxiwarp's operators.
    """
    model = build("Qwen3", num_hidden_layers=1)
    oxiwarp.patch(model, cpu_kernels=True)
    step = lambda: dict(input_ids=IDS, use_cache=False)  # noqa: E731
    assert all(ours > 0 for ours, _ in graphs(model, step))
    monkeypatch.setattr(inductor, "on_gpu", lambda x: True)
    assert [ours for ours, _ in graphs(model, step)] == [0]
    assert all(ours > 0 for ours, _ in graphs(model, step, dynamic=True))
    monkeypatch.setattr(inductor, "MOST", 1)
    assert all(ours > 0 for ours, _ in graphs(model, step))
