"""A fusion for decoder models of transformers: if the attention is purely causal, it creates no mask tensor.

A fusion is a hand-written method that replaces a method of a model's class. Attention kernels are faster with
`is_causal=True` or without a mask than with a mask tensor. transformers also omits a causal mask tensor in eager mode,
but first reads the positions from the GPU, so Python waits for the GPU. Under torch.compile, transformers omits a
causal mask tensor only from torch 2.14 on. The fusion decides from the arguments of the call, without reading a tensor.
"""

from typing import Any

import torch
from torch import Tensor

from ...class_swap import base_of
from ..core.fusion import Fusion
from ..core.recipe import FusedRecipe

NO_MASK = {"full_attention": None}
CAUSAL = ("sdpa", "oxiwarp")  # implementations of attention that take None for a causal mask
MODELS = "transformers.models"


def forward(
    self: Any,
    how: FusedRecipe,
    input_ids: Tensor | None = None,
    attention_mask: None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    inputs_embeds: Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """Call the original `Qwen3Model.forward` with `attention_mask={"full_attention": None}`, so that it
    creates no mask."""
    kwargs |= {"position_ids": position_ids, "past_key_values": past_key_values, "inputs_embeds": inputs_embeds}
    own: Any = base_of(self)
    return own.forward(self, input_ids=input_ids, attention_mask=dict(NO_MASK), **kwargs)


def accepts(
    self: Any,
    input_ids: Tensor | None = None,
    attention_mask: Any = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    inputs_embeds: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether each token attends to itself and all earlier tokens: no padding, no window and no packed
    sequences."""
    tokens, config = inputs_embeds if input_ids is None else input_ids, self.config
    if attention_mask is not None or tokens is None or args or torch.compiler._is_exporting_flag:
        return False
    if config._attn_implementation not in CAUSAL or self.has_sliding_layers:
        return False
    if kwargs.get("is_causal") is False or not getattr(config, "is_causal", True):
        return False
    if past_key_values is None:
        return position_ids is None
    if type(past_key_values).__name__ != "DynamicCache":
        return False
    return tokens.shape[1] == 1 or past_key_values.get_seq_length() == 0


FUSIONS = (
    Fusion(
        name="decoder.model",
        classes=(
            f"{MODELS}.qwen2.modeling_qwen2.Qwen2Model",
            f"{MODELS}.qwen3.modeling_qwen3.Qwen3Model",
            f"{MODELS}.smollm3.modeling_smollm3.SmolLM3Model",
        ),
        run=forward,
        accepts=accepts,
        kernels=False,
        traced=True,
        sources={"forward": ("1fb4309a0e8a",)},
        chains=("no mask where it is causal and attention knows it",),
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
    ),
)
