"""Finds loops over the layers of a model, such as `for layer in self.layers: x = layer(x, mask)`.

If a layer ends with a sum and the next layer starts with a norm of this sum, one kernel may compute both. The rewritten
loop therefore allows each layer to return a placeholder for the sum, and gives this placeholder to the next layer.
"""

import ast
from collections.abc import Callable
from typing import NamedTuple

from .flow import Read, is_definition, is_self
from .method import PREFIX

OPENED = "opened"
"""Name of the function that wraps the argument of a layer, so that the layer may return a placeholder."""
Flush = Callable[[list[ast.stmt], int], None]
"""`flush(statements, at)` inserts a statement that computes the placeholder before the statement with index `at`."""


class Loop(NamedTuple):
    """A loop over layers. Each layer gets the result of the previous layer as its first argument."""

    statement: ast.For
    call: ast.Call
    """The call of the layer."""
    variable: str
    """The variable with the result of the last layer."""

    def open(self, flush: Flush) -> None:
        """Change the loop so that layers may return placeholders. Other code in the loop that reads the result of a
        layer gets a tensor."""
        before_reads(self.statement.body, self.variable, self.call, flush)
        wrap, x = ast.Name(PREFIX + OPENED, ast.Load()), self.call.args[0]
        layer = ast.copy_location(ast.Name(self.call.func.id, ast.Load()), x)  # type: ignore[attr-defined]
        self.call.args[0] = ast.copy_location(ast.Call(wrap, [layer, x], []), x)


def loop_of(statement: ast.stmt) -> Loop | None:
    """Return the `Loop` of a statement, or None if the statement is no loop over layers.

    The loop must call the layer exactly once, in a statement `x = layer(x, ...)` that every iteration runs. Apart from
    this call, the loop may only read attributes of the layer.
    """
    layer = layer_variable(statement)
    if layer is None or not isinstance(statement, ast.For) or statement.orelse:
        return None
    calls = [one for one in statement.body if is_call_of(one, layer)]
    if len(calls) != 1:
        return None
    call: ast.Call = calls[0].value  # type: ignore[attr-defined]
    variable: str = calls[0].targets[0].id  # type: ignore[attr-defined]
    known: list[ast.AST] = [node.value for node in ast.walk(statement) if isinstance(node, ast.Attribute)]
    known += [call.func, *ast.walk(statement.target)]
    uses = [node for part in statement.body for node in ast.walk(part) if is_variable(node, layer)]
    reads = [node for node in ast.walk(calls[0]) if is_variable(node, variable) and isinstance(node.ctx, ast.Load)]  # type: ignore[attr-defined]
    alone = all(any(node is one for one in known) for node in uses) and len(reads) == 1
    return Loop(statement, call, variable) if alone and variable != layer else None


def layer_variable(statement: ast.stmt) -> str | None:
    """Return the variable of a loop over a list that is an attribute of `self`, as `self.layers[:n]`. `enumerate` may
    number the elements. Return None for any other statement."""
    if not isinstance(statement, ast.For):
        return None
    target, over = statement.target, statement.iter
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "enumerate" and over.args:
        pair = target.elts if isinstance(target, ast.Tuple) else []
        target, over = (pair[1] if len(pair) == 2 else target), over.args[0]
    while isinstance(over, ast.Subscript):
        over = over.value
    root = over
    while isinstance(root, ast.Attribute):
        root = root.value
    return target.id if isinstance(target, ast.Name) and root is not over and is_self(root) else None


def is_call_of(statement: ast.stmt, layer: str) -> bool:
    """Return whether a statement is `x = layer(x, ...)`."""
    call = statement.value if is_definition(statement) else None  # type: ignore[attr-defined]
    if not isinstance(call, ast.Call) or not is_variable(call.func, layer) or not call.args:
        return False
    return is_variable(call.args[0], statement.targets[0].id)  # type: ignore[attr-defined]


def is_variable(node: ast.AST, name: str) -> bool:
    """Return whether the node is the variable `name`."""
    return isinstance(node, ast.Name) and node.id == name


def before_reads(statements: list[ast.stmt], name: str, call: ast.Call, flush: Flush) -> None:
    """Compute the placeholder in the variable `name` before each statement that reads it, except the statement with
    `call`. If only a branch of an `if` reads the variable, compute the placeholder in this branch."""
    for statement in list(statements):
        if getattr(statement, "value", None) is call or name not in Read(statement).loads:
            continue
        if isinstance(statement, ast.If) and name not in Read(statement.test).loads:
            before_reads(statement.body, name, call, flush)
            before_reads(statement.orelse, name, call, flush)
            continue
        flush(statements, next(at for at, one in enumerate(statements) if one is statement))


__all__ = ["OPENED", "Loop", "loop_of"]
