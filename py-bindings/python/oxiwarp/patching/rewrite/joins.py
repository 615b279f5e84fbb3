"""Finds concatenations whose inputs kernels can write directly into the concatenated tensor.

Two statements `query = torch.cat([...])` and `key = torch.cat([...])` become one call of `joined_pair`, if
the inputs are results of norms or rotations. `torch.cat([x, h])` becomes a call of `joined_activation`, if an
earlier statement is `h = self.act(y)` and only this concatenation reads `h`. Until the concatenation, a
placeholder (`Deferred`) stands for each input that is not computed yet.
"""

import ast
from collections.abc import Callable
from typing import Any

from .flow import Read, is_activation, is_norm
from .method import PREFIX
from .patterns import Chain
from .rotary_rewriter import JOINED_PAIR, ROTATIONS, assigned, is_cat

PAIR = PREFIX + "rotary_pair"
LATER_ACTIVATION, JOINED_ACTIVATION = "later_activation", "joined_activation"


class Joins:
    """Replaces concatenations in a method. The function `add` adds a replaced expression to the report of
    `patch`."""

    def __init__(self, tree: ast.FunctionDef, add: Callable[[Chain], int]) -> None:
        self.tree, self.add = tree, add
        nodes = list(ast.walk(ast.fix_missing_locations(tree)))
        self.loads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        rotations = [node for node in calls if node.func.id in ROTATIONS]  # type: ignore[attr-defined]
        self.rotated = [word.value for node in rotations for word in node.keywords if isinstance(word.value, ast.Name)]
        """The variables that are arguments of rotary functions."""
        self.pairs = [node for node in nodes if isinstance(node, ast.Assign) and is_pair(node.value)]
        normed = [own for node in nodes if isinstance(node, ast.Assign) and (own := assigned(node)) is not None]
        self.norms = {name: value.func for name, value in normed if isinstance(value, ast.Call) and is_norm(value.func)}
        """The norm module that computes the value of a variable, by the name of the variable."""
        self.parameters = {node.arg for node in ast.walk(tree.args) if isinstance(node, ast.arg)}
        self.made = set(self.norms).union(*(targets(node) for node in self.pairs))
        """The variables whose values norms or rotary functions compute."""

    def run(self) -> None:
        """Replace all pairs of concatenations."""
        for owner in ast.walk(self.tree):
            for field in ("body", "orelse"):
                block = getattr(owner, field, None)
                if isinstance(block, list):
                    for at in range(len(block) - 1):
                        self.replace(block, at)
                        self.activation(block, at)

    def replace(self, block: list[ast.stmt], at: int) -> None:
        """Replace the statement with index `at` and the next statement, if one concatenates queries and the
        other concatenates keys in the same way."""
        own, other = assigned(block[at]), assigned(block[at + 1])
        if own is None or other is None or not (is_cat(own[1]) and is_cat(other[1])):
            return
        first: Any = own[1]
        second: Any = other[1]
        queries, keys = first.args[0].elts, second.args[0].elts
        dims = [[*call.args[1:], *(word.value for word in call.keywords)] for call in (first, second)]
        if len(queries) != len(keys) or list(map(ast.dump, dims[0])) != list(map(ast.dump, dims[1])):
            return
        names = [part.id for part in (*queries, *keys) if isinstance(part, ast.Name)]
        stored = {own[0], other[0]}
        loops = [node for node in ast.walk(self.tree) if isinstance(node, ast.For | ast.While)]
        known = not any(part is second for loop in loops for part in ast.walk(loop))
        known &= len(set(names)) == 2 * len(queries) and own[0] not in names[len(queries) :]
        late = [node for node in self.loads if node.lineno > second.lineno and node.id not in stored]
        rotated = {node.id for node in self.rotated if node.lineno > second.lineno}
        if not known or names[0] not in self.made or stored & rotated or any(node.id in names for node in late):
            return
        operands = {"norm": self.norms[names[0]]} if names[0] in self.norms else {}
        index = ast.Constant(self.add(Chain(JOINED_PAIR, first, operands)))
        made = ast.Name(PREFIX + JOINED_PAIR, ast.Load())
        call = ast.Call(made, [index, first.func, first.args[0], second.args[0], *dims[0]], [])
        target = ast.Tuple([ast.Name(own[0], ast.Store()), ast.Name(other[0], ast.Store())], ast.Store())
        block[at] = ast.copy_location(ast.Assign([target], ast.copy_location(call, first)), block[at])
        block[at + 1] = ast.copy_location(ast.Pass(), block[at + 1])
        for pair in self.pairs:
            own_names, inside = targets(pair), {id(node) for node in ast.walk(pair)}
            between = [node for node in self.loads if pair.lineno < node.lineno <= second.end_lineno]
            read = [node.id for node in between if node.id in own_names and id(node) not in inside]
            if set(own_names) <= set(names) and sorted(read) == sorted(own_names):
                pair.value.args.append(ast.Constant(True))  # type: ignore[attr-defined]

    def activation(self, block: list[ast.stmt], at: int) -> None:
        """If the statement with index `at` computes an activation and only a later concatenation reads its
        result, let the concatenation compute the activation."""
        own = assigned(block[at])
        if own is None or not is_activation_of_module(own[1], self.parameters):
            return
        name = own[0]
        call: Any = own[1]
        readers = [node for node in self.loads if node.id == name and node.lineno > call.lineno]
        for statement in block[at + 1 :]:
            value = assigned(statement)
            cat: Any = None if value is None else value[1]
            parts = cat.args[0].elts if cat is not None and is_cat(cat) else []
            # After this statement, the variable contains the concatenation.
            ends = value is not None and value[0] == name
            read = [node for node in readers if not ends or node.lineno <= cat.end_lineno]
            if len(read) == 1 and any(part is read[0] for part in parts) and len(parts) > 1:
                index = ast.Constant(self.add(Chain(JOINED_ACTIVATION, call, {"act": call.func})))
                call.args = [index, call.func, *call.args]
                call.func = ast.copy_location(ast.Name(PREFIX + LATER_ACTIVATION, ast.Load()), call)
                cat.args = [index, cat.func, *cat.args]
                cat.func = ast.copy_location(ast.Name(PREFIX + JOINED_ACTIVATION, ast.Load()), cat)
                return
            # No code can change the result of a call that is not assigned to a variable.
            if name in Read(statement).stores or (isinstance(call.args[0], ast.Name) and may_change(statement, call)):
                return


def is_activation_of_module(node: ast.expr, parameters: set[str]) -> bool:
    """Return whether the expression is `self.act(x)`, or `attn.act(x)` in an attention processor. `x` is a
    variable or the result of a module. `parameters` has the names of the method's parameters."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return False
    module, x = node.func, node.args[0]
    if not isinstance(module, ast.Attribute) or not isinstance(module.value, ast.Name):
        return False
    known = module.value.id in parameters and is_activation(module)
    return known and (isinstance(x, ast.Name) or (isinstance(x, ast.Call) and Read(x).effects))


def may_change(statement: ast.stmt, call: ast.Call) -> bool:
    """Return whether a statement may change the argument of `call`, which is a variable."""
    read = Read(statement)
    return read.effects or read.leaves or bool(read.stores & set(Read(call).loads))


def is_pair(node: ast.expr) -> bool:
    """Return whether the expression is a call of `rotary_pair`, which rotates queries and keys together."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == PAIR


def targets(statement: ast.Assign) -> list[str]:
    """Return the variables of a statement `q, k = rotary_pair(...)`."""
    return [part.id for part in statement.targets[0].elts]  # type: ignore[attr-defined]


__all__ = ["JOINED_ACTIVATION", "Joins"]
