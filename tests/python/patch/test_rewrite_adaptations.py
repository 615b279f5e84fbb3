"""Tests of models that other libraries change, and whose methods `patch` rewrites from their source.

The changes are quantized linears, adapters, caches of block results, casts of the weights, and offloading. Each change
is made before and after `patch`. The other fusions of oxiwarp are tested with the same changes in test_patch_matrix.py.
"""

import contextlib
import functools
from collections import Counter

import every_diffusers_model
import every_transformers_model
import patch_changes_diffusers  # noqa: F401
import patch_changes_peft  # noqa: F401
import patch_changes_quantized  # noqa: F401
import pytest
import torch
from patch_changes import CHANGES, Change
from patch_changes_diffusers import CACHES
from patch_matrix import Subject, same
from patch_models import Model
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp
from oxiwarp.patching import named_parts
from oxiwarp.patching.class_swap import recipe_of
from oxiwarp.patching.rewrite.recipe import RewrittenRecipe

STEPS = {
    "before": "change patch {calls} reset own {calls} unpatch reset {calls} state undo call",
    "after": "patch change {calls} reset own {calls} unpatch reset {calls} state undo call",
}
"""Steps of a test. `own` patches the model again, so that each chain runs its original expression."""
HOOKS = "the norm has hooks"
PRODUCTS = {getattr(torch.ops.aten, name) for name in ("addmm", "bmm", "linear", "mm")}
STEPS_OF_CACHE = 4
"""Number of calls with a cache. Each cache of these tests gets its first hit in these calls."""


def case(found):
    """Return the model of a case of every_*_model.py in float32."""
    return Model(lambda: found.build(torch.float32)[0], lambda: found.build(torch.float32)[1], frozenset())


MODELS = {
    "z-image": case(every_diffusers_model.CASES["ZImageTransformer2DModel"]),
    "lumina2": case(every_diffusers_model.CASES["Lumina2Transformer2DModel"]),
    "cogview4": case(every_diffusers_model.CASES["CogView4Transformer2DModel"]),
    "kandinsky5": case(every_diffusers_model.CASES["Kandinsky5Transformer3DModel"]),
    "glm4": case(every_transformers_model.CASES["Glm4ForCausalLM"]),
}
REWRITTEN = {
    "z-image": "ZImageTransformerBlock",
    "lumina2": "Lumina2TransformerBlock",
    "cogview4": "CogView4TransformerBlock",
    "kandinsky5": "Kandinsky5TransformerDecoderBlock",
    "glm4": "Glm4DecoderLayer",
}
"""A class of each model whose `forward` is rewritten."""
PLAIN = Change(contextlib.nullcontext, ())


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in PRODUCTS
        return func(*args, **kwargs or {})


class Adapted(Subject):
    """A model under test that also records the matrix products of each call, and what ran after the step `patch`."""

    def __init__(self, row, name, patched):
        super().__init__(row, MODELS[name], patched)
        self.report, self.ran, self.products = None, None, []

    def patch(self, mode="exact"):
        self.mode = mode
        self.report = oxiwarp.patch(self.target, mode=mode, cpu_kernels=True)

    def own(self):
        if self.patched:
            self.ran, self.mode = self.report.ran(), None
            oxiwarp.patch(self.target)

    def reset(self):
        """Forget the results that a cache holds."""
        getattr(self.called, "reset", getattr(self.model, "_reset_stateful_cache", lambda: None))()

    def call(self):
        with Products() as products:
            made = super().call()
        self.products.append(products.count)
        return made


def counts(ran):
    """Return the number of kernels per operator, and the reasons why original code ran."""
    kernels, reasons = Counter(), Counter()
    for row in ran:
        kernels[row.op] += row.kernels
        reasons.update(row.fallbacks)
    return +kernels, reasons


