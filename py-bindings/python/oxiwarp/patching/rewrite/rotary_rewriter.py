"""Finds calls of rotary functions in a method, and the norms whose results these calls rotate."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .blocks import Block
from .expressions import is_norm_call, is_product, is_value, without_cast
from .flow import Aliases, Read, aliases_of
from .head_norms import wideness
from .method import PREFIX
from .patterns import Chain

ROTARY, ROTARY_PAIR, ROTARY_PART = "rotary", "rotary_pair", "rotary_part"
ROTATIONS = tuple(PREFIX + name for name in (ROTARY, ROTARY_PAIR, ROTARY_PART))
DEFERRED, JOINED, COMPUTED, COMPUTED_PAIR = (
    PREFIX + name for name in ("deferred_norm", "joined", "computed", "computed_pair")
)
JOINED_PAIR = "joined_pair"
NAME = re.compile(r"rot|rope", re.IGNORECASE)
OTHER = re.compile(r"^rope$|half|get_|freq|build|compute|create|init|pad|prepare|inv|prot", re.IGNORECASE)
"""Pattern for names of functions that are not rotary functions: they compute cos and sin tables, or only a
step of a rotation, such as `rotate_half`."""
VIEWS = ("transpose", "unflatten")
"""Names of the tensor methods that the class `Deferred` (a tensor that is not computed yet) also has."""


def rotary_chain(node: ast.expr, space: Mapping[str, Any], local: frozenset[str]) -> Chain | None:
    """If `node` is a call of a rotary function, possibly with a cast of the result, return its `Chain`.
    Otherwise return None.

    A `Chain` is an expression that one kernel may compute. `space` contains the global variables of the
    method. `local` contains the names of functions that the method itself defines or imports. The operands of
    the `Chain` are the rotary function and all arguments except constants.
    """
    call, target = without_cast(node)
    if target is None and (chain := written_out(node)):
        return chain
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    name = call.func.id
    function = space.get(name)
    known = name in local or (callable(function) and not isinstance(function, type))
    if not known or not NAME.search(name) or OTHER.search(name):
        return None
    args = [*call.args, *(keyword.value for keyword in call.keywords)]
    if any(keyword.arg is None for keyword in call.keywords) or not args or not is_value(args[0]):
        return None
    parts = [arg.value if isinstance(arg, ast.Starred) else arg for arg in args]
    operands: dict[str, ast.expr] = {"function": call.func}
    operands |= {f"a{at}": part for at, part in enumerate(parts) if not isinstance(part, ast.Constant)}
    if len(operands) < 3:
        return None
    chain = Chain(ROTARY, node, operands)
    if target is not None:
        root = target.value if isinstance(target, ast.Attribute) else target
        if isinstance(root, ast.Name) and isinstance(args[0], ast.Name) and root.id == args[0].id:
            chain.inlined[id(root)] = args[0]
        else:
            operands["target"] = target
    return chain


def written_out(node: ast.expr) -> Chain | None:
    """If `node` is `x * cos + rotate_half(x) * sin`, return its `Chain`. Otherwise return None.

    A `Chain` is an expression that one kernel may compute. The operands of this `Chain` are `rotate_half`,
    `x`, `cos` and `sin`.
    """
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return None
    if not (is_product(node.left) and is_product(node.right)):
        return None
    assert isinstance(node.left, ast.BinOp) and isinstance(node.right, ast.BinOp)
    x, cos, call, sin = node.left.left, node.left.right, node.right.left, node.right.right
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or not isinstance(x, ast.Name):
        return None
    again = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if not isinstance(again, ast.Name) or again.id != x.id or "rotate" not in call.func.id.lower():
        return None
    if not all(isinstance(table, ast.Name) for table in (cos, sin)):
        return None
    chain = Chain(ROTARY, node, {"function": call.func, "a0": x, "a1": cos, "a2": sin})
    chain.inlined[id(again)] = x
    return chain


def local_functions(tree: ast.FunctionDef) -> frozenset[str]:
    """Return the names of functions that a method defines or imports exactly once and never assigns."""
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node is not tree]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            defined += [alias.asname or alias.name for alias in node.names]
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    arguments = {node.arg for node in ast.walk(tree.args) if isinstance(node, ast.arg)}
    return frozenset(name for name in defined if defined.count(name) == 1 and name not in stored | arguments)


def next_rotation(
    block: Block, at: int, first: Chain, local: frozenset[str], space: Mapping[str, Any]
) -> tuple[int, Chain] | None:
    """If the statement with index `at` rotates queries, and the next one rotates keys in the same way, return the index
    and the `Chain` (rotary call) of the next statement. Otherwise return None.

    Each of the two statements must assign its result to a variable. Their calls may differ only in the first
    operand, and no operand may have side effects.
    """
    index = at + 1
    while index < len(block.statements) and isinstance(block.statements[index], ast.Pass):
        index += 1
    own, other = assigned(block.statements[at]), None
    if index < len(block.statements):
        other = assigned(block.statements[index])
    second = None if other is None else rotary_chain(other[1], space, local)
    if own is None or second is None or list(first.operands) != list(second.operands):
        return None
    same = [ast.dump(chain.own()) for chain in (first, second)]
    rest = [[ast.dump(node) for name, node in chain.operands.items() if name != "a0"] for chain in (first, second)]
    reads = [Read(node) for chain in (first, second) for node in chain.operands.values()]
    if same[0] != same[1] or rest[0] != rest[1] or any(read.effects for read in reads):
        return None
    loads = [name for node in second.operands.values() for name in Read(node).loads]
    return None if own[0] in loads else (index, second)


class Part(NamedTuple):
    """A statement that rotates only some of the tokens of a variable, such as `x[:, n:] = rotary(x[:, n:],
    cos, sin)`."""

    variable: str
    chain: Chain
    dim: int
    """The index of the token dimension."""
    limits: tuple[ast.expr | None, ast.expr | None]
    """The index of the first rotated token, and the index after the last rotated token."""
    in_place: bool
    """Whether the statement writes into the tensor of the variable, instead of assigning a new tensor."""


def part_of(statement: ast.stmt, space: Mapping[str, Any], local: frozenset[str]) -> Part | None:
    """Return the `Part` (variable, token range and rotary call) of a statement in one of these forms. Return
    None for any other statement:

    - `x[:, n:] = rotary(x[:, n:], tables)`
    - `x = torch.cat([rotary(x[:, n:], tables), x[:, :n]], dim=1)`, also with the two tensors in the other
      order
    """
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Subscript):
        chain, kept = rotary_chain(value, space, local), None
    elif isinstance(target, ast.Name) and is_cat(value):
        assert isinstance(value, ast.Call) and isinstance(value.args[0], ast.List | ast.Tuple)
        if len(value.args[0].elts) != 2:
            return None
        first, second = value.args[0].elts
        chain, kept = rotary_chain(first, space, local), second
        if chain is None:
            chain, kept = rotary_chain(second, space, local), first
    else:
        return None
    own = None if chain is None else tokens_of(chain.operands["a0"])
    if chain is None or own is None or any(Read(node).effects for node in chain.operands.values()):
        return None
    variable, dim, lower, upper = own
    if kept is None:
        same = tokens_of(target)
        return Part(variable, chain, dim, (lower, upper), True) if same is not None and alike(own, same) else None
    rest = tokens_of(kept)
    dims = [*value.args[1:], *(keyword.value for keyword in value.keywords)]  # type: ignore[attr-defined]
    before = value.args[0].elts[0] is kept  # type: ignore[attr-defined]
    complement = (variable, dim, None, lower) if before else (variable, dim, upper, None)
    fits = rest is not None and alike(rest, complement) and (lower is not None) == before
    if not fits or not dims or not isinstance(dims[0], ast.Constant) or dims[0].value != dim:
        return None
    return Part(variable, chain, dim, (lower, upper), False) if variable == target.id else None  # type: ignore[union-attr]


Tokens = tuple[str, int, ast.expr | None, ast.expr | None]


def tokens_of(node: ast.expr) -> Tokens | None:
    """For a slice such as `x[:, a:]` or `x[:, :b]`, return the variable, the sliced dimension, the start and
    the end. Otherwise return None."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    if not parts or not all(isinstance(part, ast.Slice) and part.step is None for part in parts):
        return None
    *others, last = parts
    assert isinstance(last, ast.Slice)
    if any(part.lower or part.upper for part in others if isinstance(part, ast.Slice)):
        return None
    return (
        (node.value.id, len(others), last.lower, last.upper) if (last.lower is None) != (last.upper is None) else None
    )


