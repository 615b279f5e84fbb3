"""Fusions for the attention of decoders of transformers: Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3, Phi-3,
and models with copies of their attention.

A fusion is a hand-written method that replaces a method of a model's class.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...class_swap import RECIPE
from ...norms.forward import NormRecipe
from ...norms.recognise import Formula
from ..core.direct_calls import called, linear
from ..core.fusion import MODULE, SOURCE, Fusion, same_dtype
from ..core.modules import is_plain
from ..core.ops import qk_norm_rope, rope
from ..core.recipe import FusedRecipe
from ..core.source import fingerprint

ROTATION = {":apply_rotary_pos_emb": ("5b72a18e3c8f", "05a4eb9d2426"), ":rotate_half": ("316f106bf0b7",)}
SDPA = ("d6c8021e82de",)  # Fingerprint (source hash) of `sdpa_attention_forward` of transformers.
# Names of arguments that a layer passes to its attention, but that the attention ignores.
HANDED_ON = {"position_ids", "use_cache"}


def own_window(self: Any) -> int | None:
    """Return the sliding window of this layer."""
    return self.sliding_window


def models_window(self: Any) -> int | None:
    """Return the sliding window that all layers of the model share."""
    return getattr(self.config, "sliding_window", None)


# Maps the fingerprint (source hash) of an attention module's `forward` to the additional arguments that this
# `forward` passes to the attention function. A comment names the models for which the `forward` was written.
# Other models may have a copy of it.
BESIDES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "7818b08f0bc1": {},  # The forward of Llama, Gemma and Granite.
    "80c074687dd5": {"sliding_window": models_window},  # The forward of Mistral and Mixtral.
    "98180a6c232f": {"sliding_window": own_window},  # The forward of Qwen 2.
    "b1270ad83a92": {"sliding_window": own_window},  # The forward of Qwen 3.
    # The forward of Gemma 2.
    "dd97e355390c": {"sliding_window": own_window, "softcap": lambda self: self.attn_logit_softcapping},
    "e8785e7a79ba": {"sliding_window": own_window},  # The forward of Gemma 3.
    "bf8ad02d298d": {"sliding_window": models_window},  # The forward of Phi-3.
}


def attention(self: Any, how: FusedRecipe, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    """Compute the result of `LlamaAttention.forward` with oxiwarp's kernels. The same function serves variants of this
    method with query and key norms, a window or a softcap.
    """
    sizes = hidden_states.shape[0], hidden_states.shape[1]
    return attention_of(self, how, hidden_states, sizes, called, *args, **kwargs)


def attention_of(
    self: Any,
    how: FusedRecipe,
    x: Tensor,
    sizes: tuple[int, int],
    call: Callable[..., Tensor],
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Run the attention. Return its output and the attention weights (None if the attention function does not
    return them).

    `call` is the function that runs each linear module. If `call` is `direct_calls.linear`, `x` has shape
    `[batch * tokens, columns]`, otherwise `[batch, tokens, columns]`. `sizes` is `(batch, tokens)`.
    """
    assert position_embeddings is not None, "accepts() asked for it"
    (cos, sin), (batch, tokens), modules = position_embeddings, sizes, self._modules
    of, one = sizes if x.dim() == 2 else None, tokens == 1
    # With one token, tensors of the shapes `[B, H, 1, D]` and `[B, 1, H, D]` have the same order of elements
    # in memory, so no transposition is necessary.
    shape = (batch, -1, 1, self.head_dim) if one else (batch, tokens, -1, self.head_dim)
    query, key, value = [y.view(shape) for y in projections(self, x, of, call)]
    options: dict[str, Any] = dict(interleaved=False, rotary_dim=cos.shape[-1], mode=how.mode, heads_first=one)
    if llama_norms(self, query):
        q_norm, k_norm = modules["q_norm"], modules["k_norm"]
        norms = {"q_weight": q_norm._parameters["weight"], "k_weight": k_norm._parameters["weight"]}
        eps = q_norm.variance_epsilon
        query, key = qk_norm_rope(query, key, cos, sin, norm="llama_rms_norm", eps=eps, **norms, **options)
    else:
        if "q_norm" in modules:
            query, key = modules["q_norm"](query), modules["k_norm"](key)
        query, key = rope(query, key, cos, sin, **options)
    if not one:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    if one and attention_mask is None and call is linear and is_sdpa(self, kwargs):
        shared, weights = self.num_key_value_groups > 1, None
        attended = F.scaled_dot_product_attention(query, key, value, scale=self.scaling, enable_gqa=shared)
    else:
        interface, options = interface_of(self), particulars(self)
        options |= {"dropout": self.attention_dropout if self.training else 0.0, "scaling": self.scaling}
        attended, weights = interface(self, query, key, value, attention_mask, **options, **kwargs)
    return call(modules["o_proj"], attended.reshape(*x.shape[:-1], -1).contiguous(), of), weights


