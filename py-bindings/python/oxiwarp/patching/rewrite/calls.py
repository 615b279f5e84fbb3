"""The functions that rewritten methods call. Each computes one chain: with a kernel, or with the original expression.

A kernel runs if it supports the operands and gives the bits of the original expression. So a rewritten method needs no
check of its arguments, and adapters, hooks and other changes of a model keep working.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from ... import ops
from ...ops._register import FLOATS, PLAIN, is_eps
from ..class_swap import RECIPE
from ..fusions.core.modules import has_hooks, hooks_everywhere, is_exactly
from ..fusions.core.operands import as_rows
from ..fusions.shared.residual_layer_norm import zeros
from ..norms.forward import NormRecipe
from ..norms.recognise import DEFAULT_EPS
from ..sites import RAN, Site

Own = Callable[..., Any]
FUNCTIONS = ("gated_residual", "modulated_norm", "sum_and_norm", "gated_activation")
"""Names of the functions that `calls` returns."""
ACTIVATIONS = {"SiLUActivation": "silu_and_mul", "GELUActivation": "gelu_and_mul", "GELUTanh": "gelu_tanh_and_mul"}
"""Activations of `transformers.activations` with the operators of a gated activation."""


class Norm(NamedTuple):
    """The kind and the parameters of a norm."""

    norm: str
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    offset: float = 0.0
    rounding: str = "once"

    def options(self) -> dict[str, Any]:
        """Return the arguments of `ada_norm`."""
        return {"norm": self.norm, "weight": self.weight, "bias": self.bias, "eps": self.eps}


class Options(NamedTuple):
    """The options of `patch` that the functions of this module use."""

    mode: str
    cpu_kernels: bool


def unusable(x: Any, cpu_kernels: bool) -> str:
    """Return the reason why no kernel runs for a call with the tensor `x`, or "" if a kernel may run."""
    if type(x) not in PLAIN:
        return f"an operand is a {type(x).__name__}"
    if x.dtype not in FLOATS:
        return f"an operand is {x.dtype}"
    if not (x.is_cuda or (cpu_kernels and x.is_cpu)):
        return "an operand is not on a GPU"
    if forward_ad._current_level >= 0 or torch._C._get_tracing_state() is not None:
        return "forward-mode AD or torch.jit.trace is active"
    if torch.is_autocast_enabled("cuda" if x.is_cuda else "cpu"):
        return "autocast is active"
    return ""


def misplaced(name: str, operand: Any, x: Tensor) -> str:
    """Return the reason why `operand` is no modulation of the rows `x` (gate, scale or shift), or ""."""
    if type(operand) not in PLAIN:
        return f"{name} is a {type(operand).__name__}"
    if operand.device != x.device:
        return f"{name} is on another device"
    if operand.dim() == 0 or operand.dim() > x.dim() or operand.shape[-1] != x.shape[-1] or operand.stride(-1) != 1:
        return f"{name} has another last dimension"
    shape = (1,) * (x.dim() - operand.dim()) + tuple(operand.shape)
    shared = [own == 1 and size != 1 for own, size in zip(shape[:-1], x.shape[:-1], strict=True)]
    if any(own not in (1, size) for own, size in zip(shape, x.shape, strict=True)):
        return f"{name} does not broadcast to the rows"
    changes = sum(a != b for a, b in zip(shared, shared[1:], strict=False))
    return "" if changes <= 1 else f"{name} is broadcast in a middle dimension"


def not_rows(x: Tensor) -> str:
    """Return the reason why a kernel's contiguous result for `x` would have other strides than torch's, or ""."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]
    if x.dim() == 0 or x.numel() == 0:
        return "the tensor is empty"
    # `as_rows` copies tokens whose columns are not contiguous, such as those of a patch convolution.
    ordered = x.stride(-1) != 1 or all(a >= b for a, b in zip(strides, strides[1:], strict=False))
    return "" if ordered else "the rows are transposed"


def dtype_of(target: Any) -> Any:
    """Return the dtype to which the result is cast. `target` is a tensor, a dtype, or None if there is no cast."""
    return target.dtype if isinstance(target, Tensor) else target


