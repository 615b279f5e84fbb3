"""Tests of the patched `LTXVideoRotaryPosEmbed`, which caches its cos and sin tables for the next denoising step."""

import copy
import io

import pytest
import torch
from helpers import random
from models import ltx, ltx_input
from torch._subclasses.fake_tensor import FakeTensorMode

import oxiwarp
from oxiwarp._cache import _of_objects as kept
from oxiwarp.patching.fusions.diffusers import ltx as fused_ltx
from oxiwarp.patching.fusions.diffusers import ltx_rope

transformer_ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx")


def rope(**options):
    options = {"dim": 64, **options}
    return transformer_ltx.LTXVideoRotaryPosEmbed(**options)


def patched_rope(**options):
    module = rope(**options)
    oxiwarp.patch(module)
    return module


def x(batch=2, device="cpu"):
    return random((batch, 24, 8), torch.bfloat16, device)


SCALE = (1 / 3, 32, 32)


@pytest.mark.parametrize("scale", [None, SCALE, [1 / 3, 32, 32], (torch.tensor(0.3), 32, 32)])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_rope_bits(batch, scale, device):
    """The first call of the patched module, and later calls that use the cache, return the tables of the
    original `forward` bit for bit."""
    own, module = rope()(x(batch, device), 2, 3, 4, scale), patched_rope()
    for _ in range(2):
        for table, right in zip(module(x(batch, device), 2, 3, 4, scale), own, strict=True):
            assert torch.equal(table, right) and table.shape == right.shape and table.dtype == right.dtype


def test_rope_is_kept():
    """The patched module caches RoPE tables by size and scale, and reuses them for every batch size.

    For a different size, scale or theta, it computes new tables.
    """
    module = patched_rope()
    cos, sin = module(x(), 2, 3, 4, SCALE)
    again = module(x(3), num_frames=2, height=3, width=4, rope_interpolation_scale=SCALE)
    assert [table.data_ptr() for table in again] == [cos.data_ptr(), sin.data_ptr()]
    for size in ((2, 4, 3, SCALE), (2, 3, 4, (1.0, 32, 32)), (2, 3, 4)):
        other = module(x(), *size)
        assert other[0].data_ptr() != cos.data_ptr() and all(map(torch.equal, other, rope()(x(), *size)))
    module.theta = 100.0
    assert all(map(torch.equal, module(x(), 2, 3, 4), rope(theta=100.0)(x(), 2, 3, 4)))


def test_rope_trained_after_inference_mode():
    """Training can use tables that were cached in inference mode."""
    module = patched_rope()
    with torch.inference_mode():
        cos, _ = module(x(), 2, 3, 4)
    with torch.enable_grad():
        learned = torch.ones(cos.shape[-1], requires_grad=True)
        again, _ = module(x(), 2, 3, 4)
        (learned * again).sum().backward()
    assert again.data_ptr() == cos.data_ptr() and torch.allclose(learned.grad, cos.sum((0, 1)))


def test_rope_is_not_copied():
    """Copies and pickles of the patched module do not contain its cached RoPE tables. The cache keeps no
    module alive."""
    module = patched_rope()
    module(x(), 2, 3, 4)
    assert kept[module] and copy.deepcopy(module) not in kept
    buffer = io.BytesIO()
    torch.save(module, buffer)
    assert buffer.tell() < 2000 + 10 * module(x(), 2, 3, 4)[0].nbytes and "table" not in str(module.__dict__)
    held = len(kept)
    del module
    assert len(kept) < held


def test_rope_is_forgotten():
    """`unpatch` deletes the cached RoPE tables of a module.

    Moving the module to another device, as offloading does, also deletes the tables.
    """
    module = patched_rope()
    for let_go in (lambda: module.to("cpu"), lambda: oxiwarp.unpatch(module)):
        module(x(), 2, 3, 4)
        assert kept[module]
        let_go()
        assert module not in kept
    assert all(map(torch.equal, module(x(), 2, 3, 4), rope()(x(), 2, 3, 4))) and module not in kept


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
def test_tables_that_are_written_to(inference):
    """If the caller modifies the cached cos or sin table, the next call of the module returns correct tables.

    If cos and sin are unmodified, the attention reads cached tables of half the width instead of cos and sin.
    If the caller has modified or replaced cos or sin, the attention reads cos and sin.
    """
    module, right = patched_rope(), rope()(x(1), 2, 3, 4)
    with torch.inference_mode(inference):
        for at in range(2):
            tables = module(x(1), 2, 3, 4)
            assert fused_ltx.once(*tables)[0].shape[-1] == right[0].shape[-1] // 2
            tables[at].mul_(0)
            assert fused_ltx.once(*tables)[at] is tables[at]
            assert all(map(torch.equal, module(x(1), 2, 3, 4), right))
        cos, sin = module(x(1), 2, 3, 4)
        assert fused_ltx.once(cos, sin * 2)[0] is cos


