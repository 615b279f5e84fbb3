"""Fusions for Flux (diffusers: models/transformers/transformer_flux.py).

A fusion is a hand-written method that replaces a method of a model's class. The fusions in this file also work for
Chroma, which uses Flux's attention class. They also work for Bria Fibo, LongCat-Image and Ovis-Image, which have copies
of Flux's blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.attention import dispatched
from ..core.fusion import Fusion
from ..core.recipe import FusedRecipe
from ..shared.feed_forward import add_branch
from ..shared.mmdit import (
    Stream,
    affine_norm,
    after_attention,
    apart,
    joined,
    norms_fit,
    products,
    queries_and_keys,
    streams_fit,
    tables_fit,
)
from ..shared.parallel_block import CHAIN, Place, both_projected, give_place, take_place

MODULE = "diffusers.models.transformers.transformer_flux"
Tables = tuple[Tensor, Tensor]


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    image_rotary_emb: Tables | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `FluxTransformerBlock.forward` with oxiwarp's kernels."""
    normed, *modulation = self.norm1(hidden_states, emb=temb)
    normed_text, *text_modulation = self.norm1_context(encoder_hidden_states, emb=temb)
    attended, attended_text, *of_ip_adapter = self.attn(
        hidden_states=normed,
        encoder_hidden_states=normed_text,
        image_rotary_emb=image_rotary_emb,
        **(joint_attention_kwargs or {}),
    )
    hidden_states = after_attention(hidden_states, attended, modulation, self.norm2, self.ff, how)
    if of_ip_adapter:
        hidden_states = hidden_states + of_ip_adapter[0]
    clip = encoder_hidden_states.dtype == torch.float16
    encoder_hidden_states = after_attention(
        encoder_hidden_states, attended_text, text_modulation, self.norm2_context, self.ff_context, how, clip
    )
    return encoder_hidden_states, hidden_states


def single_block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    image_rotary_emb: Tables | None = None,
    joint_attention_kwargs: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `FluxSingleTransformerBlock.forward` with oxiwarp's kernels."""
    hidden_states = joined(encoder_hidden_states, hidden_states)
    normed, gate = self.norm(hidden_states, emb=temb)

    def attended(out: Place | None) -> Tensor:
        attn = self.attn
        give_place(attn, normed, out)
        return attn(hidden_states=normed, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {}))

    branch = both_projected(normed, attended, self.proj_mlp, self.act_mlp, self.proj_out, how)
    clip = hidden_states.dtype == torch.float16
    hidden_states = add_branch(how, hidden_states, branch, gate.unsqueeze(1), clip=clip)
    return apart(hidden_states, encoder_hidden_states.shape[1])


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether image tokens, text tokens and time embedding have the same dtype and device."""
    return streams_fit(temb, hidden_states, encoder_hidden_states)


def fits_block(self: Any) -> str | None:
    """Return None if the block's norms before the feed-forwards have no weights. Otherwise, return the reason
    why `patch` cannot replace the block."""
    return affine_norm(self, "norm2", "norm2_context")


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the result of `FluxAttnProcessor.__call__` with oxiwarp's kernels."""
    from diffusers.models.transformers.transformer_flux import _get_qkv_projections

    projected = project(attn, hidden_states, encoder_hidden_states, _get_qkv_projections)
    out = take_place(hidden_states) if encoder_hidden_states is None else None
    attended = attend(self, how, attn, projected, attention_mask, image_rotary_emb, out)
    if encoder_hidden_states is None:
        return attended
    text = encoder_hidden_states.shape[1]
    attended_text, attended = attended[:, :text].contiguous(), attended[:, text:].contiguous()
    return attn.to_out[1](attn.to_out[0](attended)), attn.to_add_out(attended_text)


def project(attn: Any, image: Tensor, text: Tensor | None, own: Callable[..., Sequence[Any]]) -> Sequence[Any]:
    """Return query, key and value of the image tokens, then of the text tokens.

    `own` is the function of diffusers that computes these tensors. If the modules permit it, the function `products`
    writes the value vectors of all tokens into one tensor. This tensor is then returned twice, as the value of the
    image tokens and as the value of the text tokens.
    """
    if text is None or attn.fused_projections:
        return own(attn, image, text)
    values = products([(attn.add_v_proj, text), (attn.to_v, image)])
    if values is None:
        return own(attn, image, text)
    return attn.to_q(image), attn.to_k(image), values, attn.add_q_proj(text), attn.add_k_proj(text), values


