"""Benchmarks of the matrix product `linear`. A shape is batch, tokens, K and N: `x` has K columns, and the
result N.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from forms import EXACT_AND_FAST, NO_MODE, SAME_ROUNDINGS, Form, Inputs, Peer, Shape, Source
from torch import Tensor

import oxiwarp

SEPARATE = "cuBLAS and oxiwarp"
"""The product by `F.linear`, and the epilogue by a kernel of its own."""


def _inputs(source: Source, shape: Shape) -> Inputs:
    batch, tokens, depth, columns = shape
    return {"x": source.normal(batch, tokens, depth), "weight": source.normal(columns, depth, scale=depth**-0.5)}


def _inputs_bias(source: Source, shape: Shape) -> Inputs:
    return {**_inputs(source, shape), "bias": source.normal(shape[-1])}


def _form(chain: str, inputs: Callable[[Source, Shape], Inputs], *cases: tuple[str, Shape]) -> Form:
    return Form(
        op="linear",
        chain=chain,
        cases=cases,
        inputs=inputs,
        eager=F.linear,
        reference=F.linear,
        ours=oxiwarp.linear,
        claims={NO_MODE: SAME_ROUNDINGS},
        chunked=False,  # K or N may be equal to the number of tokens
        dtypes=(torch.bfloat16, torch.float16),
    )


def _inputs_gate(source: Source, shape: Shape) -> Inputs:
    batch, tokens, _, columns = shape
    (gate,) = source.modulation(batch, columns, 1)
    return {**_inputs_bias(source, shape), "residual": source.normal(batch, tokens, columns), "gate": gate}


def _gelu_tanh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def _gated_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, gate: Tensor) -> Tensor:
    return residual + gate * F.linear(x, weight, bias)


def _swiglu(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


def _with_epilogue(
    chain: str,
    inputs: Callable[[Source, Shape], Inputs],
    eager: Callable[..., Tensor],
    epilogue: str | None,
    *cases: tuple[str, Shape],
) -> Form:
    def separate(x: Tensor, weight: Tensor, bias: Tensor | None = None, **operands: Tensor) -> Tensor:
        y = F.linear(x, weight, bias)
        if epilogue is None:
            return oxiwarp.gated_residual(operands["residual"], y, operands["gate"])
        return getattr(oxiwarp, epilogue)(y)

    return Form(
        op="linear",
        chain=chain,
        cases=cases,
        inputs=inputs,
        eager=eager,
        reference=eager,
        ours=functools.partial(oxiwarp.linear, epilogue=epilogue),
        claims={**EXACT_AND_FAST, "exact": SAME_ROUNDINGS},
        peers={SEPARATE: Peer("oxiwarp", lambda _, **inputs: separate(**inputs))},
        chunked=False,  # K or N may be equal to the number of tokens
        dtypes=(torch.bfloat16, torch.float16),
    )


FAMILY = "products"
FORMS = (
    _form(
        "with bias",
        _inputs_bias,
        ("SDXL out", (2, 4096, 640, 640)),
        ("Flux out", (1, 4608, 3072, 3072)),
        ("Flux qkv", (1, 4608, 3072, 9216)),
        ("Flux ff1", (1, 4096, 3072, 12288)),
        ("Flux ff2", (1, 4096, 12288, 3072)),
        ("Flux single in", (1, 4608, 3072, 21504)),
        ("Flux single out", (1, 4608, 15360, 3072)),
        ("LTX 161 frames qkv", (2, 8064, 2048, 6144)),
        ("LTX 161 frames ff1", (2, 8064, 2048, 8192)),
        ("LTX 161 frames ff2", (2, 8064, 8192, 2048)),
        ("Wan 1.3B ff1", (1, 32760, 1536, 8960)),
        ("Wan 14B ff1", (1, 32760, 5120, 13824)),
        ("Wan 14B ff2", (1, 32760, 13824, 5120)),
    ),
    _form(
        "without bias",
        _inputs,
        ("SDXL q", (2, 4096, 640, 640)),
        ("Llama 8B gate and up", (1, 8192, 4096, 28672)),
        ("Llama 8B down", (1, 8192, 14336, 4096)),
        ("square", (1, 8192, 8192, 8192)),
    ),
    _form(
        "few rows",
        _inputs,
        *(
            (f"{rows} rows", (1, rows, depth, columns))
            for depth, columns in ((3072, 3072), (4096, 24576), (12288, 4096), (3072, 18432))
            for rows in (1, 8, 16, 32, 64)
        ),
    ),
    _with_epilogue(
        "with bias and tanh GELU",
        _inputs_bias,
        _gelu_tanh,
        "gelu_tanh",
        ("PixArt ff1", (2, 4096, 1152, 4608)),
        ("Flux ff1", (1, 4096, 3072, 12288)),
        ("Flux single in", (1, 4608, 3072, 12288)),
        ("LTX 161 frames ff1", (2, 8064, 2048, 8192)),
        ("Wan 1.3B ff1", (1, 32760, 1536, 8960)),
    ),
    _with_epilogue(
        "with bias and gated residual",
        _inputs_gate,
        _gated_residual,
        None,
        ("PixArt out", (2, 4096, 1152, 1152)),
        ("Flux out", (1, 4608, 3072, 3072)),
        ("Flux ff2", (1, 4096, 12288, 3072)),
        ("LTX 161 frames ff2", (2, 8064, 8192, 2048)),
        ("Wan 14B ff2", (1, 32760, 13824, 5120)),
    ),
    _with_epilogue(
        "with SwiGLU",
        _inputs,
        _swiglu,
        "silu_and_mul",
        ("Qwen3 0.6B gate and up", (1, 8192, 1024, 6144)),
        ("Llama 8B gate and up", (1, 8192, 4096, 28672)),
    ),
)