def alike(a: Tokens, b: Tokens) -> bool:
    """Return whether two ranges of tokens are the same."""
    texts = [[None if node is None else ast.dump(node) for node in one[2:]] for one in (a, b)]
    return a[:2] == b[:2] and texts[0] == texts[1]


def assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the name and the value of a statement `name = value`, or None for another statement."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return (target.id, statement.value) if isinstance(target, ast.Name) else None


class Deferring:
    """Lets one kernel compute the norms of queries and keys together with their rotation.

    A statement `q = norm(q)` becomes `q = deferred_norm(norm, q)`. The new call may return a `Deferred`, a placeholder
    for a tensor that is not computed yet. The statement is changed only if the method does nothing with `q` before the
    rotary function except to concatenate it or to take a view of it. After the statement that calls the rotary
    function, `q` is a tensor again on each path of the code.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree
        self.aliases: Aliases = aliases_of(tree)
        self.place: dict[int, tuple[list[ast.stmt], int]] = {}
        """By the `id` of a statement: its block, and the `id` of the statement that contains this block."""
        self.statement: dict[int, ast.stmt] = {}
        """The innermost statement that contains a node, by the `id` of the node."""
        self.order: dict[int, int] = {}
        """The position of a statement in the source, by the `id` of the statement."""
        self.enter(tree)

    def enter(self, owner: ast.AST) -> None:
        """Record all statements in the blocks of the node `owner`, such as the body of an `if`."""
        value: Any
        for _, value in ast.iter_fields(owner):
            if not isinstance(value, list) or not value or not isinstance(value[0], ast.stmt | ast.ExceptHandler):
                continue
            for statement in value:
                self.place[id(statement)] = value, id(owner)
                self.order[id(statement)] = len(self.order)
                self.statement.update({id(node): statement for node in ast.walk(statement)})
                if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
                    self.enter(statement)

    def run(self) -> None:
        """Defer the norms of all variables that are arguments of rotary functions or of `joined_pair` calls: the rotary
        function or this call then computes the norm.
        """
        consumers: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                rotated = [word.value for word in node.keywords if word.arg in ("a0", "a1", "other")]
                taken = rotated if node.func.id in ROTATIONS else elements(node)
                for part in taken:
                    if isinstance(part, ast.Name):
                        consumers.setdefault(part.id, []).append(node)
        for variable, calls in consumers.items():
            self.defer(variable, [self.statement[id(call)] for call in calls], {id(call) for call in calls})
        self.pair()

    def pair(self) -> None:
        """Let one kernel compute the norms of queries and keys that are not rotated: replace two statements
        `q = computed(q)` and `k = computed(k)` in sequence by one statement.
        """
        for owner in ast.walk(self.tree):
            for name in ("body", "orelse"):
                block: Any = getattr(owner, name, None)
                for at in range(len(block) - 1 if isinstance(block, list) else 0):
                    names = [computed_in(statement) for statement in block[at : at + 2]]
                    if all(names) and names[0] != names[1]:
                        stores: list[ast.expr] = [ast.Name(one, ast.Store()) for one in names]
                        call = ast.Call(
                            ast.Name(COMPUTED_PAIR, ast.Load()), [ast.Name(one, ast.Load()) for one in names], []
                        )
                        made = ast.copy_location(ast.Assign([ast.Tuple(stores, ast.Store())], call), block[at])
                        block[at : at + 2] = [ast.fix_missing_locations(made), ast.copy_location(ast.Pass(), block[at])]

    def defer(self, variable: str, users: list[ast.stmt], calls: set[int]) -> None:
        """If possible, defer the norms whose result is assigned to `variable`, so that the next rotation computes them.

        `users` are the statements that rotate or concatenate the variable. `calls` contains the `id` of each
        call that does so.
        """
        last = max(users, key=lambda user: self.order[id(user)])
        norms = [
            norm for norm in self.norms_of(variable) if self.order[id(norm)] < min(self.order[id(u)] for u in users)
        ]
        if not norms:
            return
        first = self.order[id(norms[0])]
        region = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name)
            and node.id == variable
            and first <= self.order.get(id(self.statement.get(id(node))), -1) <= self.order[id(last)]
        ]
        joins: list[ast.Call] = []
        for node in region:
            if isinstance(node.ctx, ast.Store):
                continue
            statement = self.statement[id(node)]
            call = self.taken(statement, node, calls, only=len(norms) == 1)
            if not isinstance(node.ctx, ast.Load) or call is None:
                return
            if isinstance(call, ast.Call) and is_cat(call):
                joins.append(call)
        end = self.end(variable, [*norms, *users])
        if end is None:
            return
        for call in joins:
            self.join(call, variable)
        for norm in norms:
            self.change(norm)
        block, at = end
        if any(elements(call) for call in ast.walk(last)) and variable not in Read(last).stores:
            return  # No code reads the variable after the concatenation.
        if block[at] is not last or variable not in Read(last).stores:
            name = ast.Name(variable, ast.Load())
            value = ast.Call(ast.Name(COMPUTED, ast.Load()), [name], [])
            made = ast.copy_location(ast.Assign([ast.Name(variable, ast.Store())], value), block[at])
            block.insert(at + 1, ast.fix_missing_locations(made))

    def norms_of(self, variable: str) -> list[ast.Assign]:
        """Return the statements that assign a norm, or a view of a norm, to `variable`, in the order of the
        source."""
        found: list[ast.Assign] = []
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign) or id(node) not in self.order or norm_in(node) is None:
                continue
            if (own := assigned(node)) is not None and own[0] == variable:
                found.append(node)
        return sorted(found, key=lambda node: self.order[id(node)])

    def taken(self, statement: ast.stmt, node: ast.Name, calls: set[int], only: bool) -> ast.AST | None:
        """Return the expression in `statement` that reads the variable `node` and accepts a `Deferred` as its value.
        Return None if there is no such expression.

        A `Deferred` is a placeholder for a tensor that is not computed yet. Each statement that assigns the result of a
        norm to the variable will assign a `Deferred` instead. `only` says whether the method has exactly one such
        statement. The argument of its norm is then always a tensor, because no earlier statement has assigned a
        `Deferred` to the variable.
        """
        own = assigned(statement)
        if own is not None:
            target, value = own
            norm = norm_in(statement)
            if norm is not None and any(part is node for part in ast.walk(norm.args[0])):
                return norm if isinstance(norm.args[0], ast.Name) or only else None
            if isinstance(value, ast.Call) and target == node.id:
                if is_cat(value):
                    return value if any(part is node for part in ast.iter_child_nodes(value.args[0])) else None
                if is_view(value) and value.func.value is node:  # type: ignore[attr-defined]
                    return value
        for call in ast.walk(statement):
            parts = [word.value for word in call.keywords] + elements(call) if isinstance(call, ast.Call) else []
            if id(call) in calls and any(part is node for part in parts):
                return call
        return None

    def end(self, variable: str, statements: list[ast.stmt]) -> tuple[list[ast.stmt], int] | None:
        """Return two values: the smallest block around all `statements`, and the index in this block of the
        last statement that contains one of them.

        Return None in each of these cases:
        - One of `statements` is in a loop, a `with` or a `try` inside this block.
        - `variable` may be unbound after the returned index.
        - The block changes the tensor of `variable`, or the input of a norm, in place.
        """
        paths = [list(self.path(statement))[::-1] for statement in statements]
        depth = max(at for at in range(min(map(len, paths))) if all(path[at][0] is paths[0][at][0] for path in paths))
        block = paths[0][depth][0]
        tops = [path[depth][1] for path in paths]
        if any(not isinstance(owner, ast.If) for path in paths for _, owner in path[depth:-1]):
            return None
        begin, stop = (pick(index_of(block, top) for top in tops) for pick in (min, max))
        arguments = {node.arg for node in ast.walk(self.tree.args) if isinstance(node, ast.arg)}
        bound = variable in arguments or any(
            variable in Read(one).stores and not isinstance(one, ast.If) for one in block[:begin]
        )
        if not bound and assigned(block[begin]) is None:
            return None
        names = {variable}.union(*(Read(norm.args[0]).loads for one in statements if (norm := norm_in(one))))
        near = names.union(*(self.aliases[0].get(name, ()) for name in names)) - {"self", "torch"}
        for one in block[begin : stop + 1]:
            for node in ast.walk(one):
                runs = id(node) in self.order and not isinstance(node, ast.If | ast.FunctionDef)
                if runs and Read(node).changed & near:
                    return None
        return block, stop

    def path(self, statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        """Yield each block around `statement`, from the innermost to the outermost.

        With each block, yield the statement of this block that contains `statement`.
        """
        owners = {id(node): node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)}
        while id(statement) in self.place:
            block, owner = self.place[id(statement)]
            yield block, statement
            statement = owners[owner]

    def join(self, call: ast.Call, variable: str) -> None:
        """Replace `torch.cat` in `call` by a function that also accepts placeholders for tensors that are not
        computed yet. Such a placeholder is the value of `variable`.

        Where possible, also compute the norms of the other concatenated tensors later.
        """
        assert isinstance(call.args[0], ast.List | ast.Tuple)
        others = [part for part in call.args[0].elts if isinstance(part, ast.Name) and part.id != variable]
        for other in others:
            self.defer_part(other, call)
        call.args.insert(0, call.func)
        call.func = ast.copy_location(ast.Name(JOINED, ast.Load()), call.func)

    def defer_part(self, other: ast.Name, call: ast.Call) -> None:
        """If only the concatenation `call` reads the variable `other`, defer the norms that are assigned to this
        variable, so that they are computed later.
        """
        user = self.statement[id(call)]
        norms = [norm for norm in self.norms_of(other.id) if self.order[id(norm)] < self.order[id(user)]]
        if not norms:
            return
        loads = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name)
            and node.id == other.id
            and isinstance(node.ctx, ast.Load)
            and self.order.get(id(self.statement.get(id(node))), -1) > self.order[id(norms[0])]
        ]
        own = {id(node) for norm in norms for node in ast.walk(norm)}
        if [node for node in loads if id(node) not in own] == [other] and self.end(
            other.id, [*norms, user]
        ) is not None:
            for norm in norms:
                self.change(norm)

    def change(self, statement: ast.Assign) -> None:
        """Replace the norm call in `statement` by a call that may return a `Deferred` (a placeholder for a
        tensor that is not computed yet)."""
        norm = norm_in(statement)
        if norm is not None:
            norm.args = [norm.func, *norm.args, *wideness(norm)]
            norm.func = ast.copy_location(ast.Name(DEFERRED, ast.Load()), norm.args[0])


def computed_in(statement: ast.stmt) -> str:
    """If the statement is `name = computed(name)`, return the name. Otherwise return ""."""
    own = assigned(statement)
    call: Any = None if own is None else own[1]
    if own is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return ""
    x = call.args[0] if call.func.id == COMPUTED and len(call.args) == 1 else None
    return own[0] if isinstance(x, ast.Name) and x.id == own[0] else ""


def elements(call: ast.AST) -> list[ast.expr]:
    """If `call` is a call of `joined_pair`, return the expressions of the tensors that it concatenates.
    Otherwise return []."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != PREFIX + JOINED_PAIR:
        return []
    return [part for held in call.args[2:4] for part in held.elts]  # type: ignore[attr-defined]


