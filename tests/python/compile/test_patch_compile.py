"""Tests of patched models with torch.compile, torch.export and CUDA graphs, and of the time that patching takes."""

import time

import pytest
import torch
from helpers import random
from models import ltx as whole_ltx
from models import ltx_input, net, net_input
from test_compile import backends

import oxiwarp
from oxiwarp.patching.fusions.core.ops import INDUCTOR


def ltx(device="cpu"):
    """Return a small LTX-Video model with only one layer. torch.compile traces each layer separately, so
    further layers would take more time."""
    return whole_ltx(device=device, layers=1)


def forward(model, **changes):
    return model(**{**ltx_input(), **changes})[0]


def more_tokens(frames):
    return dict(hidden_states=random((2, frames * 12, 128), torch.float32, "cpu"), num_frames=frames)


def targets(graph):
    return {str(node.target) for node in graph.graph.nodes if "oxiwarp" in str(node.target)}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def recording(seen):
    def backend(graph, _):
        seen.append(targets(graph))
        return graph.forward

    return backend


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_one_graph(mode):
    """A patched model compiles to one graph, which calls oxiwarp operators.

    The graph does not call the oxiwarp operators that `INDUCTOR` lists. It has torch operations instead,
    because the kernels that Inductor generates from them are at least as fast.
    """
    model, seen = ltx(), []
    stock = forward(model)
    oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    compiled = torch.compile(model, fullgraph=True, backend=recording(seen))
    assert torch.allclose(forward(compiled), stock, atol=1e-5) and len(seen) == 1
    names = {target.removeprefix("oxiwarp.").removesuffix(".default") for target in seen[0]}
    assert {"ada_norm", "qk_norm_rope", "activation"} <= names
    assert not names & INDUCTOR.keys()


def test_dynamic():
    """With dynamic shapes, torch.compile makes at most two graphs of a patched model for three numbers of
    tokens.

    One graph is for the first number of tokens, and one for all other numbers.
    """
    model, seen = ltx(), []
    stock = [forward(model, **more_tokens(frames)) for frames in (2, 3, 5)]
    oxiwarp.patch(model, cpu_kernels=True)
    block = torch.compile(model, fullgraph=True, dynamic=True, backend=recording(seen))
    for frames, own in zip((2, 3, 5), stock, strict=True):
        assert torch.allclose(forward(block, **more_tokens(frames)), own, atol=1e-5)
    assert len(seen) <= 2


@pytest.mark.parametrize("order", ["compile first", "patch first"])
@pytest.mark.parametrize("how", ["module.compile()", "compile_repeated_blocks", "torch.compile"])
def test_order(how, order):
    """A model may be compiled before or after `patch`. In both orders, its graphs contain oxiwarp operators.

    After `unpatch`, torch.compile compiles the model again, and the new graphs contain no oxiwarp operator.
    """
    model, seen = ltx(), []
    stock, made = forward(model), []

    def compile_it():
        options = dict(fullgraph=True, backend=recording(seen))
        if how == "torch.compile":
            made.append(torch.compile(model, **options))
        elif how == "module.compile()":
            model.compile(**options)
        else:
            model.compile_repeated_blocks(**options)

    def run():
        return forward(made[0] if made else model)

    steps = [compile_it, lambda: oxiwarp.patch(made[0] if made else model, cpu_kernels=True)]
    for step in steps if order == "compile first" else reversed(steps):
        step()
    assert torch.allclose(run(), stock, atol=1e-5) and seen and all(seen)
    seen.clear()
    oxiwarp.unpatch(model)
    assert torch.allclose(run(), stock, atol=1e-5) and seen and not any(seen)


@pytest.mark.parametrize("make", [net, ltx])
@pytest.mark.parametrize("backend", backends())
def test_gradients(backend, make):
    """A compiled patched model has the gradients of the unpatched model, except for rounding errors."""
    model = make().requires_grad_()

    def gradients(call):
        model.zero_grad()
        with torch.enable_grad():
            y = call(net_input()) if make is net else forward(call)
            y.square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    stock = gradients(model)
    oxiwarp.patch(model, cpu_kernels=True)
    made = gradients(torch.compile(model, fullgraph=True, backend=backend))
    for ours, own in zip(made, stock, strict=True):
        torch.testing.assert_close(ours, own, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict, learned):
    """The exported program of a patched model calls oxiwarp operators and gives the results of the unpatched model."""
    model = ltx().requires_grad_(learned)
    stock = forward(model)
    oxiwarp.patch(model, cpu_kernels=True)
    program = torch.export.export(model, (), ltx_input(), strict=strict)
    assert {"oxiwarp.ada_norm.default", "oxiwarp.qk_norm_rope.default"} <= targets(program)
    assert torch.allclose(program.module()(**ltx_input())[0], stock, atol=1e-5)


def test_stays_compiled_while_weights_change(cuda):
    """If the weights of a patched model change in place, the model uses the new values, even if it was compiled with
    CUDA graphs.
    """
    model = net(device=cuda)
    oxiwarp.patch(model)
    x = net_input(device=cuda)
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    model.before.weight.mul_(2)
    assert torch.allclose(compiled(x), model(x), atol=1e-5)


def test_cuda_graph(cuda):
    """A patched block captured in a CUDA graph gives correct results when it is replayed with other inputs."""
    block = ltx(device=cuda).transformer_blocks[0]
    oxiwarp.patch(block)
    x, text = (random((2, tokens, 32), torch.float32, cuda, seed=tokens) for tokens in (6, 4))
    temb = random((2, 1, 6 * 32), torch.float32, cuda, seed=2)
    block(x, text, temb)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = block(x, text, temb)
    x.copy_(x.flip(0))
    graph.replay()
    assert torch.equal(y, block(x, text, temb))


def test_time_of_patching():
    """`patch` takes less than 0.5 s for FLUX.1 with 57 blocks.

    This limit also holds if the hashes of the model's source code are not cached.
    """
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        model = diffusers.FluxTransformer2DModel()
    from oxiwarp.patching.fusions.core import source

    source.fingerprint.cache_clear()
    start = time.perf_counter()
    report = oxiwarp.patch(model)
    assert time.perf_counter() - start < 0.5
    assert report.replaced >= 152
    oxiwarp.unpatch(model)
