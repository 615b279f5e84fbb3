"""Models in which a replaced `forward` does not call some submodules, and functions that replace these
submodules."""

import copy
import functools

import pytest
import test_decoder
import test_fusions_copies
import torch
from image_models import dit, dit_input, pixart, pixart_input, sdxl, sdxl_input
from joint_models import FAMILIES, build
from models import ltx, ltx_input
from torch import nn
from video_models import cogvideox, cogvideox_input, mochi, mochi_input, vace, vace_input, wan, wan_input

from oxiwarp.patching.class_swap import recipe_of
from oxiwarp.patching.fusions import FUSIONS, FusedRecipe

pytest.importorskip("diffusers")
SINGLE = "transformer_sd3.SD3SingleTransformerBlock"


def packed():
    """Return a CogVideoX model in which one projection computes queries, keys and values."""
    model = cogvideox()
    model.fuse_qkv_projections()
    return model


MODELS = {
    "ltx": (ltx, ltx_input),
    "wan": (functools.partial(wan, cross_attn_norm=True), wan_input),
    "vace": (vace, vace_input),
    "mochi": (mochi, mochi_input),
    "cogvideox": (cogvideox, cogvideox_input),
    "cogvideox packed": (packed, cogvideox_input),
    "sdxl": (sdxl, sdxl_input),
    "pixart": (pixart, pixart_input),
    "dit": (dit, dit_input),
    "sd3 single": (
        lambda: test_fusions_copies.block(SINGLE),
        lambda: test_fusions_copies.inputs(SINGLE, "cpu", False),
    ),
    **{
        name: (functools.partial(build, family), functools.partial(family.inputs, torch.float32, "cpu"))
        for name, family in FAMILIES.items()
    },
    **{
        name: (functools.partial(test_decoder.build, name), lambda: {"input_ids": test_decoder.IDS, "use_cache": False})
        for name in ("Llama", "Gemma2", "Phi3")
    },
}


class Doubled(nn.Module):
    """A wrapper that doubles the result of a module and forwards its attributes."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        return self._modules["inner"] if name == "inner" else getattr(self._modules["inner"], name)

    def forward(self, *args, **kwargs):
        y = self.inner(*args, **kwargs)
        return (y[0] * 2, *y[1:]) if isinstance(y, tuple) else y * 2


class Adapted(nn.Module):
    """A wrapper that applies a tuned copy of a norm, as peft's `LNTuningConfig` does.

    The wrapper has no attributes of the norm, such as `weight`.
    """

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.tuned = copy.deepcopy(base_layer).requires_grad_(False)
        for parameter in self.tuned.parameters():
            parameter.add_(0.5)

    def forward(self, *args, **kwargs):
        return self.tuned(*args, **kwargs)


def fused_parts(model):
    """Return a dict of the submodules that the fusions of this model do not call. A fusion is a replacement
    for a `forward` method.

    A key is a pair: the fusion, and the path of the submodule in the fused module. A value is the dotted name
    of a module that uses the fusion.
    """
    found = {}
    for name, module in model.named_modules():
        for part in (module, module.__dict__.get("processor")):
            recipe = recipe_of(part)
            if type(recipe) is FusedRecipe:
                for path in FUSIONS[recipe.fusion].skips:
                    if has(module, path):
                        found.setdefault((recipe.fusion, path), name)
    return found


def has(module, path):
    try:
        return isinstance(module.get_submodule(path), nn.Module)
    except AttributeError:
        return False


def swap(module, path, change):
    """Replace a submodule by the result of `change(submodule)`. Return the old submodule."""
    parent, _, last = path.rpartition(".")
    old = module.get_submodule(path)
    setattr(module.get_submodule(parent), last, change(old))
    return old


def arguments(model, inputs, names):
    """Call the model once. Return the arguments of the first call of each module in `names`."""
    seen, handles = {}, []
    for name in names:
        hook = lambda _, *given, name=name: seen.setdefault(name, copy.deepcopy(given))  # noqa: E731
        handles.append(
            model.get_submodule(name).register_forward_pre_hook(
                lambda *x, hook=hook: hook(*x) and None, with_kwargs=True
            )
        )
    model(**inputs)
    for handle in handles:
        handle.remove()
    return seen


def results(module, given):
    args, kwargs = given
    y = module(*args, **kwargs)
    return [x for x in (y if isinstance(y, tuple) else (y,)) if isinstance(x, torch.Tensor)]


def close(got, own):
    for y, right in zip(got, own, strict=True):
        torch.testing.assert_close(y, right, rtol=1e-4, atol=3e-5 * right.abs().max().item())
