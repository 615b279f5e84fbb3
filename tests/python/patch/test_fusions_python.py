"""Tests of replacements that save Python time instead of GPU time: attention modules, attention masks and
timestep embeddings."""

import inspect

import pytest
import torch
from helpers import random
from joint_models import FAMILIES, build
from models import ltx, ltx_input

import oxiwarp
from oxiwarp.patching.fusions.core import attention as _attention
from oxiwarp.patching.fusions.diffusers import timesteps
from oxiwarp.patching.rewrite import identities

transformer_ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx")
processors = pytest.importorskip("diffusers.models.attention_processor")
embeddings = pytest.importorskip("diffusers.models.embeddings")


@pytest.fixture
def looked_up(monkeypatch):
    """Record the objects whose signatures are read through `inspect.signature`."""
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
    """A processor with a required argument. The attention module has a default for this argument, as in CogVideoX."""

    def __call__(self, attn, hidden_states, encoder_hidden_states, attention_mask=None):
        return hidden_states, encoder_hidden_states, attention_mask


class Other(Recorder):
    """A processor with an argument `attention_mask`, whose default differs from the default in the
    attention module."""

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
    """A patched attention module passes the same arguments to its processor as the original module.

    The calls in this test mix positional, keyword, default and unknown arguments.
    """
    stock, module = attention(), attention()
    for each in (stock, module):
        each.set_processor(processor())
    assert oxiwarp.patch(module).names[""] == "replaced"
    for args, kwargs in CALLS:
        assert outcome(module, args, kwargs) == outcome(stock, args, kwargs), (args, kwargs)
    for args in ((), ("x", "y", "m", "more")):  # The original module and the patched module raise TypeError.
        assert outcome(module, args, {}) == outcome(stock, args, {}) == "TypeError"


def outcome(module, args, kwargs):
    try:
        return module(*args, **kwargs)
    except TypeError:
        return "TypeError"


def test_unknown_arguments_are_told(monkeypatch):
    """If a processor does not take an argument, a patched attention module drops this argument and warns, as
    diffusers does."""
    told = []
    monkeypatch.setattr(processors.logger, "warning", told.append)
    module = attention()
    module.set_processor(Recorder())
    oxiwarp.patch(module)
    assert module("x", unknown=1)[0] == "x"
    assert len(told) == 1 and "unknown" in told[0] and "Recorder" in told[0]


def test_signature_is_read_once(looked_up):
    """From the second step on, a patched model does not call `inspect.signature`. The report of `patch` lists
    the attention modules."""
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


def test_signature_of_another_order(looked_up):
    """The processor of Qwen-Image has its arguments in another order than the attention module. Its signature is
    read once, too."""
    family = FAMILIES["qwen_image"]
    model = build(family)
    oxiwarp.patch(model, cpu_kernels=True)
    model(**family.inputs(torch.float32, "cpu"))
    looked_up.clear()
    model(**family.inputs(torch.float32, "cpu"))
    assert not looked_up
    oxiwarp.unpatch(model)
    model(**family.inputs(torch.float32, "cpu"))
    assert looked_up


def test_attention_modules_compiled(monkeypatch):
    """Under torch.compile, attention modules do not use the cache of signatures."""
    model, made = ltx(), []
    oxiwarp.patch(model, cpu_kernels=True)
    monkeypatch.setattr(identities, "signature_of_method", made.append)
    torch.compiler.reset()
    torch.compile(model, fullgraph=True, backend="eager")(**ltx_input())
    assert not made
    torch.compiler.reset()


@pytest.mark.parametrize("queries", [1, 24])
def test_mask_of_heads(queries, monkeypatch):
    """`mask_of_heads` returns a view of the mask that has the same values as the result of diffusers'
    `prepare_attention_mask`.

    `mask_of_heads` calls `prepare_attention_mask` in two cases: the mask does not have one column per token,
    or the source code of `prepare_attention_mask` is unknown.
    """
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
    """If a norm has a hook when torch.compile traces a patched block that contains the norm, the hook runs.

    A hook that is registered later runs only if torch.compile guards on hooks. An unpatched model behaves in
    the same way.
    """
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


@pytest.mark.parametrize(
    "options",
    [(256, True, 0), (256, False, 0), (6, True, 1), (320, False, 1, 1000), (2, True, 0), (7, True, 0)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_timesteps(options, dtype, device):
    """A patched `Timesteps` module returns the same bits and dtype as the original module.

    This holds for the first call, for later calls, which use cached frequencies, and in inference mode.
    """
    times = torch.tensor([999.0, 0.0, 3.5], device=device).to(dtype)
    stock, module = embeddings.Timesteps(*options), embeddings.Timesteps(*options)
    oxiwarp.patch(module)
    timesteps.frequencies.store.clear()
    expected = stock(times)
    with torch.inference_mode():
        assert torch.equal(module(times), expected)
    found = module(times)
    assert torch.equal(found, expected) and found.dtype == expected.dtype
    assert len(timesteps.frequencies.store) == (options[0] % 2 == 0)


def test_timesteps_of_several_modules(device):
    """Cached frequencies are separate for each width and shift of the timestep embedding."""
    times, options = (
        torch.tensor([999.0, 3.5], device=device),
        [(8, True, 0), (8, True, 1), (16, True, 0), (16, True, 1)],
    )
    for own in options * 2:
        stock, module = embeddings.Timesteps(*own), embeddings.Timesteps(*own)
        oxiwarp.patch(module)
        assert torch.equal(module(times), stock(times)), own


def test_timesteps_gradient():
    """A patched `Timesteps` module gives the gradient of the original module under torch.func and autograd.

    It does not cache frequencies inside a torch.func transform. Frequencies that were cached in inference
    mode stay usable.
    """
    module, stock, times = embeddings.Timesteps(8, True, 0), embeddings.Timesteps(8, True, 0), torch.tensor([3.0, 5.0])
    oxiwarp.patch(module)
    timesteps.frequencies.store.clear()
    with torch.enable_grad():
        for _ in range(2):
            ours, own = (torch.func.grad(lambda t, m=m: m(t).square().cos().sum())(times) for m in (module, stock))
            assert torch.equal(ours, own)
            with torch.inference_mode():
                assert torch.equal(module(times), stock(times))
        ours, own = (torch.autograd.functional.jacobian(m, times) for m in (module, stock))
        assert torch.equal(ours, own)
