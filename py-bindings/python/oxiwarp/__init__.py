"""GPU kernels written in Rust, as PyTorch operators and as drop-in replacements for the norms of a model.

    import oxiwarp

    y = oxiwarp.rms_norm(x, weight, eps=1e-6)          # one operator
    print(oxiwarp.patch(pipe))                         # a diffusers pipeline, a transformers model, any module

Importing it registers the operators `torch.ops.oxiwarp.*`; nothing touches a GPU before the first call.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import _native, ops
from .ops import *  # noqa: F403  the operators' public functions, listed there
from .ops import _register
from .patching import patch, patched, unpatch
from .patching.report import Report, Row

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


__all__ = ["Report", "Row", "__version__", "kernel_info", "patch", "patched", "unpatch"]
__all__ += ops.FUNCTIONS
