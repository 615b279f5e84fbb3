"""Fusions for decoders of the library transformers: Llama, Mistral, Qwen 2 and 3, Gemma 1 to 3, Phi-3, and
models with copies of their layers.

A fusion is a hand-written method that replaces a method of a model's class. In transformers, code is copied from model
to model. The layers of many other models therefore have the same source code, and these fusions replace their methods,
too.
"""

from typing import Any

from torch import Tensor

from ...class_swap import RECIPE, base_of
from ...norms.recognise import DEFAULT_EPS, is_candidate
from ..core.direct_calls import called, direct, linear, norm, recipe_for
from ..core.fusion import Fusion
from ..core.linear import later
from ..core.modules import hooked
from ..core.operands import as_rows
from ..core.ops import add_rms_norm, gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from ..core.recipe import FusedRecipe
from .decoder_attention import attention_of, formula_of, has_angles

GATED = {"SiLUActivation": silu_and_mul, "GELUActivation": gelu_and_mul, "GELUTanh": gelu_tanh_and_mul}


def mlp(self: Any, how: FusedRecipe, x: Tensor, tokens: tuple[int, ...] | None = None) -> Tensor:
    """Compute the result of `LlamaMLP.forward` with oxiwarp's kernels.

    If `tokens` is `(batch, tokens)`, `x` has shape `[batch * tokens, columns]`. The caller must then have
    checked that `direct()` is True: eager mode, no gradients, no global hooks.
    """
    modules, call = self._modules, linear if direct() else called
    gated = GATED[type(modules["act_fn"]).__name__]
    y = gated(call(modules["gate_proj"], x, tokens), call(modules["up_proj"], x, tokens), mode=how.mode)
    return call(modules["down_proj"], y, tokens)


def packed_mlp(self: Any, how: FusedRecipe, hidden_states: Tensor) -> Tensor:
    """Compute the result of `Phi3MLP.forward` with oxiwarp's kernels."""
    gated = GATED[type(self.activation_fn).__name__]
    if (product := later(how, gated.__name__, self.gate_up_proj, hidden_states)) is not None:
        return self.down_proj(product.activated(gated))
    return self.down_proj(gated(self.gate_up_proj(hidden_states), mode=how.mode))


def gates(self: Any) -> str | None:
    """Return None if there is a kernel for the activation of the MLP. Otherwise, return the reason why
    `patch` cannot replace the MLP."""
    name = type(self.act_fn if hasattr(self, "act_fn") else self.activation_fn).__name__
    return None if name in GATED else f"its activation is {name}"


