"""Says whether an expression with the form of a chain is likely to be one, according to the names in it."""

import ast

from .flow import Read
from .patterns import ACTIVATION, Chain

MODULATIONS = ("scale", "shift", "mod", "gamma", "beta")
"""Parts of the names of a scale or shift."""


def is_sigmoid(chain: Chain) -> bool:
    """Whether the chain is `sigmoid(gate) * up`, according to the name of the function."""
    return chain.op == ACTIVATION and "sigmoid" in ast.unparse(chain.operands.get("act", ast.Name("sigmoid"))).lower()


def is_modulation(chain: Chain) -> bool:
    """Whether `x * (1 + scale) + shift` is likely to modulate a tensor, according to the names of scale and shift.

    An example of another calculation is the index `row * (1 + columns) + column`.
    """
    parts = [node for name in ("scale", "shift") if name in chain.operands for node in ast.walk(chain.operands[name])]
    names = [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in parts]
    return any(part in name.lower() for name in names for part in MODULATIONS)


def is_likely(chain: Chain, statement: ast.stmt) -> bool:
    """Whether `x + a * b` is likely to be a gated residual.

    Either a name contains "gate", or the statement assigns the sum to the variable `x`, or `x` is called a residual, or
    the method returns the sum of a variable and a branch that it calls.
    """
    x = chain.operands["x"]
    names = [name.lower() for part in ("a", "b") for name in Read(chain.operands[part]).loads]
    names += [
        node.attr.lower()
        for part in ("a", "b")
        for node in ast.walk(chain.operands[part])
        if isinstance(node, ast.Attribute)
    ]
    returned = isinstance(statement, ast.Return) and statement.value is chain.node and isinstance(x, ast.Name)
    if any("gate" in name for name in names) or (
        returned and any(Read(chain.operands[part]).effects for part in ("a", "b"))
    ):
        return True
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    assigned = [target.id for target in targets if isinstance(target, ast.Name)]
    root = Read(x).loads[:1]
    return bool(root) and (root[0] in assigned or "resid" in root[0])


__all__ = ["is_likely", "is_modulation", "is_sigmoid"]
