"""Registers operators with torch. The file also has checks and error messages that several public functions
use.

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
    """Define an operator in `torch.ops.<NAMESPACE>` and return its overload.

    `fake` is the meta kernel, which runs for meta tensors and under torch.compile. It returns outputs without
    data, and raises an error for inputs that the kernel does not support. `roles` maps each tensor argument
    to its role (its shape and dtype relative to the other arguments).
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
    """Define an operator whose kernel is the Python function `run`. It writes to its arguments and returns
    nothing.

    Return a function that calls the operator under torch.compile, and `run` in eager mode. The custom
    operator avoids a copy under torch.compile. If a function called an in-place operator of torch,
    torch.compile would replace it by a functional operator and a copy. It does not replace a custom operator.
    """
    name = schema.partition("(")[0]
    op = _define(schema, lambda *args: None, roles, in_python=True)
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, lambda *args: (run(*args), None)[1], device)
    return lambda *args: (op if torch.compiler.is_compiling() else run)(*args)


def one_by_one(op: Any, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
    """Run an operator under torch.vmap, with one call per batch element.

    If `out` is given, each call writes to one batch element of `out`.
    """
    # An autograd function calls operators with grad mode off. If grad mode is on here, no autograd function
    # made this call, so autograd does not record it. Without this check, the gradient would be lost without
    # an error.
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        raise RuntimeError(
            f"{op._schema.name.partition('::')[2]}: an input under torch.vmap requires grad, and this call records no "
            "gradient: take the gradient outside of torch.compile, or call under torch.no_grad()"
        )
    for argument, value, dim in zip(op._schema.arguments, arguments, in_dims, strict=True):
        if argument.is_write and value is not None and dim is None:
            raise RuntimeError(f"{op}: {argument.name} has no batch dimension under torch.vmap, and an input has one")
    # Move the batch to the first dimension and make the tensors contiguous. Operators may not support the
    # strides of a slice along another dimension.
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
    """Return the results of an operator under torch.vmap for an empty batch.

    The function `one_by_one` calls the operator once per batch element, so it makes no call for an empty
    batch. To determine the shapes of the results, call the operator for one batch element on the meta device.
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
    """Register `resolve` as the kernel of operator `name` for lazily negated or conjugated tensors.

    By default, torch runs a fallback kernel for such tensors. This fallback expects that an operator returns
    the tensor to which it writes. An operator that returns nothing therefore needs a separate kernel.
    """
    for key in ("Negative", "Conjugate"):
        _LIBRARY.impl(name, resolve, key)


def register_kernels() -> None:
    """Register the Rust kernels of every defined operator.

    From the schema and the roles, Rust derives how a kernel reads its arguments. Raise TypeError if an
    operator has no kernel or does not match its kernel. Raise ImportError if torch is too old.
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
    """Return True if autograd must record a call with these inputs, or if forward-mode AD is active."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  a generator would add 0.3 µs per call
        if tensor is not None and tensor.requires_grad:
            return True
    # A tensor that torch.vmap wraps does not require grad, even if the tensor inside the wrapper does.
    # Therefore the code below also checks the inner tensors. Under torch.compile, it does not, because the
    # check cannot be traced.
    if torch.compiler.is_compiling() or peek_interpreter_stack() is None:
        return False
    return any(tensor is not None and _wraps_grad(tensor) for tensor in tensors)


def _wraps_grad(tensor: Tensor) -> bool:
    """Return whether a tensor inside a torch.func wrapper, at any depth, requires grad."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
        if tensor.requires_grad:
            return True
    return False


def may_write(x: Tensor) -> bool:
    """Return whether several operators may write to different slices of one new tensor, in a call whose input
    is `x`.

    In eager mode, the caller identifies the slices of a tensor by their addresses. Tensors without memory and
    wrappers of torch.func have no address, so the result is False for them. Under torch.compile, the result
    is True, because torch.compile tracks the writes itself. This function does not check whether autograd is
    active. Callers also call `needs_grad`.
    """
    return torch.compiler.is_compiling() or (type(x) in REAL and peek_interpreter_stack() is None)


def write(name: str, op_out: Any, arguments: tuple[Any, ...], outs: tuple[Tensor | None, ...], grad: bool) -> None:
    """Call the operator `op_out`, which writes to the caller's tensors `outs`. They are its last arguments.

    `grad` says whether an input requires grad. Raise RuntimeError if `grad` is True, if a tensor in `outs`
    requires grad, or if a tensor in `outs` is lazily negated or conjugated.
    """
    if grad or needs_grad(*outs):
        raise RuntimeError(
            f"{name}: an input requires grad, and there is no gradient with out: call it without, or under "
            "torch.no_grad() or torch.inference_mode()"
        )
    compiling = torch.compiler.is_compiling()  # torch.compile cannot trace the checks of `outs` below
    for out in outs:
        # torch runs a fallback for lazily negated views. It expects that an operator returns the tensor to
        # which it writes, but `op_out` returns nothing.
        if not compiling and out is not None and (out.is_neg() or out.is_conj()):
            raise RuntimeError(
                f"{name}: out is a lazily negated (or conjugated) view, expected a plain tensor; call .resolve_neg() "
                "first"
            )
    op_out(*arguments, *outs)
    for out in outs:
        if not compiling and out is not None and not out.is_inference():
            torch.autograd.graph.increment_version(out)  # so that autograd notices if a backward saved `out`


def refuse_forward_mode(op: str) -> None:
    """Raise RuntimeError in forward-mode AD.

    Otherwise, the operator `op` would return a result without a tangent.
    """
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            f"{op}: called in forward-mode AD (torch.func.jvp, forward_ad.dual_level), and this operator has no "
            "derivative for it: use torch's own operators there"
        )


