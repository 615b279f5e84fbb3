"""Fusions without a kernel, which save Python's time: attention modules, and the tables of a rotary embedding."""

import copy
import inspect
import io

import pytest
import torch
from helpers import random
from models import ltx, ltx_input
from torch._subclasses.fake_tensor import FakeTensorMode

import oxiwarp
from oxiwarp.fusions import _attention, attention_module, ltx_rope
from oxiwarp.fusions import ltx as fused_ltx

transformer_ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx")
processors = pytest.importorskip("diffusers.models.attention_processor")


@pytest.fixture
def looked_up(monkeypatch):
    """What `inspect.signature` was asked for, by whomever."""
    seen, own = [], inspect.signature

    def signature(of, *args, **kwargs):
        seen.append(of)
        return own(of, *args, **kwargs)

    monkeypatch.setattr(inspect, "signature", signature)
    return seen


def attention(cls=processors.Attention, **options):
    torch.manual_seed(0)
    return cls(query_dim=32, heads=2, dim_head=16, **options).eval()


class Recorder:
    """A processor that returns its arguments."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, scale=1.0):
        return hidden_states, encoder_hidden_states, attention_mask, scale


class Renamed(Recorder):
    def __call__(self, attn, x, encoder_hidden_states=None, attention_mask=None):
        return x, encoder_hidden_states, attention_mask


class Needing(Recorder):
    """As CogVideoX's: what the module has a default for must be given."""

    def __call__(self, attn, hidden_states, encoder_hidden_states, attention_mask=None):
        return hidden_states, encoder_hidden_states, attention_mask


class Other(Recorder):
    """Another default than the module's."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask="own"):
        return hidden_states, encoder_hidden_states, attention_mask


class Anything(Recorder):
    def __call__(self, *args, **kwargs):
        return args[1:], kwargs


CALLS = (
    (("x",), {}),
    ((), {"hidden_states": "x"}),
    (("x", "y"), {"attention_mask": "m"}),
    (("x", "y", "m"), {}),
    (("x",), {"scale": 2.0}),
    (("x",), {"encoder_hidden_states": "y", "scale": 2.0, "unknown": 1}),
)


@pytest.mark.parametrize("processor", [Recorder, Renamed, Needing, Other, Anything])
def test_attention_module_calls(processor):
    """Every processor gets from every call what the own method gives it."""
    stock, module = attention(), attention()
    for each in (stock, module):
        each.set_processor(processor())
    assert oxiwarp.patch(module).names[""] == "replaced"
    for args, kwargs in CALLS:
        assert outcome(module, args, kwargs) == outcome(stock, args, kwargs), (args, kwargs)
    for args in ((), ("x", "y", "m", "more")):  # refused
        assert outcome(module, args, {}) == outcome(stock, args, {}) == "TypeError"


def outcome(module, args, kwargs):
    try:
        return module(*args, **kwargs)
    except TypeError:
        return "TypeError"


def test_unknown_arguments_are_told(monkeypatch):
    """The warning of an argument that is dropped is diffusers' own."""
    told = []
    monkeypatch.setattr(processors.logger, "warning", told.append)
    module = attention()
    module.set_processor(Recorder())
    oxiwarp.patch(module)
    assert module("x", unknown=1)[0] == "x"
    assert len(told) == 1 and "unknown" in told[0] and "Recorder" in told[0]


def test_signature_is_read_once(looked_up):
    """A step of a patched model looks nothing up once it has run; the report says what is saved."""
    model = ltx()
    stock = model(**ltx_input())[0]
    report = oxiwarp.patch(model, cpu_kernels=True)
    row = next(row for row in report if row.module_class.endswith("LTXAttention"))
    assert (row.count, row.op, row.exactness, row.status) == (4, "-", "bit-exact", "replaced") and row.reason
    assert "-" not in report.ops
    first = model(**ltx_input())[0]
    looked_up.clear()
    assert torch.equal(model(**ltx_input())[0], first) and not looked_up
    oxiwarp.unpatch(model)
    assert torch.equal(model(**ltx_input())[0], stock) and len(looked_up) == 4


def test_attention_modules_compiled(looked_up):
    """torch.compile traces their own method."""
    model = ltx()
    oxiwarp.patch(model, cpu_kernels=True)
    attention_module.signature.cache_clear()
    torch.compiler.reset()
    torch.compile(model, fullgraph=True, backend="eager")(**ltx_input())
    assert attention_module.signature.cache_info().currsize == 0
    torch.compiler.reset()


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
    """The tables have the own method's bits, the first time and from then on."""
    own, module = rope()(x(batch, device), 2, 3, 4, scale), patched_rope()
    for _ in range(2):
        for table, right in zip(module(x(batch, device), 2, 3, 4, scale), own, strict=True):
            assert torch.equal(table, right) and table.shape == right.shape and table.dtype == right.dtype


def test_rope_is_kept():
    """The same tables for the same size, whatever the batch; other ones for another size, scale or inference mode, or
    constants that somebody changed."""
    module = patched_rope()
    cos, sin = module(x(), 2, 3, 4, SCALE)
    again = module(x(3), num_frames=2, height=3, width=4, rope_interpolation_scale=SCALE)
    assert [table.data_ptr() for table in again] == [cos.data_ptr(), sin.data_ptr()]
    for size in ((2, 4, 3, SCALE), (2, 3, 4, (1.0, 32, 32)), (2, 3, 4)):
        other = module(x(), *size)
        assert other[0].data_ptr() != cos.data_ptr() and all(map(torch.equal, other, rope()(x(), *size)))
    with torch.inference_mode():
        assert module(x(), 2, 3, 4, SCALE)[0].is_inference()
    assert not module(x(), 2, 3, 4, SCALE)[0].is_inference()
    module.theta = 100.0
    assert all(map(torch.equal, module(x(), 2, 3, 4), rope(theta=100.0)(x(), 2, 3, 4)))


