"""Tests of `residual_layer_norm`, which computes `LayerNorm(x + gate * y)` with weight and bias.

`residual_layer_norm` calls the modulated norm `gated_residual_ada_norm` with zeros as the scale.
"""

import pytest
import torch
from helpers import DTYPES, random
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import oxiwarp
from oxiwarp.patching.fusions.shared import residual_layer_norm as _stream
from oxiwarp.patching.fusions.shared.residual_layer_norm import residual_layer_norm, zeros


@pytest.fixture(autouse=True)
def nothing_kept():
    _stream.row.store.clear()


def norm_of(cols, dtype, device):
    norm = nn.LayerNorm(cols, eps=1e-5)
    for seed, parameter in enumerate(norm.parameters()):
        parameter.copy_(random((cols,), torch.float32, "cpu", seed=seed + 5))
    return norm.to(dtype).to(device)


@pytest.mark.parametrize("parameters", ["same", "float32"])
@pytest.mark.parametrize("gated", [True, False], ids=["gate", "no gate"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits(dtype, gated, parameters, device):
    """`residual_layer_norm` returns the same bits as the sum `x + gate * y` followed by `layer_norm`."""
    x, y = random((2, 5, 96), dtype, device), random((2, 5, 96), dtype, device, seed=1)
    gate = random((2, 1, 96), torch.float32, device, seed=2) if gated else None
    norm = norm_of(96, torch.float32 if parameters == "float32" else dtype, device)
    total = oxiwarp.gated_residual(x, y, gate) if gated else x + y
    for mode in ("exact", "fast"):
        normed, found = residual_layer_norm(x, y, norm, mode, gate=gate)
        assert torch.equal(found, total)
        assert torch.equal(normed, oxiwarp.layer_norm(total, norm.weight, norm.bias, norm.eps))


def test_zeros_are_made_once(device):
    x = random((2, 3, 16), torch.bfloat16, device)
    assert zeros(x) is zeros(x[:1]) and not zeros(x).any()
    assert zeros(x.float()).dtype == torch.float32 and zeros(x[..., :8]).shape == (8,) and len(_stream.row.store) == 3


def test_zeros_of_inference_mode_serve_autograd(device):
    x, norm = random((2, 3, 16), torch.float32, device), norm_of(16, torch.float32, device)
    with torch.inference_mode():
        residual_layer_norm(x, x, norm, "exact")
    x.requires_grad_()
    with torch.enable_grad():
        residual_layer_norm(x, x, norm, "exact")[0].square().sum().backward()
    assert x.grad.abs().max() > 0 and len(_stream.row.store) == 1


def test_fake_zeros(device):
    """For fake tensors, the function `zeros` neither stores fake tensors in its cache nor returns real
    tensors from the cache."""
    for count in range(2):
        with FakeTensorMode():
            x = torch.empty(2, 16, device=device)
            norm = nn.LayerNorm(16, device=device)
            assert residual_layer_norm(x, x, norm, "exact")[0].shape == x.shape
        assert len(_stream.row.store) == count
        zeros(torch.empty(2, 16, device=device))


@pytest.mark.parametrize("gated", [True, False], ids=["gate", "no gate"])
def test_inductor_has_a_sum_without_a_gate(gated, device):
    """Under torch.compile, `residual_layer_norm` without a gate runs as torch's sum and LayerNorm."""
    x, y = random((2, 5, 96), torch.bfloat16, device), random((2, 5, 96), torch.bfloat16, device, seed=1)
    gate = random((2, 1, 96), torch.bfloat16, device, seed=2) if gated else None
    norm, targets = norm_of(96, torch.bfloat16, device), []

    def backend(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(residual_layer_norm, fullgraph=True, backend=backend)(x, y, norm, "exact", gate=gate)
    for found, right in zip(compiled, residual_layer_norm(x, y, norm, "exact", gate=gate), strict=True):
        torch.testing.assert_close(found, right)
    assert any("oxiwarp" in target for target in targets) == gated


def test_no_zeros_of_a_captured_graph_are_kept(cuda):
    """Zeros that are allocated during CUDA graph capture are not cached, because their memory belongs to the
    graph.

    A replay of the graph gives the same results as eager mode.
    """
    x, norm = random((2, 3, 16), torch.bfloat16, cuda), norm_of(16, torch.bfloat16, cuda)
    right = residual_layer_norm(x, x, norm, "exact")
    _stream.row.store.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = residual_layer_norm(x, x, norm, "exact")
    graph.replay()
    assert not _stream.row.store and all(map(torch.equal, found, right))
