"""The attention of LTX-2 (diffusers: models/transformers/transformer_ltx2.py)."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.attention import dispatched, mask_of_heads
from ..core.fusion import Fusion
from ..core.ops import qk_norm_rope
from ..core.recipe import FusedRecipe
from ..shared.mmdit import norms_fit
from .ltx2 import MODULE, Tables


def attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    query_rotary_emb: Tables | None = None,
    key_rotary_emb: Tables | None = None,
) -> Tensor:
    """Compute the result of `LTX2AudioVideoAttnProcessor.__call__` with oxiwarp's kernels."""
    source, attention_mask, gates = prepared(attn, hidden_states, encoder_hidden_states, attention_mask)
    query, key, value = attn.to_q(hidden_states), attn.to_k(source), attn.to_v(source)
    query, key = turned(attn, how, query, key, query_rotary_emb, key_rotary_emb)
    return projected(attn, attend(self, how, attn, query, key, value, attention_mask), gates)


def perturbed_attention(
    self: Any,
    how: FusedRecipe,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    query_rotary_emb: Tables | None = None,
    key_rotary_emb: Tables | None = None,
    perturbation_mask: Tensor | None = None,
    all_perturbed: Any = None,
) -> Tensor:
    """Compute the result of `LTX2PerturbedAttnProcessor.__call__` with oxiwarp's kernels. As in the original method,
    the values are computed before query and key.
    """
    source, attention_mask, gates = prepared(attn, hidden_states, encoder_hidden_states, attention_mask)
    value = attn.to_v(source)
    if all_perturbed is None:
        all_perturbed = perturbation_mask is not None and bool(torch.all(perturbation_mask == 0))
    if all_perturbed:
        attended = value
    else:
        query, key = attn.to_q(hidden_states), attn.to_k(source)
        query, key = turned(attn, how, query, key, query_rotary_emb, key_rotary_emb)
        attended = attend(self, how, attn, query, key, value, attention_mask)
        if perturbation_mask is not None:
            attended = torch.lerp(value, attended, perturbation_mask)
    return projected(attn, attended, gates)


def prepared(
    attn: Any, x: Tensor, encoder_hidden_states: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return three objects: the tokens from which key and value are computed, the attention mask repeated for each
    head, and one gate per head.

    Without a `mask`, the second is None. If the model has no gates, the third is None.
    """
    source = x if encoder_hidden_states is None else encoder_hidden_states
    mask = None if mask is None else mask_of_heads(attn, mask, source)
    return source, mask, None if attn.to_gate_logits is None else 2.0 * torch.sigmoid(attn.to_gate_logits(x))


def projected(attn: Any, attended: Tensor, gates: Tensor | None) -> Tensor:
    """Multiply the attention result of each head by the head's gate, if there are gates. Then apply the
    output linear."""
    if gates is not None:
        attended = (attended.unflatten(2, (attn.heads, -1)) * gates.unsqueeze(-1)).flatten(2, 3)
    projected: Tensor = attn.to_out[1](attn.to_out[0](attended))
    return projected


def attend(
    self: Any, how: FusedRecipe, attn: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """Compute the attention of query, key and value, each `[B, S, heads * D]`."""
    query, key, value = (x.unflatten(2, (attn.heads, -1)) for x in (query, key, value))
    attended: Tensor = dispatched(
        how,
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=0.0,
        is_causal=False,
        backend=self._attention_backend,
        parallel_config=self._parallel_config,
    )
    return attended.flatten(2, 3).to(query.dtype)


def turned(
    attn: Any, how: FusedRecipe, query: Tensor, key: Tensor, tables: Tables | None, key_tables: Tables | None
) -> tuple[Tensor, Tensor]:
    """Return query and key, normalised over the columns of all heads together and then rotated (RoPE).

    If `rope_type` is "split", a rotated pair consists of column i of a head's first half and column i of its
    second half. Otherwise a pair consists of two adjacent columns, and the rotation precedes the split into
    heads.
    """
    options: dict[str, Any] = {"eps": attn.norm_q.eps, "mode": how.mode}
    weights = attn.norm_q.weight, attn.norm_k.weight
    if tables is not None and attn.rope_type == "split":
        options.update(across_heads=True, interleaved=False, head_dim=tables[0].shape[-1] * 2)
        tables = tables[0].transpose(1, 2), tables[1].transpose(1, 2)
        if key_tables is not None:
            key_tables = key_tables[0].transpose(1, 2), key_tables[1].transpose(1, 2)
    if tables is not None and key_tables is None:
        both: tuple[Tensor, Tensor] = qk_norm_rope(
            query, key, *tables, q_weight=weights[0], k_weight=weights[1], **options
        )
        return both
    of_query, of_key = ((), ()) if tables is None or key_tables is None else (tables, key_tables)
    query = qk_norm_rope(query, None, *of_query, q_weight=weights[0], **options)
    key = qk_norm_rope(key, None, *of_key, q_weight=weights[1], **options)
    return query, key


def accepts(
    self: Any,
    attn: Any,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor | None = None,
    attention_mask: Tensor | None = None,
    query_rotary_emb: Tables | None = None,
    key_rotary_emb: Tables | None = None,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether the fused method supports the call. Both of these conditions must be met:

    - The norms of queries and keys are `nn.RMSNorm` with weights in the dtype of the input.
    - The call has no rotary tables, or `fit` returns True for the rotary tables.
    """
    source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
    if not norms_fit(hidden_states, nn.RMSNorm, (attn.norm_q, attn.norm_k)) or source.dtype != hidden_states.dtype:
        return False
    if query_rotary_emb is None:
        return True
    of_key = query_rotary_emb if key_rotary_emb is None else key_rotary_emb
    return fit(attn, hidden_states, query_rotary_emb) and fit(attn, source, of_key)


def fit(attn: Any, x: Tensor, tables: Tables) -> bool:
    """Return whether the rotary tables are float32, are on the device of `x`, and have a row for each token
    of `x`."""
    batch, tokens, _ = x.shape
    inner = attn.inner_dim
    shape: tuple[int, ...] = (batch, tokens, inner)
    if attn.rope_type == "split":
        shape = (batch, attn.heads, tokens, inner // attn.heads // 2)
    return len(tables) == 2 and all(
        table.shape == shape and table.dtype == torch.float32 and table.device == x.device for table in tables
    )


FUSIONS = (
    Fusion(
        name="ltx2.attention",
        classes=(f"{MODULE}.LTX2AudioVideoAttnProcessor",),
        method="__call__",
        run=attention,
        accepts=accepts,
        skips=("norm_q", "norm_k"),
        sources={
            "__call__": ("46ef98a6f3d9",),
            ":apply_interleaved_rotary_emb": ("97db520fafe3",),
            ":apply_split_rotary_emb": ("184e275de88b",),
        },
        # If `rope_type` is "split", the result is not bit-exact: the original method rotates with torch's
        # addcmul, which rounds once, but the kernel rounds twice.
        exactness="same roundings",
        chains=("norm_q, norm_k, rotary embedding: qk_norm_rope",),
    ),
    Fusion(
        name="ltx2.perturbed_attention",
        classes=(f"{MODULE}.LTX2PerturbedAttnProcessor",),
        method="__call__",
        run=perturbed_attention,
        accepts=accepts,
        skips=("norm_q", "norm_k"),
        sources={
            "__call__": ("d7997928a329",),
            ":apply_interleaved_rotary_emb": ("97db520fafe3",),
            ":apply_split_rotary_emb": ("184e275de88b",),
        },
        exactness="same roundings",
        chains=("norm_q, norm_k, rotary embedding: qk_norm_rope",),
    ),
)
