"""Benchmarks of `qk_norm_rope`: norms of q and k, per head or across all heads, followed by RoPE."""

from collections.abc import Callable
from typing import Any

import references
import rotary
import torch
import torch.nn.functional as F
from forms import Chain, Form, Inputs, Result, Shape, Source
from torch import Tensor

import oxiwarp

from .rms_norm import llama, t5

EPS, EPS_LTX = 1e-6, 1e-5
TEXT = 226  # number of text tokens in CogVideoX


def _weights(source: Source, inputs: Inputs, cols: int) -> Inputs:
    return {**inputs, "q_weight": source.weight(cols), "k_weight": source.weight(cols)}


def _inputs_flux(source: Source, shape: Shape) -> Inputs:
    cos, sin = rotary.tables(source, shape[1], shape[-1])
    return _weights(source, {"q": source.normal(*shape), "k": source.normal(*shape), "cos": cos, "sin": sin}, shape[-1])


def _inputs_ltx(source: Source, shape: Shape) -> Inputs:
    cos, sin = rotary.tables(source, *shape)
    return _weights(source, {"q": source.normal(*shape), "k": source.normal(*shape), "cos": cos, "sin": sin}, shape[-1])


def _inputs_wan(source: Source, shape: Shape) -> Inputs:
    """Return q and k `[B, S, H * D]`, not split into heads. All heads share one pair of cos and sin
    tables."""
    batch, tokens, heads, dim = shape
    cos, sin = rotary.tables(source, 1, tokens, 1, dim)
    q, k = source.normal(batch, tokens, heads * dim), source.normal(batch, tokens, heads * dim)
    return _weights(source, {"q": q, "k": k, "cos": cos, "sin": sin}, heads * dim)


def _inputs_mochi(source: Source, shape: Shape) -> Inputs:
    """Return inputs whose cos and sin tables differ per head. The tables have one entry per rotated pair of
    elements."""
    cos, sin = (table[..., ::2].contiguous() for table in rotary.tables(source, *shape[1:]))
    q, k = source.normal(*shape), source.normal(*shape)
    return _weights(source, {"q": q, "k": k, "cos": cos, "sin": sin}, shape[-1])


