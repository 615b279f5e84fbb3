"""The operators as fused blocks call them: under torch.compile, Inductor has the chains that it runs faster.

There such a chain is written in torch, in the roundings of the models' own code, and becomes one kernel with whatever
is elementwise around it. Every other operator stays a kernel of ours in the compiled graph. Fused blocks import all
operators from here; eager, these are those of `oxiwarp.ops`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..ops import *  # noqa: F403


class Share(NamedTuple):
    """Time of torch.compile's kernel as a share of ours: the least and the most over models' shapes."""

    least: float
    most: float


# Measured on one H200: benches/results/nvidia-h200/2026-11-20/9c4024c/elementwise.txt.
INDUCTOR = {"gelu_quick": Share(0.99, 0.99)}

compiling = torch.compiler.is_compiling


def compiled(chain: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of the same name, and `chain` in its place under torch.compile where `INDUCTOR` has it."""
    name = chain.__name__
    op = getattr(ops, name)
    if name not in INDUCTOR:
        return op  # type: ignore[no-any-return]

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        return (chain if compiling() else op)(*args, **kwargs)

    return run


@compiled
def gelu_quick(x: Tensor, bias: Tensor | None = None, *, mode: str = "exact") -> Tensor:
    """See `oxiwarp.gelu_quick`."""
    v = x if bias is None else x + bias
    return v * torch.sigmoid(1.702 * v)


__all__ = ["INDUCTOR", *ops.__all__]
