"""Benchmarks of the elementwise activations: `silu`, `relu2`, and five variants of `gelu`."""

import math
from collections.abc import Callable

import references
import torch
import torch.nn.functional as F
from forms import Form, Inputs, Shape, Source
from torch import Tensor

import oxiwarp


def _inputs(source: Source, shape: Shape) -> Inputs:
    return {"x": source.normal(*shape, scale=2.0)}


def _new(x: Tensor) -> Tensor:
    """Compute transformers' `NewGELUActivation`, which launches nine kernels."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _fast(x: Tensor) -> Tensor:
    """Compute transformers' `FastGELUActivation`."""
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def _quick(x: Tensor) -> Tensor:
    """Compute transformers' `QuickGELUActivation`, which is diffusers' `ApproximateGELU`."""
    return x * torch.sigmoid(1.702 * x)


def _relu2(x: Tensor) -> Tensor:
    """Compute transformers' `ReLUSquaredActivation`."""
    return torch.square(F.relu(x))


def _real(name: str) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        from transformers.activations import ACT2FN

        return ACT2FN[name](x)

    return call


def _form(
    op: str, chain: str, eager: Callable[[Tensor], Tensor], reference: Callable[[Tensor], Tensor], real: str, *cases
):
    return Form(
        op=op,
        chain=chain,
        cases=cases,
        inputs=_inputs,
        eager=eager,
        reference=reference,
        ours=lambda x, mode: getattr(oxiwarp, op)(x, mode=mode),
        real=_real(real),
    )


FLUX = ("Flux", (1, 4608, 12288))
FAMILY = "activations"
FORMS = (
    _form("gelu", "erf", lambda x: F.gelu(x), references.gelu, "gelu", FLUX),
    _form(
        "gelu_tanh",
        "tanh",
        lambda x: F.gelu(x, approximate="tanh"),
        references.gelu_tanh,
        "gelu_pytorch_tanh",
        FLUX,
        ("LTX 161 frames", (2, 8064, 8192)),
        ("Wan 14B", (1, 32760, 13824)),
    ),
    _form("gelu_new", "GPT-2, BERT", _new, references.gelu_tanh, "gelu_new", FLUX),
    _form("gelu_fast", "GPT-J", _fast, references.gelu_tanh, "gelu_fast", FLUX),
    _form("gelu_quick", "CLIP", _quick, lambda x: x / (1 + torch.exp(-1.702 * x)), "quick_gelu", FLUX),
    _form("silu", "Llama", lambda x: F.silu(x), references.silu, "silu", ("Llama 8B", (1, 8192, 14336))),
    _form("relu2", "Nemotron", _relu2, _relu2, "relu2", ("Nemotron 4B", (1, 8192, 9216))),
)
