"""Tests of models that other libraries change, and whose methods `patch` rewrites from their source.

The changes are quantized linears, adapters, caches of block results, casts of the weights, and offloading. Each change
is made before and after `patch`. The other fusions of oxiwarp are tested with the same changes in test_patch_matrix.py.
"""

import contextlib
import copy
import functools
import importlib
from collections import Counter

import patch_changes_peft  # noqa: F401
import patch_changes_quantized  # noqa: F401
import pytest
import torch
from patch_changes import CHANGES, Change
from patch_changes_diffusers import cache
from patch_matrix import Subject, same
from patch_models import Model
from torch.utils._python_dispatch import TorchDispatchMode

import oxiwarp
from oxiwarp.patching import named_parts
from oxiwarp.patching.class_swap import recipe_of
from oxiwarp.patching.rewrite.recipe import RewrittenRecipe

STEPS = {
    "before": "change patch {calls} reset own {calls} unpatch reset {calls} undo call state",
    "after": "patch change {calls} reset own {calls} unpatch reset {calls} undo call state",
}
"""Steps of a test. `own` patches the model again, so that each chain runs its original expression."""
HOOKS = "the norm has hooks"
PRODUCTS = {getattr(torch.ops.aten, name) for name in ("addmm", "bmm", "linear", "mm")}
STEPS_OF_CACHE = 4
"""Number of calls with a cache. Each cache of these tests gets its first hit in these calls."""


MODELS = {
    "z-image": ("every_diffusers_model", "ZImageTransformer2DModel", "ZImageTransformerBlock"),
    "lumina2": ("every_diffusers_model", "Lumina2Transformer2DModel", "Lumina2TransformerBlock"),
    "cogview4": ("every_diffusers_model", "CogView4Transformer2DModel", "CogView4TransformerBlock"),
    "nucleus": (
        "every_diffusers_model",
        "NucleusMoEImageTransformer2DModel-moe",
        "NucleusMoEImageTransformerBlock",
    ),
    "glm4": ("every_transformers_model", "Glm4ForCausalLM", "Glm4DecoderLayer"),
}
"""For each model: the file and the name of its case, and a class whose `forward` is rewritten."""


@functools.cache
def built(name):
    """Return a model in float32, and the arguments of its calls."""
    file, key, _ = MODELS[name]
    # Importing this file imports all models of diffusers or transformers, which takes seconds.
    return importlib.import_module(file).CASES[key].build(torch.float32)


def model(name):
    # All calls get the same tensors, because the cache of text keys finds its entries by the address of the text.
    return Model(lambda: copy.deepcopy(built(name)[0]), lambda: dict(built(name)[1]), frozenset())


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
        super().__init__(row, model(name), patched)
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
    assert MODELS[name][2] in parts
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


def frames(model, args, inputs):
    """Return the latents of an image as SeaCache takes them: channels, frames, rows and columns."""
    return [x[:, None] for x in inputs["hidden_states"]]


def step(at):
    return {"step_index": at, "num_inference_steps": 8, "sigma": 0.9 - at / 10}


NOW = {"timestep": 0}


def clock(at):
    """Set the timestep of a step. FasterCache skips only timesteps below 681."""
    NOW["timestep"] = 900 - 200 * at
    return {}


def cached(make, **options):
    """Return a change that enables a cache of diffusers."""
    make = contextlib.contextmanager(functools.partial(cache, make=make, **options))
    return Change(make, (), kernels=None, bits=False, repeats=False)


CACHED = {
    **{name: CHANGES[name] for name in ("first-block-cache", "mag-cache", "taylor-seer-lite")},
    "pyramid-attention-broadcast": CHANGES["pyramid-attention-broadcast"],
    "taylor-seer": cached(
        lambda hooks: hooks.TaylorSeerCacheConfig(
            cache_interval=2,
            disable_cache_before_step=2,
            taylor_factors_dtype=torch.float32,
            cache_identifiers=[r".*transformer_blocks\.\d+\.(attn1|self_attention)"],
        )
    ),
    "sea-cache": cached(lambda hooks: hooks.SeaCacheConfig(threshold=9.0, raw_vision_callback=frames), context=step),
    # Without `is_guidance_distilled`, the cache calls the model with half of the batch. It does not split the image
    # sizes that CogView4 takes.
    "faster-cache": cached(
        lambda hooks: hooks.FasterCacheConfig(
            attention_weight_callback=lambda _: 0.3,
            current_timestep_callback=lambda: NOW["timestep"],
            is_guidance_distilled=True,
        ),
        context=clock,
    ),
    "text-kv-cache": CHANGES["text-kv-cache"],
}
"""Caches of diffusers. Options that name modules, and a callback for the latents, differ from those of other models."""


@pytest.mark.parametrize("order", STEPS)
@pytest.mark.parametrize("change", CACHED)
def test_caches(change, order):
    """A cache of diffusers skips the same blocks in a patched model. The blocks that run use kernels."""
    name = "nucleus" if change == "text-kv-cache" else "cogview4"  # diffusers supports this cache in one model
    check_hits(check(CACHED[change], name, order, calls=STEPS_OF_CACHE), name)


def check_hits(ours, name):
    """Check that a cache skipped some work in later calls, and that a patched model lost no kernels by the cache."""
    first, *later = ours.products[:STEPS_OF_CACHE]
    assert min(later) < first, ours.products
    (kernels, reasons), (wanted, known) = counts(ours.ran), plain(name)[0]
    assert all(kernels[op] >= count for op, count in wanted.items()), str(ours.ran)
    assert set(reasons) <= set(known), str(ours.ran)


def cache_dit(model, blocks, pattern, calibrator=None):
    """Enable a cache of cache-dit, as it does for the pipeline of a model."""
    library = pytest.importorskip("cache_dit")
    adapter = library.BlockAdapter(
        transformer=model,
        blocks=getattr(model, blocks),
        forward_pattern=getattr(library.ForwardPattern, f"Pattern_{pattern}"),
        check_forward_pattern=False,
    )
    config = library.DBCacheConfig(
        Fn_compute_blocks=1,
        Bn_compute_blocks=0,
        max_warmup_steps=2,
        residual_diff_threshold=0.5,
        num_inference_steps=STEPS_OF_CACHE,
    )
    made = library.TaylorSeerCalibratorConfig(taylorseer_order=1) if calibrator else None
    library.enable_cache(adapter, cache_config=config, calibrator_config=made)

    def call(**inputs):
        return model(**inputs)

    call.reset = functools.partial(library.refresh_context, model, num_inference_steps=STEPS_OF_CACHE)
    yield call
    library.disable_cache(model)


BLOCKS = {"z-image": ("layers", 3), "lumina2": ("layers", 3), "cogview4": ("transformer_blocks", 0)}
"""Name of the blocks of a model, and the number of cache-dit's pattern for their arguments and results."""


@pytest.mark.parametrize("order", STEPS)
@pytest.mark.parametrize("calibrator", [False, True], ids=["cached", "taylor"])
@pytest.mark.parametrize("name", BLOCKS)
def test_cache_dit(name, calibrator, order):
    """cache-dit skips the same blocks in a patched model. The blocks that run use kernels."""
    blocks, pattern = BLOCKS[name]
    make = contextlib.contextmanager(
        functools.partial(cache_dit, blocks=blocks, pattern=pattern, calibrator=calibrator)
    )
    row = Change(make, (), kernels=None, bits=False, repeats=False)
    check_hits(check(row, name, order, calls=STEPS_OF_CACHE), name)