def norm_of(module: Any, x: Tensor, wide: bool, plain: bool = False) -> Norm | str:
    """Return the parameters of a norm, or the reason why no kernel computes it.

    `wide` says whether the norm's input is cast to float32, so that its result is not rounded to the dtype of `x`.
    `plain` says whether there is no modulation. `add_rms_norm` computes more kinds of RMSNorms than `ada_norm`.
    """
    if not isinstance(module, nn.Module):
        return "the norm is not a module"
    if hooks_everywhere() or has_hooks(module):
        return "the norm has hooks"
    recipe = module.__dict__.get(RECIPE)
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    for parameter in (weight, bias):
        if parameter is not None and (type(parameter) not in PLAIN or parameter.device != x.device):
            return "the norm's parameters are not plain tensors on the device"
        if parameter is not None and parameter.dtype != (torch.float32 if wide else x.dtype) and not plain:
            return "the norm's parameters have another dtype"
    if type(recipe) is NormRecipe:
        eps = module.__dict__.get(recipe.eps_name)
        eps = DEFAULT_EPS if eps is None else eps
        dtype = torch.float32 if wide else x.dtype
        formula = recipe.formulas.get((dtype, None if weight is None else weight.dtype))
        if formula is None or bias is not None or not is_eps(eps):
            return "the RMSNorm has another formula"
        weight = weight if formula.uses_weight else None
        early = formula.round_before_weight and weight is not None and dtype != torch.float32
        if not plain and (formula.weight_offset or early):
            return "the RMSNorm has a weight that ada_norm does not apply"
        if plain and wide:
            return "the RMSNorm rounds in another way"
        return Norm("rms_norm", weight, None, eps, formula.weight_offset, "before_weight" if early else "once")
    if not (is_exactly(module, nn.LayerNorm) or is_fp32_layer_norm(module)):
        return f"{type(module).__name__} is no known norm"
    if plain and wide and weight is not None and weight.dtype != torch.float32 and not is_fp32_layer_norm(module):
        return "the norm's parameters have another dtype"
    if plain and not wide and any(held is not None and held.dtype != x.dtype for held in (weight, bias)):
        return "the norm's parameters have another dtype"
    if module.normalized_shape != x.shape[-1:] or not is_eps(module.eps):
        return "the norm has another width"
    return Norm("layer_norm", weight, bias, module.eps)


def is_fp32_layer_norm(module: nn.Module) -> bool:
    """Whether the module is diffusers' LayerNorm that computes in float32."""
    cls = getattr(type(module), "_oxiwarp_base", type(module))
    return cls.__name__ == "FP32LayerNorm" and issubclass(cls, nn.LayerNorm)


def gated(x: Any, a: Any, b: Any, wide: tuple[bool, bool, bool], target: Any, how: Options) -> tuple[Any, ...] | str:
    """Return branch and gate of `x + a * b` for `gated_residual`, or the reason why the kernel does not run."""
    if why := unusable(x, how.cpu_kernels) or not_rows(x):
        return why
    wide_x, *wide_factors = wide
    factors = sorted(
        zip((a, b), wide_factors, strict=True),
        key=lambda factor: not (type(factor[0]) in PLAIN and factor[0].shape == x.shape and factor[0].dtype == x.dtype),
    )
    (y, wide_y), (gate, wide_gate) = factors
    if type(y) not in PLAIN or y.shape != x.shape or y.dtype != x.dtype or y.device != x.device:
        return "no factor has the shape and dtype of the residual"
    if why := misplaced("gate", gate, x) or not_rows(y):
        return why
    result = dtype_of(target)
    if x.dtype == torch.float32:
        return (
            (y, gate) if gate.dtype == torch.float32 and result in (None, x.dtype) else "the operands differ in dtype"
        )
    if gate.dtype == x.dtype and result in (None, x.dtype):
        if wide_y or wide_gate:
            return (y, gate.float()) if result is not None else "the result is float32"
        return (y, gate) if result is not None or not wide_x else "the result is float32"
    if gate.dtype == torch.float32 and result == x.dtype:
        return y, gate
    return "the operands differ in dtype"


def modulated(
    norm: Any, x: Any, scale: Any, shift: Any, wide: bool, inner: bool, target: Any, how: Options
) -> Norm | str:
    """Return the parameters of the norm for `ada_norm`, or the reason why the kernel does not run."""
    if why := unusable(x, how.cpu_kernels) or not_rows(x) or misplaced("scale", scale, x):
        return why
    if shift is not None and (why := misplaced("shift", shift, x)):
        return why
    result = dtype_of(target)
    by = {scale.dtype, scale.dtype if shift is None else shift.dtype}
    if x.dtype == torch.float32:
        if by != {torch.float32} or result not in (None, torch.float32):
            return "the operands differ in dtype"
        return norm_of(module=norm, x=x, wide=False)
    if wide and not inner:  # computed in float32, rounded once
        if by != {torch.float32} or result != x.dtype:
            return "the operands differ in dtype"
        return norm_of(module=norm, x=x, wide=True)
    # The norm's result is rounded, and the operations after it round too.
    if by != {x.dtype} or result not in (None, x.dtype):
        return "the operands differ in dtype"
    return norm_of(module=norm, x=x, wide=wide)


