"""Checks a provider's results against float64. The limit is a multiple of the eager chain's error.

Memory for the results is filled with NaN before the call, so a missing write is an error.
"""

from dataclasses import dataclass

import torch
from forms import Chain, Form, Inputs, Result, Shape, parts, prepare, tuple_of, wide
from torch import Tensor

# Relative error that is always allowed. For 16-bit types it is a single rounding.
LEAST = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-23}
EAGER_LIMIT = 8  # times LEAST; with a larger error the eager chain and its reference have different formulas


@dataclass(frozen=True)
class Error:
    """Largest errors of all outputs: |out - ref| / |ref| of norms, and per element relative to |ref| + rms(ref)."""

    relative: float
    element: float

    def allowed_by(self, eager: "Error", dtype: torch.dtype) -> bool:
        """Whether the error is at most twice that of the eager chain, or within `LEAST`. False for NaN."""
        least = LEAST[dtype]
        relative, element = max(2 * eager.relative, least), max(2 * eager.element, 4 * least)
        return self.relative <= relative and self.element <= element

    def within(self, limit: float) -> bool:
        """Whether the error is so small that both formulas are the same."""
        return self.relative <= limit and self.element <= 16 * limit


def run(form: Form, provider: Chain, inputs: Inputs, like: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
    """Run a provider. The allocator gives it blocks full of NaN, so elements that are not written stay NaN."""
    call = prepare(form, provider, inputs)
    poison = [torch.full_like(x, float("nan")) for x in like if x.is_floating_point()]
    del poison
    return tuple_of(call())


def error_of(form: Form, shape: Shape, inputs: Inputs, results: tuple[Tensor, ...]) -> Error:
    """Return the error of results against the float64 reference, computed for some tokens at a time."""
    outputs = dict(enumerate(results))
    together = parts({**inputs, **outputs}, shape[1], form.chunked)
    zero = torch.zeros((), dtype=torch.float64, device=results[0].device)
    off, right, largest, count = ([zero] * len(results) for _ in range(4))
    peaks: list[list[Tensor]] = [[] for _ in results]
    for part in together:
        expected = tuple_of(reference(form, {name: x for name, x in part.items() if isinstance(name, str)}))
        for at, ref in enumerate(expected):
            difference = (part[at].double() - ref).abs()
            off[at] = off[at] + difference.square().sum()
            right[at] = right[at] + ref.square().sum()
            count[at] = count[at] + ref.numel()
            scale = ref.square().mean().sqrt()
            peaks[at].append((difference / (ref.abs() + scale)).max())
    relative = max(((a / b).sqrt() for a, b in zip(off, right, strict=True)), key=_nan_first)
    element = max((torch.stack(peak).max() for peak in peaks), key=_nan_first)
    return Error(relative.item(), element.item())


def _nan_first(x: Tensor) -> float:
    value = x.item()
    return float("inf") if value != value else value


def reference(form: Form, inputs: Inputs) -> Result:
    """Return the form's results or gradients in float64."""
    return prepare(form, form.reference, {name: wide(x) for name, x in inputs.items()})()
