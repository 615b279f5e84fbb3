"""Qwen-Image (diffusers: models/transformers/transformer_qwenimage.py)."""

from typing import Any

import torch
from torch import Tensor

from ..core.attention import dispatched
from ..core.fusion import Fusion
from ..core.ops import ada_norm
from ..core.recipe import FusedRecipe
from ..shared.mmdit import Stream, affine_norm, after_attention, as_rows, norms_fit, queries_and_keys, streams_fit

MODULE = "diffusers.models.transformers.transformer_qwenimage"
Tables = tuple[Tensor, Tensor]
NORMS = ("img_norm1", "img_norm2", "txt_norm1", "txt_norm2")


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    encoder_hidden_states_mask: Tensor | None,
    temb: Tensor,
    image_rotary_emb: Tables | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
    modulate_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `QwenImageTransformerBlock.forward` with oxiwarp's kernels."""
    first, second = self.img_mod(temb).chunk(2, dim=-1)
    of_text, of_text_mlp = self.txt_mod(temb.chunk(2)[0] if self.zero_cond_t else temb).chunk(2, dim=-1)
    index = None if modulate_index is None else rows_of(modulate_index)
    shift, scale, gate = parts(first, index)
    text_shift, text_scale, text_gate = parts(of_text)
    eps, text_eps = self.img_norm1.eps, self.txt_norm1.eps
    attended, attended_text = self.attn(
        hidden_states=ada_norm(as_rows(hidden_states), scale, shift, eps=eps, index=index, mode=how.mode),
        encoder_hidden_states=ada_norm(
            as_rows(encoder_hidden_states), text_scale, text_shift, eps=text_eps, mode=how.mode
        ),
        encoder_hidden_states_mask=encoder_hidden_states_mask,
        image_rotary_emb=image_rotary_emb,
        **(joint_attention_kwargs or {}),
    )
    clip = hidden_states.dtype == torch.float16
    modulation = gate, *parts(second, index)
    hidden_states = after_attention(hidden_states, attended, modulation, self.img_norm2, self.img_mlp, how, clip, index)
    modulation = text_gate, *parts(of_text_mlp)
    encoder_hidden_states = after_attention(
        encoder_hidden_states, attended_text, modulation, self.txt_norm2, self.txt_mlp, how, clip
    )
    return encoder_hidden_states, hidden_states


def parts(modulation: Tensor, index: Tensor | None = None) -> tuple[Tensor, ...]:
    """Split a modulation `[B, 3 D]` into shift, scale and gate. Each has the shape `[B, 1, D]`, or `[B, D]` if an
    index chooses their rows."""
    return (modulation.unsqueeze(1) if index is None else modulation).chunk(3, dim=-1)


def rows_of(index: Tensor) -> Tensor:
    """Return the row of the modulation for each token. `index` has the shape `[B, S]`.

    The modulation has 2 B rows. Tokens with index 0 use the first B rows, and all other tokens use the last B
    rows.
    """
    batch = index.shape[0]
    first = torch.arange(batch, device=index.device, dtype=torch.int32)[:, None]
    return torch.where(index == 0, first, first + batch).contiguous()


def accepts_block(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    encoder_hidden_states_mask: Tensor | None,
    temb: Tensor,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether image tokens, text tokens and time embedding have the same dtype and device."""
    return streams_fit(temb, hidden_states, encoder_hidden_states)


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are LayerNorms without weights. Otherwise, return the reason why
    `patch` cannot replace the block."""
    return affine_norm(self, *NORMS)


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    encoder_hidden_states_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `QwenDoubleStreamAttnProcessor2_0.__call__` with oxiwarp's kernels."""
    if encoder_hidden_states_mask is not None:
        everywhere = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device)
        attention_mask = torch.cat([encoder_hidden_states_mask, everywhere], dim=1)[:, None, None, :]
    heads = (-1, attn.inner_dim // attn.heads)
    query, key, value = (project(hidden_states).unflatten(-1, heads) for project in (attn.to_q, attn.to_k, attn.to_v))
    text_query, text_key, text_value = (
        project(encoder_hidden_states).unflatten(-1, heads)
        for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
    )
    of_image, of_text = (None, None) if image_rotary_emb is None else image_rotary_emb
    streams = [
        Stream(text_query, text_key, attn.norm_added_q, attn.norm_added_k, of_text),
        Stream(query, key, attn.norm_q, attn.norm_k, of_image),
    ]
    query, key = queries_and_keys(streams, how, "llama_rms_norm")
    attended = dispatched(
        how,
        query,
        key,
        torch.cat([text_value, value], dim=1),
        attn_mask=attention_mask,
        dropout_p=0.0,
        is_causal=False,
        backend=self._attention_backend,
        parallel_config=self._parallel_config,
    )
    attended = attended.flatten(2, 3).to(query.dtype)
    text = encoder_hidden_states.shape[1]
    image = attn.to_out[0](attended[:, text:].contiguous())
    if len(attn.to_out) > 1:
        image = attn.to_out[1](image)
    return image, attn.to_add_out(attended[:, :text].contiguous())


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    encoder_hidden_states_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> bool:
    """Return whether the fused method supports the call. Both of these conditions must be met:

    - The norms of queries and keys are diffusers' RMSNorms with weights in the dtype of the input.
    - The call has no rotary tables, or its two rotary tables are complex64. The first table must have one row
      per image token, and the second table must have one row per text token.
    """
    from diffusers.models.normalization import RMSNorm

    if encoder_hidden_states is None or attention_mask is not None:
        return False
    if hidden_states.dtype != encoder_hidden_states.dtype:
        return False
    if image_rotary_emb is not None:
        columns = attn.inner_dim // attn.heads // 2
        for table, x in zip(image_rotary_emb, (hidden_states, encoder_hidden_states), strict=True):
            right = table.dtype == torch.complex64 and table.device == x.device
            if not right or table.shape != (x.shape[1], columns):
                return False
    return norms_fit(hidden_states, RMSNorm, (attn.norm_q, attn.norm_k), (attn.norm_added_q, attn.norm_added_k))


FUSIONS = (
    Fusion(
        name="qwen_image.block",
        classes=(f"{MODULE}.QwenImageTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=NORMS,
        sources={"forward": ("1376a0083b78",), "_modulate": ("1f396a3e2448",)},
        chains=(
            "norm1, modulation: ada_norm",
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of mlp: gated_residual",
        ),
    ),
    Fusion(
        name="qwen_image.attention",
        classes=(f"{MODULE}.QwenDoubleStreamAttnProcessor2_0",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        sources={
            "__call__": ("a396ee5c3927",),
            ":apply_rotary_emb_qwen": ("f2ba3223d11e",),
            "diffusers.models.normalization:RMSNorm.forward": ("84e432f4e63b",),
        },
        chains=("norms of queries and keys, rotary embedding, concatenation: qk_norm_rope",),
    ),
)
