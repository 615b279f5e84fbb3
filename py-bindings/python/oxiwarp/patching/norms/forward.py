"""The new `forward` of a replaced norm.

If the kernel supports a call, the new `forward` runs the kernel. Otherwise, it runs the original `forward`.
"""

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
from ..sites import SITES, UNSUPPORTED, Site
from .probe import MAX_RANK, DtypePair, Formula
from .recognise import DEFAULT_EPS, input_names

tracing = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True)
class NormRecipe:
    """The data that the new `forward` of a norm needs (its recipe).

    `formulas` maps a pair (input dtype, weight dtype) to a `Formula`, which says how the norm uses its weight
    and where it rounds. `eps_name` is the name of the norm's eps attribute, such as "variance_epsilon".
    `cpu_kernels` says whether the kernel also runs for CPU tensors. `weight_name` is the name of the norm's
    weight parameter.
    """

    formulas: dict[DtypePair, Formula]
    eps_name: str
    cpu_kernels: bool = False
    weight_name: str = "weight"

    classes: ClassVar[tuple[type, ...]] = ()

    def __hash__(self) -> int:
        return hash((tuple(self.formulas), self.eps_name, self.cpu_kernels, self.weight_name))

    def methods(self, base: Any) -> dict[str, Any]:
        """Return the members of a subclass of `base` as a dict: a new `forward`, and the site that counts its
        calls.

        If the kernel does not support a call, the new `forward` calls `base.forward`. It looks up
        `base.forward` in each call, because a tool may replace this attribute after `patch`.
        """
        (argument,) = input_names(base)
        decodes = is_decoders(base)
        site = Site("rms_norm")

        @functools.wraps(base.forward)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if len(args) + len(kwargs) == 1 and RECIPE in module.__dict__:
                x = args[0] if args else kwargs.get(argument)
                y = None if decodes and tracing() and is_few(x) else run(module, self, x)
                if y is not None:
                    site.ran()
                    return y
            site.note(UNSUPPORTED)
            return base.forward(module, *args, **kwargs)

        return {"forward": forward, SITES: [site]}


def run(module: nn.Module, recipe: NormRecipe, x: Any) -> Tensor | None:
    """Run the kernel and return its result. Return None if the original `forward` must run instead.

    The kernel runs if all these conditions hold:

    - `x` is a CUDA tensor, or a CPU tensor if `recipe.cpu_kernels` is True.
    - `recipe.formulas` has an entry for the dtypes of `x` and the weight.
    - The function `row_order` or `is_scattered` accepts the strides of `x`, and the weight is contiguous.
    - `x` and the weight are no tensor subclasses, and neither autocast nor forward-mode AD is active.
    """
    found = parameters(module, recipe, x)
    if found is None:
        return None
    weight, eps, formula = found
    order, restored = None, None
    if not x.is_contiguous():
        if is_scattered(x) and not isinstance(module, nn.RMSNorm):
            x, restored = x.contiguous(), memory_order(x)
        else:
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
    if restored is not None:
        return y.permute(restored).contiguous().permute(inverse(restored))
    return y if order is None else y.permute(inverse(order))


def is_scattered(x: Tensor) -> bool:
    """Return whether the columns of `x` are not adjacent in memory, but `x` fills its memory without gaps, as
    `image.movedim(1, -1)` does.

    For such an `x`, an RMSNorm of elementwise torch operators reads and writes `x` many times. The kernel with a copy
    before it, and a copy back to the memory order of `x` after it, moves less memory. `torch.nn.RMSNorm` is one kernel
    that also copies `x` first, and its result is contiguous. It therefore stays as it is.
    """
    return x.stride(-1) != 1 and x.shape[-1] > 1 and x.permute(memory_order(x)).is_contiguous()


def memory_order(x: Tensor) -> list[int]:
    """Return the dimensions of `x` in the order of descending strides."""
    strides = x.stride()
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def parameters(module: nn.Module, recipe: NormRecipe, x: Any) -> tuple[Tensor | None, float, Any] | None:
    """Return three values for a norm with the input `x`: its weight, its eps, and its formula for the dtypes.

    Return None if the kernel does not support the call.
    """
    if type(x) not in PLAIN or forward_ad._current_level >= 0:
        return None
    if not (x.is_cuda or (recipe.cpu_kernels and x.is_cpu)) or not 0 < x.dim() <= MAX_RANK:
        return None
    weight = getattr(module, recipe.weight_name, None)
    if weight is None:
        shape = module.__dict__.get("normalized_shape")
        if isinstance(shape, tuple) and shape[-1:] != x.shape[-1:]:  # the original forward raises
            return None
    elif (
        type(weight) not in PLAIN
        or weight.device != x.device
        or not weight.is_contiguous()
        or weight.shape != x.shape[-1:]  # the original forward broadcasts the weight or raises
    ):
        return None
    eps = getattr(module, recipe.eps_name)
    eps = DEFAULT_EPS if eps is None else eps
    formula = recipe.formulas.get((x.dtype, None if weight is None else weight.dtype))
    if formula is None or not is_eps(eps) or torch.is_autocast_enabled("cuda" if x.is_cuda else "cpu"):
        return None
    return weight, eps, formula


def row_order(x: Tensor) -> list[int] | None:
    """Return the dimensions of `x` in the order of descending strides, or None if the kernel cannot read `x` in this
    order.

    The caller permutes `x` to this order before it calls the kernel, and permutes the result back, which avoids a copy.
    For example, the kernel reads a transposed tensor of shape `[B, H, S, D]` as `[B, S, H, D]`, which is its order in
    memory. The result then has the strides that an elementwise torch operation would give it. The kernel can read `x`
    if the last stride is 1, no stride is 0, and the other dimensions merge into at most two.
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
    """Return the inverse of the permutation `order`."""
    return [order.index(dim) for dim in range(len(order))]


__all__ = ["NormRecipe", "inverse", "parameters"]
