"""Small diffusion transformers with joint attention over text and image tokens.

`FAMILIES` contains each model with its inputs and the number of calls of each oxiwarp operator per denoising
step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from helpers import random
from torch import nn

BATCH, TEXT, IMAGE = 2, 5, 12


class Family(NamedTuple):
    """A model, its inputs, and the number of calls of each oxiwarp operator in one step."""

    make: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype, Any], dict[str, Any]]
    kernels: dict[str, int]
    bits: bool = True
    """True if mode "exact" promises the bits of the unpatched model on CUDA."""


def build(family, dtype=torch.float32, device="cpu"):
    """Return a small model with fixed random weights.

    Biases and norm weights are random too. If a kernel ignored a bias or weight, its result would be wrong.
    """
    model = family.make().requires_grad_(False)
    for seed, parameter in enumerate(model.parameters()):
        if parameter.dim() == 1:
            parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=seed, scale=0.3))
    return nn.Module.to(model, dtype).to(device).eval()


def step(family, model, dtype=torch.float32, device="cpu"):
    """Run one step of a model and return its results as a tuple of tensors."""
    found = model(**family.inputs(dtype, device), return_dict=False)
    return tuple(found)


def ran(operators):
    """Return the number of calls of each operator, without activations.

    Activations are left out, because they run in separate feed-forward modules.
    """
    return {name: n for name, n in operators.calls.items() if "activation" not in name}


def seeded(cls, **config):
    """Return a diffusers model of this configuration with the same weights each time."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    return getattr(diffusers, cls)(**config)


def flux():
    return seeded(
        "FluxTransformer2DModel",
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        in_channels=16,
        joint_attention_dim=24,
        pooled_projection_dim=20,
        axes_dims_rope=(8, 12, 12),
    )


def flux_inputs(dtype, device):
    return dict(
        hidden_states=random((BATCH, IMAGE, 16), dtype, device),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=1),
        pooled_projections=random((BATCH, 20), dtype, device, seed=2),
        timestep=torch.tensor([0.5, 0.25], device=device),
        img_ids=torch.arange(3.0 * IMAGE, device=device).view(IMAGE, 3),
        txt_ids=torch.zeros(TEXT, 3, device=device),
    )


def flux2():
    return seeded(
        "Flux2Transformer2DModel",
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        in_channels=16,
        joint_attention_dim=24,
        timestep_guidance_channels=16,
        axes_dims_rope=(8, 8, 8, 8),
    )


def flux2_inputs(dtype, device):
    return dict(
        hidden_states=random((BATCH, IMAGE, 16), dtype, device),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=1),
        timestep=torch.tensor([0.5, 0.25], device=device),
        guidance=torch.tensor([3.5, 3.5], device=device),
        img_ids=torch.arange(4.0 * IMAGE, device=device).view(IMAGE, 4),
        txt_ids=torch.zeros(TEXT, 4, device=device),
    )


def sd3(**config):
    return seeded(
        "SD3Transformer2DModel",
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=24,
        caption_projection_dim=64,
        pooled_projection_dim=20,
        pos_embed_max_size=8,
        **config,
    )


def sd35():
    return sd3(dual_attention_layers=(0,), qk_norm="rms_norm")


def sd3_inputs(dtype, device):
    return dict(
        hidden_states=random((BATCH, 4, 8, 6), dtype, device),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=1),
        pooled_projections=random((BATCH, 20), dtype, device, seed=2),
        timestep=torch.tensor([500.0, 250.0], device=device),
    )


def qwen_image(**config):
    return seeded(
        "QwenImageTransformer2DModel",
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=24,
        axes_dims_rope=(8, 12, 12),
        **config,
    )


def qwen_image_edit():
    return qwen_image(zero_cond_t=True)


def qwen_image_inputs(dtype, device):
    mask = torch.ones(BATCH, TEXT, dtype=torch.bool, device=device)
    mask[1, 3:] = False
    return dict(
        hidden_states=random((BATCH, IMAGE, 16), dtype, device),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=1),
        encoder_hidden_states_mask=mask,
        timestep=torch.tensor([0.5, 0.25], device=device),
        img_shapes=[[(1, 3, 4)]] * BATCH,
    )


def qwen_image_edit_inputs(dtype, device):
    """Return inputs for Qwen-Image-Edit: an output image and a source image.

    Tokens of the source image have a separate modulation.
    """
    return {**qwen_image_inputs(dtype, device), "img_shapes": [[(1, 3, 2), (1, 3, 2)]] * BATCH}


def hunyuan_video(**config):
    return seeded(
        "HunyuanVideoTransformer3DModel",
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=1,
        num_single_layers=2,
        num_refiner_layers=1,
        text_embed_dim=24,
        pooled_projection_dim=20,
        rope_axes_dim=(8, 12, 12),
        **config,
    )


def hunyuan_video_replace():
    return hunyuan_video(image_condition_type="token_replace")


def hunyuan_video_inputs(dtype, device):
    mask = torch.ones(BATCH, TEXT, dtype=torch.long, device=device)
    mask[1, 3:] = 0
    return dict(
        hidden_states=random((BATCH, 4, 2, 4, 6), dtype, device),
        timestep=torch.tensor([500, 250], device=device),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=1),
        encoder_attention_mask=mask,
        pooled_projections=random((BATCH, 20), dtype, device, seed=2),
        guidance=torch.tensor([6000.0, 6000.0], device=device),
    )


