"""Activations with the same signatures as in `kernels-community/activation`.

Each function writes its result to its first argument `out`, and returns `out`.
"""

from collections.abc import Callable

from torch import Tensor

from . import _oxiwarp


def out_first(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function `run(out, x)` that calls `function(x, out=out)`."""

    def run(out: Tensor, x: Tensor) -> Tensor:
        return function(x, out=out)

    run.__name__ = run.__qualname__ = function.__name__
    run.__doc__ = f"`oxiwarp.{function.__name__}(x)`, written into `out`."
    return run


gelu = out_first(_oxiwarp.gelu)
gelu_fast = out_first(_oxiwarp.gelu_fast)
gelu_new = out_first(_oxiwarp.gelu_new)
gelu_quick = out_first(_oxiwarp.gelu_quick)
gelu_tanh = out_first(_oxiwarp.gelu_tanh)
silu = out_first(_oxiwarp.silu)
gelu_and_mul = out_first(_oxiwarp.gelu_and_mul)
gelu_tanh_and_mul = out_first(_oxiwarp.gelu_tanh_and_mul)
mul_and_silu = out_first(_oxiwarp.mul_and_silu)
silu_and_mul = out_first(_oxiwarp.silu_and_mul)


def fatrelu_and_mul(out: Tensor, x: Tensor, threshold: float = 0.0) -> Tensor:
    """Write `oxiwarp.fatrelu_and_mul(x, threshold=threshold)` to `out` and return it."""
    return _oxiwarp.fatrelu_and_mul(x, threshold=threshold, out=out)
