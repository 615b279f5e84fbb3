"""Registers the operators with torch. The file also has the argument checks and error messages that the
operators share.

Python defines the schema, the fake (meta) kernel and the tags of an operator. Rust provides the CPU and CUDA
kernels. The modules of the operators call the function `define` for each operator. Only this module calls
`torch.library`.
"""

import functools
import math
import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from .._namespace import NAMESPACE
from .._native import register
from ._roles import OPERATORS, Operator, Role, checked

FLOATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_INFINITE = 2.0**128 - 2.0**103  # the smallest magnitude that float32 rounds to infinity
_SCHEMA_ERROR = re.compile(
    r"Expected a value of type '(\w+)[^']*' for argument '(\w+)' but instead found type '([\w.]+)'"
)
_STRIDES = re.compile(r"(\w+) of shape \[.*\] has strides \[.*\]: .* contiguous$")
_KINDS = {
    "float": "a number",
    "int": "an integer",
    "bool": "a bool",
    "Tensor": "a torch.Tensor",
    "Optional": "a torch.Tensor",
}
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # registrations last as long as this object
ROUNDINGS = {"once": False, "before_weight": True}
# A patched module runs kernels only for tensors of these types. torch.compile and torch.export trace with the
# types `FakeTensor` and `FunctionalTensor`. Other tensor subclasses, such as distributed or quantized
# tensors, implement their own dispatch.
PLAIN = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
REAL = (Tensor, torch.nn.Parameter)
OPTIONAL = (Tensor, type(None))


def define(schema: str, fake: Callable[..., Any], **roles: Role) -> Any:
    """Define an operator in `torch.ops.<NAMESPACE>` and return its overload object, which can be called.

    `fake` is the meta kernel, which runs for meta tensors and under torch.compile. It returns results without
    data, and raises an error for inputs that the real kernel does not support. `roles` maps the name of each
    tensor argument to its role (its shape and dtype relative to the other arguments).
    """
    return _define(schema, fake, roles, in_python=False)


def _define(schema: str, fake: Callable[..., Any], roles: dict[str, Role], in_python: bool) -> Any:
    name, _, signature = schema.partition("(")
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, f"({signature}", tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(qualified)(fake)
    op = getattr(getattr(torch.ops, NAMESPACE), name).default
    OPERATORS[name] = Operator(name, op, fake.__module__, checked(schema, roles), schema, in_python)
    torch.library.register_vmap(qualified, functools.partial(one_by_one, op))
    return op


def define_in_place(schema: str, run: Callable[..., Any], **roles: Role) -> Any:
    """Define an operator whose kernel is the Python function `run`. The operator writes to its arguments and
    returns nothing.

    Return a function that calls the operator under torch.compile, and `run` in eager mode. The operator avoids a copy
    under torch.compile: if a compiled function calls an in-place operator of torch, torch.compile replaces the call by
    an out-of-place operator and a copy. It does not do so for custom operators such as this one.
    """
    name = schema.partition("(")[0]
    op = _define(schema, lambda *args: None, roles, in_python=True)
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, lambda *args: (run(*args), None)[1], device)
    return lambda *args: (op if torch.compiler.is_compiling() else run)(*args)


def one_by_one(op: Any, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
    """Run the operator `op` under torch.vmap, with one call per batch element.

    If the operator writes to an argument such as `out`, each call writes to one batch element of this
    argument.
    """
    # Autograd functions call operators with grad mode off. If grad mode is on, this call does not come from
    # an autograd function, so autograd does not record it. Without this check, the gradient would be missing,
    # and no error would be raised.
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        raise RuntimeError(
            f"{op._schema.name.partition('::')[2]}: an input under torch.vmap requires grad, and this call records no "
            "gradient: take the gradient outside of torch.compile, or call under torch.no_grad()"
        )
    for argument, value, dim in zip(op._schema.arguments, arguments, in_dims, strict=True):
        if argument.is_write and value is not None and dim is None:
            raise RuntimeError(f"{op}: {argument.name} has no batch dimension under torch.vmap, and an input has one")
    # Move the batch dimension to the front, and make the tensors contiguous. Otherwise, the batch elements
    # could have strides that the operators do not support.
    batched = [
        value if dim is None or argument.is_write else value.movedim(dim, 0).contiguous()
        for argument, value, dim in zip(op._schema.arguments, arguments, in_dims, strict=True)
    ]
    dims = [
        dim if dim is None or argument.is_write else 0
        for argument, dim in zip(op._schema.arguments, in_dims, strict=True)
    ]
    results = [
        op(*(value if dim is None else value.select(dim, at) for value, dim in zip(batched, dims, strict=True)))
        for at in range(info.batch_size)
    ]
    if not results:
        return empty_batch(op, batched, dims)
    if results[0] is None:
        return None, None
    if not isinstance(results[0], tuple):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])


