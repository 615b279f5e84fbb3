"""Checks at run time whether a kernel may compute an expression of a rewritten method, with the same bits as the
original code.

The functions check the operands of the expression, such as tensors and norm modules. If no kernel can run, they return
the reason as a `str`. In eager mode, they do not check most shapes and strides, because the operators raise an error
for unsupported ones, which the caller catches. torch.compile does not trace `except`, so under torch.compile the
function `misplaced` checks shapes and strides.
"""

from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from ... import ops
from ..._cache import cache_weakly
from ...ops._register import FLOATS, PLAIN, is_eps
from ..class_swap import RECIPE, base_of
from ..fusions.core.modules import has_hooks, hooks_everywhere, is_exactly
from ..fusions.core.registry import find
from ..norms.forward import NormRecipe
from ..norms.recognise import DEFAULT_EPS, is_candidate

FLOAT = torch.float32
ACTIVATIONS = {
    "transformers.activations.SiLUActivation": "silu_and_mul",
    "transformers.activations.GELUActivation": "gelu_and_mul",
    "transformers.activations.GELUTanh": "gelu_tanh_and_mul",
    "transformers.activations.ReLUSquaredActivation": "relu2_and_mul",
    "diffusers.models.transformers.t5_film_transformer.NewGELUActivation": "gelu_new",
    "diffusers.models.activations.FP32SiLU": "silu_and_mul",
    "torch.nn.modules.activation.SiLU": "silu_and_mul",
    "torch.nn.modules.activation.Sigmoid": "sigmoid_and_mul",
    "transformers.activations.NewGELUActivation": "gelu_new",
    "transformers.activations.FastGELUActivation": "gelu_fast",
    "transformers.activations.QuickGELUActivation": "gelu_quick",
}
"""The operator for each activation class of torch and the Hugging Face libraries. Some operators compute
`activation(gate) * up`, and the others compute `activation(x)`."""
DTYPES = "the operands differ in dtype"
SWIGLU = "feed_forward.silu_and_mul"
"""Name of the fusion for activation modules with both factors in one tensor."""

compiling = torch.compiler.is_compiling


class Norm(NamedTuple):
    """The kind and the parameters of a norm."""

    kind: str
    """"layer_norm" or "rms_norm"."""
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    offset: float = 0.0
    """Number that an RMSNorm adds to its weight."""
    rounding: str = "once"
    """When an RMSNorm rounds: a value of the argument `rounding` of `oxiwarp.add_rms_norm`, or of `oxiwarp.ada_norm`
    if the norm is modulated."""


def unusable(x: Any, cpu_kernels: bool, permuted: bool = False) -> str | None:
    """Return the reason why no kernel may run with the operand `x`, or None if a kernel may run.

    `permuted` says whether the kernel accepts a tensor with permuted dimensions, such as a transposed tensor.
    """
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
    # If `x` has permuted dimensions, torch's result has the same order of dimensions in memory as `x`, but
    # the result of a kernel is contiguous. Therefore reject such an `x`. There is one exception: an `x` whose
    # last dimension is not contiguous, as after a patch-embedding convolution, is copied later.
    if not permuted and not x.is_contiguous() and x.stride(-1) == 1 and is_permuted(x):
        return "the tensor is transposed"
    return "the tensor is empty" if not x.shape or x.numel() == 0 else None


def received(terms: dict[str, Any]) -> bool:
    """Replace each term that a collective operation of `torch.distributed` still receives, such as the result of a
    linear under tensor parallelism, by the received tensor. Return whether there was such a term. A received tensor has
    no gradient, so nothing is replaced if a gradient is recorded.
    """
    # The class is compared by name, because its module would import all of torch.distributed.
    waiting = {name: x for name, x in terms.items() if type(x).__name__ == "AsyncCollectiveTensor"}
    if any(x.requires_grad for x in waiting.values()):
        return False
    terms.update((name, x.trigger_wait()) for name, x in waiting.items())
    return bool(waiting)


