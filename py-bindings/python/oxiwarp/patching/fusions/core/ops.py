"""Provides the operators that fused blocks call. A fused block is a block of a model whose `forward` oxiwarp
has replaced.

In eager mode, this module provides the operators of `oxiwarp.ops`, with the operand conversions of `operands.py`. For
some elementwise operators, listed in `INDUCTOR`, torch's compiler Inductor generates a faster kernel. Under
torch.compile, this module therefore computes them with torch operations that round like the models' original code.
Inductor can fuse these torch operations with adjacent operations. All other operators stay oxiwarp kernels in the
compiled graph.
"""

import torch
from torch import Tensor

from .... import ops
from ....ops import *  # noqa: F403
from .operands import FITTING

# Operators that Inductor computes under torch.compile. A value of the dict is the time of Inductor's kernel
# divided by the time of the oxiwarp kernel, measured on one H200 (benches/results/decisions/elementwise.txt).
INDUCTOR = {"gelu_quick": "0.99"}

compiling = torch.compiler.is_compiling
globals().update(FITTING)


def gelu_quick(  # type: ignore[no-redef]
    x: Tensor, bias: Tensor | None = None, *, mode: str = "exact", out: Tensor | None = None
) -> Tensor:
    """Compute `x * sigmoid(1.702 x)` with `oxiwarp.gelu_quick`, or with torch operations under
    torch.compile."""
    if out is not None or not compiling():
        return ops.gelu_quick(x, bias, mode=mode, out=out)
    v = x if bias is None else x + bias
    return v * torch.sigmoid(1.702 * v)


__all__ = ["INDUCTOR", *ops.FUNCTIONS]
