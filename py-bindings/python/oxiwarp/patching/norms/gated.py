"""The new `forward` of a replaced RMSNorm with a gate, as in Mamba 2 and Qwen3-Next.

If the kernel supports a call, the new `forward` runs one kernel. Otherwise, it runs the original `forward`.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from ...ops._register import PLAIN
from ...ops.rms_norm_gated import rms_norm_gated
from ..class_swap import RECIPE
from ..inductor import is_decoders, is_few
from ..sites import RAN, SITES, UNSUPPORTED, Site
from .forward import NormRecipe, parameters
from .recognise import input_names


class GatedNormRecipe(NormRecipe):
    """The data that the new `forward` of a norm with a gate needs (its recipe).

    Its formulas have the type `GatedFormula` instead of `Formula`.
    """

    def methods(self, base: Any) -> dict[str, Any]:
        """Return the members of a subclass of `base` as a dict: a new `forward`, and a `Site`. The `Site`
        counts for the report how often the kernel and how often the original `forward` ran.
        """
        names = input_names(base)
        decodes = is_decoders(base)
        site = Site("rms_norm_gated")

        @functools.wraps(base.forward)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if len(args) + len(kwargs) == 2 and RECIPE in module.__dict__:
                given = dict(zip(names, args, strict=False)) | kwargs
                x, gate = (given.get(name) for name in names)
                y = None if decodes and is_few(x) else run(module, self, x, gate)
                if y is not None:
                    site.note(RAN)
                    return y
            site.note(UNSUPPORTED)
            return base.forward(module, *args, **kwargs)

        return {"forward": forward, SITES: [site]}


def run(module: nn.Module, recipe: NormRecipe, x: Any, gate: Any) -> Tensor | None:
    """Run the kernel and return its result. Return None if the original `forward` must run instead.

    The kernel runs under the conditions that the function `run` in forward.py lists. In addition, the gate must have
    the shape and device of `x`. As after the scan of Mamba 2, `x` may be float32 while gate and weight are 16-bit. Gate
    and weight are then cast to float32, as in the original `forward`.
    """
    found = parameters(module, recipe, x)
    if found is None or type(gate) not in PLAIN or gate.shape != x.shape or gate.device != x.device:
        return None
    weight, eps, formula = found
    if gate.dtype != x.dtype and x.dtype != torch.float32:
        return None
    known = gate.dtype == x.dtype if weight is None else recipe.formulas.get((x.dtype, gate.dtype)) == formula
    if not known or not are_rows(x, gate):
        return None
    if x.dtype == torch.float32:
        gate, weight = gate.float(), None if weight is None else weight.float()
    rounding = "before_weight" if formula.round_before_weight else "once"
    how: dict[str, Any] = {"activation": formula.activation, "gate_first": formula.gate_first}
    return rms_norm_gated(x, gate, weight, eps, rounding=rounding, **how)


def are_rows(x: Tensor, gate: Tensor) -> bool:
    """Return whether the kernel can read `x` and `gate`. All dimensions except the last must merge into at
    most two, in the same way for both tensors.

    The strides of `x` must be in descending order. Otherwise, the kernel's result would have other strides
    than torch's result.
    """
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]
    if x.stride(-1) != 1 or gate.stride(-1) != 1 or strides != sorted(strides, reverse=True):
        return False
    levels, inner = 0, -1
    for dim in range(x.dim() - 2, -1, -1):
        if x.shape[dim] == 1:
            continue
        merges = inner >= 0 and all(own.stride(dim) == own.stride(inner) * own.shape[inner] for own in (x, gate))
        levels, inner = levels + (not merges), dim
    return levels <= 2 and 0 not in gate.stride()


__all__ = ["GatedNormRecipe"]
