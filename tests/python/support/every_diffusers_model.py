"""Builds a tiny model with random weights of every transformer and UNet class of diffusers, and inputs for
one call.

`python -m support.every_diffusers_model [name ...]` calls each model once per dtype. It prints the names of
the models, the seconds that a call takes, and the shapes of the outputs.

Configurations and inputs are derived from the names of parameters. `SIZES` gives values for constructor
parameters, and `inputs_by_rule` makes the arguments of `forward`. The tables `CONFIG` and `INPUTS` contain
exceptions for classes and for variants of a class.
"""

import dataclasses
import inspect
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from typing import Any

import diffusers.models.transformers
import diffusers.models.unets
import diffusers.utils.logging
import torch
from diffusers.models.transformers import transformer_wan_animate_2
from torch import Tensor, nn

BATCH, TOKENS, IMAGE_TOKENS = 2, 8, 16
HEADS, HEAD_DIM, HIDDEN, WIDE, LAYERS = 2, 16, 32, 64, 2
TEXT, POOLED, CHANNELS, SIDE, FRAMES = 24, 20, 4, 8, 2
AXES = (4, 6, 6)  # Sizes of the axes of rotary position embeddings. Their sum is HEAD_DIM.

# Values of constructor parameters. Each entry has a value and the names of the parameters that get it.
SIZES: list[tuple[Any, str]] = [
    (
        LAYERS,
        """num_layers num_single_layers num_hidden_layers num_mmdit_layers num_single_dit_layers n_layers depth
        dit_depth nlayers num_visual_blocks mmdit_layers""",
    ),
    (1, "num_refiner_layers n_refiner_layers num_text_blocks perceiver_num_layers num_refiner_text_blocks"),
    (
        HEADS,
        """num_attention_heads num_heads n_heads nheads dit_heads n_kv_heads num_cross_attention_heads
        audio_num_attention_heads text_num_attention_heads num_key_value_attention_heads num_kv_heads
        num_key_value_heads text_num_key_value_heads face_encoder_num_heads block_num_heads""",
    ),
    (HEAD_DIM, "attention_head_dim head_dim cross_attention_head_dim audio_attention_head_dim linear_head_dim d_kv"),
    (CHANNELS, "in_channels in_visual_dim out_visual_dim latent_dim out_channels io_channels in_dim out_dim"),
    (CHANNELS, "audio_in_channels audio_out_channels latent_channels cond_in_channels"),
    (
        HIDDEN,
        """hidden_size dim model_dim d_model embed_dim token_dim dit_dim caption_projection_dim time_embed_dim
        time_dim freq_dim condition_dim adaln_dim time_embed_hidden_dim timestep_channels t_emb_dim
        timestep_guidance_channels timestep_embed_dim timestep_features_dim time_proj_dim fourier_embedding_dim
        face_encoder_hidden_dim adaln_lora_dim audio_cross_attention_dim time_step_dim""",
    ),
    (
        WIDE,
        """intermediate_size ffn_dim ffn_hidden_size ff_dim d_ff ff_inner_dim text_intermediate_size
        moe_intermediate_dim""",
    ),
    (
        TEXT,
        """joint_attention_dim text_embed_dim text_dim caption_channels cap_feat_dim cross_attention_dim text_in_dim
        in_text_dim text_hidden_dim context_in_dim encoder_hidden_size dit_text_dim llm_features_dim
        cross_attention_input_dim cond_token_dim""",
    ),
    (POOLED, "pooled_projection_dim text_emb_dim in_text_dim2 global_states_input_dim global_cond_dim"),
    (AXES, "axes_dims_rope axes_dims rope_axes_dim axes_dim_rope rope_dim_list rope_dim"),
    (SIDE, "sample_size sample_width sample_height"),
    (16, "pos_embed_max_size"),
    (64, "rope_max_seq_len"),
    (99, "vocab_size audio_vocab_size"),
    (4, "num_experts"),
]
SIZE_OF = {name: value for value, names in SIZES for name in names.split()}
# Constructor parameters for which the default None is kept. For them, None means that a feature is absent, or
# that the value of another parameter is used.
OPTIONAL_NONE = (
    "out_channels",
    "num_kv_heads",
    "num_key_value_heads",
    "rope_axes_dim",
    "pooled_projection_dim",
    "num_attention_heads",
)

CLASSES: dict[str, type[nn.Module]] = {
    name: value
    for package in (diffusers.models.transformers, diffusers.models.unets)
    for name, value in sorted(vars(package).items())
    if isinstance(value, type) and issubclass(value, nn.Module)
}


@dataclasses.dataclass(frozen=True)
class Given:
    """An input that is passed unchanged, even if it contains tuples of integers. Without `Given`, a tuple of
    integers is the shape of a random tensor."""

    value: Any


@dataclasses.dataclass(frozen=True)
class AsModel:
    """A tensor that is converted to the dtype of the model before it is passed."""

    value: Tensor


def grid(rows: int = 4, columns: int = 4, ids: int = 3) -> Tensor:
    """Return the position of each token of an image. A position consists of zero, the row and the column."""
    axes = torch.zeros(rows, columns, ids)
    axes[..., 1] = torch.arange(rows)[:, None]
    axes[..., 2] = torch.arange(columns)
    return axes.reshape(rows * columns, ids)


