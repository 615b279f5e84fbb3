"""Tests of rules that hold for all fusions. A fusion is a method of oxiwarp that replaces a method of a model
class.

The rules say how the original source code is recognised, which objects `patch` skips, and for which calls a
patched object runs its original method.
"""

import fnmatch
import importlib
import inspect
import pkgutil

import pytest
import torch
from helpers import random
from models import ltx, ltx_input

import oxiwarp
from oxiwarp.patching import class_swap, fusions
from oxiwarp.patching.fusions import FUSIONS
from oxiwarp.patching.fusions.core import source

transformer_ltx = pytest.importorskip("diffusers.models.transformers.transformer_ltx")
Block = transformer_ltx.LTXVideoTransformerBlock


def forward(model):
    return model(**ltx_input())[0]


@pytest.fixture
def ran(monkeypatch):
    """Record the names of the fusions (replacement methods) that run."""
    seen = []
    for name, fusion in FUSIONS.items():
        run = fusion.run
        monkeypatch.setitem(
            fusion.__dict__, "run", lambda *a, run=run, name=name, **k: (seen.append(name), run(*a, **k))[1]
        )
    return seen


def patched(**options):
    model = ltx()
    return model, oxiwarp.patch(model, cpu_kernels=True, **options)


# fmt: off
def an_f_string(a, b):
    # `fingerprint` must ignore this comment and the layout.
    return f"{a!r:>{b}} {a + b = } {{}}" if a else f"""{
        a}""", [  1,
        2]


def the_same(a, b):

    return f"{a!r:>{b}} {a + b = } {{}}" if a else f"""{
        a}""", [1, 2]  # and this comment
# fmt: on


def test_fingerprint():
    """The fingerprint of a function is a hash of its source code. It does not depend on the Python version,
    comments or layout, but it depends on the function's name."""
    assert fusions.fingerprint(an_f_string) == "ed9f7a9eef1c"
    words = [list(source.words(inspect.getsource(function))) for function in (an_f_string, the_same)]
    differ = [pair for pair in zip(*words, strict=True) if pair[0] != pair[1]]
    assert differ == [("an_f_string", "the_same")]
    assert fusions.fingerprint(len) == fusions.fingerprint(None) == "unknown"


