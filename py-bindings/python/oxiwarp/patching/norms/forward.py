"""The forward of a replaced norm: the kernel where there is one for the call, otherwise the module's own forward."""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ...ops._register import PLAIN, is_eps, needs_grad
from ...ops.rms_norm import call, rms_norm
from ..class_swap import RECIPE
from ..inductor import is_decoders, is_few
from .probe import MAX_RANK, DtypePair, Formula
from .recognise import DEFAULT_EPS, input_name


@dataclass(frozen=True)
class NormRecipe:
    """What a replaced norm needs: formulas per pair of dtypes, where its eps is, whether CPU tensors run."""

    formulas: dict[DtypePair, Formula]
    eps_name: str
    cpu_kernels: bool = False

    classes: ClassVar[tuple[type, ...]] = ()

    def __hash__(self) -> int:
        return hash((tuple(self.formulas), self.eps_name, self.cpu_kernels))

    def methods(self, base: Any) -> dict[str, Any]:
        """The forward. The own one is looked up at the call: other tools replace it in the class."""
        argument = input_name(base)
        decodes = is_decoders(base)

        @functools.wraps(base.forward)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if len(args) + len(kwargs) == 1 and RECIPE in module.__dict__:
                x = args[0] if args else kwargs.get(argument)
                y = None if decodes and is_few(x) else run(module, self, x)
                if y is not None:
                    return y
            return base.forward(module, *args, **kwargs)

        return {"forward": forward}


def run(module: nn.Module, recipe: NormRecipe, x: Any) -> Tensor | None:
    """The kernel's result, or None where this call is the own forward's: another device or dtype, a subclass, autocast,
    forward-mode AD, a layout that is not rows, a weight with gaps."""
    if type(x) not in PLAIN or forward_ad._current_level >= 0:
        return None
    if not (x.is_cuda or (recipe.cpu_kernels and x.is_cpu)) or not 0 < x.dim() <= MAX_RANK:
        return None
    weight = getattr(module, "weight", None)
    if weight is None:
        shape = module.__dict__.get("normalized_shape")
        if isinstance(shape, tuple) and shape[-1:] != x.shape[-1:]:  # of which the own forward complains
            return None
    elif (
        type(weight) not in PLAIN
        or weight.device != x.device
        or not weight.is_contiguous()
        or weight.shape != x.shape[-1:]  # a weight that broadcasts, or one that the own forward refuses
    ):
        return None
    eps = getattr(module, recipe.eps_name)
    eps = DEFAULT_EPS if eps is None else eps
    formula = recipe.formulas.get((x.dtype, None if weight is None else weight.dtype))
    if formula is None or not is_eps(eps) or torch.is_autocast_enabled("cuda" if x.is_cuda else "cpu"):
        return None
    order = None
    if not x.is_contiguous():
        order = row_order(x)
        if order is None:
            return None
        x = x.permute(order)
    used, offset = weight if formula.uses_weight else None, formula.weight_offset
    if needs_grad(x, used):
        rounding = "before_weight" if formula.round_before_weight else "once"
        y = rms_norm(x, used, eps, weight_offset=offset, rounding=rounding)
    else:
        y = call(x, used, eps, offset, formula.round_before_weight)
    return y if order is None else y.permute(inverse(order))


def row_order(x: Tensor) -> list[int] | None:
    """The order of dimensions in which `x` lies in memory, or None where the kernel cannot read it so.

    A transposed `[B, H, S, D]` is read as the `[B, S, H, D]` that it is, and its result transposed back: the strides
    that an elementwise chain in torch gives, and no copy. The kernel takes what two (size, stride) pairs over the rows
    describe.
    """
    strides, shape = x.stride(), x.shape
    last = len(strides) - 1
    if strides[last] != 1 or 0 in strides:
        return None
    order = sorted(range(last), key=lambda dim: -strides[dim])
    levels, run_stride = 0, None
    for dim in reversed(order):
        if shape[dim] == 1:
            continue
        if strides[dim] != run_stride:
            levels += 1
        run_stride = strides[dim] * shape[dim]
    return [*order, last] if levels <= 2 else None


def inverse(order: list[int]) -> list[int]:
    """The permutation that undoes `order`."""
    return [order.index(dim) for dim in range(len(order))]


__all__ = ["NormRecipe"]
