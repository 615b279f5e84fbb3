"""Tests of the ComfyUI node in examples/comfyui. A stub replaces the functions of ComfyUI's API that the
node uses."""

import importlib.util
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from checkout import ROOT
from helpers import random
from torch import nn

from oxiwarp.patching.class_swap import is_replaced

NODE = ROOT / "examples" / "comfyui" / "__init__.py"
SAMPLER_SAMPLE = "sampler_sample"

pytestmark = pytest.mark.skipif(not NODE.exists(), reason="no examples beside these tests, as in a bundle")


class RMSNorm(nn.RMSNorm):
    """A norm as in ComfyUI: the module has a list of functions that it applies to its weight in each call.

    If the GPU memory is small, ComfyUI uses such functions to apply a LoRA.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.weight_function, self.bias_function = [], []

    def forward(self, x):
        weight = self.weight
        for function in self.weight_function:
            weight = function(weight)
        return nn.functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class ModelPatcher:
    """A stub of `ModelPatcher`, the class of ComfyUI that holds a model and the wrappers around its sampler.

    All clones of an object share the model, but each clone has its own wrappers.
    """

    def __init__(self, model, wrappers=()):
        self.model, self.wrappers = model, {kind: dict(keyed) for kind, keyed in dict(wrappers).items()}

    def clone(self):
        return ModelPatcher(self.model, self.wrappers)

    def add_wrapper_with_key(self, kind, key, wrapper):
        keyed = self.wrappers.setdefault(kind, {})
        keyed[key] = [*keyed.get(key, ()), wrapper]

    def remove_wrappers_with_key(self, kind, key):
        self.wrappers.get(kind, {}).pop(key, None)

    def sample(self, sampler, *args):
        """Call `sampler` inside the wrappers, as ComfyUI's `CFGGuider.inner_sample` does."""
        call = sampler
        for wrappers in self.wrappers.get(SAMPLER_SAMPLE, {}).values():
            for wrapper in wrappers:
                call = lambda *args, inner=call, wrapper=wrapper: wrapper(inner, *args)  # noqa: E731
        return call(SimpleNamespace(inner_model=self.model), *args)


@pytest.fixture
def node(monkeypatch):
    comfy, extension = ModuleType("comfy"), ModuleType("comfy.patcher_extension")
    extension.WrappersMP = SimpleNamespace(SAMPLER_SAMPLE=SAMPLER_SAMPLE)
    monkeypatch.setitem(sys.modules, "comfy", comfy)
    monkeypatch.setitem(sys.modules, "comfy.patcher_extension", extension)
    spec = importlib.util.spec_from_file_location("comfyui_oxiwarp", NODE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def patcher():
    diffusion_model = nn.Sequential(RMSNorm(16), nn.Linear(16, 16), RMSNorm(16)).requires_grad_(False)
    return ModelPatcher(SimpleNamespace(diffusion_model=diffusion_model))


def test_inputs(node):
    """The node has the attributes that ComfyUI reads."""
    (cls,) = node.NODE_CLASS_MAPPINGS.values()
    assert set(node.NODE_DISPLAY_NAME_MAPPINGS) == set(node.NODE_CLASS_MAPPINGS)
    assert hasattr(cls, cls.FUNCTION) and cls.RETURN_TYPES == ("MODEL",) and cls.CATEGORY
    model, mode = (cls.INPUT_TYPES()["required"][name] for name in ("model", "mode"))
    assert model[0] == "MODEL" and mode[0] == ("exact", "fast")


def test_sampling(node, patcher, monkeypatch):
    """The node patches the model only while ComfyUI samples with it. The report of `patch` is logged only
    once."""
    (patched,) = node.OxiwarpPatch().add(patcher, "exact")
    model, x = patcher.model.diffusion_model, random((3, 16), torch.float32, "cpu")
    seen, said = [], []
    monkeypatch.setattr(logging, "info", lambda pattern, *values: said.append(pattern % values))

    def sampler(guider, sigmas, scale=1.0):
        seen.append([is_replaced(module) for module in guider.inner_model.diffusion_model])
        return guider.inner_model.diffusion_model(x) * scale

    expected = model(x)
    assert torch.allclose(patched.sample(sampler, None), expected, atol=1e-6)
    assert torch.allclose(patched.sample(sampler, None, 2.0), 2 * expected, atol=1e-6)
    assert seen == [[True, False, True]] * 2 and not any(map(is_replaced, model))
    assert len(said) == 1 and "2 modules replaced" in said[0]
    patcher.sample(sampler, None)  # the original, from which the patched object was cloned
    assert seen[-1] == [False, False, False]


def test_changed_weights(node, patcher):
    """If ComfyUI changes the weight of a module in each call, `patch` does not replace the `forward` of this
    module."""
    (patched,) = node.OxiwarpPatch().add(patcher, "exact")
    model = patcher.model.diffusion_model
    model[2].weight_function.append(lambda weight: 3 * weight)
    x = random((3, 16), torch.float32, "cpu")
    expected = model(x)
    result = patched.sample(lambda guider, sigmas: [*map(is_replaced, model), model(x)], None)
    assert result[:3] == [True, False, False] and torch.allclose(result[3], expected, atol=1e-6)


def test_nothing_to_replace_and_errors(node):
    """With the node, a model without norms samples as it does without the node.

    If the sampler raises an error, the model is unpatched afterwards.
    """
    (patched,) = node.OxiwarpPatch().add(ModelPatcher(SimpleNamespace(diffusion_model=nn.Linear(4, 4))), "fast")
    assert patched.sample(lambda guider, sigmas: "sampled", None) == "sampled"
    original = ModelPatcher(SimpleNamespace(diffusion_model=nn.Sequential(RMSNorm(16))))
    (patched,) = node.OxiwarpPatch().add(original, "exact")

    def interrupted(guider, sigmas):
        assert is_replaced(guider.inner_model.diffusion_model[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        patched.sample(interrupted, None)
    assert not is_replaced(original.model.diffusion_model[0])


def test_two_nodes(node, patcher):
    """If two oxiwarp nodes follow each other in a workflow, only the settings of the last node are used."""
    (first,) = node.OxiwarpPatch().add(patcher, "exact")
    (second,) = node.OxiwarpPatch().add(first, "fast")
    assert [wrapper.mode for wrapper in second.wrappers[SAMPLER_SAMPLE][node.KEY]] == ["fast"]
    assert [wrapper.mode for wrapper in first.wrappers[SAMPLER_SAMPLE][node.KEY]] == ["exact"]
