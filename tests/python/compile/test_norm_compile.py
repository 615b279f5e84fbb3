"""Tests of the norms of diffusion transformers with torch.compile: opcheck, graphs, dynamic shapes, meta tensors."""

import pytest
import torch
from helpers import DTYPES, random
from norm_calls import CALLS, Call, op_of, results
from norms import BF16, F32
from test_compile import backends_by_size, calls, counting

import oxiwarp

OPS = torch.ops.oxiwarp
SHAPE = (2, 3, 32)
CALL = pytest.mark.parametrize("name", CALLS)


def schemas(dtype, device):
    """Return pairs (torch operator, arguments) for opcheck, with and without the optional arguments."""
    x, y = random(SHAPE, dtype, device), random(SHAPE, dtype, device, 1)
    side, single = (random((2, 1, 32), of, device, 2) for of in (dtype, F32))
    vector = random((32,), dtype, device, 3)
    slices = random((2, 3, 6, 32), dtype, device, 4)[:, :, 1]
    return [
        (OPS.layer_norm, (x, vector, vector.float(), 1e-5)),
        (OPS.layer_norm, (x, None, None, 1e-5)),
        (OPS.ada_norm, (x, side, vector, slices, None, vector, vector, None, True, 1e-6, True, True)),
        (OPS.ada_norm, (x, single, None, None, None, None, None, None, True, 1e-6, False, False)),
        (OPS.ada_norm_pair, (x, side, None, side, None, slices, None, None, None, None, None, False, 1e-6, True, True)),
        (OPS.gated_residual, (x, y, side, vector, None, True, False)),
        (OPS.gated_residual, (x, y, single, None, None, False, True)),
        (
            OPS.gated_residual_ada_norm,
            (x, y, side, vector, slices, None, side, vector, None, None, None, False, 1e-6, True, True, True),
        ),
        (
            OPS.gated_residual_ada_norm,
            (x, y, None, None, single, None, None, None, None, None, None, True, 1e-6, True, False, False),
        ),
        (OPS.norm_gated_residual, (x, y, side, vector, vector, True, 1e-6, True, True)),
        (OPS.norm_gated_residual, (x, y.float(), None, None, vector, False, 1e-6, False, False)),
        (OPS.rms_norm_gated, (x, y, vector, 1e-6, True, False, False)),
        (OPS.rms_norm_gated, (x, slices, None, 1e-6, False, True, True)),
        (OPS.residual_tanh_gated_rms_norm, (x, y, side, 1e-6)),
        (OPS.residual_tanh_gated_rms_norm_modulated, (x, y, single, side, vector, 1e-6)),
        (OPS.residual_tanh_gated_rms_norm_modulated, (x.float(), y, side[..., :1], side, None, 1e-6)),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_opcheck(dtype, device):
    for op, arguments in schemas(dtype, device):
        torch.library.opcheck(op.default, arguments)


@pytest.mark.parametrize(("backend", "dynamic"), backends_by_size())
@CALL
def test_compiles(name, backend, dynamic, device):
    """Each norm compiles without a graph break, and gives the eager results for 3 and for 5 tokens."""
    ours = CALLS[name].ours

    def f(x, **operands):
        return [y + 1 for y in results(ours(x * 2, **operands))]

    torch.compiler.reset()
    compiled = torch.compile(f, fullgraph=True, backend=backend, dynamic=dynamic)
    for tokens in (3, 5):
        operands = CALLS[name].operands((2, tokens, 32), F32, device)
        for y, eager in zip(compiled(**operands), f(**operands), strict=True):
            torch.testing.assert_close(y, eager)


@CALL
def test_compiles_once(name, device):
    """With dynamic shapes, one compiled graph serves three numbers of tokens. It calls the operator once."""
    torch.compiler.reset()
    graphs, ours = [], CALLS[name].ours
    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend=counting(graphs))
    for tokens in (3, 5, 8):
        compiled(**CALLS[name].operands((2, tokens, 32), BF16, device))
    op = op_of(name)
    assert calls(graphs, getattr(OPS, op).default) == 1


CALLS_OF_ANY = {
    **{name: call.ours for name, call in CALLS.items()},
    "rms_norm": oxiwarp.rms_norm,
    "qk_norm_rope": lambda x, weight: oxiwarp.qk_norm_rope(x.unsqueeze(2), q_weight=weight),
}


@pytest.mark.parametrize("name", CALLS_OF_ANY)
def test_gradients_compile_once(name, device):
    """With dynamic shapes, forward and backward are compiled only once for all batch sizes and numbers of tokens."""
    torch.compiler.reset()
    graphs, ours = [], CALLS_OF_ANY[name]
    compiled = torch.compile(ours, fullgraph=True, backend=counting(graphs))
    of = CALLS.get(name, Call(ours, ours, vectors=("weight",)))
    for batch, tokens in ((4, 3), (6, 7), (9, 8)):
        operands = of.operands((batch, tokens, 32), F32, device)
        for tensor in operands.values():
            for dim in range(tensor.dim() - 1):
                if tensor.shape[dim] > 1:
                    torch._dynamo.mark_dynamic(tensor, dim)
            tensor.requires_grad_()
        with torch.enable_grad():
            sum(y.square().sum() for y in results(compiled(**operands))).backward()
    assert len(graphs) == 1, "compiled again for other sizes"


@CALL
def test_compiles_with_gradients(name, device):
    torch.compiler.reset()
    ours = CALLS[name].ours
    gradients = []
    for f in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
        operands = {key: tensor.requires_grad_() for key, tensor in CALLS[name].operands(SHAPE, F32, device).items()}
        with torch.enable_grad():
            total = sum(y.square().sum() for y in results(f(**operands)))
        gradients.append(torch.autograd.grad(total, list(operands.values())))
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(eager, compiled, rtol=1e-4, atol=1e-4)


@CALL
def test_export(name, device):
    class Norm(torch.nn.Module):
        def forward(self, operands):
            return CALLS[name].ours(**operands)

    operands = CALLS[name].operands(SHAPE, F32, device)
    program = torch.export.export(Norm(), (operands,))
    for a, b in zip(results(program.module()(operands)), results(CALLS[name].ours(**operands)), strict=True):
        assert torch.equal(a, b)


@CALL
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_meta(name, dtype):
    operands = CALLS[name].operands(SHAPE, dtype, "meta")
    for y in results(CALLS[name].ours(**operands)):
        assert y.device.type == "meta" and y.shape == SHAPE and y.dtype == dtype and y.is_contiguous()


def test_graph(cuda):
    """A CUDA graph of captured norm calls gives correct results when it is replayed with new input."""
    static = {name: call.operands((2, 16, 640), BF16, cuda) for name, call in CALLS.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = {name: results(call.ours(**static[name])) for name, call in CALLS.items()}
    for operands in static.values():
        operands["x"].mul_(2)
    graph.replay()
    for name, call in CALLS.items():
        for y, again in zip(captured[name], results(call.ours(**static[name])), strict=True):
            assert torch.equal(y, again), name
    assert oxiwarp.kernel_info()
