"""Checks the results of an implementation against float64. The error limit is twice the error of the model's
torch code.

Before the implementation runs, the memory for its results is filled with NaN. If the implementation does not
write an element, this element stays NaN, and the check fails.
"""

from dataclasses import dataclass

import torch
from forms import Chain, Form, Inputs, Result, Shape, parts, prepare, tuple_of, wide
from torch import Tensor

# A relative error of at most this value is always allowed. For bfloat16 and float16, it is the largest
# relative error of a single rounding.
LEAST = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-23}
# The error of the model's torch code may be at most this factor times LEAST. A larger error means that the
# torch code and the float64 reference compute different formulas.
EAGER_LIMIT = 8


@dataclass(frozen=True)
class Error:
    """The two errors of a result `out` against the float64 reference `ref`.

    `relative` is norm(out - ref) / norm(ref). `element` is the maximum of |out - ref| / (|ref| + rms(ref))
    over all elements.
    """

    relative: float
    element: float

    def allowed_by(self, eager: "Error", dtype: torch.dtype) -> bool:
        """Return True if the error is at most twice `eager`, the error of the model's torch code. Errors of a few
        roundings are always allowed: up to `LEAST` for `relative`, and up to 4 times `LEAST` for `element`.

        Return False if the error is NaN.
        """
        least = LEAST[dtype]
        relative, element = max(2 * eager.relative, least), max(2 * eager.element, 4 * least)
        return self.relative <= relative and self.element <= element

    def within(self, limit: float) -> bool:
        """Return True if `relative` is at most `limit`, and `element` at most 16 times `limit`."""
        return self.relative <= limit and self.element <= 16 * limit


def run(form: Form, provider: Chain, inputs: Inputs, like: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
    """Run an implementation and return its results. They are allocated in memory full of NaN, so unwritten
    elements stay NaN."""
    call = prepare(form, provider, inputs)
    poison = [torch.full_like(x, float("nan")) for x in like if x.is_floating_point()]
    del poison
    return tuple_of(call())


def error_of(form: Form, shape: Shape, inputs: Inputs, results: tuple[Tensor, ...]) -> Error:
    """Return the error of `results` against the float64 reference. The reference is computed for a few tokens
    at a time, to save memory."""
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
    """Return the results or gradients of a benchmarked op in float64."""
    return prepare(form, form.reference, {name: wide(x) for name, x in inputs.items()})()
