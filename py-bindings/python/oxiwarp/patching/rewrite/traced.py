"""Finds out what a rotary function computes while torch.compile traces the method that calls it.

Dynamo, the tracer of torch.compile, cannot trace a probe (a call with small random tensors). But it calls a method that
is marked as constant, if all arguments are constants. The arguments therefore describe the tensors of the call.
"""

import ast
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from ...ops._register import PLAIN
from .deferred import Deferred
from .rotary import CONSTANTS, Rotation, Shape, Signature, rotation_of

TENSOR = "tensor"
"""The first item of a tuple that describes a tensor."""


class RotaryCall(NamedTuple):
    """A call of a rotary function in a method."""

    own: ast.Lambda
    """The call, as a lambda whose parameters are the rotary function and its arguments."""
    name: str
    """The name of the rotary function."""


def plain_signature(args: Any) -> tuple[Any, ...] | None:
    """Return a tuple of constants that describes the arguments of a rotary function. Return None if an argument is
    neither a tensor nor a constant, or if a tensor contains 2 x 2 matrices.

    The conditional expressions and `range` make Dynamo replace symbolic sizes by constants, with a guard.
    """
    found: list[Any] = []
    for x in args:
        if isinstance(x, Deferred) or type(x) in PLAIN:
            shape = x.shape
            if len(shape) == 0 or (len(shape) >= 4 and shape[-1] == 2 and shape[-2] == 2):
                return None
            ones = tuple([True if size == 1 else False for size in shape[:-1]])  # noqa: SIM210
            found.append((TENSOR, x.dtype, len(range(shape[-1])), ones))
        elif isinstance(x, tuple | list):
            nested = plain_signature(x)
            if nested is None:
                return None
            found.append(nested)
        elif isinstance(x, CONSTANTS):
            found.append(x)
        else:
            return None
    return tuple(found)


def signature_of_plain(plain: tuple[Any, ...]) -> Signature:
    """Return the signature that the tuple of constants `plain` describes."""
    if plain[:1] == (TENSOR,):
        return Shape(*plain[1:])
    return tuple(signature_of_plain(one) if isinstance(one, tuple) else one for one in plain)


class Traced:
    """Recognises the rotary functions that a method calls, under torch.compile."""

    def __init__(self, method: FunctionType, rotary: Mapping[int, RotaryCall]) -> None:
        self.method, self.rotary = method, rotary
        self.known: dict[Any, Rotation | None] = {}

    def rotation(self, at: int, signature: tuple[Any, ...], mode: str) -> tuple[Any, ...] | None:
        """Return the fields of the `Rotation` that a rotary function computes. Return None if no kernel computes the
        rotation together with the norms of its operands.

        `at` is the index of the chain with the call.
        """
        call = self.rotary.get(at)
        function = None if call is None else function_in(self.method, call.name)
        if call is None or function is None:
            return None
        key = at, function.__code__, signature
        if key not in self.known:
            own = function_of(call.own, self.method)
            given = signature_of_plain(signature)
            names = [argument.arg for argument in call.own.args.args if argument.arg != "function"]
            found = None
            if own is not None:
                found = rotation_of(lambda *args: own(function=function, **dict(zip(names, args, strict=True))), given)
            self.known[key] = found
        found = self.known[key]
        if found is None or not is_joint(found, signature[0][1], mode):
            return None
        return replace(found, caches=False).fields()

    rotation._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_joint(found: Rotation, dtype: torch.dtype, mode: str) -> bool:
    """Return whether one kernel computes norms and the rotation `found`, with the bits of the original code in mode
    "exact"."""
    if found.number != 1 or found.joint is None or not found.whole or found.form == "matrices":
        return False
    if found.form == "wide_complex" and (mode != "fast" or dtype == torch.float32):
        return False
    return found.mode != "fast" or mode == "fast"


def function_in(method: FunctionType, name: str) -> FunctionType | None:
    """Return the function `name` that a method calls: a global function, or a function without a closure that the
    method defines. Return None if there is no such function."""
    code = method.__code__
    found: Any = method.__globals__.get(name)
    if name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        nested = [one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name]
        plain = len(nested) == 1 and not nested[0].co_freevars
        found = FunctionType(nested[0], method.__globals__, name) if plain else None
    return found if isinstance(found, FunctionType) else None


def function_of(own: ast.Lambda, method: FunctionType) -> Callable[..., Any] | None:
    """Compile the lambda `own` to a function. Return None if it reads local variables of the method."""
    code = method.__code__
    names = {node.id for node in ast.walk(own.body) if isinstance(node, ast.Name)}
    names -= {argument.arg for argument in own.args.args}
    if own.args.defaults or names & {*code.co_varnames, *code.co_cellvars, *code.co_freevars}:
        return None
    made = compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(own))), code.co_filename, "eval")
    (inner,) = (one for one in made.co_consts if isinstance(one, CodeType))
    return FunctionType(inner, method.__globals__)


__all__ = ["RotaryCall", "Traced", "plain_signature"]
