"""Falcon's attention (transformers: models/falcon/modeling_falcon.py), in models with rotary embedding.

Falcon RW uses ALiBi biases instead of rotary embedding, so its attention keeps the original method. A Falcon layer
needs no other fusion (rewritten method). torch's GELU is already one kernel. `patch` replaces the norms separately. The
layer adds the attention's result to the MLP's result in place.
"""

from typing import Any

from torch import Tensor

from ..core.attention import sdpa
from ..core.fusion import Fusion
from ..core.ops import rope
from ..core.recipe import FusedRecipe
from .decoder_attention import has_angles

MODULE = "transformers.models.falcon.modeling_falcon"


def attention(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    alibi: None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Run `FalconAttention.forward`."""
    assert position_embeddings is not None, "accepts() asked for it"
    cos, sin = position_embeddings
    split = self._split_heads(self.query_key_value(hidden_states))
    query, key, value = (x.transpose(1, 2) for x in split)
    query, key = rope(
        query, key, cos, sin, interleaved=False, rotary_dim=cos.shape[-1], heads_first=True, mode=how.mode
    )
    value = value.contiguous()  # as in the original method: SDPA chooses a kernel by strides
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    causal = self.is_causal and attention_mask is None and query.shape[2] > 1
    attended = sdpa(how, query, key, value, attn_mask=attention_mask, is_causal=causal)
    return self.dense(attended.transpose(1, 2).flatten(2)), None


def accepts(
    self: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs: Any,
) -> bool:
    """Whether the model uses SDPA, and the call has rotary cosines and sines for each token, but no ALiBi biases."""
    return (
        alibi is None
        and not output_attentions
        and self.config._attn_implementation == "sdpa"
        and hidden_states.dim() == 3
        and has_angles(hidden_states, position_embeddings)
    )


FUSIONS = (
    Fusion(
        name="falcon.attention",
        classes=(f"{MODULE}.FalconAttention",),
        run=attention,
        accepts=accepts,
        few="hidden_states",
        sources={
            "forward": ("09362aec01d7",),
            "_split_heads": ("83b1fc03d2ce",),
            ":apply_rotary_pos_emb": ("a3e9634c83e2",),
            ":rotate_half": ("316f106bf0b7",),
        },
        chains=("rotary embedding of queries and keys: rope",),
    ),
)
