"""Fusions for CogVideoX and ConsisID (diffusers: models/transformers/{cogvideox,consisid}_transformer_3d.py; the
attention is in models/attention_processor.py).

A fusion is a hand-written method that replaces a method of a model's class.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.attention import sdpa
from ..core.fusion import Fusion, same_dtype
from ..core.modules import is_exactly, resident
from ..core.ops import ada_norm, gated_residual, gated_residual_ada_norm, qk_norm_rope
from ..core.recipe import FusedRecipe

MODELS = "diffusers.models.transformers"
PROCESSORS = "diffusers.models.attention_processor"


def modulations(norm: Any, temb: Tensor) -> tuple[Tensor, ...]:
    """Return six tensors of shape `[B, 1, N]`: shift, scale and gate for the video tokens, then shift, scale
    and gate for the text tokens."""
    return norm.linear(norm.silu(temb)).unsqueeze(1).chunk(6, dim=2)


def affine(norm: nn.LayerNorm) -> dict[str, Any]:
    """Return weight, bias and eps of a LayerNorm as keyword arguments of an operator."""
    return {"weight": norm.weight, "bias": norm.bias, "eps": norm.eps}


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `CogVideoXBlock.forward` with oxiwarp's kernels."""
    text = encoder_hidden_states
    norm1, norm2 = affine(self.norm1.norm), affine(self.norm2.norm)
    shift, scale, gate, shift_text, scale_text, gate_text = modulations(self.norm1, temb)
    attended, attended_text = self.attn1(
        hidden_states=ada_norm(hidden_states, scale, shift, **norm1, mode=how.mode),
        encoder_hidden_states=ada_norm(text, scale_text, shift_text, **norm1, mode=how.mode),
        image_rotary_emb=image_rotary_emb,
        **(attention_kwargs or {}),
    )
    shift, scale, gate_ff, shift_text, scale_text, gate_ff_text = modulations(self.norm2, temb)
    normed, hidden_states = gated_residual_ada_norm(hidden_states, attended, gate, scale, shift, **norm2, mode=how.mode)
    normed_text, text = gated_residual_ada_norm(
        text, attended_text, gate_text, scale_text, shift_text, **norm2, mode=how.mode
    )
    output = self.ff(torch.cat([normed_text, normed], dim=1))
    output_text, output = output[:, : text.shape[1]], output[:, text.shape[1] :]
    hidden_states = gated_residual(hidden_states, output, gate_ff, mode=how.mode)
    return hidden_states, gated_residual(text, output_text, gate_ff_text, mode=how.mode)


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether all operands, including the norms' parameters, have the same dtype, and whether the
    inputs are on one device."""
    norm1, norm2 = self.norm1.norm, self.norm2.norm
    return (
        hidden_states.dim() == encoder_hidden_states.dim() == 3 == temb.dim() + 1
        and hidden_states.stride(-1) == encoder_hidden_states.stride(-1) == 1
        and same_dtype(hidden_states, encoder_hidden_states, temb, norm1.weight, norm1.bias, norm2.weight, norm2.bias)
        and resident(hidden_states.device, encoder_hidden_states, temb)
    )


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are `CogVideoXLayerNormZero` of diffusers. Otherwise, return the
    reason why `patch` cannot replace the block."""
    from diffusers.models.normalization import CogVideoXLayerNormZero

    norms = self.norm1, self.norm2
    known = all(is_exactly(norm, CogVideoXLayerNormZero) and is_exactly(norm.norm, nn.LayerNorm) for norm in norms)
    return None if known else "its norms are no CogVideoXLayerNormZero with torch's LayerNorm"


def separate(attn: Any, hidden_states: Tensor) -> Iterable[Tensor]:
    """Return query, key and value, each from a separate linear."""
    return attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)


