"""Benchmarks of `rope`, which rotates q and k by tables, as in Flux, LTX, Wan, Qwen-Image and language models."""

from collections.abc import Callable

import references
import rotary
import torch
from forms import Chain, Form, Inputs, Peer, Result, Shape, Source
from torch import Tensor

import oxiwarp


def _inputs_flux(source: Source, shape: Shape) -> Inputs:
    cos, sin = rotary.tables(source, shape[1], shape[-1])
    return {"q": source.normal(*shape), "k": source.normal(*shape), "cos": cos, "sin": sin}


def _inputs_ltx(source: Source, shape: Shape) -> Inputs:
    cos, sin = rotary.tables(source, *shape)
    return {"q": source.normal(*shape), "k": source.normal(*shape), "cos": cos, "sin": sin}


def _inputs_wan(source: Source, shape: Shape) -> Inputs:
    cos, sin = rotary.tables(source, 1, shape[1], 1, shape[-1])
    return {"q": source.normal(*shape), "k": source.normal(*shape), "cos": cos, "sin": sin}


def _inputs_qwen_image(source: Source, shape: Shape) -> Inputs:
    angles = torch.rand(shape[1], shape[-1] // 2, device=source.device) * 6.283
    turn = torch.polar(torch.ones_like(angles), angles)
    return {"q": source.normal(*shape), "k": source.normal(*shape), "turn": turn}


def _inputs_llama(source: Source, shape: Shape) -> Inputs:
    """Return q and k as transposed views `[B, H, S, D]`, with one key head for every four query heads. Also
    return cos and sin tables."""
    batch, tokens, heads, dim = shape
    cos, sin = rotary.half_tables(source, batch, tokens, dim)
    q, k = source.normal(*shape), source.normal(batch, tokens, heads // 4, dim)
    return {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "cos": cos, "sin": sin}


def _of_both(turned: Callable[..., Tensor]) -> Chain:
    """Return a function that applies the rotation `turned` to q and k."""
    return lambda q, k, *args, **tables: (turned(q, *args, **tables), turned(k, *args, **tables))


def _reference_flux(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return references.rotate(x, cos[:, None], sin[:, None])


def _reference_qwen_image(x: Tensor, turn: Tensor) -> Tensor:
    cos, sin = (part.repeat_interleave(2, dim=-1)[:, None] for part in (turn.real, turn.imag))
    return references.rotate(x, cos, sin)


def _reference_llama(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return references.rotate_halves(x, cos[:, None], sin[:, None])


# The following functions call oxiwarp. Llama's cos and sin tables have a 16-bit dtype, so Llama's code also
# rounds intermediate results to 16 bits. Mode "fast" omits these roundings.
def _ours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Result:
    return oxiwarp.rope(q, k, cos, sin, mode=mode)


def _ours_qwen_image(q: Tensor, k: Tensor, turn: Tensor, mode: str) -> Result:
    return oxiwarp.rope(q, k, turn, mode=mode)


def _ours_llama(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Result:
    return oxiwarp.rope(q, k, cos, sin, interleaved=False, heads_first=True, mode=mode)


def _inputs_positions(source: Source, shape: Shape) -> Inputs:
    """Return the inputs of Llama, with tables of more rows than tokens, and a position for each token."""
    batch, tokens, heads, dim = shape
    cos, sin = rotary.half_tables(source, 2 * tokens, dim)
    q, k = source.normal(*shape), source.normal(batch, tokens, heads // 4, dim)
    positions = source.indices(batch * tokens, 2 * tokens).view(batch, tokens)
    return {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "cos": cos, "sin": sin, "positions": positions}


def _chosen(turned: Callable[..., Tensor]) -> Chain:
    """Return a function that applies the rotation `turned` with the rows of the tables that positions choose."""
    return lambda q, k, cos, sin, positions: _of_both(turned)(q, k, cos[positions], sin[positions])


def _ours_positions(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, mode: str) -> Result:
    return oxiwarp.rope(q, k, cos, sin, positions=positions, interleaved=False, heads_first=True, mode=mode)


FAMILY = "rope"
FORMS = (
    Form(
        op="rope",
        chain="interleaved, per head: Flux, HunyuanVideo",
        cases=(("Flux", (1, 4608, 24, 128)),),
        inputs=_inputs_flux,
        eager=_of_both(rotary.flux),
        reference=_of_both(_reference_flux),
        ours=_ours,
        real=_of_both(rotary.real_flux),
    ),
    Form(
        op="rope",
        chain="interleaved, before the head split: LTX",
        cases=(("LTX 161 frames", (2, 8064, 2048)),),
        inputs=_inputs_ltx,
        eager=_of_both(rotary.ltx),
        reference=_of_both(references.rotate),
        ours=_ours,
        real=_of_both(rotary.real_ltx),
    ),
    Form(
        op="rope",
        chain="interleaved, 3-D: Wan",
        cases=(("Wan 14B", (1, 32760, 40, 128)),),
        inputs=_inputs_wan,
        eager=_of_both(rotary.wan),
        reference=_of_both(references.rotate),
        ours=_ours,
    ),
    Form(
        op="rope",
        chain="complex: Qwen-Image",
        cases=(("Qwen-Image", (1, 4096, 24, 128)),),
        inputs=_inputs_qwen_image,
        eager=_of_both(rotary.qwen_image),
        reference=_of_both(_reference_qwen_image),
        ours=_ours_qwen_image,
        real=_of_both(rotary.real_qwen_image),
        timed=False,
    ),
    Form(
        op="rope",
        chain="halves, 4 queries to a key: Llama, Qwen3",
        cases=(("Llama 8B", (1, 8192, 32, 128)),),
        inputs=_inputs_llama,
        eager=_of_both(rotary.llama),
        reference=_of_both(_reference_llama),
        ours=_ours_llama,
        real=rotary.real_llama,
        peers={
            "Liger": Peer(
                "liger_kernel.ops.rope",
                lambda liger, q, k, cos, sin: liger.rope_forward(q, k, cos, sin)[:2],
                overwrites=True,
            )
        },
    ),
    Form(
        op="rope",
        chain="halves, rows of the tables chosen by positions",
        cases=(("Llama 8B", (1, 8192, 32, 128)),),
        inputs=_inputs_positions,
        eager=_chosen(rotary.llama),
        reference=_chosen(_reference_llama),
        ours=_ours_positions,
        chunked=False,
    ),
)
