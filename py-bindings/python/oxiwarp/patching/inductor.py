"""Decides which small calls torch.compile traces as the original method, so that Inductor generates the kernels.

A model that decodes one token is limited by the number of launches and the Python time per launch, not by the kernels.
An Inductor kernel needs less Python time per launch than a custom operator. Inductor also fuses a norm with adjacent
elementwise operations. So for few
elements, torch.compile traces the original method of a decoder or of a transformers norm.
"""

from typing import Any

import torch
from torch import Tensor

MOST = 1 << 15
"""Largest number of elements of such a call: 8 rows of 4096. One row was measured: see
benches/results/decisions/decoder.txt."""
compiling = torch.compiler.is_compiling


def is_decoders(cls: type) -> bool:
    """Whether this is a class of transformers, the library that has the decoders."""
    return cls.__module__.startswith("transformers.")


def on_gpu(x: Tensor) -> bool:
    """Whether `x` is on a GPU, so that launches may limit the call."""
    return x.is_cuda


def is_few(x: Any) -> bool:
    """Whether torch.compile knows that `x` has at most `MOST` elements. False under torch.export."""
    if not compiling() or torch.compiler._is_exporting_flag or not isinstance(x, Tensor):
        return False
    # While compiling, torch has already imported this module. An import at the top of this file would always
    # import SymPy, which takes longer than all of oxiwarp.
    return on_gpu(x) and torch.fx.experimental.symbolic_shapes.statically_known_true(x.numel() <= MOST)


__all__ = ["MOST", "is_decoders", "is_few"]
