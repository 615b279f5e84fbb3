"""Finds expressions that resemble the expression of a kernel, but that no oxiwarp kernel computes. The report
of `patch` lists them, and says why no kernel computes them.
"""

import ast

from .expressions import is_norm_call, is_product, is_value
from .flow import Read
from .patterns import GATED, MODULATED, Chain

UNFUSED = "unfused"
NO_ONE = "the norm is multiplied by another factor than 1 + scale"
BLEND = "no kernel computes a blend with a gate"


def unfused_chain(node: ast.expr) -> Chain | None:
    """If `node` is an expression without a kernel that the report of `patch` should mention, return a `Chain`
    for it. Otherwise return None.

    There are two such expressions: `norm(x) * scale` and `(1 - gate) * x + gate * y`. The options of the
    `Chain` contain the reason for the report, and the similar expression that has a kernel.
    """
    if not isinstance(node, ast.BinOp):
        return None
    if isinstance(node.op, ast.Add) and is_blend(node):
        return Chain(UNFUSED, node, {}, {"kind": GATED, "reason": BLEND})
    scaled = is_product(node) and any(
        is_norm_call(norm) and is_value(factor) and "scale" in "".join(Read(factor).loads)
        for norm, factor in ((node.left, node.right), (node.right, node.left))
    )
    return Chain(UNFUSED, node, {}, {"kind": MODULATED, "reason": NO_ONE}) if scaled else None


def is_blend(node: ast.BinOp) -> bool:
    """Return whether the expression is a blend `(1 - gate) * x + gate * y`."""
    if not (is_product(node.left) and is_product(node.right)):
        return False
    factors = [part for product in (node.left, node.right) for part in (product.left, product.right)]  # type: ignore[attr-defined]
    names = [part.id for part in factors if isinstance(part, ast.Name) and "gate" in part.id.lower()]
    rests = [part.right for part in factors if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)]
    return any(isinstance(rest, ast.Name) and rest.id in names for rest in rests)


__all__ = ["UNFUSED", "unfused_chain"]