def packed(attn: Any, hidden_states: Tensor) -> Iterable[Tensor]:
    """Return query, key and value, from one linear."""
    return attn.to_qkv(hidden_states).chunk(3, dim=-1)


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    project: Callable[[Any, Tensor], Iterable[Tensor]] = separate,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `CogVideoXAttnProcessor2_0.__call__` with oxiwarp's kernels. Text and video
    tokens form one sequence. RoPE rotates only the video tokens."""
    text_tokens = encoder_hidden_states.shape[1]
    hidden_states = torch.cat([encoder_hidden_states, hidden_states], dim=1)
    batch, tokens, _ = hidden_states.shape
    if attention_mask is not None:
        attention_mask = attn.prepare_attention_mask(attention_mask, tokens, batch)
        attention_mask = attention_mask.view(batch, attn.heads, -1, attention_mask.shape[-1])
    query, key, value = project(attn, hidden_states)
    norm: dict[str, Any] = {"norm": None}
    if attn.norm_q is not None:
        norm = {"norm": "layer_norm", "eps": attn.norm_q.eps}
        norm |= {"q_weight": attn.norm_q.weight, "q_bias": attn.norm_q.bias}
        norm |= {"k_weight": attn.norm_k.weight, "k_bias": attn.norm_k.bias}
    if image_rotary_emb is not None:
        cos, sin = image_rotary_emb
        norm |= {"cos": cos, "sin": sin, "offset": text_tokens}
    query, key = qk_norm_rope(query, key, head_dim=query.shape[-1] // attn.heads, mode=how.mode, **norm)
    query, key, value = (x.unflatten(2, (attn.heads, -1)).transpose(1, 2) for x in (query, key, value))
    attended = sdpa(how, query, key, value, attn_mask=attention_mask, dropout_p=0.0, is_causal=False)
    attended = attn.to_out[1](attn.to_out[0](attended.transpose(1, 2).flatten(2)))
    text, video = attended.split([text_tokens, tokens - text_tokens], dim=1)
    return video, text


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> bool:
    """Return whether the kernel supports the norms and rotary tables of queries and keys. Both must have
    LayerNorms, or neither may have a norm. The tables must be float32.

    With float32 tables, diffusers rotates 16-bit queries and keys in float32, and so does the kernel.
    """
    norms = [norm for norm in (attn.norm_q, attn.norm_k) if norm is not None]
    tables = () if image_rotary_emb is None else tuple(image_rotary_emb)
    return (
        not attn.is_cross_attention
        and (len(norms) == 2 or (not norms and len(tables) == 2))
        and all(
            is_exactly(norm, nn.LayerNorm)
            and norm.eps == norms[0].eps
            and same_dtype(hidden_states, norm.weight, norm.bias)
            for norm in norms
        )
        and all(table.dim() == 2 and table.dtype == torch.float32 and table.stride(-1) == 1 for table in tables)
        and resident(hidden_states.device, encoder_hidden_states, *tables)
    )


ROTATION = {"diffusers.models.embeddings:apply_rotary_emb": ("3c45ff0e7102", "1c340787d094")}
NORM = {"diffusers.models.normalization:CogVideoXLayerNormZero.forward": ("8e8a950e49e6", "906df1a1fd97")}
CHAINS = ("norm_q, norm_k, rotary embedding of the video: qk_norm_rope",)

FUSIONS = (
    Fusion(
        name="cogvideox.block",
        classes=(
            f"{MODELS}.cogvideox_transformer_3d.CogVideoXBlock",
            f"{MODELS}.consisid_transformer_3d.ConsisIDBlock",
        ),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=("norm1", "norm1.norm", "norm2", "norm2.norm"),
        sources={"forward": ("55c5f1b0020b", "4688fa1418aa", "b39c933f185a", "561ae6a21cca"), **NORM},
        chains=(
            "norm1, modulation: ada_norm",
            "gate, residual of attn1, norm2, modulation: gated_residual_ada_norm",
            "gate, residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="cogvideox.attention",
        classes=(f"{PROCESSORS}.CogVideoXAttnProcessor2_0",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        skips=("norm_q", "norm_k"),
        sources={"__call__": ("4345786a1fcd", "f10a088eae51"), **ROTATION},
        chains=CHAINS,
    ),
    Fusion(
        name="cogvideox.packed_attention",
        classes=(f"{PROCESSORS}.FusedCogVideoXAttnProcessor2_0",),
        method="__call__",
        run=functools.partial(attention, project=packed),
        accepts=accepts_attention,
        skips=("norm_q", "norm_k"),
        sources={"__call__": ("b64c2af1cdcc", "5fccb4fe8bab"), **ROTATION},
        chains=CHAINS,
    ),
)
