"""Tests of patched decoder layers whose submodules are changed.

A submodule may have a hook, be compiled separately, be replaced by a new module, or have an instance
attribute `forward`.
"""

import copy

import pytest
import torch
from helpers import random
from test_decoder import IDS, build
from test_decoder_calls import BF16, decode
from torch import nn

import oxiwarp
from oxiwarp.patching.fusions.core import direct_calls

PARTS = ["input_layernorm", "self_attn", "self_attn.q_proj", "self_attn.o_proj", "mlp", "mlp.up_proj", "mlp.down_proj"]


class Adapted(nn.Module):
    """A linear with an added term, as an adapter has."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, []

    def forward(self, x):
        self.seen.append(x.shape)
        return self.inner(x) + 0.25 * x.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", ["Qwen3", "Gemma3Text"])
@pytest.mark.parametrize("path", PARTS)
def test_hooks(path, name):
    """If a submodule has a hook, a patched layer calls the submodule with the same arguments as the unpatched
    layer does."""
    stock, seen = build(name), []
    model = copy.deepcopy(stock)
    oxiwarp.patch(model, cpu_kernels=True)
    y = model(input_ids=IDS).last_hidden_state

    def before(module, args, kwargs):
        named = {key: getattr(value, "shape", type(value)) for key, value in kwargs.items()}
        seen.append(([x.shape for x in args], named))

    for x in (stock, model):
        part = x.layers[1].get_submodule(path)
        part.register_forward_pre_hook(before, with_kwargs=True)
        part.register_forward_hook(lambda module, args, out: seen.append("after"))
        own = x(input_ids=IDS).last_hidden_state
    assert torch.equal(own, y) and len(seen) == 4 and seen[:2] == seen[2:]
    with torch.enable_grad():
        model(input_ids=IDS)
    assert seen[4:] == seen[:2]


@pytest.mark.parametrize("path", PARTS)
def test_own_forward(path):
    """A patched layer calls a `forward` function that was assigned to a submodule instance, as in
    `layer.mlp.forward = f`."""
    model, seen = build("Qwen3"), []
    oxiwarp.patch(model, cpu_kernels=True)
    y, part = model(input_ids=IDS).last_hidden_state, model.layers[1].get_submodule(path)
    part.forward = lambda *args, **kwargs: seen.append("own") or type(part).forward(part, *args, **kwargs)
    assert torch.equal(model(input_ids=IDS).last_hidden_state, y) and seen == ["own"]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # torch warns if attention takes tensors by keyword
@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"])
@pytest.mark.parametrize("name", ["Qwen3", "Gemma3Text", "Phi3"])
def test_hooks_everywhere(name, kind):
    """If a hook is registered globally, for all modules, a patched layer calls the same submodules as the
    unpatched layer."""
    stock, seen, grad = build(name), ([], []), "backward" in kind
    model, x = copy.deepcopy(stock), random((1, 3, 64), torch.float32, "cpu").requires_grad_(grad)
    oxiwarp.patch(model, cpu_kernels=True)
    angles = [random((1, 3, 16), torch.float32, "cpu", seed=seed) for seed in (1, 2)]
    for each, layer in zip(seen, (stock.layers[0], model.layers[0]), strict=True):
        names = {module: path for path, module in layer.named_modules()}
        register = getattr(nn.modules.module, f"register_module_{kind}")
        handle = register(lambda module, *args, names=names, each=each: each.append(names.get(module)))
        try:
            with torch.set_grad_enabled(grad):
                y = layer(x, position_embeddings=tuple(angles), attention_mask=None)
                y.sum().backward() if grad else None
        finally:
            handle.remove()
    # A global hook also runs for modules outside of the layer, such as a RoPE module. Here, the path of such
    # a module is None.
    own, ours = (sorted(path for path in each if path is not None) for each in seen)
    assert own == ours and set(own) == set(names.values()), set(own) - set(ours)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("path", ["self_attn", "mlp"])
def test_other_dtypes(path, grad):
    """If a hook casts the output of a submodule to float32, a patched layer returns float32, as the
    unpatched layer does."""
    stock, kinds = build("Llama", BF16), []
    stock.layers[0].mlp.register_forward_pre_hook(lambda module, args: args[0].to(BF16))
    model = copy.deepcopy(stock)
    oxiwarp.patch(model, cpu_kernels=True)
    x, angles = torch.ones(1, 3, 64, dtype=BF16), stock.rotary_emb(torch.ones(1, dtype=BF16), torch.arange(3)[None])
    for layer in (stock.layers[0], model.layers[0]):
        wider = lambda module, args, y: y.float() if path == "mlp" else (y[0].float(), y[1])  # noqa: E731
        layer.get_submodule(path).register_forward_hook(wider)
        with torch.set_grad_enabled(grad):
            kinds.append(layer(x, position_embeddings=angles, attention_mask=None))
    assert kinds[0].dtype == kinds[1].dtype == torch.float32
    assert torch.allclose(*kinds, rtol=0, atol=0.03)


@pytest.mark.parametrize("path", PARTS)
def test_compiled_parts(path):
    """If the user called `compile()` on a submodule, the submodule runs compiled in a patched layer, as in
    the unpatched layer.

    Exception: torch 2.11 compiles no submodule that is a single linear, neither in the patched layer nor in
    the unpatched layer.
    """
    stock = build("Qwen3")
    model, counts = copy.deepcopy(stock), []
    oxiwarp.patch(model, cpu_kernels=True)
    y = model(input_ids=IDS).last_hidden_state
    for each in (stock, model):
        ran = []
        counts.append(ran)
        torch._dynamo.reset()
        backend = lambda graph, _, ran=ran: lambda *args: ran.append(path) or graph(*args)  # noqa: E731
        each.layers[1].get_submodule(path).compile(backend=backend)
        assert torch.allclose(each(input_ids=IDS).last_hidden_state, y, rtol=0, atol=1e-5)
    assert bool(counts[0]) == bool(counts[1]) and (counts[0] or "proj" in path)


@pytest.mark.parametrize("name", ["Llama", "Phi3"])
@pytest.mark.parametrize("grad", [False, True])
def test_activations(name, grad):
    """In a patched layer, a hook on the activation module of the MLP runs.

    If a new activation module is assigned after `patch`, the layer calls the new module.
    """
    stock, seen = build(name), []
    model = copy.deepcopy(stock)
    oxiwarp.patch(model, cpu_kernels=True)
    path = "activation_fn" if name == "Phi3" else "act_fn"
    handle = getattr(model.layers[0].mlp, path).register_forward_hook(lambda module, args, y: seen.append(1) or y * 2)
    with torch.set_grad_enabled(grad):
        getattr(stock.layers[0].mlp, path).register_forward_hook(lambda module, args, y: y * 2)
        assert torch.allclose(model(input_ids=IDS)[0], stock(input_ids=IDS)[0], rtol=0, atol=1e-5) and seen == [1]
        handle.remove()
        for x in (model, stock):
            setattr(x.layers[0].mlp, path, nn.ReLU())
        assert torch.allclose(model(input_ids=IDS)[0], stock(input_ids=IDS)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("path", ["self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"])
def test_adapters(path):
    """If an adapter replaces a linear of a patched layer, the layer calls the adapter.

    In this test, the user has excluded a norm of the layer from `patch`.
    """
    stock = build("Qwen3")
    owner, _, name = path.rpartition(".")
    patched = copy.deepcopy(stock)
    oxiwarp.patch(patched, cpu_kernels=True, skip="layers.0.input_layernorm")
    for model in (stock, patched):
        part = model.layers[0].get_submodule(owner)
        setattr(part, name, Adapted(getattr(part, name)))
    assert torch.allclose(decode(patched), decode(stock), rtol=0, atol=1e-4)
    assert {len(shape) for shape in patched.layers[0].get_submodule(path).seen} == {3}


def test_changed_linear(monkeypatch):
    """If third-party code replaces the class attribute `nn.Linear.forward`, patched layers call the new
    function."""
    model, seen, own = build("Llama"), [], nn.Linear.forward
    oxiwarp.patch(model, cpu_kernels=True)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: seen.append(self) or own(self, x))
    model(input_ids=IDS)
    assert len(seen) == 14
    assert direct_calls.LINEAR is own
