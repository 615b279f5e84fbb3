"""Handles views of `1 + scale` in a modulation, such as `(1 + scale)[:, None]`. A kernel computes `1 + scale`
itself, so it gets the same view of `scale`."""

import ast
import copy

from .flow import is_definition, is_self

VIEWS = ("expand", "reshape", "squeeze", "transpose", "unsqueeze", "view")
"""Names of tensor methods that only return a view."""


def viewed(node: ast.expr) -> ast.expr | None:
    """If the expression is a view of `x`, such as `x[i]` or `x.unsqueeze(1)`, return `x`. Otherwise return
    None."""
    if isinstance(node, ast.Subscript):
        return node.value
    called = node.func if isinstance(node, ast.Call) else None
    known = isinstance(called, ast.Attribute) and called.attr in VIEWS and not is_self(called.value)
    return called.value if known and isinstance(called, ast.Attribute) else None


def view_of(x: ast.expr, node: ast.expr) -> ast.expr:
    """Return a view of `x` that is made in the same way as the view `node` of another expression."""
    made = copy.copy(node)
    if isinstance(made, ast.Subscript):
        made.value = x
    elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
        made.func = ast.copy_location(ast.Attribute(x, made.func.attr, ast.Load()), made.func)
    return made


def one_plus(node: ast.expr) -> ast.expr | None:
    """If the expression is `1 + x` or `x + 1`, return `x`. Otherwise return None."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(one, ast.Constant) and one.value in (1, 1.0) and not isinstance(one.value, bool):
                return other
    return None


def join_views(tree: ast.FunctionDef) -> None:
    """Replace the two statements `y = 1 + x` and `y = y.unsqueeze(1)` by `y = (1 + x).unsqueeze(1)`."""
    for owner in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(owner, name, None)
            if not isinstance(statements, list):
                continue
            for at in range(len(statements) - 1, 0, -1):
                first, second = statements[at - 1 : at + 1]
                if joins(first, second):
                    second.value = view_of(first.value, second.value)
                    del statements[at - 1]


def joins(first: ast.stmt, second: ast.stmt) -> bool:
    """Return whether `first` is a statement `y = 1 + x`, and `second` assigns a view of `y` to `y`, as in `y
    = y.unsqueeze(1)`.

    Arguments of the view method must not contain `y`.
    """
    if not (isinstance(first, ast.Assign) and isinstance(second, ast.Assign)):
        return False
    if not (is_definition(first) and is_definition(second)) or one_plus(first.value) is None:
        return False
    name, x = first.targets[0].id, viewed(second.value)  # type: ignore[attr-defined]
    reads = [node.id for node in ast.walk(second) if isinstance(node, ast.Name)]
    return isinstance(x, ast.Name) and x.id == name and reads.count(name) == 2


__all__ = ["VIEWS", "join_views", "one_plus", "view_of", "viewed"]