def scattered(x: Tensor) -> str | None:
    """Return a reason if the elements of the last dimension are not adjacent in memory. An operator would copy `x`, and
    its result would be contiguous. torch's elementwise functions keep the order of the dimensions in memory.
    """
    return "the tensor is transposed" if x.shape[-1] > 1 and x.stride(-1) != 1 else None


def is_permuted(x: Tensor) -> bool:
    """Return whether the order of the dimensions in memory differs from their order in the shape.

    Expanded dimensions (stride 0) are ignored because they have no position in memory.
    """
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1 and stride]
    return any(a < b for a, b in zip(strides, strides[1:], strict=False))


def is_like(y: Any, x: Tensor) -> bool:
    """Return whether `y` is a plain tensor with the shape, dtype and device of `x`, and without permuted
    dimensions."""
    same = type(y) in PLAIN and y.shape == x.shape and y.dtype == x.dtype and y.device == x.device
    return same and (y.is_contiguous() or y.stride(-1) != 1 or not is_permuted(y))


def is_branch(y: Any, x: Tensor) -> bool:
    """Return whether `y` is like `x`, apart from its dtype if `x` is float32."""
    if is_like(y, x):
        return True
    wider = type(y) in PLAIN and x.dtype == FLOAT and y.dtype in FLOATS
    return wider and y.shape == x.shape and y.device == x.device and (y.is_contiguous() or not is_permuted(y))


def is_plain(x: Any) -> bool:
    """Return whether `x` is a plain tensor. A tensor subclass with its own dispatch, such as a quantized
    tensor, is not."""
    return type(x) in PLAIN


def is_number(x: Any) -> bool:
    """Return whether `x` is a number or a tensor with one element."""
    return type(x) in (float, int) or (is_plain(x) and x.numel() == 1)


def expanded(x: Any, y: Any) -> dict[str, Tensor] | None:
    """If `x` and `y` have different shapes, return both, with the smaller one expanded to the shape of the
    larger one.

    Return None if their shapes are equal, if they are not tensors, or if the smaller one cannot be expanded
    in this way.
    """
    if not (is_plain(x) and is_plain(y)) or x.shape == y.shape:
        return None
    if (y.dim(), y.numel()) > (x.dim(), x.numel()):
        x, y = y, x
    shape = (1,) * (x.dim() - y.dim()) + tuple(y.shape)
    fits = shape[-1:] == x.shape[-1:] and all(own in (1, size) for own, size in zip(shape, x.shape, strict=True))
    return {"x": x, "y": y.expand(x.shape)} if fits and y.dim() else None


def misplaced(x: Tensor, *modulations: Any, one_column: bool = False) -> str | None:
    """Return the reason why a modulation (a gate, scale or shift) does not fit the rows of `x`, or None if it
    fits.

    In eager mode, only check the type and the last dimension of each modulation, because the operators check
    everything else. `one_column` says whether the last dimension may also have size 1.
    """
    for operand in modulations:
        if operand is None:
            continue
        if type(operand) not in PLAIN:
            return f"a modulation is a {type(operand).__name__}"
        shape = operand.shape
        columns = shape[-1] if shape else 0
        if columns != x.shape[-1] and not (one_column and columns == 1):
            return f"a modulation has shape {list(operand.shape)}"
        if compiling() and not broadcasts(operand, x):
            return "a modulation does not broadcast to the rows"
    return None


def broadcasts(operand: Tensor, x: Tensor) -> bool:
    """Return whether the operators can broadcast `operand` (a gate, scale or shift) to the rows of `x`."""
    contiguous = operand.dim() > 0 and (operand.stride(-1) == 1 or operand.shape[-1] == 1)
    if not contiguous or operand.dim() > x.dim() or operand.device != x.device:
        return False
    shape = (1,) * (x.dim() - operand.dim()) + tuple(operand.shape)
    if any(own not in (1, size) for own, size in zip(shape, x.shape, strict=True)):
        return False
    shared = [own == 1 and size != 1 for own, size in zip(shape[:-1], x.shape[:-1], strict=True)]
    # Do not use `sum` here: with a symbolic size, torch.compile of torch 2.11 fails on it.
    return len([a for a, b in zip(shared, shared[1:], strict=False) if a != b]) <= 1


