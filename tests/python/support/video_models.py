"""Small Wan, Mochi and CogVideoX models of diffusers with random weights, and inputs for these models."""

import pytest
import torch
from helpers import random
from torch import nn


def build(make, dtype, device, seed=0):
    """Return a model with fixed random weights.

    Random values are added to parameters that are initialized with a constant. If a kernel ignored these
    parameters, its results would be wrong.
    """
    pytest.importorskip("diffusers")
    torch.manual_seed(seed)
    model = make().requires_grad_(False)
    for at, parameter in enumerate(model.parameters()):
        if (parameter == parameter.flatten()[0]).all():
            parameter.add_(random(parameter.shape, torch.float32, "cpu", seed=at, scale=0.3))
    return nn.Module.to(model, dtype).to(device).eval()


def wan(dtype=torch.float32, device="cpu", kept=True, **options):
    """Return a Wan 2.1 model. If `kept` is true, the modules that `from_pretrained` keeps in float32 are float32."""
    import diffusers

    config = dict(
        num_attention_heads=2, attention_head_dim=24, num_layers=2, ffn_dim=64, text_dim=16, freq_dim=16, in_channels=4,
        out_channels=4, rope_max_seq_len=32,
    )  # fmt: skip
    model = build(lambda: diffusers.WanTransformer3DModel(**config | options), dtype, device)
    for name, module in model.named_modules():
        wanted = {"rope", "time_embedder", "norm1", "norm2", "norm3"} & set(name.split("."))
        if kept and wanted:
            module.float()
        if kept and hasattr(module, "scale_shift_table"):
            module.scale_shift_table.data = module.scale_shift_table.data.float()
    return model


def wan_input(dtype=torch.float32, device="cpu", per_token=False, image=0):
    """Return the arguments of one denoising step of a Wan model.

    `per_token` gives one timestep per token, as in Wan 2.2 5B. `image` is the number of image tokens. Wan 2.1
    image-to-video adds image tokens to the text tokens.
    """
    inputs = dict(
        hidden_states=random((2, 4, 2, 6, 4), dtype, device),
        timestep=torch.tensor([500, 20], device=device),
        encoder_hidden_states=random((2, 512 if image else 7, 16), dtype, device, seed=1),
        return_dict=False,
    )
    if per_token:
        inputs["timestep"] = torch.arange(24, device=device).view(2, 12) * 40
    if image:
        inputs["encoder_hidden_states_image"] = random((2, image, 20), dtype, device, seed=2)
    return inputs


def mochi(dtype=torch.float32, device="cpu"):
    """Return a Mochi 1 model. Its last block does not update the text stream."""
    import diffusers

    return build(
        lambda: diffusers.MochiTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, num_layers=3, pooled_projection_dim=16, text_embed_dim=16,
            time_embed_dim=4, max_sequence_length=16,
        ),
        dtype,
        device,
    )  # fmt: skip


def mochi_input(dtype=torch.float32, device="cpu"):
    """Return inputs for Mochi with two prompts. The second prompt has padding before, between and after its tokens."""
    mask = torch.ones(2, 8, dtype=torch.bool, device=device)
    mask[1, [0, 3, 6, 7]] = False
    return dict(
        hidden_states=random((2, 12, 2, 6, 4), dtype, device),
        encoder_hidden_states=random((2, 8, 16), dtype, device, seed=1),
        timestep=torch.tensor([500, 20], device=device),
        encoder_attention_mask=mask,
        return_dict=False,
    )


def cogvideox(dtype=torch.float32, device="cpu", rotary=True):
    """Return a CogVideoX 5B model, or a CogVideoX 2B model if `rotary` is false."""
    import diffusers

    return build(
        lambda: diffusers.CogVideoXTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, num_layers=2, in_channels=4, out_channels=4, time_embed_dim=8,
            text_embed_dim=16, sample_width=4, sample_height=6, sample_frames=5, max_text_seq_length=8,
            use_rotary_positional_embeddings=rotary,
        ),
        dtype,
        device,
    )  # fmt: skip


def cogvideox_input(dtype=torch.float32, device="cpu", rotary=True):
    """Return inputs with rotary tables for 12 video tokens. Each angle is in two columns, as in the
    diffusers pipeline."""
    angles = random((12, 8), torch.float32, device, seed=2).repeat_interleave(2, dim=1)
    return dict(
        hidden_states=random((2, 2, 4, 6, 4), dtype, device),
        encoder_hidden_states=random((2, 8, 16), dtype, device, seed=1),
        timestep=torch.tensor([500, 20], device=device),
        image_rotary_emb=(angles.cos(), angles.sin()) if rotary else None,
        return_dict=False,
    )


def vace(dtype=torch.float32, device="cpu"):
    """Return a Wan VACE model. The results of a second stream of blocks are added to the first stream."""
    import diffusers

    config = dict(
        num_attention_heads=2, attention_head_dim=24, num_layers=3, ffn_dim=64, text_dim=16, freq_dim=16,
        in_channels=4, out_channels=4, rope_max_seq_len=32, vace_layers=[0, 2], vace_in_channels=6,
    )  # fmt: skip
    return build(lambda: diffusers.WanVACETransformer3DModel(**config), dtype, device)


def vace_input(dtype=torch.float32, device="cpu"):
    return dict(
        **wan_input(dtype, device),
        control_hidden_states=random((2, 6, 2, 6, 4), dtype, device, seed=3),
        control_hidden_states_scale=torch.ones(2, dtype=dtype, device=device),
    )
