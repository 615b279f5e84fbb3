"""Decoders of transformers: Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3, Phi-3, and every other model whose layers have
the same source, which transformers copies from model to model."""

import sys
from typing import Any

import torch
from torch import Tensor

from ..recognise import DEFAULT_EPS, Formula
from ..replacement import RECIPE, base_of
from ._chains import add_rms_norm, gelu_and_mul, gelu_tanh_and_mul, qk_norm_rope, rope, silu_and_mul
from ._fusion import FusedRecipe, Fusion, is_plain, same_dtype

GATED = {"SiLUActivation": silu_and_mul, "GELUActivation": gelu_and_mul, "GELUTanh": gelu_tanh_and_mul}
ROTATION = {":apply_rotary_pos_emb": ("5b72a18e3c8f", "05a4eb9d2426"), ":rotate_half": ("316f106bf0b7",)}


def mlp(self: Any, how: FusedRecipe, x: Tensor) -> Tensor:
    """`LlamaMLP.forward`."""
    gated = GATED[type(self.act_fn).__name__]
    return self.down_proj(gated(self.gate_proj(x), self.up_proj(x), mode=how.mode))  # type: ignore[no-any-return]


def packed_mlp(self: Any, how: FusedRecipe, hidden_states: Tensor) -> Tensor:
    """`Phi3MLP.forward`."""
    gated = GATED[type(self.activation_fn).__name__]
    return self.down_proj(gated(self.gate_up_proj(hidden_states), mode=how.mode))  # type: ignore[no-any-return]


def gates(self: Any) -> str | None:
    """An activation that has a kernel."""
    name = type(self.act_fn if hasattr(self, "act_fn") else self.activation_fn).__name__
    return None if name in GATED else f"its activation is {name}"


