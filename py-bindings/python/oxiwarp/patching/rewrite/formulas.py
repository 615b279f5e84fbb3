"""Reads which formula a short function, such as `modulate(x, shift, scale)`, computes, and inserts the arguments of a
call into this formula.

A formula is one expression. The function may assign local variables, also inside `if` statements, and must
end with a `return`. It may read only its parameters, `torch` and `F`, and must have no side effects. In the
formula, an `if` statement becomes `a if test else b`. An `if` statement for devices without kernels, such as
`if x.device.type == "mps"`, is omitted.
"""

import ast
import copy
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from ..._cache import cache_weakly
from .flow import Read, evaluated_once, is_self
from .method import Unreadable, check_source, tree_of
from .views import VIEWS

CLASS = "self"
"""Key under which the rewriter stores the class of a method among the method's global variables."""
MOST_PARAMETERS = 4
"""Maximum number of parameters. A function with more parameters is not treated as a formula."""
MOST_STATEMENTS = 8
"""Maximum number of statements. A function with more statements is not treated as a formula."""
LIBRARIES = ("torch", "F")
"""Global variables that a formula may read."""


def function_name(called: ast.expr) -> str:
    """Return the name of a called function, such as "modulate" or "self.modulate". If `called` is neither a
    name nor an attribute of `self`, return ""."""
    if isinstance(called, ast.Attribute) and is_self(called.value):
        return f"{CLASS}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else ""


def function_at(name: str, space: Mapping[str, Any]) -> Any:
    """Return the global function `name`, or for a name such as "self.modulate" the method of the class, or
    None."""
    owner, _, attribute = name.rpartition(".")
    return getattr(space.get(CLASS), attribute, None) if owner else space.get(name)


def formula_of(call: ast.Call, function: Any, space: Mapping[str, Any]) -> ast.expr | None:
    """Return the expression that `function` computes, with the arguments of `call` inserted. Return None if
    the function is not a formula, or if the arguments cannot be inserted.

    `space` contains the global variables of the calling code.
    """
    formula = formula_in(function) if isinstance(function, FunctionType) else None
    if formula is None:
        return None
    names, value = formula
    if function_name(call.func).startswith(f"{CLASS}."):
        names = names[1:]
    given = dict(zip(names, call.args, strict=False)) | {keyword.arg or "": keyword.value for keyword in call.keywords}
    if set(given) != set(names) or len(call.args) + len(call.keywords) != len(names):
        return None
    loads = Read(value).loads
    once = [node.id for node in evaluated_once(value) if isinstance(node, ast.Name)]
    for name in names:
        single = loads.count(name) == once.count(name) == 1
        if isinstance(given[name], ast.Starred) or not (single or (name in loads and is_cheap(given[name]))):
            return None
    if any(name in loads and space.get(name) is not function.__globals__.get(name) for name in LIBRARIES):
        return None
    in_order = [name for name in loads if name in names] == list(given)
    if not in_order and sum(Read(argument).effects for argument in given.values()) > 1:
        return None
    return filled(value, given)


@cache_weakly
def formula_in(function: FunctionType) -> tuple[tuple[str, ...], ast.expr] | None:
    """Return the parameter names of `function` and the expression that it computes. Return None if its body
    is not a formula.

    If `function` is a method, the first name is `self`.
    """
    if hasattr(function, "__wrapped__") or function.__closure__ or function.__code__.co_argcount > MOST_PARAMETERS:
        return None
    try:
        tree = tree_of(function)
    except Unreadable:
        return None
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    body = [statement for statement in body if not is_for_other_device(statement)]
    arguments = tree.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults or not body:
        return None
    names = tuple(arg.arg for arg in (*arguments.posonlyargs, *arguments.args))
    *before, last = body
    values = None if len(body) > MOST_STATEMENTS else values_after(before, {})
    if values is None or not isinstance(last, ast.Return) or last.value is None:
        return None
    value = filled(last.value, values)
    read = Read(value)
    if read.effects or set(read.loads) - {*names, *LIBRARIES} or "self" in read.loads:
        return None
    try:
        check_source(function)
    except Unreadable:
        return None
    return names, value


def values_after(statements: list[ast.stmt], values: Mapping[str, ast.expr]) -> dict[str, ast.expr] | None:
    """Return the values that local variables have after `statements`, or None if a formula must not contain
    one of the statements.

    `values` contains the values that local variables have before `statements`. All values are expressions of
    the function's parameters.
    """
    made = dict(values)
    for statement in statements:
        if isinstance(statement, ast.If):
            test = filled(statement.test, made)
            branches = [values_after(body, made) for body in (statement.body, statement.orelse)]
            if Read(test).effects or None in branches:
                return None
            first, second = branches
            assert first is not None and second is not None
            for name in {**first, **second}:
                # If only one branch assigns the variable, the other branch keeps the old value. The
                # expression for this value is the name of the variable.
                one, other = (branch.get(name, ast.Name(name, ast.Load())) for branch in (first, second))
                if ast.dump(one) != ast.dump(other):
                    made[name] = ast.copy_location(ast.IfExp(test, one, other), statement)
            continue
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or Read(statement.value).effects:
            return None
        target, value = statement.targets[0], statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple):
            if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
                return None
            pairs = list(zip(target.elts, value.elts, strict=True))
        if not all(isinstance(name, ast.Name) for name, _ in pairs):
            return None
        made |= {name.id: filled(part, made) for name, part in pairs}  # type: ignore[attr-defined]
    return made


def is_for_other_device(statement: ast.stmt) -> bool:
    """Return whether the statement is an `if` whose body never runs for a tensor on a CPU or NVIDIA GPU."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    both = isinstance(statement.test, ast.BoolOp) and isinstance(statement.test.op, ast.And)
    for part in statement.test.values if both else [statement.test]:  # type: ignore[attr-defined]
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq):
            device = part.comparators[0]
            known = isinstance(device, ast.Constant) and device.value not in ("cpu", "cuda")
            if known and ast.unparse(part.left).endswith(".device.type"):
                return True
    return False


def is_cheap(node: ast.expr) -> bool:
    """Return whether an expression is so cheap that it may be evaluated more than once.

    The expression may contain only variables, constants, views, and `a if b else c`.
    """
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    views = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.Call, ast.expr_context)
    others = (ast.UnaryOp, ast.USub, ast.Not, ast.IfExp)
    return all(isinstance(part, (*views, *others)) for part in ast.walk(node)) and all(
        isinstance(call.func, ast.Attribute) and call.func.attr in VIEWS and not is_self(call.func.value)
        for call in calls
    )


def filled(node: Any, given: Mapping[str, ast.expr]) -> Any:
    """Return a copy of the expression `node` with expressions inserted for variables. `given` maps the name
    of a variable to the expression that replaces this variable.

    The inserted expressions themselves are not copied. If a node object occurs twice in the original, the result has
    two copies of it.
    """
    if isinstance(node, ast.Name) and node.id in given:
        return given[node.id]
    made = copy.copy(node)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            setattr(made, name, [filled(item, given) if isinstance(item, ast.AST) else item for item in value])
        elif isinstance(value, ast.AST):
            setattr(made, name, filled(value, given))
    return made


__all__ = ["CLASS", "formula_of", "function_at", "function_name", "is_cheap"]
