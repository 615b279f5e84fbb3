"""Benchmarks of the matrix product `linear`. A shape is batch, tokens, K and N: `x` has K columns, and the
result N.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from exactness_cell import ONE_ROUNDING
from forms import NO_MODE, SAME_ROUNDINGS, Chain, Form, Inputs, Peer, Shape, Source
from torch import Tensor

import oxiwarp

SEPARATE = "cuBLAS and oxiwarp"
"""The product by `F.linear`, and the epilogue by a kernel of oxiwarp."""


def _inputs(source: Source, shape: Shape) -> Inputs:
    batch, tokens, depth, columns = shape
    return {"x": source.normal(batch, tokens, depth), "weight": source.normal(columns, depth, scale=depth**-0.5)}


def _inputs_bias(source: Source, shape: Shape) -> Inputs:
    return {**_inputs(source, shape), "bias": source.normal(shape[-1])}


def _inputs_residual(source: Source, shape: Shape) -> Inputs:
    batch, tokens, _, columns = shape
    gate = source.modulation(batch, columns, 3)[2]
    return {**_inputs_bias(source, shape), "residual": source.normal(batch, tokens, columns), "gate": gate}


def _gelu_tanh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def _gated_residual(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, gate: Tensor) -> Tensor:
    return residual + gate * F.linear(x, weight, bias)


def _silu_and_mul(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


def _form(
    chain: str,
    inputs: Callable[[Source, Shape], Inputs],
    *cases: tuple[str, Shape],
    eager: Chain = F.linear,
    ours: Chain = oxiwarp.linear,
    separate: Chain | None = None,
) -> Form:
    """Return a form of `linear`. `separate` computes the epilogue with a kernel of its own."""
    peers = {} if separate is None else {SEPARATE: Peer("oxiwarp", lambda _, **inputs: separate(**inputs))}
    return Form(
        op="linear",
        chain=chain,
        cases=cases,
        inputs=inputs,
        eager=eager,
        reference=eager,
        ours=ours,
        claims={NO_MODE: SAME_ROUNDINGS} if separate is None else {"exact": SAME_ROUNDINGS, "fast": ONE_ROUNDING},
        peers=peers,
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
            for depth, columns in ((4096, 24576), (12288, 4096), (3072, 18432), (3072, 3072))
            for rows in (1, 8, 16, 32, 64)
        ),
    ),
    _form(
        "GELU with tanh",
        _inputs_bias,
        ("Flux ff1", (1, 4096, 3072, 12288)),
        ("LTX 161 frames ff1", (2, 8064, 2048, 8192)),
        ("Wan 1.3B ff1", (1, 32760, 1536, 8960)),
        ("Wan 14B ff1", (1, 32760, 5120, 13824)),
        eager=_gelu_tanh,
        ours=partial(oxiwarp.linear, epilogue="gelu_tanh"),
        separate=lambda x, weight, bias: oxiwarp.gelu_tanh(F.linear(x, weight, bias)),
    ),
    _form(
        "gated residual",
        _inputs_residual,
        ("Flux out", (1, 4608, 3072, 3072)),
        ("Flux ff2", (1, 4096, 12288, 3072)),
        ("Flux single out", (1, 4608, 15360, 3072)),
        ("LTX 161 frames ff2", (2, 8064, 8192, 2048)),
        ("Wan 14B ff2", (1, 32760, 13824, 5120)),
        eager=_gated_residual,
        separate=lambda x, weight, bias, residual, gate: oxiwarp.gated_residual(
            residual, F.linear(x, weight, bias), gate
        ),
    ),
    _form(
        "SwiGLU",
        _inputs,
        ("Llama 8B gate and up", (1, 8192, 4096, 28672)),
        eager=_silu_and_mul,
        ours=partial(oxiwarp.linear, epilogue="silu_and_mul"),
        separate=lambda x, weight: oxiwarp.silu_and_mul(F.linear(x, weight)),
    ),
)
