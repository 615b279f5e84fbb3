"""Fusions for Flux 2 (diffusers: models/transformers/transformer_flux2.py). All blocks of Flux 2 get the same
modulations, unlike the blocks of Flux.

A fusion is a hand-written method that replaces a method of a model's class. In a single-stream block of Flux
2, one linear computes query, key, value and the input of the feed-forward's activation.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ....ops import silu_and_mul
from ...class_swap import base_of
from ..core.fusion import Fusion
from ..core.modules import hooked
from ..core.ops import ada_norm, gated_residual
from ..core.recipe import FusedRecipe
from ..shared.mmdit import affine_norm, after_attention, apart, as_rows, joined, norms_fit, streams_fit, tables_fit
from ..shared.parallel_block import CHAIN, Place, side_by_side, writes_beside
from .flux import Tables, accepts_attention, attend

MODULE = "diffusers.models.transformers.transformer_flux2"
NORMS = ("norm1", "norm1_context", "norm2", "norm2_context")


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb_mod_img: Tensor,
    temb_mod_txt: Tensor,
    image_rotary_emb: Tables | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `Flux2TransformerBlock.forward` with oxiwarp's kernels."""
    hidden_states, encoder_hidden_states = as_rows(hidden_states), as_rows(encoder_hidden_states)
    shift, scale, *modulation = parts(temb_mod_img, 6)
    text_shift, text_scale, *text_modulation = parts(temb_mod_txt, 6)
    eps, text_eps = self.norm1.eps, self.norm1_context.eps
    attended, attended_text = self.attn(
        hidden_states=ada_norm(hidden_states, scale, shift, eps=eps, mode=how.mode),
        encoder_hidden_states=ada_norm(encoder_hidden_states, text_scale, text_shift, eps=text_eps, mode=how.mode),
        image_rotary_emb=image_rotary_emb,
        **(joint_attention_kwargs or {}),
    )
    hidden_states = after_attention(hidden_states, attended, modulation, self.norm2, self.ff, how)
    clip = encoder_hidden_states.dtype == torch.float16
    encoder_hidden_states = after_attention(
        encoder_hidden_states, attended_text, text_modulation, self.norm2_context, self.ff_context, how, clip
    )
    return encoder_hidden_states, hidden_states


def parts(modulation: Tensor, count: int) -> tuple[Tensor, ...]:
    """Split a modulation `[B, count * D]` or `[B, S, count * D]` into `count` tensors (shifts, scales and
    gates).

    Each of these tensors has shape `[B, 1, D]` or `[B, S, D]`.
    """
    return (modulation.unsqueeze(1) if modulation.dim() == 2 else modulation).chunk(count, dim=-1)


