"""oxiwarp as a kernel repository for Hugging Face Kernels. The kernels are written in Rust. One build of the
repository works with every torch version from 2.10 on.

The activations have the same signatures as in `kernels-community/activation`: the first argument is `out`.
The rotary functions have the same signatures as in `kernels-community/rotary`. The module `layers` has the
layers for `kernels.kernelize` and for transformers' `KernelConfig`. All other functions are public functions
of the oxiwarp package.

This file imports `layers` and `activation`, and both import `_oxiwarp` from this file. These two import
cycles are intended.
"""

from . import layers
from ._ops import ops
from ._oxiwarp import (
    ada_norm,
    add_rms_norm,
    gated_residual,
    gated_residual_ada_norm,
    layer_norm,
    linear,
    qk_norm_rope,
    rms_norm,
    rms_norm_gated,
    rope,
    softmax,
)
from .activation import (
    fatrelu_and_mul,
    gelu,
    gelu_and_mul,
    gelu_fast,
    gelu_new,
    gelu_quick,
    gelu_tanh,
    gelu_tanh_and_mul,
    mul_and_silu,
    silu,
    silu_and_mul,
)
from .rotary import apply_rotary, apply_rotary_transformers

__all__ = [
    "ada_norm",
    "add_rms_norm",
    "apply_rotary",
    "apply_rotary_transformers",
    "fatrelu_and_mul",
    "gated_residual",
    "gated_residual_ada_norm",
    "gelu",
    "gelu_and_mul",
    "gelu_fast",
    "gelu_new",
    "gelu_quick",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "layer_norm",
    "layers",
    "linear",
    "mul_and_silu",
    "ops",
    "qk_norm_rope",
    "rms_norm",
    "rms_norm_gated",
    "rope",
    "silu",
    "silu_and_mul",
    "softmax",
]
