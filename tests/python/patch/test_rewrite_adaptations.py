"""Tests of rewritten models to which other libraries make changes. A rewritten model has methods whose source
code `patch` has rewritten.

A *change* is what another library does to a model: it quantizes linears, adds adapters, caches the results of
blocks, casts the weights, or offloads them. Each change is tested in two orders: before `patch`, and after
`patch`. test_patch_matrix.py tests the same changes with models in which `patch` replaces whole methods.
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
from patch_changes_diffusers import cache, sea_step
from patch_matrix import Subject, same
from patch_models import Model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import oxiwarp

STEPS = {
    "before": "change patch {calls} reset own {calls} unpatch reset {calls} undo call state",
    "after": "patch change {calls} reset own {calls} unpatch reset {calls} undo call state",
}
"""The steps of a test, by order. The step `own` patches the model again without kernels, so that it runs
its original expressions."""
HOOKS = "the norm has hooks"
PRODUCTS = {getattr(torch.ops.aten, name) for name in ("addmm", "bmm", "linear", "mm")}
STEPS_OF_CACHE = 4
"""Number of calls with a cache. In these calls, each cache of these tests reuses a result at least once."""
MODELS = {
    "z-image": ("every_diffusers_model", "ZImageTransformer2DModel", "ZImageTransformerBlock"),
    "lumina2": ("every_diffusers_model", "Lumina2Transformer2DModel", "Lumina2TransformerBlock"),
    "cogview4": ("every_diffusers_model", "CogView4Transformer2DModel", "CogView4TransformerBlock"),
    "nucleus": ("every_diffusers_model", "NucleusMoEImageTransformer2DModel-moe", "NucleusMoEImageTransformerBlock"),
    "glm4": ("every_transformers_model", "Glm4ForCausalLM", "Glm4DecoderLayer"),
}
"""Maps a model to its file, to the name of its entry in this file, and to a class whose `forward` is
rewritten."""
PLAIN = Change(contextlib.nullcontext, ())


@functools.cache
def built(name, dtype):
    """Return a model, and the arguments of its calls."""
    file, key, _ = MODELS[name]
    # Import this file only if needed. It imports all models of diffusers or transformers, which takes
    # seconds.
    return importlib.import_module(file).CASES[key].build(dtype)


def model(name, dtype, wide):
    """Return a model in `dtype`. If `wide` is true, the model computes in float32 with weights that are
    rounded to `dtype`.

    All calls get the same tensors, because one of the tested caches finds its entries by the address of the
    text tensor.
    """

    def make():
        made = copy.deepcopy(built(name, dtype)[0])
        return made.float() if wide else made

    def inputs():
        given = built(name, dtype)[1]
        return tree_map_only(torch.Tensor, widened, given) if wide else dict(given)

    return Model(make, inputs, frozenset())


def widened(x):
    return x.float() if x.is_floating_point() else x


class Products(TorchDispatchMode):
    """Dispatch mode that counts matrix multiplications."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in PRODUCTS
        return func(*args, **kwargs or {})


class Adapted(Subject):
    """A model under test. It also records what ran after the step `patch`.

    For a model with a cache of block results, it records the number of matrix multiplications of each call.
    """

    def __init__(self, row, name, patched, dtype=torch.float32, wide=False):
        super().__init__(row, model(name, dtype, wide), patched)
        self.report, self.ran, self.products = None, None, []

    def patch(self, mode="exact"):
        self.mode = mode
        self.report = oxiwarp.patch(self.target, mode=mode, cpu_kernels=True)

    def own(self):
        if self.patched:
            self.ran, self.mode = self.report.ran(), None
            oxiwarp.patch(self.target)

    def reset(self):
        """Delete the results that a cache holds."""
        getattr(self.called, "reset", lambda: None)()

    def call(self):
        if self.row.repeats:
            return super().call()
        with Products() as products:
            made = super().call()
        self.products.append(products.count)
        return made


def counts(ran):
    """Return the number of kernels per operator, and the number of calls of original code for each reason why
    no kernel ran."""
    kernels, reasons = Counter(), Counter()
    for row in ran:
        kernels[row.op] += row.kernels
        reasons.update(row.fallbacks)
    return +kernels, reasons


@functools.cache
def plain(name, dtype=torch.float32):
    """Call a model without any change. Return the result of `counts` for the patched model, and the output of
    the unpatched model.

    The rewritten methods must run kernels.
    """
    subject = Adapted(PLAIN, name, True, dtype)
    right = subject.call()[0]
    subject.take("patch call own")
    rows = [row for row in subject.ran if row.line and row.module_class.endswith(f".{MODELS[name][2]}")]
    assert sum(row.kernels for row in rows) > 0, str(subject.ran)
    return counts(subject.ran), right


