"""Finds the formula that the original `forward` of a norm computes. To do this, the code runs the `forward`
on a small random tensor. It compares the result with the result of each formula that the kernel can compute.

The random tensor has rows of several magnitudes, which show where the `forward` adds `eps`, and whether it
clamps values. Random weights show whether the `forward` adds an offset to the weight, and where it rounds. A
norm is not replaced if the result of its `forward` depends on the training mode or on the rank of the input.
"""

import copy
import itertools
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from ..class_swap import RECIPE, Unsuitable, base_of

PROBE_COLS = 64  # row length for a module without a known row length
HALVES = (torch.bfloat16, torch.float16)
MAX_RANK = 5
"""The largest rank of a tensor, as in `[B, T, H, W, C]`, for which the `forward` is checked.

For tensors of a larger rank, the original `forward` runs.
"""
CONTAINERS = (list, dict, set, bytearray)

DtypePair = tuple[torch.dtype, torch.dtype | None]


@dataclass(frozen=True)
class Formula:
    """Arguments with which `oxiwarp.rms_norm` computes and rounds like the original `forward` of a module."""

    uses_weight: bool
    weight_offset: float
    round_before_weight: bool


@dataclass(frozen=True)
class GatedFormula:
    """Arguments with which `oxiwarp.rms_norm_gated` computes and rounds like the original `forward` of a module."""

    round_before_weight: bool
    activation: str
    gate_first: bool


def probe(
    module: nn.Module, weight: Tensor | None, eps: float, name: str = "weight", gated: bool = False
) -> dict[DtypePair, Any]:
    """Return a dict that maps pairs (input dtype, weight dtype) to formulas. Each formula gives the same results as the
    original `forward` of `module` for these dtypes.

    Pairs of dtypes for which there is no such formula are not in the dict. `name` is the name of the weight parameter.
    If `gated` is True, the `forward` takes a tensor and a gate, and the formulas have the type `GatedFormula` instead
    of `Formula`.
    """
    shape = getattr(module, "normalized_shape", None)
    # FSDP and ZeRO-3 gather the weight only during a call of the module, so it has no elements here. The
    # probe then uses rows of `PROBE_COLS` elements.
    cols = len(weight) if weight is not None else shape[-1] if isinstance(shape, tuple) and shape else PROBE_COLS
    cols = cols or PROBE_COLS
    found: dict[DtypePair, Any] = {}
    with undisturbed():
        for pair in pairs(weight is not None, gated):
            x, w = probe_tensors(cols, pair, eps)
            mixed = pair[0] == torch.float32 and pair[1] in HALVES
            inputs = (x, probe_gate(x.to(pair[1]) if mixed else x)) if gated else (x,)
            y = own_forward(module, inputs, w, name)
            formula = match(y, inputs, w, eps)
            if formula is not None:
                if not found:
                    check_steady(module, inputs, w, y, name)
                found[pair] = formula
    return found


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run a probe (a call with small random tensors on the CPU) independently of the caller's torch state,
    and preserve the caller's random state.

    During the probe, the torch modes of the caller are off, because the fake tensor mode, for example, would create
    tensors without values. Transforms of torch.func are off, because vmap rejects random tensors. Autograd, autocast
    and warnings are off, too: torch.nn.RMSNorm, for example, warns if weight and input have different dtypes.
    """
    off: tuple[AbstractContextManager[Any], ...] = (
        temporarily_clear_interpreter_stack(),
        _disable_current_modes(),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    )
    with ExitStack() as stack:
        for manager in off:
            stack.enter_context(manager)
        warnings.simplefilter("ignore")
        yield


def check_steady(module: nn.Module, inputs: tuple[Tensor, ...], w: Tensor | None, y: Tensor, name: str) -> None:
    """Raise `Unsuitable` if the result of the original `forward` depends on the training mode or on the rank
    of the input.

    `y` is the result of this `forward` in evaluation mode, for `inputs` and the weight `w`.
    """
    if not same_values(own_forward(module, inputs, w, name, training=True), y):
        raise Unsuitable("its own forward differs between training and evaluation")
    ranks = (lambda t: t[0, 0], lambda t: t[0], lambda t: t[:, None], lambda t: t[:, None, :, None])
    for of_rank in ranks:
        rows, result = tuple(map(of_rank, inputs)), of_rank(y)
        if not same_values(own_forward(module, rows, w, name), result):
            raise Unsuitable(f"its own forward differs for a tensor of rank {result.dim()}")


def pairs(with_weight: bool, gated: bool) -> Iterator[DtypePair]:
    """Yield the pairs (input dtype, weight dtype) for which a kernel exists.

    If `gated` is True, the input may also be float32 while weight and gate are 16-bit, because a norm with a gate casts
    both to float32.
    """
    for dtype in (torch.float32, *HALVES):
        yield dtype, dtype if with_weight else None
        if with_weight and dtype in HALVES:
            yield dtype, torch.float32
            if gated:
                yield torch.float32, dtype


def probe_tensors(cols: int, pair: DtypePair, eps: float) -> tuple[Tensor, Tensor | None]:
    """Return two tensors: a random input `x` of shape `[2, 5, cols]`, and a random weight with a mean near 1
    and some negative values.

    `pair` has the dtype of `x`, and the dtype of the weight or None. The five rows of `x` have the magnitudes
    1, 30, sqrt(eps), 0.03, and a large number whose square does not overflow float32.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    of: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # torch's default dtype and device may be different
    small, large = (1e-12, 1e4) if pair[0] == torch.float16 else (1e-30, 1e15)
    scale = torch.tensor([1.0, 30.0, max(eps, small) ** 0.5, 0.03, large], **of)[None, :, None]
    x = torch.randn(2, 5, cols, generator=generator, **of) * scale
    w = torch.randn(cols, generator=generator, **of) * 0.5 + 1.0
    w[1::8] *= -4
    return x.to(pair[0]), None if pair[1] is None else w.to(pair[1])


