"""GPU kernels written in Rust, as PyTorch operators and as drop-in replacements for the norms of a model.

    import oxiwarp

    y = oxiwarp.rms_norm(x, weight, eps=1e-6)          # one operator
    print(oxiwarp.patch(pipe))                         # a diffusers pipeline, a transformers model, any module

Importing it registers the operators `torch.ops.oxiwarp.*`; nothing touches a GPU before the first call.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import _native, _register
from .ops import (
    ada_norm,
    ada_norm_pair,
    add_rms_norm,
    cross_entropy,
    fatrelu_and_mul,
    gated_residual,
    gated_residual_ada_norm,
    geglu,
    gelu,
    gelu_and_mul,
    gelu_fast,
    gelu_new,
    gelu_quick,
    gelu_tanh,
    gelu_tanh_and_mul,
    layer_norm,
    modulated_rms_norm,
    mul_and_silu,
    qk_norm_rope,
    residual_tanh_gated_rms_norm,
    residual_tanh_gated_rms_norm_modulated,
    rms_norm,
    rope,
    rope_1d,
    rope_3d,
    silu,
    silu_and_mul,
    softmax,
    swiglu,
)
from .patch import patch, patched, unpatch
from .report import Report, Row

try:
    __version__ = version("oxiwarp")
except PackageNotFoundError:  # a source tree on the path
    __version__ = "0.0.0"

_register.register_kernels()


def kernel_info() -> list[dict[str, Any]]:
    """The kernels in this wheel: a dict per op, dtype and architecture, with keys `op`, `dtype`, `arch` and `entries`.

    `entries` are the names in the PTX, one for each kind of launch.
    """
    return _native.kernel_info()


__all__ = [
    "Report",
    "Row",
    "__version__",
    "ada_norm",
    "ada_norm_pair",
    "add_rms_norm",
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
    "kernel_info",
    "layer_norm",
    "modulated_rms_norm",
    "mul_and_silu",
    "patch",
    "patched",
    "qk_norm_rope",
    "residual_tanh_gated_rms_norm",
    "residual_tanh_gated_rms_norm_modulated",
    "rms_norm",
    "rope",
    "rope_1d",
    "rope_3d",
    "silu",
    "silu_and_mul",
    "softmax",
    "swiglu",
    "unpatch",
]
