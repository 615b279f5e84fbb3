"""Fusions for HunyuanVideo (diffusers: models/transformers/transformer_hunyuan_video.py).

A fusion is a hand-written method that replaces a method of a model's class.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...class_swap import base_of
from ..core.attention import dispatched
from ..core.fusion import Fusion, same_dtype
from ..core.linear import LaterLinear
from ..core.recipe import FusedRecipe
from ..shared.feed_forward import add_branch, later_branch
from ..shared.mmdit import (
    Stream,
    affine_norm,
    after_attention,
    apart,
    as_rows,
    joined,
    norms_fit,
    queries_and_keys,
    streams_fit,
    tables_fit,
)
from ..shared.parallel_block import CHAIN, Place, both_projected
from ..shared.residual_layer_norm import residual_layer_norm

MODULE = "diffusers.models.transformers.transformer_hunyuan_video"
Tables = tuple[Tensor, Tensor]


def refiner_block(
    self: Any, how: FusedRecipe, hidden_states: Tensor, temb: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    """Compute the result of `HunyuanVideoIndividualTokenRefinerBlock.forward` with oxiwarp's kernels."""
    normed = self.norm1(hidden_states)
    attended = self.attn(hidden_states=normed, encoder_hidden_states=None, attention_mask=attention_mask)
    gate_msa, gate = self.norm_out(temb)
    normed, hidden_states = residual_layer_norm(as_rows(hidden_states), attended, self.norm2, how.mode, gate=gate_msa)
    return add_branch(how, hidden_states, later_branch(how, self.ff, normed), gate)


def accepts_refiner_block(self: Any, hidden_states: Tensor, temb: Tensor, attention_mask: Tensor | None = None) -> bool:
    """Return whether tokens, time embedding and the parameters of norm2 have the same dtype."""
    return streams_fit(temb, hidden_states) and same_dtype(temb, self.norm2.weight, self.norm2.bias)


def fits_refiner_block(self: Any) -> str | None:
    """Return None if norm2 of the block is torch's LayerNorm. Otherwise, return the reason why `patch` cannot
    replace the block."""
    return None if base_of(self.norm2) is nn.LayerNorm else "its norm2 is not torch's LayerNorm"


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    attention_mask: Tensor | None = None,
    freqs_cis: Tables | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `HunyuanVideoTransformerBlock.forward` with oxiwarp's kernels."""
    normed, *modulation = self.norm1(hidden_states, emb=temb)
    normed_text, *text_modulation = self.norm1_context(encoder_hidden_states, emb=temb)
    attended, attended_text = self.attn(
        hidden_states=normed,
        encoder_hidden_states=normed_text,
        attention_mask=attention_mask,
        image_rotary_emb=freqs_cis,
    )
    return (
        after_attention(hidden_states, attended, modulation, self.norm2, self.ff, how),
        after_attention(
            encoder_hidden_states, attended_text, text_modulation, self.norm2_context, self.ff_context, how
        ),
    )


def single_block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `HunyuanVideoSingleTransformerBlock.forward` with oxiwarp's kernels."""
    image = hidden_states.shape[1]
    hidden_states = joined(hidden_states, encoder_hidden_states)
    normed, gate = self.norm(hidden_states, emb=temb)
    projected = both_branches(self, how, normed, image, attention_mask, image_rotary_emb)
    return apart(add_branch(how, hidden_states, projected, gate.unsqueeze(1)), image)


