"""GPU kernels written in Rust, as PyTorch operators and as replacements for modules of a model.

    import oxiwarp

    y = oxiwarp.rms_norm(x, weight, eps=1e-6)  # call one operator
    print(oxiwarp.patch(pipe))  # patch a diffusers pipeline, a transformers model or a module

Importing the package registers the operators `torch.ops.oxiwarp.*`. It does not initialize a GPU.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from . import _native, ops
from .ops import *  # noqa: F403  the operators' public functions
from .ops import _register
from .patching import patch, patched, unpatch
from .patching.report import Report, Row
from .patching.rewrite.recipe import patched_source

try:
    __version__ = version("oxiwarp")
except PackageNotFoundError:  # oxiwarp is imported from a source tree that is not installed
    __version__ = "0.0.0"

_register.register_kernels()


def kernel_info() -> list[dict[str, Any]]:
    """Return the kernels in this wheel: a list with one dict per operator, dtype and GPU architecture.

    Args:
        None.

    Returns:
        List of dicts with the keys `op`, `dtype`, `arch` and `entries`. `entries` lists the names of the
        kernels, as the PTX defines them with `.entry`.

    Raises:
        Nothing.

    Example:
        >>> sorted(oxiwarp.kernel_info()[0])
        ['arch', 'dtype', 'entries', 'op']
    """
    return _native.kernel_info()


__all__ = ["Report", "Row", "__version__", "kernel_info", "patch", "patched", "patched_source", "unpatch"]
__all__ += ops.FUNCTIONS


def __dir__() -> list[str]:
    """Return only the public names of the package, so that tab completion does not show imported modules."""
    return __all__
