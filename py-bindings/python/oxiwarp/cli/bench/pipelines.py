"""Pipelines for the command `bench --pipeline`, which measures a whole pipeline call: text encoder, denoiser, scheduler
and VAE.

The modules of the pipelines have their published sizes, or small sizes for tests. The weights are random,
because the times do not depend on their values. Tokenizers are replaced by random token ids of the published
length, so no tokenizer files are necessary.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .workloads import WORKLOADS, Arguments

PROMPT = "a river at dawn"


@dataclass(frozen=True)
class PipelineKind:
    """Describes the pipeline of one model, such as LTX-Video: how to build it, and its usual `Size` (height, width,
    frames, steps). A measurement can use another `Size`.
    """

    name: str
    title: str
    build: Callable[[bool], Any]
    """Function that builds the pipeline.

    If its argument is True, it builds a small pipeline for tests. The modules are created on torch's default
    device.
    """
    size: "Size"
    small: "Size"
    multiple: int
    """Height and width must be multiples of this number.

    It is the spatial compression factor of the VAE, times the patch size of the denoiser.
    """
    frame_step: int | None = None
    """Temporal compression factor of the VAE: the number of frames that become one latent frame, or None for
    a picture.

    The first frame is compressed separately.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the pipeline call, for example the guidance scale."""


@dataclass(frozen=True)
class Size:
    """Size of the picture or video in pixels and frames, number of denoising steps, and batch size."""

    height: int
    width: int
    steps: int
    frames: int | None = None
    batch: int = 1


class RandomTokens:
    """Stands in for a tokenizer, so that no tokenizer files are necessary.

    A call returns random token ids. The text is the seed, so the same text always gives the same ids.
    """

    def __init__(self, vocabulary: int, length: int) -> None:
        self.vocabulary, self.model_max_length = vocabulary, length
        self.added_tokens_encoder: dict[str, int] = {}

    def __call__(self, text: str | Sequence[str], max_length: int | None = None, **_: Any) -> Any:
        """Return `input_ids` and `attention_mask`, with at most `model_max_length` tokens."""
        from transformers import BatchEncoding

        length = min(max_length or self.model_max_length, self.model_max_length)
        rows = [
            torch.randint(
                1, self.vocabulary, (length,), generator=torch.Generator("cpu").manual_seed(zlib.crc32(each.encode()))
            )
            for each in ([text] if isinstance(text, str) else text)
        ]
        ids = torch.stack(rows)
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def tokenize(self, _: str) -> list[str]:
        """Return an empty list. diffusers calls this method to search for textual inversion tokens."""
        return []


def check_folder(folder: str) -> None:
    """Raise ValueError unless `folder` contains a diffusers pipeline with a VAE."""
    index = Path(folder) / "model_index.json"
    if not index.is_file():
        raise ValueError(f"--weights {folder}: no file model_index.json, expected the folder of a diffusers pipeline")
    parts = json.loads(index.read_text())
    if not any(parts.get("vae") or ()):
        raise ValueError(f"--weights {folder}: {parts.get('_class_name')} has no VAE, so it makes no picture")


def from_folder(folder: str, dtype: torch.dtype) -> Any:
    """Load a pipeline with its weights from a local folder."""
    from diffusers import DiffusionPipeline

    return DiffusionPipeline.from_pretrained(folder, torch_dtype=dtype, local_files_only=True)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype during a `with` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _scheduler(kind: Callable[..., Any], **options: Any) -> Any:
    """Create a scheduler with float32 as default dtype and the CPU as default device.

    Some schedulers require this dtype and this device.
    """
    with default_dtype(torch.float32), torch.device("cpu"):
        return kind(**options)


def _t5(small: bool, width: int, vocabulary: int = 32128) -> Any:
    """Return the encoder of T5 v1.1 XXL. If `vocabulary` is not 32128, return the encoder of UMT5 XXL.

    If `small` is True, the encoder is small, and its hidden states have `width` columns.
    """
    from transformers import T5Config, T5EncoderModel, UMT5Config, UMT5EncoderModel

    sizes: Arguments = dict(d_model=4096, d_ff=10240, num_layers=24, num_heads=64, d_kv=64, vocab_size=vocabulary)
    if small:
        sizes |= dict(d_model=width, d_ff=32, num_layers=1, num_heads=2, d_kv=8, vocab_size=64)
    if vocabulary == 32128:
        return T5EncoderModel(T5Config(feed_forward_proj="gated-gelu", **sizes))
    return UMT5EncoderModel(UMT5Config(feed_forward_proj="gated-gelu", **sizes))


def _clip(projected: bool = False, **sizes: Any) -> Any:
    """Return a text encoder of CLIP. If `projected` is True, the encoder also applies a linear projection to
    the pooled state."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(hidden_act="gelu" if projected else "quick_gelu", **sizes)
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


CLIP_L: Arguments = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
CLIP_BIG_G: Arguments = dict(
    hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=20, projection_dim=1280
)
SMALL_CLIP: Arguments = dict(vocab_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)


def _picture_vae(small: bool, **options: Any) -> Any:
    """Return a VAE with the blocks that SDXL and FLUX.1 have in common. `options` has the arguments that
    differ between the two models."""
    from diffusers import AutoencoderKL

    sizes: Arguments = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2)
    if small:
        sizes = dict(block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4)
    blocks: Arguments = dict(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4)
    return AutoencoderKL(sample_size=1024, **blocks, **sizes, **options)


