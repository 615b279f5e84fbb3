"""Stable Diffusion 3 and 3.5 (diffusers: models/attention.py, attention_processor.py, transformer_sd3.py)."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.attention import sdpa
from ..core.fusion import Fusion
from ..core.ops import gated_residual
from ..core.recipe import FusedRecipe
from ..shared.mmdit import Stream, affine_norm, after_attention, as_rows, norms_fit, queries_and_keys, streams_fit

MODULE = "diffusers.models.attention_processor"


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor | None, Tensor]:
    """Compute the result of `JointTransformerBlock.forward` with oxiwarp's kernels."""
    options = joint_attention_kwargs or {}
    normed, *modulation = self.norm1(hidden_states, emb=temb)
    if self.context_pre_only:
        normed_text, text_modulation = self.norm1_context(encoder_hidden_states, temb), []
    else:
        normed_text, *text_modulation = self.norm1_context(encoder_hidden_states, emb=temb)
    attended, attended_text = self.attn(hidden_states=normed, encoder_hidden_states=normed_text, **options)
    if self.use_dual_attention:
        gate, *modulation, normed, gate2 = modulation
        hidden_states = gated_residual(as_rows(hidden_states), attended, gate.unsqueeze(1), mode=how.mode)
        attended = self.attn2(hidden_states=normed, **options)
        modulation = [gate2, *modulation]
    hidden_states = after_attention(hidden_states, attended, modulation, self.norm2, in_chunks(self, self.ff), how)
    if self.context_pre_only:
        return None, hidden_states
    feed_forward = in_chunks(self, self.ff_context)
    encoder_hidden_states = after_attention(
        encoder_hidden_states, attended_text, text_modulation, self.norm2_context, feed_forward, how
    )
    return encoder_hidden_states, hidden_states


def in_chunks(self: Any, feed_forward: Any) -> Any:
    """Return the module `feed_forward`. If the block has a chunk size, instead return a function that runs this module
    for one chunk of tokens after another.
    """
    if self._chunk_size is None:
        return feed_forward
    from diffusers.models.attention import _chunked_feed_forward

    return partial(_chunked_feed_forward, feed_forward, chunk_dim=self._chunk_dim, chunk_size=self._chunk_size)


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether image tokens, text tokens and time embedding have the same dtype and device."""
    return streams_fit(temb, hidden_states, encoder_hidden_states)


def fits_block(self: Any) -> str | None:
    """Return None if the block's norms before the feed-forwards have no weights. Otherwise, return the reason
    why `patch` cannot replace the block."""
    return affine_norm(self, *(["norm2"] if self.norm2_context is None else ["norm2", "norm2_context"]))


def single_block(self: Any, how: FusedRecipe, hidden_states: Tensor, temb: Tensor) -> Tensor:
    """Compute the result of `SD3SingleTransformerBlock.forward` with oxiwarp's kernels."""
    normed, *modulation = self.norm1(hidden_states, emb=temb)
    attended = self.attn(hidden_states=normed, encoder_hidden_states=None)
    return after_attention(hidden_states, attended, modulation, self.norm2, self.ff, how)


def accepts_single_block(self: Any, hidden_states: Tensor, temb: Tensor) -> bool:
    """Return whether tokens and time embedding have the same dtype and device."""
    return streams_fit(temb, hidden_states)


def fits_single_block(self: Any) -> str | None:
    """Return None if the block's norm before the feed-forward has no weight. Otherwise, return the reason why
    `patch` cannot replace the block."""
    return affine_norm(self, "norm2")


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the result of `JointAttnProcessor2_0.__call__` with oxiwarp's kernels. The attention function gets query,
    key and value in the memory layout that they have in diffusers.
    """
    heads = (attn.heads, -1)
    query, key, value = (project(hidden_states).unflatten(2, heads) for project in (attn.to_q, attn.to_k, attn.to_v))
    if encoder_hidden_states is None:
        both = queries_and_keys([Stream(query, key, attn.norm_q, attn.norm_k)], how, "llama_rms_norm")
        query, key, value = (x.transpose(1, 2) for x in (*both, value))
    else:
        of_text = (
            project(encoder_hidden_states).unflatten(2, heads).transpose(1, 2)
            for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        )
        text_query, text_key, text_value = of_text
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        streams = [
            Stream(query, key, attn.norm_q, attn.norm_k),
            Stream(text_query, text_key, attn.norm_added_q, attn.norm_added_k),
        ]
        query, key = queries_and_keys(streams, how, "llama_rms_norm", heads_first=True)
        value = torch.cat([value, text_value], dim=2)
    attended = sdpa(how, query, key, value, dropout_p=0.0, is_causal=False)
    attended = attended.transpose(1, 2).flatten(2).to(query.dtype)
    if encoder_hidden_states is None:
        return attn.to_out[1](attn.to_out[0](attended))
    tokens = hidden_states.shape[1]
    attended, attended_text = attended[:, :tokens], attended[:, tokens:]
    if not attn.context_pre_only:
        attended_text = attn.to_add_out(attended_text)
    return attn.to_out[1](attn.to_out[0](attended)), attended_text


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether the norms of query and key are diffusers' RMSNorms with weights in the dtype of the
    input.

    Stable Diffusion 3.5 has these norms. Stable Diffusion 3 does not have them, so there is nothing to fuse.
    """
    from diffusers.models.normalization import RMSNorm

    norms = [(attn.norm_q, attn.norm_k)]
    if encoder_hidden_states is not None:
        norms.append((attn.norm_added_q, attn.norm_added_k))
        if encoder_hidden_states.dtype != hidden_states.dtype:
            return False
    return hidden_states.dim() == 3 and norms_fit(hidden_states, RMSNorm, *norms)


def fits_attention(attn: Any) -> str | None:
    """Return None if the attention module normalises its queries. Otherwise, return the reason why `patch`
    cannot replace the module's processor.
    """
    return None if attn.norm_q is not None else "its attention has no norms of queries and keys"


FUSIONS = (
    Fusion(
        name="sd3.block",
        classes=("diffusers.models.attention.JointTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=("norm2", "norm2_context"),
        sources={"forward": ("ef92e653230c",)},
        chains=(
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of ff, of attn before attn2: gated_residual",
        ),
    ),
    Fusion(
        name="sd3.single_block",
        classes=("diffusers.models.transformers.transformer_sd3.SD3SingleTransformerBlock",),
        run=single_block,
        accepts=accepts_single_block,
        fits=fits_single_block,
        skips=("norm2",),
        sources={"forward": ("a290e52b10c2",)},
        chains=(
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="sd3.attention",
        classes=(f"{MODULE}.JointAttnProcessor2_0",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        fits_owner=fits_attention,
        sources={"__call__": ("9ffc347b536d",), "diffusers.models.normalization:RMSNorm.forward": ("84e432f4e63b",)},
        chains=("norms of queries and keys, concatenation: qk_norm_rope",),
    ),
)
