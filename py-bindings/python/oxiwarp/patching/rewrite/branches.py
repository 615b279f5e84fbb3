"""Moves statements into the branches of an `if`, so that a sum and the norm of the sum are in one branch.

The statements after an `if` may run at the end of each branch. The statements before an `if` may run at the start of
each branch, if the condition does not depend on them. A method is rewritten from the changed source if this allows one
kernel to compute operations together that no kernel computed together before.
"""

import ast
import copy
from collections.abc import Iterator
from types import FunctionType

from .expressions import is_norm_call, is_product, is_sum
from .flow import Read, is_definition, is_norm, is_simple
from .method import PREFIX, tree_of, undecorated
from .rewriter import Rewriting, Rewritten
from .views import scales_in

MOST_STATEMENTS = 12
"""Largest number of statements that are copied into the branches of an `if`."""
MOST_MOVES = 6
"""Largest number of `if` statements of a method whose branches get more statements."""

Place = tuple[int, int, int | None, int | None]
Links = set[tuple[Place, Place]]
"""Pairs of operations that one kernel computes, as their places in the file."""


def rewritten(own: FunctionType) -> Rewritten:
    """Rewrite a method."""
    rewriting = Rewriting(own)
    may_move = next(moves(rewriting.tree), None) is not None
    made = rewriting.run()
    if not may_move:
        return made
    tree, links = tree_of(undecorated(own)), links_of(made.tree)
    for _ in range(MOST_MOVES):
        for moved in moves(tree):
            better = Rewriting(own, copy.deepcopy(moved)).run()
            if (more := links_of(better.tree)) > links:
                tree, links, made = moved, more, better
                break
        else:
            break
    return made


def links_of(tree: ast.FunctionDef) -> Links:
    """Return the pairs of operations that one kernel of a rewritten method computes."""
    found: Links = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.startswith(PREFIX):
            bodies = [argument.body for argument in call.args if isinstance(argument, ast.Lambda)]
            nodes = [node for body in bodies for node in ast.walk(body) if isinstance(node, ast.BinOp | ast.Call)]
            places = [(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) for node in nodes]
            found |= {(one, other) for one in places for other in places}
    return found


def moves(tree: ast.FunctionDef) -> Iterator[ast.FunctionDef]:
    """Yield copies of a method in which the statements after or before an `if` are part of its branches."""
    if any(isinstance(node, ast.Nonlocal) for node in ast.walk(tree)):
        return
    for index, statements in enumerate(lists_of(tree)):
        for at, statement in enumerate(statements):
            if not isinstance(statement, ast.If):
                continue
            for first, last in ranges(statements, at):
                made = copy.deepcopy(tree)
                move(list(lists_of(made))[index], at, first, last)
                yield made


def move(statements: list[ast.stmt], at: int, first: int, last: int) -> None:
    """Move the statements from `first` to `last` without the `if` statement at `at` into its branches."""
    condition = statements[at]
    assert isinstance(condition, ast.If)
    before, after = statements[first:at], statements[at + 1 : last + 1]
    condition.body = [*before, *condition.body, *after]
    condition.orelse = [*copy.deepcopy(before), *condition.orelse, *copy.deepcopy(after)]
    statements[first : last + 1] = [condition]


def lists_of(tree: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements of a function, outer lists first. Nested functions are left out."""
    waiting = [tree.body]
    while waiting:
        statements = waiting.pop(0)
        yield statements
        for statement in statements:
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                waiting += [
                    held for name in ("body", "orelse", "finalbody") if (held := getattr(statement, name, None))
                ]
                waiting += [handler.body for handler in getattr(statement, "handlers", ())]


def ranges(statements: list[ast.stmt], at: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last statement of ranges that may become part of the branches of statement `at`."""
    condition = statements[at]
    assert isinstance(condition, ast.If)
    summed = {name for part in (*condition.body, *condition.orelse) for name in sums_in(part)}
    normed = {name for part in (*condition.body, *condition.orelse) for name in norms_of(part)}
    scales = {name for part in (*condition.body, *condition.orelse) for name in scales_in(part)}
    firsts = []
    for first in range(at - 1, max(at - MOST_STATEMENTS, -1), -1):
        if not is_simple(statements[first]) or not is_movable(statements[first:at], condition.test):
            break
        if sums := set(sums_in(statements[first])):
            firsts.append(first)
            summed |= sums
            if sums & normed:
                yield first, at
    for last in range(at + 1, min(at + MOST_STATEMENTS, len(statements))):
        if not is_simple(statements[last]):
            break
        if norms_of(statements[last]) & summed or scaled_norms(statements[last]) & scales:
            end = end_of(statements, at, last)
            yield from ((first, end) for first in (at, *firsts))
            break


def sums_in(statement: ast.stmt) -> Iterator[str]:
    """Yield the names of variables to which a statement, or a statement inside of it, assigns a sum."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign) and is_definition(node) and any(map(is_sum, ast.walk(node.value))):
            yield from Read(node.targets[0]).stores


def norms_of(statement: ast.stmt) -> set[str]:
    """Return the names of variables whose norm a statement, or a statement inside of it, computes."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and is_norm(node.func) and node.args]
    return {name for call in calls for name in Read(call.args[0]).loads}


def scaled_norms(statement: ast.stmt) -> set[str]:
    """Return the names of variables by which a statement multiplies a norm."""
    products = [node for node in ast.walk(statement) if isinstance(node, ast.BinOp) and is_product(node)]
    pairs = [pair for node in products for pair in ((node.left, node.right), (node.right, node.left))]
    return {name for norm, factor in pairs if is_norm_call(norm) for name in Read(factor).loads}


def end_of(statements: list[ast.stmt], at: int, last: int) -> int:
    """Return the index of the last statement that takes part in the chains of the statements from `at` to `last`.

    These are norms of variables that the statements assign, and products with the norms.
    """
    for index in range(last + 1, min(at + MOST_STATEMENTS, len(statements))):
        if not is_simple(statements[index]):
            break
        own = statements[at + 1 : index]
        normed = {name for part in own if norms_of(part) for name in Read(part).stores}
        stored = {name for part in statements[at + 1 : last + 1] for name in Read(part).stores}
        products = [part for part in ast.walk(statements[index]) if is_product(part)]
        if norms_of(statements[index]) & stored or any(set(Read(part).loads) & normed for part in products):
            last = index
    return last


def is_movable(statements: list[ast.stmt], test: ast.expr) -> bool:
    """Whether a condition has the same value before and after statements, and has no side effects."""
    own, reads = Read(test), [Read(statement) for statement in statements]
    if own.effects or any(set(own.loads) & read.stores for read in reads):
        return False
    return not any(read.effects for read in reads) or is_of_names(test)


def is_of_names(test: ast.expr) -> bool:
    """Whether a condition only asks which variables are None."""
    if isinstance(test, ast.BoolOp):
        return all(map(is_of_names, test.values))
    if isinstance(test, ast.UnaryOp):
        return is_of_names(test.operand)
    if not isinstance(test, ast.Compare) or not all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops):
        return False
    return all(isinstance(part, ast.Name | ast.Constant) for part in (test.left, *test.comparators))


__all__ = ["rewritten"]