def empty_batch(op: Any, arguments: list[Any], dims: list[int | None]) -> tuple[Any, Any]:
    """Return the results of the operator `op` under torch.vmap for an empty batch.

    The function `one_by_one` calls an operator once per batch element, so it cannot get results for an empty
    batch. To determine the shapes of the results, the operator is called for one batch element on the meta
    device.
    """
    device = next(value.device for value in arguments if isinstance(value, Tensor))
    element = [
        value
        if not isinstance(value, Tensor)
        else value.to("meta")
        if dim is None
        else value.new_empty(value.shape[:dim] + value.shape[dim + 1 :], device="meta")
        for value, dim in zip(arguments, dims, strict=True)
    ]
    made = op(*element)
    if made is None:
        return None, None
    results = tuple(
        torch.empty((0, *one.shape), dtype=one.dtype, device=device)
        for one in (made if isinstance(made, tuple) else (made,))
    )
    return (results, (0,) * len(results)) if isinstance(made, tuple) else (results[0], 0)


def define_lazy(name: str, resolve: Callable[..., Any]) -> None:
    """Register the function `resolve` as the kernel of the operator `name` for lazily negated or conjugated
    tensors.

    By default, torch runs a fallback kernel for such tensors. This fallback assumes that an operator returns
    the tensor to which it writes. Therefore an operator that writes to its arguments and returns nothing
    needs `resolve` instead.
    """
    for key in ("Negative", "Conjugate"):
        _LIBRARY.impl(name, resolve, key)


def register_kernels() -> None:
    """Register the Rust kernels of every defined operator.

    From an operator's schema and roles, the Rust code derives how the kernel reads its arguments. Raise
    TypeError if an operator has no kernel, or if its schema and roles do not match the kernel. Raise
    ImportError if the torch version is too old.
    """
    operators = [
        (operator.schema, [role.name for role in operator.roles.values()])
        for operator in OPERATORS.values()
        if not operator.in_python
    ]
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        register(path, NAMESPACE, operators)
    except RuntimeError as error:
        raise ImportError(f"oxiwarp needs torch 2.10 or newer (this is {torch.__version__}): {error}") from None