def has_gate(self: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether there is a kernel for the activation that the MLP has at the time of this call.

    The user may have replaced the activation after `patch`.
    """
    modules = self._modules
    return type(modules.get("act_fn", modules.get("activation_fn"))).__name__ in GATED


def layer(self: Any, how: FusedRecipe, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Compute the result of `LlamaDecoderLayer.forward` with oxiwarp's kernels. The same function serves Phi-3's layer,
    which also has dropouts.
    """
    modules, options = self._modules, named(args, kwargs)
    if direct() and "resid_attn_dropout" not in modules and hidden_states.dim() == 3:
        return in_rows(modules, hidden_states, options)
    attended, _ = modules["self_attn"](hidden_states=modules["input_layernorm"](hidden_states), **options)
    attended = dropped(self, "resid_attn_dropout", attended)
    normed, total = add_and_norm(attended, hidden_states, modules["post_attention_layernorm"])
    return total + dropped(self, "resid_mlp_dropout", modules["mlp"](normed))


def in_rows(modules: dict[str, Any], hidden_states: Tensor, options: dict[str, Any]) -> Tensor:
    """Run a decoder layer, given by its submodules `modules`. Between the submodules, activations have shape `[batch *
    tokens, columns]`.

    `options` contains the arguments of the layer after `hidden_states`. The caller must have checked that
    `direct()` is True: eager mode, no gradients, no global hooks.
    """
    batch, tokens, columns = hidden_states.shape
    sizes, rows = (batch, tokens), as_rows(hidden_states).reshape(-1, columns)
    normed = norm(modules["input_layernorm"], rows, sizes)
    attended = attend(modules["self_attn"], normed, sizes, options)
    normed, total = add_and_norm(attended, rows, modules["post_attention_layernorm"])
    feed = modules["mlp"]
    how = recipe_for(feed, "decoder.mlp", normed)
    if how is not None and has_gate(feed) and not hooked(feed._modules["act_fn"]):
        fed = mlp(feed, how, normed, sizes)
    else:
        fed = rows_of(feed(normed.unflatten(0, sizes)), sizes)
    total = total.add_(fed) if fed.dtype == total.dtype else total + fed
    return total.view(batch, tokens, columns)


def attend(module: Any, x: Tensor, sizes: tuple[int, int], options: dict[str, Any]) -> Tensor:
    """Run the attention `module` of a layer on `x` of shape `[batch * tokens, columns]`.

    The caller must have checked that `direct()` is True: eager mode, no gradients, no global hooks.
    """
    how = recipe_for(module, "decoder.attention", x)
    if how is None or not has_angles(x, options.get("position_embeddings")):
        return rows_of(module(hidden_states=x.unflatten(0, sizes), **options)[0], sizes)
    return attention_of(module, how, x, sizes, linear, **options)[0]


def rows_of(y: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Reshape the result `y` of a module, `[batch, tokens, columns]`, to `[batch * tokens, columns]`.

    `sizes` is `(batch, tokens)`. A hook may have reduced the batch size or the number of tokens of `y` to 1.
    Such a `y` is expanded.
    """
    return (y if y.shape[:2] == sizes else y.expand(*sizes, -1)).flatten(0, 1)


LAYER_ARGUMENTS = ("attention_mask", "position_ids", "past_key_values", "use_cache", "position_embeddings")


def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a layer except the first, as a dict. The layer passes them to its attention."""
    return {**dict(zip(LAYER_ARGUMENTS, args, strict=False)), **kwargs} if args else kwargs


def dropped(self: Any, name: str, x: Tensor) -> Tensor:
    """Apply the dropout `name` to `x`, if the layer has this dropout.

    This function reads `_modules`, because `getattr` takes a microsecond if the layer does not have this
    dropout.
    """
    dropout = self._modules.get(name)
    return x if dropout is None else dropout(x)


def add_and_norm(x: Tensor, residual: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    """Return `norm(x + residual)`, rounded as the module `norm` rounds its result, and the sum `x +
    residual`.

    After a hook or an adapter, `x` may have another dtype than `residual`. In this case, torch computes the
    sum, and the module `norm` is called.
    """
    formula = formula_of(norm, x)
    if formula is None or x.dtype != residual.dtype:
        total = residual + x
        return norm(total), total
    rounding = "before_weight" if formula.round_before_weight else "once"
    eps = getattr(norm, norm.__dict__[RECIPE].eps_name)
    eps = DEFAULT_EPS if eps is None else eps
    return add_rms_norm(x, residual, norm.weight, eps, weight_offset=formula.weight_offset, rounding=rounding)


def accepts_layer(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Return whether `patch` replaced the norm after the attention, and the norm's kernel supports the dtype
    of `hidden_states`."""
    return formula_of(self.post_attention_layernorm, hidden_states) is not None


def fits_layer(self: Any) -> str | None:
    """Return None if the norm after the attention is an RMSNorm. Otherwise, return the reason why `patch`
    cannot replace the layer.

    This check is necessary: Starcoder 2's layer, for example, has the same source as Llama's layer, but
    contains LayerNorms.
    """
    return not_rms("post_attention_layernorm", self.post_attention_layernorm)


def not_rms(name: str, norm: Any) -> str | None:
    """Return None if `norm` is an RMSNorm with a weight. Otherwise, return the reason why it has no known rounding
    formula (`formula_of`).
    """
    if not is_candidate(norm):
        return f"its {name} is of class {base_of(norm).__name__}"
    return None if "weight" in norm._parameters else f"its {name} has no weight of its own"


FUSIONS = (
    Fusion(
        name="decoder.layer",
        classes=("transformers.models.*DecoderLayer",),
        run=layer,
        accepts=accepts_layer,
        fits=fits_layer,
        few="hidden_states",
        skips=("post_attention_layernorm",),
        sources={"forward": ("c99d9f66d290", "4dda312a3c0a")},
        chains=("residual of attention, post_attention_layernorm: add_rms_norm",),
        exactness="same roundings",
    ),
    Fusion(
        name="decoder.mlp",
        classes=("transformers.models.*MLP",),
        run=mlp,
        accepts=has_gate,
        few="x",
        skips=("act_fn",),
        fits=gates,
        sources={"forward": ("4b6ed1049e7f",)},
        chains=("activation, product of gate and up: silu_and_mul",),
    ),
    Fusion(
        name="decoder.packed_mlp",
        classes=("transformers.models.phi*MLP",),
        run=packed_mlp,
        accepts=has_gate,
        few="hidden_states",
        skips=("activation_fn",),
        fits=gates,
        sources={"forward": ("fe139a4b147f", "a27e3437e8db")},
        chains=("activation, product of gate and up: silu_and_mul",),
    ),
)
