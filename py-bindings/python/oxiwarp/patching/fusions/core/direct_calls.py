"""Runs linears and norms of decoders without `nn.Module.__call__`, which saves Python time.

If a decoder generates one token per step, Python takes more time than the GPU. A decoder layer launches about twenty
kernels, and each call of a module takes as much Python time as one launch. If gradients are disabled and there are no
hooks, the functions here therefore avoid module calls:
- For an unmodified `nn.Linear`, they call `F.linear`.
- For a norm that `patch` replaced, they call `rms_norm`.
- All other modules are called normally, for example adapters, quantised modules and offloaded modules.

Activations have shape `[batch * tokens, columns]`. With this shape, `F.linear` does not reshape them.
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
    """Return whether `__call__` of modules may be skipped: eager mode, gradients disabled, and no global
    hooks."""
    if compiling() or torch.is_grad_enabled():
        return False
    return not (modules._global_forward_hooks or modules._global_forward_pre_hooks)


def bare(held: dict[str, Any]) -> bool:
    """Return whether a module has no forward hooks, no `forward` stored in the instance, and no compiled
    call. `held` is the module's `__dict__`.

    Backward hooks do not matter, because `direct` requires that gradients are disabled.
    """
    if held["_forward_hooks"] or held["_forward_pre_hooks"] or "forward" in held:
        return False
    return held.get("_compiled_call_impl") is None


def called(module: Any, x: Tensor, tokens: tuple[int, ...] | None) -> Tensor:
    """Call the module with `x` and return its result.

    If `tokens` is None, `x` has the shape that the module expects. If `tokens` is `(batch, tokens)`, `x` has
    shape `[batch * tokens, columns]`. The module then gets `x` as `[batch, tokens, columns]`.
    """
    if tokens is None:
        return module(x)
    return module(x.unflatten(0, tokens)).flatten(0, 1)


def linear(module: Any, x: Tensor, tokens: tuple[int, ...] | None) -> Tensor:
    """Compute `module(x)`. If the module is an unmodified `nn.Linear`, call `F.linear` instead of the module.

    If `tokens` is `(batch, tokens)`, `x` has shape `[batch * tokens, columns]`, and a called module gets
    `[batch, tokens, columns]`. The caller must have checked that `direct()` is True: eager mode, no
    gradients, no global hooks.
    """
    held = module.__dict__
    if type(module) is nn.Linear and bare(held) and nn.Linear.forward is LINEAR:
        parameters = held["_parameters"]
        if "weight" in parameters and "bias" in parameters and not ("weight" in held or "bias" in held):
            return F.linear(x, parameters["weight"], parameters["bias"])
    return called(module, x, tokens)


def norm(module: Any, x: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Compute `module(x)` for a norm. `x` has shape `[batch * tokens, columns]`; `tokens` is `(batch,
    tokens)`.

    If `patch` replaced the norm and it has no hooks, call the operator `rms_norm`. Otherwise reshape `x` and
    call the module. The caller must have checked two conditions: `direct()` is True (eager mode, no
    gradients, no global hooks), and the kernels support the device, dtype and layout of `x`.
    """
    held = module.__dict__
    recipe, weight = held.get(RECIPE), held["_parameters"].get("weight")
    if "weight" in held:  # If this attribute exists, the original `forward` reads it instead of the parameter `weight`.
        return called(module, x, tokens)
    if type(recipe) is NormRecipe and bare(held) and type(weight) in PLAIN and recipe.eps_name in held:
        formula, eps = recipe.formulas.get((x.dtype, weight.dtype)), held[recipe.eps_name]
        taken = x.is_cuda or recipe.cpu_kernels
        eps = DEFAULT_EPS if eps is None else eps
        if taken and formula is not None and formula.uses_weight and weight.device == x.device and is_eps(eps):
            return rms_norm(x, weight, eps, formula.weight_offset, formula.round_before_weight)
    return called(module, x, tokens)


def recipe_for(module: Any, fusion: str, x: Tensor) -> FusedRecipe | None:
    """Return the recipe of a module (the options of `patch` for it), if a call of the module would run the fusion with
    the name `fusion`.

    A fusion is a hand-written method that replaces the module's `forward`. If a call of the module would run other
    code, return None. The caller must have checked that `direct()` is True (eager mode, no gradients, no global hooks).
    The caller must also check with `Fusion.accepts` that the kernels support the arguments.
    """
    held = module.__dict__
    how = held.get(RECIPE)
    if type(how) is not FusedRecipe or how.fusion != fusion or not bare(held):
        return None
    return how if x.is_cuda or how.cpu_kernels else None


__all__ = ["called", "direct", "linear", "norm", "recipe_for"]