def _inputs_qwen3(source: Source, shape: Shape) -> Inputs:
    batch, tokens, heads, dim = shape
    cos, sin = rotary.half_tables(source, batch, tokens, dim)
    q, k = source.normal(*shape), source.normal(batch, tokens, heads // 4, dim)
    return _weights(source, {"q": q, "k": k, "cos": cos, "sin": sin}, dim)


def _inputs_cogvideox(source: Source, shape: Shape) -> Inputs:
    """Return inputs whose first tokens are text tokens. RoPE leaves text tokens unchanged. The norms have
    biases."""
    text = min(TEXT, shape[1] // 2)
    cos, sin = rotary.tables(source, shape[1] - text, shape[-1])
    inputs = {"q": source.normal(*shape), "k": source.normal(*shape), "cos": cos, "sin": sin}
    biases = {name: source.normal(shape[-1], scale=0.3) for name in ("q_bias", "k_bias")}
    return _weights(source, inputs, shape[-1]) | biases


def _of_both(normed: Callable[[Tensor, Tensor], Tensor], turned: Callable[..., Tensor]) -> Chain:
    """Return a function that normalizes and rotates q and k."""

    def chain(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor, k_weight: Tensor) -> Result:
        return turned(normed(q, q_weight), cos, sin), turned(normed(k, k_weight), cos, sin)

    return chain


def _torch_norm(eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, weight: F.rms_norm(x, weight.shape, weight, eps)


def _reference_norm(eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, weight: references.rms_norm(x, eps, weight)


def _reference_flux(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return references.rotate(x, cos[:, None], sin[:, None])


def _mochi_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Compute diffusers' `MochiRMSNorm`."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(variance + EPS) * weight).to(x.dtype)


def _reference_mochi(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return references.rotate(x, *(table.repeat_interleave(2, dim=-1) for table in (cos, sin)))


def _wan_turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotary.wan(x.unflatten(2, (-1, cos.shape[-1])), cos, sin)


def _reference_wan(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return references.rotate(x.unflatten(2, (-1, cos.shape[-1])), cos, sin)


def _qwen3_turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotary.llama(x.transpose(1, 2), cos, sin)


def _reference_qwen3(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return references.rotate_halves(x.transpose(1, 2), cos[:, None], sin[:, None])


def _cogvideox(normed: Callable[..., Tensor], turned: Callable[..., Tensor]) -> Chain:
    """Return a function that computes norm and RoPE as `CogVideoXAttnProcessor2_0` does. It does not rotate
    text tokens, which come first."""

    def chain(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **affine: Tensor) -> Result:
        q, k = (normed(x, affine[f"{name}_weight"], affine[f"{name}_bias"]) for name, x in (("q", q), ("k", k)))
        for x in (q, k):
            video = x[:, x.shape[1] - cos.shape[0] :]
            video.copy_(turned(video, cos, sin))
        return q, k

    return chain


def _torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, EPS)


def _reference_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return references.layer_norm(x, EPS, weight, bias)


# The following functions call oxiwarp.
def _ours(eps: float = EPS, **how: object) -> Chain:
    def call(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mode: str, **weights: Tensor) -> Result:
        return oxiwarp.qk_norm_rope(q, k, cos, sin, eps=eps, mode=mode, **weights, **how)

    return call


def _ours_wan(cos: Tensor, **inputs: Any) -> Result:
    dim = cos.shape[-1]
    return tuple(x.unflatten(2, (-1, dim)) for x in _ours(across_heads=True, head_dim=dim)(cos=cos, **inputs))


def _ours_mochi(cos: Tensor, sin: Tensor, **inputs: Any) -> Result:
    return _ours(norm="mochi_rms_norm")(cos=cos[None], sin=sin[None], **inputs)


def _ours_qwen3(**inputs: Any) -> Result:
    return tuple(x.transpose(1, 2) for x in _ours(norm="llama_rms_norm", interleaved=False)(**inputs))


def _inputs_positions(source: Source, shape: Shape) -> Inputs:
    """Return the inputs of Qwen3, with tables of more rows than tokens, and a position for each token."""
    batch, tokens, _, dim = shape
    cos, sin = rotary.half_tables(source, 2 * tokens, dim)
    positions = source.indices(batch * tokens, 2 * tokens).view(batch, tokens)
    return _inputs_qwen3(source, shape) | {"cos": cos, "sin": sin, "positions": positions}


def _chosen(chain: Chain) -> Chain:
    """Return a function that calls `chain` with the rows of the tables that positions choose."""
    return lambda cos, sin, positions, **inputs: chain(cos=cos[positions], sin=sin[positions], **inputs)


def _ours_positions(positions: Tensor, **inputs: Any) -> Result:
    call = _ours(norm="llama_rms_norm", interleaved=False, positions=positions)
    return tuple(x.transpose(1, 2) for x in call(**inputs))


def _ours_cogvideox(q: Tensor, cos: Tensor, **inputs: Any) -> Result:
    return _ours(norm="layer_norm", offset=q.shape[1] - cos.shape[0])(q=q, cos=cos, **inputs)


FAMILY = "rope"
FORMS = (
    Form(
        op="qk_norm_rope",
        chain="torch.nn.RMSNorm per head: Flux",
        cases=(("Flux", (1, 4608, 24, 128)),),
        inputs=_inputs_flux,
        eager=_of_both(_torch_norm(EPS), rotary.flux),
        reference=_of_both(_reference_norm(EPS), _reference_flux),
        ours=_ours(),
        real=_of_both(_torch_norm(EPS), rotary.real_flux),
    ),
    Form(
        op="qk_norm_rope",
        chain="diffusers.RMSNorm per head: HunyuanVideo",
        cases=(("HunyuanVideo", (1, 4096, 24, 128)),),
        inputs=_inputs_flux,
        eager=_of_both(t5, rotary.flux),
        reference=_of_both(_reference_norm(EPS), _reference_flux),
        ours=_ours(norm="llama_rms_norm"),
        real=_of_both(t5, rotary.real_flux),
        timed=False,
    ),
    Form(
        op="qk_norm_rope",
        chain="across heads, rotated before their split: LTX",
        cases=(("LTX 49 frames", (2, 2688, 2048)), ("LTX 161 frames", (2, 8064, 2048))),
        inputs=_inputs_ltx,
        eager=_of_both(_torch_norm(EPS_LTX), rotary.ltx),
        reference=_of_both(_reference_norm(EPS_LTX), references.rotate),
        ours=_ours(EPS_LTX),
        real=_of_both(_torch_norm(EPS_LTX), rotary.real_ltx),
    ),
    Form(
        op="qk_norm_rope",
        chain="across heads, rotated per head: Wan",
        cases=(("Wan 1.3B", (1, 32760, 12, 128)), ("Wan 14B", (1, 32760, 40, 128))),
        inputs=_inputs_wan,
        eager=_of_both(_torch_norm(EPS), _wan_turned),
        reference=_of_both(_reference_norm(EPS), _reference_wan),
        ours=_ours_wan,
    ),
    Form(
        op="qk_norm_rope",
        chain="per head, 4 queries to a key, halves: Qwen3",
        cases=(("Qwen3 8B", (1, 8192, 32, 128)),),
        inputs=_inputs_qwen3,
        eager=_of_both(llama, _qwen3_turned),
        reference=_of_both(_reference_norm(EPS), _reference_qwen3),
        ours=_ours_qwen3,
    ),
    Form(
        op="qk_norm_rope",
        chain="per head, halves, rows of the tables chosen by positions",
        cases=(("Qwen3 8B", (1, 8192, 32, 128)),),
        inputs=_inputs_positions,
        eager=_chosen(_of_both(llama, _qwen3_turned)),
        reference=_chosen(_of_both(_reference_norm(EPS), _reference_qwen3)),
        ours=_ours_positions,
        chunked=False,
    ),
    Form(
        op="qk_norm_rope",
        chain="per head, angles of each head: Mochi",
        cases=(("Mochi 480p, 37 frames", (1, 11130, 24, 128)), ("Mochi 480p, 163 frames", (1, 44520, 24, 128))),
        inputs=_inputs_mochi,
        eager=_of_both(_mochi_norm, rotary.mochi),
        reference=_of_both(_reference_norm(EPS), _reference_mochi),
        ours=_ours_mochi,
    ),
    Form(
        op="qk_norm_rope",
        chain="torch.nn.LayerNorm per head, rotated behind the text: CogVideoX",
        cases=(("CogVideoX 5B", (2, 17776, 48, 64)),),
        inputs=_inputs_cogvideox,
        eager=_cogvideox(_torch_layer_norm, rotary.flux),
        reference=_cogvideox(_reference_layer_norm, _reference_flux),
        ours=_ours_cogvideox,
        real=_cogvideox(_torch_layer_norm, rotary.real_flux),
        timed=False,
        chunked=False,
    ),
)
