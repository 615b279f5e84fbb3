"""The operators, one file each: schema, fake, public function."""

from .activation import gelu, gelu_fast, gelu_new, gelu_quick, gelu_tanh, silu
from .ada_norm import ada_norm
from .ada_norm_pair import ada_norm_pair
from .add_rms_norm import add_rms_norm
from .attention import attention
from .cross_entropy import cross_entropy
from .gated_activation import (
    fatrelu_and_mul,
    geglu,
    gelu_and_mul,
    gelu_tanh_and_mul,
    mul_and_silu,
    silu_and_mul,
    swiglu,
)
from .gated_residual import gated_residual
from .gated_residual_ada_norm import gated_residual_ada_norm
from .layer_norm import layer_norm
from .modulated_rms_norm import modulated_rms_norm
from .qk_norm_rope import qk_norm_rope
from .residual_tanh_gated_rms_norm import residual_tanh_gated_rms_norm, residual_tanh_gated_rms_norm_modulated
from .rms_norm import rms_norm
from .rms_norm_gated import rms_norm_gated
from .rope import rope, rope_1d, rope_3d
from .softmax import softmax

__all__ = [
    "ada_norm",
    "ada_norm_pair",
    "add_rms_norm",
    "attention",
    "cross_entropy",
    "fatrelu_and_mul",
    "gated_residual",
    "gated_residual_ada_norm",
    "geglu",
    "gelu",
    "gelu_and_mul",
    "gelu_fast",
    "gelu_new",
    "gelu_quick",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "layer_norm",
    "modulated_rms_norm",
    "mul_and_silu",
    "qk_norm_rope",
    "residual_tanh_gated_rms_norm",
    "residual_tanh_gated_rms_norm_modulated",
    "rms_norm",
    "rms_norm_gated",
    "rope",
    "rope_1d",
    "rope_3d",
    "silu",
    "silu_and_mul",
    "softmax",
    "swiglu",
]
