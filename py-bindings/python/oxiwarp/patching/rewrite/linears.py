"""Finds linears whose results are operands of a rewritten expression, such as `x + gate * self.out(y)`.

The call of the linear becomes a call of the function `linear` in `calls.py`. At run time, this function may
return a placeholder for the product. One kernel then computes the linear and the expression.
"""

import ast
from collections.abc import Callable
from typing import NamedTuple

from .blocks import Block
from .flow import Read, is_definition, is_self, rebinds
from .method import PREFIX
from .patterns import GATED, Chain

LINEAR = "linear"
Add = Callable[[ast.expr], int]
"""Records a call of a linear, and returns its index."""


class Linear(NamedTuple):
    """A linear whose result is an operand of a chain."""

    operand: ast.expr
    """The operand."""
    call: ast.expr
    """The call that replaces the operand."""
    variable: str
    """The variable whose definition becomes part of the chain, or "" if the operand is the call of the linear."""


def with_linear(chain: Chain, block: Block, at: int, add: Add) -> Linear | None:
    """Find the linear whose result is a factor of the gated residual `chain`, in the statement with index `at`.

    Return None if there is no such linear, or if the expression rounds the product. The other operands must have no
    side effects, because the rewritten method evaluates them before the linear.
    """
    if chain.op != GATED or chain.options["inner"]:
        return None
    for name in ("a", "b"):
        operand = chain.operands[name]
        found = block.expanded(operand.id, at) if isinstance(operand, ast.Name) else None
        call = operand if found is None else found[0]
        others = [node for other, node in chain.operands.items() if other != name]
        if is_linear_call(call) and not any(Read(other).effects for other in others):
            return Linear(operand, linear_call(call, GATED, add), operand.id if isinstance(operand, ast.Name) else "")
        if isinstance(operand, ast.Name):
            in_branches(operand, chain, block, at, add)
    return None


def in_branches(operand: ast.Name, chain: Chain, block: Block, at: int, add: Add) -> None:
    """If the statement before the chain is an `if` whose branches end with `name = call`, replace the calls of linears
    in these branches, as in `if chunked: y = f(x)`, `else: y = self.ff(x)`.

    `operand` reads the variable, and must be its only reader. It accepts a placeholder for the result of a linear. A
    statement between the `if` and the chain, such as `y = gate * y`, must be part of the chain.
    """
    name, reader, before = operand.id, at, at - 1
    absorbed = {block.defined(variable, at) for variable in chain.used()}
    while before >= 0 and (before in absorbed or isinstance(block.statements[before], ast.Pass)):
        reader = before if any(node is operand for node in ast.walk(block.statements[before])) else reader
        before -= 1
    choice = block.statements[before] if before >= 0 else None
    if not isinstance(choice, ast.If) or not choice.orelse or name in block.reads[before].loads:
        return
    ends = [branch[-1] for branch in (choice.body, choice.orelse)]
    if not all(rebinds(end, name) for end in ends) or not block.used_once(name, before, reader):
        return
    for end in ends:
        if isinstance(end, ast.Assign) and is_definition(end) and is_linear_call(end.value):
            end.value = linear_call(end.value, GATED, add)


def of_gelu(call: ast.Call, add: Add) -> None:
    """`call` is the call that replaced `F.gelu(x)`. Its last argument is `x`. If `x` is the result of a
    linear, replace the call of this linear.
    """
    words = {word.arg: word.value for word in call.keywords}
    approximate = words.get("approximate", ast.Constant("none"))
    kinds = {"none": "gelu", "tanh": "gelu_tanh"}
    kind = kinds.get(str(approximate.value)) if isinstance(approximate, ast.Constant) else None
    if kind is not None and is_linear_call(call.args[-1]):
        call.args[-1] = linear_call(call.args[-1], kind, add)


def is_linear_call(node: ast.expr) -> bool:
    """Return whether the expression may call a linear: a submodule of `self` with one argument."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
        return False
    module: ast.expr = node.func
    while isinstance(module, ast.Attribute | ast.Subscript):
        module = module.value
    return is_self(module) and Read(node).effects


def linear_call(call: ast.expr, kind: str, add: Add) -> ast.expr:
    """Return the call that replaces the call of a linear. `kind` says which operations follow the linear."""
    assert isinstance(call, ast.Call)
    function = ast.Name(PREFIX + LINEAR, ast.Load())
    arguments = [ast.Constant(add(call)), ast.Constant(kind), call.func, *call.args]
    return ast.copy_location(ast.Call(function, arguments, []), call)


def without_linear(node: ast.expr) -> ast.expr:
    """Return the original call of a linear for the call that replaced it. Return any other expression
    unchanged."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == PREFIX + LINEAR:
        return ast.copy_location(ast.Call(node.args[2], node.args[3:], []), node)
    return node


__all__ = ["of_gelu", "with_linear", "without_linear"]
