"""LTX-Video (diffusers: models/transformers/transformer_ltx.py)."""

from typing import Any

from torch import Tensor, nn

from ..core.attention import dispatched, mask_of_heads
from ..core.fusion import Fusion, compiling, same_dtype
from ..core.modules import is_exactly, resident
from ..core.operands import as_rows
from ..core.ops import ada_norm, gated_residual, gated_residual_ada_norm, qk_norm_rope
from ..core.recipe import FusedRecipe
from ..shared.feed_forward import add_branch, later_branch

MODULE = "diffusers.models.transformers.transformer_ltx"
ONCE = "_oxiwarp_once"
"""Name of an attribute of the tensor `cos`. Its value is a tuple of `sin` and two smaller tables of cosines
and sines.

`cos` and `sin` contain each angle twice, once for each column of a pair. The smaller tables contain each
angle once."""


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    encoder_attention_mask: Tensor | None = None,
) -> Tensor:
    """Compute the result of `LTXVideoTransformerBlock.forward` with oxiwarp's kernels."""
    hidden_states = as_rows(hidden_states)
    table = self.scale_shift_table.unbind(0)
    values = temb.unflatten(-1, (len(table), -1)).unbind(2)
    (shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp) = values
    of_shift_msa, of_scale_msa, of_gate_msa, of_shift_mlp, of_scale_mlp, of_gate_mlp = table

    normed = ada_norm(
        hidden_states,
        scale_msa,
        shift_msa,
        norm="rms_norm",
        eps=self.norm1.eps,
        scale_table=of_scale_msa,
        shift_table=of_shift_msa,
        mode=how.mode,
    )
    attended = self.attn1(hidden_states=normed, encoder_hidden_states=None, image_rotary_emb=image_rotary_emb)
    hidden_states = gated_residual(hidden_states, attended, gate_msa, gate_table=of_gate_msa, mode=how.mode)
    attended = self.attn2(
        hidden_states,
        encoder_hidden_states=encoder_hidden_states,
        image_rotary_emb=None,
        attention_mask=encoder_attention_mask,
    )
    normed, hidden_states = gated_residual_ada_norm(
        hidden_states,
        attended,
        None,
        scale_mlp,
        shift_mlp,
        norm="rms_norm",
        eps=self.norm2.eps,
        scale_table=of_scale_mlp,
        shift_table=of_shift_mlp,
        mode=how.mode,
    )
    return add_branch(how, hidden_states, later_branch(how, self.ff, normed), gate_mlp, gate_table=of_gate_mlp)


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether video tokens, time embedding and modulation table have the same dtype and device."""
    table = self.scale_shift_table
    return same_dtype(hidden_states, temb, table) and resident(hidden_states.device, table, temb)


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are diffusers' RMSNorms without weights. Otherwise, return the
    reason why `patch` cannot replace the block."""
    from diffusers.models.normalization import RMSNorm

    known = all(is_exactly(norm, RMSNorm) and norm.weight is None for norm in (self.norm1, self.norm2))
    return None if known else "its norms are not diffusers' RMSNorm without weight"


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute the result of `LTXVideoAttnProcessor.__call__` with oxiwarp's kernels."""
    source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
    if attention_mask is not None:
        attention_mask = mask_of_heads(attn, attention_mask, source)
    query, key, value = attn.to_q(hidden_states), attn.to_k(source), attn.to_v(source)
    norm_q, norm_k = attn.norm_q, attn.norm_k
    eps, weights = norm_q.eps, (norm_q.weight, norm_k.weight)
    if image_rotary_emb is not None:
        cos, sin = once(*image_rotary_emb)
        query, key = qk_norm_rope(
            query, key, cos, sin, q_weight=weights[0], k_weight=weights[1], eps=eps, mode=how.mode
        )
    else:
        query = qk_norm_rope(query, q_weight=weights[0], eps=eps, mode=how.mode)
        key = qk_norm_rope(key, q_weight=weights[1], eps=eps, mode=how.mode)
    query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
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
    return attn.to_out[1](attn.to_out[0](attended))


def once(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return rotary tables with one entry per pair of columns, if `ltx_rope.py` has attached such tables to `cos` as an
    attribute.

    `cos` and `sin` have two equal entries per pair. If there are no smaller tables, or if other code has
    written to `cos` or `sin`, return `cos` and `sin`.
    """
    found = getattr(cos, ONCE, None)
    if found is None or found[0] is not sin:
        return cos, sin
    untouched = compiling() or cos.is_inference() or cos._version == sin._version == 0
    return found[1:] if untouched else (cos, sin)


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    image_rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> bool:
    """Return whether the norms of queries and keys are `nn.RMSNorm`, with the same eps, and with weights in
    the dtype of the input."""
    norm_q, norm_k = attn.norm_q, attn.norm_k
    return (
        is_exactly(norm_q, nn.RMSNorm)
        and is_exactly(norm_k, nn.RMSNorm)
        and norm_q.eps is not None
        and norm_q.eps == norm_k.eps
        and same_dtype(hidden_states, norm_q.weight, norm_k.weight)
    )


FUSIONS = (
    Fusion(
        name="ltx.block",
        classes=(f"{MODULE}.LTXVideoTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=("norm1", "norm2"),
        sources={
            "forward": ("c97c0ac36724",),
            "diffusers.models.normalization:RMSNorm.forward": ("84e432f4e63b", "8da7d01e2f0c"),
        },
        chains=(
            "norm1, modulation with table: ada_norm",
            "gate, table, residual of attn1: gated_residual",
            "residual of attn2, norm2, modulation with table: gated_residual_ada_norm",
            "gate, table, residual of ff: gated_residual",
        ),
    ),
    Fusion(
        name="ltx.attention",
        classes=(f"{MODULE}.LTXVideoAttnProcessor",),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        skips=("norm_q", "norm_k"),
        sources={"__call__": ("5be6fa4daa60",), ":apply_rotary_emb": ("bed522897ef4",)},
        chains=("norm_q, norm_k, rotary embedding: qk_norm_rope",),
    ),
)
