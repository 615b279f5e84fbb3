"""Finds expressions in the source of a model that look like a chain: a sequence of operations for one kernel.

Scripts use this module to measure how many chains the search of `patch` (`oxiwarp.patching.rewrite`) misses. This
module therefore shares no code with that search, which finds only chains that a kernel can compute. The rules here are
few and imprecise, because they rely only on operators and names in the source.

| kind | rule |
| --- | --- |
| gate | a sum with a term that is a product, with a name that contains "gate" |
| modulation | a product with a factor `1 + x` |
| tanh gate | a product with a factor `tanh(x)` |
| activation | a product with a factor that calls an activation |
| norm of a sum | the call of a norm whose argument is a sum of two values |
| norm of q or k | the call of an attribute such as `norm_q` or `k_norm` |
| rotary embedding | the call of a function with "rot" or "rope" in its name, except for functions that make tables |

Before a rule is applied, a variable is replaced by the value of its last assignment in the function, in the
order of the lines. Assignments in another branch of an `if` are ignored. A variable whose last assignment is
in a loop is not replaced after the loop.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GATE, MODULATION, TANH = "gate", "modulation", "tanh gate"
ACTIVATION, SUM_NORM, QK_NORM, ROTARY = "activation", "norm of a sum", "norm of q or k", "rotary embedding"
KINDS = (GATE, MODULATION, TANH, ACTIVATION, SUM_NORM, QK_NORM, ROTARY)

ACTIVATIONS = {
    "act",
    "act2fn",
    "activation",
    "gelu",
    "mish",
    "nonlinearity",
    "relu",
    "relu2",
    "sigmoid",
    "silu",
    "swish",
}
VIEWS = {"bfloat16", "contiguous", "expand", "flatten", "float", "half", "reshape", "squeeze", "to", "transpose"}
VIEWS |= {"type_as", "unsqueeze", "view", "clip"}
TABLES = {"build", "compute", "create", "freqs", "get", "init", "make", "precompute", "prepare", "set"}
"""First words in the names of functions that make the tables of a rotary embedding."""
INTEGERS = re.compile(
    r"^[bcijkmnst]$|idx|index|num|len|size|offset|count|shape|dim$|step|epoch|layer_id", re.IGNORECASE
)
"""Pattern for the names of integer variables."""
QK = re.compile(
    r"(^|_)(qk?|k|query|key|queries|keys)_?(layer_?)?norm\d*$|norm_?(added_)?(q|k|query|key)(_|\d|$)", re.IGNORECASE
)
SHAPES = {"arange", "expand", "full", "ones", "range", "repeat", "reshape", "view", "zeros"}
"""Names of functions whose arguments are integers."""
LEVELS = 4
"""Maximum number of variables that are replaced by their values, one after the other."""

Place = tuple[int, int, int, int]
"""First line, first column, last line and last column of an expression in its file."""


@dataclass(frozen=True)
class Loose:
    """An expression that looks like a chain (a sequence of operations for one kernel)."""

    kind: str
    owner: str
    """Name of the class and of the function that contain the expression."""
    file: str
    line: int
    end: int
    source: str
    whole: Place
    """Position of the expression that a kernel must compute."""
    total: Place | None = None
    """Position of the sum, if the chain is the norm of a sum."""
    part: Place | None = None
    """Position of the product with the gate, or of the sum before a norm. It may be in an earlier
    assignment."""

    @property
    def in_method(self) -> bool:
        """Whether the expression is in a method of a class."""
        return "." in self.owner


def place(node: ast.expr) -> Place:
    """Return the position of an expression in its file."""
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def words(name: str) -> list[str]:
    """Split a name into words in lower case. For example, `applyRotary_emb` gives apply, rotary and emb."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+", name)]


def is_rotary(name: str) -> bool:
    """Return whether the name is the name of a rotary embedding."""
    return any(re.match(r"rot(?!ec)|m?rope\d?$|ropes?$", word) for word in words(name))


def name_of(called: ast.expr) -> str:
    """Return the last component of the name of the called function, such as `silu` for `F.silu`."""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def is_sum(node: ast.AST | None) -> bool:
    """Return whether the node is a sum of two values that are not constants."""
    both = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    return both and not any(isinstance(part, ast.Constant | ast.JoinedStr) for part in (node.left, node.right))


def is_product(node: ast.AST | None) -> bool:
    """Return whether the node is a product."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def stripped(node: ast.expr) -> ast.expr:
    """Return the expression without the casts, views and subscripts around it."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
            node = node.func.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return node


