"""Recognises expressions in Python source, such as a product, a cast, a sigmoid or a norm."""

import ast

from .flow import is_norm, is_self
from .views import viewed

FLOAT32 = ("torch.float32", "torch.float")


def sigmoid_of(call: ast.Call) -> ast.expr | None:
    """Return `gate` for `gate.sigmoid()`, or None."""
    found = isinstance(call.func, ast.Attribute) and call.func.attr == "sigmoid" and not (call.args or call.keywords)
    return call.func.value if found and isinstance(call.func, ast.Attribute) and is_value(call.func.value) else None


def without_cast(node: ast.expr) -> tuple[ast.expr, ast.expr | None]:
    """Split `x.type_as(y)`, `x.to(y.dtype)` and `x.to(dtype)` into `x` and the argument. For any other
    expression, return it and None."""
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) + len(node.keywords) == 1
    ):
        return node, None
    argument = node.args[0] if node.args else node.keywords[0].value
    if node.func.attr == "type_as" and node.args:
        return node.func.value, argument
    by_name = not node.keywords or node.keywords[0].arg == "dtype"
    named = bool(node.keywords) or "dtype" in ast.unparse(argument)
    is_dtype = named and ast.unparse(argument) not in FLOAT32
    if node.func.attr == "to" and by_name and is_dtype:
        return node.func.value, argument
    return node, None


def same_dtype(a: ast.expr, b: ast.expr) -> bool:
    """Return whether both expressions are the same variable or the `dtype` of this variable, for example `x`
    and `x.dtype`."""
    roots = [node.value if isinstance(node, ast.Attribute) and node.attr == "dtype" else node for node in (a, b)]
    return all(isinstance(root, ast.Name) for root in roots) and ast.dump(roots[0]) == ast.dump(roots[1])


def without_float(node: ast.expr) -> tuple[ast.expr, bool]:
    """For `x.float()` and `x.to(torch.float32)`, return `x` and True. For any other expression, return it and
    False."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        values = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "dtype")]
        if node.func.attr == "float" and not node.args and not node.keywords:
            return node.func.value, True
        if node.func.attr == "to" and len(values) == len(node.args) + len(node.keywords) == 1:
            return (node.func.value, True) if ast.unparse(values[0]) in FLOAT32 else (node, False)
    return node, False


def is_sum(node: ast.AST) -> bool:
    """Return whether the node is a sum."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def is_product(node: ast.AST) -> bool:
    """Return whether the node is a product."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def is_number(node: ast.expr) -> bool:
    """Return whether the expression is a constant, or a calculation with constants only."""
    return all(
        isinstance(part, ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop) for part in ast.walk(node)
    )


def is_share(node: ast.expr) -> bool:
    """Return whether the expression is a sum or difference with a constant, such as `1 - weight` or `1 +
    scale`.

    In a product, such a factor belongs to a blend of two tensors or to a modulation, and is not a gate. The expression
    may also be a view, such as `(1 + scale)[:, None]`.
    """
    while (x := viewed(node)) is not None:
        node = x
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and any(isinstance(part, ast.Constant) for part in (node.left, node.right))
    )


def is_parameter(node: ast.expr) -> bool:
    """Return whether the expression is an attribute of `self`, possibly cast to float32. An attribute of
    `self` is a weight, not a modulation."""
    node, _ = without_float(node)
    return isinstance(node, ast.Attribute) and is_self(node.value)


def is_value(node: ast.expr) -> bool:
    """Return whether the value of the expression may be a tensor. A constant, a container or a comparison is
    not."""
    return isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.BinOp | ast.IfExp)


def is_norm_call(node: ast.expr) -> bool:
    """Return whether the expression calls a norm with one argument.

    The called object must be a variable or attribute with the name of a norm, such as `norm1` or `ln_f`.
    """
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        return False
    return is_norm(node.func)


def with_factor(node: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr] | None:
    """Split `norm(x, factor)` into three expressions: the norm, `x` and the factor. Return None for any other
    expression."""
    if not isinstance(node, ast.Call) or len(node.args) != 2 or node.keywords or not is_norm(node.func):
        return None
    x, factor = node.args
    plain = isinstance(node.func, ast.Attribute) and not isinstance(x, ast.Starred) and is_value(factor)
    return (node.func, x, factor) if plain else None


def without_tanh(node: ast.expr) -> ast.expr | None:
    """Return `gate.unsqueeze(1)` for `torch.tanh(gate).unsqueeze(1)` and `gate.tanh().unsqueeze(1)`, or
    None."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr == "tanh" and not node.keywords:
        of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F")
        parts = node.args if of_torch else [node.func.value, *node.args]
        return parts[0] if len(parts) == 1 else None
    inner = without_tanh(node.func.value) if node.func.attr in ("unsqueeze", "view", "reshape") else None
    if inner is None:
        return None
    view = ast.Attribute(inner, node.func.attr, ast.Load())
    return ast.copy_location(ast.Call(ast.copy_location(view, node), node.args, node.keywords), node)


def tanh_of(gate: ast.expr) -> ast.expr:
    """Return `gate.tanh()`."""
    method = ast.copy_location(ast.Attribute(gate, "tanh", ast.Load()), gate)
    return ast.copy_location(ast.Call(method, [], []), gate)


def orders(product: ast.expr) -> tuple[tuple[ast.expr, ast.expr], ...]:
    """Return the pairs `(a, b)` and `(b, a)` for a product `a * b`. Return () for any other expression."""
    if not isinstance(product, ast.BinOp) or not is_product(product):
        return ()
    return (product.left, product.right), (product.right, product.left)


__all__ = [
    "is_norm_call",
    "is_number",
    "is_parameter",
    "is_product",
    "is_share",
    "is_sum",
    "is_value",
    "orders",
    "same_dtype",
    "sigmoid_of",
    "tanh_of",
    "with_factor",
    "without_cast",
    "without_float",
    "without_tanh",
]
