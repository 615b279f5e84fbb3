"""Is a provider right? Against float64, with poisoned outputs, and measured by the eager chain's own error."""

from dataclasses import dataclass

import torch
from forms import Chain, Form, Inputs, Result, Shape, parts, prepare, tuple_of, wide
from torch import Tensor

# A single rounding of a 16-bit value is right whatever eager's error is; float32 has no such floor to fall back on.
LEAST = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-23}
EAGER_LIMIT = 8  # times LEAST: beyond it the chain and its reference are not the same formula


@dataclass(frozen=True)
class Error:
    """Of all outputs, the worst: |out - ref| / |ref|, and the largest difference of an element by |ref| + rms(ref)."""

    relative: float
    element: float

    def allowed_by(self, eager: "Error", dtype: torch.dtype) -> bool:
        """At most twice as far off as eager, as everywhere in this project; false for NaN."""
        least = LEAST[dtype]
        relative, element = max(2 * eager.relative, least), max(2 * eager.element, 4 * least)
        return self.relative <= relative and self.element <= element

    def within(self, limit: float) -> bool:
        """The same formula at all."""
        return self.relative <= limit and self.element <= 16 * limit


def run(form: Form, provider: Chain, inputs: Inputs, like: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
    """A provider's results. The allocator hands it blocks that are full of NaN: what it does not write stays NaN."""
    call = prepare(form, provider, inputs)
    poison = [torch.full_like(x, float("nan")) for x in like if x.is_floating_point()]
    del poison
    return tuple_of(call())


def error_of(form: Form, shape: Shape, inputs: Inputs, results: tuple[Tensor, ...]) -> Error:
    """Of results, against the float64 reference of the inputs, some tokens at a time."""
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
    """The form's float64 results, or gradients."""
    return prepare(form, form.reference, {name: wide(x) for name, x in inputs.items()})()
