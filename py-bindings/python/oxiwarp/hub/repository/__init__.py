"""oxiwarp as a kernel of Hugging Face Kernels: kernels written in Rust, one build for every torch from 2.10 on.

The activations have the signatures of `kernels-community/activation`, whose first argument is `out`. The rotary
functions have the signatures of `kernels-community/rotary`. `layers` has the layers for `kernelize` and transformers'
`KernelConfig`. All remaining functions are the public operators of the oxiwarp package.

`layers` and `activation` import `_oxiwarp` from this file, and this file imports `layers` and `activation`. These two
import cycles are intended.
"""

from . import layers
from ._ops import ops
from ._oxiwarp import (
    ada_norm,
    add_rms_norm,
    gated_residual,
    gated_residual_ada_norm,
    layer_norm,
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
