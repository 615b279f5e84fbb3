"""Finds chains that no kernel computes, so that the report names them with the reason."""

import ast

from .flow import Read, is_self
from .patterns import GATED, MODULATED, Chain, is_norm_call, is_product, is_value

UNFUSED = "unfused"
NO_NORM = "no norm is computed together with the modulation"
NO_ONE = "the norm is multiplied by another factor than 1 + scale"
BLEND = "no kernel computes a blend with a gate"


def unfused_chain(node: ast.expr) -> Chain | None:
    """Return the chain if `node` is a modulation or a blend for which there is no kernel, or None.

    These are `x * (1 + scale) + shift` without a norm, `norm(x) * scale` and `(1 - gate) * x + gate * y`. The options
    of the chain have its kind and the reason.
    """
    if not isinstance(node, ast.BinOp):
        return None
    if isinstance(node.op, ast.Add):
        if is_blend(node):
            return Chain(UNFUSED, node, {}, {"kind": GATED, "reason": BLEND})
        products = [part for part in (node.left, node.right) if is_modulation(part)]
        shift = node.right if products and products[0] is node.left else node.left
        return chain_of(node) if len(products) == 1 and is_value(shift) else None
    if is_modulation(node):
        return chain_of(node)
    scaled = is_product(node) and any(
        is_norm_call(norm) and is_value(factor) and "scale" in "".join(Read(factor).loads)
        for norm, factor in ((node.left, node.right), (node.right, node.left))
    )
    return Chain(UNFUSED, node, {}, {"kind": MODULATED, "reason": NO_ONE}) if scaled else None


def chain_of(node: ast.expr) -> Chain:
    """Return the chain of a modulation without a norm."""
    return Chain(UNFUSED, node, {}, {"kind": MODULATED, "reason": NO_NORM})


def is_modulation(node: ast.expr) -> bool:
    """Whether the node is `x * (1 + scale)`, where `scale` is no parameter of the module."""
    if not is_product(node):
        return False
    assert isinstance(node, ast.BinOp)
    return any(
        is_one_plus(factor) and is_value(x) and not isinstance(x, ast.BinOp)
        for x, factor in ((node.left, node.right), (node.right, node.left))
    )


def is_one_plus(node: ast.expr) -> bool:
    """Whether the node is `1 + scale`, or an element of it such as `(1 + scale)[:, None]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    for one, scale in ((node.left, node.right), (node.right, node.left)):
        if isinstance(one, ast.Constant) and one.value in (1, 1.0) and not isinstance(one.value, bool):
            return (
                isinstance(scale, ast.Name | ast.Subscript | ast.Call)
                and not Read(scale).effects
                and not any(isinstance(part, ast.Name) and is_self(part) for part in ast.walk(scale))
            )
    return False


def is_blend(node: ast.BinOp) -> bool:
    """Whether the node is `(1 - gate) * x + gate * y`."""
    if not (is_product(node.left) and is_product(node.right)):
        return False
    factors = [part for product in (node.left, node.right) for part in (product.left, product.right)]  # type: ignore[attr-defined]
    names = [part.id for part in factors if isinstance(part, ast.Name) and "gate" in part.id.lower()]
    rests = [part.right for part in factors if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub)]
    return any(isinstance(rest, ast.Name) and rest.id in names for rest in rests)


__all__ = ["UNFUSED", "unfused_chain"]
