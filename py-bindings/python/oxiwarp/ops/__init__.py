"""The operators, one file each: schema, fake, public function."""

from .activation import gelu, gelu_fast, gelu_new, gelu_quick, gelu_tanh, silu
from .add_rms_norm import add_rms_norm
from .gated_activation import (
    fatrelu_and_mul,
    geglu,
    gelu_and_mul,
    gelu_tanh_and_mul,
    mul_and_silu,
    silu_and_mul,
    swiglu,
)
from .rms_norm import rms_norm

__all__ = [
    "add_rms_norm",
    "fatrelu_and_mul",
    "geglu",
    "gelu",
    "gelu_and_mul",
    "gelu_fast",
    "gelu_new",
    "gelu_quick",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "mul_and_silu",
    "rms_norm",
    "silu",
    "silu_and_mul",
    "swiglu",
]
