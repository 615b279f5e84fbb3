"""Tests of `rope` and `qk_norm_rope` with torch.compile: opcheck, graphs, dynamic shapes, gradients, meta tensors."""

import pytest
import torch
from helpers import DTYPES, random

import oxiwarp
from oxiwarp.ops._checks.heads import FREQUENCIES, Rotation

OPS = torch.ops.oxiwarp


def inputs(dtype, device, *, tokens=6):
    q, k = (random((2, tokens, heads, 32), dtype, device, seed=heads) for heads in (4, 2))
    angles = random((tokens, 16), torch.float32, device, seed=9)
    return q, k, angles.cos(), angles.sin(), random((32,), dtype, device, seed=1)


def rotation(cos, sin, angles=0):
    return Rotation(cos, sin, None, angles, 0, False, -1, True, False, False, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype, device):
    q, k, cos, sin, weight = inputs(dtype, device)
    frequencies = torch.ones(16, device=device)
    norm = (weight, weight, None, None, 2, False, 1e-6)
    opcheck = torch.library.opcheck
    opcheck(OPS.rope.default, (q, *rotation(cos, sin)))
    opcheck(OPS.rope.default, (q[:, ::2], *rotation(cos[::2], sin[::2])))
    opcheck(OPS.rope.default, (q, *rotation(frequencies, None, FREQUENCIES)))
    opcheck(OPS.rope_pair.default, (q, k, *rotation(cos, sin)))
    opcheck(OPS.qk_norm_rope.default, (q, k, *norm, *rotation(cos, sin)))
    opcheck(OPS.qk_norm_rope.default, (q, k, *norm, *rotation(None, None)))
    opcheck(OPS.qk_norm_rope_one.default, (q, *norm, *rotation(cos, sin)))
    outs = torch.empty_like(q), torch.empty_like(k)
    opcheck(OPS.qk_norm_rope_out.default, (q, k, *norm, *rotation(cos, sin), *outs))
    opcheck(OPS.qk_norm_rope_out.default, (q, None, *norm, *rotation(cos, sin), outs[0], None))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph(dynamic, backend, device):
    def f(q, k, cos, sin, weight):
        q, k = oxiwarp.qk_norm_rope(q * 2, k, cos, sin, q_weight=weight, k_weight=weight, interleaved=False)
        q, k = oxiwarp.rope(q, k, torch.complex(cos, sin))
        return oxiwarp.rope_1d(q + 1), oxiwarp.rope_3d(k, grid=(1, 1, k.shape[1]) if not dynamic else (1, 2, 3))

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend=backend)
    arguments = inputs(torch.bfloat16, device)
    oxiwarp.rope_1d(arguments[0]), oxiwarp.rope_3d(arguments[1], grid=(1, 2, 3))
    for a, b in zip(compiled(*arguments), f(*arguments), strict=True):
        assert torch.equal(a, b)


def test_dynamic_tokens(device):
    torch.compiler.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    def f(q, k, cos, sin):
        return oxiwarp.qk_norm_rope(q, k, cos, sin, interleaved=False)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    for tokens in (5, 6, 9):
        arguments = inputs(torch.float32, device, tokens=tokens)[:4]
        for a, b in zip(compiled(*arguments), f(*arguments), strict=True):
            assert torch.equal(a, b)
    assert len(graphs) == 1, "compiled again for another number of tokens"


def test_compiled_gradient(device):
    def f(q, k, cos, sin, weight):
        y, z = oxiwarp.qk_norm_rope(q, k, cos, sin, q_weight=weight, interleaved=False)
        return (oxiwarp.rope(y, None, cos, sin) * 2).sum() + z.square().sum()

    torch.compiler.reset()
    grads = []
    for call in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        q, k, cos, sin, weight = inputs(torch.float32, device)
        for leaf in (q, k, weight):
            leaf.requires_grad_()
        with torch.enable_grad():
            call(q, k, cos, sin, weight).backward()
        grads.append((q.grad, k.grad, weight.grad))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_out_compiles(device):
    def f(q, cos, sin, out):
        return oxiwarp.qk_norm_rope(q, None, cos, sin, interleaved=False, out=out) * 2

    torch.compiler.reset()
    q, _, cos, sin, _ = inputs(torch.float32, device)
    out, eager_out = torch.zeros_like(q), torch.zeros_like(q)
    y = torch.compile(f, fullgraph=True, backend="aot_eager")(q, cos, sin, out)
    assert torch.equal(y, f(q, cos, sin, eager_out)) and torch.equal(out, eager_out)


def test_meta(device):
    q, k, cos, sin, weight = (x.to("meta") for x in inputs(torch.float16, device))
    y, z = oxiwarp.qk_norm_rope(q, k, cos, sin, q_weight=weight, interleaved=False)
    assert y.shape == q.shape and z.shape == k.shape and y.dtype == torch.float16 and y.is_meta
    with pytest.raises(RuntimeError, match=r"^qk_norm_rope: q_weight has shape \[16\], expected \[32\]"):
        oxiwarp.qk_norm_rope(q, k, q_weight=weight[:16])
    with pytest.raises(RuntimeError, match=r"^rope: k has shape"):
        oxiwarp.rope(q, k[:1], cos, sin)
    with pytest.raises(RuntimeError, match=r"^rope: cos has shape \[5, 16\]"):
        oxiwarp.rope(q, k, cos[:5], sin[:5])
