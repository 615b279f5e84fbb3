"""Says what a called function is, according to its name: a norm, an activation, or a function without side effects."""

import ast
import re

from .method import PREFIX

# fmt: off
METHODS = frozenset((
    "chunk", "clone", "contiguous", "detach", "dim", "expand", "expand_as", "flatten", "float", "get", "items", "keys",
    "numel", "permute", "repeat_interleave", "reshape", "sigmoid", "size", "split", "squeeze", "tanh", "to",
    "transpose", "type_as", "unbind", "unflatten", "unsqueeze", "values", "view",
))
"""Methods that neither change a tensor nor run other modules."""
FUNCTIONS = frozenset((
    "cat", "chunk", "float", "gelu", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "range",
    "silu", "tanh", "tuple", "where", "zip",
))
"""Functions with the same property, also as attributes of a module such as `torch.cat`."""
# fmt: on

ACTIVATIONS = ("act", "gelu", "silu", "swish", "sigmoid", "nonlin")
"""Parts of the names of activations."""
KERNELS = tuple(PREFIX + name for name in ("gated_residual", "modulated_norm", "sum_and_norm", "unfused"))
"""Functions of `calls.py` without side effects."""


def is_kernel(called: ast.expr) -> bool:
    """Whether a called function computes a rewritten chain and has no side effects."""
    return isinstance(called, ast.Name) and called.id in KERNELS


def is_norm(called: ast.expr) -> bool:
    """Whether a called module is a norm, according to its name. A norm has no side effects."""
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return ("norm" in name.lower() and not name.endswith("_")) or re.fullmatch(r"ln(\d|_\w*[^_])?", name) is not None


def is_activation(called: ast.expr) -> bool:
    """Whether a called function or module is an activation, according to its name."""
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return any(part in name.lower() for part in ACTIVATIONS)


def is_self(node: ast.expr) -> bool:
    """Whether the node is the variable `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


__all__ = ["FUNCTIONS", "METHODS", "is_activation", "is_kernel", "is_norm", "is_self"]
