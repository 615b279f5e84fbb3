"""Provides the operators that fused blocks call.

In eager mode they are those of `oxiwarp.ops`, with the operand conversions of `operands.py`. Under torch.compile,
`INDUCTOR` lists the elementwise chains for which Inductor's kernel is faster. These are written in torch, with the
roundings of the models' original code. Inductor fuses them with adjacent elementwise operations. Every other operator
stays an oxiwarp kernel in the compiled graph.
"""

import torch
from torch import Tensor

from .... import ops
from ....ops import *  # noqa: F403
from .operands import FITTING

# Operators that Inductor generates, with the time of its kernel divided by that of the oxiwarp kernel on one
# H200: benches/results/decisions/elementwise.txt.
INDUCTOR = {"gelu_quick": "0.99"}

compiling = torch.compiler.is_compiling
globals().update(FITTING)


def gelu_quick(  # type: ignore[no-redef]
    x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `oxiwarp.gelu_quick`; under torch.compile as torch operations."""
    if out is not None or not compiling():
        return ops.gelu_quick(x, bias, mode=mode, out=out)
    v = x if bias is None else x + bias
    return v * torch.sigmoid(1.702 * v)


__all__ = ["INDUCTOR", *ops.FUNCTIONS]
