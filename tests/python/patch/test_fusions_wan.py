"""Tests of the rewritten blocks and attention of Wan."""

import pytest
import torch
from fused_checks import check_compiled, check_gradients, check_model, counts, run
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

    In the cross-attention, image tokens have separate key and value projections, and a third norm.
    """

    def make(dtype, device):
        return wan(dtype, device, cross_attn_norm=True, image_dim=20, added_kv_proj_dim=48)

    def make_input(dtype, device):
        return wan_input(dtype, device, image=5)

    check_model(make, make_input, torch.bfloat16, device, times(OF_A_BLOCK, 2, qk_norm_rope_one=6))


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


def test_variants():
    """`patch` rewrites the blocks and processors of Wan Animate and ChronoEdit, too."""
    from diffusers.models.transformers import transformer_chronoedit, transformer_wan_animate

    for module in (transformer_chronoedit, transformer_wan_animate):
        block = module.WanTransformerBlock(48, 64, 2, cross_attn_norm=True)
        report = oxiwarp.patch(block)
        assert report.names[""] == report.names["attn1.processor"] == "replaced", str(report)


def test_wan_compiled(device):
    """The compiled graph has the kernels of eager mode. The norms of the cross-attention, which have no rotary
    embedding, are the replaced norm modules.
    """
    kernels = times(OF_A_BLOCK, 2, qk_norm_rope_one=0, rms_norm=4)
    for options, kept in ((dict(per_token=True), True), ({}, True), ({}, False)):
        model = wan(torch.bfloat16, device, kept=kept, cross_attn_norm=True)
        check_compiled(model, wan_input(torch.bfloat16, device, **options), kernels)


def test_wan_hooks(device):
    """Hooks on the norms of a patched Wan model run. The model then calls these norms, and gives the results of the
    unpatched model with the same hooks.
    """
    models, inputs = [wan(torch.bfloat16, device, cross_attn_norm=True) for _ in range(2)], wan_input(torch.bfloat16)
    inputs = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    oxiwarp.patch(models[1], cpu_kernels=True)
    seen, found = [], []
    for model in models:
        hooks = [
            model.blocks[0].norm3.register_forward_hook(lambda *of: seen.append("norm3") or of[2] * 2),
            model.blocks[1].attn1.norm_q.register_forward_hook(lambda *of: seen.append("norm_q") or of[2] * 2),
        ]
        found.append(run(model, inputs)[0][0])
    assert seen == ["norm3", "norm_q"] * 2
    torch.testing.assert_close(*found, rtol=0.02, atol=0.02)
    for hook in hooks:
        hook.remove()
    after = run(models[1], inputs)
    assert counts(after[1], OF_A_BLOCK) == times(OF_A_BLOCK, 2) and not torch.equal(after[0][0], found[1])


def test_wan_another_norm(device):
    """A patched block gives the results of the unpatched block if its norm is of another class."""
    models, inputs = [wan(torch.float32, device) for _ in range(2)], wan_input(torch.float32, device)
    for model in models:
        model.blocks[0].norm1 = torch.nn.LayerNorm(48, eps=0.1, device=device).requires_grad_(False)
    oxiwarp.patch(models[1], cpu_kernels=True)
    torch.testing.assert_close(*(run(model, inputs)[0][0] for model in models), rtol=1e-5, atol=1e-5)


def test_wan_gradients(device):
    model = wan(torch.float32, device, cross_attn_norm=True).requires_grad_()
    check_gradients(model, wan_input(torch.float32, device), times(OF_A_BLOCK, 2))
