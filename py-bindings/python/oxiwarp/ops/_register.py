"""Defining operators: schema, fake and tags in Python; both kernels (CPU, CUDA) come from Rust.

An op module calls `define` once and adds a public function. Nothing else in the package calls `torch.library`.
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
_INFINITE = 2.0**128 - 2.0**103  # from here on float32 has infinity
_SCHEMA_ERROR = re.compile(
    r"Expected a value of type '(\w+)[^']*' for argument '(\w+)' but instead found type '([\w.]+)'"
)
_KINDS = {
    "float": "a number",
    "int": "an integer",
    "bool": "a bool",
    "Tensor": "a torch.Tensor",
    "Optional": "a torch.Tensor",
}
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # what it was given lives as long as it does
ROUNDINGS = {"once": False, "before_weight": True}
# Tensors that an operator takes as they are. Other subclasses (distributed, quantised, ...) have dispatch of their own;
# the last two are what torch.export traces with.
PLAIN = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
REAL = (Tensor, torch.nn.Parameter)
OPTIONAL = (Tensor, type(None))


def define(schema: str, fake: Callable[..., Any], **roles: Role) -> Any:
    """Define `torch.ops.oxiwarp.<schema>`, in this copy's `NAMESPACE`, and return its overload.

    `fake` is the operator on shapes alone (meta tensors, torch.compile): it makes the outputs and raises for inputs
    that the kernel would refuse. `roles` has the role of every tensor of the schema.
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
    """As `define`, of an operator that torch runs itself: `run` writes into arguments and makes nothing. What is
    returned calls the operator while compiling, and `run` itself otherwise.

    torch.compile turns torch's own in-place operators into others, with a copy; one of ours stays what it is.
    """
    name = schema.partition("(")[0]
    op = _define(schema, lambda *args: None, roles, in_python=True)
    for device in ("CPU", "CUDA"):
        _LIBRARY.impl(name, lambda *args: (run(*args), None)[1], device)
    return lambda *args: (op if torch.compiler.is_compiling() else run)(*args)


def one_by_one(op: Any, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
    """An operator under torch.vmap: one call for each element of the batch, which writes to that element of `out`."""
    # Functions with a gradient call operators without grad mode. Any other call would lose the gradient silently.
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments):
        raise RuntimeError(
            f"{op._schema.name.partition('::')[2]}: an input under torch.vmap requires grad, and this call records no "
            "gradient: take the gradient outside of torch.compile, or call under torch.no_grad()"
        )
    for argument, value, dim in zip(op._schema.arguments, arguments, in_dims, strict=True):
        if argument.is_write and value is not None and dim is None:
            raise RuntimeError(f"{op}: {argument.name} has no batch dimension under torch.vmap, and an input has one")
    # Elements of another dimension than the first have gaps, which the caller's tensors need not have.
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
    """The results of `one_by_one` for a batch of no elements, with the shapes that an element's would have."""
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
    """Give operator `name` a kernel for calls with a lazily negated or conjugated tensor.

    torch's own resolves the inputs, then looks for a tensor that was written to among the results: an operator that has
    none needs one of its own.
    """
    for key in ("Negative", "Conjugate"):
        _LIBRARY.impl(name, resolve, key)


def register_kernels() -> None:
    """Give every defined operator its kernels.

    Rust derives how a kernel reads its arguments from the schema and the roles. Raises TypeError if an operator has no
    kernel or does not fit it, and ImportError if this torch cannot take the kernels.
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
    """Whether autograd would have to record a call with these inputs, or forward-mode AD may carry tangents."""
    if forward_ad._current_level >= 0:
        return True
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  a generator costs 0.3 µs a call
        if tensor is not None and tensor.requires_grad:
            return True
    # A tensor of torch.vmap does not require grad, but the tensor that it wraps may. torch.compile cannot trace this.
    if torch.compiler.is_compiling() or peek_interpreter_stack() is None:
        return False
    return any(tensor is not None and _wraps_grad(tensor) for tensor in tensors)


def _wraps_grad(tensor: Tensor) -> bool:
    """Whether one of the tensors that a tensor of torch.func wraps requires grad."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
        if tensor.requires_grad:
            return True
    return False


def may_write(x: Tensor) -> bool:
    """Whether a result may be written part by part into a tensor made as `x` is, and parts be told by where they lie:
    not where `x` has no memory, or a transform of torch.func follows, whose tensors stand for others. torch.compile
    follows what is written. For autograd see `needs_grad`."""
    return torch.compiler.is_compiling() or (type(x) in REAL and peek_interpreter_stack() is None)


