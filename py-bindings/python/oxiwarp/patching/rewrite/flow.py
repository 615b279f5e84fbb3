"""Follows values through statements that run one after the other.

A block is a list of statements that run in order, such as a function's body or the body of an `if`. A statement
`name = value` of a block is a definition. Its value may be computed at a later statement of the same block, if the
name is not read anywhere else, and if no statement in between can change the value.
"""

import ast
import copy
from collections.abc import Iterator
from typing import Any

from .method import PREFIX
from .names import FUNCTIONS, METHODS, is_activation, is_kernel, is_norm, is_self

Aliases = tuple[dict[str, set[str]], dict[str, set[str]]]


class Read(ast.NodeVisitor):
    """Collects what an expression or a statement reads, writes and calls."""

    def __init__(self, node: ast.AST | None) -> None:
        self.loads: list[str] = []
        self.stores: set[str] = set()
        self.effects: bool = False
        """Whether the code may run other code than torch operations without side effects."""
        self.changed: set[str] = set()
        """Names of tensors that the code changes in place, as far as it is known. `effects` is true for all of them."""
        self.passed: set[str] = set()
        """Names of tensors whose memory a called function with possible side effects gets."""
        self.leaves: bool = False
        """Whether the code may skip the code after it."""
        if node is not None:
            self.visit(node)

    def include(self, other: "Read") -> None:
        """Add what another piece of code reads, writes and calls."""
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
        # `self.chunk` is a module or a method of the class.
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
            self.loads.append("self")  # `self.norm(x)` reads no tensor of `self`
        else:
            self.visit(called)
        for child in (*node.args, *node.keywords):
            self.visit(child)

    def visit_kernel(self, node: ast.Call) -> None:
        """Record the operands of a chain that is rewritten. The original expression computes only these."""
        for own in node.args:
            read = Read(own)
            self.loads += read.loads
        for keyword in node.keywords:
            self.visit(keyword.value)

    def change(self, node: ast.expr) -> None:
        """Record that the code changes the tensor `node` in place."""
        self.changed |= set(Read(node).loads)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Record an attribute of `self`, and an assignment to an attribute."""
        if is_self(node.value):
            self.loads.append(f"self.{node.attr}")
        self.effects |= not isinstance(node.ctx, ast.Load)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Record an assignment to an element."""
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
        """Treat all other nodes that may run code as side effects."""
        self.effects = True
        self.generic_visit(node)

    def leave(self, node: ast.AST) -> None:
        """Record a statement that skips the next one. A `raise` does not count: after it, the method has no result."""
        self.leaves = True
        self.other(node)

    visit_Return = visit_Break = visit_Continue = leave

    def visit_Delete(self, node: ast.Delete) -> None:
        """Record a statement `del name`, which needs the variable."""
        self.effects = True
        self.loads += [target.id for target in node.targets if isinstance(target, ast.Name)]
        self.generic_visit(node)

    def named(self, node: Any) -> None:
        """Record a name that is no node: that of a pattern of `match`, or of `except ... as`."""
        self.stores |= {name for name in (node.name if hasattr(node, "name") else node.rest,) if name}
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler = named

    def visit_alias(self, node: ast.alias) -> None:
        """Record an imported name."""
        self.stores.add((node.asname or node.name).partition(".")[0])

    visit_Yield = visit_YieldFrom = visit_Await = visit_NamedExpr = visit_Global = visit_Nonlocal = other
    visit_Raise = visit_Assert = visit_Import = visit_ImportFrom = other

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Record a nested function. The names that it reads may be read at any time."""
        self.effects = True
        self.stores.add(node.name)
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Record a nested function."""
        self.effects = True
        self.generic_visit(node)


def rebinds(statement: ast.stmt, name: str) -> bool:
    """Whether the statement always assigns the variable `name`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    nodes = [node for target in targets for node in ([target, *getattr(target, "elts", ())])]
    return any(isinstance(node, ast.Name) and node.id == name for node in nodes)


def reads_old(statement: ast.stmt, name: str) -> bool:
    """Whether a statement may read the value that the variable `name` has before the statement."""
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
    """Split `name = value` into the calls with side effects and the operations on their results, or return None.

    Return the value, in which variables stand for the calls, and a statement that assigns these variables. Products,
    casts, activations and norms have no side effects.
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
    """Whether a statement is `name = value`."""
    return (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    )


def is_simple(node: ast.stmt) -> bool:
    """Whether the statement contains no other statements."""
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr)


def evaluated_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that Python evaluates exactly once: no branch of `a if b else c`, no `lambda`."""
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
    """Return the parts of a statement that Python evaluates before it reads the variable `name`, or None without it."""
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
    """Return two maps from a variable to the variables that may share its memory.

    In the first one, these are variables and views of them. In the second one, also results of calls, because a module
    may return its argument.
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
                continue  # the tensors in the result of a module are different tensors
            names |= shared
            group = set().union(names, *(groups.get(name, set()) for name in names))
            groups.update(dict.fromkeys(group, group))
        made.append(groups)
    return made[0], made[1]


def shared_by(node: ast.AST | None, calls: bool) -> set[str]:
    """Return the variables whose memory the value of an expression may share. `calls` is as for `aliases_of`."""
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
    """Return the variables whose memory a function can change if the expression is its argument."""
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
        return set()
    if isinstance(node, ast.BinOp | ast.Tuple | ast.List):  # a sum of lists contains their tensors
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
