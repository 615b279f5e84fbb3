"""Roles of tensor arguments. A role is the shape and dtype of an argument relative to the operator's other
arguments.

The function `define` records a role for every tensor argument of an operator. The package `patching` uses the
roles to convert operands. The tests use the roles to generate arguments. The script `scripts/operators.py`
uses the roles to generate the reference page of the operators.
"""

import enum
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TENSOR = re.compile(r"Tensor(?:\([a-z]!\))?\?? (\w+)")  # matches an argument; results have no name


class Role(enum.Enum):
    """Role of a tensor argument. The enum value of a role is a text that states the shape and the dtype of
    the argument.
    """

    ROWS = (
        "`[..., N]`: rows, copied if their last stride is not 1. All operands with this role have one shape and dtype"
    )
    BRANCH = "the shape of the rows, in float32, float16 or bfloat16; copied if its last stride is not 1"
    VECTOR = "`[N]`, in the dtype of the rows or in float32"
    ANY_VECTOR = "`[N]`, in float32, float16 or bfloat16"
    BIAS = (
        "`[N]`, in the dtype of the rows; `[2 * N]` if two halves of N columns are gated, `[M]` with a MATRIX. With a "
        "QUANTIZED_MATRIX, `[M]` in the dtype of the result"
    )
    BROADCAST = "broadcasts to the rows, with their last dimension, in their dtype or in float32"
    MODULATION = "broadcasts to the rows; the last dimension is N or 1, or there is none; float32, float16 or bfloat16"
    PER_BATCH = "`[B, N]` for rows `[B, S, N]`, or as BROADCAST"
    PER_ROW = "`[...]`: one number for each row"
    INDEX = "`[...]`, int64 or int32: for each row, the row of the modulations, which have the shape `[R, N]`"
    CLASSES = "`[...]`, int64 or int32: the class of each row"
    HEADS = "`[B, S, heads, D]`, or as the layout arguments say, copied if the last stride is not 1; all have one dtype"
    HEAD_VECTOR = "`[D]`, or `[heads * D]` with `across_heads`, in the dtype of the heads or in float32"
    PER_HEAD = "`[B, heads, S]`, float32: one number for each token of each head"
    TABLE = "`[S, R]`, `[B, S, R]` or `[B, S, heads, R]`: cosines or sines, in the dtype of the heads or in float32"
    TABLE_ROWS = "`[S]` or `[B, S]`, int64 or int32: the row of the tables `[M, R]` for each token"
    POSITIONS = "`[S]` or `[B, S]`, for three axes `[S, 3]` or `[B, S, 3]`: integers or floats"
    FREQUENCIES = "`[R / 2]`, float32: the frequency of each pair of columns"
    MASK = "broadcasts to `[B, heads, Sq, Sk]`: bool, or added to the scores"
    OFFSETS = "`[sequences + 1]`, int32: where packed sequences begin and end"
    MATRIX = "`[M, N]`, in the dtype of the rows: the weight of a product with M columns"
    PRODUCT = "`[..., M]`, in the dtype of the rows: the shape of the product of the rows and a MATRIX with M rows"
    PRODUCT_GATE = "broadcasts to a PRODUCT, in the dtype of the rows or in float32; its last dimension is M or 1"
    FACTOR = "`[N, M]`, in the dtype of the rows: the second factor of a product with M columns"
    OUTPUT = "the shape and dtype of the result, which is written to it"
    QUANTIZED = "`[..., N]`, in float8_e4m3fn or float8_e5m2: quantized rows"
    SCALES = "`[..., 1]` or `[..., ceil(N / 128)]`, float32: the scales of QUANTIZED rows"
    QUANTIZED_MATRIX = "`[M, N]`, in the dtype of QUANTIZED rows: the weight of a product with M columns"
    MATRIX_SCALES = "`[M, 1]` or `[ceil(M / 128), ceil(N / 128)]`, float32: the scales of a QUANTIZED_MATRIX"


class Operator(NamedTuple):
    """A registered operator.

    `module` is the Python module that defines the operator. `roles` maps the name of each tensor argument to its role
    (shape and dtype), in the order of the schema. `in_python` says whether the kernel is a Python function instead of a
    Rust function.
    """

    name: str
    overload: Any
    module: str
    roles: Mapping[str, Role]
    schema: str
    in_python: bool


OPERATORS: dict[str, Operator] = {}
"""Every operator that `define` has registered, by name."""


def checked(schema: str, roles: Mapping[str, Role]) -> dict[str, Role]:
    """Return `roles` in the order of the schema.

    Raise TypeError if a tensor argument in the schema has no role, or if a role belongs to no tensor
    argument.
    """
    tensors = TENSOR.findall(schema)
    if wrong := sorted(set(tensors) ^ set(roles)):
        name = schema.partition("(")[0]
        raise TypeError(f"{name}: expected a role for each of its tensors; missing or unknown: {', '.join(wrong)}")
    return {name: roles[name] for name in tensors}


def roles_of(function: Callable[..., Any]) -> dict[str, Role]:
    """Return a dict that maps the names of a public function's tensor parameters to their roles.

    A role is the shape and dtype relative to the other arguments. A parameter has the role of the operator argument
    with the same name, in the first operator of the function's module that has such an argument. Entries of the
    module's dict `ROLES` override these roles. They are necessary for two kinds of parameters: those that no operator
    has, and those for which the function accepts more shapes than the operator. If a key has the form
    `function.parameter`, the entry is only for this function.
    """
    module, code = function.__module__, function.__code__
    known: dict[str, Role] = {}
    for operator in OPERATORS.values():
        if operator.module == module:
            known = {**operator.roles, **known}
    own = f"{function.__name__}."
    known.update({name.removeprefix(own): role for name, role in getattr(sys.modules[module], "ROLES", {}).items()})
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: known[name] for name in names if name in known}


def positional(function: Callable[..., Any]) -> list[Role]:
    """Return a list with the roles of a public function's positional tensor parameters, in the order of the
    parameters.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [role for name, role in roles_of(function).items() if name in names]


__all__ = ["OPERATORS", "Operator", "Role", "positional", "roles_of"]
