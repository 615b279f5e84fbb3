"""Defers a sum until the norm of this sum, so that one kernel computes sum and norm.

A statement `x = x + y` becomes `x = later_sum(...)`. `later_sum` returns a `LaterSum`, a placeholder for a sum that is
not computed yet. The call that replaces the norm of `x` then computes sum and norm in one kernel. The norm may be in
another block, for example after an `if` that does not read `x`. If a statement before the norm reads `x`, or changes an
operand of the sum in place, `x = computed(x)` is inserted before this statement.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Any

from .expressions import is_norm_call, is_number, is_sum, is_value
from .flow import Aliases, Read, aliases_of, evaluated_before, evaluated_once, is_definition, is_simple
from .layers import loop_of
from .linears import without_linear
from .method import PREFIX
from .patterns import FACTOR_NORM, GATED, MODULATED, NORM, SUM, TANH_SUM, Chain, function_of
from .rotary_rewriter import COMPUTED

LATER, AFTER = "later_sum", "norm_of_later"
KEPT = ("device", "dtype", "ndim", "shape")
"""Attributes of a tensor that a `LaterSum` has too."""
Pending = dict[str, set[int]]
"""For each variable: the `id` of each statement whose deferred sum the variable may contain."""


class LaterSums:
    """Finds sums whose norm is in another block of the method, and rewrites the sums and the norms.

    If `opened` is True, the method is a layer in a loop of `layers.py`: its first argument may be a deferred sum of the
    previous layer, and it may return a deferred sum.
    """

    def __init__(self, tree: ast.FunctionDef, add: Callable[..., int], found: list[Any], opened: bool = False) -> None:
        self.tree, self.add, self.found = tree, add, found
        inner = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda) and node is not tree]
        self.captured = {name for node in inner for name in free_names(node)}
        """Variables that a nested function may read at any time."""
        self.terms: dict[int, set[str]] = {}
        """The variables that a sum reads, by the `id` of its statement."""
        self.useful: set[int] = set()
        """The `id` of each statement whose sum reaches a norm."""
        self.change = False
        names = [one.arg for one in tree.args.args][1:2] if opened else []
        self.parameters = [name for name in names if name not in self.captured]
        """The first parameter after `self` if it may contain a deferred sum. Otherwise the list is empty."""
        self.opens = False
        """Whether the method normalises a deferred sum that it got, or returns one."""
        self.aliases: Aliases = aliases_of(tree)

    def run(self) -> None:
        """Rewrite each sum whose value is later normalised. The first pass over the method finds these sums, and the
        second pass rewrites them.
        """
        self.terms[id(self.tree)] = set()
        self.walk(self.tree.body, {name: {id(self.tree)} for name in self.parameters})
        self.change = True
        if self.useful:
            self.walk(self.tree.body, {name: {id(self.tree)} for name in self.parameters})

    def walk(self, statements: list[ast.stmt], pending: Pending) -> Pending:
        """Follow the sums in `pending`, which are not computed yet, through a list of statements. Return the sums that
        may still be uncomputed after the last statement.
        """
        for statement in list(statements):
            at = next(index for index, one in enumerate(statements) if one is statement)
            if isinstance(statement, ast.If):
                self.flush(statements, at, pending, [name for name in pending if not may_test(statement.test, name)])
                branches = [self.walk(body, dict(pending)) for body in (statement.body, statement.orelse)]
                pending = {
                    name: set().union(*(one.get(name, ()) for one in branches))
                    for name in {name for one in branches for name in one}
                }
                continue
            if isinstance(statement, ast.Pass | ast.Raise):
                continue
            if self.parameters and (name := returned(statement)) in pending:
                self.useful |= pending.pop(name)
                self.opens = True
                continue
            if not is_simple(statement):
                self.flush(statements, at, pending, list(pending))
                pending = self.inside(statement)
                continue
            norms = {name: norm for name in pending if (norm := norm_of(statement, name)) is not None}
            read = Read(statement)
            if self.copies(statement, pending):
                continue
            late = [
                one for one in pending if one not in norms and (one in read.loads or self.changes(read, pending[one]))
            ]
            self.flush(statements, at, pending, late)
            for name, norm in norms.items():
                self.useful |= pending[name]
                self.opens |= id(self.tree) in pending[name]
                at = next(index for index, one in enumerate(statements) if one is statement)
                if self.change:
                    self.take(norm, name)
                self.flush(statements, at + 1, pending, [name] if name not in read.stores else [])
                pending.pop(name, None)
            for name in read.stores:
                pending.pop(name, None)
            if (name := self.sum_in(statement)) and (not self.change or id(statement) in self.useful):
                pending[name] = {id(statement)}
                self.terms.setdefault(id(statement), set(Read(statement).loads) - {"self", "torch"})
                if self.change:
                    self.defer(statement)
        return pending

    def inside(self, statement: ast.stmt) -> Pending:
        """Follow the sums in a statement that contains other statements. Return the sums that may be uncomputed after
        the statement: the result of the last layer, if the statement is a loop over layers."""
        loop = loop_of(statement)
        if (
            loop is not None
            and loop.variable not in self.captured
            and (not self.change or id(statement) in self.useful)
        ):
            self.terms[id(statement)] = set()
            if self.change:
                loop.open(lambda statements, at: self.flush(statements, at, {loop.variable: set()}, [loop.variable]))
                return {loop.variable: {id(statement)}}
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, None)
            if inner and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                rest = self.walk(inner, {})
                self.flush(inner, len(inner), rest, list(rest))
        known = loop is not None and id(statement) in self.terms and not self.change
        return {loop.variable: {id(statement)}} if known else {}  # type: ignore[union-attr]

    def copies(self, statement: ast.stmt, pending: Pending) -> bool:
        """Return whether a statement is `y = x`, where `x` may contain a deferred sum (one that is not computed yet).
        If so, record that `y` may also contain this sum.
        """
        value = statement.value if is_definition(statement) else None  # type: ignore[attr-defined]
        if not isinstance(value, ast.Name) or value.id not in pending:
            return False
        name: str = statement.targets[0].id  # type: ignore[attr-defined]
        if name in self.captured:
            return False
        pending[name] = pending[value.id]
        return True

    def changes(self, read: Read, sums: set[int]) -> bool:
        """Return whether a statement may change a tensor that is an operand of one of `sums`. `read` has the
        reads and side effects of the statement."""
        names = set().union(*(self.terms[one] for one in sums))
        near, far = (names.union(*(groups.get(name, ()) for name in names)) for groups in self.aliases)
        return bool(read.effects and (near & read.passed or far & read.changed))

    def sum_in(self, statement: ast.stmt) -> str:
        """If a statement assigns a sum to a variable, return the name of the variable. Otherwise return
        ""."""
        if not is_definition(statement):
            return ""
        assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        value, name = statement.value, statement.targets[0].id
        plain = is_sum(value) and all(is_value(part) and not is_number(part) for part in (value.left, value.right))  # type: ignore[attr-defined]
        gated = (is_call(value, GATED) or is_call(value, TANH_SUM)) and isinstance(value.args[0], ast.Constant)  # type: ignore[attr-defined]
        return name if (plain or gated or is_call(value, LATER)) and name not in self.captured else ""

    def defer(self, statement: Any) -> None:
        """Change a statement so that its sum is computed later."""
        value = statement.value
        if is_call(value, GATED) or is_call(value, TANH_SUM):
            value.func.id = PREFIX + LATER
            for word in value.keywords:  # The norm's kernel adds the branch to the sum.
                word.value = without_linear(word.value)
            return
        x, y = ast.Name("x", ast.Load()), ast.Name("y", ast.Load())
        own = function_of(["x", "y"], ast.BinOp(x, ast.Add(), y), set())
        args: list[ast.expr] = [ast.Constant(None), own, constant((SUM,))]
        words = [ast.keyword("x", value.left), ast.keyword("y", value.right)]
        statement.value = ast.copy_location(ast.Call(ast.Name(PREFIX + LATER, ast.Load()), args, words), value)

    def take(self, norm: ast.Call, name: str) -> None:
        """Change the call `norm` so that it also computes the sum in the variable `name`, which is not computed yet."""
        if is_call(norm, MODULATED) or is_call(norm, FACTOR_NORM):
            norm.func.id = PREFIX + AFTER  # type: ignore[attr-defined]
            chain = self.found[norm.args[0].value]  # type: ignore[attr-defined]
            both = "gated_residual_ada_norm" if not chain.factor else "residual_tanh_gated_rms_norm_modulated"
            chain.ops = (*chain.ops, both)
            return
        at = self.add(Chain(SUM, norm, {}), Chain(NORM, norm, {"norm": norm.func, "x": norm.args[0]}))
        module, x = ast.Name("norm", ast.Load()), ast.Name("x", ast.Load())
        own = function_of(["norm", "x"], ast.copy_location(ast.Call(module, [x], []), norm), set())
        norm.keywords = [ast.keyword("norm", norm.func), ast.keyword("x", norm.args[0])]
        norm.args = [ast.Constant(at), own, constant((NORM, False))]
        norm.func = ast.copy_location(ast.Name(PREFIX + AFTER, ast.Load()), norm)

    def flush(self, statements: list[ast.stmt], at: int, pending: Pending, names: list[str]) -> None:
        """Before the statement with index `at`, insert statements that compute the sums in the variables `names`, which
        are not computed yet.
        """
        for name in names:
            pending.pop(name)
            if self.change:
                value = ast.Call(ast.Name(COMPUTED, ast.Load()), [ast.Name(name, ast.Load())], [])
                near = statements[min(at, len(statements) - 1)]
                made = ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), near)
                statements.insert(at, ast.fix_missing_locations(made))


def returned(statement: ast.stmt) -> str:
    """If a statement returns a variable, return the name of the variable. Otherwise return ""."""
    value = statement.value if isinstance(statement, ast.Return) else None
    return value.id if isinstance(value, ast.Name) else ""


def constant(value: Any) -> ast.Constant:
    """Return a constant node. Its value may be a tuple."""
    return ast.Constant(value)


def is_call(node: ast.expr, op: str) -> bool:
    """Return whether the expression is a call of the function `op` in `calls.py`, which computes a rewritten
    expression."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == PREFIX + op


