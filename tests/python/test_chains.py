"""The chains that Inductor has under torch.compile: in torch, with the operators' results and in their roundings."""

import inspect

import pytest
import torch
from helpers import random

import oxiwarp
from oxiwarp.fusions import _chains

WIDE = torch.float32


def operands(dtype, device):
    x, y = random((2, 5, 32), dtype, device), random((2, 5, 32), dtype, device, 1)
    gate, scale, shift = (random((2, 1, 32), dtype, device, seed) for seed in (2, 3, 4))
    return x, y, gate, scale, shift, random((32,), dtype, device, 5), random((64,), dtype, device, 6)


def cases(dtype, device):
    """Arguments of every chain in `INDUCTOR`, by its name."""
    x, y, gate, scale, shift, table, packed_bias = operands(dtype, device)
    rms = dict(norm="rms_norm")
    yield "gated_residual", (x, y, gate), {}
    yield "gated_residual", (x, y, gate), dict(gate_table=table)
    yield "gated_residual", (x * 3e4, y * 3e4, gate), dict(clip=True)
    yield "gated_residual", (x, y, gate.float()), {}
    yield "gated_residual_ada_norm", (x, y, gate, scale, shift), rms
    yield "gated_residual_ada_norm", (x, y, None, scale), dict(scale_table=table, **rms)
    yield "gated_residual_ada_norm", (x, y, gate.float(), scale.float(), shift.float()), dict(eps=1e-5, **rms)
    yield "gated_residual_ada_norm", (x, y, None, scale, shift), dict(shift_table=table, weight=table, clip=True, **rms)
    yield "gated_residual_ada_norm", (x, y, gate, scale), dict(weight=table, bias=table, **rms)
    for name in ("geglu", "swiglu", "silu_and_mul", "gelu_tanh_and_mul"):
        yield name, (torch.cat([x, y], -1),), {}
        yield name, (x, y), {}
        yield name, (torch.cat([x, y], -1),), dict(bias=packed_bias)
        yield name, (x, y, packed_bias), {}
    yield "geglu", (x, y), dict(approximate="tanh")
    for name in ("gelu_fast", "gelu_new", "gelu_quick", "silu"):
        yield name, (x,), {}
        yield name, (x, table), {}


def flat(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_same_as_the_operators(dtype, device, monkeypatch):
    """On a GPU the same bits but for the order of an RMSNorm's sum; the CPU executor's functions have their own."""
    seen = set()
    for name, args, options in cases(dtype, device):
        expected = flat(getattr(oxiwarp, name)(*args, **options))
        assert all(map(torch.equal, flat(getattr(_chains, name)(*args, **options)), expected)), "eager: the operator"
        monkeypatch.setattr(_chains, "compiling", lambda: True)
        made = flat(getattr(_chains, name)(*args, **options))
        monkeypatch.undo()
        seen.add(name)
        for y, own in zip(made, expected, strict=True):
            close = 1e-6 if dtype == WIDE else 4 * torch.finfo(dtype).eps
            assert y.dtype == own.dtype and y.shape == own.shape
            assert torch.allclose(y, own, rtol=close, atol=close), (name, options.keys())
            if "residual" in name:
                assert (y != own).float().mean() < 0.01 or dtype == WIDE, (name, options.keys())
    assert seen == _chains.INDUCTOR.keys()


def test_signatures():
    """Fused blocks import every operator from here, and call it as the public one."""
    for name in oxiwarp.ops.__all__:
        ours, public = getattr(_chains, name), getattr(oxiwarp, name)
        if name != "gated_residual_ada_norm":
            assert inspect.signature(ours) == inspect.signature(public), name


def test_shares_are_measured():
    """Only what is as fast or faster with Inductor is in the table; the others are the operators themselves."""
    assert all(share.least <= share.most < 1.0 for share in _chains.INDUCTOR.values())
    for name in oxiwarp.ops.__all__:
        assert (getattr(_chains, name) is getattr(oxiwarp, name)) == (name not in _chains.INDUCTOR), name


def test_layer_norms_are_ours():
    """A LayerNorm after the residual stays one kernel of ours in the graph."""
    x, y, gate, scale, shift, *_ = operands(torch.float32, "cpu")
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if "oxiwarp" in str(node.target))
        return graph.forward

    for norm in ("layer_norm", "rms_norm"):
        torch.compiler.reset()
        torch.compile(_chains.gated_residual_ada_norm, fullgraph=True, backend=backend)(
            x, y, gate, scale, shift, norm=norm
        )
    assert seen == ["oxiwarp.gated_residual_ada_norm.default"]
