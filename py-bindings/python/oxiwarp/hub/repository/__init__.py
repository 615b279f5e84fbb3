"""oxiwarp as a kernel of Hugging Face Kernels: kernels written in Rust, one build for every torch from 2.10 on.

Functions have the signatures of `kernels-community/activation` (`out` first) and of `kernels-community/rotary`;
`layers` holds what `kernelize` and transformers' `KernelConfig` take. The other operators are those of the package.

`layers` and `activation` import `_oxiwarp` from here, while this file imports them: two import cycles, which go no
further than these three files.
"""

from . import layers
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
    "qk_norm_rope",
    "rms_norm",
    "rms_norm_gated",
    "rope",
    "silu",
    "silu_and_mul",
    "softmax",
]
