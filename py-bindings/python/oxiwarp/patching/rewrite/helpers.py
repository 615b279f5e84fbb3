"""Rewrites helper functions that a method calls to normalize queries or keys. For example, two attention processors may
share such a helper.

The rewritten method calls a rewritten copy of the helper. If another tool replaces the original helper after `patch`,
the method calls the tool's function instead.
"""

import ast
import copy
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from .flow import Read
from .head_norms import is_head_norm
from .method import PREFIX, Unreadable, check_source, compiled, tree_of


class Helper(NamedTuple):
    """A function that was rewritten, and its changed syntax tree."""

    function: Any
    tree: ast.FunctionDef

    def bind(self, names: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Return a function that takes a helper function and returns the function to call instead.

        For the original helper, this is the rewritten copy. For any other function, e.g. if the user replaced
        the helper, it is this function itself.
        """
        function, made = self.function, compiled(self.function, copy.deepcopy(self.tree), names)
        return lambda now: made if now is function else now


def helper_name(name: str) -> str:
    """Return the name under which a rewritten method finds the function that chooses between the helper `name` and its
    rewritten copy.
    """
    return f"{PREFIX}helper_{name}"


def helpers_of(
    tree: ast.FunctionDef, own: FunctionType, rewrite: Callable[[FunctionType], ast.FunctionDef]
) -> dict[str, Helper]:
    """In `tree`, replace calls of functions that normalize queries or keys by calls of rewritten copies.
    Return the functions and their rewritten syntax trees, by name.

    Only functions in the file of the method `own` are rewritten. `rewrite` returns the rewritten syntax tree
    of a function.
    """
    local = Read(tree).stores | {node.arg for node in ast.walk(tree.args) if isinstance(node, ast.arg)}
    found: dict[str, Helper] = {}
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        function = own.__globals__.get(name)
        if name in local or not isinstance(function, FunctionType) or not is_helper(function, own):
            continue
        if name not in found:
            found[name] = Helper(function, rewrite(function))
        choice = ast.Call(ast.Name(helper_name(name), ast.Load()), [call.func], [])
        call.func = ast.fix_missing_locations(ast.copy_location(choice, call.func))
    return found


def is_helper(function: FunctionType, own: FunctionType) -> bool:
    """Return whether `function` is in the file of `own`, normalizes queries or keys, and can be copied.

    A copy must behave like the original. A function with a closure, for example, cannot be copied.
    """
    inner = function.__closure__ or hasattr(function, "__wrapped__") or function.__qualname__ != function.__name__
    if inner or function.__module__ != own.__module__:
        return False
    try:
        found = any(is_head_norm(node) for node in ast.walk(tree_of(function)))
        if found:
            check_source(function)
    except Unreadable:
        return False
    return found


__all__ = ["Helper", "helper_name", "helpers_of"]
