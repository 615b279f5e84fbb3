"""Finds norms whose result two statements modulate, as in SD 3.5 and LTX-2. One kernel computes both results."""

import ast
import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from .blocks import Block
from .expressions import is_norm_call
from .flow import Read, is_definition
from .patterns import MODULATED, Chain, Finder


class Twice(NamedTuple):
    """A statement `n = norm(x)`, and two statements `y = n * (1 + scale) + shift` that read `n`."""

    places: tuple[int, int, int]
    """The indices of the three statements."""
    chains: tuple[Chain, Chain]
    """The two modulated norms, in which the call of the norm stands for `n`."""


def twice_modulated(block: Block, at: int, space: Mapping[str, Any]) -> Twice | None:
    """Return the `Twice` whose norm is in the statement with index `at`, or None.

    The kernel runs at the first modulation. So it must not matter whether the statements in between run
    before the norm, or after the operands of the second modulation are computed.
    """
    norm = block.statements[at]
    if not is_definition(norm) or not is_norm_call(norm.value):  # type: ignore[attr-defined]
        return None
    name = norm.targets[0].id  # type: ignore[attr-defined]
    rest = range(at + 1, len(block.statements))
    end = next((index for index in rest if name in block.reads[index].stores), len(block.statements))
    readers = [index for index in range(at + 1, end + 1) if index in rest and name in block.reads[index].loads]
    if len(readers) != 2 or readers[-1] == end or (end == len(block.statements) and name in block.outside):
        return None
    first, second = readers
    if not block.independent(Read(norm.value), block.reads[at + 1 : first]):  # type: ignore[attr-defined]
        return None
    found = [modulated(block, index, name, norm.value, space) for index in readers]  # type: ignore[attr-defined]
    if found[0] is None or found[1] is None:
        return None
    later = Read(None)
    for operand, node in found[1].operands.items():
        if operand not in ("norm", "x"):
            later.include(Read(node))
    removed = [block.defined(variable, second) for variable in found[1].used()]
    between = [block.reads[index] for index in range(first, second) if index not in removed]
    if later.effects or not block.independent(later, between):
        return None
    return Twice((at, first, second), (found[0], found[1]))


def modulated(block: Block, at: int, name: str, norm: ast.expr, space: Mapping[str, Any]) -> Chain | None:
    """If the statement with index `at` is `y = name * (1 + scale) + shift`, return the modulation with the
    expression `norm` in place of the variable `name`. Otherwise return None.

    The modulation must have no casts, because a norm that no kernel computes is called only once.
    """
    own, kept = block.statements[at], block.reads[at]
    if not is_definition(own) or kept.loads.count(name) != 1:
        return None
    made = Insert(name, norm).visit(copy.deepcopy(own))
    block.update(at, made)
    chain = Finder(block, at, space, split=False).find(made.value, MODULATED)
    block.statements[at], block.reads[at] = own, kept
    known = chain is not None and not any(chain.options.values()) and {"scale", "shift"} <= chain.operands.keys()
    return chain if known and chain is not None and "target" not in chain.operands else None


class Insert(ast.NodeTransformer):
    """Replaces a variable by an expression."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return a copy of the expression if the node reads the variable."""
        return copy.deepcopy(self.value) if node.id == self.name and isinstance(node.ctx, ast.Load) else node


__all__ = ["Twice", "twice_modulated"]
