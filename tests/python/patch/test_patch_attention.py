"""Tests of `patch(..., attention=True)`.

With this option, patched attention processors call `oxiwarp.attention` for the sizes for which it was
measured to be faster than torch's attention.
"""

import copy
import math
from collections import Counter
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from fused_checks import Operators
from image_models import sdxl, sdxl_input
from joint_models import FAMILIES, build, step
from models import ltx, ltx_input
from test_compile import counting
from torch import nn

import oxiwarp
from oxiwarp.patching import fusions
from oxiwarp.patching.fusions.core import attention as _attention
from oxiwarp.patching.fusions.core.attention import was_faster
from oxiwarp.patching.fusions.core.attention_table import FASTER
from oxiwarp.patching.fusions.shared import parallel_block


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of oxiwarp's attention in patched attention processors."""
    seen, op = Counter(), _attention.attention

    def spy(*args, **kwargs):
        seen["attention"] += 1
        return op(*args, **kwargs)

    monkeypatch.setattr(_attention, "attention", spy)
    return seen


@pytest.fixture
def measured(monkeypatch):
    """Make patched processors call `oxiwarp.attention` for every size, as if it were faster for every size."""
    monkeypatch.setattr(fusions, "attention_measured", lambda: "9.0")
    monkeypatch.setattr(_attention, "is_ours", lambda how, q, k, v, mask, tokens: how.attention == "9.0")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_ltx(dtype, device, calls, measured):
    """A patched LTX model calls `oxiwarp.attention` for self-attention and for masked cross-attention.

    The result equals the unpatched model's result within rounding errors.
    """
    model, inputs = ltx(dtype, device), ltx_input(dtype, device)
    stock = model(**inputs)[0]
    report = oxiwarp.patch(model, cpu_kernels=True, attention=True)
    assert any("oxiwarp.attention" in note for note in report.notes)
    exactness = {row.module_class.rpartition(".")[2]: row.exactness for row in report}
    assert exactness["LTXVideoAttnProcessor"] == "bit-exact, but for the attention"
    assert exactness["LTXVideoTransformerBlock"] == "bit-exact"
    y = model(**inputs)[0]
    assert calls["attention"] == 4  # two attentions per layer
    assert (y.double() - stock.double()).abs().max() <= 0.05 * stock.abs().max()


@pytest.mark.parametrize(
    ("mode", "attention", "ours"), [("exact", None, 0), ("exact", True, 4), ("fast", None, 4), ("fast", False, 0)]
)
def test_when(mode, attention, ours, calls, measured):
    """In mode "fast", patched models use `oxiwarp.attention` by default.

    In mode "exact", they use `oxiwarp.attention` only with `attention=True`.
    """
    model = ltx(torch.bfloat16)
    oxiwarp.patch(model, mode=mode, attention=attention, cpu_kernels=True)
    model(**ltx_input(torch.bfloat16))
    assert calls["attention"] == ours


def test_another_backend(calls, measured):
    """If the user selects an attention backend for the model or for one call, a patched model uses this
    backend.

    This also holds for the backend "native", which is torch's SDPA and diffusers' default.
    """
    attention_backend = pytest.importorskip("diffusers.models.attention_dispatch").attention_backend
    model, inputs = ltx(torch.bfloat16), ltx_input(torch.bfloat16)
    oxiwarp.patch(model, cpu_kernels=True, attention=True)
    with attention_backend("_native_math"):
        model(**inputs)
    assert calls["attention"] == 0
    model.set_attention_backend("native")
    model(**inputs)
    assert calls["attention"] == 0
    model.reset_attention_backend()
    model(**inputs)
    assert calls["attention"] == 4


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")  # in diffusers
@pytest.mark.parametrize(("make", "make_input"), [(ltx, ltx_input), (sdxl, sdxl_input)], ids=["ltx", "sdxl"])
def test_compile(make, make_input, device, measured):
    """A patched model compiles to one graph, which calls `oxiwarp.attention` as often as eager mode does."""
    model, inputs, graphs = make(torch.bfloat16, device), make_input(torch.bfloat16, device), []
    oxiwarp.patch(model, cpu_kernels=True, attention=True)
    with Operators() as operators:
        right = model(**inputs)[0]
    torch._dynamo.reset()
    y = torch.compile(model, fullgraph=True, backend=counting(graphs))(**inputs)[0]
    torch.testing.assert_close(y, right, rtol=0.02, atol=0.02)
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert targets.count("oxiwarp.attention.default") == operators.calls["attention"] > 0


