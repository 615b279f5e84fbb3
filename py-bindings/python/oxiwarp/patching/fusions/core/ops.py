"""The operators as fused blocks call them: under torch.compile, Inductor has the chains that it runs faster.

There such a chain is written in torch, in the roundings of the models' own code, and becomes one kernel with whatever
is elementwise around it. Every other operator stays a kernel of ours in the compiled graph. Fused blocks import all
operators from here; eager, these are those of `oxiwarp.ops`, which `operands.py` gives operands that they take.
"""

import torch
from torch import Tensor

from .... import ops
from ....ops import *  # noqa: F403
from .operands import FITTING

# Which, and the time of Inductor's kernel as a share of ours on one H200:
# benches/results/decisions/elementwise.txt.
INDUCTOR = {"gelu_quick": "0.99"}

compiling = torch.compiler.is_compiling
globals().update(FITTING)


def gelu_quick(  # type: ignore[no-redef]
    x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """See `oxiwarp.gelu_quick`."""
    if out is not None or not compiling():
        return ops.gelu_quick(x, bias, mode=mode, out=out)
    v = x if bias is None else x + bias
    return v * torch.sigmoid(1.702 * v)


__all__ = ["INDUCTOR", *ops.FUNCTIONS]
