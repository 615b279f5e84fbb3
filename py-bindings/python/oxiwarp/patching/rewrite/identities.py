"""Finds operations that often only copy their operand: a division by 1, a padding of width 0, or `torch.cat`
of one tensor.

If such an operation would only copy its operand, the rewritten method uses the operand itself. An operation is replaced
only if its result is assigned to a variable, and no statement of the method changes this variable in place. A division
or a padding must be assigned to the variable of its operand, as in `x = x / self.scale`. This file also replaces calls
of `inspect.signature`, so that the rewritten method calls it only once for each function.
"""

import ast
import copy
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F

from ..._cache import cache_weakly
from ...ops._register import PLAIN
from .flow import Read, aliases_of
from .method import PREFIX

STRIDED = ("as_strided", "data_ptr", "is_contiguous", "stride", "view", "view_as")
"""Tensor methods whose result depends on the strides of the tensor."""
IDENTITY, SIGNATURE = "identity", "signature"
compiling = torch.compiler.is_compiling


def replace_identities(
    tree: ast.FunctionDef, value_of: Callable[[ast.expr], Any], add: Callable[[ast.expr], Any]
) -> None:
    """In `tree`, replace operations that often only copy their operand, and calls of `inspect.signature`.

    `value_of` returns the object that a global name in the code refers to. `add` adds a replaced operation to
    the report of `patch`.
    """
    changed, near = Read(tree).changed, aliases_of(tree)[0]
    strided = strided_names(tree)
    for node in ast.walk(tree):
        single = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        if isinstance(node, ast.Call) and single and value_of(node.func) is inspect.signature:
            add(copy.copy(node))
            node.args.insert(0, node.func)
            node.func = ast.copy_location(ast.Name(PREFIX + SIGNATURE, ast.Load()), node)
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        if ({name} | near.get(name, set())) & changed:
            continue
        operand: ast.expr | None = None
        function: ast.expr = ast.Constant(None)
        rest: list[ast.expr] = []
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div) and isinstance(value.right, ast.Attribute):
            operand, rest = value.left, [value.right]
        elif isinstance(value, ast.Call) and value_of(value.func) in (F.pad, torch.cat) and not value.keywords[1:]:
            words = [word.value for word in value.keywords if word.arg == "dim"]
            if len(words) == len(value.keywords) and 1 <= len(value.args) + len(words) <= 2:
                operand, function, rest = value.args[0], value.func, [*value.args[1:], *words]
                same = value_of(value.func) is torch.cat and isinstance(operand, ast.Name)
                operand = operand if same or is_name(operand, name) else None
        if operand is None or (isinstance(value, ast.BinOp) and not is_name(operand, name)):
            continue
        free = ast.Constant(name not in strided)
        made = ast.Call(ast.Name(PREFIX + IDENTITY, ast.Load()), [function, free, operand, *rest], [])
        node.value = ast.copy_location(made, value)
        add(value)


def signature(function: Any, method: Any) -> Any:
    """Return `function(method)`, where `function` is `inspect.signature`. Signatures of methods are cached,
    because `inspect.signature` is slow."""
    if compiling() or type(method) is not MethodType or type(method.__func__) is not FunctionType:
        return function(method)
    return signature_of_method(method.__func__)


@cache_weakly
def signature_of_method(function: FunctionType) -> inspect.Signature:
    """Return the signature of `function` as a bound method, that is, without `self`."""
    return inspect.signature(MethodType(function, object()))


def is_name(node: ast.expr, name: str) -> bool:
    """Return whether the node is the variable `name`."""
    return isinstance(node, ast.Name) and node.id == name


def strided_names(tree: ast.FunctionDef) -> set[str]:
    """Return the variables for which a copy with other strides could change the behaviour of the method.
    These are the variables that the method returns, or on which it calls a tensor method in `STRIDED`, such
    as `view`.
    """
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            found |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        if isinstance(node, ast.Attribute) and node.attr in STRIDED and isinstance(node.value, ast.Name):
            found.add(node.value.id)
    return found


def identity(function: Any, free: bool, x: Any, *rest: Any) -> Any:
    """Compute `x / rest[0]` if `function` is None, otherwise `function(x, *rest)`.

    If the operation would only copy its operand, return the operand itself. If `free` is False, do so only if the
    operand has the strides that the copy would have.
    """
    if not compiling():
        if function is None:
            number = type(rest[0]) in (int, float) and rest[0] == 1
            if number and type(x) in PLAIN and x.dtype.is_floating_point:
                return x
        elif function is F.pad:
            if type(x) in PLAIN and rest and not any(rest[0]) and (free or x.is_contiguous()):
                return x
        elif function is torch.cat and type(x) is list and len(x) == 1:
            x = x[0] if type(x[0]) in PLAIN and (free or x[0].is_contiguous()) else x
            if type(x) is not list:
                return x
    return x / rest[0] if function is None else function(x, *rest)


__all__ = ["IDENTITY", "identity", "replace_identities", "signature"]