def dtype_of(target: Any) -> Any:
    """Return the dtype to which the original code casts a result. `target` is a tensor with this dtype, the
    dtype itself, or None if there is no cast."""
    return target.dtype if isinstance(target, Tensor) else target


def branch_and_gate(
    x: Any, a: Any, b: Any, wide: tuple[bool, bool, bool], inner: bool, target: Any, cpu_kernels: bool
) -> tuple[Tensor, Tensor] | str:
    """Return the arguments `y` and `gate` with which the operator `gated_residual` computes `x + a * b`, or a
    reason why no kernel runs.

    One of `a` and `b` is the gate, and the other is `y`. The other arguments describe casts in the original code.
    `wide` contains three flags: whether it casts `x`, `a` and `b` to float32. `inner` is True if it casts the product
    `a * b` to `target`, and False if it casts the sum.
    """
    if why := unusable(x, cpu_kernels):
        return why
    wide_x, wide_y, wide_gate = wide
    y, gate = a, b
    if not is_branch(y, x):
        y, gate, wide_y, wide_gate = b, a, wide_gate, wide_y
        if not is_branch(y, x):
            return "no factor has the shape and dtype of the residual"
    if why := misplaced(x, gate, one_column=True):
        return why
    result = dtype_of(target)
    if y.dtype != x.dtype:  # A float32 residual with a 16-bit branch, as in Kandinsky 5.
        if result not in (None, FLOAT) or gate.dtype not in (FLOAT, y.dtype) or (inner and wide_y | wide_gate):
            return DTYPES
        return y, gate.float() if wide_y or wide_gate else gate
    if x.dtype == FLOAT:
        return (y, gate) if gate.dtype == FLOAT and result in (None, FLOAT) else DTYPES
    if inner:
        # The original code casts the product to 16 bits before the sum. It therefore rounds both, like code
        # without casts.
        return (y, gate) if gate.dtype == x.dtype == result and not wide_x else DTYPES
    if gate.dtype == FLOAT:  # The product and the sum are computed in float32.
        return (y, gate) if result == x.dtype else DTYPES
    if gate.dtype != x.dtype or result not in (None, x.dtype):
        return DTYPES
    if result is None and (wide_x or wide_y or wide_gate):
        return "the result is float32"
    return y, gate.float() if wide_y or wide_gate else gate


def modulated(
    norm: Any, x: Any, scale: Any, shift: Any, wide: bool, inner: bool, target: Any, cpu_kernels: bool
) -> Norm | str:
    """Return the `Norm` (parameters of a norm) with which a kernel computes `norm(x) * (1 + scale) + shift`,
    or a reason why no kernel does.

    The arguments describe casts in the original code. `wide` says whether it casts `x` to float32. `inner` is True if
    it casts the result of the norm to `target`, and False if it casts the result of the whole expression.
    """
    if why := unusable(x, cpu_kernels) or misplaced(x, scale, shift):
        return why
    result, dtype = dtype_of(target), scale.dtype
    if shift is not None and shift.dtype != dtype:
        return DTYPES
    once = wide and not inner and x.dtype != FLOAT  # The expression is computed in float32 and rounded once.
    if once:
        return norm_of(norm, x, wide=True) if dtype in (FLOAT, x.dtype) and result == x.dtype else DTYPES
    # The original code rounds the results of the norm, of the product and of the sum.
    return norm_of(norm, x, wide=False) if dtype == x.dtype and result in (None, x.dtype) else DTYPES