def needs_grad(*tensors: Tensor | None) -> bool:
    """Return True if autograd must record a call with the inputs `tensors`, or if forward-mode AD is active."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  a generator would add 0.3 µs per call
        if tensor is not None and tensor.requires_grad:
            return True
    # A tensor that torch.vmap wraps does not require grad, even if the tensor inside the wrapper does.
    # Therefore also check the tensors inside wrappers, but not under torch.compile, which cannot trace this
    # check.
    if torch.compiler.is_compiling() or peek_interpreter_stack() is None:
        return False
    return any(tensor is not None and _wraps_grad(tensor) for tensor in tensors)


def _wraps_grad(tensor: Tensor) -> bool:
    """Return whether `tensor` is a torch.func wrapper around a tensor that requires grad. Wrappers may be
    nested.
    """
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
        if tensor.requires_grad:
            return True
    return False


def may_write(x: Tensor) -> bool:
    """Return whether the caller may allocate one tensor for several results, and let operators write to
    slices of this tensor. `x` is an input of the operators.

    In eager mode, the caller identifies the slices by their addresses. If `x` has no address, because it has no memory
    or is a wrapper of torch.func, the result is False. Under torch.compile, the result is True, because torch.compile
    tracks the writes itself. This function does not check whether autograd is active. Callers therefore also call
    `needs_grad`.
    """
    return torch.compiler.is_compiling() or (type(x) in REAL and peek_interpreter_stack() is None)


def write(name: str, op_out: Any, arguments: tuple[Any, ...], outs: tuple[Tensor | None, ...], grad: bool) -> None:
    """Call the operator `op_out`, which writes to the tensors `outs`. These tensors are the last arguments of
    the operator.

    `name` is the public function, for error messages. `grad` says whether an input requires grad. Raise
    RuntimeError if `grad` is True, or if a tensor in `outs` requires grad or is lazily negated or conjugated.
    """
    if grad or needs_grad(*outs):
        raise RuntimeError(
            f"{name}: an input requires grad, and there is no gradient with out: call it without, or under "
            "torch.no_grad() or torch.inference_mode()"
        )
    compiling = torch.compiler.is_compiling()  # torch.compile cannot trace the checks of `outs` below
    for out in outs:
        # `op_out` does not support lazily negated views. For them, torch would run a fallback kernel, which
        # assumes that an operator returns the tensor to which it writes. `op_out` returns nothing.
        if not compiling and out is not None and (out.is_neg() or out.is_conj()):
            raise RuntimeError(
                f"{name}: out is a lazily negated (or conjugated) view, expected a plain tensor; call .resolve_neg() "
                "first"
            )
    op_out(*arguments, *outs)
    for out in outs:
        if not compiling and out is not None and not out.is_inference():
            torch.autograd.graph.increment_version(out)  # autograd then raises an error if a backward has saved `out`


def refuse_forward_mode(op: str) -> None:
    """Raise RuntimeError if forward-mode AD is active.

    Without this error, the result of the operator `op` would have no tangent, so derivatives would be wrong.
    """
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            f"{op}: called in forward-mode AD (torch.func.jvp, forward_ad.dual_level), and this operator has no "
            "derivative for it: use torch's own operators there"
        )


def refuse_gradients(op: str, **tensors: Tensor | None) -> NoReturn:
    """Raise RuntimeError for a call of an operator on 8-bit floats, for which `needs_grad` returned True."""
    found = (name for name, tensor in tensors.items() if tensor is not None and tensor.requires_grad)
    name = next(found, "an input")
    raise RuntimeError(
        f"{op}: {name} requires grad, or forward-mode AD is active, and there is no gradient, because fp8 is for "
        f"inference: call it under torch.no_grad() or torch.inference_mode(), or detach {name}"
    )


def refuse_types(op: str, required: dict[str, Any], optional: dict[str, Any]) -> NoReturn:
    """Raise TypeError for the first argument in `required` and `optional` that is not a tensor. Arguments in
    `optional` may be None.

    A public function first checks its arguments with `isinstance`, and calls `refuse_types` only after a failed check.
    Building the two dicts in every call would take half a microsecond.
    """
    for name, value in (required | optional).items():
        if not isinstance(value, Tensor if name in required else OPTIONAL):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected a torch.Tensor")
    raise AssertionError("all are tensors")


def before_weight(op: str, rounding: str) -> bool:
    """Return whether `rounding` is "before_weight". Raise ValueError for an unknown name."""
    try:
        return ROUNDINGS[rounding]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: rounding is {rounding!r}, expected 'once' or 'before_weight'") from None


def explain(
    error: RuntimeError, op: str, outputs: int, x: Tensor, called: str = "x", /, **others: Tensor | None
) -> None:
    """Raise a clearer error in place of `error`, which an operator has raised.

    This function has a clearer error for the following cases. In all other cases, it returns, and the caller raises
    `error` again.

    - Sparse and nested tensors: torch's dispatcher raises a long message that names no argument.
    - Failed allocation: libtorch's C shim reports only an error code. This function therefore tries to allocate the
      results again in Python, which raises torch.OutOfMemoryError. `outputs` is the number of results with the shape
      and dtype of `x`.
    - Argument of a wrong type: torch's message contains the whole schema of the operator. The new message
      names only the argument, its type and the expected type.
    - Input that must be contiguous: the new message adds the remedy, a call of `.contiguous()`.
    - Operator that several public functions call: `error` begins with the name of the operator. The new message begins
      with `op`, the name of the public function.

    `called` is the name that the operator's schema gives the argument `x`. This function leaves it to the caller to
    raise `error` again. Otherwise, the traceback of `error` would refer to the stack frame of this function, and the
    tensors in this frame would stay alive until the next garbage collection.
    """
    for name, tensor in {called: x, **others}.items():
        if tensor is not None and tensor.layout is not torch.strided:
            raise RuntimeError(f"{op}: {name} has layout {tensor.layout}, expected torch.strided") from None
        if tensor is not None and tensor.is_nested:
            raise RuntimeError(f"{op}: {name} is a nested tensor, expected a plain one") from None
    if "could not allocate" in str(error):
        held = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(outputs)]
        del held
    wrong = _SCHEMA_ERROR.search(str(error))
    if wrong is not None:
        expected, name, got = wrong.groups()
        raise TypeError(f"{op}: {name} is {got}, expected {_KINDS.get(expected, expected)}") from None
    operator, colon, rest = str(error).partition(": ")
    uneven = _STRIDES.match(rest)
    # For an output, `.contiguous()` would be no remedy.
    if uneven is not None and not uneven[1].endswith(("out", "values", "scales")):
        raise RuntimeError(f"{op}: {rest}: call {uneven[1]}.contiguous()") from None
    if colon and operator != op and operator in OPERATORS:
        raise RuntimeError(f"{op}: {rest}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype for error messages: "f32", "f16", "bf16", or torch's name."""
    return FLOATS.get(dtype) or str(dtype).removeprefix("torch.")


