"""Finds the norms of queries and keys in a method."""

import ast
import re
from typing import Any

from .expressions import is_norm_call, without_cast, without_float

HEAD_NORM = re.compile(r"(^|_)(norm_?(added_)?(q|k|query|key)|(q|k|qk|query|key)_?(norm|layernorm))$")
"""Pattern for the names of norm modules of queries and keys, such as `norm_q`."""


def head_norms(tree: ast.FunctionDef) -> list[ast.Call]:
    """Return all calls of norms of queries or keys in `tree`, except those that are deferred until the rotation. In
    their place, `tree` contains other calls.
    """
    return [node for node in ast.walk(tree) if is_head_norm(node)]  # type: ignore[misc]


class WideNorms(ast.NodeTransformer):
    """Replaces `norm(x.float()).type_as(x)` by `norm(x)`, and marks the new call with an attribute. The
    function `wideness` reads this mark.

    The new call has no casts, so it does not compute the original expression. A later step (`Deferring` or code that
    uses `head_norms`) must therefore replace each marked call.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a norm call of queries or keys, together with the casts of its input and result."""
        norm, target = without_cast(self.generic_visit(node))  # type: ignore[arg-type]
        if target is None or not is_head_norm(norm):
            return node
        assert isinstance(norm, ast.Call)
        x, wide = without_float(norm.args[0])
        root = target.value if isinstance(target, ast.Attribute) and target.attr == "dtype" else target
        casts_back = isinstance(target, ast.Attribute) or node.func.attr == "type_as"  # type: ignore[attr-defined]
        names = [one.id for one in (x, root) if isinstance(one, ast.Name)]
        if not wide or not casts_back or len(names) != 2 or names[0] != names[1]:
            return node
        made: Any = ast.copy_location(ast.Call(norm.func, [x], []), norm)
        made.wide = True
        return made


def wideness(norm: ast.Call) -> list[ast.expr]:
    """Return a list of additional arguments for the call that replaces the norm call `norm`.

    If the original code casts the input and the result of this norm, the list is `[True]`. Otherwise it is
    empty.
    """
    return [ast.Constant(True)] if getattr(norm, "wide", False) else []


def is_head_norm(node: ast.AST) -> bool:
    """Return whether the node calls a norm of queries or keys."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and HEAD_NORM.search(node.func.attr) is not None
        and is_norm_call(node)
    )


__all__ = ["WideNorms", "head_norms", "is_head_norm", "wideness"]
