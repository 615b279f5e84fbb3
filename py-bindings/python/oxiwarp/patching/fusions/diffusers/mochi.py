"""Mochi 1 (diffusers: models/transformers/transformer_mochi.py and models/attention_processor.py)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from ...._cache import keep, lasts
from ....ops._register import may_write
from ..core.attention import sdpa
from ..core.fusion import Fusion, same_dtype
from ..core.modules import is_exactly, resident
from ..core.ops import (
    modulated_rms_norm,
    qk_norm_rope,
    residual_tanh_gated_rms_norm,
    residual_tanh_gated_rms_norm_modulated,
)
from ..core.recipe import FusedRecipe

MODULE = "diffusers.models.transformers.transformer_mochi"
NORMS = ("norm1", "norm1_context", "norm2", "norm2_context", "norm3", "norm3_context", "norm4", "norm4_context")
CHAINED = ("norm2", "norm3", "norm4"), ("norm2_context", "norm3_context", "norm4_context")

_tokens = WeakTensorKeyDictionary()  # results of `tokens_of`, by mask tensor


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    encoder_attention_mask: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `MochiTransformerBlock.forward` with oxiwarp's kernels. The last block of the
    model applies no feed-forward to the text tokens."""
    scale, *rest = self.norm1.linear(self.norm1.silu(temb)).chunk(4, dim=1)
    normed = modulated_rms_norm(hidden_states, scale, self.norm1.norm.eps)
    context = self.norm1_context
    if self.context_pre_only:
        scale = context.linear_1(context.silu(temb).to(encoder_hidden_states.dtype))
        normed_context = modulated_rms_norm(encoder_hidden_states, scale, context.norm.norm.eps)
    else:
        scale, *rest_of_context = context.linear(context.silu(temb)).chunk(4, dim=1)
        normed_context = modulated_rms_norm(encoder_hidden_states, scale, context.norm.eps)
    attended, attended_context = self.attn1(
        hidden_states=normed,
        encoder_hidden_states=normed_context,
        image_rotary_emb=image_rotary_emb,
        attention_mask=encoder_attention_mask,
    )
    hidden_states = second_half(hidden_states, attended, rest, self.ff, self.norm2.norm.eps)
    if not self.context_pre_only:
        encoder_hidden_states = second_half(
            encoder_hidden_states, attended_context, rest_of_context, self.ff_context, self.norm2_context.norm.eps
        )
    return hidden_states, encoder_hidden_states


