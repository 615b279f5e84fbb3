"""Benchmarks of `quantize_fp8`: scales per row, for `torch._scaled_mm`, and per 128 columns, for DeepGEMM."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from forms import BIT_EXACT, NO_MODE, Form, Inputs, Shape, Source
from torch import Tensor

import oxiwarp

BLOCK = 128
LARGEST = 448.0  # largest value of float8_e4m3fn
LEAST = 1e-4  # smallest maximum of a block in DeepGEMM

# Inputs of linear layers, at the sizes of FLUX.1, LTX-Video and Llama.
CASES = (
    ("Flux text", (1, 512, 3072)),
    ("Flux", (1, 4608, 3072)),
    ("Flux feed-forward", (1, 4608, 12288)),
    ("LTX 161 frames", (2, 8064, 2048)),
    ("LTX feed-forward", (2, 8064, 8192)),
    ("Llama 8B width", (1, 16384, 4096)),
    ("Llama 70B width", (1, 16384, 8192)),
    ("Llama 70B feed-forward", (1, 8192, 28672)),
)


def _inputs(source: Source, shape: Shape) -> Inputs:
    batch, tokens, cols = shape
    return {"x": source.normal(batch * tokens, cols, scale=2.0)}


def _cast(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Compute DeepGEMM's `per_token_cast_to_fp8`."""
    cols = x.shape[-1]
    parts = F.pad(x, (0, -cols % block)).unflatten(-1, (-1, block))
    scales = parts.abs().float().amax(-1).clamp(LEAST) / LARGEST
    values = parts * (1.0 / scales.unsqueeze(-1))
    return values.to(torch.float8_e4m3fn).flatten(-2)[..., :cols].contiguous(), scales


def _reference(cast: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return the float64 reference. The formula contains roundings to float32 and to 8 bits, so the reference
    makes the same roundings."""
    return lambda x: tuple(result.double() for result in cast(x.float()))


def _form(chain: str, block: int | None) -> Form:
    cast = lambda x: _cast(x, block or x.shape[-1])  # noqa: E731
    return Form(
        op="quantize_fp8",
        chain=chain,
        cases=CASES,
        inputs=_inputs,
        eager=cast,
        reference=_reference(cast),
        ours=lambda x: oxiwarp.quantize_fp8(x, block=block),
        claims={NO_MODE: BIT_EXACT},
    )


FAMILY = "quantization"
FORMS = (_form("scales per row", None), _form("scales per block", BLOCK))
