"""Finds the norms of queries and keys in a method."""

import ast
import re
from typing import Any

from .expressions import is_norm_call, without_cast, without_float

HEAD_NORM = re.compile(r"(^|_)(norm_?(added_)?(q|k|query|key)|(q|k|qk|query|key)_?(norm|layernorm))$")
"""Names of norms of queries and keys."""


def head_norms(tree: ast.FunctionDef) -> list[ast.Call]:
    """Return the norms of queries and keys that are not deferred."""
    return [node for node in ast.walk(tree) if is_head_norm(node)]  # type: ignore[misc]


class WideNorms(ast.NodeTransformer):
    """Replaces `norm(x.float()).type_as(x)` by `norm(x)`, and marks this call. `wideness` reads the mark.

    `Deferring` or `head_norms` must find the call later, because a marked call alone is not the original expression.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a norm of queries or keys with the casts around it."""
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
    """Return the last argument of the call that computes a norm in the place of `norm`, or nothing."""
    return [ast.Constant(True)] if getattr(norm, "wide", False) else []


def is_head_norm(node: ast.AST) -> bool:
    """Whether the node calls a norm of queries or keys."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and HEAD_NORM.search(node.func.attr) is not None
        and is_norm_call(node)
    )


__all__ = ["WideNorms", "head_norms", "is_head_norm", "wideness"]
