"""Benchmarks of `ada_norm`, `norm(x) * (1 + scale) + shift`, with the modulations of different models."""

import references
import torch.nn.functional as F
from forms import EXACT_AND_FAST, Form, Inputs, Peer, Shape, Source
from modulation import (
    EPS,
    by_token,
    inputs,
    inputs_index,
    inputs_wan,
    layer_norm_chain,
    real_rms_norm_chain,
    real_wan_chain,
    rms_norm_chain,
    wan_chain,
)
from torch import Tensor, cat, device, float32, nn

import oxiwarp

EPS_AFFINE = 1e-5


def _inputs_table(source: Source, shape: Shape) -> Inputs:
    shift_table, scale_table = source.normal(6, shape[-1], scale=0.3)[:2]
    return {**inputs(source, shape), "scale_table": scale_table, "shift_table": shift_table}


def _inputs_per_token(source: Source, shape: Shape) -> Inputs:
    batch, tokens, cols = shape
    embedding = source.normal(batch, tokens, 6, cols, scale=0.3, dtype=float32)
    return {"x": source.normal(*shape, mean=0.5), "scale": embedding[:, :, 1], "shift": embedding[:, :, 0]}


def _inputs_affine(source: Source, shape: Shape) -> Inputs:
    bias = source.normal(shape[-1], scale=0.3)
    return {**inputs(source, shape), "weight": source.weight(shape[-1]), "bias": bias}


def _table_chain(x: Tensor, scale: Tensor, shift: Tensor, scale_table: Tensor, shift_table: Tensor) -> Tensor:
    """Compute `ada_norm` as LTX and PixArt do. Scale and shift are sums of a time embedding and a learned
    table of the transformer block."""
    return rms_norm_chain(x, scale_table + scale, shift_table + shift)


def _inputs_torch_rms(source: Source, shape: Shape) -> Inputs:
    return {**inputs(source, shape), "weight": source.weight(shape[-1])}


