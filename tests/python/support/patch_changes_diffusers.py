"""Changes of a model by means of diffusers and accelerate, which test_patch_matrix.py combines with `patch`.

Each change is a generator function. Examples: enable a cache, offload the weights, cast the dtype, set
different attention processors.
"""

import contextlib
import functools

import pytest
import torch
from helpers import random
from patch_changes import TAKES_OUT, change
from torch.utils.checkpoint import checkpoint


def cache(model, make, context=lambda step: {}):
    """Enable a diffusers cache of block results, and call the model in a `cache_context`.

    `context` returns additional arguments of `cache_context` for a denoising step. The yielded function has a
    method `reset`, which starts again with the first step.
    """
    hooks = pytest.importorskip("diffusers.hooks")
    model.enable_cache(make(hooks))
    calls = []

    def call(**inputs):
        with model.cache_context("cond", **context(len(calls))):
            calls.append(1)
            return model(**inputs)

    def reset():
        calls.clear()
        model._reset_stateful_cache()

    call.reset = reset
    yield call
    model.disable_cache()


def sea_step(at):
    """Return the arguments of `cache_context` that SeaCache needs for a step."""
    return {"step_index": at, "num_inference_steps": 8, "sigma": 0.9 - at / 10}


CACHES = {
    "first-block-cache": lambda hooks: hooks.FirstBlockCacheConfig(threshold=0.1),
    "mag-cache": lambda hooks: hooks.MagCacheConfig(
        mag_ratios=[1.0] * 8, num_inference_steps=8, retention_ratio=0.1, max_skip_steps=2
    ),
    "taylor-seer": lambda hooks: hooks.TaylorSeerCacheConfig(
        cache_interval=2, disable_cache_before_step=1, taylor_factors_dtype=torch.float32
    ),
    "taylor-seer-lite": lambda hooks: hooks.TaylorSeerCacheConfig(
        cache_interval=2, disable_cache_before_step=1, taylor_factors_dtype=torch.float32, use_lite_mode=True
    ),
    # With these options, SeaCache skips only blocks of Wan. For other models, SeaCache would need a function
    # that finds the latents.
    "sea-cache": lambda hooks: hooks.SeaCacheConfig(threshold=9.0),
    "text-kv-cache": lambda hooks: hooks.TextKVCacheConfig(),
    "pyramid-attention-broadcast": lambda hooks: hooks.PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        cross_attention_block_skip_range=2,
        current_timestep_callback=lambda: 500,
    ),
}
WITHOUT_CACHES = tuple(f"-{name}" for name in ("sdxl", "sd15", "pixart", "dit", "sd3", "sd3.5"))
UNKNOWN_BLOCKS = ("-ltx2", "-ltx2.3")
UNKNOWN_TO = {
    "first-block-cache": (*UNKNOWN_BLOCKS, "-flux2", "-qwen_image", "-qwen_image_edit"),
    "mag-cache": UNKNOWN_BLOCKS,
    "sea-cache": UNKNOWN_BLOCKS,
}
for name, make in CACHES.items():
    kinds = ("diffusers", *WITHOUT_CACHES, *UNKNOWN_TO.get(name, ()))
    context = {"context": sea_step} if name == "sea-cache" else {}
    change(*kinds, name=name, kernels=None, bits=False, repeats=False)(functools.partial(cache, make=make, **context))


def casting(model, storage, options):
    model.enable_layerwise_casting(storage, torch.float32, **options)
    yield


change("diffusers", name="layerwise-casting")(
    functools.partial(casting, storage=torch.float8_e4m3fn, options={"skip_modules_pattern": None})
)
change("diffusers", name="layerwise-casting-of-all")(
    functools.partial(casting, storage=torch.bfloat16, options={"skip_modules_pattern": ()})
)


def group_offload(model, options):
    model.enable_group_offload(torch.device("cpu"), torch.device("cpu"), **options)
    yield


change("diffusers", "-dit", name="group-offload-of-leaves")(
    functools.partial(group_offload, options={"offload_type": "leaf_level"})
)
change("diffusers", "-dit", name="group-offload-of-blocks")(
    functools.partial(group_offload, options={"offload_type": "block_level", "num_blocks_per_group": 1})
)


@change("sd3", "sd3.5")
def forward_chunking(model):
    """Compute feed-forwards in chunks."""
    model.enable_forward_chunking(chunk_size=1, dim=1)
    yield
    model.disable_forward_chunking()


@change("diffusers", "-mochi", "-dit", "-sd3.5", "-ltx2", "-ltx2.3")
def projections_fused(model):
    model.fuse_qkv_projections()
    yield
    model.unfuse_qkv_projections()


@change("sdxl", "sd15", "pixart", orders=TAKES_OUT)
def default_processors(model):
    old = model.attn_processors
    model.set_default_attn_processor()
    yield
    model.set_attn_processor(old)


