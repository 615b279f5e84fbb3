"""Workloads for `bench` with newer image and video models. The models have their published sizes, or small
sizes for tests.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .workload import Arguments, Workload, seeded

FEW_STEPS = 4
"""Number of denoising steps for the output that is compared.

It is small, because a step of these models takes seconds.
"""


def _qwen_image(small: bool) -> Any:
    from diffusers import QwenImageTransformer2DModel

    sizes: Arguments = dict(num_layers=2, num_attention_heads=2, attention_head_dim=16, axes_dims_rope=(4, 6, 6))
    sizes |= dict(in_channels=16, out_channels=4, joint_attention_dim=24)
    return QwenImageTransformer2DModel(**(sizes if small else {}))


def _qwen_image_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    side, prompt, config = (4, 6, model.config) if small else (64, 256, model.config)
    return dict(
        hidden_states=seeded(1, 1, side * side, config.in_channels).to(device, dtype),
        encoder_hidden_states=seeded(2, 1, prompt, config.joint_attention_dim).to(device, dtype),
        timestep=torch.full((1,), 1.0, device=device, dtype=dtype),
        img_shapes=[[(1, side, side)]],
        return_dict=False,
    )


class Batch(nn.Module):
    """Wrapper for the model Z-Image, because this model takes and returns lists of images.

    The wrapper takes and returns one tensor with a batch dimension instead of each list.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden_states: Tensor, timestep: Tensor, prompt: Tensor) -> tuple[Tensor]:
        """Return the velocity of each image, `[B, C, 1, H, W]`."""
        made = self.model(list(hidden_states), timestep, list(prompt), return_dict=False)[0]
        return (torch.stack(made),)


def _z_image(small: bool) -> nn.Module:
    from diffusers import ZImageTransformer2DModel

    sizes: Arguments = dict(n_layers=2, n_refiner_layers=1, dim=32, n_heads=2, n_kv_heads=2, cap_feat_dim=24)
    sizes |= dict(in_channels=4, axes_dims=[4, 6, 6], axes_lens=[256, 32, 32])
    return Batch(ZImageTransformer2DModel(**(sizes if small else {})))


def _z_image_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    side, prompt, config = (8, 6, model.model.config) if small else (128, 256, model.model.config)
    # The first call of `rope_embedder` computes the rotary tables on the CPU, which torch.compile cannot
    # trace. Therefore make the first call here, before compilation.
    model.model.rope_embedder(torch.zeros(1, 3, dtype=torch.int32, device=device))
    return dict(
        hidden_states=seeded(1, 1, config.in_channels, 1, side, side).to(device, dtype),
        timestep=torch.full((1,), 1.0, device=device, dtype=dtype),
        prompt=seeded(2, 1, prompt, config.cap_feat_dim).to(device, dtype),
    )


def _flux2(small: bool) -> Any:
    from diffusers import Flux2Transformer2DModel

    sizes: Arguments = dict(num_layers=1, num_single_layers=1, num_attention_heads=2, attention_head_dim=16)
    sizes |= dict(in_channels=8, joint_attention_dim=24, axes_dims_rope=(4, 4, 4, 4), timestep_guidance_channels=16)
    return Flux2Transformer2DModel(**(sizes if small else {}))


def _flux2_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    side, prompt, config = (4, 6, model.config) if small else (64, 512, model.config)
    image, text = torch.zeros(side, side, 4), torch.zeros(prompt, 4)
    image[..., 1], image[..., 2], text[:, 3] = (
        torch.arange(side)[:, None],
        torch.arange(side)[None],
        torch.arange(prompt),
    )
    return dict(
        hidden_states=seeded(1, 1, side * side, config.in_channels).to(device, dtype),
        encoder_hidden_states=seeded(2, 1, prompt, config.joint_attention_dim).to(device, dtype),
        timestep=torch.full((1,), 1.0, device=device, dtype=dtype),
        img_ids=image.view(-1, 4).to(device),
        txt_ids=text.to(device),
        guidance=torch.full((1,), 4.0, device=device, dtype=dtype),
        return_dict=False,
    )


def _hunyuan_video_15(small: bool) -> Any:
    from diffusers import HunyuanVideo15Transformer3DModel

    sizes: Arguments = dict(num_layers=2, num_refiner_layers=1, num_attention_heads=2, attention_head_dim=16)
    sizes |= dict(in_channels=9, out_channels=4, text_embed_dim=24, text_embed_2_dim=20, image_embed_dim=28)
    return HunyuanVideo15Transformer3DModel(task_type="t2v", **(sizes | dict(rope_axes_dim=(4, 6, 6)) if small else {}))


def _hunyuan_video_15_arguments(model: Any, small: bool, device: torch.device, dtype: torch.dtype) -> Arguments:
    frames, height, width = (2, 4, 6) if small else (31, 30, 53)  # of 121 frames of 480 x 848 pixels
    prompt, config = 6 if small else 256, model.config
    latents = seeded(1, 1, config.out_channels, frames, height, width)
    condition = torch.zeros(1, config.in_channels - config.out_channels, frames, height, width)  # text to video
    return dict(
        hidden_states=torch.cat([latents, condition], dim=1).to(device, dtype),
        timestep=torch.full((1,), 1000.0, device=device, dtype=dtype),
        encoder_hidden_states=seeded(2, 1, prompt, config.text_embed_dim).to(device, dtype),
        encoder_attention_mask=torch.ones(1, prompt, dtype=torch.bool, device=device),
        encoder_hidden_states_2=seeded(3, 1, prompt, config.text_embed_2_dim).to(device, dtype),
        encoder_attention_mask_2=torch.ones(1, prompt, dtype=torch.bool, device=device),
        image_embeds=torch.zeros(1, 4 if small else 729, config.image_embed_dim, device=device, dtype=dtype),
        return_dict=False,
    )


def _wan22(small: bool) -> Any:
    from diffusers import WanTransformer3DModel

    sizes: Arguments = dict(num_attention_heads=40, ffn_dim=13824, num_layers=40)  # one of the two experts of A14B
    if small:
        sizes = dict(num_attention_heads=2, attention_head_dim=16, ffn_dim=64, num_layers=2, text_dim=24, freq_dim=32)
    return WanTransformer3DModel(**sizes)


def recent(wan_arguments: Any) -> tuple[Workload, ...]:
    """Return the workloads of this file.

    `wan_arguments` is the function that creates the arguments of a step of Wan 2.1. The workloads for Wan 2.2
    use the same function, because Wan 2.2 takes the same arguments.
    """
    few: Any = dict(steps=FEW_STEPS, large=True)
    return (
        Workload("qwen-image", "Qwen-Image, 1024 x 1024, 4096 + 256 tokens", _qwen_image, _qwen_image_arguments,
                 sigma=1.0, **few),
        Workload("z-image", "Z-Image, 1024 x 1024, 4096 + 256 tokens", _z_image, _z_image_arguments, sigma=1.0, **few),
        Workload("flux2", "FLUX.2, 1024 x 1024, 4096 + 512 tokens", _flux2, _flux2_arguments, sigma=1.0, **few),
        Workload("hunyuan-video-1.5", "HunyuanVideo 1.5, 480p, 121 frames, 49290 tokens", _hunyuan_video_15,
                 _hunyuan_video_15_arguments, sigma=0, steps=1, large=True),
        Workload("wan2.2", "Wan 2.2 A14B, 480p, 81 frames, 32760 tokens", _wan22, wan_arguments, **few),
    )  # fmt: skip


__all__ = ["recent"]