def accepts_block(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb_mod_img: Tensor,
    temb_mod_txt: Tensor,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether image tokens, text tokens and both modulations have the same dtype."""
    return temb_mod_txt.dtype == temb_mod_img.dtype and streams_fit(
        temb_mod_img, hidden_states, encoder_hidden_states, dims=(2, 3)
    )


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are LayerNorms without weights. Otherwise, return the reason why
    `patch` cannot replace the block."""
    return affine_norm(self, *NORMS)


def single_block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None,
    temb_mod: Tensor,
    image_rotary_emb: Tables | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
    split_hidden_states: bool = False,
    text_seq_len: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the result of `Flux2SingleTransformerBlock.forward` with oxiwarp's kernels."""
    if encoder_hidden_states is not None:
        text_seq_len = encoder_hidden_states.shape[1]
        hidden_states = joined(encoder_hidden_states, hidden_states)
    hidden_states = as_rows(hidden_states)
    shift, scale, gate = parts(temb_mod, 3)
    attended = self.attn(
        hidden_states=ada_norm(hidden_states, scale, shift, eps=self.norm.eps, mode=how.mode),
        image_rotary_emb=image_rotary_emb,
        **(joint_attention_kwargs or {}),
    )
    clip = hidden_states.dtype == torch.float16
    hidden_states = gated_residual(hidden_states, attended, gate, clip=clip, mode=how.mode)
    if split_hidden_states:
        return apart(hidden_states, text_seq_len)
    return hidden_states


def accepts_single_block(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None,
    temb_mod: Tensor,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether the token tensors (one or two) and the modulation have the same dtype and device."""
    streams = [hidden_states] if encoder_hidden_states is None else [hidden_states, encoder_hidden_states]
    return streams_fit(temb_mod, *streams, dims=(2, 3))


def fits_single_block(self: Any) -> str | None:
    """Return None if the norm of the block is a LayerNorm without weight. Otherwise, return the reason why
    `patch` cannot replace the block."""
    return affine_norm(self, "norm")


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the result of `Flux2AttnProcessor.__call__` with oxiwarp's kernels."""
    from diffusers.models.transformers.transformer_flux2 import _get_qkv_projections

    projected = _get_qkv_projections(attn, hidden_states, encoder_hidden_states)
    attended = attend(self, how, attn, projected, attention_mask, image_rotary_emb)
    if encoder_hidden_states is None:
        return attn.to_out[1](attn.to_out[0](attended))
    text = encoder_hidden_states.shape[1]
    attended_text = attn.to_add_out(attended[:, :text])
    return attn.to_out[1](attn.to_out[0](attended[:, text:])), attended_text


def parallel_attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> Tensor:
    """Compute the result of `Flux2ParallelSelfAttnProcessor.__call__` with oxiwarp's kernels."""
    projected = attn.to_qkv_mlp_proj(hidden_states)
    of_attention = 3 * attn.inner_dim
    whole = of_attention + attn.mlp_hidden_dim * attn.mlp_mult_factor
    of_attention = projected.shape[-1] * of_attention // whole  # fewer with tensor parallelism
    qkv, inner = projected.split([of_attention, projected.shape[-1] - of_attention], dim=-1)

    def attended(out: Place | None) -> Tensor:
        return attend(self, how, attn, qkv.chunk(3, dim=-1), attention_mask, image_rotary_emb, out)

    op = swiglu_of(attn.mlp_act_fn)
    if op is None or not writes_beside(inner):
        return attn.to_out(torch.cat([attended(None), attn.mlp_act_fn(inner)], dim=2))
    return attn.to_out(side_by_side(attended, inner, how, op, share=2))


def swiglu_of(activation: Any) -> Any:
    """If `activation` is a `Flux2SwiGLU` without hooks, return the oxiwarp operator that computes it.
    Otherwise return None."""
    from diffusers.models.transformers.transformer_flux2 import Flux2SwiGLU

    known = base_of(activation) is Flux2SwiGLU and type(activation.gate_fn) is nn.SiLU
    return silu_and_mul if known and not hooked(activation) and not hooked(activation.gate_fn) else None


def accepts_parallel_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> bool:
    """Return whether the norms of queries and keys are `nn.RMSNorm` with weights in the dtype of the input,
    and the rotary tables are float32."""
    return norms_fit(hidden_states, nn.RMSNorm, (attn.norm_q, attn.norm_k)) and tables_fit(
        image_rotary_emb, hidden_states.shape[1], attn.head_dim, hidden_states
    )


QK = "norms of queries and keys, concatenation, rotary embedding: qk_norm_rope"
ROPE = "diffusers.models.embeddings:apply_rotary_emb"

FUSIONS = (
    Fusion(
        name="flux2.block",
        classes=(f"{MODULE}.Flux2TransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=NORMS,
        sources={"forward": ("8dea71df51a4",), ":Flux2Modulation.split": ("85dd8ebce2d8",)},
        chains=(
            "norm1, modulation: ada_norm",
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="flux2.single_block",
        classes=(f"{MODULE}.Flux2SingleTransformerBlock",),
        run=single_block,
        accepts=accepts_single_block,
        fits=fits_single_block,
        skips=("norm",),
        sources={"forward": ("e034dca1057f",), ":Flux2Modulation.split": ("85dd8ebce2d8",)},
        chains=("norm, modulation: ada_norm", "gate and residual of attn: gated_residual"),
    ),
    Fusion(
        name="flux2.attention",
        classes=(f"{MODULE}.Flux2AttnProcessor",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        skips=("norm_q", "norm_k"),
        sources={"__call__": ("67275dd5f930",), ROPE: ("3c45ff0e7102",)},
        chains=(QK,),
    ),
    Fusion(
        name="flux2.parallel_attention",
        classes=(f"{MODULE}.Flux2ParallelSelfAttnProcessor",),
        method="__call__",
        run=parallel_attention,
        accepts=accepts_parallel_attention,
        skips=("norm_q", "norm_k"),
        sources={
            "__call__": ("89ab3bb5de25",),
            ":Flux2SwiGLU.forward": ("10a68f258ccb",),
            ROPE: ("3c45ff0e7102",),
        },
        chains=(QK.replace(", concatenation", ""), CHAIN.format("silu_and_mul")),
    ),
)