def test_rope_is_not_copied():
    """Neither a copy nor a pickle has the tables, and nothing holds a module for them."""
    module = patched_rope()
    module(x(), 2, 3, 4)
    assert module in ltx_rope._kept and copy.deepcopy(module) not in ltx_rope._kept
    buffer = io.BytesIO()
    torch.save(module, buffer)
    assert buffer.tell() < 2000 + 10 * module(x(), 2, 3, 4)[0].nbytes and "table" not in str(module.__dict__)
    held = len(ltx_rope._kept)
    del module
    assert len(ltx_rope._kept) < held


def test_rope_leaves_the_rest(monkeypatch):
    """Its own method for coordinates that are given, a hook, which might write to the tables, and fake tensors; large
    tables are not kept."""
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
    assert module not in ltx_rope._kept
    monkeypatch.setattr(ltx_rope, "MOST_BYTES", 100)
    assert torch.equal(module(x(), 2, 3, 4)[0], rope()(x(), 2, 3, 4)[0]) and module not in ltx_rope._kept


def test_rope_by_pair(monkeypatch):
    """The fused attention reads tables with an entry for each pair of columns: those of these cosines and sines alone,
    and not where a block is compiled by itself. The results have the same bits."""
    cos, sin = patched_rope()(x(), 2, 3, 4)
    for pair, table in zip(fused_ltx.by_pair(cos, sin), (cos, sin), strict=True):
        assert torch.equal(pair.repeat_interleave(2, -1), table) and pair.shape[-1] == 32
    other = sin.clone()
    for tables in ((cos, other), (sin, cos), (cos.clone(), sin)):
        assert all(a is b for a, b in zip(fused_ltx.by_pair(*tables), tables, strict=True))
    model, columns = ltx(), []
    oxiwarp.patch(model, cpu_kernels=True)
    by_pair = fused_ltx.by_pair
    monkeypatch.setattr(fused_ltx, "by_pair", lambda *tables: tables)
    wide = model(**ltx_input())[0]

    def recorded(*tables):
        columns.append(by_pair(*tables)[0].shape[-1])
        return by_pair(*tables)

    monkeypatch.setattr(fused_ltx, "by_pair", recorded)
    assert torch.equal(model(**ltx_input())[0], wide) and columns == [model.rope.dim // 2] * 2
    monkeypatch.setattr(fused_ltx, "by_pair", by_pair)
    torch.compiler.reset()
    model.compile_repeated_blocks(fullgraph=True, backend="eager")
    for _ in range(2):
        assert torch.allclose(model(**ltx_input())[0], wide, atol=1e-5)
    torch.compiler.reset()


def test_rope_captured(cuda):
    """A CUDA graph holds tables of its own."""
    module = patched_rope()
    before, graph = module(x(device=cuda), 2, 3, 4), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = module(x(device=cuda), 2, 3, 4)
    graph.replay()
    assert torch.equal(captured[0], before[0]) and captured[0].data_ptr() != before[0].data_ptr()


@pytest.mark.parametrize("queries", [1, 24])
def test_mask_of_heads(queries, monkeypatch):
    """A mask of every head has the values that diffusers' has, without a copy; where that is not known, it is asked."""
    attn = attention(transformer_ltx.LTXAttention)
    source, mask = random((2, 7, 32), torch.float32, "cpu"), random((2, queries, 7), torch.float32, "cpu")
    right = attn.prepare_attention_mask(mask, 7, 2).view(2, 2, queries, 7)
    ours = _attention.mask_of_heads(attn, mask, source)
    assert torch.equal(ours, right) and ours.data_ptr() == mask.data_ptr()
    short = random((2, queries, 5), torch.float32, "cpu")
    padded = attn.prepare_attention_mask(short, 7, 2)
    assert torch.equal(_attention.mask_of_heads(attn, short, source), padded.view(2, 2, queries, -1))
    own = type(attn).prepare_attention_mask
    monkeypatch.setattr(type(attn), "prepare_attention_mask", lambda self, *args: own(self, *args) * 2)
    assert torch.equal(_attention.mask_of_heads(attn, mask, source), right * 2)


def test_hooks_and_compile():
    """What is hooked to a norm inside a fused block when it is compiled runs; what comes later does as in a stock
    model: it is asked for only where torch.compile is told to."""
    model, seen = ltx(), []
    oxiwarp.patch(model, cpu_kernels=True)
    compiled = torch.compile(model, backend="eager")
    block = model.transformer_blocks[0]
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        compiled(**ltx_input())
        handle = block.norm1.register_forward_hook(lambda *_: seen.append("norm1"))
        compiled(**ltx_input())
        assert seen == ["norm1"]
        handle.remove()
    torch.compiler.reset()
    block.norm2.register_forward_hook(lambda *_: seen.append("norm2"))
    compiled(**ltx_input())
    assert seen == ["norm1", "norm2"]
    torch.compiler.reset()
