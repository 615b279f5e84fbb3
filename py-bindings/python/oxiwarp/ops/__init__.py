"""The operators of the package. Each module defines an operator: its schema, its fake (meta) kernel and its
public functions.

The list `__all__` of a module contains its public functions. The package exports the public functions of the
modules that this file imports.
"""

from inspect import isfunction

from .activation import *  # noqa: F403
from .ada_norm import *  # noqa: F403
from .ada_norm_pair import *  # noqa: F403
from .add_rms_norm import *  # noqa: F403
from .attention import *  # noqa: F403
from .cross_entropy import *  # noqa: F403
from .gated_activation import *  # noqa: F403
from .gated_residual import *  # noqa: F403
from .gated_residual_ada_norm import *  # noqa: F403
from .layer_norm import *  # noqa: F403
from .linear import *  # noqa: F403
from .linear_fp8 import *  # noqa: F403
from .modulate import *  # noqa: F403
from .modulated_rms_norm import *  # noqa: F403
from .norm_gated_residual import *  # noqa: F403
from .qk_norm_rope import *  # noqa: F403
from .quantize_fp8 import *  # noqa: F403
from .residual_tanh_gated_rms_norm import *  # noqa: F403
from .rms_norm import *  # noqa: F403
from .rms_norm_gated import *  # noqa: F403
from .rope import *  # noqa: F403
from .softmax import *  # noqa: F403

FUNCTIONS = {
    name: value
    for name, value in sorted(globals().items())
    if isfunction(value) and value.__module__.startswith(f"{__name__}.")
}
"""Every public function, by name."""
# mypy understands an assignment to `__all__` only if the value is a literal. The next line sets `__all__`
# without an assignment, so mypy treats all names that are imported above as exported.
globals()["__all__"] = list(FUNCTIONS)
