"""Decides by the name of a called function whether it is a norm, an activation, or another function without
side effects."""

import ast
import re

from .method import PREFIX

# fmt: off
METHODS = frozenset((
    "chunk", "clone", "contiguous", "detach", "dim", "expand", "expand_as", "flatten", "float", "get", "items", "keys",
    "numel", "permute", "repeat_interleave", "reshape", "sigmoid", "size", "split", "squeeze", "tanh", "to",
    "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "values", "view",
))
"""Names of tensor methods that neither change a tensor nor run other modules."""
FUNCTIONS = frozenset((
    "cat", "chunk", "float", "gelu", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "range",
    "silu", "tanh", "tuple", "where", "zip",
))
"""Names of functions that neither change a tensor nor run other modules, such as `torch.cat`."""
# fmt: on

ACTIVATIONS = ("act", "gelu", "silu", "swish", "sigmoid", "nonlin")
"""Strings that occur in the names of activation functions."""
KERNELS = tuple(PREFIX + name for name in ("gated_residual", "modulated_norm", "sum_and_norm", "unfused"))
"""Functions of `calls.py` that have no side effects."""


def is_kernel(called: ast.expr) -> bool:
    """Return whether a called function is one of `KERNELS`. These are functions of oxiwarp that may run a kernel and
    have no side effects.
    """
    return isinstance(called, ast.Name) and called.id in KERNELS


def is_norm(called: ast.expr) -> bool:
    """Return whether a called module is a norm, according to its name. Callers assume that norms have no side
    effects."""
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return ("norm" in name.lower() and not name.endswith("_")) or re.fullmatch(r"ln(\d|_\w*[^_])?", name) is not None


def is_activation(called: ast.expr) -> bool:
    """Return whether a called function or module is an activation, according to its name."""
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return any(part in name.lower() for part in ACTIVATIONS)


def is_self(node: ast.expr) -> bool:
    """Return whether the node is the variable `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


__all__ = ["FUNCTIONS", "METHODS", "is_activation", "is_kernel", "is_norm", "is_self"]
