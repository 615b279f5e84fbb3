"""Benchmarks of `modulate`, `x * (1 + scale) + shift`."""

import torch
from forms import Form, Inputs, Shape, Source
from modulation import by_token, inputs_index
from torch import Tensor

import oxiwarp


def _eager(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute CogView4's modulation. A kernel cannot compute it together with the norm before it, because other layers
    of CogView4 also use the norm's result.
    """
    return x * (1 + scale) + shift


def _wide(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute the modulation in float32, with one cast at the end."""
    return (x.float() * (1 + scale) + shift).to(x.dtype)


def _inputs(source: Source, shape: Shape, dtype: torch.dtype | None = None) -> Inputs:
    shift, scale = source.modulation(shape[0], shape[-1], 2, dtype)
    return {"x": source.normal(*shape), "scale": scale, "shift": shift}


def _ours(x: Tensor, scale: Tensor, shift: Tensor, mode: str) -> Tensor:
    return oxiwarp.modulate(x, scale, shift, mode=mode)


FAMILY = "modulation"
FORMS = (
    Form(
        op="modulate",
        chain="CogView4, GLM-Image",
        cases=(("CogView4", (2, 4096, 4096)), ("large", (1, 65536, 4096))),
        inputs=_inputs,
        eager=_eager,
        reference=_eager,
        ours=_ours,
    ),
    Form(
        op="modulate",
        chain="chosen by token: Qwen-Image-Edit",
        cases=(("Qwen-Image-Edit", (1, 8192, 3072)),),
        inputs=inputs_index,
        eager=lambda x, scale, shift, index: _eager(x, by_token(scale, index), by_token(shift, index)),
        reference=lambda x, scale, shift, index: _eager(x, by_token(scale, index), by_token(shift, index)),
        ours=lambda x, scale, shift, index, mode: oxiwarp.modulate(x, scale, shift, index=index, mode=mode),
        chunked=False,
    ),
    Form(
        op="modulate",
        chain="float32 modulation",
        cases=(("Wan 1.3B", (1, 32760, 1536)),),
        inputs=lambda source, shape: _inputs(source, shape, torch.float32),
        eager=_wide,
        reference=_eager,
        ours=_ours,
    ),
)
