"""Modules called by what they do, without `nn.Module.__call__`.

A decoder that makes one token waits for Python: a layer is twenty launches, and the call of a module takes as long as
one of them. So where nothing is recorded and nothing hooked, the function of a plain linear and the operator of a
replaced norm are called at once, on rows, `[tokens, columns]`, which saves torch the reshaping for each product. A
module that is not known, or not plain (an adapter, a quantised or offloaded one, one that another tool gave a forward)
is called as ever.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules

from ....ops._register import PLAIN, is_eps
from ....ops.rms_norm import call as rms_norm
from ...class_swap import RECIPE
from ...norms.forward import NormRecipe
from ...norms.recognise import DEFAULT_EPS
from .recipe import FusedRecipe

compiling = torch.compiler.is_compiling
LINEAR = nn.Linear.forward


def direct() -> bool:
    """Whether plain modules may be called by what they do: eager, without gradients, no hooks on all modules."""
    if compiling() or torch.is_grad_enabled():
        return False
    return not (modules._global_forward_hooks or modules._global_forward_pre_hooks)


def bare(held: dict[str, Any]) -> bool:
    """Whether the module with these attributes has no hooks (without gradients, those of a backward are none), no
    forward of its own and was not compiled by itself."""
    if held["_forward_hooks"] or held["_forward_pre_hooks"] or "forward" in held:
        return False
    return held.get("_compiled_call_impl") is None


def called(module: Any, x: Tensor, tokens: tuple[int, ...] | None) -> Tensor:
    """`module(x)`; `x` are rows of so many batches and tokens, or what the module takes (None)."""
    if tokens is None:
        return module(x)
    return module(x.unflatten(0, tokens)).flatten(0, 1)


def linear(module: Any, x: Tensor, tokens: tuple[int, ...] | None) -> Tensor:
    """`called(module, x, tokens)` where `direct()`."""
    held = module.__dict__
    if type(module) is nn.Linear and bare(held) and nn.Linear.forward is LINEAR:
        parameters = held["_parameters"]
        if "weight" in parameters and "bias" in parameters and not ("weight" in held or "bias" in held):
            return F.linear(x, parameters["weight"], parameters["bias"])
    return called(module, x, tokens)


def norm(module: Any, x: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """`called(module, x, tokens)` where `direct()`, for contiguous rows in memory that the kernels take."""
    held = module.__dict__
    recipe, weight = held.get(RECIPE), held["_parameters"].get("weight")
    if "weight" in held:  # an attribute over the parameter, which the own forward reads
        return called(module, x, tokens)
    if type(recipe) is NormRecipe and bare(held) and type(weight) in PLAIN and recipe.eps_name in held:
        formula, eps = recipe.formulas.get((x.dtype, weight.dtype)), held[recipe.eps_name]
        taken = x.is_cuda or recipe.cpu_kernels
        eps = DEFAULT_EPS if eps is None else eps
        if taken and formula is not None and formula.uses_weight and weight.device == x.device and is_eps(eps):
            return rms_norm(x, weight, eps, formula.weight_offset, formula.round_before_weight)
    return called(module, x, tokens)


def recipe_for(module: Any, fusion: str, x: Tensor) -> FusedRecipe | None:
    """The recipe by which a module's own call would run this fusion, `accepts` apart, where `direct()`."""
    held = module.__dict__
    how = held.get(RECIPE)
    if type(how) is not FusedRecipe or how.fusion != fusion or not bare(held):
        return None
    return how if x.is_cuda or how.cpu_kernels else None


__all__ = ["called", "direct", "linear", "norm", "recipe_for"]
