"""Benchmarks of the matrix product of 8-bit floats, `linear_fp8`, with one scale per row. A shape is batch, tokens, K
and N: `x` has K columns, and the result N.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from forms import NO_MODE, SAME_ROUNDINGS, Form, Inputs, Peer, Shape, Source
from torch import Tensor

import oxiwarp

OTHER = {"float32": "_scaled_mm fast", "fast": "_scaled_mm"}
"""The name of torch's product with the other kind of accumulation, by the kind of the benchmark."""


def _inputs(source: Source, shape: Shape) -> Inputs:
    batch, tokens, depth, columns = shape
    x, x_scale = oxiwarp.quantize_fp8(source.normal(batch * tokens, depth))
    weight, weight_scale = oxiwarp.quantize_fp8(source.normal(columns, depth, scale=depth**-0.5))
    bias = source.normal(columns)
    return {"x": x, "x_scale": x_scale, "weight": weight, "weight_scale": weight_scale, "bias": bias}


def _scaled_mm(accumulate: str) -> Callable[..., Tensor]:
    def product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor) -> Tensor:
        return torch._scaled_mm(
            x,
            weight.t(),
            scale_a=x_scale,
            scale_b=weight_scale.t(),
            bias=bias,
            out_dtype=bias.dtype,
            use_fast_accum=accumulate == "fast",
        )

    return product


def _reference(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x * x_scale, weight * weight_scale, bias)


def _form(chain: str, accumulate: str, *cases: tuple[str, Shape]) -> Form:
    (other,) = {*OTHER} - {accumulate}
    return Form(
        op="linear_fp8",
        chain=chain,
        cases=cases,
        inputs=_inputs,
        eager=_scaled_mm(accumulate),
        reference=_reference,
        ours=lambda **inputs: oxiwarp.linear_fp8(**inputs, accumulate=accumulate),
        claims={NO_MODE: SAME_ROUNDINGS},
        peers={OTHER[accumulate]: Peer("torch", lambda _, **inputs: _scaled_mm(other)(**inputs))},
        chunked=False,  # K or N may be equal to the number of tokens
        dtypes=(torch.bfloat16,),
    )


LARGE = (
    ("Flux out", (1, 4608, 3072, 3072)),
    ("Flux qkv", (1, 4608, 3072, 9216)),
    ("Flux ff1", (1, 4096, 3072, 12288)),
    ("Flux ff2", (1, 4096, 12288, 3072)),
    ("Flux single in", (1, 4608, 3072, 21504)),
    ("Flux single out", (1, 4608, 15360, 3072)),
    ("LTX 161 frames ff1", (2, 8064, 2048, 8192)),
    ("LTX 161 frames ff2", (2, 8064, 8192, 2048)),
    ("Wan 14B ff1", (1, 32760, 5120, 13824)),
    ("Wan 14B ff2", (1, 32760, 13824, 5120)),
    ("Llama 8B gate and up", (1, 8192, 4096, 28672)),
    ("Llama 8B down", (1, 8192, 14336, 4096)),
)
FEW = tuple(
    (f"{rows} rows", (1, rows, depth, columns))
    for depth, columns in ((3072, 3072), (4096, 24576), (12288, 4096), (3072, 18432))
    for rows in (1, 8, 16, 32, 64)
)
FAMILY = "products"
FORMS = (
    _form("8-bit, accumulation in float32", "float32", *LARGE),
    _form("8-bit, fast accumulation", "fast", *LARGE),
    _form("8-bit, few rows", "float32", *FEW),
)