def test_rope_leaves_the_rest(monkeypatch):
    """The patched module runs its original `forward` if it has a hook, or if its arguments include
    coordinates or fake tensors.

    It does not cache tables that are larger than `MOST_BYTES`.
    """
    coordinates = random((2, 3, 24), torch.float32, "cpu")
    assert all(map(torch.equal, patched_rope()(x(), video_coords=coordinates), rope()(x(), video_coords=coordinates)))
    module = patched_rope()
    handle = module.register_forward_hook(lambda module, args, output: output[0].mul_(2))
    module(x(), 2, 3, 4), module(x(), 2, 3, 4)
    handle.remove()
    assert torch.equal(module(x(), 2, 3, 4)[0], rope()(x(), 2, 3, 4)[0])
    module = patched_rope()
    with FakeTensorMode() as mode:
        module(mode.from_tensor(x()), 2, 3, 4)
    assert not kept.get(module)
    monkeypatch.setattr(ltx_rope, "MOST_BYTES", 100)
    assert torch.equal(module(x(), 2, 3, 4)[0], rope()(x(), 2, 3, 4)[0]) and not kept.get(module)


def test_rope_and_compiled_blocks():
    """Blocks that are compiled separately accept the cached RoPE tables."""
    model = ltx()
    oxiwarp.patch(model, cpu_kernels=True)
    expected = model(**ltx_input())[0]
    torch.compiler.reset()
    model.compile_repeated_blocks(fullgraph=True, backend="eager")
    for _ in range(2):
        assert torch.allclose(model(**ltx_input())[0], expected, atol=1e-5)
    torch.compiler.reset()


def test_rope_captured(cuda):
    """During CUDA graph capture, the patched module computes new RoPE tables. The memory of these tables
    belongs to the graph."""
    module = patched_rope()
    before, graph = module(x(device=cuda), 2, 3, 4), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module(x(device=cuda), 2, 3, 4)
    graph.replay()
    assert torch.equal(captured[0], before[0]) and captured[0].data_ptr() != before[0].data_ptr()


def test_rope_under_a_transform():
    """RoPE tables that are computed inside a torch.func transform are not cached.

    Such tables must not be used after the transform.
    """
    module = patched_rope()

    def total(scale):
        return (module(x(), 2, 3, 4)[0] * scale).sum()

    with torch.enable_grad():
        expected = rope()(x(), 2, 3, 4)[0]
        for _ in range(2):
            torch.testing.assert_close(torch.func.grad(total)(torch.tensor(2.0)), expected.sum())
            assert torch.equal(module(x(), 2, 3, 4)[0], expected)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_each_angle_once(mode, monkeypatch, device):
    """The patched attention reads RoPE tables that contain each angle only once. They have half the width of
    the original tables.

    If a hook copies the tables, the attention reads the full tables. The result of the attention does not
    change.
    """
    model, inputs = ltx(torch.bfloat16, device), ltx_input(torch.bfloat16, device)
    oxiwarp.patch(model, mode=mode, cpu_kernels=True)
    widths, op = [], fused_ltx.qk_norm_rope
    monkeypatch.setattr(
        fused_ltx, "qk_norm_rope", lambda *args, **kwargs: widths.append(args[2:]) or op(*args, **kwargs)
    )
    once = model(**inputs)[0]
    handle = model.rope.register_forward_hook(lambda module, args, tables: tuple(table * 1 for table in tables))
    whole = model(**inputs)[0]
    handle.remove()
    assert torch.equal(once, whole)
    (cos, sin), *_, (wide, _) = [tables for tables in widths if tables]
    assert cos.shape[-1] == sin.shape[-1] == wide.shape[-1] // 2
    assert torch.equal(cos.repeat_interleave(2, dim=-1), wide)
    monkeypatch.setattr(fused_ltx, "qk_norm_rope", op)
    nodes = []

    def backend(graph, inputs):
        nodes.extend(node for node in graph.graph.nodes if "qk_norm_rope.default" in str(node.target))
        return graph

    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, fullgraph=True, backend=backend)(**inputs)[0], once)
    tables = [node.args[-10].meta["example_value"] for node in nodes]
    assert tables and all(table.shape[-1] == wide.shape[-1] // 2 for table in tables)
    torch._dynamo.reset()
