"""Analyses which variables the statements of a method read and change, to decide whether an expression may move to
another statement.

A block is a list of statements that run in order, such as the body of a function or of an `if`. A statement
`name = value` of a block is a definition. A later statement of the same block may contain `value` in place of
`name` under two conditions. No other code may read `name`, and no statement in between may change the result
of `value`.
"""

import ast
import copy
from collections.abc import Iterator
from typing import Any

from .method import PREFIX
from .names import FUNCTIONS, METHODS, is_activation, is_kernel, is_norm, is_self

Aliases = tuple[dict[str, set[str]], dict[str, set[str]]]


class Read(ast.NodeVisitor):
    """Collects the variables that a piece of code reads and writes, and whether the code may have side
    effects."""

    def __init__(self, node: ast.AST | None) -> None:
        self.loads: list[str] = []
        self.stores: set[str] = set()
        self.effects: bool = False
        """Whether the code may run anything except torch operations without side effects."""
        self.changed: set[str] = set()
        """Names of the tensors that the code is known to change in place. If it changes one, `effects` is
        True."""
        self.passed: set[str] = set()
        """Names of tensors that the code passes to functions with possible side effects. These may change the
        tensors."""
        self.leaves: bool = False
        """Whether the code may skip the statements after it, as `return` does."""
        if node is not None:
            self.visit(node)

    def include(self, other: "Read") -> None:
        """Add the variables and side effects of another piece of code."""
        self.loads += other.loads
        self.stores |= other.stores
        self.changed |= other.changed
        self.passed |= other.passed
        self.effects |= other.effects
        self.leaves |= other.leaves

    def visit_Name(self, node: ast.Name) -> None:
        """Record the name."""
        if isinstance(node.ctx, ast.Load):
            self.loads.append(node.id)
        else:
            self.stores.add(node.id)

    def visit_Call(self, node: ast.Call) -> None:
        """Record whether the called function may have side effects."""
        called = node.func
        known = isinstance(called, ast.Attribute) and called.attr in METHODS | FUNCTIONS
        # In a call such as `self.chunk(x)`, `chunk` is a submodule or a method of the class, not the tensor
        # method `chunk`.
        known = known and not is_self(called.value)  # type: ignore[attr-defined]
        known = known or (isinstance(called, ast.Name) and called.id in FUNCTIONS) or is_norm(called)
        if is_kernel(called):
            self.visit_kernel(node)
            return
        self.effects |= not known
        if not known:
            for part in (called, *node.args, *(keyword.value for keyword in node.keywords)):
                self.passed |= passed_by(part)
        if isinstance(called, ast.Attribute) and called.attr.endswith("_") and not called.attr.endswith("__"):
            self.change(called.value)
        for keyword in node.keywords:
            if keyword.arg == "out":
                self.effects = True
                self.change(keyword.value)
        if isinstance(called, ast.Attribute) and is_self(called.value):
            self.loads.append("self")  # The call `self.norm(x)` reads no tensor attribute of `self`.
        else:
            self.visit(called)
        for child in (*node.args, *node.keywords):
            self.visit(child)

    def visit_kernel(self, node: ast.Call) -> None:
        """Record what is read by a call that replaced a chain (an expression for one kernel). Only the
        operands of such a call can have side effects.
        """
        for own in node.args:
            read = Read(own)
            self.loads += read.loads
        for keyword in node.keywords:
            self.visit(keyword.value)

    def change(self, node: ast.expr) -> None:
        """Record that the code changes the tensor `node` in place."""
        self.changed |= set(Read(node).loads)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Record the read of an attribute of `self`, or an assignment to an attribute of any object."""
        if is_self(node.value):
            self.loads.append(f"self.{node.attr}")
        self.effects |= not isinstance(node.ctx, ast.Load)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Record an assignment to an element, such as `x[0] = y`."""
        if not isinstance(node.ctx, ast.Load):
            self.effects = True
            self.change(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Record a statement such as `x += y`, which changes the tensor `x`."""
        self.effects = True
        if isinstance(node.target, ast.Name):
            self.loads.append(node.target.id)
            self.changed.add(node.target.id)
        self.generic_visit(node)

    def other(self, node: ast.AST) -> None:
        """Record a side effect, because the node may run arbitrary code."""
        self.effects = True
        self.generic_visit(node)

    def leave(self, node: ast.AST) -> None:
        """Record a statement such as `return`, after which the next statements do not run.

        `raise` does not count, because after `raise` the method returns no result.
        """
        self.leaves = True
        self.other(node)

    visit_Return = visit_Break = visit_Continue = leave

    def visit_Delete(self, node: ast.Delete) -> None:
        """Record a statement `del name` as a read of `name`, because the variable must exist when the
        statement runs."""
        self.effects = True
        self.loads += [target.id for target in node.targets if isinstance(target, ast.Name)]
        self.generic_visit(node)

    def named(self, node: Any) -> None:
        """Record the assignment to a name in a pattern of `match`, or in `except ... as`. The syntax tree has such a
        name as a string, not as a node.
        """
        self.stores |= {name for name in (node.name if hasattr(node, "name") else node.rest,) if name}
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler = named

    def visit_alias(self, node: ast.alias) -> None:
        """Record an imported name."""
        self.stores.add((node.asname or node.name).partition(".")[0])

    visit_Yield = visit_YieldFrom = visit_Await = visit_NamedExpr = visit_Global = visit_Nonlocal = other
    visit_Raise = visit_Assert = visit_Import = visit_ImportFrom = other

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Record a nested function as code with side effects. It may read variables of the method at any
        later time."""
        self.effects = True
        self.stores.add(node.name)
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Record a lambda as code with possible side effects."""
        self.effects = True
        self.generic_visit(node)


def rebinds(statement: ast.stmt, name: str) -> bool:
    """Return whether the statement always assigns the variable `name`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    nodes = [node for target in targets for node in ([target, *getattr(target, "elts", ())])]
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def reads_old(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement may read the value that the variable `name` has when the statement
    starts."""
    if not isinstance(statement, ast.If) or name in Read(statement.test).loads:
        return name in Read(statement).loads
    for branch in (statement.body, statement.orelse):
        for part in branch:
            if reads_old(part, name):
                return True
            if rebinds(part, name):
                break
    return False


def divided(statement: ast.Assign) -> tuple[ast.expr, ast.stmt] | None:
    """Split the value of a statement `name = value` into calls with possible side effects, and operations on
    the results of these calls. Return None if there are no such operations.

    Return two items. The first is the value, in which new variables replace the calls. The second is a statement that
    assigns the results of the calls to these variables. Products, activations and norms count as operations, not as
    calls.
    """
    calls: list[ast.expr] = []
    names: list[ast.expr] = []

    def visit(node: ast.expr) -> ast.expr:
        if not Read(node).effects:
            return node
        made = copy.copy(node)
        if isinstance(made, ast.BinOp):
            made.left, made.right = visit(made.left), visit(made.right)
            return made
        if isinstance(made, ast.Call) and len(made.args) == 1 and (is_norm(made.func) or is_activation(made.func)):
            made.args = [visit(made.args[0])]
            return made
        name = f"{PREFIX}part_{statement.lineno}_{statement.col_offset}_{len(calls)}"
        calls.append(node)
        names.append(ast.copy_location(ast.Name(name, ast.Store()), node))
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    value = visit(statement.value)
    if isinstance(value, ast.Name):
        return None
    if not calls:
        return value, ast.copy_location(ast.Pass(), statement)
    if len(calls) == 1:
        return value, ast.copy_location(ast.Assign(names, calls[0]), statement)
    target, result = ast.Tuple(names, ast.Store()), ast.Tuple(calls, ast.Load())
    return value, ast.copy_location(ast.Assign([target], result), statement)


def is_definition(statement: ast.stmt) -> bool:
    """Return whether a statement has the form `name = value`."""
    return (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    )


def is_simple(node: ast.stmt) -> bool:
    """Return whether the statement contains no other statements."""
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr)


def evaluated_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yield those syntax tree nodes of a statement that Python always evaluates exactly once.

    The branches of `a if b else c` and the body of a `lambda`, for example, are not among them.
    """
    yield node
    if isinstance(node, ast.Lambda):
        return
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp | ast.NamedExpr):
        children = [node.test] if isinstance(node, ast.IfExp) else [node.value]
    elif isinstance(node, ast.BoolOp):
        children = [node.values[0]]
    elif isinstance(node, ast.Compare):
        children = [node.left, node.comparators[0]]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        children = [node.generators[0].iter]
    for child in children:
        yield from evaluated_once(child)


def evaluated_before(node: ast.AST, name: str) -> list[ast.AST] | None:
    """Return the syntax tree nodes of a statement that Python evaluates before it reads the variable `name`.

    Return None if the statement does not read the variable.
    """
    if isinstance(node, ast.Name):
        return [] if node.id == name and isinstance(node.ctx, ast.Load) else None
    before: list[ast.AST] = []
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        children = [node.value]
    for child in children:
        found = evaluated_before(child, name)
        if found is not None:
            return before + found
        before.append(child)
    return None


def aliases_of(tree: ast.AST) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return two dictionaries. Each maps a variable to the variables whose tensors may share memory with its
    tensor.

    In the first dictionary, memory is shared only through assignments and views. In the second one, the result of a
    call may also share memory with its arguments, because a module may return its argument.
    """
    made = []
    for calls in (False, True):
        groups: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For) or node is tree:
                continue
            value = node.iter if isinstance(node, ast.For) else node.value
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names, shared = {name for target in targets for name in Read(target).stores}, shared_by(value, calls)
            if isinstance(value, ast.Call) and not shared and not calls:
                continue  # A module returns a new tensor.
            names |= shared
            group = set().union(names, *(groups.get(name, set()) for name in names))
            groups.update(dict.fromkeys(group, group))
        made.append(groups)
    return made[0], made[1]


def shared_by(node: ast.AST | None, calls: bool) -> set[str]:
    """Return the variables whose tensors may share memory with the value of an expression.

    If `calls` is True, the result of a call may share the memory of its arguments.
    """
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {f"self.{node.attr}"} if is_self(node.value) else shared_by(node.value, calls)
    if isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
        return shared_by(node.value, calls)
    if isinstance(node, ast.Call):
        if is_kernel(node.func):
            return set()
        own = isinstance(node.func, ast.Attribute) and not is_self(node.func.value)
        method = shared_by(node.func.value, calls) if own else set()  # type: ignore[attr-defined]
        held = [*node.args, *(keyword.value for keyword in node.keywords)] if calls else []
        return method.union(*(shared_by(part, calls) for part in held))
    if isinstance(node, ast.IfExp | ast.BoolOp | ast.Tuple | ast.List):
        return set().union(*(shared_by(part, calls) for part in ast.iter_child_nodes(node)))
    return set()


def passed_by(node: ast.expr) -> set[str]:
    """The value of the expression `node` is the argument of a function. Return the variables whose tensors
    the function can change.
    """
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
        return set()
    if isinstance(node, ast.BinOp | ast.Tuple | ast.List):  # A sum of lists contains their tensors.
        return set().union(*(passed_by(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)))
    known = (ast.Name, ast.Attribute, ast.Subscript, ast.Starred, ast.Call, ast.IfExp, ast.BoolOp, ast.Constant)
    return shared_by(node, calls=True) if isinstance(node, known) else set(Read(node).loads)


__all__ = [
    "Aliases",
    "Read",
    "aliases_of",
    "divided",
    "evaluated_before",
    "evaluated_once",
    "is_activation",
    "is_definition",
    "is_norm",
    "is_self",
    "is_simple",
    "reads_old",
    "rebinds",
    "shared_by",
]
