"""Tests that patched models have the gradients of unpatched models, in float32 on the CPU."""

import copy

import pytest
import torch

import oxiwarp

every_diffusers_model = pytest.importorskip("every_diffusers_model")
every_transformers_model = pytest.importorskip("every_transformers_model")

CASES = {**every_diffusers_model.cases(), **every_transformers_model.CASES}
UNTRAINED = {
    "AnyFlowFARTransformer3DModel": "flex attention has no gradient on the CPU",
    "Kandinsky6SRTransformer3DModel": "flex attention has no gradient on the CPU",
    "ReformerModelWithLMHead": "its evaluation mode has no gradient",
}
CORE = ("ErnieImageTransformer2DModel", "StableAudioDiTModel", "GPTJForCausalLM")
"""The models of the default run. ERNIE-Image is one of them, because it rotates the two columns of a pair by different
angles."""
ILL_CONDITIONED = {"Kandinsky3UNet": 0.1}
"""Relative errors that float32 gradients of the unpatched model have, compared with float64."""


def results(output):
    """Return all tensors of a model's output that have a gradient."""
    if isinstance(output, torch.Tensor):
        return [output] if output.requires_grad else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return [tensor for part in parts for tensor in results(part)]


def gradients(model, inputs):
    """Return the gradient of each parameter. The incoming gradients are random numbers."""
    outputs = results(model(**copy.deepcopy(inputs)))
    torch.manual_seed(0)
    torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name", [name if name in CORE else pytest.param(name, marks=pytest.mark.extra) for name in CASES]
)
def test_gradients(name):
    if name in UNTRAINED:
        pytest.skip(UNTRAINED[name])
    model, inputs = CASES[name].build(torch.float32)
    model.requires_grad_(True)
    patched = copy.deepcopy(model)
    oxiwarp.patch(patched, cpu_kernels=True, allow_empty=True)
    with torch.enable_grad():
        wanted, made = gradients(model, inputs), gradients(patched, inputs)
    assert made.keys() == wanted.keys()
    largest = max(own.norm() for own in wanted.values())
    for parameter, own in wanted.items():
        # The true gradient of some parameters is zero, and the computed one consists of rounding errors.
        error = (made[parameter] - own).norm() / torch.maximum(own.norm(), 1e-4 * largest)
        assert error < ILL_CONDITIONED.get(name, 0.01), f"{parameter}: relative error {error:.2g}"
