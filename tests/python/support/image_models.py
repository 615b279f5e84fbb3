"""Small diffusers models with `BasicTransformerBlock`s and random weights, and inputs for these models."""

import torch
from helpers import random
from video_models import build


def sdxl(dtype=torch.float32, device="cpu", linear=True, **options):
    """Return a UNet with attention in its down, middle and up blocks.

    With `linear=False`, the projections around attention are convolutions, as in SD 1.5.
    """
    import diffusers

    config = dict(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=24, attention_head_dim=8, norm_num_groups=4, use_linear_projection=linear,
        transformer_layers_per_block=(1, 2) if linear else 1,
    )  # fmt: skip
    return build(lambda: diffusers.UNet2DConditionModel(**config | options), dtype, device)


def sdxl_input(dtype=torch.float32, device="cpu"):
    return dict(
        sample=random((2, 4, 8, 8), dtype, device),
        timestep=500,
        encoder_hidden_states=random((2, 7, 24), dtype, device, seed=1),
        return_dict=False,
    )


def pixart(dtype=torch.float32, device="cpu"):
    """Return a PixArt model. Its blocks have modulation tables, and no norm before the cross-attention."""
    import diffusers

    return build(
        lambda: diffusers.PixArtTransformer2DModel(
            num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2,
            cross_attention_dim=32, sample_size=8, caption_channels=24, num_embeds_ada_norm=1000,
        ),
        dtype,
        device,
    )  # fmt: skip


def pixart_input(dtype=torch.float32, device="cpu"):
    return dict(
        hidden_states=random((2, 4, 8, 8), dtype, device),
        encoder_hidden_states=random((2, 7, 24), dtype, device, seed=1),
        timestep=torch.tensor([500, 20], device=device),
        added_cond_kwargs={"resolution": None, "aspect_ratio": None},
        return_dict=False,
    )


def dit(dtype=torch.float32, device="cpu", **options):
    """Return a class-conditional DiT. In each block, one AdaLayerNormZero modulates attention and feed-forward."""
    import diffusers

    config = dict(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
        num_embeds_ada_norm=10,
    )  # fmt: skip
    return build(lambda: diffusers.DiTTransformer2DModel(**config | options), dtype, device)


def dit_input(dtype=torch.float32, device="cpu"):
    return dict(
        hidden_states=random((2, 4, 8, 8), dtype, device),
        timestep=torch.tensor([500, 20], device=device),
        class_labels=torch.tensor([3, 7], device=device),
        return_dict=False,
    )