def write(name: str, op_out: Any, arguments: tuple[Any, ...], outs: tuple[Tensor | None, ...], grad: bool) -> None:
    """Run an operator that writes into tensors of the caller's, its last arguments; `grad`: an input requires it."""
    if grad or needs_grad(*outs):
        raise RuntimeError(
            f"{name}: an input requires grad, and there is no gradient with out: call it without, or under "
            "torch.no_grad() or torch.inference_mode()"
        )
    compiling = torch.compiler.is_compiling()  # it traces neither question
    for out in outs:
        # torch's fallback for these expects the output among the results.
        if not compiling and out is not None and (out.is_neg() or out.is_conj()):
            raise RuntimeError(
                f"{name}: out is a lazily negated (or conjugated) view, expected a plain tensor; call .resolve_neg() "
                "first"
            )
    op_out(*arguments, *outs)
    for out in outs:
        if not compiling and out is not None and not out.is_inference():
            torch.autograd.graph.increment_version(out)  # a backward that saved it must notice


def refuse_forward_mode(op: str) -> None:
    """Raise in forward-mode AD: `op` has no derivative for it, and a result without a tangent would be wrong."""
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            f"{op}: called in forward-mode AD (torch.func.jvp, forward_ad.dual_level), and this operator has no "
            "derivative for it: use torch's own operators there"
        )


def refuse_types(op: str, required: dict[str, Any], optional: dict[str, Any]) -> NoReturn:
    """Raise TypeError for the first argument that is no tensor (nor None, among the optional ones).

    A public function asks by a chain of `isinstance` first: dicts for each call would cost it half a microsecond.
    """
    for name, value in (required | optional).items():
        if not isinstance(value, Tensor if name in required else OPTIONAL):
            raise TypeError(f"{op}: {name} is {type(value).__name__}, expected a torch.Tensor")
    raise AssertionError("all are tensors")


def before_weight(op: str, rounding: str) -> bool:
    """The operators' `round_before_weight` for a name in `ROUNDINGS`."""
    try:
        return ROUNDINGS[rounding]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: rounding is {rounding!r}, expected 'once' or 'before_weight'") from None


def explain(
    error: RuntimeError, op: str, outputs: int, x: Tensor, called: str = "x", /, **others: Tensor | None
) -> None:
    """Raise a better error than an operator's, where there is one; the caller raises its own otherwise.

    A failed allocation becomes torch's own OutOfMemoryError: libtorch's C shim reports a number only, but asking torch
    for the same memory raises it. A layout without kernels is torch's dispatcher's error, a page that names no
    argument. (Raising `error` itself here would tie it to this frame, and the tensors to the garbage collector.) An
    argument that is no number is the schema's error, with the whole schema. An operator that several functions share
    names itself, not the function.
    `called`: the operator's name of `x`.
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
    if colon and operator != op and operator in OPERATORS:
        raise RuntimeError(f"{op}: {rest}") from None


def dtype_name(dtype: torch.dtype) -> str:
    """As the host names it: "f16", "float8_e5m2"."""
    return FLOATS.get(dtype) or str(dtype).removeprefix("torch.")


def or_f32(dtype: torch.dtype, like: str = "x") -> str:
    """What an argument is to be that has the dtype of `like`, or float32: "f16 (as x) or f32"."""
    return "f32" if dtype is torch.float32 else f"{FLOATS[dtype]} (as {like}) or f32"


def check_number(op: str, name: str, value: float, least: float | None = None) -> None:
    """Raise RuntimeError for a number that is not finite in float32, or is less than `least`."""
    if -_INFINITE < value < _INFINITE and (least is None or value >= least):
        return
    large = math.copysign(math.inf, value) if abs(value) >= _INFINITE else value
    got = "NaN" if value != value else f"{large:g}"
    raise RuntimeError(
        f"{op}: {name} is {got}, expected a finite number{'' if least is None else f' of {least:g} or more'}"
    )


def is_eps(value: float) -> bool:
    """Whether the norms take this number as their eps."""
    return 0 <= value < _INFINITE


def check_rows(op: str, x: Tensor, weight: Tensor | None, **others: Tensor) -> None:
    """Raise RuntimeError for the inputs that the row kernels refuse, from shapes, dtypes and devices alone."""
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
