"""Replaces the call of a method by the statements of the called method, if the called method modulates its argument
(`x * (1 + scale) + shift`).

An example is the call `x, gate = self.modulate(x, parameters)`. If a norm precedes such a call, one kernel may then
compute norm and modulation together. Each time the rewritten method runs, it checks that the class still has the same
`modulate`. If not, the original method runs instead.
"""

import ast
import copy
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from .expressions import is_share, is_sum, orders
from .flow import Read, is_self
from .method import PREFIX, Unreadable, check_source, tree_of

MOST_STATEMENTS = 40
"""Maximum number of statements, including those inside of an `if`. Calls of longer methods are not
replaced."""


class Inlining:
    """Replaces calls of modulating methods in `tree`, the syntax tree of a method. `cls` is the class of the
    method, and `space` has its global variables.

    `inlined` maps names to the called methods whose statements were inserted.
    """

    def __init__(self, tree: ast.FunctionDef, cls: Any, space: Any) -> None:
        self.tree, self.cls, self.space = tree, cls, space
        self.inlined: dict[str, FunctionType] = {}
        self.count = 0
        arguments = {node.arg for node in ast.walk(tree.args) if isinstance(node, ast.arg)}
        self.names = (arguments | Read(tree).stores) - {"self", tree.name}
        """The variables of the method. An inserted method must not read a global variable with the same
        name."""

    def run(self) -> None:
        """Replace all calls."""
        for node in list(ast.walk(self.tree)):
            for field in ("body", "orelse"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    block[:] = [made for statement in block for made in self.replaced(statement)]

    def replaced(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the statements that replace a statement."""
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Tuple) or not all(isinstance(part, ast.Name) for part in target.elts):
            return [statement]
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not is_self(call.func.value):
            return [statement]
        name = call.func.attr
        function = None if self.cls is None else inspect.getattr_static(self.cls, name, None)
        if not isinstance(function, FunctionType) or function.__globals__ is not self.space:
            return [statement]
        made = self.statements(function, call, target)
        if made is None:
            return [statement]
        self.inlined[name] = function
        for one in made:
            for node in ast.walk(one):
                ast.copy_location(node, statement)
        return made

    def statements(self, function: FunctionType, call: ast.Call, target: ast.Tuple) -> list[ast.stmt] | None:
        """Return the statements of `function`, with the arguments of `call` inserted. Return None if they
        cannot replace the call."""
        try:
            tree = copy.deepcopy(tree_of(function))
            given = arguments_of(tree, function, call)
            body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
            result = body[-1].value if body and isinstance(body[-1], ast.Return) else None
            if given is None or not isinstance(result, ast.Tuple) or len(result.elts) != len(target.elts):
                return None
            if not modulates(result, set(given)) or not all(is_plain(one) for one in body[:-1]):
                return None
            if function.__closure__ or sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) > MOST_STATEMENTS:
                return None
            check_source(function)
        except Unreadable:
            return None
        stores = set().union(*(Read(one).stores for one in body))
        globals_ = {node.id for one in body for node in ast.walk(one) if isinstance(node, ast.Name)}
        if globals_.difference(stores, given, ("self",)) & self.names or "self" in stores:
            return None
        prefix, before = f"{PREFIX}inline_{self.count}_", []
        self.count += 1
        for name, value in given.items():
            if name in stores or not isinstance(value, ast.Name | ast.Constant):
                before.append(ast.Assign([ast.Name(prefix + name, ast.Store())], value))
        known = {name: value for name, value in given.items() if isinstance(value, ast.Name | ast.Constant)}
        local = Local(prefix, stores | set(given), {name: known[name] for name in known if name not in stores})
        made = [one for statement in body[:-1] for one in decided(local.visit(statement))]
        parts = [local.visit(part) for part in result.elts]
        names = [part.id for part in target.elts]  # type: ignore[attr-defined]
        for at, part in enumerate(parts):
            if set(names[:at]) & set(Read(part).loads):
                return None
        ends = [ast.Assign([ast.Name(name, ast.Store())], part) for name, part in zip(names, parts, strict=True)]
        return [*before, *made, *ends]


class Local(ast.NodeTransformer):
    """Renames the local variables of an inserted method, and replaces its parameters by the arguments in
    `given`."""

    def __init__(self, prefix: str, names: set[str], given: dict[str, ast.expr]) -> None:
        self.prefix, self.names, self.given = prefix, names, given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the renamed variable, or the argument that replaces it."""
        if node.id in self.given:
            return copy.deepcopy(self.given[node.id])
        return ast.Name(self.prefix + node.id, node.ctx) if node.id in self.names else node


def arguments_of(tree: ast.FunctionDef, function: FunctionType, call: ast.Call) -> dict[str, ast.expr] | None:
    """Return the arguments of `call`, by the names of the parameters of `function`, without `self`. Return
    None if the signature of `function` is not supported."""
    own = tree.args
    if own.vararg or own.kwarg or own.kwonlyargs or own.posonlyargs or hasattr(function, "__wrapped__"):
        return None
    if any(isinstance(part, ast.Starred) for part in call.args) or any(word.arg is None for word in call.keywords):
        return None
    first, *names = [argument.arg for argument in own.args] or [""]
    if first != "self":
        return None
    given: dict[str, ast.expr] = dict(zip(names, call.args, strict=False))
    given |= {word.arg or "": word.value for word in call.keywords}
    defaults = function.__defaults__ or ()
    for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
        if name not in given and isinstance(value, bool | int | float | str | None):
            given[name] = ast.Constant(value)
    return given if set(given) == set(names) and len(call.args) <= len(names) else None


def modulates(result: ast.Tuple, parameters: set[str]) -> bool:
    """Return whether an element of the tuple `result` is `x * (1 + scale)` or `x * (1 + scale) + shift`,
    where `x` is a parameter."""
    for part in result.elts:
        product = part.left if isinstance(part, ast.BinOp) and is_sum(part) else part
        if any(isinstance(x, ast.Name) and x.id in parameters and is_share(scale) for x, scale in orders(product)):
            return True
    return False


def is_plain(statement: ast.stmt) -> bool:
    """Return whether a statement is an assignment, or an `if` that contains only assignments and such `if`
    statements.

    For an assignment that contains a lambda, a comprehension or `super`, return False.
    """
    if isinstance(statement, ast.If):
        return all(map(is_plain, (*statement.body, *statement.orelse)))
    nested = (
        ast.Lambda,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
        ast.NamedExpr,
        ast.Await,
        ast.Yield,
    )
    plain = isinstance(statement, ast.Assign) and not any(isinstance(node, nested) for node in ast.walk(statement))
    return plain and not any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(statement))


def decided(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statement. If it is an `if` with a constant condition, such as `if None is None`, instead yield the
    statements of the branch that runs.
    """
    test = statement.test if isinstance(statement, ast.If) else None
    parts = [test.left, *test.comparators] if isinstance(test, ast.Compare) and len(test.ops) == 1 else []
    if isinstance(statement, ast.If) and isinstance(test, ast.Compare) and parts:
        constant = all(isinstance(part, ast.Constant) and part.value is None for part in parts)
        if constant and isinstance(test.ops[0], ast.Is | ast.IsNot):
            for inner in statement.body if isinstance(test.ops[0], ast.Is) else statement.orelse:
                yield from decided(inner)
            return
    yield statement


__all__ = ["Inlining"]