def second_half(
    x: Tensor, attended: Tensor, modulations: list[Tensor], feed_forward: Callable[[Tensor], Tensor], eps: float
) -> Tensor:
    """Run the part of a block after the attention, for video tokens or text tokens `x`.

    Normalise and gate the result of the attention, and add it to `x`. Normalise and modulate the sum, and
    apply the feed-forward. Normalise and gate the result of the feed-forward, and add it to the sum.
    """
    gate, scale, gate_mlp = modulations
    normed, x = residual_tanh_gated_rms_norm_modulated(x, attended, gate, scale, eps)
    return residual_tanh_gated_rms_norm(x, feed_forward(normed), gate_mlp, eps)


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether video tokens, text tokens and time embedding have the same dtype and device, and norms that one
    kernel computes together have the same eps.
    """
    return (
        hidden_states.dim() == encoder_hidden_states.dim() == 3
        and hidden_states.stride(-1) == encoder_hidden_states.stride(-1) == 1
        and same_dtype(hidden_states, encoder_hidden_states, temb)
        and resident(hidden_states.device, encoder_hidden_states, temb)
        and more_than_one_eps(self) is None
    )


def more_than_one_eps(self: Any) -> str | None:
    """If one kernel would have to compute norms with different eps, return a message. Otherwise return
    None."""
    modules = self._modules
    for names in CHAINED[: 1 if self.context_pre_only else 2]:
        first, *others = [modules[name]._modules["norm"].eps for name in names]
        if others != [first, first]:
            return f"{', '.join(names)} have more than one eps"
    return None


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are Mochi's norm modules, and each of them contains an RMSNorm
    without weight. Otherwise, return the reason why `patch` cannot replace the block.

    Norms that one kernel computes together must have the same eps.
    """
    from diffusers.models.normalization import RMSNorm
    from diffusers.models.transformers import transformer_mochi as source

    cls: type
    for name in NORMS:
        norm, cls = getattr(self, name), source.MochiModulatedRMSNorm
        if norm is None:  # in the last block
            continue
        if name == "norm1_context" and self.context_pre_only:
            norm = norm.norm if is_exactly(norm, source.MochiLayerNormContinuous) else norm
        elif name in ("norm1", "norm1_context"):
            cls = source.MochiRMSNormZero
        if not is_exactly(norm, cls) or not is_exactly(norm.norm, RMSNorm) or norm.norm.weight is not None:
            return f"its {name} is not Mochi's with a norm without weight"
    return more_than_one_eps(self)


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the result of `MochiAttnProcessor2_0.__call__` with oxiwarp's kernels.

    The kernel writes query and key of the video tokens into larger tensors. Then query and key of the text
    tokens are copied into the same tensors, so no `torch.cat` is necessary. If gradients are enabled, and
    under torch.func transforms and torch.compile, `torch.cat` is used instead.
    """
    tokens, all_tokens = hidden_states.shape[1], hidden_states.shape[1] + encoder_hidden_states.shape[1]
    query, key, value = attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states)
    text = [project(encoder_hidden_states) for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)]
    norm: dict[str, Any] = {"norm": "mochi_rms_norm", "eps": attn.norm_q.eps, "mode": how.mode}
    norm["head_dim"] = query.shape[-1] // attn.heads
    text[:2] = qk_norm_rope(*text[:2], q_weight=attn.norm_added_q.weight, k_weight=attn.norm_added_k.weight, **norm)
    tables = () if image_rotary_emb is None else (table[None] for table in image_rotary_emb)
    joined = None
    if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and may_write(query):
        joined = [x.new_empty(len(x), all_tokens, x.shape[-1]) for x in (query, key)]
        norm["out"] = tuple(x[:, :tokens] for x in joined)
    query, key = qk_norm_rope(query, key, *tables, q_weight=attn.norm_q.weight, k_weight=attn.norm_k.weight, **norm)

    samples = []
    for at, valid in enumerate(tokens_of(attention_mask)):
        prompt = [x[at : at + 1, valid] for x in text]
        if joined is None:
            parts = [torch.cat([x[at : at + 1], y], dim=1) for x, y in zip((query, key, value), prompt, strict=True)]
        else:
            parts = [x[at : at + 1, : tokens + len(valid)] for x in joined]
            for x, y in zip(parts, prompt, strict=False):
                x[:, tokens:] = y
            parts.append(torch.cat([value[at : at + 1], prompt[2]], dim=1))
        parts = [x.unflatten(2, (attn.heads, -1)).transpose(1, 2) for x in parts]
        attended = sdpa(how, *parts, dropout_p=0.0, is_causal=False)
        attended = attended.transpose(1, 2).flatten(2, 3)
        if joined is None or attended.shape[1] < all_tokens:
            attended = F.pad(attended, (0, 0, 0, all_tokens - attended.shape[1]))
        samples.append(attended)
    attended = samples[0] if len(samples) == 1 else torch.cat(samples)
    attended, attended_text = attended.split_with_sizes((tokens, all_tokens - tokens), dim=1)
    attended = attn.to_out[1](attn.to_out[0](attended))
    return attended, attn.to_add_out(attended_text) if hasattr(attn, "to_add_out") else attended_text


def tokens_of(mask: Tensor) -> tuple[Tensor, ...]:
    """Return one tensor per sample: the indices of the text tokens that the sample's mask selects.

    To find the number of selected tokens, Python must wait for the GPU. All blocks and steps get the same mask, so the
    indices are cached until the mask is freed or written to. Writes are detected by autograd's version counter, which
    misses writes to `mask.data`, through NumPy or DLPack, or by a kernel of another library. A mask that was created in
    inference mode has no version counter, so its indices are not cached.
    """
    if torch.compiler.is_compiling() or not lasts(mask) or mask.is_inference():
        return find_tokens(mask)
    version = mask._version, mask.data_ptr(), mask.device
    return keep(_tokens.setdefault(mask, {}), 1, version, mask.device, lambda: find_tokens(mask))


def find_tokens(mask: Tensor) -> tuple[Tensor, ...]:
    """Compute the result of `tokens_of` without the cache."""
    return tuple(torch.nonzero(of_sample.flatten(), as_tuple=False).flatten() for of_sample in mask)


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    attention_mask: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> bool:
    """Return whether the norms of queries and keys are `MochiRMSNorm` with weights in the dtype of the input.

    The rotary tables must be float32, have separate entries for each head, and not require a gradient.
    """
    from diffusers.models.normalization import MochiRMSNorm

    norms = attn.norm_q, attn.norm_k, attn.norm_added_q, attn.norm_added_k
    tables = () if image_rotary_emb is None else tuple(image_rotary_emb)
    return (
        all(norm is not None and is_exactly(norm, MochiRMSNorm) and norm.eps == attn.norm_q.eps for norm in norms)
        and same_dtype(hidden_states, encoder_hidden_states, *(norm.weight for norm in norms))
        and all(
            table.dim() == 3 and table.stride(-1) == 1 and table.dtype == torch.float32 and not table.requires_grad
            for table in tables
        )
        and resident(hidden_states.device, encoder_hidden_states, attention_mask, *tables)
    )


FUSIONS = (
    Fusion(
        name="mochi.block",
        classes=(f"{MODULE}.MochiTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=(*NORMS, *(f"{name}.norm" for name in NORMS), "norm1_context.norm.norm"),
        sources={
            "forward": ("eb8607c7a416", "f8c957f58977"),
            ":MochiRMSNormZero.forward": ("7e6098c7fba0", "772ad44a1c5f"),
            ":MochiLayerNormContinuous.forward": ("6006fab94088",),
            ":MochiModulatedRMSNorm.forward": ("b772e682aefd", "3de6319e75c0"),
            "diffusers.models.normalization:RMSNorm.forward": ("84e432f4e63b", "8da7d01e2f0c"),
        },
        chains=(
            "norm1, modulation: modulated_rms_norm",
            "norm2, gate, residual of attn1, norm3, modulation: residual_tanh_gated_rms_norm_modulated",
            "norm4, gate, residual of ff: residual_tanh_gated_rms_norm",
        ),
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
    ),
    Fusion(
        name="mochi.attention",
        classes=("diffusers.models.attention_processor.MochiAttnProcessor2_0",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        skips=("norm_q", "norm_k", "norm_added_q", "norm_added_k"),
        sources={
            "__call__": ("835f00d1b5fa", "e6e46eaa676f"),
            "diffusers.models.normalization:MochiRMSNorm.forward": ("9965e8a34471", "4f5b2a6c8707"),
        },
        chains=(
            "norm_q, norm_k, rotary embedding: qk_norm_rope",
            "norm_added_q, norm_added_k: qk_norm_rope",
        ),
        # In float32 on an H200, some bits of the result differ from the original method's result. The reason
        # is unknown.
        exactness={"exact": "bit-exact in 16 bits", "fast": "one rounding"},
    ),
)
