"""Fusions for Wan 2.1 and 2.2, including VACE, Animate and ChronoEdit (diffusers:
models/transformers/transformer_wan*.py).

A fusion is a hand-written method that replaces a method of a model's class. In Wan, the modulations (shifts, scales and
gates) are float32: `scale_shift_table + temb.float()`. The original blocks therefore compute norms and sums in float32
and cast only the results. The fused blocks do the same, in mode "exact" and in mode "fast".
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.attention import dispatched
from ..core.fusion import Fusion, same_dtype
from ..core.modules import is_exactly, resident
from ..core.ops import ada_norm, gated_residual, gated_residual_ada_norm, qk_norm_rope
from ..core.recipe import FusedRecipe
from ..shared.feed_forward import add_branch, later_branch
from ..shared.mmdit import as_rows
from ..shared.residual_layer_norm import residual_layer_norm

WAN = "diffusers.models.transformers.transformer_wan"


def modulations(self: Any, temb: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """Return the six modulations (shifts, scales and gates) and six table rows, which the kernels add to the
    modulations. A row is None if this function has already added it.

    For a 3-D `temb`, the modulations are float32, `[B, 1, N]`, and the rows are None.

    In Wan 2.2 5B, `temb` is 4-D, because each token has separate modulations. In float32, the six sums of `temb` and
    the table would need twelve times the memory of 16-bit hidden states. For a 4-D `temb`, this function therefore
    returns slices of `temb` and the rows of the table, and the kernels add them.
    """
    table = self.scale_shift_table.float()
    if temb.dim() == 4:
        return temb.unbind(2), table[0].unbind(0)
    return (table + temb.float()).chunk(6, dim=1), (None,) * 6


def block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    temb: Tensor,
    rotary_emb: Any,
) -> Tensor:
    """Compute the result of `WanTransformerBlock.forward` with oxiwarp's kernels."""
    hidden_states = as_rows(hidden_states)
    values, tables = modulations(self, temb)
    shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = values
    of_shift_msa, of_scale_msa, of_gate_msa, of_shift_mlp, of_scale_mlp, of_gate_mlp = tables

    normed = ada_norm(
        hidden_states,
        scale_msa,
        shift_msa,
        eps=self.norm1.eps,
        scale_table=of_scale_msa,
        shift_table=of_shift_msa,
        mode=how.mode,
    )
    attended = self.attn1(normed, None, None, rotary_emb)
    gate: dict[str, Any] = {"gate": gate_msa, "gate_table": of_gate_msa, "mode": how.mode}
    if isinstance(self.norm2, nn.Identity):
        normed = hidden_states = gated_residual(hidden_states, attended, **gate)
    else:
        normed, hidden_states = residual_layer_norm(hidden_states, attended, self.norm2, **gate)
    attended = self.attn2(normed, encoder_hidden_states, None, None)
    normed, hidden_states = gated_residual_ada_norm(
        hidden_states,
        attended,
        None,
        scale_mlp,
        shift_mlp,
        eps=self.norm3.eps,
        scale_table=of_scale_mlp,
        shift_table=of_shift_mlp,
        mode=how.mode,
    )
    return add_branch(how, hidden_states, later_branch(how, self.ffn, normed), gate_mlp, gate_table=of_gate_mlp)


def accepts_block(
    self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, *args: Any, **kwargs: Any
) -> bool:
    """Return whether all operands are on one device. If each token has separate modulations, they must be
    float32 or have the dtype of the input."""
    return (
        hidden_states.dim() == 3
        and (temb.dim() == 3 or (temb.dim() == 4 and temb.dtype in (hidden_states.dtype, torch.float32)))
        and resident(hidden_states.device, self.scale_shift_table, temb)
    )


def fits_block(self: Any) -> str | None:
    """Return None if the norms of the block are diffusers' FP32LayerNorm (the second norm may be missing).
    Otherwise, return the reason why `patch` cannot replace the block.

    Only the second norm (norm2, before the cross-attention) may have parameters.
    """
    from diffusers.models.normalization import FP32LayerNorm

    plain = self.norm1, self.norm3
    if not all(is_exactly(norm, FP32LayerNorm) and norm.weight is None for norm in plain):
        return "norm1 or norm3 is no FP32LayerNorm without weight"
    known = is_exactly(self.norm2, FP32LayerNorm) or isinstance(self.norm2, nn.Identity)
    return None if known else "norm2 is no FP32LayerNorm"


def vace_block(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    control_hidden_states: Tensor,
    temb: Tensor,
    rotary_emb: Any,
) -> tuple[Tensor | None, Tensor]:
    """Compute the result of `WanVACETransformerBlock.forward` with oxiwarp's kernels. This is a Wan block for
    the control tokens, with an optional linear before it and another after it."""
    if self.proj_in is not None:
        control_hidden_states = self.proj_in(control_hidden_states) + hidden_states
    control_hidden_states = block(self, how, control_hidden_states, encoder_hidden_states, temb, rotary_emb)
    conditioning = None if self.proj_out is None else self.proj_out(control_hidden_states)
    return conditioning, control_hidden_states


