"""What is measured: the ops, their shapes and bytes, the float64 reference, and who computes each of them.

Every provider takes the op's inputs and the weight, allocates its own outputs and returns them. The chain is what model
code writes (diffusers' and LLaMA's RMSNorm); providers that are not installed are left out, with a line that says so.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6
DTYPE = torch.bfloat16
WORST = 2.0**-6  # of an element, relative: two roundings to bfloat16 and some slack
Outputs = tuple[Tensor, ...]
Provider = Callable[..., Any]

# The RMSNorm table of the project's baselines: (rows, columns).
SHAPES = (
    (512, 3072),
    (1024, 2048),
    (2048, 3072),
    (4096, 2048),
    (8192, 3072),
    (16384, 3072),
    (32768, 3072),
    (16384, 4096),
    (16384, 8192),
    (4096, 32768),
)
QUICK = ((1024, 2048), (8192, 3072), (32768, 3072))


@dataclass(frozen=True)
class Op:
    """An op: inputs and outputs are `tensors_in` and `tensors_out` tensors of rows x columns, and one weight."""

    name: str
    tensors_in: int
    tensors_out: int
    shapes: tuple[tuple[int, int], ...]
    reference: Callable[..., Outputs]
    providers: Callable[[], dict[str, Provider]]

    def bytes(self, rows: int, cols: int) -> int:
        """The fewest bytes: each tensor read or written once, the weight read once."""
        return self.input_bytes(rows, cols) + self.output_bytes(rows, cols) + cols * DTYPE.itemsize

    def input_bytes(self, rows: int, cols: int) -> int:
        """Of the inputs of one call, without the weight."""
        return self.tensors_in * rows * cols * DTYPE.itemsize

    def output_bytes(self, rows: int, cols: int) -> int:
        """Of the results of one call."""
        return self.tensors_out * rows * cols * DTYPE.itemsize

    def inputs(self, rows: int, cols: int, device: torch.device) -> Outputs:
        """Fresh random inputs."""
        return tuple(torch.randn(rows, cols, device=device, dtype=DTYPE) for _ in range(self.tensors_in))


def chain(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as models write it: pow, mean, rsqrt, cast, weight."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * h.to(x.dtype)


def library(x: Tensor, weight: Tensor) -> Tensor:
    """torch's own."""
    return F.rms_norm(x, weight.shape, weight, EPS)


def _after_add(norm: Provider) -> Provider:
    """The same norm after a residual addition, both results returned."""

    def add_then_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Outputs:
        added = x + residual
        return norm(added, weight), added

    return add_then_norm


def _reference(x: Tensor, weight: Tensor) -> Outputs:
    x = x.double()
    return (x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double(),)


def _reference_add(x: Tensor, residual: Tensor, weight: Tensor) -> Outputs:
    added = (x.double() + residual.double()).to(DTYPE)
    return *_reference(added, weight), added.double()


def _rms_norm_providers() -> dict[str, Provider]:
    import oxiwarp

    found: dict[str, Provider] = {
        "oxiwarp": lambda x, weight: oxiwarp.rms_norm(x, weight, EPS),
        "eager": chain,
        "F.rms_norm": library,
        "torch.compile(chain)": torch.compile(chain, dynamic=False),
        "torch.compile(F.rms_norm)": torch.compile(library, dynamic=False),
    }
    if liger := _optional("liger_kernel.ops.rms_norm"):
        found["Liger"] = lambda x, weight: liger.rms_norm_forward(x, weight, EPS, 0.0, "llama", None)[0]
    if quack := _optional("quack"):
        found["QuACK"] = lambda x, weight: quack.rmsnorm(x, weight, eps=EPS)
    return found


def _add_rms_norm_providers() -> dict[str, Provider]:
    import oxiwarp

    found: dict[str, Provider] = {
        "oxiwarp": lambda x, residual, weight: oxiwarp.add_rms_norm(x, residual, weight, EPS),
        "eager": _after_add(chain),
        "F.rms_norm": _after_add(library),
        "torch.compile(chain)": torch.compile(_after_add(chain), dynamic=False),
        "torch.compile(F.rms_norm)": torch.compile(_after_add(library), dynamic=False),
    }
    if liger := _optional("liger_kernel.ops.fused_add_rms_norm"):
        found["Liger"] = lambda x, residual, weight: liger.fused_add_rms_norm_forward(
            x, residual, weight, EPS, 0.0, "llama"
        )[:2]
    if quack := _optional("quack"):
        found["QuACK"] = lambda x, residual, weight: quack.rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True)
    return found


OPS = (
    Op("rms_norm", 1, 1, SHAPES, _reference, _rms_norm_providers),
    Op("add_rms_norm", 2, 2, (*SHAPES, (8192, 4096)), _reference_add, _add_rms_norm_providers),
)


def _optional(module: str) -> Any | None:
    """A peer's module, or None: its absence must not stop the benchmark."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a peer that fails to import is absent, whatever it raises
        if module not in _said:
            print(f"{module}: not measured ({type(error).__name__}: {error})")
            _said.add(module)
        return None


_said: set[str] = set()


def _chunks(rows: int, cols: int) -> Iterator[slice]:
    """Rows at a time, so that the float64 reference stays small."""
    step = max(1, 2**25 // cols)
    return (slice(start, start + step) for start in range(0, rows, step))


def error_of(op: Op, provider: Provider, inputs: Outputs, weight: Tensor) -> tuple[float, float]:
    """Relative error of a provider's outputs, |out - ref| / |ref|, and of the worst element; NaN stays NaN."""
    rows, cols = inputs[0].shape
    # The allocator hands these blocks to the provider's outputs: what it does not write stays NaN.
    poison = [torch.full_like(inputs[0], float("nan")) for _ in range(op.tensors_out)]
    del poison
    result = provider(*inputs, weight)
    outputs = result if isinstance(result, tuple) else (result,)
    off = right = worst = torch.zeros((), dtype=torch.float64, device=weight.device)
    for part in _chunks(rows, cols):
        expected = op.reference(*(x[part] for x in inputs), weight)
        for out, ref in zip(outputs, expected, strict=True):
            difference = (out[part].double() - ref).abs()
            off, right = off + difference.pow(2).sum(), right + ref.pow(2).sum()
            worst = torch.maximum(worst, (difference / ref.abs().clamp_min(1e-30)).max())
    return (off / right).sqrt().item(), worst.item()


def is_right(error: tuple[float, float], library_error: tuple[float, float]) -> bool:
    """At most twice as far off as torch's own, as everywhere in this project, and no element beyond the roundings."""
    return error[0] <= 2 * library_error[0] < 1e-2 and error[1] <= WORST


__all__ = ["DTYPE", "OPS", "QUICK", "Op", "Provider", "error_of", "is_right"]
