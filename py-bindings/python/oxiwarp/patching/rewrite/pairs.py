"""Finds pairs in a method: a sum, and the norm of this sum. One kernel may compute both."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .blocks import Block
from .flow import Read, evaluated_once, is_simple, shared_by
from .method import PREFIX
from .patterns import MODULATED, NORM, Chain, Finder, walk

NORM_OF_SUM = "norm_of_sum"


@dataclass
class Pair:
    """A sum and the norm of this sum, which one kernel may compute."""

    total: Chain
    norm: Chain
    variable: str
    """Name of the variable with the sum."""
    last: int
    """Index of the statement that contains the norm."""
    early: bool
    """If True, the kernel runs at the statement of the sum. Otherwise it runs just before the statement of
    the norm."""
    kept: bool = False
    """Whether the terms of the sum are still computed at the statement of the sum, if the kernel runs
    later."""


def norms_in(block: Block, at: int, pattern: str, variable: str, space: Mapping[str, Any]) -> Iterator[Chain]:
    """Yield the norms of the variable `variable` in statement `at`."""
    statement = block.statements[at]
    if not is_simple(statement):
        return
    inner: set[int] = set()  # A separate kernel computes a norm with a modulation.
    for node in evaluated_once(statement):
        if not isinstance(node, ast.expr):
            continue
        finder = Finder(block, at, space, split=False)
        if pattern == NORM and (chain := finder.find(node, MODULATED)):
            inner |= {id(part) for part in walk(chain)}
        if id(node) not in inner and (norm := finder.find(node, pattern)):
            x = norm.operands["x"]
            if isinstance(x, ast.Name) and x.id == variable:
                yield norm


def reads_sum(node: ast.expr, variable: str) -> bool:
    """Return whether the expression `node` is `variable`, which contains a sum, or `variable.dtype`."""
    if isinstance(node, ast.Attribute) and node.attr == "dtype":
        node = node.value
    return isinstance(node, ast.Name) and node.id == variable


def placed(block: Block, at: int, last: int, total: Chain, norm: Chain) -> Pair | None:
    """Return the `Pair` of the sum in the statement with index `at` and the norm in the statement with index
    `last`.

    One kernel may compute both, either in the first or in the second of these statements. If either would change the
    result of the method, return None.
    """
    statement = block.statements[at]
    assert isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    variable = statement.targets[0].id
    others = [node for node in norm.operands.values() if not reads_sum(node, variable)]
    names = {name for node in others for name in Read(node).loads}
    if variable in names or any(Read(node).effects for node in others):
        return None
    removed = {block.defined(name, last) for name in norm.used()}
    between = [index for index in range(at + 1, last) if index not in removed]
    if None in removed or any(variable in block.reads[index].stores for index in between):
        return None
    reads, own = [block.reads[index] for index in between], Read(None)
    own.loads = [*names, variable]
    if block.independent(own, reads):
        return Pair(total, norm, variable, last, early=True)
    of_sum = Read(statement.value)
    if any(variable in read.loads for read in reads) or not block.independent(of_sum, reads, kept=True):
        return None
    return Pair(total, norm, variable, last, early=False, kept=not block.independent(of_sum, reads))


def keep_terms(statement: ast.stmt, pair: Pair) -> tuple[ast.stmt, list[ast.stmt]]:
    """Change `statement`, which computes a sum and its norm, so that it reads the terms of the sum from new temporary
    variables.

    Return a statement that assigns the terms to these variables, and a list with a statement that later sets
    the variables to None.
    """
    assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
    terms = [word for word in statement.value.keywords if word.arg in pair.total.operands]
    index = ast.unparse(statement.value.args[0]).strip("(").partition(",")[0]
    names, values = [f"{PREFIX}{word.arg}_{index}" for word in terms], [word.value for word in terms]
    for word, name in zip(terms, names, strict=True):
        word.value = ast.copy_location(ast.Name(name, ast.Load()), word.value)
    store: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
    nothing: list[ast.expr] = [ast.Constant(None) for _ in names]
    before = ast.Assign([ast.Tuple(store, ast.Store())], ast.Tuple(values, ast.Load()))
    after = ast.Assign([ast.Tuple(list(store), ast.Store())], ast.Tuple(nothing, ast.Load()))
    return before, [ast.copy_location(after, statement)]


def is_modulated_later(block: Block, at: int, norm: ast.expr, space: Mapping[str, Any]) -> bool:
    """Return whether a later statement modulates the result of `norm`, so that one kernel may compute norm
    and modulation. `norm` is in the statement with index `at`."""
    for later in range(at + 1, len(block.statements)):
        if is_simple(block.statements[later]):
            for node in evaluated_once(block.statements[later]):
                found = isinstance(node, ast.expr) and Finder(block, later, space).find(node, MODULATED)
                if found and any(part is norm for part in walk(found)):
                    return True
    return False


def may_join(total: Chain, norm: Chain) -> bool:
    """Return whether the other operands of a norm, such as scale and shift, may be computed before its argument, which
    is a sum.

    An operand with side effects must not read a term of the sum, because evaluating the operand might change the term.
    """
    terms = set().union(*(shared_by(node, calls=False) for node in total.operands.values())) - {"self"}
    others = [Read(node) for name, node in norm.operands.items() if name != "x"]
    return not any(read.effects and set(read.loads) & terms for read in others)


def joined(total: Chain, norm: Chain) -> Chain:
    """Combine a sum and its norm into one `Chain` (an expression that one kernel may compute).

    In the combined `Chain`, the names of the norm's operands start with "norm_".
    """
    others = {f"norm_{name}": node for name, node in norm.operands.items() if name != "x"}
    return Chain(
        NORM_OF_SUM,
        norm.node,
        total.operands | others,
        {},
        norm.inlined | total.inlined,
        norm.names | total.names,
        norm.functions | total.functions,
        norm.kept | total.kept,
    )


__all__ = ["Pair", "is_modulated_later", "joined", "keep_terms", "may_join", "norms_in", "placed", "reads_sum"]
