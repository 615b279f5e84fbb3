"""Fusions for the modulated norms of diffusers (models/normalization.py), which Flux, SD3, HunyuanVideo and
many other models use.

A fusion is a hand-written method that replaces a method of a model's class.
"""

from typing import Any

from torch import Tensor, nn

from ...class_swap import base_of
from ..core.fusion import Fusion
from ..core.ops import ada_norm, ada_norm_pair
from ..core.recipe import FusedRecipe
from .mmdit import as_rows

MODULE = "diffusers.models.normalization"
ONCE, TWICE = "norm, modulation: ada_norm", "norm, two modulations: ada_norm_pair"


def zero(
    self: Any,
    how: FusedRecipe,
    x: Tensor,
    timestep: Tensor | None = None,
    class_labels: Tensor | None = None,
    hidden_dtype: Any = None,
    emb: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Compute the result of `AdaLayerNormZero.forward` with oxiwarp's kernels."""
    if self.emb is not None:
        emb = self.emb(timestep, class_labels, hidden_dtype=hidden_dtype)
    shift, scale, *rest = self.linear(self.silu(emb)).chunk(6, dim=1)
    return modulated(self, how, x, scale, shift), *rest


def single(self: Any, how: FusedRecipe, x: Tensor, emb: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute the result of `AdaLayerNormZeroSingle.forward` with oxiwarp's kernels."""
    shift, scale, gate = self.linear(self.silu(emb)).chunk(3, dim=1)
    return modulated(self, how, x, scale, shift), gate


def continuous(self: Any, how: FusedRecipe, x: Tensor, conditioning_embedding: Tensor) -> Tensor:
    """Compute the result of `AdaLayerNormContinuous.forward` with oxiwarp's kernels."""
    emb = self.linear(self.silu(conditioning_embedding).to(x.dtype))
    scale, shift = emb.chunk(2, dim=1)
    return modulated(self, how, x, scale, shift)


def twice(self: Any, how: FusedRecipe, hidden_states: Tensor, emb: Tensor | None = None) -> tuple[Tensor, ...]:
    """Compute the result of `SD35AdaLayerNormZeroX.forward` with oxiwarp's kernels."""
    shift, scale, *rest, shift2, scale2, gate2 = self.linear(self.silu(emb)).chunk(9, dim=1)
    if scale.dtype != hidden_states.dtype:
        first, second = (modulated(self, how, hidden_states, *by) for by in ((scale, shift), (scale2, shift2)))
        return first, *rest, second, gate2
    by = (part.unsqueeze(1) for part in (scale, shift, scale2, shift2))
    first, second = ada_norm_pair(as_rows(hidden_states), *by, eps=self.norm.eps, mode=how.mode)
    return first, *rest, second, gate2


def modulated(self: Any, how: FusedRecipe, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute `norm(x) * (1 + scale) + shift`. `x` has shape `[B, S, D]`, and `scale` and `shift` have shape
    `[B, D]`."""
    norm = self.norm
    if scale.dtype != x.dtype:  # A replaced linear may give another dtype. torch promotes the dtypes.
        return norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    return ada_norm(
        as_rows(x),
        scale.unsqueeze(1),
        shift.unsqueeze(1),
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
        mode=how.mode,
    )


def accepts(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> bool:
    """Return whether `x` has shape `[B, S, D]`, and the norm has no weight or a weight in the dtype of
    `x`."""
    weight = self.norm.weight
    return x.dim() == 3 and (weight is None or weight.dtype == x.dtype)


def accepts_zero(
    self: Any,
    x: Tensor,
    timestep: Tensor | None = None,
    class_labels: Tensor | None = None,
    hidden_dtype: Any = None,
    emb: Tensor | None = None,
) -> bool:
    """Return whether `x` and the time embedding have the same dtype.

    If `emb` is None, the module computes the time embedding in the dtype `hidden_dtype`.
    """
    dtype = hidden_dtype if emb is None else emb.dtype
    return dtype == x.dtype and accepts(self, x)


def accepts_emb(self: Any, hidden_states: Tensor, emb: Tensor | None = None) -> bool:
    """Return whether the call has a time embedding `emb` in the dtype of `hidden_states`."""
    return emb is not None and emb.dtype == hidden_states.dtype and accepts(self, hidden_states)


def accepts_single(self: Any, x: Tensor, emb: Tensor | None = None) -> bool:
    """Return `accepts_emb(self, x, emb)`. `AdaLayerNormZeroSingle` names its first argument `x`."""
    return accepts_emb(self, x, emb)


def fits(self: Any) -> str | None:
    """Return None if the norm inside the modulated norm is torch's LayerNorm. Otherwise, return the reason
    why `patch` cannot replace the modulated norm."""
    cls = base_of(self.norm)
    return None if cls is nn.LayerNorm else f"its norm is {cls.__name__}, expected LayerNorm"


def fusion(name: str, cls: str, run: Any, accepts: Any, known: str, chain: str = ONCE) -> Fusion:
    """Create the fusion that replaces the `forward` of diffusers' class `cls`. `known` is the source hash of
    the original `forward`."""
    return Fusion(
        name=f"ada_layer_norm.{name}",
        classes=(f"{MODULE}.{cls}",),
        run=run,
        accepts=accepts,
        fits=fits,
        skips=("norm",),
        sources={"forward": (known,)},
        chains=(chain,),
    )


FUSIONS = (
    fusion("zero", "AdaLayerNormZero", zero, accepts_zero, "c69ec3531377"),
    fusion("zero_single", "AdaLayerNormZeroSingle", single, accepts_single, "dbd2aaaecfec"),
    fusion("continuous", "AdaLayerNormContinuous", continuous, accepts, "d73188184ebd"),
    fusion("zero_x", "SD35AdaLayerNormZeroX", twice, accepts_emb, "5b63c8ed12be", TWICE),
)
