"""Norms and modulations as diffusers' transformers compute them, for the benchmarks of the fused operators."""

import torch.nn.functional as F
from forms import Inputs, Shape, Source
from torch import Tensor, float32, rsqrt, where

EPS = 1e-6


def inputs(source: Source, shape: Shape) -> Inputs:
    """Return `x`, and a scale vector and a shift vector for each batch entry.

    As in diffusers, scale and shift are slices of one tensor.
    """
    shift, scale = source.modulation(shape[0], shape[-1], 2)
    return {"x": source.normal(*shape, mean=0.5), "scale": scale, "shift": shift}


def inputs_wan(source: Source, shape: Shape) -> Inputs:
    """Return inputs with a float32 modulation, as in Wan."""
    shift, scale = source.modulation(shape[0], shape[-1], 2, float32)
    return {"x": source.normal(*shape, mean=0.5), "scale": scale, "shift": shift}


def inputs_index(source: Source, shape: Shape) -> Inputs:
    """Return `x`, two rows of scale and shift, and the row for each token, as Qwen-Image-Edit has them."""
    batch, tokens, cols = shape
    shift, scale = (source.normal(2, cols, scale=0.3) for _ in range(2))
    index = source.indices(batch * tokens, 2).view(batch, tokens)
    return {"x": source.normal(*shape, mean=0.5), "scale": scale, "shift": shift, "index": index}


def by_token(modulation: Tensor, index: Tensor) -> Tensor:
    """Return the row of a modulation for each token, as `QwenImageTransformerBlock._modulate` does."""
    return where(index.unsqueeze(-1) == 0, modulation[:1].unsqueeze(1), modulation[1:].unsqueeze(1))


def layer_norm_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute LayerNorm and modulation as diffusers' AdaLayerNormZero does (Flux, SD3, HunyuanVideo,
    Qwen-Image). Each of the four steps rounds its result."""
    return F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift


def rms_norm_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute RMSNorm (without a weight), and then a modulation, as LTXVideoTransformerBlock does."""
    variance = x.to(float32).pow(2).mean(-1, keepdim=True)
    return (x * rsqrt(variance + EPS)).to(x.dtype) * (1 + scale) + shift


def wan_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute norm and modulation as in WanTransformerBlock: all steps in float32, with one cast at the
    end."""
    return (F.layer_norm(x.float(), x.shape[-1:], eps=EPS) * (1 + scale) + shift).type_as(x)


def real_rms_norm_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute RMSNorm and modulation with diffusers' class for LTX-Video."""
    from diffusers.models.normalization import RMSNorm

    return RMSNorm(x.shape[-1], EPS, elementwise_affine=False)(x) * (1 + scale) + shift


def real_wan_chain(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute norm and modulation with diffusers' class for Wan."""
    from diffusers.models.normalization import FP32LayerNorm

    norm = FP32LayerNorm(x.shape[-1], EPS, elementwise_affine=False)
    return (norm(x.float()) * (1 + scale) + shift).type_as(x)