def plain(x: Any, y: Any, how: Options) -> str:
    """Return the reason why the kernel does not compute the sum `x + y` together with the next norm, or ""."""
    if why := unusable(x, how.cpu_kernels) or not_rows(x):
        return why
    if type(y) not in PLAIN or y.shape != x.shape or y.dtype != x.dtype or y.device != x.device:
        return "the terms differ in shape or dtype"
    return not_rows(y)


def calls(how: Options, sites: list[Site]) -> dict[str, Callable[..., Any]]:
    """Return the functions of this module for the options of `patch`, by operator.

    `sites` counts the outcomes of each chain in eager mode.
    """
    mode = how.mode

    def note(at: Any, outcome: str) -> None:
        sites[at if type(at) is int else at[0]].note(outcome)

    def changed(at: Any) -> str:
        """Return a reason if the method now calls other functions than those whose source the chain contains."""
        if type(at) is int:
            return ""
        index, *functions = at
        same = all(now is then for now, then in zip(functions, sites[index].functions, strict=True))
        return "" if same else "a function was replaced"

    def gated_residual(at: Any, own: Own, options: tuple[Any, ...], **operands: Any) -> Any:
        _, wide = options
        x, a, b = operands["x"], operands["a"], operands["b"]
        found = changed(at) or gated(x, a, b, wide, operands.get("target"), how)
        if isinstance(found, str):
            note(at, found)
            return own(**operands)
        note(at, RAN)
        return ops.gated_residual(as_rows(x), *found, mode=mode)

    def modulated_norm(at: Any, own: Own, options: tuple[Any, ...], **operands: Any) -> Any:
        _, wide, inner = options
        x, scale, shift = operands["x"], operands["scale"], operands.get("shift")
        target = operands.get("target")
        found = changed(at) or modulated(operands["norm"], x, scale, shift, wide, inner, target, how)
        if isinstance(found, str):
            note(at, found)
            return own(**operands)
        note(at, RAN)
        return ops.ada_norm(as_rows(x), scale, shift, **found.options(), mode=mode)

    def sum_and_norm(
        at: Any,
        own_sum: Own,
        own_norm: Own,
        of_sum: tuple[Any, ...],
        of_norm: tuple[Any, ...],
        casts_to_sum: bool,
        **operands: Any,
    ) -> tuple[Any, Any]:
        terms = {name: value for name, value in operands.items() if not name.startswith("norm_")}
        given = {name.removeprefix("norm_"): value for name, value in operands.items() if name.startswith("norm_")}
        x, y, gate = terms["x"], terms.get("y"), None
        if why := changed(at):
            pass
        elif of_sum[0] == "gated_residual":
            found = gated(x, terms["a"], terms["b"], of_sum[1], terms.get("target"), how)
            why = found if isinstance(found, str) else ""
            if not why:
                y, gate = found
        else:
            why = plain(x, y, how)
        if why:  # the norm by itself may still run on a kernel
            note(at, why)
            total = own_sum(**terms)
            target = {"target": total} if casts_to_sum else {}
            norm_by_itself = own_norm if changed(at) else functools.partial(alone, own_norm, of_norm)
            return total, norm_by_itself(x=total, **given, **target)
        target = x if casts_to_sum else given.get("target")
        if of_norm[0] == "modulated_norm":
            norm = modulated(given["norm"], x, given["scale"], given.get("shift"), *of_norm[1:], target, how)
            if isinstance(norm, Norm):
                note(at, RAN)
                by = as_rows(x), as_rows(y), gate, given["scale"], given.get("shift")
                normed, total = ops.gated_residual_ada_norm(*by, **norm.options(), mode=mode)
                return total, normed
        else:
            norm = norm_alone(given["norm"], x, of_norm[1], target)
            if isinstance(norm, Norm):
                run = rms_sum if norm.norm == "rms_norm" else layer_sum
                made = run(as_rows(x), as_rows(y), gate, norm, mode)
                if made is not None:
                    note(at, RAN)
                    return made
                norm = "no kernel adds a gated branch before an RMSNorm"
        note(at, f"the sum by itself: {norm}")
        total = own_sum(**terms) if gate is None else ops.gated_residual(as_rows(x), as_rows(y), gate, mode=mode)
        target = {"target": total} if casts_to_sum else {}
        return total, own_norm(x=total, **given, **target)

    def alone(own: Own, options: tuple[Any, ...], **operands: Any) -> Any:
        if options[0] == "modulated_norm":
            found = modulated(
                operands["norm"],
                operands["x"],
                operands["scale"],
                operands.get("shift"),
                *options[1:],
                operands.get("target"),
                how,
            )
            if not isinstance(found, str):
                by = operands["scale"], operands.get("shift")
                return ops.ada_norm(as_rows(operands["x"]), *by, **found.options(), mode=mode)
        return own(**operands)

    def gated_activation(at: Any, own: Own, options: tuple[Any, ...], **operands: Any) -> Any:
        gate, up = operands["gate"], operands["up"]
        why = changed(at) or unusable(gate, how.cpu_kernels) or not_rows(gate) or not_halves(gate, up)
        op = None if why else activation_of(operands["act"], options[1])
        if op is None:
            note(at, why or "the activation has no kernel")
            return own(**operands)
        note(at, RAN)
        return op(gate, up, mode=mode)

    made = (gated_residual, modulated_norm, sum_and_norm, gated_activation)
    return dict(zip(FUNCTIONS, made, strict=True))