@functools.cache
def plain(name):
    """Return the counts of one call of a patched model that nothing has changed, and its result without `patch`."""
    subject = Adapted(PLAIN, name, patched=True)
    right = subject.call()[0]
    subject.take("patch call own")
    parts = {type(part).__name__ for _, part in named_parts(subject.model) if type(recipe_of(part)) is RewrittenRecipe}
    assert REWRITTEN[name] in parts
    return counts(subject.ran), right


def check(row, name, order, calls=1, off=1e-5):
    """Take the steps of an order with an unpatched and a patched model, and compare the results.

    With kernels, the results may differ by `off` relative to the largest element: the kernel of a norm adds the terms
    of a sum in another order than torch's CPU kernel. If `off` is None, the change rounds activations to integers. Then
    the difference must be less than the error that the rounding causes. All results without kernels have equal bits.
    """
    stock, ours = Adapted(row, name, patched=False), Adapted(row, name, patched=True)
    steps = STEPS[order].format(calls="call " * calls)
    with stock.undoing:
        expected = stock.take(steps)
    with ours.undoing:
        found = ours.take(steps)
    for (step, mode, y), (_, _, x) in zip(found, expected, strict=True):
        if step == "state":
            assert row.leaves or y == x
        elif mode is None or off is not None:
            same(y[0], x[0], mode is None, off)
        else:
            right = plain(name)[1]
            for path, exact in right.items():
                if isinstance(exact, torch.Tensor):
                    assert mean_off(y[0][path], x[0][path]) <= mean_off(x[0][path], exact)
    assert ours.products == stock.products
    assert ours.warned <= stock.warned
    return ours


def mean_off(y, x):
    return (y.double() - x.double()).abs().mean()


def cells(rows):
    return [(change, name, order) for change, names in rows.items() for name in names.split() for order in STEPS]


LINEARS = "z-image lumina2 glm4"
WEIGHTS = {
    "torchao-int8": LINEARS,
    "torchao-float8": LINEARS,
    "torchao-int8-activations": LINEARS,
    "bitsandbytes-int8": LINEARS,
    "bitsandbytes-nf4": LINEARS,
    "gguf": "z-image lumina2",
    "lora": LINEARS,
    "two-loras": LINEARS,
    "dora": LINEARS,
    "layerwise-casting": "z-image lumina2",
    "layerwise-casting-of-all": "z-image lumina2",
    "group-offload-of-blocks": "z-image lumina2",
}
"""Changes that leave all chains of a model fused, with the models."""


@pytest.mark.parametrize(("change", "name", "order"), cells(WEIGHTS))
def test_fused(change, name, order):
    """With these changes, a patched model runs the same kernels as without them."""
    row = CHANGES[change]
    ours = check(row._replace(grad=False), name, order, off=None if row.off > 0.01 else 1e-5)
    assert counts(ours.ran) == plain(name)[0], str(ours.ran)


@pytest.mark.parametrize(("change", "name", "order"), cells({"group-offload-of-leaves": "z-image lumina2"}))
def test_offloaded_leaves(change, name, order):
    """If each module is offloaded by itself, hooks of the norms move their weights.

    A chain with such a norm runs its original expression. The sum before the norm still runs a kernel.
    """
    kernels, reasons = counts(check(CHANGES[change], name, order).ran)
    before = plain(name)[0]
    assert set(reasons - before[1]) <= {HOOKS, f"the sum by itself: {HOOKS}"} and reasons, reasons
    assert kernels["gated_residual"] >= before[0]["gated_residual"] and kernels.total() > 0


CACHED = {name: "cogview4 kandinsky5" for name in CACHES}


@pytest.mark.parametrize(("change", "name", "order"), cells(CACHED))
def test_caches(change, name, order):
    """A cache of diffusers skips the same blocks in a patched model. The blocks that run use kernels."""
    ours = check(CHANGES[change], name, order, calls=STEPS_OF_CACHE)
    first, *later = ours.products[:STEPS_OF_CACHE]
    print(change, name, ours.products, str(ours.ran))
    assert min(later) < first