def unscaled(x: Any, scale: Any, shift: Any, wide: bool, target: Any, cpu_kernels: bool) -> str | None:
    """Return the reason why no kernel computes `x * (1 + scale) + shift`, or None.

    `wide` says whether the original code casts `x` to float32.
    """
    if why := unusable(x, cpu_kernels) or misplaced(x, scale, shift):
        return why
    dtypes = {scale.dtype} if shift is None else {scale.dtype, shift.dtype}
    result = dtype_of(target)
    if x.dtype == FLOAT:  # A cast may follow the kernel.
        return None if dtypes == {FLOAT} and result in (None, *FLOATS) else DTYPES
    if not dtypes <= {FLOAT, x.dtype}:
        return DTYPES
    if wide or scale.dtype == FLOAT:  # The product and the sum are computed in float32.
        return None if result == x.dtype else DTYPES
    return None if dtypes == {x.dtype} and result in (None, x.dtype) else DTYPES


def modulation(x: Tensor, scale: Tensor, shift: Tensor | None, wide: bool, inner: bool) -> tuple[Any, Any]:
    """Return the arguments `scale` and `shift` for the operator `ada_norm`.

    They are `scale` and `shift` themselves, except if the original code keeps the result of a 16-bit norm in float32.
    Then both are returned in float32. The original code still rounds `1 + scale` to the dtype of `scale`. The returned
    scale is therefore this rounded sum minus 1, which has no rounding error in float32.
    """
    if wide and not inner and x.dtype != FLOAT and scale.dtype != FLOAT:
        return (1 + scale).float() - 1, None if shift is None else shift.float()
    return scale, shift


def norm_of(module: Any, x: Tensor, wide: bool, modulated: bool = True) -> Norm | str:
    """Return the parameters of the norm `module` as a `Norm`, or the reason why no kernel computes the norm.

    `wide` says whether the input of the norm is cast to float32. If so, the result is not rounded to the dtype of `x`.
    If `modulated` is True, the operator `ada_norm` will compute the norm. If it is False, `add_rms_norm` will compute
    an RMSNorm, and supports more variants.
    """
    if not isinstance(module, nn.Module):
        return "the norm is not a module"
    if hooks_everywhere() or has_hooks(module):
        return "the norm has hooks"
    dtype = FLOAT if wide else x.dtype
    parameters, own = module._parameters, module.__dict__
    recipe = own.get(RECIPE)
    recipe = recipe if isinstance(recipe, NormRecipe) and type(recipe) is NormRecipe else None
    # Each attribute of the recipe that this function reads adds two guards to each norm of a compiled
    # model. So does `type`, unlike `isinstance`.
    plain = recipe is None or ("weight" in parameters and parameters["weight"] is not None)
    name = "weight" if plain else recipe.weight_name  # type: ignore[union-attr]
    absent = recipe is None and isinstance(module, nn.LayerNorm) and not (name in parameters and "bias" in parameters)
    shadowed = name in own and own[name] is not None
    if absent or shadowed or (recipe is None and "bias" in own and own["bias"] is not None):
        return "the norm's weight or bias is not a parameter"
    weight = parameters[name] if name in parameters else None  # noqa: SIM401  `get` takes more time
    bias = parameters["bias"] if "bias" in parameters else None  # noqa: SIM401
    for parameter in (weight, bias):
        if parameter is not None and (type(parameter) not in PLAIN or parameter.device != x.device):
            return "the norm's parameters are not plain tensors on the device"
    if recipe is not None:
        return rms_norm_of(module, recipe, (weight, bias), x, dtype, modulated)
    casts = False
    if not is_exactly(module, nn.LayerNorm):
        # `FP32LayerNorm` of diffusers casts the input and the parameters to float32.
        casts = base_of(module).__name__ == "FP32LayerNorm"
        if not casts:
            return f"{base_of(module).__name__} is no known norm"
    for parameter in (weight, bias):
        if parameter is not None and parameter.dtype != dtype and not (casts and x.dtype in (FLOAT, parameter.dtype)):
            return "the norm's parameters have another dtype"
    known: Any = module
    if known.normalized_shape != x.shape[-1:] or not is_eps(known.eps):
        return "the norm has another width"
    return Norm("layer_norm", weight, bias, known.eps)