def _ltx_pipeline(small: bool) -> Any:
    from diffusers import AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXPipeline

    vae = dict(
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
    )
    return LTXPipeline(
        scheduler=_scheduler(
            FlowMatchEulerDiscreteScheduler,
        ),
        vae=AutoencoderKLLTXVideo(**(vae if small else {})),
        text_encoder=_t5(small, 24),
        tokenizer=RandomTokens(64 if small else 32128, 128),
        transformer=WORKLOADS["ltx"].build(small),
    )


def _flux_pipeline(small: bool) -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    latents: Arguments = dict(latent_channels=2 if small else 16, scaling_factor=0.3611, shift_factor=0.1159)
    return FluxPipeline(
        scheduler=_scheduler(FlowMatchEulerDiscreteScheduler, shift=3.0, use_dynamic_shifting=True),
        vae=_picture_vae(small, use_quant_conv=False, use_post_quant_conv=False, **latents),
        text_encoder=_clip(**(dict(SMALL_CLIP, hidden_size=16) if small else CLIP_L)),
        tokenizer=RandomTokens(64 if small else 49408, 77),
        text_encoder_2=_t5(small, 32),
        tokenizer_2=RandomTokens(64 if small else 32128, 512),
        transformer=WORKLOADS["flux"].build(small),
    )


def _wan_pipeline(small: bool) -> Any:
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline

    sizes: Arguments = dict(base_dim=4, num_res_blocks=1) if small else {}
    vae: Any = AutoencoderKLWan(**sizes)
    return WanPipeline(
        scheduler=_scheduler(
            UniPCMultistepScheduler, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        vae=vae.float(),  # diffusers' example decodes in float32
        text_encoder=_t5(small, 24, vocabulary=256384),
        tokenizer=RandomTokens(64 if small else 256384, 512),
        transformer=WORKLOADS["wan"].build(small),
    )


def _sdxl_pipeline(small: bool) -> Any:
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

    second = dict(SMALL_CLIP, hidden_size=8, projection_dim=16) if small else CLIP_BIG_G
    return StableDiffusionXLPipeline(
        scheduler=_scheduler(EulerDiscreteScheduler, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        vae=_picture_vae(small, latent_channels=4, scaling_factor=0.13025, force_upcast=True),
        text_encoder=_clip(**(dict(SMALL_CLIP, hidden_size=8) if small else CLIP_L)),
        tokenizer=RandomTokens(64 if small else 49408, 77),
        text_encoder_2=_clip(projected=True, **second),
        tokenizer_2=RandomTokens(64 if small else 49408, 77),
        unet=WORKLOADS["sdxl"].build(small),
        add_watermarker=False,
    )


def _qwen_image_pipeline(small: bool) -> Any:
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text: Arguments = dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, vocab_size=152064)
    text |= dict(num_attention_heads=28, num_key_value_heads=4)
    sections = [16, 24, 24]
    vision: Arguments = {}
    denoiser: Arguments = {}
    vae: Arguments = {}
    if small:
        text = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, vocab_size=64)
        text |= dict(num_attention_heads=2, num_key_value_heads=1)
        sections = [2, 3, 3]
        vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32)
        denoiser = dict(num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32)
        denoiser["axes_dims_rope"] = (4, 6, 6)
        vae = dict(base_dim=4, num_res_blocks=1)
    text["rope_parameters"] = dict(rope_type="default", rope_theta=1e6, mrope_section=sections)
    special: Arguments = (
        dict(image_token_id=2, video_token_id=3, vision_start_token_id=4, vision_end_token_id=5) if small else {}
    )
    return QwenImagePipeline(
        scheduler=_scheduler(
            FlowMatchEulerDiscreteScheduler,
            base_image_seq_len=256,
            max_image_seq_len=8192,
            base_shift=0.5,
            max_shift=0.9,
            shift_terminal=0.02,
            time_shift_type="exponential",
            use_dynamic_shifting=True,
        ),
        vae=AutoencoderKLQwenImage(**vae),
        text_encoder=Qwen2_5_VLForConditionalGeneration(
            Qwen2_5_VLConfig(text_config=text, vision_config=vision, **special)
        ),
        tokenizer=RandomTokens(64 if small else 151000, 34 + 64),  # the prompt's template has 34 tokens
        transformer=QwenImageTransformer2DModel(**denoiser),
    )


PIPELINES = {
    kind.name: kind
    for kind in (
        PipelineKind(
            "ltx", "LTX-Video", _ltx_pipeline, Size(512, 768, 30, 49), Size(64, 64, 2, 9), multiple=32, frame_step=8
        ),
        PipelineKind("flux", "FLUX.1 [dev]", _flux_pipeline, Size(1024, 1024, 28), Size(32, 48, 2), multiple=16),
        PipelineKind(
            "wan", "Wan 2.1 1.3B", _wan_pipeline, Size(480, 832, 20, 81), Size(32, 48, 2, 5), multiple=16, frame_step=4
        ),
        PipelineKind("sdxl", "SDXL", _sdxl_pipeline, Size(1024, 1024, 30), Size(64, 64, 2), multiple=8),
        PipelineKind(
            "qwen-image",
            "Qwen-Image",
            _qwen_image_pipeline,
            Size(1024, 1024, 20),
            Size(32, 48, 2),
            multiple=16,
            options=dict(negative_prompt=" ", true_cfg_scale=4.0),
        ),
    )
}

__all__ = [
    "PIPELINES",
    "PROMPT",
    "PipelineKind",
    "RandomTokens",
    "Size",
    "check_folder",
    "default_dtype",
    "from_folder",
]
