"""Fusions for single LayerNorms (torch.nn.LayerNorm, diffusers' FP32LayerNorm). They also replace LayerNorms
of models for which there are no fused blocks.

A fusion is a hand-written method that replaces a method of a model's class.
"""

from typing import Any

import torch
from torch import Tensor

from ....ops._register import is_eps
from ..core.fusion import Fusion
from ..core.modules import resident
from ..core.ops import layer_norm
from ..core.recipe import FusedRecipe


def run(self: Any, how: FusedRecipe, x: Tensor) -> Tensor:
    """Compute the result of `LayerNorm.forward` with oxiwarp's kernels."""
    return layer_norm(x, self.weight, self.bias, self.eps)


def accepts(self: Any, x: Tensor | None = None, /, **by_name: Tensor) -> bool:
    """Return whether `x` is contiguous and the norm's parameters have the dtype of `x`.

    torch also accepts float32 parameters for 16-bit inputs, but torch's CUDA kernel then rounds differently from the
    oxiwarp kernel. Also return False under torch.compile, where Inductor fuses a LayerNorm with the next operation.
    Also return False if the input is a keyword argument, because its name depends on the class of the norm.
    """
    if x is None or torch.compiler.is_compiling() or x.dim() == 0 or not x.is_contiguous():
        return False
    if x.shape[-1:] != self.normalized_shape or not is_eps(self.eps):  # left to the original forward
        return False
    return resident(x.device, self.weight, self.bias) and all(
        parameter is None or parameter.dtype == x.dtype for parameter in (self.weight, self.bias)
    )


def fits(self: Any) -> str | None:
    """Return None if the norm normalises only the last dimension. Otherwise, return the reason why `patch`
    cannot replace the norm."""
    return None if len(self.normalized_shape) == 1 else f"it normalises {len(self.normalized_shape)} dimensions"


FUSIONS = (
    Fusion(
        name="layer_norm",
        classes=("torch.nn.modules.normalization.LayerNorm",),
        run=run,
        accepts=accepts,
        fits=fits,
        sources={"forward": ("061ac68b21ec",)},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("LayerNorm by itself: layer_norm",),
    ),
    Fusion(
        name="fp32_layer_norm",
        classes=("diffusers.models.normalization.FP32LayerNorm",),
        run=run,
        accepts=accepts,
        fits=fits,
        sources={"forward": ("878c87be861d",)},
        exactness={"exact": "bit-exact", "fast": "bit-exact"},
        chains=("LayerNorm in float32, cast back: layer_norm",),
    ),
)
