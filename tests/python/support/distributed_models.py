"""Diffusion transformers for distributed checks: small on the CPU, with the published widths on GPUs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from distributed import Place
from helpers import random
from torch import Tensor, nn


class Size(NamedTuple):
    """The configuration of a model and the sizes of its inputs."""

    config: dict[str, Any]
    video: tuple[int, int, int]
    """Number of frames, height and width: in tokens, or in latents if the model divides the video into
    patches."""
    text: int


class Family(NamedTuple):
    """A diffusers model: its class, a function that makes its inputs, and its sizes for the CPU and for GPUs."""

    cls: str
    inputs: Callable[[Size, Callable[..., Tensor]], dict[str, Any]]
    small: Size
    wide: Size

    def at(self, place: Place) -> Size:
        return self.wide if place.device.type == "cuda" else self.small


def build(name: str, place: Place, dtype: torch.dtype | None = None) -> nn.Module:
    """Return the model `name` with fixed random weights on the device of this rank.

    Each parameter has the dtype that it has after `from_pretrained`. For example, the parameters of some
    modules are in float32.
    """
    import diffusers

    family = FAMILIES[name]
    torch.manual_seed(0)
    with torch.device(place.device):
        model = getattr(diffusers, family.cls)(**family.at(place).config).eval().requires_grad_(False)
        kept = set(model._keep_in_fp32_modules or ())
        for path, parameter in model.named_parameters():
            # A parameter with equal elements is the weight of a norm, or a bias of zeros.
            if (parameter == parameter.flatten()[0]).all():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
            if not kept.intersection(path.split(".")):
                parameter.data = parameter.data.to(dtype or place.dtype)
    return model


def inputs(name: str, place: Place, dtype: torch.dtype | None = None, seed: int = 0) -> dict[str, Any]:
    """Return the arguments of one denoising step."""
    family = FAMILIES[name]

    def normal(*shape: int, at: int = 0) -> Tensor:
        return random(shape, dtype or place.dtype, "cpu", seed=10 * seed + at)

    made = {**family.inputs(family.at(place), normal), "return_dict": False}
    return {key: value.to(place.device) if isinstance(value, Tensor) else value for key, value in made.items()}


def ltx_inputs(size: Size, normal: Callable[..., Tensor]) -> dict[str, Any]:
    frames, height, width = size.video
    return dict(
        hidden_states=normal(2, frames * height * width, 128),
        encoder_hidden_states=normal(2, size.text, size.config["caption_channels"], at=1),
        timestep=torch.tensor([500.0, 20.0]),
        encoder_attention_mask=None,
        num_frames=frames,
        height=height,
        width=width,
    )


def flux_inputs(size: Size, normal: Callable[..., Tensor]) -> dict[str, Any]:
    config, (_, height, width) = size.config, size.video
    rows, columns = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    return dict(
        hidden_states=normal(2, height * width, config["in_channels"]),
        encoder_hidden_states=normal(2, size.text, config["joint_attention_dim"], at=1),
        pooled_projections=normal(2, config["pooled_projection_dim"], at=2),
        timestep=torch.tensor([0.5, 0.25]),
        img_ids=torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).flatten(0, 1),
        txt_ids=torch.zeros(size.text, 3),
    )


def wan_inputs(size: Size, normal: Callable[..., Tensor]) -> dict[str, Any]:
    return dict(
        hidden_states=normal(2, size.config["in_channels"], *size.video),
        encoder_hidden_states=normal(2, size.text, size.config["text_dim"], at=1),
        timestep=torch.tensor([500, 20]),
    )


def qwen_image_inputs(size: Size, normal: Callable[..., Tensor]) -> dict[str, Any]:
    _, height, width = size.video
    return dict(
        hidden_states=normal(2, height * width, size.config["in_channels"]),
        encoder_hidden_states=normal(2, size.text, size.config["joint_attention_dim"], at=1),
        timestep=torch.tensor([0.5, 0.25]),
        img_shapes=[[size.video]] * 2,
    )


# The wide models have the sizes of the published LTX-Video, FLUX.1, Wan 2.1 1.3B and Qwen-Image. The sizes
# are number of heads, head dimension, text width and feed-forward width. Each rank has at least 2048 image
# tokens. This is enough for `patch` to use `oxiwarp.attention`.
FAMILIES = {
    "ltx": Family(
        "LTXVideoTransformer3DModel",
        ltx_inputs,
        Size(
            dict(
                num_layers=2, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32, caption_channels=24
            ),
            (2, 3, 4),
            8,
        ),
        Size(dict(num_layers=2, caption_channels=4096), (4, 32, 32), 128),
    ),
    "flux": Family(
        "FluxTransformer2DModel",
        flux_inputs,
        Size(
            dict(
                num_layers=1, num_single_layers=2, num_attention_heads=2, attention_head_dim=32, in_channels=16,
                joint_attention_dim=24, pooled_projection_dim=20, axes_dims_rope=(8, 12, 12),
            ),
            (1, 3, 4),
            6,
        ),
        Size(
            dict(
                num_layers=1, num_single_layers=1, in_channels=64, joint_attention_dim=4096, pooled_projection_dim=768
            ),
            (1, 64, 64),
            512,
        ),
    ),
    "wan": Family(
        "WanTransformer3DModel",
        wan_inputs,
        Size(
            dict(
                num_layers=2, num_attention_heads=2, attention_head_dim=24, ffn_dim=64, text_dim=16, freq_dim=16,
                in_channels=4, out_channels=4, rope_max_seq_len=32,
            ),
            (2, 6, 4),
            7,
        ),
        Size(dict(num_layers=2, num_attention_heads=12, ffn_dim=8960, in_channels=16, text_dim=4096), (4, 64, 64), 512),
    ),
    "qwen_image": Family(
        "QwenImageTransformer2DModel",
        qwen_image_inputs,
        Size(
            dict(
                num_layers=1, num_attention_heads=2, attention_head_dim=32, in_channels=16, out_channels=4,
                joint_attention_dim=24, axes_dims_rope=(8, 12, 12),
            ),
            (1, 3, 4),
            6,
        ),
        Size(dict(num_layers=1, in_channels=64, joint_attention_dim=3584), (1, 64, 64), 128),
    ),
}  # fmt: skip
