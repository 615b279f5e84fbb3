"""Benchmarks of `add_rms_norm`: the residual addition in a decoder layer, and the norm that follows it."""

import references
from forms import NO_MODE, SAME_ROUNDINGS, Form, Inputs, Peer, Result, Shape, Source
from torch import Tensor

import oxiwarp

from .rms_norm import EPS, library, llama


def _inputs(source: Source, shape: Shape) -> Inputs:
    batch, tokens, cols = shape
    x, residual = source.normal(batch * tokens, cols), source.normal(batch * tokens, cols)
    return {"x": x, "residual": residual, "weight": source.weight(cols)}


def _eager(x: Tensor, residual: Tensor, weight: Tensor) -> Result:
    total = x + residual
    return llama(total, weight), total


def _library(x: Tensor, residual: Tensor, weight: Tensor) -> Result:
    total = x + residual
    return library(total, weight), total


def _reference(x: Tensor, residual: Tensor, weight: Tensor) -> Result:
    return references.rms_norm(x + residual, EPS, weight), x + residual


FAMILY = "norms"
FORMS = (
    Form(
        op="add_rms_norm",
        chain="Llama, Qwen, Mistral",
        cases=(
            ("LTX width", (1, 1024, 2048)),
            ("Llama 8B", (1, 8192, 4096)),
            ("Flux width", (1, 32768, 3072)),
            ("Llama 70B width", (1, 16384, 8192)),
            ("wide rows", (1, 4096, 32768)),
        ),
        inputs=_inputs,
        eager=_eager,
        reference=_reference,
        ours=lambda x, residual, weight: oxiwarp.add_rms_norm(x, residual, weight, EPS, rounding="before_weight"),
        claims={NO_MODE: SAME_ROUNDINGS},
        library=("F.rms_norm", _library),
        peers={
            "Liger": Peer(
                "liger_kernel.ops.fused_add_rms_norm",
                lambda liger, x, residual, weight: liger.fused_add_rms_norm_forward(
                    x, residual, weight, EPS, 0.0, "llama"
                )[:2],
            ),
            "QuACK": Peer(
                "quack",
                lambda quack, x, residual, weight: quack.rmsnorm(x, weight, residual=residual, eps=EPS, prenorm=True),
            ),
        },
    ),
)
