"""Tests that a patched module's `forward` accepts the same positional and keyword arguments as the original
`forward`."""

import inspect
from collections import Counter

import pytest
import torch
from fused_checks import Operators
from helpers import random
from image_models import dit, dit_input, pixart, pixart_input, sdxl, sdxl_input
from joint_models import BATCH, FAMILIES, IMAGE, build
from models import ltx, ltx_input
from torch import nn
from video_models import cogvideox, cogvideox_input, mochi, mochi_input, wan, wan_input

import oxiwarp
from oxiwarp.patching.class_swap import base_of, is_replaced
from oxiwarp.patching.fusions import FUSIONS

VIDEO = {
    "ltx": (ltx, ltx_input),
    "wan": (wan, wan_input),
    "mochi": (mochi, mochi_input),
    "cogvideox": (cogvideox, cogvideox_input),
}
IMAGE_MODELS = {"sdxl": (sdxl, sdxl_input), "pixart": (pixart, pixart_input), "dit": (dit, dit_input)}
JOINT = ("flux", "flux2", "hunyuan_video", "qwen_image", "ltx2", "ltx2.3")


def model_and_inputs(name):
    """Return an unpatched model and inputs for it. With these inputs, all RoPE tables of the model have the
    same shape."""
    if name in VIDEO or name in IMAGE_MODELS:
        make, inputs = {**VIDEO, **IMAGE_MODELS}[name]
        return make(), inputs()
    inputs = FAMILIES[name].inputs(torch.float32, "cpu")
    if name == "qwen_image":  # Qwen-Image has one RoPE table for text and one for the image.
        inputs["encoder_hidden_states"] = random((BATCH, IMAGE, 24), torch.float32, "cpu", seed=1)
        inputs["encoder_hidden_states_mask"] = torch.ones(BATCH, IMAGE, dtype=torch.bool)
    return build(FAMILIES[name]), inputs


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi enables float32 autocast
@pytest.mark.parametrize("name", [*VIDEO, *JOINT])
def test_tables_in_one_tensor(name):
    """A patched attention processor accepts the RoPE tables cos and sin stacked in one tensor, as the
    original does."""
    model, inputs = model_and_inputs(name)
    stacked = []

    def stack(value):
        if isinstance(value, tuple) and len(value) == 2:
            stacked.append(torch.stack(value))
            return stacked[-1]
        return value

    def hook(module, args, kwargs):
        return tuple(map(stack, args)), {key: stack(value) for key, value in kwargs.items()}

    for module in model.modules():
        if hasattr(module, "processor"):
            module.register_forward_pre_hook(hook, with_kwargs=True)
    own = model(**{**inputs, "return_dict": False})[0]
    oxiwarp.patch(model, cpu_kernels=True)
    stacked.clear()
    with Operators() as operators:
        got = model(**{**inputs, "return_dict": False})[0]
    assert stacked and any(kernel.startswith("qk_norm_rope") for kernel in operators.calls)
    torch.testing.assert_close(got, own, rtol=1e-4, atol=1e-5)


def test_no_scale():
    """A patched attention processor accepts `scale=None` without a deprecation warning, as the original
    processor does."""
    processor = pytest.importorskip("diffusers.models.attention_processor")
    attn, x = processor.Attention(query_dim=32, heads=2, dim_head=16).eval(), random((2, 5, 32), torch.float32, "cpu")
    own = attn.processor(attn, x, scale=None), attn.processor(attn, x, None, None, None)
    oxiwarp.patch(attn)
    got = attn.processor(attn, x, scale=None), attn.processor(attn, x, None, None, None)
    assert all(map(torch.equal, got, own))


def test_processor_by_name():
    """A patched attention processor accepts the attention module as a keyword argument."""
    flux = pytest.importorskip("diffusers.models.transformers.transformer_flux")
    attn = flux.FluxAttention(query_dim=32, heads=2, dim_head=16, processor=flux.FluxAttnProcessor()).eval()
    x = random((2, 5, 32), torch.float32, "cpu")
    own = attn.processor(attn=attn, hidden_states=x)
    oxiwarp.patch(attn, cpu_kernels=True)
    with Operators() as operators:
        got = attn.processor(attn=attn, hidden_states=x)
    assert operators.calls
    torch.testing.assert_close(got, own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "argument"), [("LayerNorm", "input"), ("FP32LayerNorm", "inputs")])
def test_norms_by_name(name, argument):
    """A patched LayerNorm accepts its input as a keyword argument with the parameter name of the original
    `forward`.

    For any other keyword, it raises TypeError.
    """
    normalization = pytest.importorskip("diffusers.models.normalization")
    norm, x = getattr(normalization, name, nn.LayerNorm)(8), random((2, 8), torch.float32, "cpu")
    expected = norm(x)
    oxiwarp.patch(norm, cpu_kernels=True)
    assert torch.equal(norm(**{argument: x}), expected)
    for wrong in ({}, {"x": x}, {argument: x, "x": x}):
        with pytest.raises(TypeError, match="forward"):
            norm(**wrong)


def by_name(call):
    """Return the arguments of a call as keyword arguments. If the called function takes `*args`, return the
    arguments unchanged."""
    kinds = {name: call.signature.parameters[name].kind for name in call.arguments}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return call.args, call.kwargs
    named = {name: value for name, value in call.arguments.items() if kinds[name] != inspect.Parameter.VAR_KEYWORD}
    return (), {**named, **call.kwargs}


def by_place(call):
    """Return the arguments of a call as positional arguments, including defaults."""
    call.apply_defaults()
    return call.args, call.kwargs


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("form", [by_name, by_place])
@pytest.mark.parametrize("name", [*VIDEO, *JOINT, "sd3.5", "hunyuan_video_replace", *IMAGE_MODELS])
def test_arguments(name, form):
    """Every patched module except norms runs the same kernels for keyword arguments as for positional arguments."""
    model, inputs = model_and_inputs(name)
    oxiwarp.patch(model, cpu_kernels=True)
    with Operators() as expected:
        right = model(**{**inputs, "return_dict": False})[0]

    def hook(module, args, kwargs):
        method = base_of(module).forward.__get__(module)
        return form(inspect.signature(method).bind(*args, **kwargs))

    # Do not hook submodules that a patched block does not call. If such a submodule has a hook, the block
    # runs its original method. Do not hook LayerNorms either, because their original method runs if an
    # argument is passed by keyword.
    skipped = {path for fusion in FUSIONS.values() for path in fusion.skips}
    for path, module in model.named_modules():
        inner = isinstance(module, nn.LayerNorm) or any(f".{path}".endswith(f".{skip}") for skip in skipped)
        if is_replaced(module) and not inner:
            module.register_forward_pre_hook(hook, with_kwargs=True)
    with Operators() as operators:
        got = model(**{**inputs, "return_dict": False})[0]
    assert torch.equal(got, right)
    count = Counter(kernel.removesuffix("_out") for kernel in operators.calls.elements())
    assert count == Counter(kernel.removesuffix("_out") for kernel in expected.calls.elements())