def attend(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    projected: Sequence[Any],
    attention_mask: Tensor | None,
    image_rotary_emb: Tables | None,
    out: Place | None = None,
) -> Tensor:
    """Compute the attention over image tokens and, if there are any, text tokens. The result has shape
    `[B, S, heads * D]`.

    `projected` contains query, key and value of the image tokens, followed by query, key and value of the
    text tokens. If `out` is given, the kernel may write its result there. If it does, return `out.first`.
    """
    of_image, of_text = projected[:3], [x for x in projected[3:] if isinstance(x, Tensor)]
    cos, sin = (None, None) if image_rotary_emb is None else image_rotary_emb
    streams, first = [], 0
    values = of_text[2:] + [of_image[2]]
    if len(values) == 2 and values[0] is values[1]:
        values.pop()
    for three, norms in ((of_text, ("norm_added_q", "norm_added_k")), (of_image, ("norm_q", "norm_k"))):
        if not three:
            continue
        query, key = (x.unflatten(-1, (-1, attn.head_dim)) for x in three[:2])
        tokens = slice(first, first + query.shape[1])
        tables = () if cos is None or sin is None else (cos[tokens], sin[tokens])
        streams.append(Stream(query, key, *(getattr(attn, norm) for norm in norms), *tables))
        first = tokens.stop
    query, key = queries_and_keys(streams, how, "rms_norm")
    heads = None if out is None else out.heads(query)
    attended = dispatched(
        how,
        query,
        key,
        (values[0] if len(values) == 1 else torch.cat(values, dim=1)).unflatten(-1, (-1, attn.head_dim)),
        attn_mask=attention_mask,
        backend=self._attention_backend,
        parallel_config=self._parallel_config,
        out=heads,
    )
    if out is not None and out.first is not None and attended is heads:  # `heads` is a view of `out.first`
        return out.first
    flat: Tensor = attended.flatten(2, 3).to(query.dtype)
    return flat


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: Tables | None = None,
) -> bool:
    """Return whether the norms of queries and keys are `nn.RMSNorm` with weights in the dtype of the input,
    and the rotary tables are float32."""
    tokens, norms = hidden_states.shape[1], [(attn.norm_q, attn.norm_k)]
    if (encoder_hidden_states is None) != (attn.added_kv_proj_dim is None):
        return False
    if encoder_hidden_states is not None:
        tokens += encoder_hidden_states.shape[1]
        norms.append((attn.norm_added_q, attn.norm_added_k))
        if encoder_hidden_states.dtype != hidden_states.dtype:
            return False
    return norms_fit(hidden_states, nn.RMSNorm, *norms) and tables_fit(
        image_rotary_emb, tokens, attn.head_dim, hidden_states
    )


FUSIONS = (
    Fusion(
        name="flux.block",
        classes=(
            f"{MODULE}.FluxTransformerBlock",
            "diffusers.models.transformers.transformer_bria_fibo.BriaFiboTransformerBlock",
            "diffusers.models.transformers.transformer_longcat_image.LongCatImageTransformerBlock",
            "diffusers.models.transformers.transformer_ovis_image.OvisImageTransformerBlock",
        ),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=("norm2", "norm2_context"),
        sources={"forward": ("e6258edcc84c",)},
        chains=(
            "gate and residual of attn, norm2, modulation: gated_residual_ada_norm",
            "gate and residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="flux.single_block",
        classes=(
            f"{MODULE}.FluxSingleTransformerBlock",
            "diffusers.models.transformers.transformer_longcat_image.LongCatImageSingleTransformerBlock",
        ),
        run=single_block,
        accepts=accepts_block,
        sources={"forward": ("ea664ed4def4",)},
        chains=(CHAIN.format("gelu_tanh"), "gate and residual of proj_out: gated_residual"),
    ),
    Fusion(
        name="flux.attention",
        classes=(f"{MODULE}.FluxAttnProcessor",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        skips=("norm_q", "norm_k"),
        sources={
            "__call__": ("2584d7906083",),
            ":_get_qkv_projections": ("c88af5f796a1",),
            ":_get_projections": ("f02c38206a80",),
            "diffusers.models.embeddings:apply_rotary_emb": ("3c45ff0e7102",),
        },
        chains=("norms of queries and keys, concatenation, rotary embedding: qk_norm_rope",),
    ),
)
