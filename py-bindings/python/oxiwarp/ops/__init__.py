"""The operators, one file each: schema, fake, public function."""

from .ada_norm import ada_norm, ada_norm_pair
from .add_rms_norm import add_rms_norm
from .gated_residual import gated_residual
from .gated_residual_ada_norm import gated_residual_ada_norm
from .layer_norm import layer_norm
from .modulated_rms_norm import modulated_rms_norm
from .residual_tanh_gated_rms_norm import residual_tanh_gated_rms_norm, residual_tanh_gated_rms_norm_modulated
from .rms_norm import rms_norm

__all__ = [
    "ada_norm",
    "ada_norm_pair",
    "add_rms_norm",
    "gated_residual",
    "gated_residual_ada_norm",
    "layer_norm",
    "modulated_rms_norm",
    "residual_tanh_gated_rms_norm",
    "residual_tanh_gated_rms_norm_modulated",
    "rms_norm",
]
