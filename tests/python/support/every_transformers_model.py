"""Builds a tiny model with random weights of every causal decoder of transformers, and of some other common
models.

`python -m support.every_transformers_model [name ...]` calls each model once. It prints the names of the
models, the seconds that a call takes, and the shapes of the outputs.

The configurations are derived from the names of their parameters: large defaults are replaced by small
values. The table `CHANGES` contains exceptions for classes and for variants of a class.
"""

import dataclasses
import inspect
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

VOCABULARY, BATCH, TOKENS = 99, 2, 12
RANDOM_TOKENS = 80  # Ids below this are random tokens. All other ids are special tokens.
HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, LAYERS = 64, 128, 4, 2, 16, 4, 2
IMAGE_SIZE, PATCH_SIZE = 32, 8

# Values of configuration parameters. Each entry has a value and the names of the parameters that get it.
SIZES: list[tuple[int, str]] = [
    (
        VOCABULARY,
        """vocab_size vocab_size_per_layer_input decoder_vocab_size pronunciation_vocab_size shape_vocab_size
        unpadded_vocab_size audio_vocab_size encoder_hash_byte_group_vocab""",
    ),
    (
        HIDDEN,
        """hidden_size d_model n_embd word_embed_proj_dim attention_hidden_size embedding_size emb_dim embedding_dim
        lru_width input_embedding_size output_embedding_size backbone_hidden_size adapter_rank projection_dim
        text_hidden_size encoder_hidden_size dim embed_dim out_hidden_size mm_embed_dim output_proj_dims""",
    ),
    (
        WIDE,
        """intermediate_size ffn_dim d_ff dff dim_ff n_inner decoder_ffn_dim encoder_ffn_dim d_inner
        ffn_hidden_size feed_forward_size intermediate_size_mlp dense_intermediate_size prefix_dense_intermediate_size
        mamba_d_ssm hidden_dim""",
    ),
    (
        LAYERS,
        """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers
        num_decoder_layers num_blocks num_layers_per_stack num_decoder_layers depth""",
    ),
    (
        HEADS,
        """num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads
        decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads linear_num_value_heads
        linear_num_heads swa_num_attention_heads index_n_heads indexer_n_heads""",
    ),
    (
        KV_HEADS,
        """num_key_value_heads num_kv_heads linear_num_key_heads swa_num_key_value_heads num_query_groups
        indexer_kv_heads""",
    ),
    (
        HEAD_DIM,
        """head_dim d_kv d_head v_head_dim qk_nope_head_dim qk_rope_head_dim swa_head_dim linear_key_head_dim
        linear_value_head_dim linear_head_dim index_head_dim indexer_head_dim attention_head_size dim_head kv_channels
        swa_v_head_dim mamba_d_head mamba_head_dim mamba_d_state state_size ssm_state_size num_position_embeddings
        num_patches position_embedding_size mm_posemb_size""",
    ),
    (2 * HEAD_DIM, "q_lora_rank kv_lora_rank moe_latent_size o_lora_rank router_hidden_size qk_head_dim"),
    (EXPERTS, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    (
        2,
        """num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts n_group num_expert_group
        num_kv_shared_layers first_dense_layers""",
    ),
    (
        1,
        """topk_group n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace num_dense_layers
        num_nextn_predict_layers moe_layer_start_index""",
    ),
    (
        32,
        """moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size
        moe_shared_expert_intermediate_size hidden_size_per_layer_input laurel_rank""",
    ),
    (
        8,
        """sliding_window sliding_window_size attention_window_size local_attention window_size rotary_dim chunk_size
        mamba_chunk_size mamba_n_heads mamba_num_heads time_step_rank mamba_dt_rank""",
    ),
    (128, "max_position_embeddings n_positions max_seq_len max_seq_length n_ctx context_length max_target_positions"),
    (IMAGE_SIZE, "image_size"),
    (PATCH_SIZE, "patch_size"),
]
SIZE_OF = {name: value for value, names in SIZES for name in names.split()}
# Parameters that need a value although their default is None.
NEEDED = ("head_dim", "num_key_value_heads", "n_routed_experts", "n_shared_experts", "num_experts_per_tok")

CAUSAL = list(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())

# Changes that cannot be derived from parameter names, by "<class>" or "<class>-<variant>". A dot separates
# the names of nested parameters.
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
WINDOWS = {"vision_config.window_size": 32, "vision_config.fullatt_block_indexes": [1]}
CHANGES: dict[str, dict[str, Any]] = {
    "BambaForCausalLM": {"attn_layer_indices": [1]},
    "BltForCausalLM": {
        "global_config.hidden_size": 2 * HIDDEN,
        "encoder_config.hidden_size_global": 2 * HIDDEN,
        "decoder_config.hidden_size_global": 2 * HIDDEN,
    },
    "CohereCompassForCausalLM": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": MROPE, "full_attention": MROPE},
    },
    "DbrxForCausalLM": {
        "attn_config.rope_theta": 10000.0,
        "attn_config.kv_n_heads": KV_HEADS,
        "attn_config.clip_qkv": 8.0,
        "ffn_config.moe_top_k": 2,
    },
    "FalconH1ForCausalLM": {"mamba_d_head": HEAD_DIM},
    "Gemma3nForCausalLM": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0],
        "intermediate_size": [WIDE] * 4,
    },
    "Gemma3ForConditionalGeneration": {"mm_tokens_per_image": 4},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["linear_attention", "full_attention"]},
    "GraniteSWAForCausalLM": {"layer_rope_theta": [10000.0, 0]},
    "HunYuanMoEV1ForCausalLM": {"num_experts": EXPERTS, "moe_topk": 2},
    "JambaForCausalLM": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 3,
        "expert_layer_offset": 0,
    },
    "Lfm2ForCausalLM": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "Lfm2MoeForCausalLM": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "Llama4ForCausalLM": {"no_rope_layers": [1, 0], "moe_layers": [1], "attention_chunk_size": 8},
    "LlavaForConditionalGeneration": {"vision_config.patch_size": 16, "vision_config.num_hidden_layers": 3},
    "LongcatFlashForCausalLM": {"zero_expert_num": 1},
    "Mamba2ForCausalLM": {"num_heads": 8},
    "MllamaForCausalLM": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "Qwen2MoeForCausalLM": {"mlp_only_layers": [0]},
    "Qwen3MoeForCausalLM": {"mlp_only_layers": [0]},
    "ConvNextModel": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2},
    "Glm4vForConditionalGeneration": {"text_config.rope_parameters": MROPE},
    "SwinModel": {"window_size": 4, "depths": [1, 1], "num_heads": [2, 4], "embed_dim": 32, "patch_size": 4},
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 0]},
    "DeepseekV4ForCausalLM": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}},
    "DistilBertModel": {"dim": HIDDEN},
    "Qwen2VLForConditionalGeneration": {"text_config.rope_parameters": MROPE},
    "Qwen2_5_VLForConditionalGeneration": {
        "text_config.rope_parameters": MROPE,
        **WINDOWS,
    },
    "Qwen2_5_VLModel": {"text_config.rope_parameters": MROPE, **WINDOWS},
    "Qwen3VLForConditionalGeneration": {"vision_config.deepstack_visual_indexes": [0, 1]},
    "Qwen3VLMoeForConditionalGeneration": {"vision_config.deepstack_visual_indexes": [0, 1]},
    "Qwen4ExpForCausalLM": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD_DIM,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "hc_lowrank": 16,
    },
    "RecurrentGemmaForCausalLM": {"block_types": ["recurrent", "attention"]},
    "ReformerModelWithLMHead": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [32, 32],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 4,
        "hash_seed": 0,
    },
    "xLSTMForCausalLM": {"chunk_size": 64},  # shorter chunks fail in bfloat16 in transformers
    "XmodForCausalLM": {"default_language": "en_XX"},
    "ZambaForCausalLM": {
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "linear_attention"],
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": 2 * HEAD_DIM,
        "num_key_value_heads": HEADS,
    },
    "Zamba2ForCausalLM": {"num_key_value_heads": HEADS},
    "Gemma4AssistantForCausalLM": {
        "default": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}
    },
    # Variants of classes.
    "BloomForCausalLM-post": {"apply_residual_connection_post_layernorm": True},
    "CLIPTextModel-gelu": {"hidden_act": "gelu"},
    "CohereForCausalLM-qk": {"use_qk_norm": True},
    "DeepseekV2ForCausalLM-direct": {"q_lora_rank": None},
    "DeepseekV3ForCausalLM-direct": {"q_lora_rank": None},
    "Dinov2Model-swiglu": {"use_swiglu_ffn": True},
    "DogeForCausalLM-moe": {"is_moe": True},
    "FalconForCausalLM-alibi": {"alibi": True, "bias": True},
    "FalconForCausalLM-new": {"new_decoder_architecture": True},
    "FalconForCausalLM-sequential": {"parallel_attn": False, "multi_query": False, "num_kv_heads": HEADS},
    "Gemma3ForCausalLM-softcap": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "Gemma4ForCausalLM-equal": {"attention_k_eq_v": True},
    "Gemma4ForCausalLM-moe": {
        "enable_moe_block": True,
        "num_experts": EXPERTS,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
    "Gemma4ForCausalLM-shared": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    },
    "Glm4MoeForCausalLM-qk": {"use_qk_norm": True},
    "GPT2LMHeadModel-upcast": {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
    "GPTBigCodeForCausalLM-heads": {"multi_query": False},
    "GPTNeoXForCausalLM-sequential": {"use_parallel_residual": False},
    "LlamaForCausalLM-bias": {"attention_bias": True, "mlp_bias": True},
    "LlamaForCausalLM-gelu": {"hidden_act": "gelu_pytorch_tanh"},
    "LlamaForCausalLM-yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 64,
        }
    },
    "MistralForCausalLM-full": {"sliding_window": None},
    "OlmoForCausalLM-clip": {"clip_qkv": 1.0},
    "OlmoeForCausalLM-clip": {"clip_qkv": 1.0},
    "OPTForCausalLM-post": {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
    "PhiForCausalLM-qk": {"qk_layernorm": True},
    "Qwen2ForCausalLM-window": {
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "Qwen3ForCausalLM-window": {
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "Qwen4ExpForCausalLM-ngrams": {
        "eos_token_id": RANDOM_TOKENS + 2,
        "ple_layer_ids": [1],
        "ple_embed_dim": HIDDEN,
        "ngram_vocab_size_base": 64,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4,
        "heads_per_ngram": 2,
    },
    "StableLmForCausalLM-parallel": {"use_parallel_residual": True},
    "StableLmForCausalLM-qk": {"qk_layernorm": True, "use_qkv_bias": True},
    "T5EncoderModel-gated": {"feed_forward_proj": "gated-gelu"},
    "T5ForConditionalGeneration-gated": {"feed_forward_proj": "gated-gelu"},
    "Zamba2ForCausalLM-adapter": {"use_shared_attention_adapter": True, "use_mem_rope": True},
}

# Models that are not causal decoders.
OTHER_NAMES = """
    T5EncoderModel T5ForConditionalGeneration UMT5EncoderModel UMT5ForConditionalGeneration MT5EncoderModel
    CLIPTextModel CLIPTextModelWithProjection CLIPVisionModel CLIPVisionModelWithProjection CLIPModel
    SiglipTextModel SiglipVisionModel SiglipModel Siglip2Model Siglip2VisionModel BertModel BertForMaskedLM
    RobertaModel RobertaForMaskedLM XLMRobertaModel ModernBertModel ModernBertForMaskedLM
    WhisperForConditionalGeneration ViTModel ViTForImageClassification Dinov2Model Dinov2WithRegistersModel
    DINOv3ViTModel Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration Qwen3VLForConditionalGeneration
    Qwen3VLMoeForConditionalGeneration Mistral3ForConditionalGeneration LlavaForConditionalGeneration
    DistilBertModel AlbertModel DebertaV2Model MPNetModel GemmaModel Gemma2Model Gemma3TextModel LlamaModel Qwen2Model
    Qwen3Model MistralModel T5GemmaForConditionalGeneration ClapTextModelWithProjection Blip2QFormerModel SwinModel
    ConvNextModel BeitModel DeiTModel SegformerModel Wav2Vec2Model HubertModel PixtralVisionModel
    BartForConditionalGeneration MBartForConditionalGeneration MarianMTModel PegasusForConditionalGeneration
    GPT2Model GPTNeoXModel OPTModel BloomModel FalconModel PhiModel Phi3Model MixtralModel CohereModel OlmoModel
    Qwen3_5ForConditionalGeneration Glm4vForConditionalGeneration SmolLM3Model Qwen2_5_VLModel Qwen3VLModel
"""
OTHERS = OTHER_NAMES.split()

# Classes without a test case, with the reasons.
LEFT_OUT: dict[str, str] = {
    "Gemma3nForConditionalGeneration": "its vision part needs timm; Gemma3nForCausalLM has its decoder",
}


def small(config: PreTrainedConfig) -> dict[str, Any]:
    """Return the changes that make a configuration small."""
    changes: dict[str, Any] = {}
    fields = {field.name for field in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else vars(config)
    for name, value in {**config.to_dict(), **vars(config)}.items():
        if name not in fields:  # The value is computed from other parameters.
            continue
        if isinstance(value, PreTrainedConfig):
            changes[name] = small(value)
        elif isinstance(value, bool) or name.startswith("_") or read_only(config, name):
            continue
        elif value is None and name in NEEDED:
            changes[name] = SIZE_OF[name]
        elif name in SIZE_OF and isinstance(value, int):
            changes[name] = min(SIZE_OF[name], value) if value > 0 else value
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            changes[name] = token(name)
        elif value == 1 and name.endswith(("_multiplier", "logits_scaling", "alpha_factor", "beta_factor")):
            changes[name] = type(value)(2)
        elif name.endswith("_multipliers") and isinstance(value, (list, tuple)):
            changes[name] = [0.5 + 0.25 * index for index in range(len(value))]
        elif name == "rope_parameters" and isinstance(value, dict):
            changes[name] = rope(value)
    if "qk_nope_head_dim" in changes:  # Multi-head latent attention has one key head per query head.
        changes["num_key_value_heads"] = HEADS
    if isinstance(changes.get("per_layer_config"), dict):
        del changes["per_layer_config"]
    for names, kinds in layers(config).items():
        changes[names] = kinds
        for count in ("num_hidden_layers", "n_layer", "num_layers"):
            if count in changes:
                changes[count] = len(kinds)
    return changes


def read_only(config: PreTrainedConfig, name: str) -> bool:
    """Return whether `name` is a property that cannot be set."""
    found = getattr(type(config), name, None)
    return isinstance(found, property) and found.fset is None


def token(name: str) -> int:
    """Return the id of a special token. The id is larger than the ids of all random tokens, and smaller than
    the size of the vocabulary."""
    known = ("pad", "bos", "eos", "decoder_start", "image", "video", "audio", "vision_start", "vision_end")
    for number, kind in enumerate(known):
        if name.startswith(kind):
            return RANDOM_TOKENS + number
    return RANDOM_TOKENS + len(known)


def rope(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return RoPE parameters that fit small heads."""
    result = dict(parameters)
    for name, value in parameters.items():
        if isinstance(value, dict):
            result[name] = rope(value)
        elif name == "mrope_section":
            part = round(HEAD_DIM * parameters.get("partial_rotary_factor", 1.0)) // 2
            result[name] = [part - 2 * (part // 3), part // 3, part // 3]
    return result


def layers(config: PreTrainedConfig) -> dict[str, list[Any]]:
    """Return short lists of layer types, in which each layer type of the configuration occurs."""
    found = {}
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):
        value = getattr(config, name, None)
        alias = name in config.attribute_map
        if isinstance(value, (list, tuple)) and not alias and not read_only(config, name):
            found[name] = list(dict.fromkeys(value))
    length = max([LAYERS, *map(len, found.values())])
    return {name: (kinds * length)[:length] for name, kinds in found.items()}


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested dicts of changes. If both contain a value, use the value of `second`."""
    result = dict(first)
    for name, value in second.items():
        head, _, rest = name.partition(".")
        if rest:
            result[head] = merge(result.get(head, {}), {rest: value})
        elif name.endswith("_config") and isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = merge(result[name], value)
        else:
            result[name] = value
    return result


def make(kind: type[PreTrainedConfig], changes: Mapping[str, Any], like: PreTrainedConfig | None) -> PreTrainedConfig:
    """Return a configuration of class `kind` with the values `changes`. Its nested configurations have the
    same classes as in `like`."""
    nested = {}
    for name, value in changes.items():
        old = vars(like).get(name)
        if isinstance(old, PreTrainedConfig) and isinstance(value, dict):
            value = make(type(old), value, old)
        nested[name] = value
    return kind(**nested)


def randomise(model: nn.Module) -> None:
    """Give random values to parameters whose elements are equal or very small. The values are large enough to
    affect the output."""
    tensors = {**dict(model.named_parameters()), **{k: v for k, v in model.state_dict().items()}}
    for tensor in {id(t): t for t in tensors.values()}.values():
        if not tensor.is_floating_point() or tensor.numel() == 0 or not tensor.isfinite().all():
            continue
        noise = torch.randn(tensor.shape)
        first = tensor.flatten()[0].item()
        with torch.no_grad():
            if bool((tensor == 0).all()):
                tensor.copy_(noise * 0.3)
            elif bool((tensor == first).all()):
                tensor.copy_(first * (1 + 0.1 * noise))
            elif tensor.dim() > 1 and tensor.std() < 0.08:
                tensor.copy_(noise * 0.12)


def converted(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model in another dtype. Its parameters and buffers have the same dtypes as after
    `from_pretrained`."""
    result = type(model)._from_config(model.config, dtype=dtype).eval()
    plan = [re.compile(name.replace(".", r"\.").replace("*", ".*")) for name in result._get_dtype_plan(dtype)]
    for name, tensor in result.state_dict(keep_vars=True).items():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(torch.float32 if any(found.search(name) for found in plan) else dtype)
    result.load_state_dict(model.state_dict())
    return result


def inputs(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of one call that can be derived from the names of the parameters of `forward`."""
    names = inspect.signature(model.forward).parameters
    config = model.config
    result: dict[str, Any] = {}
    if "input_ids" in names:
        result["input_ids"] = torch.randint(3, RANDOM_TOKENS, (BATCH, TOKENS))
    if "decoder_input_ids" in names and config.is_encoder_decoder:
        result["decoder_input_ids"] = torch.randint(3, RANDOM_TOKENS, (BATCH, TOKENS // 2))
    if "input_features" in names and config.model_type == "whisper":
        result["input_features"] = torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions).to(dtype)
    if "input_values" in names:
        result["input_values"] = torch.randn(BATCH, 4000).to(dtype)
    if "pixel_values" in names and ("input_ids" not in names or hasattr(config, "vision_config")):
        result |= picture(model, dtype)
    crosses = any(re.search("encoder_attn|cross_attn$", name) for name, _ in model.named_modules())
    if "encoder_hidden_states" in names and crosses:
        result["encoder_hidden_states"] = torch.randn(BATCH, TOKENS, HIDDEN).to(dtype)
    if "cross_attention_states" in names:
        result["cross_attention_states"] = torch.randn(BATCH, TOKENS, HIDDEN).to(dtype)
    if "use_cache" in names:
        result["use_cache"] = False
    return result


def picture(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Any]:
    """Return one image per sequence, or an empty dict if the model has no vision part."""
    config = model.config
    vision = getattr(config, "vision_config", config)
    if not isinstance(vision, PreTrainedConfig):
        return {}
    size = getattr(vision, "image_size", IMAGE_SIZE)
    return {"pixel_values": torch.randn(BATCH, getattr(vision, "num_channels", 3), size, size).to(dtype)}


def show(arguments: dict[str, Any], image_token: int, count: int) -> None:
    """Replace tokens of each sequence by the tokens of an image."""
    arguments["input_ids"][:, 1 : 1 + count] = image_token
    is_image = (arguments["input_ids"] == image_token).long()
    arguments["mm_token_type_ids"] = is_image


def qwen_picture(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Add an image of four by four patches to each sequence. Two by two patches become one token."""
    vision = model.config.vision_config
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    arguments["pixel_values"] = torch.randn(BATCH * 16, patch).to(dtype)
    arguments["image_grid_thw"] = torch.tensor([[1, 4, 4]] * BATCH)
    show(arguments, model.config.image_token_id, 4)


def tokens_of_image(count: int) -> Callable[[Any, dict[str, Any], torch.dtype], None]:
    """Return a function that puts `count` image tokens into each sequence."""

    def add(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
        show(arguments, model.config.image_token_id, count)
        del arguments["mm_token_type_ids"]

    return add


def gemma3_picture(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Replace tokens of each sequence by image tokens, and add an argument that marks them."""
    show(arguments, model.config.image_token_id, 4)
    arguments["token_type_ids"] = arguments.pop("mm_token_type_ids")


def mistral3_picture(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Replace tokens of each sequence by image tokens, and add the sizes of the images to the arguments."""
    arguments["image_sizes"] = torch.tensor([[IMAGE_SIZE, IMAGE_SIZE]] * BATCH)
    tokens_of_image(4)(model, arguments, dtype)


def fuyu_picture(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Add images as patches, and replace tokens of each sequence by image tokens."""
    arguments["pixel_values"] = torch.randn(BATCH, 4, model.config.num_channels * model.config.patch_size**2).to(dtype)
    tokens_of_image(4)(model, arguments, dtype)


def heard(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Add the output of an audio encoder to the arguments."""
    arguments["encoder_outputs"] = (torch.randn(BATCH, TOKENS, HIDDEN).to(dtype),)


def siglip2_picture(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Add images as patches to the arguments."""
    vision = getattr(model.config, "vision_config", model.config)
    arguments["pixel_values"] = torch.randn(BATCH, 16, vision.num_channels * vision.patch_size**2).to(dtype)
    arguments["pixel_attention_mask"] = torch.ones(BATCH, 16, dtype=torch.long)
    arguments["spatial_shapes"] = torch.tensor([[4, 4]] * BATCH)


def codebooks(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Make one token sequence per codebook."""
    arguments["input_ids"] = torch.randint(3, RANDOM_TOKENS, (BATCH * model.config.num_codebooks, TOKENS))


def queries(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Add query embeddings, and the image features that they attend to."""
    arguments["query_embeds"] = torch.randn(BATCH, 4, model.config.hidden_size).to(dtype)
    arguments["encoder_hidden_states"] = torch.randn(BATCH, TOKENS, model.config.encoder_hidden_size).to(dtype)


def shared_keys(model: PreTrainedModel, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    """Add the hidden states, keys and values that an assistant model reads from the main model."""
    text = model.config.text_config
    arguments.pop("input_ids", None)
    arguments["inputs_embeds"] = torch.randn(BATCH, 1, 2 * model.config.backbone_hidden_size).to(dtype)
    arguments["position_ids"] = torch.full((BATCH, 1), TOKENS)
    arguments["shared_kv_states"] = states = {}
    for kind, layer in zip(text.layer_types, model.model.layers, strict=True):
        size = layer.self_attn.head_dim
        states[kind] = tuple(torch.randn(BATCH, KV_HEADS, TOKENS, size).to(dtype) for _ in range(2))


# Maps the name of a class to a function that adds arguments of the model. These are arguments that cannot be
# derived from the parameter names. The parameters of the function are the model, the arguments so far and the
# dtype.
INPUTS: dict[str, Callable[[Any, dict[str, Any], torch.dtype], None]] = {
    "FuyuForCausalLM": fuyu_picture,
    "Gemma3ForConditionalGeneration": gemma3_picture,
    "Gemma4AssistantForCausalLM": shared_keys,
    "Gemma4UnifiedAssistantForCausalLM": shared_keys,
    "GotOcr2ForConditionalGeneration": tokens_of_image(1),
    "LlavaForConditionalGeneration": tokens_of_image(4),
    "Mistral3ForConditionalGeneration": mistral3_picture,
    "MusicgenForCausalLM": codebooks,
    "MusicgenMelodyForCausalLM": codebooks,
    "Qwen2VLForConditionalGeneration": qwen_picture,
    "Qwen2_5_VLForConditionalGeneration": qwen_picture,
    "Qwen3VLForConditionalGeneration": qwen_picture,
    "Qwen3VLMoeForConditionalGeneration": qwen_picture,
    "Qwen3_5ForConditionalGeneration": qwen_picture,
    "Glm4vForConditionalGeneration": qwen_picture,
    "Qwen2_5_VLModel": qwen_picture,
    "Qwen3VLModel": qwen_picture,
    "Blip2QFormerModel": queries,
    "WhisperForCausalLM": heard,
    "Siglip2Model": siglip2_picture,
    "Siglip2VisionModel": siglip2_picture,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A transformers class, and the changes to its configuration."""

    name: str

    @property
    def class_name(self) -> str:
        """The name of the class, without the variant."""
        return self.name.partition("-")[0]

    def config(self) -> PreTrainedConfig:
        """Return the configuration of the model."""
        kind = getattr(transformers, self.class_name).config_class
        changes = merge(CHANGES.get(self.class_name, {}), CHANGES.get(self.name, {}))
        try:
            default = kind(**changes.get("default", {}))
        except Exception:
            default = PreTrainedConfig()
        changes.pop("default", None)
        if self.class_name in CAUSAL and getattr(default, "is_decoder", None) is False:
            changes["is_decoder"] = True
        return make(kind, merge(small(default), changes), default)

    def build(self, dtype: torch.dtype) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the model in evaluation mode, and the arguments of one call."""
        torch.manual_seed(0)
        model = getattr(transformers, self.class_name)(self.config()).eval()
        randomise(model)
        if dtype != torch.float32:
            model = converted(model, dtype)
        torch.manual_seed(1)  # the inputs of each dtype have the same values
        arguments = inputs(model, dtype)
        if self.class_name in INPUTS:
            INPUTS[self.class_name](model, arguments, dtype)
        return model.requires_grad_(False), arguments


def names() -> list[str]:
    """Return the names of all classes, and of the variants."""
    found = [*CAUSAL, *OTHERS, *CHANGES]
    return [name for name in dict.fromkeys(found) if hasattr(transformers, name.partition("-")[0])]


CASES: dict[str, Case] = {name: Case(name) for name in names() if name not in LEFT_OUT}


def first_tensor(output: Any) -> Tensor:
    """Return the first tensor of an output."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    return first_tensor(next(iter(values)))


def main(chosen: list[str]) -> None:
    """Call each model once in each dtype and print the results."""
    failed = {}
    for name in chosen or CASES:
        for dtype in (torch.float32, torch.bfloat16):
            try:
                start = time.perf_counter()
                model, arguments = CASES[name].build(dtype)
                built = time.perf_counter()
                with torch.no_grad():
                    output = first_tensor(model(**arguments))
                seconds = time.perf_counter() - built
                finite = bool(output.isfinite().all())
                count = sum(parameter.numel() for parameter in model.parameters())
                print(
                    f"{name:48} {str(dtype)[6:]:9} {seconds:6.3f} s, built in {built - start:5.2f} s, "
                    f"{count / 1e6:6.2f}M, {output.dtype} {tuple(output.shape)} of size {output.float().std():.3g}",
                    flush=True,
                )
                if not finite:
                    failed[name] = "not finite"
            except Exception as error:
                if chosen:
                    traceback.print_exc()
                failed[name] = f"{type(error).__name__}: {error}".replace("\n", " ")
                break
    for name, reason in failed.items():
        print(f"FAILED {name}: {reason[:400]}")
    print(f"{len(CASES)} cases, {len(failed)} failed, {len(LEFT_OUT)} left out")


if __name__ == "__main__":
    main(sys.argv[1:])
