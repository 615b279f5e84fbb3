"""Tests of the patched blocks and attention of Wan."""

import pytest
import torch
from fused_checks import check_compiled, check_gradients, check_model, check_unknown_source, counts, run
from helpers import DTYPES
from video_models import vace, vace_input, wan, wan_input

import oxiwarp

OF_A_BLOCK = {
    "ada_norm": 1,
    "gated_residual_ada_norm": 2,
    "gated_residual": 1,
    "qk_norm_rope": 1,
    "qk_norm_rope_one": 2,
}
NO_NORM2 = {"ada_norm": 1, "gated_residual_ada_norm": 1, "gated_residual": 2, "qk_norm_rope": 1, "qk_norm_rope_one": 2}


def times(counts, by, **others):
    """Return the expected number of calls of each operator in a model with `by` blocks.

    The numbers include the modulated norm (`ada_norm`) at the end of the model.
    """
    of_blocks = {name: by * count for name, count in counts.items()}
    return of_blocks | {"ada_norm": of_blocks["ada_norm"] + 1} | others


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "cast"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wan(dtype, kept, device):
    """A patched Wan 2.1 model matches the unpatched model.

    The modulation table and the norms either are in float32, as after `from_pretrained`, or have the dtype of
    all other parameters.
    """

    def make(dtype, device):
        return wan(dtype, device, kept=kept, cross_attn_norm=True)

    check_model(make, wan_input, dtype, device, times(OF_A_BLOCK, 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wan_per_token(dtype, device):
    """A patched Wan 2.2 5B model matches the unpatched model.

    This model has one time embedding per token. The kernels add the modulation table to the embedding.
    """

    def make_input(dtype, device):
        return wan_input(dtype, device, per_token=True)

    for kept in (True, False):
        check_model(lambda *of: wan(*of, kept=kept), make_input, dtype, device, times(OF_A_BLOCK, 2))  # noqa: B023


def test_wan_without_norm2(device):
    """A patched Wan model whose blocks have no `norm2` matches the unpatched model.

    In these blocks, the cross-attention reads the residual stream directly.
    """
    check_model(lambda *of: wan(*of, cross_attn_norm=False), wan_input, torch.bfloat16, device, times(NO_NORM2, 2))


def test_wan_image_to_video(device):
    """A patched Wan image-to-video model matches the unpatched model.

    In the cross-attention, image tokens have separate key and value projections. The patched attention calls
    the norm of the image keys as a module.
    """

    def make(dtype, device):
        return wan(dtype, device, cross_attn_norm=True, image_dim=20, added_kv_proj_dim=48)

    def make_input(dtype, device):
        return wan_input(dtype, device, image=5)

    check_model(make, make_input, torch.bfloat16, device, times(OF_A_BLOCK, 2, rms_norm=2))


def test_wan_fused_projections(device):
    """A patched Wan model matches the unpatched model after `fuse_qkv_projections`.

    Query, key and value are then slices of one tensor.
    """

    def make(dtype, device):
        model = wan(dtype, device, cross_attn_norm=True)
        model.fuse_qkv_projections()
        return model

    check_model(make, wan_input, torch.bfloat16, device, times(OF_A_BLOCK, 2))


def test_vace(device):
    """A patched WanVACE model matches the unpatched model.

    WanVACE has additional blocks, whose results are added to the results of the main blocks.
    """
    for dtype in DTYPES:
        check_model(vace, vace_input, dtype, device, times(OF_A_BLOCK, 5))


def test_variants_have_the_known_source():
    """`patch` replaces the blocks of Wan Animate and ChronoEdit, because their source code equals Wan's
    source code.

    It does not replace ChronoEdit's attention processor, because ChronoEdit computes its RoPE tables
    differently.
    """
    from diffusers.models.transformers import transformer_chronoedit, transformer_wan_animate

    from oxiwarp.patching import fusions

    for module in (transformer_chronoedit, transformer_wan_animate):
        block = module.WanTransformerBlock(48, 64, 2, cross_attn_norm=True)
        report = oxiwarp.patch(block)
        assert report.names[""] == "replaced", str(report)
    assert fusions.find(transformer_wan_animate.WanAttnProcessor)[0].name == "wan.attention"
    assert fusions.find(transformer_chronoedit.WanAttnProcessor) is None


def test_wan_compiled(device):
    for options, kept in ((dict(per_token=True), True), ({}, True), ({}, False)):
        model = wan(torch.bfloat16, device, kept=kept, cross_attn_norm=True)
        check_compiled(model, wan_input(torch.bfloat16, device, **options), times(OF_A_BLOCK, 2))


def test_wan_unknown_source(monkeypatch):
    from diffusers.models.transformers import transformer_wan as source

    classes = source.WanTransformerBlock, source.WanAttnProcessor
    check_unknown_source(monkeypatch, wan(), classes, ("wan.block", "wan.attention"))


def test_wan_calls_that_run_the_own_method(device):
    """A patched Wan block or attention runs its original method if one of its norms has a hook.

    `patch` skips a block whose norm is of an unsupported class.
    """
    model = wan(torch.bfloat16, device, cross_attn_norm=True)
    inputs = wan_input(torch.bfloat16, device)
    oxiwarp.patch(model, cpu_kernels=True)
    seen = []
    hooks = [
        model.blocks[0].norm3.register_forward_hook(lambda *of: seen.append("norm3")),
        model.blocks[1].attn1.norm_q.register_forward_hook(lambda *of: seen.append("norm_q")),
    ]
    _, calls = run(model, inputs)
    assert seen == ["norm3", "norm_q"]
    expected = times(OF_A_BLOCK, 1) | {"qk_norm_rope_one": 4, "rms_norm": 2}
    assert counts(calls, expected) == expected
    for hook in hooks:
        hook.remove()
    assert counts(run(model, inputs)[1], OF_A_BLOCK) == times(OF_A_BLOCK, 2)
    other = wan()
    other.blocks[0].norm1 = torch.nn.LayerNorm(48)
    blocks = [row for row in oxiwarp.patch(other) if row.module_class.endswith("WanTransformerBlock")]
    assert {row.reason for row in blocks} == {"", "norm1 or norm3 is no FP32LayerNorm without weight"}


def test_wan_gradients(device):
    model = wan(torch.float32, device, cross_attn_norm=True).requires_grad_()
    check_gradients(model, wan_input(torch.float32, device), times(OF_A_BLOCK, 2))
