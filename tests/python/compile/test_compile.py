"""Tests of the RMSNorm operators with torch.compile: opcheck, fullgraph, dynamic shapes and export."""

import itertools
import shutil

import pytest
import torch
from helpers import DTYPES, make_weight, random
from torch import nn

import oxiwarp

OPS = torch.ops.oxiwarp


def arguments(op, weight, dtype, device):
    x = random((4, 3, 32), dtype, device)
    rest = (make_weight(weight, 32, dtype, device), 1e-6, 0.0, True)
    if op == "rms_norm_out":
        return (x, *rest, torch.empty_like(x))
    return (x, *rest) if op == "rms_norm" else (x, random((4, 3, 32), dtype, device, seed=2), *rest)


@pytest.mark.parametrize("weight", [None, "same", "f32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["rms_norm", "rms_norm_out", "add_rms_norm"])
def test_opcheck(op, dtype, weight, device):
    torch.library.opcheck(getattr(OPS, op).default, arguments(op, weight, dtype, device))


@pytest.mark.parametrize("op", ["rms_norm", "rms_norm_out", "add_rms_norm"])
def test_opcheck_strided(op, device):
    x, *rest = arguments(op, "same", torch.bfloat16, device)
    wide = random((4, 3, 64), torch.bfloat16, device)
    torch.library.opcheck(getattr(OPS, op).default, (wide[..., 32:], *rest))


def backends():
    compiler = pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler"))
    return ["eager", "aot_eager", compiler]


def backends_by_size():
    """Yield pairs (torch.compile backend, `dynamic`) for tests with several sizes. Without dynamic shapes,
    Inductor compiles C++ code for each size, which takes seconds. These cases therefore have the mark
    `extra`.
    """
    for backend, dynamic in itertools.product(backends(), (False, True)):
        if isinstance(backend, str):
            yield backend, dynamic
        else:
            marks = backend.marks if dynamic else (*backend.marks, pytest.mark.extra)
            yield pytest.param(*backend.values, dynamic, marks=marks)


def counting(graphs):
    """Return a torch.compile backend that appends every compiled graph to the list `graphs`."""
    from torch._dynamo.backends.registry import lookup_backend

    def backend(graph, inputs):
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    return backend


def calls(graphs, op):
    return sum(node.target is op for graph in graphs for node in graph.graph.nodes)


@pytest.mark.parametrize("backend", backends())
def test_fullgraph(backend, device):
    def f(x, residual, weight):
        y, total = oxiwarp.add_rms_norm(x * 2, residual, weight, rounding="before_weight")
        return torch.nn.functional.silu(y), oxiwarp.rms_norm(total, weight, 1e-5, weight_offset=1.0)

    torch.compiler.reset()
    x, residual = random((4, 64), torch.bfloat16, device), random((4, 64), torch.bfloat16, device, seed=2)
    weight = make_weight("same", 64, torch.bfloat16, device)
    compiled = torch.compile(f, fullgraph=True, backend=backend)
    for a, b in zip(compiled(x, residual, weight), f(x, residual, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


def test_dynamic(device):
    torch.compiler.reset()
    graphs = []
    compiled = torch.compile(
        lambda x, w: oxiwarp.rms_norm(x + 1, w), fullgraph=True, dynamic=True, backend=counting(graphs)
    )
    weight = make_weight("same", 48, torch.float32, device)
    for rows in (3, 5, 8):
        x = random((rows, 48), torch.float32, device)
        torch.testing.assert_close(compiled(x, weight), oxiwarp.rms_norm(x + 1, weight))
    assert calls(graphs, OPS.rms_norm.default) == 1, "compiled again for another number of rows"


def test_out_variant_compiles(device):
    torch.compiler.reset()

    def f(x, out):
        return oxiwarp.rms_norm(x, out=out) * 2

    x = random((4, 64), torch.float32, device)
    out, eager_out = torch.zeros_like(x), torch.zeros_like(x)
    y = torch.compile(f, fullgraph=True, backend="aot_eager")(x, out)
    torch.testing.assert_close(y, f(x, eager_out))
    assert torch.equal(out, eager_out)


@pytest.mark.parametrize("backend", backends())
def test_in_place_compiles(backend, device):
    """A compiled call whose outputs are its inputs changes the inputs as the eager call does."""
    torch.compiler.reset()

    def f(x, residual, weight):
        y, total = oxiwarp.add_rms_norm(x, residual, weight, out=(x, residual))
        return y * 2, total + 1

    inputs = [random((4, 64), torch.bfloat16, device, seed=seed) for seed in (1, 2)]
    eager, weight = [x.clone() for x in inputs], make_weight("same", 64, torch.bfloat16, device)
    results = torch.compile(f, fullgraph=True, backend=backend)(*inputs, weight)
    for made, wanted in zip((*results, *inputs), (*f(*eager, weight), *eager), strict=True):
        torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("backend", backends())
def test_patched_model(backend, device):
    """A model with patched RMSNorm modules compiles without a graph break, and its graph calls `oxiwarp::rms_norm`."""
    model = nn.Sequential(nn.Linear(32, 64), nn.RMSNorm(64, eps=1e-6), nn.SiLU(), nn.RMSNorm(64, eps=1e-6))
    model = model.to(device).requires_grad_(False)
    x = random((4, 32), torch.float32, device)
    stock = model(x)
    oxiwarp.patch(model, cpu_kernels=True)
    torch.compiler.reset()
    graphs = []
    compiled = torch.compile(model, fullgraph=True, backend=counting(graphs) if backend == "aot_eager" else backend)
    torch.testing.assert_close(compiled(x), stock)
    if graphs:
        assert calls(graphs, OPS.rms_norm.default) == 2


def test_export(device):
    class Norm(nn.Module):
        def forward(self, x, weight):
            return oxiwarp.rms_norm(x, weight)

    x, weight = random((4, 64), torch.float32, device), make_weight("same", 64, torch.float32, device)
    program = torch.export.export(Norm(), (x, weight))
    assert calls([program.graph_module], OPS.rms_norm.default) == 1
    assert torch.equal(program.module()(x, weight), oxiwarp.rms_norm(x, weight))


SAME = {  # calls that pass one tensor as several arguments
    "ada_norm": lambda x, w: oxiwarp.ada_norm(x, w, w),
    "ada_norm_pair": lambda x, w: oxiwarp.ada_norm_pair(x, w, w, w, w),
    "add_rms_norm": lambda x, w: oxiwarp.add_rms_norm(x, x, w),
    "attention": lambda x, w: (lambda y: oxiwarp.attention(y, y, y))(x.bfloat16()),
    "gated_residual": lambda x, w: oxiwarp.gated_residual(x, x, w),
    "gated_residual_ada_norm": lambda x, w: oxiwarp.gated_residual_ada_norm(x, x, w, w, w),
    "layer_norm": lambda x, w: oxiwarp.layer_norm(x, w, w),
    "qk_norm_rope": lambda x, w: oxiwarp.qk_norm_rope(x, x, q_weight=w, k_weight=w),
    "rms_norm_gated": lambda x, w: oxiwarp.rms_norm_gated(x, x, w),
    "rope_1d": lambda x, w: oxiwarp.rope_1d(x, x),
    "silu_and_mul": lambda x, w: oxiwarp.silu_and_mul(x, x),
}


@pytest.mark.parametrize("name", SAME)
def test_one_tensor_in_several_places(name, device):
    """A call may pass one tensor as several arguments. The gradient of this tensor is then the sum of the
    gradients of these arguments. A compiled call gives the same gradients as an eager call.
    """
    x, w = random((2, 4, 3, 16), torch.float32, device), random((16,), torch.float32, device, 1)

    def total(call, *leaves):
        results = call(*leaves)
        return sum(y.float().square().sum() for y in (results if isinstance(results, tuple) else (results,)))

    def gradients(call):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        total(call, *leaves).backward()
        return [leaf.grad for leaf in leaves]

    torch._dynamo.reset()
    with torch.enable_grad():
        expected, got = gradients(SAME[name]), gradients(torch.compile(SAME[name], backend="aot_eager", fullgraph=True))
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            # The gradient of attention is a sum of the bfloat16 gradients for q, k and v. The compiled graph
            # adds them in a different order than eager mode.
            torch.testing.assert_close(
                a, b, atol=2**-7 * b.abs().max().item() if name == "attention" else 1e-5, rtol=1e-5
            )