def is_view(node: ast.expr) -> bool:
    """Return whether the expression calls a tensor method in `VIEWS`, such as `transpose`, with positional
    arguments only."""
    own = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords
    return own and node.func.attr in VIEWS  # type: ignore[attr-defined]


def norm_in(statement: ast.stmt) -> ast.Call | None:
    """If the statement is `name = norm(x)` or `name = norm(x).transpose(...)`, return the call `norm(x)`.
    Otherwise return None."""
    own = assigned(statement)
    value = None if own is None else own[1]
    if value is not None and is_view(value):
        value = value.func.value  # type: ignore[attr-defined]
    return value if isinstance(value, ast.Call) and is_norm_call(value) else None


def is_cat(node: ast.AST) -> bool:
    """Return whether the node is a call `torch.cat([...], dim)` or `torch.cat([...], dim=dim)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "cat"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and 1 <= len(node.args) <= 2
        and isinstance(node.args[0], ast.List | ast.Tuple)
        and not any(isinstance(part, ast.Starred) for part in node.args[0].elts)
        and [keyword.arg for keyword in node.keywords] in ([], ["dim"])
    )


def index_of(block: list[ast.stmt], statement: ast.stmt) -> int:
    """Return the index of a statement in a block."""
    return next(at for at, one in enumerate(block) if one is statement)


__all__ = [
    "ROTARY",
    "ROTARY_PAIR",
    "JOINED_PAIR",
    "ROTARY_PART",
    "Deferring",
    "assigned",
    "is_cat",
    "local_functions",
    "next_rotation",
    "part_of",
    "rotary_chain",
]
