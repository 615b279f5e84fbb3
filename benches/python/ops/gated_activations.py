"""Benchmarks of gated activations: GEGLU, SwiGLU, and the ops whose names end in `_and_mul`.

Input and gate are either the halves of one tensor or two separate tensors.
"""

from collections.abc import Callable

import references
import torch
import torch.nn.functional as F
from forms import Chain, Form, Inputs, Peer, Shape, Source
from torch import Tensor, nn

import oxiwarp

THRESHOLD = 0.125
LLAMA = ("Llama 8B", (1, 8192, 14336))


def _packed(source: Source, shape: Shape) -> Inputs:
    """Return a tensor `x` whose last dimension contains the input and the gate, one after the other. Each has
    `shape[-1]` columns."""
    return {"x": source.normal(*shape[:-1], 2 * shape[-1], scale=1.5)}


def _two(source: Source, shape: Shape, second: str = "gate") -> Inputs:
    return {"x": source.normal(*shape, scale=1.5), second: source.normal(*shape, scale=1.5)}


def _first(activation: Callable[[Tensor], Tensor]) -> Chain:
    """Return a function that computes `activation(first half) * second half`."""

    def chain(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return activation(first) * second

    return chain


def _second(activation: Callable[[Tensor], Tensor]) -> Chain:
    """Return a function that computes `first half * activation(second half)`, as diffusers does."""

    def chain(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return first * activation(second)

    return chain


def _tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _fatrelu(x: Tensor) -> Tensor:
    return F.threshold(x, THRESHOLD, 0.0)


def _real(name: str) -> Chain:
    """Return a function that calls diffusers' module without its projection."""

    def call(x: Tensor) -> Tensor:
        from diffusers.models import activations

        module = getattr(activations, name)(1, 1)
        module.proj = nn.Identity()
        return module(x)

    return call


def _form(op: str, chain: str, eager: Chain, reference: Chain, cases: tuple, **more: object) -> Form:
    """Create the benchmark of an op whose input and gate are in one tensor."""
    given = {"inputs": _packed, "ours": lambda x, mode: getattr(oxiwarp, op)(x, mode=mode), **more}
    return Form(op=op, chain=chain, cases=cases, eager=eager, reference=reference, **given)  # type: ignore[arg-type]


def _fatrelu_reference(x: Tensor) -> Tensor:
    return torch.where(x > THRESHOLD, x, 0.0)


SWIGLU_PACKED = Peer("liger_kernel.ops.swiglu", lambda liger, x: liger.swiglu_fused_gate_up_forward(x)[1])

FAMILY = "activations"
FORMS = (
    _form(
        "geglu",
        "packed, erf: SDXL",
        _second(F.gelu),
        _second(references.gelu),
        (("SDXL", (2, 4096, 2560)), ("SDXL", (2, 1024, 5120)), ("small", (2, 1024, 4096))),
        real=_real("GEGLU"),
    ),
    _form(
        "geglu",
        "packed, tanh",
        _second(_tanh),
        _second(references.gelu_tanh),
        (("SDXL width, tanh", (2, 4096, 2560)),),
        ours=lambda x, mode: oxiwarp.geglu(x, approximate="tanh", mode=mode),
        timed=False,
    ),
    _form(
        "swiglu",
        "packed: Mochi",
        _second(F.silu),
        _second(references.silu),
        (("Mochi 480p, 163 frames", (1, 44520, 8192)),),
        real=_real("SwiGLU"),
    ),
    _form(
        "swiglu",
        "two tensors: Llama, Qwen",
        lambda x, gate: F.silu(gate) * x,
        lambda x, gate: references.silu(gate) * x,
        (LLAMA,),
        inputs=_two,
        ours=lambda x, gate, mode: oxiwarp.swiglu(x, gate, mode=mode),
        peers={"Liger": Peer("liger_kernel.ops.swiglu", lambda liger, x, gate: liger.swiglu_forward(gate, x)[2])},
    ),
    _form(
        "silu_and_mul",
        "packed",
        _first(F.silu),
        _first(references.silu),
        (LLAMA,),
        peers={"Liger": SWIGLU_PACKED},
    ),
    _form("mul_and_silu", "packed", _second(F.silu), _second(references.silu), (LLAMA,)),
    _form("gelu_and_mul", "packed", _first(F.gelu), _first(references.gelu), (LLAMA,)),
    _form(
        "gelu_tanh_and_mul", "packed", _first(_tanh), _first(references.gelu_tanh), (("Gemma 7B", (1, 8192, 24576)),)
    ),
    _form(
        "gelu_tanh_and_mul",
        "two tensors: Gemma",
        lambda x, up: _tanh(x) * up,
        lambda x, up: references.gelu_tanh(x) * up,
        (("Gemma 7B, two tensors", (1, 8192, 24576)),),
        inputs=lambda source, shape: _two(source, shape, "up"),
        ours=lambda x, up, mode: oxiwarp.gelu_tanh_and_mul(x, up, mode=mode),
        peers={"Liger": Peer("liger_kernel.ops.geglu", lambda liger, x, up: liger.geglu_forward(x, up)[2])},
    ),
    _form(
        "sigmoid_and_mul",
        "two tensors: Krea 2, Qwen3-Next",
        lambda x, up: torch.sigmoid(x) * up,
        lambda x, up: torch.sigmoid(x) * up,
        (("Qwen3-Next", (1, 8192, 4096)), ("LLaMA width", (1, 8192, 14336))),
        inputs=lambda source, shape: _two(source, shape, "up"),
        ours=lambda x, up, mode: oxiwarp.sigmoid_and_mul(x, up, mode=mode),
    ),
    _form(
        "relu2_and_mul",
        "two tensors: BitNet",
        lambda x, up: torch.square(F.relu(x)) * up,
        lambda x, up: torch.square(F.relu(x)) * up,
        (("BitNet", (1, 8192, 6912)), ("LLaMA width", (1, 8192, 14336))),
        inputs=lambda source, shape: _two(source, shape, "up"),
        ours=lambda x, up, mode: oxiwarp.relu2_and_mul(x, up, mode=mode),
    ),
    _form(
        "fatrelu_and_mul",
        "packed",
        _first(_fatrelu),
        _first(_fatrelu_reference),
        (LLAMA,),
        ours=lambda x, mode: oxiwarp.fatrelu_and_mul(x, threshold=THRESHOLD, mode=mode),
    ),
)
