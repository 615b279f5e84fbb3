"""Decides for which small inputs a compiled model traces the original method of a module instead of calling oxiwarp's
kernels. torch's compiler Inductor then generates the kernels.

When a model decodes one token, Python needs more time to launch the kernels than the GPU needs to execute
them. An Inductor kernel needs less Python time per launch than a custom operator. Inductor also fuses a norm
with adjacent elementwise operations. Therefore, if the tensors have few elements, torch.compile traces the
original methods of decoders and norms of transformers.
"""

from typing import Any

import torch
from torch import Tensor

MOST = 1 << 15
"""Largest number of elements for which torch.compile uses Inductor's kernels instead of oxiwarp's.

It is 8 rows of 4096 elements. Measurements exist only for one row: see benches/results/decisions/decoder.txt.
"""
compiling = torch.compiler.is_compiling


def is_decoders(cls: type) -> bool:
    """Return whether the class `cls` is defined in transformers, the library of the decoder models."""
    return cls.__module__.startswith("transformers.")


def on_gpu(x: Tensor) -> bool:
    """Return whether `x` is on a GPU.

    The choice between Inductor and oxiwarp depends on launch times, which matter only on a GPU.
    """
    return x.is_cuda


def is_few(x: Any) -> bool:
    """Return whether torch.compile knows that `x` has at most `MOST` elements.

    In eager mode and under torch.export, the result is False.
    """
    if not compiling() or torch.compiler._is_exporting_flag or not isinstance(x, Tensor):
        return False
    # Do not import `symbolic_shapes` at the top of this file, because it imports SymPy, which takes longer
    # than the import of oxiwarp. This line is only reached under torch.compile, which has already imported
    # `symbolic_shapes`.
    return on_gpu(x) and torch.fx.experimental.symbolic_shapes.statically_known_true(x.numel() <= MOST)


__all__ = ["MOST", "is_decoders", "is_few"]
