"""Benchmarks of `ada_norm_pair`, which applies two modulations to one norm."""

import references
import torch.nn.functional as F
from forms import Form, Inputs, Result, Shape, Source
from modulation import EPS
from torch import Tensor, cat, device, nn

import oxiwarp


def _inputs(source: Source, shape: Shape) -> Inputs:
    shift, scale, shift2, scale2 = source.modulation(shape[0], shape[-1], 4)
    x = source.normal(*shape, mean=0.5)
    return {"x": x, "scale": scale, "shift": shift, "scale2": scale2, "shift2": shift2}


def _eager(x: Tensor, scale: Tensor, shift: Tensor, scale2: Tensor, shift2: Tensor) -> Result:
    """Compute one norm with two modulations, as `SD35AdaLayerNormZeroX` does."""
    normed = F.layer_norm(x, x.shape[-1:], eps=EPS)
    return normed * (1 + scale) + shift, normed * (1 + scale2) + shift2


def _real(x: Tensor, scale: Tensor, shift: Tensor, scale2: Tensor, shift2: Tensor) -> Result:
    from diffusers.models.normalization import SD35AdaLayerNormZeroX

    with device("meta"):  # The linear layer of this module is replaced below, so its weights need no memory.
        module = SD35AdaLayerNormZeroX(x.shape[-1])
    module.linear = module.silu = nn.Identity()
    parts = (shift, scale, scale, scale, scale, scale, shift2, scale2, scale2)
    results = module(x, emb=cat([part[:, 0] for part in parts], dim=1))
    return results[0], results[5]


def _reference(x: Tensor, scale: Tensor, shift: Tensor, scale2: Tensor, shift2: Tensor) -> Result:
    normed = references.layer_norm(x, EPS)
    return normed * (1 + scale) + shift, normed * (1 + scale2) + shift2


def _ours(x: Tensor, scale: Tensor, shift: Tensor, scale2: Tensor, shift2: Tensor, mode: str) -> Result:
    return oxiwarp.ada_norm_pair(x, scale, shift, scale2, shift2, norm="layer_norm", eps=EPS, mode=mode)


FAMILY = "modulation"
FORMS = (
    Form(
        op="ada_norm_pair",
        chain="SD3.5",
        cases=(("SD3.5 medium", (2, 4096, 1536)), ("SD3.5 large width", (2, 4096, 2432))),
        inputs=_inputs,
        eager=_eager,
        reference=_reference,
        ours=_ours,
        real=_real,
    ),
)