def layer(self: Any, how: FusedRecipe, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`LlamaDecoderLayer.forward`; that of Phi-3 has dropouts besides."""
    attended, _ = self.self_attn(self.input_layernorm(hidden_states), **named(args, kwargs))
    attended = dropped(self, "resid_attn_dropout", attended)
    normed, total = add_and_norm(attended, hidden_states, self.post_attention_layernorm)
    return total + dropped(self, "resid_mlp_dropout", self.mlp(normed))


def sandwich(self: Any, how: FusedRecipe, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Gemma3DecoderLayer.forward`: a norm before and after both halves."""
    attended, _ = self.self_attn(self.input_layernorm(hidden_states), **kwargs)
    attended = self.post_attention_layernorm(attended)
    normed, total = add_and_norm(attended, hidden_states, self.pre_feedforward_layernorm)
    return total + self.post_feedforward_layernorm(self.mlp(normed))  # type: ignore[no-any-return]


LAYER_ARGUMENTS = ("attention_mask", "position_ids", "past_key_values", "use_cache", "position_embeddings")


def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """A layer's arguments after the first, by name, as it hands them to its attention."""
    return {**dict(zip(LAYER_ARGUMENTS, args, strict=False)), **kwargs}


def dropped(self: Any, name: str, x: Tensor) -> Tensor:
    """`x` after the dropout of this name, if the layer has it; `getattr` of what a module lacks takes a microsecond."""
    dropout = self._modules.get(name)
    return x if dropout is None else dropout(x)


def add_and_norm(x: Tensor, residual: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    """`norm(x + residual)` in the module's roundings, and the sum."""
    formula = formula_of(norm, x)
    assert formula is not None, "accepts() asked for it"
    rounding = "before_weight" if formula.round_before_weight else "once"
    eps = getattr(norm, norm.__dict__[RECIPE].eps_name)
    eps = DEFAULT_EPS if eps is None else eps
    return add_rms_norm(x, residual, norm.weight, eps, weight_offset=formula.weight_offset, rounding=rounding)


def formula_of(norm: Any, x: Tensor) -> Formula | None:
    """How a norm that `patch` replaced computes, or None."""
    recipe, weight = norm.__dict__.get(RECIPE), norm._parameters.get("weight")
    if recipe is None or weight is None:
        return None
    formula = recipe.formulas.get((x.dtype, weight.dtype))
    return formula if formula is not None and formula.uses_weight else None


def accepts_layer(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> bool:
    """A norm after the attention that is replaced too."""
    return formula_of(self.post_attention_layernorm, hidden_states) is not None


def accepts_sandwich(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> bool:
    """The norm before the MLP is replaced too; only the first argument may come without a name."""
    return not args and formula_of(self.pre_feedforward_layernorm, hidden_states) is not None


def attention(
    self: Any,
    how: FusedRecipe,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """`LlamaAttention.forward`, and what the others have besides: norms of queries and keys, a window, a soft cap."""
    assert position_embeddings is not None, "accepts() asked for it"
    cos, sin = position_embeddings
    rows = hidden_states.shape[:-1]
    query, key, value = (x.view(*rows, -1, self.head_dim) for x in projections(self, hidden_states))
    options: dict[str, Any] = dict(interleaved=False, rotary_dim=cos.shape[-1], mode=how.mode)
    if llama_norms(self, query):
        weights = {"q_weight": self.q_norm.weight, "k_weight": self.k_norm.weight}
        eps = self.q_norm.variance_epsilon
        query, key = qk_norm_rope(query, key, cos, sin, norm="llama_rms_norm", eps=eps, **weights, **options)
    else:
        if "q_norm" in self._modules:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rope(query, key, cos, sin, **options)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    module = sys.modules[base_of(self).__module__]
    interface = module.ALL_ATTENTION_FUNCTIONS.get_interface(
        self.config._attn_implementation, module.eager_attention_forward
    )
    attended, weights = interface(
        self,
        query,
        key,
        value,
        attention_mask,
        dropout=self.attention_dropout if self.training else 0.0,
        scaling=self.scaling,
        **particulars(self),
        **kwargs,
    )
    return self.o_proj(attended.reshape(*rows, -1).contiguous()), weights


def projections(self: Any, hidden_states: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values, `[..., heads * head_dim]`."""
    if "qkv_proj" not in self._modules:
        return self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
    keys = self.num_key_value_heads * self.head_dim
    sizes = [self.config.num_attention_heads * self.head_dim, keys, keys]
    return self.qkv_proj(hidden_states).split(sizes, -1)  # type: ignore[no-any-return]


def llama_norms(self: Any, query: Tensor) -> bool:
    """Whether queries and keys have norms that round as Llama's and can be taken together with the rotation."""
    norms = self._modules.get("q_norm"), self._modules.get("k_norm")
    return norms[0] is not None and is_llama(norms[0], query) and is_llama(norms[1], query)


def is_llama(norm: Any, x: Tensor) -> bool:
    """Whether a norm rounds before its weight multiplies (in float32 that is no rounding), and may be skipped."""
    formula = formula_of(norm, x)
    if formula is None or formula.weight_offset != 0 or norm.weight.dtype != x.dtype:
        return False
    return (formula.round_before_weight or x.dtype == torch.float32) and is_plain(norm, x.device)


def particulars(self: Any) -> dict[str, Any]:
    """What the model hands to the attention besides the usual."""
    name = base_of(self).__name__
    if name.startswith("Gemma2"):
        return {"sliding_window": self.sliding_window, "softcap": self.attn_logit_softcapping}
    if hasattr(self, "sliding_window"):
        return {"sliding_window": self.sliding_window}
    if name.startswith(("Mistral", "Mixtral", "Phi3")):
        return {"sliding_window": getattr(self.config, "sliding_window", None)}
    return {}


def accepts_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    *args: Any,
    **kwargs: Any,
) -> bool:
    """Angles for each token in the dtype of the input."""
    if position_embeddings is None or hidden_states.dim() != 3:
        return False
    cos, sin = position_embeddings
    return cos.dim() == 3 and same_dtype(hidden_states, cos, sin)


FUSIONS = (
    Fusion(
        name="decoder.layer",
        classes=("transformers.models.*DecoderLayer",),
        run=layer,
        accepts=accepts_layer,
        skips=("post_attention_layernorm",),
        sources={"forward": ("c99d9f66d290", "4dda312a3c0a")},
        chains=("residual of attention, post_attention_layernorm: add_rms_norm",),
        exactness="same roundings",
    ),
    Fusion(
        name="decoder.sandwich",
        classes=("transformers.models.gemma*DecoderLayer",),
        run=sandwich,
        accepts=accepts_sandwich,
        skips=("pre_feedforward_layernorm",),
        sources={"forward": ("c33a00e8d837", "b7872c1040a7", "b11679cc66c8")},
        chains=("residual of attention, pre_feedforward_layernorm: add_rms_norm",),
        exactness="same roundings",
    ),
    Fusion(
        name="decoder.attention",
        classes=("transformers.models.*Attention",),
        run=attention,
        accepts=accepts_attention,
        sources={
            "forward": (
                "7818b08f0bc1",  # Llama, Gemma, Granite
                "80c074687dd5",  # Mistral, Mixtral
                "98180a6c232f",  # Qwen 2
                "b1270ad83a92",  # Qwen 3
                "dd97e355390c",  # Gemma 2
                "e8785e7a79ba",  # Gemma 3
                "bf8ad02d298d",  # Phi-3
            ),
            **ROTATION,
        },
        chains=("rotary embedding of queries and keys: rope", "with norms as Qwen 3's, and these: qk_norm_rope"),
    ),
    Fusion(
        name="decoder.mlp",
        classes=("transformers.models.*MLP",),
        run=mlp,
        accepts=lambda *args, **kwargs: True,
        fits=gates,
        sources={"forward": ("4b6ed1049e7f",)},
        chains=("activation, product of gate and up: silu_and_mul",),
    ),
    Fusion(
        name="decoder.packed_mlp",
        classes=("transformers.models.phi*MLP",),
        run=packed_mlp,
        accepts=lambda *args, **kwargs: True,
        fits=gates,
        sources={"forward": ("fe139a4b147f", "a27e3437e8db")},
        chains=("activation, product of gate and up: silu_and_mul",),
    ),
)
