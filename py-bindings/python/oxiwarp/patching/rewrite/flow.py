"""Follows values through statements that run one after the other.

A block is a list of statements that run in order, such as a function's body or the body of an `if`. A statement
`name = value` of a block is a definition. Its value may be computed at a later statement of the same block, if the
name is not read anywhere else, and if no statement in between can change the value.
"""

import ast
from collections.abc import Iterator

# fmt: off
METHODS = frozenset((
    "chunk", "clone", "contiguous", "detach", "dim", "expand", "expand_as", "flatten", "float", "get", "items", "keys",
    "numel", "permute", "repeat_interleave", "reshape", "sigmoid", "size", "split", "squeeze", "tanh", "to",
    "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "values", "view",
))
"""Methods that neither change a tensor nor run other modules."""
FUNCTIONS = frozenset((
    "cat", "chunk", "float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "range", "tanh",
    "tuple", "zip",
))
"""Functions with the same property, also as attributes of a module such as `torch.cat`."""
# fmt: on


def is_norm(called: ast.expr) -> bool:
    """Whether a called module is a norm, according to its name. A norm has no side effects."""
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return "norm" in name.lower() or name in ("ln", "ln1", "ln2")


class Read(ast.NodeVisitor):
    """Collects what an expression or a statement reads, writes and calls."""

    def __init__(self, node: ast.AST | None) -> None:
        self.loads: list[str] = []
        self.stores: set[str] = set()
        self.effects: bool = False
        """Whether the code may run other code than torch operations without side effects."""
        if node is not None:
            self.visit(node)

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
        known = known or (isinstance(called, ast.Name) and called.id in FUNCTIONS) or is_norm(called)
        self.effects |= not known
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Record an assignment to an attribute."""
        self.effects |= not isinstance(node.ctx, ast.Load)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Record an assignment to an element."""
        self.effects |= not isinstance(node.ctx, ast.Load)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Record a statement such as `x += y`, which changes the tensor `x`."""
        self.effects = True
        if isinstance(node.target, ast.Name):
            self.loads.append(node.target.id)
        self.generic_visit(node)

    def other(self, node: ast.AST) -> None:
        """Treat all other nodes that may run code as side effects."""
        self.effects = True
        self.generic_visit(node)

    visit_Yield = visit_YieldFrom = visit_Await = visit_NamedExpr = visit_Delete = visit_Global = visit_Nonlocal = other
    visit_Raise = visit_Return = visit_Break = visit_Continue = visit_Assert = visit_Import = visit_ImportFrom = other

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Record a nested function. The names that it reads may be read at any time."""
        self.effects = True
        self.stores.add(node.name)
        self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Record a nested function."""
        self.effects = True
        self.generic_visit(node)


def is_definition(statement: ast.stmt) -> bool:
    """Whether a statement is `name = value`."""
    return (
        isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    )


class Block:
    """The statements of a block, with what each of them reads and writes."""

    def __init__(self, statements: list[ast.stmt], outside: list[str]) -> None:
        self.statements = statements
        self.outside = outside
        """Names that the function reads outside of this block. A name that a loop reads again is one of them."""
        self.reads = [Read(statement) for statement in statements]

    def update(self, at: int, statement: ast.stmt) -> None:
        """Put another statement into the place of a statement."""
        self.statements[at] = statement
        self.reads[at] = Read(statement)

    def defined(self, name: str, at: int) -> int | None:
        """Return the index of the last statement `name = value` before statement `at`, or None if it is not one."""
        for index in range(at - 1, -1, -1):
            if name in self.reads[index].stores:
                return index if is_definition(self.statements[index]) else None
        return None

    def used_once(self, name: str, first: int, at: int) -> bool:
        """Whether the value that statement `first` gives to `name` is read once, and only by statement `at`."""
        if self.reads[at].loads.count(name) != 1:
            return False
        for index in range(first + 1, len(self.statements)):
            if index != at and name in self.reads[index].loads:
                return False
            if index >= at and name in self.reads[index].stores and isinstance(self.statements[index], ast.Assign):
                return True
        return name not in self.outside

    def movable(self, value: ast.AST, first: int, last: int) -> bool:
        """Whether `value` gives the same result before statement `first` as after statement `last`.

        Both statements and those in between are looked at: none may assign a name that `value` reads. If `value` has
        side effects, all of them must be free of side effects. Otherwise, no statement with side effects may read a
        tensor that `value` reads, because it might change the tensor in place.
        """
        own = Read(value)
        names = set(own.loads) - {"self", "torch"}
        for read in self.reads[first : last + 1]:
            if names & read.stores:
                return False
            if read.effects and (own.effects or names & set(read.loads)):
                return False
        return True

    def expanded(self, name: str, at: int) -> ast.expr | None:
        """Return the value of the variable `name` if statement `at` may compute it in the place of its definition."""
        first = self.defined(name, at)
        if first is None or not self.used_once(name, first, at):
            return None
        statement = self.statements[first]
        assert isinstance(statement, ast.Assign)
        return statement.value if self.movable(statement.value, first + 1, at - 1) else None


def blocks(tree: ast.FunctionDef) -> Iterator[Block]:
    """Yield the blocks of a function, inner blocks first. Nested functions are left out."""

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

    for statements in list(inner(tree.body)):
        yield Block(statements, outside_of(tree, statements))


def outside_of(tree: ast.FunctionDef, statements: list[ast.stmt]) -> list[str]:
    """Return the names that the function reads outside of a block, or in a loop that contains the block."""
    own = {id(node) for statement in statements for node in ast.walk(statement)}
    again: set[int] = set()
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While):
            inside = {id(node) for node in ast.walk(loop)}
            if id(loop) not in own and own <= inside:
                again |= own
    return [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and (id(node) not in own or id(node) in again)
    ]


__all__ = ["Block", "Read", "blocks", "is_norm"]