def accepts_vace_block(
    self: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    control_hidden_states: Tensor,
    temb: Tensor,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether the control tokens have the dtype of the hidden states, and `accepts_block` accepts the control
    tokens in place of the hidden states.
    """
    return (
        temb.dim() == 3
        and same_dtype(hidden_states, control_hidden_states)
        and accepts_block(self, control_hidden_states, encoder_hidden_states, temb)
    )


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute the result of `WanAttnProcessor.__call__` with oxiwarp's kernels."""
    from diffusers.models.transformers.transformer_wan import _get_added_kv_projections, _get_qkv_projections

    options: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False, "backend": self._attention_backend}
    image = None
    if attn.add_k_proj is not None:
        assert encoder_hidden_states is not None
        image_length = encoder_hidden_states.shape[1] - 512  # the last 512 are text tokens
        image, encoder_hidden_states = encoder_hidden_states[:, :image_length], encoder_hidden_states[:, image_length:]
    source: Any = encoder_hidden_states  # Any: it may be None, which diffusers' annotation excludes
    query, key, value = _get_qkv_projections(attn, hidden_states, source)
    heads = {"eps": attn.norm_q.eps, "across_heads": True, "head_dim": query.shape[-1] // attn.heads, "mode": how.mode}
    if rotary_emb is not None:
        # As in the original method, take the cosine of each pair's first column and the sine of its second
        # column. The kernel needs one value per pair.
        cos, sin = rotary_emb[0][..., 0::2].contiguous(), rotary_emb[1][..., 1::2].contiguous()
        weights = {"q_weight": attn.norm_q.weight, "k_weight": attn.norm_k.weight}
        query, key = qk_norm_rope(query, key, cos, sin, **weights, **heads)
    else:
        query = qk_norm_rope(query, q_weight=attn.norm_q.weight, **heads)
        key = qk_norm_rope(key, q_weight=attn.norm_k.weight, **heads)
    query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))

    attended_image = None
    if image is not None:
        key_image, value_image = _get_added_kv_projections(attn, image)
        key_image = attn.norm_added_k(key_image).unflatten(2, (attn.heads, -1))
        value_image = value_image.unflatten(2, (attn.heads, -1))
        attended_image = dispatched(how, query, key_image, value_image, attn_mask=None, parallel_config=None, **options)
        attended_image = attended_image.flatten(2, 3).type_as(query)
    parallel = self._parallel_config if encoder_hidden_states is None else None
    attended = dispatched(how, query, key, value, attn_mask=attention_mask, parallel_config=parallel, **options)
    attended = attended.flatten(2, 3).type_as(query)
    if attended_image is not None:
        attended = attended + attended_image
    return attn.to_out[1](attn.to_out[0](attended))


def accepts_attention(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    rotary_emb: tuple[Tensor, Tensor] | None = None,
) -> bool:
    """Return whether the norms of queries and keys are `nn.RMSNorm` with weights in the input's dtype, and
    all heads share the rotary tables."""
    norms, dtypes = (attn.norm_q, attn.norm_k), (hidden_states.dtype, torch.float32)
    tables = () if rotary_emb is None else tuple(rotary_emb)
    return (
        all(is_exactly(norm, nn.RMSNorm) and norm.eps is not None for norm in norms)
        and norms[0].eps == norms[1].eps
        and same_dtype(hidden_states, norms[0].weight, norms[1].weight)
        and all(
            table.dim() == 4 and table.shape[2] == 1 and table.stride(-1) == 1 and table.dtype in dtypes
            for table in tables
        )
        and resident(hidden_states.device, *tables)
    )


NORM = {"diffusers.models.normalization:FP32LayerNorm.forward": ("878c87be861d",)}
CHAINS = (
    "norm1, modulation: ada_norm",
    "gate, residual of attn1, norm2: gated_residual_ada_norm",
    "residual of attn2, norm3, modulation: gated_residual_ada_norm",
    "gate, residual of ffn: gated_residual",
)
NORMS = ("norm1", "norm2", "norm3")

FUSIONS = (
    Fusion(
        name="wan.block",
        classes=("diffusers.models.transformers.transformer_*.WanTransformerBlock",),
        run=block,
        accepts=accepts_block,
        fits=fits_block,
        skips=NORMS,
        sources={"forward": ("e15b0695a528",), **NORM},
        chains=CHAINS,
    ),
    Fusion(
        name="wan.vace_block",
        classes=(f"{WAN}_vace.WanVACETransformerBlock",),
        run=vace_block,
        accepts=accepts_vace_block,
        fits=fits_block,
        skips=NORMS,
        sources={"forward": ("99478e51cc0a",), **NORM},
        chains=CHAINS,
    ),
    Fusion(
        name="wan.attention",
        classes=(f"{WAN}.WanAttnProcessor", f"{WAN}_animate.WanAttnProcessor"),
        method="__call__",
        run=attention,
        accepts=accepts_attention,
        skips=("norm_q", "norm_k"),
        sources={
            "__call__": ("27fc49764907",),
            # The next two functions make the rotary tables, which contain each angle twice, for the two
            # columns of a pair. The fused method reads only one value per pair. It must not do this if the
            # source of the functions changes, because the tables may then have another layout.
            ":WanRotaryPosEmbed.__init__": ("6715c0e01f73",),
            ":WanRotaryPosEmbed.forward": ("e6c8deee8640",),
            # The fused method calls these functions of transformer_wan.
            ":_get_qkv_projections": ("bb8fc93a1749",),
            ":_get_added_kv_projections": ("65b00b986d05",),
        },
        chains=("norm_q, norm_k, rotary embedding: qk_norm_rope",),
    ),
)
