"""Recognises modules that compute an RMSNorm in float32 and multiply it by an argument, such as Mochi's
`norm(x, 1 + scale)`.

For each class of modules, `patch` runs one module on small tensors and compares the result with the expected
formula.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..class_swap import base_of
from ..fusions.core.modules import has_hooks, hooks_everywhere
from ..norms.probe import undisturbed
from ..norms.recognise import is_candidate
from .operands import FLOAT, Norm, norm_of

WIDTH = 8
_known: dict[type, bool] = {}
"""By class: whether its modules compute an RMSNorm in float32 times a factor."""


def is_known(cls: type) -> bool:
    """Return whether an earlier call of `probe` found that modules of class `cls` compute an RMSNorm times a
    factor."""
    return _known.get(cls, False)


# With this attribute, Dynamo treats the result of `is_known` as a constant, and only guards on the class.
is_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


def probe(module: Any) -> str | None:
    """Return None if `module` computes an RMSNorm times a factor. Otherwise return a reason for the
    report."""
    cls, inner = base_of(module), inner_norm(module)
    if inner is None:
        return f"{cls.__name__} is no known norm"
    if cls not in _known:
        with undisturbed():
            _known[cls] = all(agrees(module, inner, dtype) for dtype in (torch.float32, torch.bfloat16))
    return None if _known[cls] else f"{cls.__name__} is no known norm"


def agrees(module: nn.Module, inner: nn.Module, dtype: torch.dtype) -> bool:
    """Return whether the result of `module(x, factor)` has the same bits as `inner(x.float()) * factor`, cast
    to the dtype of `x`."""
    x, factor = torch.randn(2, 5, WIDTH, device="cpu").to(dtype), torch.randn(2, 1, WIDTH, device="cpu")
    forward, own = (getattr(base_of(one), "forward") for one in (module, inner))  # noqa: B009
    for scale in (factor, factor.to(dtype)):
        try:
            y = forward(module, x, scale)
        except Exception:  # noqa: BLE001  any error means that the module does not take these arguments
            return False
        wanted = (own(inner, x.float()) * scale).to(dtype)
        if not isinstance(y, Tensor) or y.dtype != dtype or not torch.equal(y, wanted):
            return False
    return True


def inner_norm(module: Any) -> Any:
    """Return the only submodule of `module`, if it is an RMSNorm without weight and `module` has no
    parameters. Otherwise return None.
    """
    if not isinstance(module, nn.Module) or module._parameters or module._buffers:
        return None
    inner: Any = next(iter(module._modules.values())) if len(module._modules) == 1 else None
    plain = isinstance(inner, nn.Module) and is_candidate(inner) and not inner._buffers
    return inner if plain and all(one is None for one in inner._parameters.values()) else None


def eps_of(module: Any, x: Tensor) -> float | str:
    """Return the eps of `module`, a norm that `probe` recognised, or a reason why no kernel computes the
    norm."""
    inner = inner_norm(module)
    if inner is None or not is_known(base_of(module)):
        return "the norm has another formula"
    if hooks_everywhere() or has_hooks(module):
        return "the norm has hooks"
    norm = norm_of(inner, x, wide=True)
    if not isinstance(norm, Norm):
        return norm
    return norm.eps if norm.kind == "rms_norm" and x.shape[-1] > 0 else "the norm has another formula"


__all__ = ["FLOAT", "eps_of", "probe"]