def check(row, name, order, calls=1, rounds_activations=False, dtype=torch.float32):
    """Run the steps `STEPS[order]` on an unpatched and a patched model, and compare the results.

    Results that are computed without kernels must have equal bits. With kernels, float32 results may differ
    by 1e-5 of the largest element, because the norm kernel and torch's CPU kernel add in different orders. In
    bfloat16, the difference must be less than the rounding error of the unpatched model.

    Some libraries quantize not only the weights of linears, but also their inputs (activations): they round
    each activation to an integer. If two activations differ in their last bit, their integers may differ by
    1. For such a change, pass `rounds_activations=True`. The difference must then be less than the error that
    the rounding to integers causes in the unpatched model.
    """
    stock, ours = (Adapted(row, name, patched, dtype) for patched in (False, True))
    steps = STEPS[order].format(calls="call " * calls)
    with stock.undoing:
        expected = stock.take(steps)
    with ours.undoing:
        found = ours.take(steps)
    for (step, mode, y), (_, _, x) in zip(found, expected, strict=True):
        if step == "state":
            assert y == x
        elif mode is not None and rounds_activations:
            check_less_than_rounding(y[0], x[0], plain(name)[1])
        else:
            same(y[0], x[0], mode is None, 1e-5, functools.partial(in_float32, row, name, dtype))
    assert ours.products == stock.products
    assert ours.warned <= stock.warned
    return ours


def check_less_than_rounding(ours, stock, right):
    """Check that `patch` changes the results by less than the rounding of the dtype does.

    `stock` has the results of the unpatched model, `ours` those of the patched model, and `right` those of
    the unpatched model in float32.
    """
    for path, exact in right.items():
        if isinstance(exact, torch.Tensor):
            off, rounding = ((stock[path] - other[path]).abs().mean() for other in (ours, right))
            assert off < rounding, path


def in_float32(row, name, dtype):
    """Return the result of an unpatched float32 model after the change `row`. Its weights are rounded to
    `dtype`."""
    subject = Adapted(row, name, False, dtype, wide=True)
    with subject.undoing:
        return subject.take("change call")[0][-1][0]


def cells(rows):
    return [(change, name, order) for change, names in rows.items() for name in names.split() for order in STEPS]


LINEARS = "z-image lumina2 glm4"
FUSED = {
    "torchao-int8": LINEARS,
    "torchao-float8": LINEARS,
    "torchao-int8-activations": LINEARS,
    "bitsandbytes-int8": LINEARS,
    "bitsandbytes-nf4": LINEARS,
    "gguf": "z-image lumina2",
    "lora": LINEARS,
    "two-loras": "z-image",
    "dora": LINEARS,
    "layerwise-casting": "z-image lumina2",
    "layerwise-casting-of-all": "z-image lumina2",
    "group-offload-of-blocks": "z-image lumina2",
}
"""Changes with which a patched model still runs all its kernels, each with the models to test."""
ROUNDS_ACTIVATIONS = ("torchao-int8-activations", "bitsandbytes-int8")


@pytest.mark.parametrize(("change", "name", "order"), cells(FUSED))
def test_fused(change, name, order):
    """With each change in `FUSED`, a patched model runs the same kernels as without the change."""
    row = CHANGES[change]._replace(grad=False, kernels=None)
    ours = check(row, name, order, rounds_activations=change in ROUNDS_ACTIVATIONS)
    assert counts(ours.ran) == plain(name)[0], str(ours.ran)


@pytest.mark.parametrize("change", ["torchao-int8", "torchao-float8", "bitsandbytes-nf4", "gguf", "lora", "dora"])
def test_fused_in_bfloat16(change):
    """The kernels also run in bfloat16, although an adapter or the scales of a weight are in float32."""
    name = "z-image"
    ours = check(CHANGES[change]._replace(grad=False, kernels=None), name, "before", dtype=torch.bfloat16)
    assert counts(ours.ran) == plain(name, torch.bfloat16)[0], str(ours.ran)


@pytest.mark.parametrize("order", STEPS)
@pytest.mark.parametrize("name", ["z-image", "lumina2"])
def test_offloaded_leaves(name, order):
    """If each module is offloaded separately, each norm has a hook that moves the norm's weights.

    For a norm with a hook, the original expression runs. A gated sum before the norm is still computed by a
    kernel.
    """
    kernels, reasons = counts(check(CHANGES["group-offload-of-leaves"], name, order).ran)
    wanted, known = plain(name)[0]
    new = {reason.removeprefix("the sum by itself: ") for reason in reasons - known}
    assert new == {HOOKS}, reasons
    gated = ("gated_residual", "gated_residual_ada_norm")
    assert sum(kernels[op] for op in gated) >= sum(wanted[op] for op in gated)


