"""Uses variable names to decide whether an expression such as `x + a * b` is really a gated residual.

An expression can have the same syntax as a gated residual or a modulation, and compute something unrelated.
"""

import ast

from .flow import Read
from .patterns import ACTIVATION, Chain

MODULATIONS = ("scale", "shift", "mod", "gamma", "beta")
"""Strings that occur in the names of scale and shift variables."""


def is_sigmoid(chain: Chain) -> bool:
    """Return whether the chain is `sigmoid(gate) * up`, according to the name of the function.

    A chain is an expression that one kernel may compute.
    """
    return chain.op == ACTIVATION and "sigmoid" in ast.unparse(chain.operands.get("act", ast.Name("sigmoid"))).lower()


def is_modulation(chain: Chain) -> bool:
    """Return whether `x * (1 + scale) + shift` is likely to modulate a tensor.

    Decide by the names of scale and shift. The index `row * (1 + columns) + column` is an example that is no
    modulation.
    """
    parts = [node for name in ("scale", "shift") if name in chain.operands for node in ast.walk(chain.operands[name])]
    names = [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in parts]
    return any(part in name.lower() for name in names for part in MODULATIONS)


def is_likely(chain: Chain, statement: ast.stmt) -> bool:
    """Return whether `x + a * b` is likely to be a gated residual. One of these conditions must be true:

    - The name of a factor contains "gate".
    - The statement assigns the sum to the variable `x`.
    - The name of `x` contains "resid".
    - The method returns the sum, `x` is a variable, and a factor is the result of a call with possible side
      effects.
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