def probe_gate(x: Tensor) -> Tensor:
    """Return a random gate with the shape and dtype of `x`.

    Some elements are so large that the activation of the gate saturates.
    """
    generator = torch.Generator("cpu").manual_seed(1)
    gate = torch.randn(x.shape, generator=generator, dtype=torch.float32, device="cpu") * 3
    gate[..., ::16] *= 10
    return gate.to(x.dtype)


def own_forward(
    module: nn.Module, inputs: tuple[Tensor, ...], w: Tensor | None, weight: str, training: bool = False
) -> Any:
    """Run the original `forward` on a copy of the module. In this copy, the tensor `w` replaces the parameter
    with the name `weight`.

    Return the result of the `forward`, or the exception that it raised.
    """
    cls: Any = base_of(module)
    # Call `object.__new__` instead of `cls.__new__`, because FSDP2 gives modules a class whose `__new__`
    # creates an object of a different class.
    probed: Any = object.__new__(cls)
    probed.__dict__.update({name: own_value(value, module, probed) for name, value in module.__dict__.items()})
    probed.__dict__.pop(RECIPE, None)
    probed.__dict__["training"] = training
    for name in ("_parameters", "_buffers"):
        held = dict(module.__dict__[name])
        if held.get(weight) is not None:
            held[weight] = nn.Parameter(w, requires_grad=False) if name == "_parameters" and w is not None else w
        probed.__dict__[name] = held
    try:
        return cls.forward(probed, *inputs)
    except Exception as error:  # noqa: BLE001  any error means that no formula matches
        return error


def own_value(value: Any, module: nn.Module, probed: nn.Module) -> Any:
    """Return the value for an attribute of `probed`, a copy of `module`. `value` is the attribute's value in
    `module`.

    Containers such as lists are copied, because a `forward` may modify them. A method that is bound to
    `module` is bound to `probed` instead.
    """
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, probed)
    return copy.copy(value) if isinstance(value, CONTAINERS) else value


def match(y: Any, inputs: tuple[Tensor, ...], w: Tensor | None, eps: float) -> Formula | GatedFormula | None:
    """Return the formula whose result for `inputs` and the weight `w` has the same roundings as `y`.

    Return None if no formula matches.
    """
    x, *gates = inputs
    if not isinstance(y, Tensor) or y.dtype != x.dtype or y.shape != x.shape:
        return None
    if gates:
        choices = itertools.product((True, False), ("silu", "sigmoid"), (False, True))
        gated = (GatedFormula(*choice) for choice in choices)
        return next((made for made in gated if same_roundings(y, reference_gated(x, gates[0], w, eps, made))), None)
    weighted = [Formula(True, offset, before) for offset in (0.0, 1.0) for before in (False, True)]
    for formula in [*(weighted if w is not None else []), Formula(False, 0.0, False)]:
        if same_roundings(y, reference(x, w, eps, formula)):
            return formula
    return None


def reference(x: Tensor, w: Tensor | None, eps: float, formula: Formula) -> Tensor:
    """Compute with torch's operators what `oxiwarp.rms_norm` computes for the arguments in `formula`.

    This function casts at the points where the kernel of `oxiwarp.rms_norm` rounds.
    """
    h = x.float()
    n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if w is None or not formula.uses_weight:
        return n.to(x.dtype)
    if formula.round_before_weight:
        n = n.to(x.dtype).float()
    return (n * (w.float() + formula.weight_offset)).to(x.dtype)


def reference_gated(x: Tensor, gate: Tensor, w: Tensor | None, eps: float, formula: GatedFormula) -> Tensor:
    """Compute `oxiwarp.rms_norm_gated` for the arguments `formula`, but with torch's operators."""
    h, g = x.float(), getattr(torch.nn.functional, formula.activation)(gate.float())
    h = h * g if formula.gate_first else h
    n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if w is not None:
        n = n.to(x.dtype) * w if formula.round_before_weight else n * w.float()
    return (n if formula.gate_first else n.float() * g).to(x.dtype)


def same_values(y: Any, r: Tensor) -> bool:
    """Return whether `y` equals `r` except for rounding errors."""
    if not isinstance(y, Tensor) or y.shape != r.shape:
        return False
    return torch.allclose(y.float(), r.float(), rtol=max(2e-6, 2 * torch.finfo(r.dtype).eps), atol=1e-30)


def same_roundings(y: Tensor, r: Tensor) -> bool:
    """Return whether `y` and `r` differ so little that both can have the same roundings, with only another
    order of a float32 sum.

    A different order of the sum changes less than one 16-bit value in a thousand, by one unit in the last place. An
    additional or missing cast changes about one value in four. The limit is between the two: one 16-bit value in a
    hundred may differ, by one unit in the last place.
    """
    if y.dtype == torch.float32:
        return torch.allclose(y, r, rtol=2e-6, atol=1e-30)
    off = (y.view(torch.int16).int() - r.view(torch.int16).int()).abs()
    return bool(off.max() <= 1 and (off != 0).float().mean() <= 0.01)


__all__ = ["MAX_RANK", "DtypePair", "Formula", "GatedFormula", "probe"]