def ltx2(**config):
    return seeded(
        "LTX2VideoTransformer3DModel",
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=32,
        cross_attention_dim=64,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=16,
        audio_cross_attention_dim=32,
        num_layers=1,
        caption_channels=24,
        **config,
    )


def ltx23():
    return ltx2(
        rope_type="split",
        gated_attn=True,
        audio_gated_attn=True,
        cross_attn_mod=True,
        audio_cross_attn_mod=True,
        perturbed_attn=True,
    )


def ltx2_inputs(dtype, device):
    mask = torch.ones(BATCH, TEXT, device=device)
    mask[1, 3:] = 0
    return dict(
        hidden_states=random((BATCH, 12, 8), dtype, device),
        audio_hidden_states=random((BATCH, 7, 4), dtype, device, seed=1),
        encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=2),
        audio_encoder_hidden_states=random((BATCH, TEXT, 24), dtype, device, seed=3),
        timestep=torch.tensor([[500.0], [250.0]], device=device).expand(BATCH, 12),
        audio_timestep=torch.tensor([500.0, 250.0], device=device),
        sigma=torch.tensor([500.0, 250.0], device=device),
        encoder_attention_mask=mask,
        audio_encoder_attention_mask=mask,
        num_frames=2,
        height=2,
        width=3,
        audio_num_frames=7,
    )


# The number of calls of each operator is a sum, with one term per type of block. A block with two streams
# (text and image) has two modulated norms and two gated residuals per stream. In each stream, one operator
# computes the first gated residual together with the second norm. `qk_norm_rope_out` runs once per stream. At
# the end, each model has one more modulated norm.
FAMILIES = {
    "flux": Family(
        flux,
        flux_inputs,
        dict(ada_norm=2 + 2 + 1, gated_residual_ada_norm=2, gated_residual=2 + 2, qk_norm_rope_out=2, qk_norm_rope=2),
    ),
    "flux2": Family(
        flux2,
        flux2_inputs,
        dict(ada_norm=2 + 2 + 1, gated_residual_ada_norm=2, gated_residual=2 + 2, qk_norm_rope_out=2, qk_norm_rope=2),
    ),
    "sd3": Family(sd3, sd3_inputs, dict(ada_norm=4 + 1, gated_residual_ada_norm=3, gated_residual=3)),
    "sd3.5": Family(
        sd35,
        sd3_inputs,
        dict(
            ada_norm_pair=1,
            ada_norm=3 + 1,
            gated_residual_ada_norm=3,
            gated_residual=3 + 1,
            qk_norm_rope_out=4,
            qk_norm_rope=1,
        ),
    ),
    # The text refiner block of HunyuanVideo has two norms and two gated residuals. One operator computes the
    # first gated residual and the second norm.
    "hunyuan_video": Family(
        hunyuan_video,
        hunyuan_video_inputs,
        dict(
            layer_norm=1,
            ada_norm=2 + 2 + 1,
            gated_residual_ada_norm=2 + 1,
            gated_residual=2 + 2 + 1,
            qk_norm_rope_out=2,
            qk_norm_rope=2,
        ),
    ),
    "hunyuan_video_replace": Family(
        hunyuan_video_replace,
        hunyuan_video_inputs,
        dict(
            layer_norm=1,
            ada_norm=3 + 4 + 1,
            gated_residual_ada_norm=3 + 1,
            gated_residual=3 + 4 + 1,
            qk_norm_rope_out=2,
            qk_norm_rope=2,
        ),
    ),
    # LTX-2 has a video stream and an audio stream. Each stream has four norms: before self-attention, before
    # cross-attention to text, before cross-attention between video and audio, and before the feed-forward.
    # The third norm is modulated twice. For each norm except the first, one operator computes the norm and
    # the residual before it. Cross-attention normalizes queries and keys in separate calls. The last norms of
    # the model are also modulated.
    "ltx2": Family(
        ltx2,
        ltx2_inputs,
        dict(
            ada_norm=2 + 2 + 2,
            gated_residual_ada_norm=2 + 2 + 2,
            gated_residual=2,
            qk_norm_rope=2,
            qk_norm_rope_one=8,
        ),
    ),
    "ltx2.3": Family(
        ltx23,
        ltx2_inputs,
        dict(
            ada_norm=2 + 2 + 2,
            gated_residual_ada_norm=2 + 2 + 2,
            gated_residual=2,
            qk_norm_rope=2,
            qk_norm_rope_one=8,
        ),
        bits=False,  # torch's addcmul rotates half-split pairs with one rounding fewer
    ),
    "qwen_image": Family(
        qwen_image,
        qwen_image_inputs,
        dict(rms_norm=1, ada_norm=2 + 1, gated_residual_ada_norm=2, gated_residual=2, qk_norm_rope_out=2),
    ),
    "qwen_image_edit": Family(
        qwen_image_edit,
        qwen_image_edit_inputs,
        dict(rms_norm=1, ada_norm=2 + 1, gated_residual_ada_norm=2, gated_residual=2, qk_norm_rope_out=2),
    ),
}