def not_halves(gate: Tensor, up: Any) -> str:
    """Return the reason why the kernel of a gated activation cannot read both tensors, or ""."""
    if type(up) not in PLAIN or (up.shape, up.dtype, up.device) != (gate.shape, gate.dtype, gate.device):
        return "the factors differ in shape or dtype"
    if gate.stride(-1) != 1 or not (gate.dim() <= 3 or gate.is_contiguous()):
        return "the factors are not rows"
    return "" if gate.stride() == up.stride() else "the factors differ in strides"


def activation_of(act: Any, approximate: str) -> Any:
    """Return the operator of an activation and a product, or None. `approximate` is the argument of `F.gelu`, or ""."""
    if not isinstance(act, nn.Module):
        if act is F.silu and not approximate:
            return ops.silu_and_mul
        kinds = {"": ops.gelu_and_mul, "none": ops.gelu_and_mul, "tanh": ops.gelu_tanh_and_mul}
        return kinds.get(approximate) if act is F.gelu else None
    if approximate or hooks_everywhere() or has_hooks(act):
        return None
    if is_exactly(act, nn.SiLU):
        return ops.silu_and_mul
    if is_exactly(act, nn.GELU):
        return ops.gelu_tanh_and_mul if act.approximate == "tanh" else ops.gelu_and_mul
    cls = type(act)
    kind = ACTIVATIONS.get(cls.__name__) if cls.__module__ == "transformers.activations" else None
    if kind is None or not plain_activation(act):
        return None
    return getattr(ops, kind)


def plain_activation(act: nn.Module) -> bool:
    """Whether an activation of transformers calls torch's function, which is not the case with `use_gelu_python`."""
    function = act.__dict__.get("act")
    return function is None or not hasattr(function, "__self__")


def norm_alone(module: Any, x: Tensor, wide: bool, target: Any) -> Norm | str:
    """Return the parameters of a norm without modulation, or the reason why no kernel runs."""
    if dtype_of(target) not in (None, x.dtype) or (wide and target is None and x.dtype != torch.float32):
        return "the result has another dtype"
    return norm_of(module, x, wide and x.dtype != torch.float32, plain=True)


def rms_sum(x: Tensor, y: Tensor, gate: Any, norm: Norm, mode: str) -> tuple[Tensor, Tensor] | None:
    """Return the sum `x + y` and its RMSNorm, or None if there is a gate."""
    if gate is not None:
        return None
    options: dict[str, Any] = {"weight_offset": norm.offset, "rounding": norm.rounding}
    normed, total = ops.add_rms_norm(y, x, norm.weight, norm.eps, **options)
    return total, normed


def layer_sum(x: Tensor, y: Tensor, gate: Any, norm: Norm, mode: str) -> tuple[Tensor, Tensor] | None:
    """Return the sum `x + gate * y` and its LayerNorm."""
    scale = zeros(x if norm.weight is None else norm.weight)
    by = {"weight": norm.weight, "bias": norm.bias, "eps": norm.eps}
    normed, total = ops.gated_residual_ada_norm(x, y, gate, scale, **by, mode=mode)
    return total, normed


__all__ = ["FUNCTIONS", "Options", "calls"]
