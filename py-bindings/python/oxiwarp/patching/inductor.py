"""Calls of few rows under torch.compile, which Inductor has.

A model that decodes a token waits for the launches, not for the kernels: what counts is how many there are, and what
Python does for each. Inductor's own kernels cost a launch less Python than any operator, and take a norm's neighbours
along. So there a fused method of a decoder, and a norm of transformers, is traced as the own one.
"""

from typing import Any

import torch
from torch import Tensor

MOST = 1 << 15
"""Elements: 8 rows of 4096. Measured at one: benches/results/decisions/decoder.txt."""
compiling = torch.compiler.is_compiling


def is_decoders(cls: type) -> bool:
    """Whether this is a class of the library that decoders come from."""
    return cls.__module__.startswith("transformers.")


def on_gpu(x: Tensor) -> bool:
    """Whether launches are what a call waits for."""
    return x.is_cuda


def is_few(x: Any) -> bool:
    """Whether this call is one of Inductor's: of a size that is known while compiling. torch.export keeps ours."""
    if not compiling() or torch.compiler._is_exporting_flag or not isinstance(x, Tensor):
        return False
    # Not imported above: who compiles has it, and it brings SymPy, which takes longer to import than all of oxiwarp.
    return on_gpu(x) and torch.fx.experimental.symbolic_shapes.statically_known_true(x.numel() <= MOST)


__all__ = ["MOST", "is_decoders", "is_few"]