def _torch_rms_chain(x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    """Compute `torch.nn.RMSNorm` and a modulation, as `MiniMaxH3TransformerBlock` does."""
    return F.rms_norm(x, x.shape[-1:], weight, EPS) * (1 + scale) + shift


def _index_chain(x: Tensor, scale: Tensor, shift: Tensor, index: Tensor) -> Tensor:
    """Compute LayerNorm and modulation as `QwenImageTransformerBlock` does for Qwen-Image-Edit."""
    return layer_norm_chain(x, by_token(scale, index), by_token(shift, index))


def _affine_chain(x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute norm and modulation as `CogVideoXLayerNormZero` does."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS_AFFINE) * (1 + scale) + shift


def _real(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    from diffusers.models.normalization import AdaLayerNormZero

    with device("meta"):  # The linear layer of this module is replaced below, so its weights need no memory.
        module = AdaLayerNormZero(x.shape[-1])
    module.linear = module.silu = nn.Identity()
    return module(x, emb=cat([p[:, 0] for p in (shift, scale, scale, scale, scale, scale)], dim=1))[0]


def _reference(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return references.layer_norm(x, EPS) * (1 + scale) + shift


def _reference_rms(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return references.rms_norm(x, EPS) * (1 + scale) + shift


def _layer_norm(x: Tensor, scale: Tensor, shift: Tensor, **options: object) -> Tensor:
    return oxiwarp.ada_norm(x, scale, shift, norm="layer_norm", eps=EPS, **options)


def _rms_norm(x: Tensor, scale: Tensor, shift: Tensor, **options: object) -> Tensor:
    return oxiwarp.ada_norm(x, scale, shift, norm="rms_norm", eps=EPS, **options)


def _torch_rms_norm(x: Tensor, scale: Tensor, shift: Tensor, **options: object) -> Tensor:
    return oxiwarp.ada_norm(x, scale, shift, norm="rms_norm", eps=EPS, rounding="once", **options)


def _affine(x: Tensor, scale: Tensor, shift: Tensor, **options: object) -> Tensor:
    return oxiwarp.ada_norm(x, scale, shift, norm="layer_norm", eps=EPS_AFFINE, **options)


FAMILY = "modulation"
FORMS = (
    Form(
        op="ada_norm",
        chain="LayerNorm: Flux, SD3, HunyuanVideo, Qwen-Image",
        cases=(
            ("Flux", (1, 4096, 3072)),
            ("Flux, single block", (1, 4608, 3072)),
            ("SD3", (2, 4096, 1536)),
            ("HunyuanVideo 720p", (1, 118800, 3072)),
        ),
        inputs=inputs,
        eager=layer_norm_chain,
        reference=_reference,
        ours=_layer_norm,
        real=_real,
    ),
    Form(
        op="ada_norm",
        chain="LayerNorm with weight and bias: CogVideoX",
        cases=(("CogVideoX 5B", (2, 17550, 3072)),),
        inputs=_inputs_affine,
        eager=_affine_chain,
        reference=lambda x, scale, shift, weight, bias: (
            references.layer_norm(x, EPS_AFFINE, weight, bias) * (1 + scale) + shift
        ),
        ours=_affine,
    ),
    Form(
        op="ada_norm",
        chain="RMSNorm without weight: LTX",
        cases=(("LTX 49 frames", (2, 2688, 2048)), ("LTX 161 frames", (2, 8064, 2048))),
        inputs=inputs,
        eager=rms_norm_chain,
        reference=_reference_rms,
        ours=_rms_norm,
        real=real_rms_norm_chain,
        peers={
            "Liger": Peer(
                "liger_kernel.ops.modulated_rms_norm",
                lambda liger, x, scale, shift: liger.modulated_rms_norm_forward(
                    x, None, scale, shift, EPS, 0.0, "llama"
                )[0],
            )
        },
    ),
    Form(
        op="ada_norm",
        chain="RMSNorm, table + time embedding: LTX",
        cases=(("LTX 161 frames, table", (2, 8064, 2048)),),
        inputs=_inputs_table,
        eager=_table_chain,
        reference=lambda x, scale, shift, scale_table, shift_table: _reference_rms(
            x, scale_table + scale, shift_table + shift
        ),
        ours=_rms_norm,
    ),
    Form(
        op="ada_norm",
        chain="torch.nn.RMSNorm with weight: MiniMax-H3",
        cases=(("MiniMax-H3", (1, 16384, 5376)), ("one token", (1, 1, 1536))),
        inputs=_inputs_torch_rms,
        eager=_torch_rms_chain,
        reference=lambda x, scale, shift, weight: references.rms_norm(x, EPS, weight) * (1 + scale) + shift,
        ours=_torch_rms_norm,
    ),
    Form(
        op="ada_norm",
        chain="LayerNorm, modulation chosen by token: Qwen-Image-Edit",
        cases=(("Qwen-Image-Edit", (1, 8192, 3072)),),
        inputs=inputs_index,
        eager=_index_chain,
        reference=lambda x, scale, shift, index: _reference(x, by_token(scale, index), by_token(shift, index)),
        ours=_layer_norm,
        chunked=False,
    ),
    Form(
        op="ada_norm",
        chain="float32 LayerNorm and modulation: Wan",
        cases=(("Wan 1.3B", (1, 32760, 1536)), ("Wan 14B", (1, 32760, 5120))),
        inputs=inputs_wan,
        eager=wan_chain,
        reference=_reference,
        ours=_layer_norm,
        real=real_wan_chain,
        claims=EXACT_AND_FAST,
    ),
    Form(
        op="ada_norm",
        chain="the same, per token: Wan 2.2 5B",
        cases=(("Wan 2.2 5B", (1, 27280, 3072)),),
        inputs=_inputs_per_token,
        eager=wan_chain,
        reference=_reference,
        ours=_layer_norm,
        real=real_wan_chain,
    ),
)