def interface_of(self: Any) -> Callable[..., Any]:
    """Return the attention function that the model's configuration names."""
    module = sys.modules[getattr(type(self), MODULE)]
    return module.ALL_ATTENTION_FUNCTIONS.get_interface(
        self.config._attn_implementation, module.eager_attention_forward
    )


def is_sdpa(self: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether the attention function of transformers would do nothing but call SDPA
    (`F.scaled_dot_product_attention`).

    The caller must have checked that there is one query, which attends to all keys. This function reads the
    `__dict__` of the model's configuration, because a normal attribute lookup takes some microseconds.
    """
    kept = object.__getattribute__(self.config, "__dict__")
    if kept.get("_attn_implementation_internal") != "sdpa" or self.training or self.head_dim > 256:
        return False
    for name in kwargs:
        if name not in HANDED_ON:
            return False
    if "softcap" in BESIDES[getattr(type(self), SOURCE)]:  # transformers' SDPA function rejects a soft cap
        return False
    return fingerprint(sys.modules[getattr(type(self), MODULE)].ALL_ATTENTION_FUNCTIONS["sdpa"]) in SDPA


def projections(self: Any, x: Tensor, of: Any, call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Return query, key and value, each of shape `[..., heads * head_dim]`."""
    modules = self._modules
    if "qkv_proj" not in modules:
        return call(modules["q_proj"], x, of), call(modules["k_proj"], x, of), call(modules["v_proj"], x, of)
    keys = self.num_key_value_heads * self.head_dim
    sizes = [self.config.num_attention_heads * self.head_dim, keys, keys]
    return call(modules["qkv_proj"], x, of).split(sizes, -1)


def formula_of(norm: Any, x: Tensor) -> Formula | None:
    """Return the formula that `patch` found for an RMSNorm with inputs of the dtype of `x`, which says where the norm
    rounds. Return None if there is no formula.
    """
    recipe, weight = norm.__dict__.get(RECIPE), norm._parameters.get("weight")
    if type(recipe) is not NormRecipe or weight is None:
        return None
    formula = recipe.formulas.get((x.dtype, weight.dtype))
    return formula if formula is not None and formula.uses_weight else None


def llama_norms(self: Any, query: Tensor) -> bool:
    """Return whether one kernel can compute the norms of query and key together with the rotation.

    Both norms must exist and have no hooks. Each must round before it multiplies by the weight, as Llama's
    RMSNorm does.
    """
    norms = self._modules.get("q_norm"), self._modules.get("k_norm")
    return norms[0] is not None and is_llama(norms[0], query) and is_llama(norms[1], query)


def is_llama(norm: Any, x: Tensor) -> bool:
    """Return whether the norm has no hooks and rounds before it multiplies by its weight. A kernel can then
    compute the norm without a module call.

    In float32, every norm counts as rounding before the multiplication, because such a rounding to float32
    changes nothing.
    """
    formula = formula_of(norm, x)
    if formula is None or formula.weight_offset != 0 or norm._parameters["weight"].dtype != x.dtype:
        return False
    return (formula.round_before_weight or x.dtype == torch.float32) and is_plain(norm, x.device)


def particulars(self: Any) -> dict[str, Any]:
    """Return the additional arguments that the original `forward` of this module passes to the attention
    function, as a dict.

    An example is `sliding_window`.
    """
    return {name: found(self) for name, found in BESIDES[getattr(type(self), SOURCE)].items()}


def has_angles(x: Tensor, position_embeddings: tuple[Tensor, Tensor] | None) -> bool:
    """Return whether `position_embeddings` has rotary cosines and sines for each token, in the dtype of
    `x`."""
    return position_embeddings is not None and position_embeddings[0].dim() == 3 and same_dtype(x, *position_embeddings)


def accepts_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Return whether `hidden_states` has shape `[batch, tokens, columns]`, and `position_embeddings` has
    rotary cosines and sines for each token."""
    return hidden_states.dim() == 3 and has_angles(hidden_states, position_embeddings)


FUSIONS = (
    Fusion(
        name="decoder.attention",
        classes=("transformers.models.*Attention",),
        run=attention,
        accepts=accepts_attention,
        few="hidden_states",
        sources={
            "forward": tuple(BESIDES),
            **ROTATION,
        },
        chains=("rotary embedding of queries and keys: rope", "with norms as Qwen 3's, and these: qk_norm_rope"),
    ),
)