def both_branches(
    self: Any, how: FusedRecipe, normed: Tensor, image: int, attention_mask: Tensor | None, tables: Tables | None
) -> Tensor | LaterLinear:
    """Compute attention and feed-forward of a single-stream block (a block on the concatenated tokens of
    video and text), and the linear `proj_out` that projects both results. The result may be a placeholder
    for this linear."""

    def attended(_: Place | None) -> Tensor:
        streams = self.attn(
            hidden_states=normed[:, :image],
            encoder_hidden_states=normed[:, image:],
            attention_mask=attention_mask,
            image_rotary_emb=tables,
        )
        return joined(*streams)

    return both_projected(normed, attended, self.proj_mlp, self.act_mlp, self.proj_out, how)


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether there is a text token, and whether video tokens, text tokens and time embedding have the
    same dtype and device."""
    return encoder_hidden_states.shape[1] > 0 and streams_fit(temb, hidden_states, encoder_hidden_states)


def fits_block(self: Any) -> str | None:
    """Return None if the block's norms before the feed-forwards have no weights. Otherwise, return the reason
    why `patch` cannot replace the block."""
    return affine_norm(self, "norm2", "norm2_context")


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `HunyuanVideoAttnProcessor2_0.__call__` with oxiwarp's kernels."""
    image, heads = hidden_states.shape[1], (attn.heads, -1)
    cos, sin = (None, None) if image_rotary_emb is None else image_rotary_emb
    if attn.add_q_proj is None:
        hidden_states = joined(hidden_states, encoder_hidden_states)
    query, key, value = (project(hidden_states).unflatten(2, heads) for project in (attn.to_q, attn.to_k, attn.to_v))
    turned = None if image_rotary_emb is None or attn.add_q_proj is not None else 0
    streams = [Stream(query, key, attn.norm_q, attn.norm_k, cos, sin, turned)]
    if attn.add_q_proj is not None:
        text_query, text_key, text_value = (
            project(encoder_hidden_states).unflatten(2, heads)
            for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        )
        streams.append(Stream(text_query, text_key, attn.norm_added_q, attn.norm_added_k))
        value = torch.cat([value, text_value], dim=1)
    query, key = queries_and_keys(streams, how, "llama_rms_norm")
    attended = dispatched(
        how,
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=0.0,
        is_causal=False,
        backend=self._attention_backend,
        parallel_config=self._parallel_config,
    )
    attended = attended.flatten(2, 3).to(query.dtype)
    attended, attended_text = attended[:, :image], attended[:, image:]
    if getattr(attn, "to_out", None) is not None:
        attended = attn.to_out[1](attn.to_out[0](attended))
    if getattr(attn, "to_add_out", None) is not None:
        attended_text = attn.to_add_out(attended_text)
    return attended, attended_text


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> bool:
    """Return whether the kernels support the norms and the rotary tables of a call.

    The norms of queries and keys must be diffusers' RMSNorms with weights in the dtype of the input. Rotary
    tables may be absent. Otherwise, they must be float32 and have one row per video token.
    """
    from diffusers.models.normalization import RMSNorm

    text = encoder_hidden_states
    if text is None or text.shape[1] == 0 or text.dtype != hidden_states.dtype:
        return False
    norms = [(attn.norm_q, attn.norm_k)]
    if attn.add_q_proj is not None:
        norms.append((attn.norm_added_q, attn.norm_added_k))
    columns = attn.inner_dim // attn.heads
    return norms_fit(hidden_states, RMSNorm, *norms) and tables_fit(
        image_rotary_emb, hidden_states.shape[1], columns, hidden_states
    )


FUSIONS = (
    Fusion(
        name="hunyuan_video.refiner_block",
        classes=(f"{MODULE}.HunyuanVideoIndividualTokenRefinerBlock",),
        run=refiner_block,
        accepts=accepts_refiner_block,
        fits=fits_refiner_block,
        skips=("norm2",),
        sources={"forward": ("48ce4df242d8",)},
        chains=(
            "gate and residual of attn, norm2: gated_residual_ada_norm",
            "gate and residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="hunyuan_video.block",
        classes=(f"{MODULE}.HunyuanVideoTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=("norm2", "norm2_context"),
        sources={"forward": ("faf74cd8a0a8",)},
        chains=(
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="hunyuan_video.single_block",
        classes=(f"{MODULE}.HunyuanVideoSingleTransformerBlock",),
        run=single_block,
        accepts=accepts_block,
        sources={"forward": ("4e1f80e993d3",)},
        chains=(CHAIN.format("gelu_tanh"), "gate and residual of proj_out: gated_residual"),
    ),
    Fusion(
        name="hunyuan_video.attention",
        classes=(f"{MODULE}.HunyuanVideoAttnProcessor2_0",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        sources={
            "__call__": ("2a91efce37e1",),
            "diffusers.models.embeddings:apply_rotary_emb": ("3c45ff0e7102",),
            "diffusers.models.normalization:RMSNorm.forward": ("84e432f4e63b",),
        },
        chains=("norms of queries and keys, rotary embedding, concatenation: qk_norm_rope",),
    ),
)
