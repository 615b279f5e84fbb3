"""Decides at run time whether a layer of a model may get and return a placeholder for a sum."""

from typing import Any

import torch
from torch import nn

from ...ops._register import PLAIN
from ..class_swap import RECIPE
from ..fusions.core.modules import has_hooks, hooks_everywhere
from .deferred import LaterSum, computed, given

OPEN = "_oxiwarp_open"
"""Class attribute of a patched layer: its rewritten method that accepts a `LaterSum` and may return one."""
CHECKPOINTING = "transformers.modeling_layers"
"""The Python module with a base class of layers whose `__call__` calls `nn.Module.__call__`, possibly with gradient
checkpointing."""
tracing = torch.compiler.is_dynamo_compiling


def opened(layer: Any, x: Any) -> Any:
    """Return the argument with which a loop calls `layer`. `x` is the result of the previous layer.

    If the layer may return a placeholder for a sum, the argument is a `LaterSum`. Otherwise it is a tensor.
    """
    if tracing() or (type(x) is not LaterSum and type(x) not in PLAIN):
        return x
    if not is_open(layer):
        return computed(x)
    return x if type(x) is LaterSum else given(x)


def is_open(layer: Any) -> bool:
    """Return whether only the rewritten method of `layer` sees its argument and its result: there are no hooks, and the
    layer is neither compiled nor checkpointed."""
    cls = type(layer)
    # A class that another tool derived from the class of `patch` has another `__dict__`.
    if OPEN not in cls.__dict__ or RECIPE not in layer.__dict__:
        return False
    if hooks_everywhere() or has_hooks(layer) or layer.__dict__.get("_compiled_call_impl") is not None:
        return False
    return not (layer.training and getattr(layer, "gradient_checkpointing", False))


def has_plain_call(base: Any) -> bool:
    """Return whether calling a module of the class `base` does nothing but call its `forward`, apart from what
    `is_open` checks."""
    call = getattr(base, "__call__", None)  # noqa: B004
    return call is nn.Module.__call__ or getattr(call, "__module__", "") == CHECKPOINTING


__all__ = ["OPEN", "has_plain_call", "is_open", "opened"]