def refuse_types(op: str, required: dict[str, Any], optional: dict[str, Any]) -> NoReturn:
    """Raise TypeError for the first argument that is not a tensor. Arguments in `optional` may be None.

    Public functions first check their arguments with `isinstance`. They call this function only if this check
    fails, because building the two dicts would add half a microsecond to every call.
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
    """Raise a clearer error in place of `error`, which an operator raised.

    A clearer error exists for the cases below. In all other cases, the function returns, and the caller
    raises `error` again.

    - Sparse and nested tensors: torch's dispatcher raises a long message that names no argument.
    - Failed allocation: libtorch's C shim reports only an error code. Allocating the same memory in Python
      raises torch.OutOfMemoryError. `outputs` is the number of results with the shape and dtype of `x`.
    - Argument of a wrong type: torch's message contains the whole schema of the operator. The new message has
      only the argument and its type.
    - Input that must be contiguous: the new message names `.contiguous()`.
    - Operator that several public functions call: its message begins with the name of the operator. The new
      message begins with `op`, the name of the public function.

    `called` is the name of the argument `x` in the operator's schema. This function does not raise `error`
    again itself. If it did, the traceback of `error` would refer to this stack frame. The tensors in the
    frame would then stay alive until the next garbage collection.
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
    if uneven is not None and not uneven[1].endswith("out"):  # a copy of an output would not get the result
        raise RuntimeError(f"{op}: {rest}: call {uneven[1]}.contiguous()") from None
    if colon and operator != op and operator in OPERATORS:
        raise RuntimeError(f"{op}: {rest}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype for error messages: "f32", "f16", "bf16", or torch's name."""
    return FLOATS.get(dtype) or str(dtype).removeprefix("torch.")


def or_f32(dtype: torch.dtype, like: str = "x") -> str:
    """Return the two dtypes of an operand as text for error messages, such as "f16 (as x) or f32".

    One is `dtype`, which is the dtype of the argument `like`. The other is float32.
    """
    return "f32" if dtype is torch.float32 else f"{FLOATS[dtype]} (as {like}) or f32"


def check_number(op: str, name: str, value: float, least: float | None = None) -> None:
    """Raise RuntimeError unless `value` is finite in float32 and at least `least`."""
    if -_INFINITE < value < _INFINITE and (least is None or value >= least):
        return
    large = math.copysign(math.inf, value) if abs(value) >= _INFINITE else value
    got = "NaN" if value != value else f"{large:g}"
    raise RuntimeError(
        f"{op}: {name} is {got}, expected a finite number{'' if least is None else f' of {least:g} or more'}"
    )


def is_eps(value: float) -> bool:
    """Return whether the norms accept `value` as eps: finite in float32, 0 or more."""
    return 0 <= value < _INFINITE


def check_rows(op: str, x: Tensor, weight: Tensor | None, **others: Tensor) -> None:
    """Raise RuntimeError for inputs that the kernels do not support. The check reads only shapes, dtypes and
    devices.

    The tensors in `others` must have the shape, dtype and device of `x`. `weight` must have shape `[N]` for
    `x` of shape `[..., N]`. Its dtype must be the dtype of `x` or float32.
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