class Function:
    """A function or a method of a file."""

    def __init__(self, node: ast.FunctionDef, owner: str, file: str) -> None:
        self.node, self.owner, self.file = node, owner, file
        self.first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
        self.last = node.end_lineno or node.lineno
        self.around: dict[int, dict[ast.stmt, str]] = {}
        """For each line: the statements that contain it, and the field of each statement, such as
        "orelse"."""
        self.enter(node.body, {})
        self.values: dict[str, list[tuple[int, ast.expr | None]]] = {}
        """For each variable: the assigned values, with the last line of each assignment. None is an unknown
        value."""
        for statement, part in self.parts():
            self.define(statement, part)

    def enter(self, body: list[ast.stmt], around: dict[ast.stmt, str]) -> None:
        """Record which statements contain each line of a list of statements."""
        for statement in body:
            for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                self.around[line] = around
            for name in ("body", "orelse", "finalbody"):
                self.enter(getattr(statement, name, []), {**around, statement: name})

    def reaches(self, first: int, line: int) -> bool:
        """Return whether line `line` may read a variable that line `first` assigned.

        The result is False if the two lines are in different branches of an `if`.
        """
        own = self.around.get(line, {})
        return all(name == own.get(statement, name) for statement, name in self.around.get(first, {}).items())

    def leaves_loop(self, first: int, line: int) -> bool:
        """Return whether line `first` is in a loop that does not contain the line `line`."""
        return any(isinstance(one, ast.For | ast.While) for one in self.around[first].keys() - self.around[line].keys())

    def parts(self) -> Iterator[tuple[ast.stmt, ast.AST]]:
        """Yield the syntax nodes of the function, each with the innermost statement that contains it. Skip
        inner functions and classes."""
        pending: list[tuple[ast.stmt, ast.AST]] = [(part, part) for part in reversed(self.node.body)]
        while pending:
            statement, node = pending.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            yield statement, node
            for child in reversed(list(ast.iter_child_nodes(node))):
                pending.append((child if isinstance(child, ast.stmt) else statement, child))

    def define(self, statement: ast.stmt, node: ast.AST) -> None:
        """Record the value of a variable that the node assigns."""
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Store):
            return
        value = None
        if isinstance(statement, ast.Assign) and node in statement.targets:
            value = statement.value
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add | ast.Mult):
            value = ast.BinOp(ast.Name(node.id, ast.Load()), statement.op, statement.value)
            ast.fix_missing_locations(ast.copy_location(value, statement))
        end = statement.lineno if value is None else statement.end_lineno or statement.lineno
        self.values.setdefault(node.id, []).append((end, value))

    def value(self, node: ast.expr, line: int, levels: int = LEVELS) -> ast.expr:
        """Return the value of an expression before line `line`, without casts and views. If the expression is
        a variable, return the expression that was assigned to it."""
        node = stripped(node)
        if isinstance(node, ast.Name) and levels:
            before = [item for item in self.values.get(node.id, []) if item[0] < line and self.reaches(item[0], line)]
            if before and before[-1][1] is not None and not self.leaves_loop(before[-1][0], line):
                at, value = before[-1]
                return self.value(value, at, levels - 1)
        return node

    def loose(self) -> Iterator[Loose]:
        """Yield the expressions of the function that look like a chain (a sequence of operations for one
        kernel)."""
        numbers: set[int] = set()
        for statement, node in self.parts():
            if isinstance(node, ast.Subscript):
                numbers |= {id(part) for part in ast.walk(node.slice)}
            if isinstance(node, ast.Call) and name_of(node.func) in SHAPES:
                numbers |= {id(part) for argument in node.args for part in ast.walk(argument)}
            if isinstance(statement, ast.AugAssign) and node is statement:
                if isinstance(node.op, ast.Add) and (product := self.gated(node.value, node.lineno)):
                    yield self.made(GATE, node, place(node.value), part=place(product))
            elif id(node) in numbers:
                continue
            elif isinstance(node, ast.BinOp):
                yield from (self.made(kind, node, place(node)) for kind in self.kinds_of_product(node))
                terms = (node.left, node.right) if is_sum(node) else ()
                if product := next(filter(None, (self.gated(term, node.lineno) for term in terms)), None):
                    yield self.made(GATE, node, place(node), part=place(product))
            elif isinstance(node, ast.Call):
                yield from self.calls(statement, node)

    def made(
        self,
        kind: str,
        node: ast.stmt | ast.expr,
        whole: Place,
        total: Place | None = None,
        part: Place | None = None,
    ) -> Loose:
        """Return a `Loose` object (a possible chain) for an expression. The source text in it is cut after
        100 characters."""
        source = " ".join(ast.unparse(node).split())
        end = node.end_lineno or node.lineno
        return Loose(kind, self.owner, self.file, node.lineno, end, source[:100], whole, total, part or total)

    def gated(self, term: ast.expr, line: int) -> ast.expr | None:
        """Return the product if `term` is a product of a gate and a tensor, or None. `term` may be a variable
        with this value."""
        product = self.value(term, line)
        names = [getattr(part, "id", getattr(part, "attr", "")).lower() for part in ast.walk(product)]
        known = any("gate" in name and not re.search("gate_?(up|proj)", name) for name in names)
        return product if is_product(product) and known else None

    def kinds_of_product(self, node: ast.BinOp) -> Iterator[str]:
        """Yield the kinds of chains that the product looks like, such as a modulation."""
        if not isinstance(node.op, ast.Mult):
            return
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            value = self.value(factor, node.lineno)
            if isinstance(other, ast.Constant | ast.UnaryOp):
                continue
            if is_one_plus(value) and not INTEGERS.search(name_of(stripped(other))):
                yield MODULATION
            if isinstance(value, ast.Call):
                called = name_of(value.func)
                if called == "tanh":  # Skip `cap * tanh(x / cap)`, which limits logits and is no gate.
                    if "cap" not in ast.unparse(other):
                        yield TANH
                elif ACTIVATIONS & set(words(called)):
                    if not isinstance(other, ast.Attribute):  # an attribute is a number, not a tensor
                        yield ACTIVATION
                else:
                    continue
                return

    def calls(self, statement: ast.stmt, node: ast.Call) -> Iterator[Loose]:
        """Yield a `Loose` object (a possible chain) if the call looks like operations that one kernel could
        compute.

        Examples are the norm of a sum and a rotary embedding.
        """
        called = name_of(node.func)
        if isinstance(node.func, ast.Attribute) and QK.search(called):
            yield self.made(QK_NORM, node, place(node))
        elif node.args and re.search(r"(?<!vector_)norm(?!al)|^ln_?\w?$", called.lower()) and called[-1] != "_":
            total = self.value(node.args[0], node.lineno)
            if is_sum(total):
                yield self.made(SUM_NORM, node, place(node), place(total))
        elif is_rotary(called) and node.args and self.is_rotation(statement, called):
            yield self.made(ROTARY, node, place(node))
        elif called == "addcmul" and "gate" in ast.unparse(node):
            yield self.made(GATE, node, place(node))

    def is_rotation(self, statement: ast.stmt, called: str) -> bool:
        """Return whether a call of a rotary embedding function rotates a tensor. Calls that only make cosine
        and sine tables do not.

        If a rotary embedding function calls another one, only the outer call counts.
        """
        first, *rest = words(called)
        if first in TABLES or any(is_rotary(part) or "Embed" in part for part in self.owner.split(".")):
            return False
        if {"apply", "rotate"} & {first, *rest}:
            return True
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        names = [words(part.id) for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        if any({"cos", "sin"} & set(name) for name in names):
            return False
        return any({"q", "k", "query", "key", "queries", "keys"} & set(name) for name in names)


def factors_of(node: ast.expr) -> list[ast.expr]:
    """Return the factors of a product, or [] for another expression."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return []
    return [part for side in (node.left, node.right) for part in (factors_of(side) or [side])]


def is_one_plus(node: ast.expr) -> bool:
    """Return whether the node is `1 + x` and `x` looks like a tensor.

    `1 + tanh(x)`, `1 + erf(x)` and the polynomial `1 + 0.044715 * x * x` give False, because they are parts
    of activation functions.
    """
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    for one, x in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, ast.Constant) and type(one.value) in (int, float) and one.value == 1:
            if any(isinstance(factor, ast.Constant) for factor in factors_of(x)):
                return False
            name = name_of(stripped(x)) or (name_of(x.func) if isinstance(x, ast.Call) else "")
            return not INTEGERS.search(name or "1") and name not in ("tanh", "erf", "exp", "sqrt")
    return False


@functools.cache
def functions_of(path: str, file: str) -> dict[int, Function]:
    """Map the line number of each function in the Python file at `path` to the function. The functions get
    `file` as the name of their file, for the output.
    """
    found: dict[int, Function] = {}

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                function = Function(child, f"{owner}{child.name}", file)
                found[function.first] = function
                visit(child, function.owner + "/")
            else:
                visit(child, f"{owner}{child.name}." if isinstance(child, ast.ClassDef) else owner)

    visit(ast.parse(Path(path).read_text()), "")
    return found


@functools.cache
def loose_in(path: str, file: str, first: int) -> tuple[Loose, ...]:
    """Return the expressions that look like chains, in the function that starts in line `first` of the file
    at `path`.

    A chain is a sequence of operations for one kernel.
    """
    function = functions_of(path, file).get(first)
    return () if function is None else tuple(function.loose())