def plain_rms_norm(module: nn.Module, x: Tensor) -> Norm | None:
    """Return the parameters of an RMSNorm with a weight and without hooks, as `norm_of` returns them. Return None if
    only `norm_of` can decide. This function makes fewer calls than `norm_of`."""
    own, parameters = module.__dict__, module._parameters
    recipe = own.get(RECIPE)
    if type(recipe) is not NormRecipe or hooks_everywhere() or own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return None
    if own["_backward_hooks"] or own["_backward_pre_hooks"] or "forward" in own or recipe.weight_name in own:
        return None
    weight, eps = parameters.get(recipe.weight_name), own.get(recipe.eps_name)
    if weight is None or type(weight) not in PLAIN or weight.device != x.device:
        return None
    if type(eps) is not float or len(parameters) != 1:
        return None
    formula = recipe.formulas.get((x.dtype, weight.dtype))
    if formula is None or not formula.uses_weight:
        return None
    early = formula.round_before_weight and x.dtype != FLOAT
    return Norm("rms_norm", weight, None, eps, formula.weight_offset, "before_weight" if early else "once")


def unknown_norm(module: Any) -> str | None:
    """Return the reason why no kernel computes norms of the class of `module`, or None. This function checks only the
    class.
    """
    if module is None:
        return "it has no norm"
    known = isinstance(module, nn.Module) and (is_candidate(module) or isinstance(module, nn.LayerNorm))
    return None if known else f"{base_of(module).__name__} is no known norm"


def rms_norm_of(
    module: nn.Module,
    recipe: NormRecipe,
    parameters: tuple[Tensor | None, Tensor | None],
    x: Tensor,
    dtype: torch.dtype,
    modulated: bool,
) -> Norm | str:
    """Return the parameters (`Norm`) of an RMSNorm that `patch` recognised, or a reason why no kernel computes the
    norm.

    `parameters` are the weight and the bias. `dtype` is the dtype of the norm's input, after a possible cast to
    float32.
    """
    weight, bias = parameters
    formula = recipe.formulas.get((dtype, None if weight is None else weight.dtype))
    own = module.__dict__
    eps = own["eps"] if "eps" in own else own.get(recipe.eps_name)
    eps = DEFAULT_EPS if eps is None else eps
    if formula is None or bias is not None or not is_eps(eps):
        return "the RMSNorm has another formula"
    weight = weight if formula.uses_weight else None
    early = formula.round_before_weight and weight is not None and dtype != FLOAT
    if not modulated:
        return Norm("rms_norm", weight, None, eps, formula.weight_offset, "before_weight" if early else "once")
    if is_exactly(module, nn.RMSNorm) and (weight is None or weight.dtype == dtype):
        return Norm("rms_norm", weight, None, eps, rounding="once")
    # With `rounding="before_weight"`, `ada_norm` rounds to the dtype of x before it multiplies by the weight.
    # So this module must round at the same point.
    as_ada_norm = weight is None or (early if x.dtype != FLOAT else dtype == FLOAT)
    if formula.weight_offset or not as_ada_norm:
        return "the RMSNorm applies its weight in another way than ada_norm"
    return Norm("rms_norm", weight, None, eps, rounding="before_weight")


def unmodulated(module: Any, x: Tensor, wide: bool, target: Any) -> Norm | str:
    """Return the parameters (`Norm`) of a norm without modulation, or a reason why no kernel computes the norm.

    `wide` says whether the original code casts `x` to float32. The original code casts the result to
    `target`, unless `target` is None.
    """
    result = None if target is None else dtype_of(target)
    if result not in (None, x.dtype) or (wide and result is None and x.dtype != FLOAT):
        return DTYPES
    return norm_of(module, x, wide, modulated=False)


