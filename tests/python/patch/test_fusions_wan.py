"""Tests of Wan, whose blocks and attention `patch` rewrites from their source."""

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
    """Return the operators of a model with `by` blocks: those of the blocks, and the modulated norm at the end."""
    of_blocks = {name: by * count for name, count in counts.items()}
    return of_blocks | {"ada_norm": of_blocks["ada_norm"] + 1} | others


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "cast"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wan(dtype, kept, device):
    """A patched Wan 2.1 model matches the unpatched model.

    The modulation table and the norms are either in float32, as after `from_pretrained`, or in the dtype of
    all other parameters.
    """

    def make(dtype, device):
        return wan(dtype, device, kept=kept, cross_attn_norm=True)

    check_model(make, wan_input, dtype, device, times(OF_A_BLOCK, 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wan_per_token(dtype, device):
    """A patched Wan 2.2 5B model matches the unpatched model. This model has one time embedding per token. The kernels
    add the modulation table to this embedding."""

    def make_input(dtype, device):
        return wan_input(dtype, device, per_token=True)

    for kept in (True, False):
        check_model(lambda *of: wan(*of, kept=kept), make_input, dtype, device, times(OF_A_BLOCK, 2))  # noqa: B023


def test_wan_without_norm2(device):
    """A patched Wan model whose blocks have no `norm2` matches the unpatched model. In these blocks, the
    cross-attention reads the residual stream directly."""
    check_model(lambda *of: wan(*of, cross_attn_norm=False), wan_input, torch.bfloat16, device, times(NO_NORM2, 2))


def test_wan_image_to_video(device):
    """A patched Wan image-to-video model matches the unpatched model. Image tokens have separate key and value
    projections, and a norm of their keys."""

    def make(dtype, device):
        return wan(dtype, device, cross_attn_norm=True, image_dim=20, added_kv_proj_dim=48)

    def make_input(dtype, device):
        return wan_input(dtype, device, image=5)

    check_model(make, make_input, torch.bfloat16, device, times(OF_A_BLOCK, 2, qk_norm_rope_one=6))


def test_wan_fused_projections(device):
    """A patched Wan model matches the unpatched model after `fuse_qkv_projections`. Query, key and value are then
    slices of one tensor."""

    def make(dtype, device):
        model = wan(dtype, device, cross_attn_norm=True)
        model.fuse_qkv_projections()
        return model

    check_model(make, wan_input, torch.bfloat16, device, times(OF_A_BLOCK, 2))


def test_vace(device):
    """A patched WanVACE model matches the unpatched model. WanVACE has additional blocks, whose results are added to
    the results of the main blocks."""
    for dtype in DTYPES:
        check_model(vace, vace_input, dtype, device, times(OF_A_BLOCK, 5))


def test_wan_compiled(device):
    for options, kept in ((dict(per_token=True), True), ({}, True), ({}, False)):
        model = wan(torch.bfloat16, device, kept=kept, cross_attn_norm=True)
        # Inductor computes the norms and rotations of queries and keys.
        expected = {name: count for name, count in times(OF_A_BLOCK, 2).items() if "qk_norm" not in name}
        check_compiled(model, wan_input(torch.bfloat16, device, **options), expected)


def test_wan_calls_that_run_the_own_method(device):
    """A hook on a norm is called, and only the chains with this norm run their original code."""
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
    assert calls["gated_residual_ada_norm"] == 3 and calls["gated_residual"] == 2
    for hook in hooks:
        hook.remove()
    assert counts(run(model, inputs)[1], OF_A_BLOCK) == times(OF_A_BLOCK, 2)


def test_wan_gradients(device):
    model = wan(torch.float32, device, cross_attn_norm=True).requires_grad_()
    check_gradients(model, wan_input(torch.float32, device), times(OF_A_BLOCK, 2))
