"""Tests of norms and rotary embeddings that torch.compile traces in a rewritten method."""

import pytest
import torch
from helpers import random
from test_compile import counting
from test_rewrite_joins import DIM, HEADS, IMAGE, TEXT, Joint, SameNames, apply_rotary
from torch import nn

import oxiwarp
from oxiwarp.patching.rewrite.traced import function_in


class Local(nn.Module):
    """A method that defines its rotary function, and whose norms cover all heads, as in Wan."""

    def __init__(self):
        super().__init__()
        self.norm_q, self.norm_k = nn.RMSNorm(HEADS * DIM, eps=1e-6), nn.RMSNorm(HEADS * DIM, eps=1e-6)

    def forward(self, q, k, cos, sin):
        def apply_rotary_emb(x, cos, sin):
            a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
            cos, sin = cos[..., 0::2], sin[..., 1::2]
            out = torch.empty_like(x)
            out[..., 0::2] = a * cos - b * sin
            out[..., 1::2] = a * sin + b * cos
            return out.type_as(x)

        q = self.norm_q(q)
        k = self.norm_k(k)
        q = q.unflatten(2, (HEADS, -1))
        k = k.unflatten(2, (HEADS, -1))
        q = apply_rotary_emb(q, cos, sin)
        k = apply_rotary_emb(k, cos, sin)
        return q, k


class Unknown(Joint):
    """A method whose rotary function no kernel computes."""

    def forward(self, q, k, tq, tk, tables, turns):
        def rotary(x, cos, sin):
            return apply_rotary(x, cos, sin) + 1

        q = self.norm_q(q)
        k = self.norm_k(k)
        q = rotary(q, *tables)
        k = rotary(k, *tables)
        return q, k


def tables(tokens, seed=0):
    angles = random((tokens, DIM // 2), torch.float32, "cpu", seed=seed)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def streams(image=IMAGE, dtype=torch.bfloat16):
    shapes = [(2, tokens, HEADS, DIM) for tokens in (image, image, TEXT, TEXT)]
    return [random(shape, dtype, "cpu", seed=seed) for seed, shape in enumerate(shapes)]


def compiled(module, given, dynamic=None):
    """Patch a module, and compile it. Return the results with and without torch.compile, and the calls of oxiwarp's
    operators in the compiled graph."""
    module = module.to(torch.bfloat16)
    oxiwarp.patch(module, cpu_kernels=True)
    eager, graphs = module(*given), []
    torch.compiler.reset()
    made = torch.compile(module, fullgraph=True, dynamic=dynamic, backend=counting(graphs))(*given)
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    found = {name: targets.count(f"oxiwarp.{name}.default") for name in ("qk_norm_rope", "qk_norm_rope_out")}
    torch.compiler.reset()
    return eager, made, found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("turned", [True, False])
def test_joint(turned, dynamic):
    """One kernel per stream writes into the concatenated tensor, with or without a rotation."""
    given = [*streams(), tables(IMAGE), tables(TEXT, 1) if turned else None]
    eager, made, found = compiled(Joint(), given, dynamic)
    assert all(map(torch.equal, made, eager))
    assert found == {"qk_norm_rope": 0, "qk_norm_rope_out": 2}


def test_same_names():
    eager, made, found = compiled(SameNames(), [*streams(), None, None])
    assert all(map(torch.equal, made, eager)) and found["qk_norm_rope_out"] == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_local_function(dynamic):
    """Dynamo also recognises a rotary function that the method defines."""
    angles = random((1, IMAGE, 1, DIM // 2), torch.float32, "cpu").repeat_interleave(2, dim=-1)
    q, k = (random((2, IMAGE, HEADS * DIM), torch.bfloat16, "cpu", seed=seed) for seed in range(2))
    eager, made, found = compiled(Local(), [q, k, angles.cos(), angles.sin()], dynamic)
    assert all(map(torch.equal, made, eager)) and found == {"qk_norm_rope": 1, "qk_norm_rope_out": 0}


def test_unknown_function():
    """If no kernel computes the rotary function, the graph has the original operations."""
    module = Unknown()
    own = module.to(torch.bfloat16)(*(given := [*streams(), tables(IMAGE), None]))
    _, made, found = compiled(module, given)
    for y, right in zip(made, own, strict=True):
        torch.testing.assert_close(y, right, rtol=0.02, atol=0.02)
    assert not any(found.values())


def test_gradients():
    """With gradients, the results are concatenated by torch, and the gradients equal those of the original module."""
    given = [*(x.float() for x in streams()), tables(IMAGE), tables(TEXT, 1)]
    torch.manual_seed(0)
    stock, ours = Joint().requires_grad_(), Joint().requires_grad_()
    ours.load_state_dict(stock.state_dict())
    oxiwarp.patch(ours, cpu_kernels=True)
    torch.compiler.reset()
    with torch.enable_grad():
        for call in (stock, torch.compile(ours, fullgraph=True, backend="aot_eager")):
            sum(y.square().sum() for y in call(*given)).backward()
    torch.compiler.reset()
    for name, parameter in stock.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-4)


def test_function_in():
    """A function with a closure, and a name without a function, are not recognised."""
    factor = 2

    def method(x):
        def plain(x):
            return x

        def closed(x):
            return x * factor

        other = x
        return plain(other), closed(other), apply_rotary

    assert function_in(method, "plain")(3) == 3 and function_in(method, "apply_rotary") is apply_rotary
    assert function_in(method, "closed") is None and function_in(method, "other") is None
    assert function_in(method, "missing") is None
