"""Decides for which small calls torch.compile traces the original method, so that Inductor generates the kernels.

If a model decodes one token, the Python time for the launches is longer than the time of the kernels. An Inductor
kernel needs less Python time per launch than a custom operator. Inductor also fuses a norm with adjacent elementwise
operations. So if the tensors have few elements, torch.compile traces the original method of a decoder or a norm of
transformers.
"""

from typing import Any

import torch
from torch import Tensor

MOST = 1 << 15
"""Largest number of elements of a tensor for which Inductor generates the kernel: 8 rows of 4096 elements.

Only one row was measured: see benches/results/decisions/decoder.txt."""
compiling = torch.compiler.is_compiling


def is_decoders(cls: type) -> bool:
    """Whether the class belongs to transformers, the library of the decoder models."""
    return cls.__module__.startswith("transformers.")


def on_gpu(x: Tensor) -> bool:
    """Whether `x` is on a GPU. There, the launches of a small call may take longer than its kernels."""
    return x.is_cuda


def is_few(x: Any) -> bool:
    """Whether torch.compile knows that `x` has at most `MOST` elements. The result is False under torch.export."""
    if not compiling() or torch.compiler._is_exporting_flag or not isinstance(x, Tensor):
        return False
    # torch.compile has already imported `symbolic_shapes` here. An import at the top of this file would
    # always import SymPy too, which takes longer than the import of oxiwarp.
    return on_gpu(x) and torch.fx.experimental.symbolic_shapes.statically_known_true(x.numel() <= MOST)


__all__ = ["MOST", "is_decoders", "is_few"]