class Processor:
    """A user's attention processor that wraps the original processor."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, attn, hidden_states, *args, **kwargs):
        return self.inner(attn, hidden_states, *args, **kwargs)


@change("diffusers")
def processors_wrapped(model):
    old = [(module, module.processor) for module in model.modules() if hasattr(module, "processor")]
    for module, processor in old:
        module.processor = Processor(processor)
    yield
    for module, processor in old:
        module.processor = processor


def attention_backend(model, backend):
    dispatch = pytest.importorskip("diffusers.models.attention_dispatch")
    active, _ = dispatch._AttentionBackendRegistry.get_active_backend()
    # `set_attention_backend` also changes the active backend of the process. This context manager restores
    # the backend for other tests.
    with dispatch.attention_backend(active):
        model.set_attention_backend(backend)
        yield
        model.reset_attention_backend()


for backend in ("native", "_native_math"):
    change("diffusers", name=f"attention-backend-{backend.strip('_').replace('_', '-')}")(
        functools.partial(attention_backend, backend=backend)
    )


def gradient_checkpointing(model, use_reentrant):
    model.enable_gradient_checkpointing(functools.partial(checkpoint, use_reentrant=use_reentrant))
    yield model.train()
    model.disable_gradient_checkpointing()
    model.eval()


for word, use_reentrant in {"": False, "-reentrant": True}.items():
    kinds = ("diffusers", "-mochi") if use_reentrant else ("diffusers",)
    change(*kinds, name=f"block-checkpointing{word}", grad=True)(
        functools.partial(gradient_checkpointing, use_reentrant=use_reentrant)
    )


@change("ltx", "mochi", "cogvideox", "pixart", "dit", "flux", "flux2", "hunyuan_video", "qwen_image", "qwen_image_edit")
def layers_skipped(model):
    """Skip the feed-forward and attention of the first block."""
    hooks = pytest.importorskip("diffusers.hooks")
    hooks.apply_layer_skip(model, hooks.LayerSkipConfig(indices=[0], fqn="transformer_blocks"))
    yield


@change("sdxl", "sd15")
def free_u(model):
    model.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    yield
    model.disable_freeu()


@change("sdxl", "sd15", orders=TAKES_OUT)
def attention_slices(model):
    old = model.attn_processors
    model.set_attention_slice(1)
    yield
    model.set_attn_processor(old)


@change("sdxl", "sd15", orders=TAKES_OUT)
def ip_adapter(model):
    """Use IP-Adapter processors, which also attend over image tokens. Unlike other processors, they are modules."""
    processors = pytest.importorskip("diffusers.models.attention_processor")
    old, new = model.attn_processors, {}
    for seed, (name, processor) in enumerate(old.items()):
        new[name] = processor
        attn = model.get_submodule(name.removesuffix(".processor"))
        if "attn2" in name:
            new[name] = processors.IPAdapterAttnProcessor2_0(attn.inner_dim, 24, num_tokens=[3], scale=0.5)
            for parameter in new[name].requires_grad_(False).parameters():
                parameter.copy_(random(parameter.shape, torch.float32, "cpu", seed, 0.2))
    model.set_attn_processor(new)
    image = random((2, 1, 3, 24), torch.float32, "cpu", 5)

    def call(encoder_hidden_states, **inputs):
        return model(encoder_hidden_states=(encoder_hidden_states, [image]), **inputs)

    yield call
    model.set_attn_processor(old)


@change("flux")
def controlnet(model):
    """Pass ControlNet residuals to the blocks. One of these residuals has batch size 1, so the model must broadcast
    it.
    """
    residuals = [random((batch, 12, 64), torch.float32, "cpu", batch, 0.5) for batch in (2, 1)]
    yield lambda **inputs: model(
        **inputs, controlnet_block_samples=residuals[:1], controlnet_single_block_samples=residuals
    )


def accelerated(model, hook):
    """Add a hook of accelerate to every module. accelerate replaces the module's `forward` to call the hook."""
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(model, getattr(hooks, hook)(), append=True)
    for module in model.modules():
        hooks.add_hook_to_module(module, getattr(hooks, hook)(), append=True)
    yield
    hooks.remove_hook_from_module(model, recurse=True)


change(name="accelerate-hooks", grad=True)(functools.partial(accelerated, hook="ModelHook"))


@change("-ltx2", "-ltx2.3")  # accelerate rebuilds their output class from a single argument
def accelerate_offload(model):
    accelerate = pytest.importorskip("accelerate")
    accelerate.cpu_offload(model, "cpu")
    yield
    accelerate.hooks.remove_hook_from_module(model, recurse=True)


@change("-ltx2", "-ltx2.3", leaves=True)  # accelerate's wrapper keeps the method that the model had
def accelerate_wider_results(model):
    """Replace the model's `forward` as accelerate's `prepare` does."""
    operations = pytest.importorskip("accelerate.utils.operations")
    with contextlib.ExitStack() as undo:
        model.forward = operations.convert_outputs_to_fp32(model.forward)
        undo.callback(model.__dict__.pop, "forward")
        yield
