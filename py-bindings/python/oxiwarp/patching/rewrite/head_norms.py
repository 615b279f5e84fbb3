"""Finds the norms of queries and keys in a method."""

import ast
import re
from typing import Any

from .expressions import is_norm_call, without_cast, without_float

HEAD_NORM = re.compile(r"(^|_)(norm_?(added_)?(q|k|query|key)|(q|k|qk|query|key)_?(norm|layernorm))$")
"""Pattern for the names of norm modules of queries and keys, such as `norm_q`."""


def head_norms(tree: ast.FunctionDef) -> list[ast.Call]:
    """Return the calls of norms of queries and keys that are not deferred until the rotation."""
    return [node for node in ast.walk(tree) if is_head_norm(node)]  # type: ignore[misc]


class WideNorms(ast.NodeTransformer):
    """Replaces `norm(x.float()).type_as(x)` by `norm(x)`, and marks the new call. `wideness` reads the mark.

    The new call alone does not compute the original expression, because it has no casts. So `Deferring` or
    `head_norms` must find and replace each marked call later.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a norm of queries or keys together with the casts around it."""
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
    """Return the additional argument `True` for the call that replaces `norm`, if `norm` is marked. Otherwise
    return []."""
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