def test_conditions(monkeypatch):
    """A patched model uses `oxiwarp.attention` only for calls that meet all of these conditions.

    The tensors are on a GPU and have a 16-bit dtype. According to a table of measurements,
    `oxiwarp.attention` is faster than torch for this head dimension and these numbers of queries and keys. If
    there is a mask, it is the same for all queries. No gradient is needed.
    """

    def asked(q, k=None, mask=None, attention="9.0"):
        how, k = type("How", (), {"attention": attention}), q if k is None else k
        return _attention.is_ours(how, q, k, k, mask, 1)

    regions = {1: (), 2048: ((2048, 4096),), 4096: ((1024, 1024),), 8192: ((4096, 1024),)}
    alone = {1024: {512: (1024, 2048)}, 4096: {512: (512,)}}
    table = {(64, False): (regions, alone), (64, True): ({1: ((2048, 4096),)}, {})}
    monkeypatch.setattr(_attention, "FASTER", {"9.0": table})
    q = torch.empty(1, 2048, 2, 64, dtype=torch.bfloat16, device="meta")
    assert not asked(q), "on no GPU"
    monkeypatch.setattr(_attention, "PLAIN", (torch.Tensor,))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    assert asked(q) and not asked(q, attention=None) and not asked(q, attention="8.0")
    assert not asked(q[:, :512]) and not asked(q[..., :32]) and not asked(q.float())
    long = torch.empty(1, 16384, 2, 64, dtype=torch.bfloat16, device="meta")
    few, longer = q[:, :1024], long[:, :4096]
    assert asked(few, longer) and not asked(few, longer[:, :4095]) and asked(longer, q)
    assert asked(longer, q[:, :2048]) and not asked(longer, q[:, :2047]) and not asked(q, long) and asked(longer, long)
    alone = q[:, :512]
    assert asked(alone, few) and not asked(alone, few[:, 1:]) and not asked(q[:, :513], few), "at this very size"
    assert asked(alone[:, :, :1], longer[:, :, :1]) and not asked(alone, longer)
    assert not asked(q[:, :, :1], q[:, :, :1]) and asked(longer[:, :, :1], longer[:, :, :1])
    padding, by_query = (torch.empty(1, 2, n, 128, device="meta", dtype=torch.bfloat16) for n in (1, 2048))
    assert asked(q, q[:, :128], padding) and not asked(q, q[:, :128], by_query) and not asked(q, q[:, :128])
    assert asked(q, long, padding) and asked(q, q[:, :7], padding) and not asked(few, q[:, :128], padding)
    with torch.enable_grad():
        assert not asked(q.requires_grad_())


class Counted(int):
    """An integer that counts its comparisons. torch.compile makes a guard for each comparison of a dynamic size."""

    def counted(name):
        def compare(self, other):
            Counted.compared += 1
            return getattr(int, name)(self, other)

        return compare

    __eq__, __lt__, __ge__ = map(counted, ("__eq__", "__lt__", "__ge__"))
    __hash__ = int.__hash__


@pytest.mark.parametrize("kind", FASTER["9.0"], ids=str)
def test_dynamic_sizes(kind):
    """With dynamic sizes, a compiled model chooses the same attention implementation as in eager mode.

    The choice must compare sizes only a few times. Each comparison adds a guard, and 50 guards take minutes
    to compile.
    """
    sizes = FASTER["9.0"][kind]
    for numbers in product((511, 1024, 4096, 9000), (77, 1024, 4000, 9000), (6144, 40960, 81920)):
        Counted.compared = 0
        was_faster(sizes, *map(Counted, numbers))
        assert Counted.compared <= 24

    def ours(q, k):
        return q + was_faster(sizes, q.shape[0], k.shape[0], math.prod(q.shape[:-1]))

    torch._dynamo.reset()
    compiled = torch.compile(ours, dynamic=True, fullgraph=True, backend="eager")
    for queries, heads, keys in [(1024, 40, 1024), (1000, 40, 1024), (1024, 40, 77), (4096, 20, 4096)]:
        q, k = torch.zeros(queries, heads, 1), torch.zeros(keys, heads, 1)
        assert torch.equal(compiled(q, k), ours(q, k))


