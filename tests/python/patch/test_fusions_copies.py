"""Tests of patched blocks with contiguous and non-contiguous inputs. Some of these blocks copy the code of
another model."""

import importlib

import pytest
import torch
from fused_checks import Operators
from helpers import random
from joint_models import BATCH, FAMILIES, IMAGE, TEXT, build, ran, step
from torch import nn

import oxiwarp

DIM = 64
AFTER = {"gated_residual_ada_norm": 2, "gated_residual": 2}
# Maps the name of a diffusers block, "module.Class", to its constructor arguments and to the kernels that one
# call of the block runs.
BLOCKS = {
    "transformer_flux.FluxTransformerBlock": ((DIM, 2, 32), AFTER),
    "transformer_bria_fibo.BriaFiboTransformerBlock": ((DIM, 2, 32), AFTER),
    "transformer_longcat_image.LongCatImageTransformerBlock": ((DIM, 2, 32), AFTER),
    "transformer_ovis_image.OvisImageTransformerBlock": ((DIM, 2, 32), AFTER),
    "transformer_longcat_image.LongCatImageSingleTransformerBlock": ((DIM, 2, 32), {"gated_residual": 1}),
    "transformer_hunyuan_video15.HunyuanVideo15TransformerBlock": ((2, 32, 4.0), AFTER),
    "transformer_sd3.SD3SingleTransformerBlock": (
        (DIM, 2, 32),
        {"gated_residual_ada_norm": 1, "gated_residual": 1},
    ),
}


def block(name):
    """Build a block with random biases, so that the result is wrong if a kernel omits a bias."""
    pytest.importorskip("diffusers")
    module, cls = name.split(".")
    torch.manual_seed(0)
    made = getattr(importlib.import_module(f"diffusers.models.transformers.{module}"), cls)(*BLOCKS[name][0])
    for seed, parameter in enumerate(made.requires_grad_(False).parameters()):
        if parameter.dim() == 1:
            parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.3))
    return made.eval()


def inputs(name, device, by_columns):
    """Return the arguments of a block: image tokens, an embedding and, for most blocks, text tokens.

    If `by_columns` is true, the last dimension of the image tokens is not contiguous.
    """
    image = random((BATCH, IMAGE, DIM), torch.float32, device)
    if by_columns:
        image = image.transpose(1, 2).contiguous().transpose(1, 2)
        assert image.stride(2) != 1
    given = dict(hidden_states=image, temb=random((BATCH, DIM), torch.float32, device, seed=2))
    if "SD3Single" not in name:
        given["encoder_hidden_states"] = random((BATCH, TEXT, DIM), torch.float32, device, seed=1)
    if "Hunyuan" in name:
        given["attention_mask"] = torch.ones(BATCH, TEXT, dtype=torch.bool, device=device)
    return given


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_block(name, by_columns, device):
    stock, ours = block(name).to(device), block(name).to(device)
    report = oxiwarp.patch(ours, cpu_kernels=True, only=f"*{name.split('.')[1]}")
    assert report.replaced == 1
    given = inputs(name, device, by_columns)
    expected = stock(**given)
    with Operators() as operators:
        got = ours(**given)
    assert ran(operators) == BLOCKS[name][1]
    for y, own in zip(got, expected, strict=True):
        torch.testing.assert_close(y, own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["AdaLayerNormZero", "AdaLayerNormContinuous", "SD35AdaLayerNormZeroX"])
def test_norm_by_columns(name, device):
    """A patched modulated norm matches the original module if the last dimension of its input is not contiguous."""
    normalization = pytest.importorskip("diffusers.models.normalization")
    torch.manual_seed(0)
    own: nn.Module = getattr(normalization, name)(*[DIM] * (2 if "Continuous" in name else 1)).to(device)
    given = inputs("", device, True)
    arguments = given["hidden_states"], given["temb"]
    call = (lambda: own(*arguments)) if "Continuous" in name else (lambda: own(arguments[0], emb=arguments[1]))
    expected = call()
    oxiwarp.patch(own, cpu_kernels=True)
    with Operators() as operators:
        got = call()
    assert sum(ran(operators).values()) == 1
    for y, stock in zip(got, expected, strict=True):
        torch.testing.assert_close(y, stock, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["norm2", "norm2_context"])
def test_sd3_hooks(name):
    """If the norm `norm2` or `norm2_context` of a patched SD3 block has a hook, the hook runs, and the block calls
    this norm.

    All other norms of both blocks are still computed together with the sums before them.
    """
    sd3 = FAMILIES["sd3"]
    stock, model = build(sd3), build(sd3)
    oxiwarp.patch(model, cpu_kernels=True)
    for each in (stock, model):
        each.transformer_blocks[0].get_submodule(name).register_forward_hook(lambda module, args, output: output * 0.5)
    with Operators() as operators:
        got = step(sd3, model)[0]
    torch.testing.assert_close(got, step(sd3, stock)[0], rtol=1e-5, atol=1e-5)
    assert ran(operators)["gated_residual_ada_norm"] == 2