DECODERS = [f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen3", "gemma2", "phi3")]


def classes_like(pattern):
    """Yield the installed classes whose names match `pattern`, a class-name pattern of a fusion (replacement
    method).

    The pattern for transformers' decoders matches hundreds of classes. Of these classes, only the classes in
    the modules `DECODERS` are yielded.
    """
    module = pattern.rpartition(".")[0]
    if module == "transformers.models":
        modules = DECODERS
    elif set(module) & set("*?["):
        head = module[: min(module.find(mark) for mark in "*?[" if mark in module)].rpartition(".")[0]
        names = [info.name for info in pkgutil.iter_modules(importlib.import_module(head).__path__, f"{head}.")]
        modules = [name for name in names if fnmatch.fnmatchcase(name, module)]
    else:
        modules = [module]
    for name in modules:
        for cls in vars(pytest.importorskip(name)).values():
            if isinstance(cls, type) and fnmatch.fnmatchcase(f"{cls.__module__}.{cls.__qualname__}", pattern):
                yield cls


@pytest.mark.parametrize("name", FUSIONS)
def test_every_fusion_knows_what_is_installed(name):
    """All classes that a fusion (replacement method) names are installed, and `patch` recognises their source
    code.

    A fusion may name its classes by a pattern for all transformers models. Then `patch` recognises at least
    one matching class.
    """
    fusion = FUSIONS[name]
    for pattern in fusion.classes:
        found = {cls: fusion.difference(cls, cls) for cls in classes_like(pattern)}
        assert found, f"no class is like {pattern}"
        known = [cls for cls, difference in found.items() if difference is None]
        assert known if pattern.startswith("transformers.models.") else len(known) == len(found), found
        assert all(fusions.find(cls) == (fusion, cls) for cls in known)


def test_other_source(monkeypatch, ran):
    """`patch` skips a block whose `forward` has unknown source code, if no kernel can replace a part of this
    code.

    In the second part of the test, an attention processor calls a RoPE function with unknown source code.
    `patch` rewrites the processor. No kernel can replace the function, so the rewritten processor calls it.
    The report of `patch` gives the reasons.
    """
    own = Block.forward

    def changed(self, *args, **kwargs):
        return own(self, *args, **kwargs)

    monkeypatch.setattr(Block, "forward", changed)
    model, report = patched()
    row = next(row for row in report if row.module_class.endswith("LTXVideoTransformerBlock"))
    assert (row.status, row.count) == ("left", 2) and "forward is not the one that ltx.block knows" in row.reason
    assert torch.allclose(forward(model), forward(ltx()), atol=1e-5) and "ltx.block" not in ran
    monkeypatch.undo()
    monkeypatch.setattr(transformer_ltx, "apply_rotary_emb", lambda x, freqs: x)
    ran.clear()
    model, report = patched()
    row = next(row for row in report if row.module_class.endswith("LTXVideoAttnProcessor"))
    assert row.status == "replaced" and "apply_rotary_emb is not the one" in row.reason
    assert torch.allclose(forward(model), forward(ltx()), atol=1e-5) and "ltx.attention" not in ran
    assert any("no kernel computes the rotary function" in one.fallbacks for one in report.ran())


def test_derived_classes(ran):
    """`patch` replaces a block whose class inherits `forward` from a supported class. It skips a block whose
    class overrides `forward`."""

    class Same(Block):
        extra = 1

    class Other(Block):
        def forward(self, hidden_states, *args, **kwargs):
            return super().forward(hidden_states, *args, **kwargs) * 2

    model = ltx()
    for block, cls in zip(model.transformer_blocks, (Same, Other), strict=True):
        block.__class__ = cls
    stock = forward(model)
    report = oxiwarp.patch(model, cpu_kernels=True)
    status = {row.module_class.rpartition(".")[2]: row.status for row in report}
    assert status["Same"] == "replaced" and status["Other"] == "left"
    assert torch.allclose(forward(model), stock, atol=1e-5) and ran.count("ltx.block") == 1
    assert oxiwarp.unpatch(model) == report.replaced and type(model.transformer_blocks[0]) is Same


def test_report_of_inner_norms():
    """A patched block does not call its norm modules, because its kernels compute the norms.

    For each of these norms, the report of `patch` says that the norm is called only if the block runs its
    original method.
    """
    model, report = patched()
    reasons = {row.reason for row in report if row.op == "rms_norm"}
    assert reasons == {"used where ltx.block runs its own", "used where ltx.attention runs its own"}
    assert "left to Inductor under torch.compile: layer_norm by itself" in str(report)
    _, report = patched(skip=["LTXVideoTransformerBlock", "LTXVideoAttnProcessor"])
    assert {row.reason for row in report if row.op == "rms_norm"} == {""}
    block = ltx().transformer_blocks[0]
    report = oxiwarp.patch(block)
    assert {row.reason for row in report if row.op == "rms_norm"} == reasons
    _, report = patched(only="transformer_blocks.1*")
    assert report.names["transformer_blocks.1.norm1"] == "replaced"
    assert report.names["transformer_blocks.0.norm1"] == "left"


def test_hooks_inside(ran):
    """If a norm in a patched block has a hook, this block runs its original `forward`, so that the hook runs."""
    model, _ = patched()
    expected, seen = forward(model), []
    ran.clear()
    handles = [
        model.transformer_blocks[0].norm2.register_forward_hook(lambda *_: seen.append("norm2")),
        model.transformer_blocks[1].attn1.norm_q.register_forward_pre_hook(lambda *_: seen.append("norm_q")),
    ]
    assert torch.allclose(forward(model), expected, atol=1e-5)
    assert seen == ["norm2", "norm_q"] and ran.count("ltx.block") == 1 and ran.count("ltx.attention") == 3
    for handle in handles:
        handle.remove()
    assert torch.equal(forward(model), expected)


def test_hooks_around(ran):
    """Hooks on patched blocks, their attentions and their activations run in the same order as before
    `patch`."""
    model, seen = ltx(), []
    for part in (model.transformer_blocks[0], model.transformer_blocks[0].attn1, model.transformer_blocks[0].ff.net[0]):
        part.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    forward(model)
    stock = list(seen)
    oxiwarp.patch(model, cpu_kernels=True)
    seen.clear()
    forward(model)
    assert seen == stock and ran.count("ltx.block") == 2


@pytest.mark.parametrize("what", ["autocast", "float64", "subclass", "mixed", "no cpu_kernels"])
def test_calls_for_the_own_method(what, ran):
    """If the kernels do not support a call (e.g. in float64), a patched block returns the same bits as the
    unpatched block."""
    from torch.testing._internal.two_tensor import TwoTensor

    block, x = ltx().transformer_blocks[0], random((1, 6, 32), torch.float32, "cpu")
    inputs = [x, random((1, 4, 32), torch.float32, "cpu", seed=1), random((1, 1, 6 * 32), torch.float32, "cpu", seed=2)]
    if what == "float64":
        block, inputs = block.double(), [value.double() for value in inputs]
    elif what == "subclass":
        inputs = [TwoTensor(value, value) for value in inputs]
    elif what == "mixed":
        inputs[2] = inputs[2].bfloat16()
    call = lambda: block(*inputs)  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"):
        stock = call()
        oxiwarp.patch(block, cpu_kernels=what != "no cpu_kernels", only="*Block")
        y = call()
    unwrap = (lambda t: t.a) if what == "subclass" else (lambda t: t)
    assert torch.equal(unwrap(y), unwrap(stock)) and "ltx.block" not in ran


def test_copies_and_two_models():
    """A copy or pickle of a patched model is patched as well.

    `patch` on one model does not change another model.
    """
    import copy
    import pickle

    model, report = patched()
    expected, other = forward(model), ltx()
    stock = forward(other)
    assert not any(map(class_swap.is_replaced, other.modules()))
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(forward(made), expected) and oxiwarp.unpatch(made) == report.replaced
        assert torch.equal(forward(made), stock)
    fast = ltx()
    oxiwarp.patch(fast, mode="fast", cpu_kernels=True)
    assert torch.equal(forward(model), expected), "another mode in another model"
    assert {p._oxiwarp.mode for p in fast.modules() if isinstance(p, Block)} == {"fast"}


def test_processor_shared_by_two_modules():
    """If two attention modules share a processor, `patch` replaces it once, and `unpatch` restores it once."""
    model = ltx()
    shared = model.transformer_blocks[0].attn1.processor
    model.transformer_blocks[1].attn1.set_processor(shared)
    report = oxiwarp.patch(model, only="LTXVideoAttnProcessor")
    assert report.replaced == 3 and class_swap.is_replaced(shared) and oxiwarp.unpatch(model) == 3


def test_set_processor_afterwards():
    """A processor that the user sets after `patch` works, but is not patched. A second call of `patch` replaces it."""
    model, _ = patched()
    model.set_attn_processor(transformer_ltx.LTXVideoAttnProcessor())
    assert torch.allclose(forward(model), forward(ltx()), atol=1e-5)
    assert oxiwarp.patch(model, cpu_kernels=True).left == 0