@pytest.mark.parametrize(
    ("there", "capability", "ours"), [(False, None, False), (True, (8, 0), False), (True, (9, 0), True)]
)
def test_gpus(monkeypatch, there, capability, ours):
    """On GPU architectures without measurements of `oxiwarp.attention`, `patch` uses torch's attention.

    The report of `patch` then has no note about attention.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    model = ltx(torch.bfloat16)
    report = oxiwarp.patch(model, attention=True)
    assert any("oxiwarp.attention" in note for note in report.notes) is ours
    assert model.transformer_blocks[0].attn1.processor._oxiwarp.attention == ("9.0" if ours else None)


@pytest.mark.parametrize("name", ["flux", "flux2"])
def test_beside_the_feed_forward(name, measured, monkeypatch, device):
    """In FLUX.1's single-stream blocks, `oxiwarp.attention` writes directly into the input buffer of the output
    projection.

    If the attention module has a hook, the result of the attention is copied into this buffer instead.
    """
    family, dtype = FAMILIES[name], torch.bfloat16
    model = build(family, dtype, device)
    oxiwarp.patch(model, cpu_kernels=True, attention=True)
    with Operators() as operators:
        y = step(family, model, dtype, device)[0]
    copies = 2 if name == "flux" else 0  # FLUX.2 has no fusion. `torch.cat` copies the result of its attention.
    assert operators.calls["attention_out"] == copies and operators.calls["attention"] == 3 - copies
    own = step(family, build(family, dtype, device), dtype, device)[0]
    torch.testing.assert_close(y, own, rtol=0.02, atol=0.02)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**family.inputs(dtype, device), return_dict=False)[0], y)
    torch._dynamo.reset()
    monkeypatch.setattr(_attention, "is_ours", lambda *args: False)
    with Operators() as operators:
        torch.testing.assert_close(step(family, model, dtype, device)[0], own, rtol=0.02, atol=0.02)
    assert operators.calls["attention_out"] == operators.calls["attention"] == 0
    monkeypatch.undo()
    block = model.single_transformer_blocks[0]
    block.attn.register_forward_hook(lambda module, args, output: output * 0.5)
    halved = step(family, model, dtype, device)[0]
    assert not torch.equal(halved, y) and halved.isfinite().all()


def first_halves(linear, dim, sizes):
    """Return a copy of the linear with half of its weight, as on one of two tensor-parallel ranks.

    The weight consists of blocks with the given `sizes` along `dim` (0: rows, 1: columns). The copy contains
    the first half of each block.
    """
    parts = [torch.arange(size // 2) + sum(sizes[:at]) for at, size in enumerate(sizes)]
    index = torch.cat(parts).to(linear.weight.device)
    made = copy.deepcopy(linear)
    made.weight = nn.Parameter(linear.weight.index_select(dim, index), requires_grad=False)
    if dim == 0 and linear.bias is not None:
        made.bias = nn.Parameter(linear.bias[index], requires_grad=False)
    return made


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("name", ["flux", "flux2"])
def test_part_of_the_heads(name, ours, measured, device):
    """A patched model also matches the unpatched model if the linears of both have only half of the heads and
    feed-forward columns.

    On one of two tensor-parallel ranks, a model has such linears.
    """
    family, dtype, results = FAMILIES[name], torch.bfloat16, []
    for patched in (False, True):
        model = build(family, dtype, device)
        for block in model.single_transformer_blocks:
            attn = block.attn
            if name == "flux":
                inner, hidden = attn.inner_dim, block.mlp_hidden_dim
                for projection in ("to_q", "to_k", "to_v"):
                    setattr(attn, projection, first_halves(getattr(attn, projection), 0, [inner]))
                block.proj_mlp = first_halves(block.proj_mlp, 0, [hidden])
                block.proj_out = first_halves(block.proj_out, 1, [inner, hidden])
            else:
                inner, hidden = attn.inner_dim, attn.mlp_hidden_dim
                attn.to_qkv_mlp_proj = first_halves(attn.to_qkv_mlp_proj, 0, [inner] * 3 + [hidden] * 2)
                attn.to_out = first_halves(attn.to_out, 1, [inner, hidden])
        if patched:
            oxiwarp.patch(model, cpu_kernels=True, attention=ours)
        with Operators() as operators:
            results.append(step(family, model, dtype, device)[0])
    torch.testing.assert_close(*results[::-1], rtol=0.02, atol=0.02)
    assert operators.calls["attention_out"] == (2 if ours and name == "flux" else 0)
    written = operators.calls["activation_out"] + operators.calls["gated_activation_out"]
    assert written == len(model.single_transformer_blocks)


class Guided:
    """A processor that calls another processor twice and combines both results, as perturbed attention
    guidance does. It stores the first result in `kept`."""

    def __init__(self, inner, copies):
        self.inner, self.copies = inner, copies

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None):
        tokens = [hidden_states * 1 if self.copies else hidden_states for _ in range(2)]
        self.kept = self.inner(attn, tokens[0], image_rotary_emb=image_rotary_emb)
        other = self.inner(attn, tokens[1])
        return self.kept + 3 * (self.kept - other)


def test_two_attentions_of_the_same_tokens(measured):
    """If a processor runs twice for the same tokens, the second result does not overwrite the first result.

    The first result is valid even after the block has returned.
    """
    family, dtype, results = FAMILIES["flux"], torch.bfloat16, []
    for copies in (True, False):
        model = build(family, dtype)
        oxiwarp.patch(model, cpu_kernels=True, attention=True)
        attn = model.single_transformer_blocks[0].attn
        attn.set_processor(Guided(attn.processor, copies))
        results.append((step(family, model, dtype)[0], attn.processor.kept))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("name", ["ltx", "sdxl"])
def test_replaced_sdpa(name, calls, measured, monkeypatch):
    """If third-party code replaces `F.scaled_dot_product_attention`, the new function runs instead of
    `oxiwarp.attention`.

    torch's `context_parallel` depends on this behaviour.
    """
    model, inputs = (
        (ltx(torch.bfloat16), ltx_input(torch.bfloat16))
        if name == "ltx"
        else (
            sdxl(torch.bfloat16),
            sdxl_input(torch.bfloat16),
        )
    )
    oxiwarp.patch(model, cpu_kernels=True, attention=True)
    seen, own = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kw: seen.append(args) or own(*args, **kw))
    model(**inputs)
    assert seen and calls["attention"] == 0
    monkeypatch.setattr(F, "scaled_dot_product_attention", own)
    seen.clear()
    model(**inputs)
    assert not seen and calls["attention"]


@pytest.mark.parametrize("name", ["flux", "flux2"])
def test_kept_results(name, measured):
    """If an attention module has a hook, the result that the hook receives shares no memory with other
    tensors of the block."""
    family, dtype, kept = FAMILIES[name], torch.bfloat16, []
    model = build(family, dtype)
    oxiwarp.patch(model, cpu_kernels=True, attention=True)
    y = step(family, model, dtype)[0]
    block = model.single_transformer_blocks[0]
    handle = block.attn.register_forward_hook(lambda module, args, output: kept.append(output))
    assert torch.equal(step(family, model, dtype)[0], y)
    handle.remove()
    assert kept[0].untyped_storage().nbytes() == kept[0].nbytes
    x, place = torch.zeros(2), torch.zeros(2)
    parallel_block.give_place(block.attn, x, place)
    assert parallel_block.take_place(x) is place and parallel_block.take_place(x) is None
