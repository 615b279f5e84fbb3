"""Uses variable names to decide what an expression such as `x + a * b` computes: a gated residual or
something unrelated.

This is necessary because the syntax of a gated residual or of a modulation also occurs in unrelated code.
"""

import ast

from .flow import Read
from .patterns import ACTIVATION, Chain

MODULATIONS = ("scale", "shift", "mod", "gamma", "beta")
"""Strings that occur in the names of scale and shift variables."""


def is_sigmoid(chain: Chain) -> bool:
    """Return whether the expression `chain` is `sigmoid(gate) * up`, according to the name of the called
    function.

    A `Chain` is an expression that one kernel may compute.
    """
    return chain.op == ACTIVATION and "sigmoid" in ast.unparse(chain.operands.get("act", ast.Name("sigmoid"))).lower()


def is_modulation(chain: Chain) -> bool:
    """Return whether an expression of the form `x * (1 + scale) + shift` is likely to modulate a tensor.

    The names of the variables in place of `scale` and `shift` decide this. For example, the index computation `row *
    (1 + columns) + column` has the same form, but is not a modulation.
    """
    parts = [node for name in ("scale", "shift") if name in chain.operands for node in ast.walk(chain.operands[name])]
    names = [node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in parts]
    return any(part in name.lower() for name in names for part in MODULATIONS)


def is_likely(chain: Chain, statement: ast.stmt) -> bool:
    """Return whether an expression of the form `x + a * b` is likely to be a gated residual. One of these
    conditions must be true:

    - A name in the factors `a` and `b` contains "gate".
    - The statement assigns the sum to the variable `x`.
    - The name of `x` contains "resid".
    - The statement returns the sum, `x` is a variable, and a factor contains a call with possible side
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