def mask(tokens: int = TOKENS, dtype: torch.dtype = torch.bool) -> Tensor:
    """Return a mask for a batch of texts. The second text ends with three masked tokens."""
    keep = torch.ones(BATCH, tokens, dtype=dtype)
    keep[1, -3:] = 0
    return keep


def rotary(tokens: int, head_dim: int = HEAD_DIM) -> tuple[Tensor, Tensor]:
    """Return cos and sin tables of random angles for diffusers' layout, which rotates adjacent pairs of
    columns."""
    angles = torch.randn(tokens, head_dim // 2).repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


TIMES = torch.tensor([100, 700])
UNIT_TIMES = torch.tensor([0.125, 0.75])
IMAGE = (BATCH, CHANNELS, SIDE, SIDE)
VIDEO = (BATCH, CHANNELS, FRAMES, SIDE, SIDE)
LATENTS = (BATCH, IMAGE_TOKENS, CHANNELS)
TEXTS = (BATCH, TOKENS, TEXT)
IMAGE_IDS, TEXT_IDS = grid(), torch.zeros(TOKENS, 3)
SIZES_OF_IMAGES = torch.tensor([[16.0, 16.0]] * BATCH)
SHAPES = Given([[(1, 4, 4)]] * BATCH)

NARROW_UNET = {
    "block_out_channels": (16, 32),
    "norm_num_groups": 8,
    "layers_per_block": 1,
    "attention_head_dim": 8,
    "sample_size": SIDE,
}


def unet(down: str, up: str, **changes: Any) -> dict[str, Any]:
    """Return the configuration of a UNet with two levels and the named block types."""
    names = {"down_block_types": tuple(down.split()), "up_block_types": tuple(up.split())}
    return {**NARROW_UNET, **names, **changes}


ADA = {"norm_type": "ada_norm_single", "norm_elementwise_affine": False, "num_embeds_ada_norm": 1000}
WITH_IMAGE = {"image_dim": 28, "added_kv_proj_dim": HIDDEN}
SPATIAL = {"in_channels": HIDDEN, "norm_num_groups": 8}
IMAGE_SIZES = {"original_size": SIZES_OF_IMAGES, "target_size": SIZES_OF_IMAGES, "crop_coords": torch.zeros(BATCH, 2)}
COGVIDEO = {"sample_frames": 5, "max_text_seq_length": TOKENS}
LTX = {"cross_attention_dim": HIDDEN, "rope_double_precision": False}
FRAMES_FIRST = (BATCH, FRAMES, CHANNELS, SIDE, SIDE)
FLOW_TIMES = {"timestep": TIMES[:, None].expand(-1, 2).float(), "r_timestep": TIMES[:, None].expand(-1, 2) / 2}

# Constructor arguments that cannot be derived from parameter names. The keys are "<class>" or
# "<class>-<variant>".
CONFIG: dict[str, dict[str, Any]] = {
    "AceStepTransformer1DModel": {"in_channels": 24, "audio_acoustic_hidden_dim": 8, "encoder_hidden_size": None},
    "AllegroTransformer3DModel": {"sample_frames": FRAMES, "cross_attention_dim": HIDDEN},
    "BriaFibo2Transformer2DModel": {
        "injection_layer_ids": (0, 1),
        "axes_lens": (64, 64, 64),
        "min_num_gist_tokens": 2,
        "max_num_gist_tokens": 4,
        "gist_step": 2,
        "gist_min_text_len": 2,
        "gist_max_text_len": 16,
    },
    "BriaFiboTransformer2DModel": {
        "text_encoder_dim": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "joint_attention_dim": 32,
    },
    "ChromaTransformer2DModel": {
        "approximator_num_channels": 16,
        "approximator_hidden_dim": 32,
        "approximator_layers": 1,
    },
    "CogVideoXTransformer3DModel": COGVIDEO,
    "CogVideoXTransformer3DModel-rotary": {"use_rotary_positional_embeddings": True, "ofs_embed_dim": 32},
    "CogView4Transformer2DModel": {"rope_axes_dim": (16, 16)},
    "ConsisIDTransformer3DModel": {
        **COGVIDEO,
        "is_train_face": True,
        "cross_attn_interval": 1,
        "cross_attn_dim_head": 8,
        "cross_attn_num_heads": 2,
        "LFE_id_dim": 16,
        "LFE_vit_dim": 16,
        "LFE_depth": 5,
        "LFE_dim_head": 8,
        "LFE_num_heads": 2,
        "LFE_num_id_token": 1,
        "LFE_num_querie": 2,
        "LFE_output_dim": 21,
        "LFE_ff_mult": 1,
        "LFE_num_scale": 1,
    },
    "Cosmos3OmniTransformer": {
        "latent_channel": 2,
        "latent_patch_size": 1,
        "patch_latent_dim": 2,
        "num_key_value_heads": 1,
        "rope_axes_dim": [2, 3, 3],
    },
    "CosmosTransformer3DModel": {
        "max_size": (4, 16, 16),
        "concat_padding_mask": False,
    },  # A padding mask would need torchvision.
    "DreamLiteTransformer2DModel": {**SPATIAL, "out_channels": HIDDEN},
    "DreamLiteUNetModel": {
        "block_out_channels": (16, 32, 32),
        "norm_num_groups": 8,
        "layers_per_block": 1,
        "attention_head_dim": 2,
    },
    "DualTransformer2DModel": SPATIAL,
    "EasyAnimateTransformer3DModel": {
        "patch_size": 2,
        "out_channels": CHANNELS,
        "sample_height": 60,
        "sample_width": 90,
    },
    "ErnieImageTransformer2DModel": {"rope_axes_dim": AXES},
    "Flux2Transformer2DModel": {"axes_dims_rope": (4, 4, 4, 4)},
    "Flux3Transformer2DModel": {"axes_dims_rope": (4, 4, 4, 4)},
    "FluxTransformer2DModel-guidance": {"guidance_embeds": True},
    "GlmImageTransformer2DModel": {"prior_vq_quantizer_codebook_size": 64},
    "HeliosTransformer3DModel": {"rope_dim": AXES},
    "HiDreamImageTransformer2DModel": {
        "patch_size": 2,
        "caption_channels": [TEXT, TEXT],
        "axes_dims_rope": (8, 4, 4),
        "max_resolution": (8, 8),
        "llama_layers": (0, 1),
        "num_single_layers": 1,
        "num_layers": 1,
        "force_inference_output": True,
    },
    "HunyuanDiT2DModel": {
        "patch_size": 2,
        "cross_attention_dim_t5": TEXT,
        "text_len": TOKENS,
        "text_len_t5": TOKENS,
    },
    "HunyuanImageTransformer2DModel": {"rope_axes_dim": (8, 8)},
    "HunyuanImageTransformer2DModel-meanflow": {"use_meanflow": True, "guidance_embeds": True},
    "HunyuanVideo15Transformer3DModel": {"text_embed_2_dim": 28, "image_embed_dim": 20, "task_type": "t2v"},
    "HunyuanVideo15Transformer3DModel-meanflow": {"use_meanflow": True},
    "HunyuanVideoFramepackTransformer3DModel": {
        "has_image_proj": True,
        "image_proj_dim": 20,
        "has_clean_x_embedder": True,
    },
    "Ideogram4Transformer2DModel": {"mrope_section": (4, 2, 2)},
    "Kandinsky6SRTransformer3DModel": {"out_visual_dim": 40},
    "Krea2Transformer2DModel": {"num_text_layers": 3, "num_layerwise_text_blocks": 1},
    "LTX2VideoTransformer3DModel": LTX,
    "LTXVideoTransformer3DModel": {"cross_attention_dim": HIDDEN},
    "LatteTransformer3DModel": {
        **ADA,
        "patch_size": 2,
        "video_length": FRAMES,
        "cross_attention_dim": HIDDEN,
        "out_channels": 8,
    },
    "LongCatAudioDiTTransformer": {"text_conv": False, "use_latent_condition": True},
    "Lumina2Transformer2DModel": {"multiple_of": 16, "axes_lens": (64, 64, 64), "num_kv_heads": 1},
    "LuminaNextDiT2DModel": {"multiple_of": 16, "num_kv_heads": 1},
    "MiniMaxH3Transformer3DModel": {"rope_freq_dim": 2},
    "MiniMaxMusic3Transformer1DModel": {"rotary_dim": 8},
    "OmniGenTransformer2DModel": {
        "pad_token_id": 0,
        "rope_scaling": {"long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
    },
    "PRXTransformer2DModel": {"axes_dim": [8, 8]},
    "PixArtTransformer2DModel": {"out_channels": 8, "cross_attention_dim": HIDDEN},
    "PriorTransformer": {"embedding_dim": TEXT, "num_embeddings": TOKENS},
    "SD3Transformer2DModel-dual": {"dual_attention_layers": (0,), "qk_norm": "rms_norm"},
    "SanaTransformer2DModel": {"cross_attention_dim": HIDDEN},
    "SanaTransformer2DModel-guidance": {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"},
    "SanaVideoTransformer3DModel": {"cross_attention_dim": HIDDEN},
    "SanaWMLTX2RefinerTransformer3DModel": LTX,
    "StableAudio3DiTModel": {"local_add_cond_dim": 5, "num_memory_tokens": 2},
    "StableAudioDiTModel": {"num_key_value_attention_heads": 1, "sample_size": 16, "cross_attention_dim": HIDDEN},
    "T5FilmDecoder": {"input_dims": 8, "targets_length": 12},
    "Transformer2DModel": SPATIAL,
    "TransformerTemporalModel": {**SPATIAL, "cross_attention_dim": None},
    "WanTransformer3DModel-i2v": WITH_IMAGE,
    "ChronoEditTransformer3DModel-i2v": WITH_IMAGE,
    "SkyReelsV2Transformer3DModel-i2v": WITH_IMAGE,
    "WanAnimateTransformer3DModel": {
        "in_channels": 12,
        "image_dim": 28,
        "motion_encoder_channel_sizes": {"4": 16, "8": 16, "16": 16},
        "motion_encoder_size": 16,
        "motion_style_dim": 8,
        "motion_dim": 4,
        "motion_encoder_dim": 16,
        "inject_face_latents_blocks": 2,
    },
    "WanAnimate2Transformer3DModel": {"text_len": TOKENS, "in_dim": 12},
    "WanVACETransformer3DModel": {"vace_layers": [0, 1], "vace_in_channels": 12},
    "ZImageTransformer2DModel": {"axes_lens": [256, 32, 32]},
    "I2VGenXLUNet": unet("CrossAttnDownBlock3D DownBlock3D", "UpBlock3D CrossAttnUpBlock3D", num_attention_heads=2),
    "Kandinsky3UNet": {
        "block_out_channels": (16, 32, 32, 32),
        "groups": 8,
        "time_embedding_dim": 32,
        "layers_per_block": 3,
        "attention_head_dim": 8,
        "encoder_hid_dim": 28,
    },
    "StableCascadeUNet": {
        "block_out_channels": (16, 32),
        "num_attention_heads": (2, 2),
        "conditioning_dim": 16,
        "clip_text_pooled_in_channels": POOLED,
        "down_num_layers_per_block": (1, 1),
        "up_num_layers_per_block": (1, 1),
        "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),) * 2,
    },
    "UNet1DModel": {"sample_size": 32, "in_channels": 2, "out_channels": 2, "extra_in_channels": 64},
    "UNet2DConditionModel": unet("CrossAttnDownBlock2D DownBlock2D", "UpBlock2D CrossAttnUpBlock2D"),
    "UNet2DModel": unet("DownBlock2D AttnDownBlock2D", "AttnUpBlock2D UpBlock2D"),
    "UNet3DConditionModel": unet("CrossAttnDownBlock3D DownBlock3D", "UpBlock3D CrossAttnUpBlock3D"),
    "UNetMotionModel": {
        **unet("CrossAttnDownBlockMotion DownBlockMotion", "UpBlockMotion CrossAttnUpBlockMotion"),
        "motion_num_attention_heads": 2,
    },
    "UNetSpatioTemporalConditionModel": {
        "block_out_channels": (32, 32),
        "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        "layers_per_block": 1,
        "num_attention_heads": (2, 2),
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 24,
        "num_frames": FRAMES,
    },
    "UVit2DModel": {
        "cond_embed_dim": POOLED,
        "micro_cond_encode_dim": 8,
        "micro_cond_embed_dim": 40,
        "codebook_size": 64,
        "in_channels": 32,
        "block_out_channels": 32,
        "num_res_blocks": 1,
    },
    "QwenImageTransformer2DModel-zero_cond_t": {"zero_cond_t": True},
    "SanaVideoTransformer3DModel-guidance": {"guidance_embeds": True},
    "HunyuanVideoTransformer3DModel-token_replace": {"image_condition_type": "token_replace"},
    "HunyuanVideoTransformer3DModel-no_guidance": {"guidance_embeds": False},
    "LTX2VideoTransformer3DModel-gated": {
        "gated_attn": True,
        "audio_gated_attn": True,
        "cross_attn_mod": True,
        "audio_cross_attn_mod": True,
        "rope_type": "split",
    },
    "LTXVideoTransformer3DModel-affine": {"norm_elementwise_affine": True},
    "MotifVideoTransformer3DModel-decoder": {"num_decoder_layers": 1},
    "MotifVideoTransformer3DModel-cross": {
        "enable_text_cross_attention_dual": True,
        "enable_text_cross_attention_single": True,
    },
    "SD3Transformer2DModel-qk_norm": {"qk_norm": "rms_norm"},
    "StableAudio3DiTModel-single": {"use_differential_attention": False},
    "LongCatAudioDiTTransformer-cross_norm": {"cross_attn_norm": True, "text_conv": True},
    "ZImageTransformer2DModel-no_qk_norm": {"qk_norm": False},
    "CosmosTransformer3DModel-no_learnable": {"extra_pos_embed_type": None},
    "EasyAnimateTransformer3DModel-text_norm": {"add_norm_text_encoder": True, "after_norm": True},
    "Kandinsky5Transformer3DModel-cond": {"visual_cond": True},
    "Flux2Transformer2DModel-no_guidance": {"guidance_embeds": False},
    "NucleusMoEImageTransformer2DModel-moe": {
        "num_key_value_heads": 1,
        "dense_moe_strategy": "all_moe",
        "capacity_factors": 2.0,
    },
    "UNet2DModel-scale_shift": {"resnet_time_scale_shift": "scale_shift"},
    "UNet2DConditionModel-linear": {"use_linear_projection": True, "resnet_time_scale_shift": "scale_shift"},
    "PRXTransformer2DModel-bottleneck": {"bottleneck_size": 8},
}
CONFIG["UNetMotionModel"].pop("attention_head_dim")
CONFIG["UNetMotionModel"]["num_attention_heads"] = 2

# Inputs that cannot be derived from parameter names. A tuple is the shape of a random tensor with the model's
# dtype.
INPUTS: dict[str, dict[str, Any]] = {
    "AceStepTransformer1DModel": {
        "hidden_states": (BATCH, 16, 8),
        "timestep": AsModel(UNIT_TIMES),
        "timestep_r": AsModel(UNIT_TIMES / 2),
        "encoder_hidden_states": (BATCH, TOKENS, HIDDEN),
        "context_latents": (BATCH, 16, 16),
    },
    "AnyFlowFARTransformer3DModel": {
        "hidden_states": (BATCH, 4, CHANNELS, SIDE, SIDE),
        "timestep": torch.full((BATCH, 4), 500.0),
        "r_timestep": torch.full((BATCH, 4), 250.0),
        "chunk_partition": [2, 2],
    },
    "AnyFlowTransformer3DModel": {"hidden_states": FRAMES_FIRST, **FLOW_TIMES},
    "BriaFibo2Transformer2DModel": {"encoder_hidden_states": (BATCH, 3, TOKENS, TEXT), "timestep": UNIT_TIMES},
    "BriaFiboTransformer2DModel": {
        "encoder_hidden_states": (BATCH, TOKENS, 32),
        "text_encoder_layers": [(BATCH, TOKENS, 16)] * 2,
    },
    "CogVideoXTransformer3DModel": {"hidden_states": FRAMES_FIRST},
    "CogVideoXTransformer3DModel-rotary": {"image_rotary_emb": rotary(32), "ofs": torch.tensor([2.0, 2.0])},
    "CogView3PlusTransformer2DModel": IMAGE_SIZES,
    "CogView4Transformer2DModel": IMAGE_SIZES,
    "ConsisIDTransformer3DModel": {
        "hidden_states": FRAMES_FIRST,
        "id_vit_hidden": [(BATCH, 2, 16)],
        "id_cond": (BATCH, 16),
    },
    "Cosmos3OmniTransformer": {
        "input_ids": torch.tensor([1, 2]),
        "text_indexes": torch.tensor([0, 1]),
        "position_ids": torch.arange(18).expand(3, -1),
        "und_len": 2,
        "sequence_length": 18,
        "vision_tokens": [(1, 2, 1, 4, 4)],
        "vision_token_shapes": Given([(1, 4, 4)]),
        "vision_sequence_indexes": torch.arange(2, 18),
        "vision_mse_loss_indexes": torch.arange(2, 18),
        "vision_timesteps": torch.ones(16),
        "vision_noisy_frame_indexes": [torch.tensor([0])],
    },
    "CosmosTransformer3DModel": {"fps": 30},
    "DiTTransformer2DModel": {"class_labels": torch.tensor([1, 7])},
    "DreamLiteTransformer2DModel": {"hidden_states": (BATCH, HIDDEN, 4, 4), "timestep": None},
    "DualTransformer2DModel": {
        "hidden_states": (BATCH, HIDDEN, 4, 4),
        "encoder_hidden_states": (BATCH, 77 + 257, TEXT),
        "timestep": None,
    },
    "ErnieImageTransformer2DModel": {"text_bth": TEXTS, "text_lens": torch.tensor([8, 5])},
    "Flux2Transformer2DModel": {"img_ids": grid(ids=4), "txt_ids": torch.zeros(TOKENS, 4)},
    "Flux3Transformer2DModel": {"img_ids": grid(ids=4), "txt_ids": torch.zeros(TOKENS, 4)},
    "GlmImageTransformer2DModel": {
        "target_size": SIZES_OF_IMAGES,
        "crop_coords": torch.zeros(BATCH, 2),
        "prior_token_id": torch.arange(32).reshape(BATCH, 16),
        "prior_token_drop": torch.zeros(BATCH, 16, dtype=torch.bool),
    },
    "HiDreamImageTransformer2DModel": {
        "hidden_states": IMAGE,
        "img_ids": None,
        "timesteps": TIMES,
        "encoder_hidden_states_t5": TEXTS,
        "encoder_hidden_states_llama3": (2, BATCH, TOKENS, TEXT),
        "pooled_embeds": (BATCH, POOLED),
    },
    "HunyuanDiT2DModel": {
        "timestep": AsModel(TIMES),
        "text_embedding_mask": mask(),
        "encoder_hidden_states_t5": TEXTS,
        "text_embedding_mask_t5": mask(),
        "image_meta_size": AsModel(torch.tensor([[1024.0, 1024, 16, 16, 0, 0]] * BATCH)),
        "style": torch.zeros(BATCH, dtype=torch.int64),
        "image_rotary_emb": rotary(16),
    },
    "HunyuanImageTransformer2DModel": {"timestep": AsModel(TIMES)},
    "HunyuanVideo15Transformer3DModel": {
        "timestep": AsModel(TIMES),
        "encoder_hidden_states_2": (BATCH, 4, 28),
        "encoder_attention_mask_2": torch.ones(BATCH, 4, dtype=torch.bool),
        "image_embeds": (BATCH, 3, 20),
    },
    "HunyuanVideoFramepackTransformer3DModel": {
        "image_embeds": (BATCH, 3, 20),
        "indices_latents": torch.arange(FRAMES).float(),
        "latents_clean": VIDEO,
        "indices_latents_clean": torch.arange(FRAMES).float(),
        "latents_history_2x": VIDEO,
        "indices_latents_history_2x": torch.arange(FRAMES).float(),
        "latents_history_4x": (BATCH, CHANNELS, 4, SIDE, SIDE),
        "indices_latents_history_4x": torch.arange(4).float(),
    },
    "Ideogram4Transformer2DModel": {
        "hidden_states": (BATCH, TOKENS + IMAGE_TOKENS, CHANNELS),
        "encoder_hidden_states": (BATCH, TOKENS + IMAGE_TOKENS, TEXT),
        "timestep": AsModel(UNIT_TIMES),
        "position_ids": torch.arange(24)[None, :, None].expand(BATCH, -1, 3),
        "segment_ids": torch.ones(BATCH, 24, dtype=torch.int64),
        "indicator": torch.tensor([[3] * TOKENS + [2] * IMAGE_TOKENS] * BATCH),
    },
    "JoyImageEditPlusTransformer3DModel": {
        "hidden_states": (1, 2, CHANNELS, 1, 2, 2),
        "encoder_hidden_states": (1, TOKENS, TEXT),
        "timestep": TIMES[:1],
        "shape_list": Given([[(1, 1, 1), (1, 1, 1)]]),
    },
    "Kandinsky5Transformer3DModel": {
        "hidden_states": (1, FRAMES, SIDE, SIDE, CHANNELS),
        "encoder_hidden_states": (1, TOKENS, TEXT),
        "pooled_projections": (1, POOLED),
        "timestep": TIMES[:1].float(),
        "visual_rope_pos": [torch.arange(FRAMES), torch.arange(4), torch.arange(4)],
        "text_rope_pos": torch.arange(TOKENS),
    },
    "Flux3Transformer2DModel-image_cond": {"image_cond_hidden_states": LATENTS, "image_cond_ids": grid(ids=4)},
    "Kandinsky6Transformer3DModel-audio": {"audio_hidden_states": (1, 6, 20)},
    "Kandinsky6SRTransformer3DModel": {"hidden_states": (1, FRAMES, SIDE, SIDE, 9), "timestep": TIMES[:1].float()},
    "Kandinsky6Transformer3DModel": {
        "hidden_states": (1, FRAMES, SIDE, SIDE, 9),
        "encoder_hidden_states": (1, TOKENS, TEXT),
        "pooled_projections": (1, POOLED),
        "timestep": TIMES[:1].float(),
    },
    "Kandinsky5Transformer3DModel-cond": {"hidden_states": (1, FRAMES, SIDE, SIDE, 9)},
    "Krea2Transformer2DModel": {
        "hidden_states": LATENTS,
        "encoder_hidden_states": (BATCH, TOKENS, 3, TEXT),
        "timestep": UNIT_TIMES,
        "position_ids": torch.cat([torch.zeros(TOKENS, 3), grid()]),
        "encoder_attention_mask": mask(),
    },
    "LTX2VideoTransformer3DModel": {
        "hidden_states": (BATCH, 32, CHANNELS),
        "audio_hidden_states": (BATCH, 9, CHANNELS),
        "audio_encoder_hidden_states": TEXTS,
        "encoder_attention_mask": mask(),
        "timestep": TIMES.float(),
        "num_frames": 2,
        "height": 4,
        "width": 4,
        "audio_num_frames": 9,
    },
    "LTX2VideoTransformer3DModel-gated": {"sigma": UNIT_TIMES},
    "LTXVideoTransformer3DModel": {"hidden_states": (BATCH, 32, CHANNELS), "num_frames": 2, "height": 4, "width": 4},
    "LongCatAudioDiTTransformer": {"hidden_states": LATENTS, "timestep": UNIT_TIMES, "latent_cond": LATENTS},
    "Lumina2Transformer2DModel": {"timestep": UNIT_TIMES},
    "LuminaNextDiT2DModel": {
        "timestep": UNIT_TIMES,
        "encoder_mask": mask(),
        "image_rotary_emb": torch.polar(torch.ones(384, 384, 8), torch.randn(384, 384, 8)),
        "cross_attention_kwargs": {},
    },
    "MiniMaxMusic3RVQDepthDecoder": {"inputs_embeds": (BATCH, 8, HIDDEN)},
    "MiniMaxMusic3Transformer1DModel": {
        "hidden_states": (BATCH, CHANNELS, 16),
        "encoder_hidden_states": (BATCH, 16, HIDDEN),
        "timestep": AsModel(UNIT_TIMES),
    },
    "OmniGenTransformer2DModel": {
        "timestep": UNIT_TIMES,
        "input_ids": torch.arange(2 * 24).reshape(BATCH, 24) % 10,
        "input_img_latents": [(1, CHANNELS, SIDE, SIDE)],
        "input_image_sizes": Given({0: [[0, 16]]}),
        "attention_mask": torch.ones(BATCH, 41, 41),
        "position_ids": torch.arange(41).expand(BATCH, -1),
    },
    "PRXTransformer2DModel": {"timestep": UNIT_TIMES},
    "PriorTransformer": {"hidden_states": (BATCH, TEXT), "proj_embedding": (BATCH, TEXT)},
    "PixArtTransformer2DModel": {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
    "QwenImage21Transformer2DModel": {"img_mask": torch.tensor([[False] * TOKENS + [True] * 4] * BATCH)},
    "SanaWMLTX2RefinerTransformer3DModel": {
        "hidden_states": (BATCH, 32, CHANNELS),
        "video_rotary_emb": [torch.ones(1, 32, HIDDEN), torch.zeros(1, 32, HIDDEN)],
        "timestep": TIMES.float(),
    },
    "SanaWMTransformer3DModel": {"mask": mask(), "timestep": TIMES[:, None, None].expand(-1, 1, FRAMES)},
    "MiniMaxH3Transformer3DModel": {
        "hidden_states": (1, 8, 4 * CHANNELS),
        "audio_hidden_states": (1, 6, CHANNELS),
        "encoder_hidden_states": (1, TOKENS, TEXT),
        "timestep": TIMES.float(),
        "timestep_indices": torch.tensor([0] * 14 + [1] * 8),
        "token_tags": torch.tensor([1] * 8 + [2] * 6 + [0] * 8),
        "position_ids": torch.arange(22)[:, None].expand(-1, 3),
        "video_indices": torch.arange(14, 22),
        "audio_indices": torch.arange(8, 14),
        "text_indices": torch.arange(8),
    },
    "StableAudio3DiTModel": {
        "hidden_states": (BATCH, CHANNELS, 16),
        "global_hidden_states": (BATCH, POOLED),
        "timestep": UNIT_TIMES,
    },
    "StableAudioDiTModel": {
        "hidden_states": (BATCH, CHANNELS, 16),
        "global_hidden_states": (BATCH, 1, POOLED),
        "rotary_embedding": rotary(17, 8),
        "timestep": TIMES.float(),
    },
    "T5FilmDecoder": {
        "encodings_and_masks": [[(BATCH, TOKENS, HIDDEN), mask(dtype=torch.float32)]],
        "decoder_input_tokens": (BATCH, 12, 8),
        "decoder_noise_time": UNIT_TIMES,
    },
    "Transformer2DModel": {"hidden_states": (BATCH, HIDDEN, 4, 4), "timestep": None},
    "TransformerTemporalModel": {
        "hidden_states": (4, HIDDEN, 4, 4),
        "num_frames": 2,
        "timestep": None,
        "encoder_hidden_states": None,
    },
    "WanTransformer3DModel-i2v": {"encoder_hidden_states_image": (BATCH, 5, 28)},
    "ChronoEditTransformer3DModel-i2v": {"encoder_hidden_states_image": (BATCH, 5, 28)},
    "SkyReelsV2Transformer3DModel-i2v": {"encoder_hidden_states_image": (BATCH, 5, 28)},
    "WanAnimateTransformer3DModel": {
        "hidden_states": (1, 12, 6, SIDE, SIDE),
        "timestep": TIMES[:1],
        "encoder_hidden_states": (1, TOKENS, TEXT),
        "encoder_hidden_states_image": (1, 5, 28),
        "pose_hidden_states": (1, CHANNELS, 5, SIDE, SIDE),
        "face_pixel_values": (1, 3, 17, 16, 16),
    },
    "WanAnimate2Transformer3DModel": {
        "hidden_states": [(CHANNELS, 1, SIDE, SIDE)],
        "timestep": TIMES[:1].float(),
        "encoder_hidden_states": [(TOKENS, TEXT)],
        "condition_latents": [(8, 1, SIDE, SIDE)],
        "encoder_hidden_states_image": (1, 5, 1280),
        "kv_cache": lambda: transformer_wan_animate_2.WanAnimate2KVCache(LAYERS),
        "kv_cache_mode": "extract",
        "seq_len": 16,
        "offset_grid_sizes": torch.tensor([[1, 4, 4]]),
    },
    "WanVACETransformer3DModel": {"control_hidden_states": (BATCH, 12, FRAMES, SIDE, SIDE)},
    "ZImageTransformer2DModel": {
        "x": [(CHANNELS, 1, SIDE, SIDE)] * BATCH,
        "cap_feats": [(TOKENS, TEXT)] * BATCH,
        "t": UNIT_TIMES,
    },
    "I2VGenXLUNet": {
        "sample": VIDEO,
        "fps": torch.tensor([8, 8]),
        "image_latents": VIDEO,
        "image_embeddings": (BATCH, TEXT),
    },
    "Kandinsky3UNet": {"encoder_hidden_states": (BATCH, TOKENS, 28), "encoder_attention_mask": mask()},
    "StableCascadeUNet": {"timestep_ratio": AsModel(UNIT_TIMES), "clip_text_pooled": (BATCH, 1, POOLED)},
    "UNet1DModel": {"sample": (BATCH, 2, 32)},
    "UNet3DConditionModel": {"sample": VIDEO},
    "UNetMotionModel": {"sample": VIDEO, "encoder_hidden_states": (BATCH * FRAMES, TOKENS, TEXT)},
    "UNetSpatioTemporalConditionModel": {
        "sample": (BATCH, FRAMES, CHANNELS, SIDE, SIDE),
        "encoder_hidden_states": (BATCH, 1, TEXT),
        "added_time_ids": torch.tensor([[6.0, 127.0, 0.02]] * BATCH),
    },
    "UVit2DModel": {
        "input_ids": torch.arange(128).reshape(BATCH, SIDE, SIDE) % 64,
        "pooled_text_emb": (BATCH, POOLED),
        "micro_conds": torch.tensor([[512.0, 512, 0, 0, 6]] * BATCH),
    },
}
LEFT_OUT: dict[str, str] = {
    "MotionAdapter": "it has no forward: it holds the modules that UNetMotionModel uses",
    "RFD4ProteinaTransformer": "its inputs, features of proteins, are not written yet",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A diffusers class with a tiny configuration, and the arguments of one call."""

    cls: type[nn.Module]
    config: Mapping[str, Any]
    inputs: Mapping[str, Any]

    def build(self, dtype: torch.dtype = torch.bfloat16) -> tuple[nn.Module, dict[str, Any]]:
        """Return a model of the class with random weights, and the keyword arguments for one call of the
        model."""
        torch.manual_seed(0)
        model = self.cls(**constructor_arguments(self.cls, self.config)).eval()
        randomize(model)
        model.to(dtype)
        kept = getattr(model, "_keep_in_fp32_modules", None) or ()
        for name, parameter in model.named_parameters():
            if set(kept) & set(name.split(".")):  # `from_pretrained` also keeps these modules in float32
                parameter.data = parameter.data.float()
        given = {**inputs_by_rule(model), **self.inputs}
        return model, {name: tensors(value, dtype) for name, value in given.items()}


def constructor_arguments(cls: type[nn.Module], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor: small values that depend on the parameter names, updated with
    `changes`."""
    arguments = {}
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        absent = parameter.default is None and name in OPTIONAL_NONE
        if name in SIZE_OF and not absent:
            arguments[name] = SIZE_OF[name]
    return {**arguments, **changes}


def randomize(model: nn.Module) -> None:
    """Set all parameters to random values, so that no gate is zero and no scale is one."""
    for parameter in model.parameters():
        data = parameter.data
        first = data.flatten()[0] if data.numel() else torch.zeros(())
        constant = bool(torch.isfinite(first)) and bool((data == first).all())
        if constant:
            data.add_(torch.randn_like(data) * 0.3)
        elif data.ndim < 2:
            data.copy_(torch.randn_like(data) * 0.3)
        else:
            data.copy_(torch.randn_like(data) / data[0].numel() ** 0.5)


def inputs_by_rule(model: nn.Module) -> dict[str, Any]:
    """Return the arguments of `forward` that can be derived from the names of its parameters."""
    parameters = inspect.signature(model.forward).parameters
    config: Mapping[str, Any] = getattr(model, "config", {})
    tokens = bool({"img_ids", "img_shapes"} & set(parameters))
    name = type(model).__name__
    latents = LATENTS if tokens else VIDEO if "3D" in name else IMAGE
    known: dict[str, Any] = {
        "hidden_states": latents,
        "sample": latents,
        "encoder_hidden_states": TEXTS,
        "timestep": UNIT_TIMES if tokens else TIMES,
        "r_timestep": TIMES // 2,
        "timestep_r": TIMES // 2,
        "img_ids": IMAGE_IDS,
        "txt_ids": TEXT_IDS,
        "img_shapes": SHAPES,
    }
    if "encoder_attention_mask" in parameters and parameters["encoder_attention_mask"].default is inspect._empty:
        known["encoder_attention_mask"] = mask()
    if config.get("pooled_projection_dim") or config.get("in_text_dim2"):
        known["pooled_projections"] = (BATCH, POOLED)
    if config.get("use_meanflow") is False:
        known.pop("timestep_r")
    if config.get("guidance_embeds"):
        known["guidance"] = torch.tensor([3.5, 5.0])
    return {key: value for key, value in known.items() if key in parameters}


def tensors(value: Any, dtype: torch.dtype) -> Any:
    """Replace each shape in `value` by a random tensor, and copy each tensor."""
    if isinstance(value, tuple) and value and all(type(part) is int for part in value):
        return torch.randn(value).to(dtype)
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [tensors(part, dtype) for part in value]
    if isinstance(value, dict):
        return {key: tensors(part, dtype) for key, part in value.items()}
    if isinstance(value, AsModel):
        return value.value.to(dtype)
    if isinstance(value, Given):
        return value.value
    return value() if callable(value) else value


def cases() -> dict[str, Case]:
    """Return a test case for each class that is not in `LEFT_OUT`, and for each variant of a class in
    `CONFIG` and `INPUTS`."""
    names = [name for name in CLASSES if name not in LEFT_OUT]
    names += [name for name in {**CONFIG, **INPUTS} if "-" in name]
    result = {}
    for name in names:
        base = name.partition("-")[0]
        config = {**CONFIG.get(base, {}), **CONFIG.get(name, {})}
        inputs = {**INPUTS.get(base, {}), **INPUTS.get(name, {})}
        result[name] = Case(CLASSES[base], config, inputs)
    return result


CASES = cases()


def shapes(output: Any) -> Any:
    """Return the shapes of the tensors in an output."""
    if isinstance(output, Tensor):
        return list(output.shape)
    if isinstance(output, Mapping):
        return [shapes(part) for part in output.values()]
    if isinstance(output, list | tuple):
        return [shapes(part) for part in output]
    return output


def finite(output: Any) -> bool:
    """Return True if all numbers of an output are finite."""
    if isinstance(output, Tensor):
        return bool(torch.isfinite(output).all())
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else []
    return all(finite(part) for part in parts)


def main(names: list[str]) -> int:
    """Call the named models, or all models, and return the number of failures."""
    diffusers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    failures = {}
    for name in names or CASES:
        for dtype in (torch.float32, torch.bfloat16):
            try:
                model, inputs = CASES[name].build(dtype)
                start = time.perf_counter()
                with torch.no_grad():
                    output = model(**inputs)
                seconds = time.perf_counter() - start
                note = "" if finite(output) else "  NOT FINITE"
                print(f"{name:45} {str(dtype)[6:]:9} {seconds:6.3f} s  {shapes(output)}{note}", flush=True)
            except Exception as error:
                failures[f"{name} {dtype}"] = f"{type(error).__name__}: {error}"
                if names:
                    traceback.print_exc()
    for name, reason in failures.items():
        print(f"FAILED {name}: {reason[:300]}")
    for name, reason in LEFT_OUT.items():
        print(f"left out {name}: {reason}")
    print(f"{len(CASES)} cases of {len(CLASSES) - len(LEFT_OUT)} of {len(CLASSES)} classes, {len(failures)} failures")
    return len(failures)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