def activation_of(act: Any, approximate: str) -> Any:
    """Return the operator that computes `act(gate) * up`, or a reason why there is none.

    `approximate` is the argument with this name in a call of `F.gelu`. For other activations it is "".
    """
    if not isinstance(act, nn.Module):
        if act is F.silu and not approximate:
            return ops.silu_and_mul
        if (act is torch.sigmoid or act is F.sigmoid) and not approximate:
            return ops.sigmoid_and_mul
        kinds = {"": ops.gelu_and_mul, "none": ops.gelu_and_mul, "tanh": ops.gelu_tanh_and_mul}
        return kinds.get(approximate, DTYPES) if act is F.gelu else "the activation has no kernel"
    if approximate or hooks_everywhere() or has_hooks(act):
        return "the activation has hooks"
    cls = type(act)
    kind = ACTIVATIONS.get(f"{cls.__module__}.{cls.__name__}")
    if kind is None:
        if is_exactly(act, nn.GELU):
            return ops.gelu_tanh_and_mul if act.approximate == "tanh" else ops.gelu_and_mul
        cls = base_of(act)
        kind = ACTIVATIONS.get(f"{cls.__module__}.{cls.__name__}")
    # With the option `use_gelu_python` of transformers, the module's attribute `act` is a Python method that
    # rounds differently.
    python = isinstance(act.__dict__.get("act"), MethodType)
    return f"{cls.__name__} has no kernel" if kind is None or python else getattr(ops, kind)


def memory_order(*tensors: Tensor) -> list[int] | None:
    """Return the order in which the dimensions of the tensors lie in memory, from the largest to the smallest
    stride.

    For example, images in channels-last format have the order 0, 2, 3, 1. Return None if the tensors have
    different orders, or if no dimension has stride 1.
    """
    orders = [sorted(range(x.dim()), key=x.stride().__getitem__, reverse=True) for x in tensors]
    same = all(order == orders[0] and x.stride(order[-1]) == 1 for x, order in zip(tensors, orders, strict=True))
    return orders[0] if same else None


def plain_activation(act: Any) -> Any:
    """Return the operator that computes `act(x)` for the activation module `act`, or a reason why there is
    none."""
    if is_packed(base_of(act)):
        hooked = hooks_everywhere() or has_hooks(act) or has_hooks(act.gate_fn)
        return "the activation has hooks" if hooked else ops.silu_and_mul
    op = activation_of(act, "")
    return (
        op
        if isinstance(op, str)
        else getattr(ops, op.__name__.removesuffix("_and_mul"), "the activation has no kernel")
    )


@cache_weakly
def is_packed(cls: type) -> bool:
    """Return whether `cls` is a class such as `Flux2SwiGLU`, which multiplies the SiLU of the first half of the
    columns by the second half."""
    found = find(cls)
    return found is not None and found[0].name == SWIGLU and found[0].difference(cls, found[1]) is None


def not_halves(gate: Tensor, up: Any) -> str | None:
    """Return the reason why the kernel of a gated activation cannot read the tensors `gate` and `up`, or None
    if it can.

    In eager mode, this function checks only the order of the dimensions in memory, because the operator
    itself checks the strides.
    """
    if not is_like(up, gate):
        return "the factors differ in shape or dtype"
    if gate.is_contiguous() and up.is_contiguous():
        return None
    if memory_order(gate, up) is None or (compiling() and (gate.stride() != up.stride() or gate.dim() > 3)):
        return "the factors are not two halves"
    return None


__all__ = [
    "Norm",
    "activation_of",
    "branch_and_gate",
    "dtype_of",
    "is_like",
    "memory_order",
    "modulated",
    "modulation",
    "norm_of",
    "not_halves",
    "plain_activation",
    "plain_rms_norm",
    "unknown_norm",
    "unscaled",
    "unmodulated",
    "unusable",
]
