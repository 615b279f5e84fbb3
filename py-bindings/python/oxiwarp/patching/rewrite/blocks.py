"""Blocks of a method's source, and the variables that their statements use. A block is a list of statements that run
one after the other, such as the body of a loop.
"""

import ast
from collections.abc import Iterator

from .flow import (
    Aliases,
    Read,
    aliases_of,
    divided,
    evaluated_before,
    evaluated_once,
    is_definition,
    reads_old,
    rebinds,
)


class Block:
    """The statements of a block, such as a function body or a branch. For each statement, `reads` lists the variables
    that it reads and writes.
    """

    def __init__(self, statements: list[ast.stmt], outside: list[str], aliases: Aliases) -> None:
        self.statements = statements
        self.aliases = aliases
        self.outside = outside
        """Names that the function reads outside of this block. If the block is in a loop, the next iteration
        counts too."""
        self.reads = [Read(statement) for statement in statements]
        self.moved: dict[int, list[Read]] = {}
        """For a statement index: the reads and writes of the statements that will be inserted before this
        statement."""

    def update(self, at: int, statement: ast.stmt) -> None:
        """Replace statement `at` by another statement."""
        self.statements[at] = statement
        self.reads[at] = Read(statement)
        for read in self.moved.get(at, ()):
            self.reads[at].include(read)

    def move(self, first: int, last: int, statement: ast.stmt) -> None:
        """Record that `statement` replaces the statement with index `first`, but will be inserted before the
        statement with index `last`."""
        read = Read(statement)
        for at in (first, last):
            self.moved.setdefault(at, []).append(read)
            self.reads[at].include(read)

    def defined(self, name: str, at: int) -> int | None:
        """The statement with index `at` reads the variable `name`. Return the index of the statement that
        assigned this value.

        This is the last statement before `at` that assigns `name`. Return None if there is none, or if it
        does not have the form `name = value`.
        """
        for index in range(at - 1, -1, -1):
            if name in self.reads[index].stores:
                return index if is_definition(self.statements[index]) else None
        return None

    def used_once(self, name: str, first: int, at: int) -> bool:
        """Return whether the value that the statement with index `first` assigns to `name` is read only once,
        by the statement with index `at`."""
        read = (node for node in evaluated_once(self.statements[at]) if isinstance(node, ast.Name) and node.id == name)
        if self.reads[at].loads.count(name) != 1 or not any(isinstance(node.ctx, ast.Load) for node in read):
            return False
        for index in range(first + 1, len(self.statements)):
            statement = self.statements[index]
            if index != at and name in self.reads[index].loads:
                moved = any(name in read.loads for read in self.moved.get(index, ()))
                if moved or reads_old(statement, name):
                    return False
            if index >= at and rebinds(statement, name):
                return True
        return name not in self.outside

    def independent(self, own: Read, others: list[Read], kept: bool = False) -> bool:
        """Return whether a piece of code may move past `others` (other code), in either direction. `own` lists what the
        moved code reads and does. These conditions must be true:

        - The other code does not leave the block, for example by `return`.
        - The other code does not assign a name that the moved code reads. If `kept` is True, this is allowed.
        - If the moved code has side effects, the other code has no side effects.
        - If the other code has side effects, it does not change tensors that the moved code reads, or pass
          them to functions.
        """
        names = set(own.loads) - {"self", "torch"}
        near, far = (names.union(*(groups.get(name, ()) for name in names)) for groups in self.aliases)
        for read in others:
            if read.leaves or (names & read.stores and not kept):
                return False
            if read.effects and (own.effects or near & read.passed or far & read.changed):
                return False
        return True

    def expanded(self, name: str, at: int, split: bool = False) -> tuple[ast.expr, ast.stmt | None] | None:
        """Return the expression that defines the variable `name`, if the statement with index `at` may
        contain this expression instead of `name`. Otherwise return None.

        Also return a second result, which is usually None. If `split` is True, the definition may contain calls with
        side effects, which must stay in their place. The second result is then a statement with these calls, which must
        replace the definition. The returned expression reads the variables that this statement assigns.
        """
        first = self.defined(name, at)
        if first is None or not self.used_once(name, first, at):
            return None
        statement = self.statements[first]
        assert isinstance(statement, ast.Assign)
        before = [Read(part) for part in evaluated_before(self.statements[at], name) or ()]
        before += self.moved.get(at, [])
        others = [*self.reads[first + 1 : at], *before]
        if self.independent(Read(statement.value), others):
            return statement.value, None
        made = divided(statement) if split else None
        if made is None:
            return None
        value, kept = made
        own, stays = Read(value), Read(kept)
        # Ignore the calls in `value`, because they only call activations and norms. Also ignore the
        # assignments in `kept`, because `value` may read the assigned variables.
        own.effects, stays.stores = False, set()
        return made if self.independent(own, [stays, *others]) else None


def blocks(tree: ast.FunctionDef) -> Iterator[Block]:
    """Yield the blocks of a function, inner blocks first. Skip nested functions and classes."""

    def inner(statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for field in ("body", "orelse", "finalbody"):
                if held := getattr(statement, field, None):
                    yield from inner(held)
            for handler in getattr(statement, "handlers", ()):
                yield from inner(handler.body)
        yield statements

    aliases = aliases_of(tree)
    for statements in list(inner(tree.body)):
        yield Block(statements, outside_of(tree, statements), aliases)


def outside_of(tree: ast.FunctionDef, statements: list[ast.stmt]) -> list[str]:
    """Return the names that the function `tree` reads outside of the block `statements`, or anywhere in a
    loop that contains the block.

    If the block is one branch of an `if`, the other branch is ignored, because only one of the two runs. If the block
    is in a loop, the names that the block itself reads are included, because the next iteration reads them.
    """
    own = {id(node) for statement in statements for node in ast.walk(statement)}
    again: set[int] = set()
    others: set[int] = set()
    for outer in ast.walk(tree):
        if id(outer) in own or not isinstance(outer, ast.For | ast.While | ast.If):
            continue
        branches = [{id(node) for part in body for node in ast.walk(part)} for body in (outer.body, outer.orelse)]
        if not isinstance(outer, ast.If) and own <= branches[0] | branches[1]:
            again |= own
        for here, other in (branches, branches[::-1]):
            if isinstance(outer, ast.If) and own <= here:
                others |= other
    own |= others
    return [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and (id(node) not in own or id(node) in again)
    ]


__all__ = ["Block", "blocks"]