def frames(model, args, inputs):
    """Return the latents of an image in the shape that SeaCache needs: channels, frames, rows and columns."""
    return [x[:, None] for x in inputs["hidden_states"]]


NOW = {"timestep": 0}


def clock(at):
    """Set the timestep of a denoising step. FasterCache skips work only at timesteps below 681."""
    NOW["timestep"] = 900 - 200 * at
    return {}


def cached(make, **options):
    """Return a change that enables a cache of diffusers."""
    make = contextlib.contextmanager(functools.partial(cache, make=make, **options))
    return Change(make, (), kernels=None, bits=False, repeats=False)


CACHED = {
    **{name: CHANGES[name] for name in ("first-block-cache", "mag-cache", "taylor-seer-lite")},
    "pyramid-attention-broadcast": CHANGES["pyramid-attention-broadcast"],
    "taylor-seer": cached(  # TaylorSeer's default settings match no module of CogView4.
        lambda hooks: hooks.TaylorSeerCacheConfig(
            cache_interval=2,
            disable_cache_before_step=2,
            taylor_factors_dtype=torch.float32,
            cache_identifiers=[r"transformer_blocks\.\d+\.attn1"],
        )
    ),
    "sea-cache": cached(
        lambda hooks: hooks.SeaCacheConfig(threshold=9.0, raw_vision_callback=frames), context=sea_step
    ),
    # `is_guidance_distilled=True` prevents that the cache calls the model with half of the batch. For such a
    # call, the cache would also have to split the argument of CogView4 that has one image size per batch
    # entry, but it does not.
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
"""Caches of diffusers, with options that work with CogView4."""


@pytest.mark.parametrize("order", STEPS)
@pytest.mark.parametrize("change", CACHED)
def test_caches(change, order):
    """In a patched model, a cache of diffusers skips the same blocks as in the unpatched model. All other
    blocks use kernels."""
    # diffusers supports the text cache only in this model.
    name = "nucleus" if change == "text-kv-cache" else "cogview4"
    check_hits(check(CACHED[change], name, order, calls=STEPS_OF_CACHE), name)


def check_hits(ours, name):
    """Check that a cache skipped some work after the first call. The patched blocks that were not skipped
    must still use their kernels."""
    first, *later = ours.products[:STEPS_OF_CACHE]
    assert min(later) < first, ours.products
    (kernels, reasons), (wanted, known) = counts(ours.ran), plain(name)[0]
    assert all(kernels[op] >= count for op, count in wanted.items()), str(ours.ran)
    assert set(reasons) <= set(known), str(ours.ran)


def cache_dit(model, blocks, pattern, checked, calibrator):
    """Enable a cache of cache-dit, with the options that cache-dit uses for the model's pipeline."""
    library = pytest.importorskip("cache_dit")
    adapter = library.BlockAdapter(
        transformer=model,
        blocks=getattr(model, blocks),
        forward_pattern=getattr(library.ForwardPattern, f"Pattern_{pattern}"),
        check_forward_pattern=checked,
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


BLOCKS = {
    # the blocks of Z-Image have an argument `x` instead of `hidden_states`
    "z-image": {"blocks": "layers", "pattern": 3, "checked": False},
    "lumina2": {"blocks": "layers", "pattern": 3, "checked": True},
    "cogview4": {"blocks": "transformer_blocks", "pattern": 0, "checked": True},
}
"""For each model: the attribute with its blocks, a pattern number, and a bool. cache-dit has numbered
patterns for the arguments and results of blocks. The bool is True if cache-dit compares the pattern with
the signature of `forward`."""


@pytest.mark.parametrize("order", STEPS)
@pytest.mark.parametrize("calibrator", [False, True], ids=["cached", "taylor"])
@pytest.mark.parametrize("name", BLOCKS)
def test_cache_dit(name, calibrator, order):
    """In a patched model, cache-dit skips the same blocks as in the unpatched model. All other blocks use
    kernels."""
    make = contextlib.contextmanager(functools.partial(cache_dit, **BLOCKS[name], calibrator=calibrator))
    row = Change(make, (), kernels=None, bits=False, repeats=False)
    check_hits(check(row, name, order, calls=STEPS_OF_CACHE), name)