def norm_of(statement: ast.stmt, name: str) -> ast.Call | None:
    """Return the call in a statement that normalises the variable `name`, or None.

    Also return None if other code of the statement also reads the variable, or if code with side effects runs before
    the norm. In these cases, the sum cannot be computed together with the norm.
    """
    found = None
    for node in evaluated_once(statement):
        if not isinstance(node, ast.Call):
            continue
        x = node.args[0] if is_norm_call(node) else None
        if (is_call(node, MODULATED) or is_call(node, FACTOR_NORM)) and isinstance(node.args[0], ast.Constant):
            x = next((word.value for word in node.keywords if word.arg == "x"), None)
        if isinstance(x, ast.Name) and x.id == name:
            found = node
            break
    if found is None or sum(one == name for one in free_names(statement)) != 1:
        return None
    before = [part for part in evaluated_before(statement, name) or () if not isinstance(part, ast.Lambda)]
    return None if any(Read(part).effects for part in before) else found


def may_test(test: ast.expr, name: str) -> bool:
    """Return whether the condition `test` works if the variable `name` is a `LaterSum` (a placeholder for a
    sum that is not computed yet).

    The condition must have no side effects, and may read only those attributes of the variable that are in `KEPT`, such
    as `shape`.
    """
    kept = [node.value for node in ast.walk(test) if isinstance(node, ast.Attribute) and node.attr in KEPT]
    others = [node for node in ast.walk(test) if isinstance(node, ast.Name) and node.id == name]
    return not Read(test).effects and all(any(node is one for one in kept) for node in others)


def free_names(node: ast.AST) -> Iterator[str]:
    """Yield the variables that a piece of code reads, without the parameters of lambdas and functions in
    it."""
    if isinstance(node, ast.Lambda | ast.FunctionDef):
        own = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from free_names(default)
        for part in node.body if isinstance(node.body, list) else [node.body]:
            yield from (name for name in free_names(part) if name not in own)
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from free_names(child)


__all__ = ["AFTER", "LATER", "LaterSums", "returned"]