def or_f32(dtype: torch.dtype, like: str = "x") -> str:
    """Return the permitted dtypes of an operand as a text for error messages, such as "f16 (as x) or f32".

    An operand may have the dtype `dtype` of the argument whose name is `like`, or float32.
    """
    return "f32" if dtype is torch.float32 else f"{FLOATS[dtype]} (as {like}) or f32"


def check_number(op: str, name: str, value: float, least: float | None = None) -> None:
    """Raise RuntimeError unless `value` is finite in float32 and not below `least`. If `least` is None, there
    is no lower bound.
    """
    if -_INFINITE < value < _INFINITE and (least is None or value >= least):
        return
    large = math.copysign(math.inf, value) if abs(value) >= _INFINITE else value
    got = "NaN" if value != value else f"{large:g}"
    raise RuntimeError(
        f"{op}: {name} is {got}, expected a finite number{'' if least is None else f' of {least:g} or more'}"
    )


def is_eps(value: float) -> bool:
    """Return whether the norms accept `value` as eps. It must be 0 or more, and finite in float32."""
    return 0 <= value < _INFINITE


def check_rows(op: str, x: Tensor, weight: Tensor | None, **others: Tensor) -> None:
    """Raise RuntimeError if the kernels do not support one of the inputs. The check reads only shapes, dtypes
    and devices.

    The tensors in `others` must have the shape, dtype and device of `x`. For `x` of shape `[..., N]`,
    `weight` must have shape `[N]`. The dtype of `weight` must be the dtype of `x` or float32.
    """
    if x.dtype not in FLOATS:
        raise RuntimeError(f"{op}: x is {dtype_name(x.dtype)}, expected f32, f16 or bf16")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise RuntimeError(f"{op}: x has shape {list(x.shape)}, expected a last dimension of 1 or more")
    for name, tensor in (*others.items(), *([("weight", weight)] if weight is not None else [])):
        if tensor.device != x.device:
            raise RuntimeError(f"{op}: {name} is on {tensor.device}, expected {x.device}, the device of x")
    for name, tensor in others.items():
        if tensor.dtype != x.dtype:
            raise RuntimeError(f"{op}: {name} is {dtype_name(tensor.dtype)}, expected {FLOATS[x.dtype]}")
        if tensor.shape != x.shape:
            raise RuntimeError(f"{op}: {name} has shape {list(tensor.shape)}, expected {list(x.shape)}")
    if weight is None:
        return
    if weight.dtype not in (x.dtype, torch.float32):
        raise RuntimeError(f"{op}: weight is {dtype_name(weight.dtype)}, expected {or_f32(x.dtype)}")
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise RuntimeError(f"{op}: weight has shape {list(weight.shape)}, expected [{x.shape[-1]}]")
