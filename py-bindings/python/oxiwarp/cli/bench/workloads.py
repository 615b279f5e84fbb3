"""The workloads of `bench`. The models have their real sizes, or small sizes for tests.

A workload is a model with the arguments of one step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .recent_models import recent
from .workload import Arguments, Workload, seeded


def _ltx(small: bool) -> Any:
    from diffusers import LTXVideoTransformer3DModel

    sizes = dict(
        num_layers=2, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, caption_channels=24
    )
    return LTXVideoTransformer3DModel(**(sizes if small else {}))


def _ltx_arguments(frames: int) -> Callable[[nn.Module, bool, torch.device, torch.dtype], Arguments]:
    def arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
        grid = (2, 3, 4) if small else ((frames - 1) // 8 + 1, 16, 24)  # of 512 x 768 pixels
        tokens, prompt = grid[0] * grid[1] * grid[2], 128
        return dict(
            hidden_states=seeded(1, 1, tokens, model.config.in_channels).expand(2, -1, -1).to(device, dtype),
            encoder_hidden_states=seeded(2, 2, prompt, model.config.caption_channels).to(device, dtype),
            timestep=torch.full((2,), 1000.0, device=device),
            encoder_attention_mask=torch.ones(2, prompt, device=device),
            num_frames=grid[0],
            height=grid[1],
            width=grid[2],
            return_dict=False,
        )

    return arguments


def _flux(small: bool) -> Any:
    from diffusers import FluxTransformer2DModel

    sizes: Arguments = dict(num_layers=1, num_single_layers=1, num_attention_heads=2, joint_attention_dim=32)
    sizes |= dict(attention_head_dim=16, axes_dims_rope=(4, 6, 6), pooled_projection_dim=16, in_channels=8)
    return FluxTransformer2DModel(guidance_embeds=True, **(sizes if small else {}))


def _flux_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    side, prompt, config = (4, 6, model.config) if small else (64, 512, model.config)
    image = torch.zeros(side, side, 3)
    image[..., 1], image[..., 2] = torch.arange(side)[:, None], torch.arange(side)[None]
    return dict(
        hidden_states=seeded(1, 1, side * side, config.in_channels).to(device, dtype),
        encoder_hidden_states=seeded(2, 1, prompt, config.joint_attention_dim).to(device, dtype),
        pooled_projections=seeded(3, 1, config.pooled_projection_dim).to(device, dtype),
        timestep=torch.full((1,), 1.0, device=device, dtype=dtype),
        img_ids=image.view(-1, 3).to(device, dtype),
        txt_ids=torch.zeros(prompt, 3, device=device, dtype=dtype),
        guidance=torch.full((1,), 3.5, device=device),
        return_dict=False,
    )


def _wan(small: bool) -> Any:
    from diffusers import WanTransformer3DModel

    sizes: Arguments = dict(num_attention_heads=12, ffn_dim=8960, num_layers=30)
    if small:
        sizes = dict(num_attention_heads=2, attention_head_dim=16, ffn_dim=64, num_layers=2, text_dim=24, freq_dim=32)
    return WanTransformer3DModel(**sizes)


def _wan_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    frames, height, width = (2, 4, 6) if small else (21, 60, 104)  # of 81 frames of 480 x 832 pixels
    return dict(
        hidden_states=seeded(1, 1, model.config.in_channels, frames, height, width).to(device, dtype),
        timestep=torch.full((1,), 1000.0, device=device),
        encoder_hidden_states=seeded(2, 1, 6 if small else 512, model.config.text_dim).to(device, dtype),
        return_dict=False,
    )


def _mochi(small: bool) -> Any:
    from diffusers import MochiTransformer3DModel

    sizes = dict(num_layers=2, num_attention_heads=2, attention_head_dim=8, pooled_projection_dim=16)
    sizes |= dict(text_embed_dim=16, time_embed_dim=4, in_channels=4, max_sequence_length=6)
    return MochiTransformer3DModel(**(sizes if small else {}))


def _mochi_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    frames, height, width = (2, 4, 4) if small else (7, 60, 106)  # of 37 frames of 480 x 848 pixels
    prompt = model.config.max_sequence_length
    return dict(
        hidden_states=seeded(1, 1, model.config.in_channels, frames, height, width).to(device, dtype),
        encoder_hidden_states=seeded(2, 1, prompt, model.config.text_embed_dim).to(device, dtype),
        timestep=torch.full((1,), 1000.0, device=device),
        encoder_attention_mask=torch.ones(1, prompt, dtype=torch.bool, device=device),
        return_dict=False,
    )


def _sdxl(small: bool) -> Any:
    from diffusers import UNet2DConditionModel

    common: Arguments = dict(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        use_linear_projection=True,
        addition_embed_type="text_time",
    )
    sizes: Arguments = dict(
        block_out_channels=(320, 640, 1280),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )
    if small:
        sizes = dict(
            block_out_channels=(8, 16, 16),
            transformer_layers_per_block=(1, 1, 1),
            attention_head_dim=(1, 2, 2),
            cross_attention_dim=16,
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=64,
            norm_num_groups=4,
            layers_per_block=1,
        )
    return UNet2DConditionModel(**common, **sizes)


def _sdxl_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    side, config = 8 if small else 128, model.config
    ids = 6 * config.addition_time_embed_dim
    pooled = config.projection_class_embeddings_input_dim - ids
    return dict(
        sample=seeded(1, 2, 4, side, side).to(device, dtype),
        timestep=torch.full((), 1000.0, device=device),
        encoder_hidden_states=seeded(2, 2, 77, config.cross_attention_dim).to(device, dtype),
        added_cond_kwargs=dict(
            text_embeds=seeded(3, 2, pooled).to(device, dtype),
            time_ids=torch.tensor([[1024.0, 1024.0, 0.0, 0.0, 1024.0, 1024.0]] * 2, device=device, dtype=dtype),
        ),
        return_dict=False,
    )


def _qwen3(small: bool) -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: Arguments = dict(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
    )
    if small:
        sizes |= dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2)
        sizes |= dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    return Qwen3ForCausalLM(Qwen3Config(**sizes))


def _prompt(model: Any, small: bool, device: torch.device, _: torch.dtype) -> Arguments:
    tokens, words = 12 if small else 8192, model.config.vocab_size
    ids = torch.randint(words, (1, tokens), generator=torch.Generator("cpu").manual_seed(1), device="cpu")
    return dict(input_ids=ids.to(device), use_cache=False, logits_to_keep=1, return_dict=False)


def _token(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    """Return the arguments of a step that decodes one token after a prompt.

    The KV cache in the arguments contains the prompt and one decoded token, as if a step had already run. Before each
    step, the function `_forget` removes this token, so that every step decodes the same token.
    """
    from transformers import DynamicCache

    tokens, cache = 11 if small else 1024, DynamicCache()
    prompt = dict(_prompt(model, small, device, dtype), use_cache=True, past_key_values=cache)
    ids = prompt["input_ids"][:, : tokens + 1]
    model(**{**prompt, "input_ids": ids})
    return dict(prompt, input_ids=ids[:, -1:], position_ids=torch.tensor([[tokens]], device=device))


def _forget(arguments: Arguments) -> None:
    """Remove the last token from the KV cache.

    The removal keeps the strides of the cache and does not synchronize with the GPU.
    """
    arguments["past_key_values"].crop(-1)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("ltx", "LTX-Video, 49 frames, 2 x 2688 tokens", _ltx, _ltx_arguments(49)),
        Workload("ltx161", "LTX-Video, 161 frames, 2 x 8064 tokens", _ltx, _ltx_arguments(161)),
        Workload("flux", "FLUX.1, 1024 x 1024, 4096 + 512 tokens", _flux, _flux_arguments, sigma=1.0),
        Workload("wan", "Wan 2.1 1.3B, 480p, 81 frames, 32760 tokens", _wan, _wan_arguments),
        Workload("mochi", "Mochi, 480p, 37 frames, 11130 tokens", _mochi, _mochi_arguments),
        Workload("sdxl", "SDXL UNet, 1024 x 1024, batch 2", _sdxl, _sdxl_arguments, state="sample"),
        Workload("qwen3", "Qwen3-8B, prompt of 8192 tokens", _qwen3, _prompt, state="input_ids", sigma=0, steps=1),
        Workload(
            "qwen3-decode",
            "Qwen3-8B, one token after 1024",
            _qwen3,
            _token,
            state="input_ids",
            sigma=0,
            steps=1,
            restore=_forget,
        ),
        *recent(_wan_arguments),
    )
}

__all__ = ["WORKLOADS", "Arguments", "Workload"]
