"""Benchmarks of `gated_residual`, `x + gate * y`."""

import torch
from forms import BIT_EXACT, Form, Inputs, Shape, Source
from modulation import by_token
from torch import Tensor

import oxiwarp

CLIP = 65504.0


def _inputs(source: Source, shape: Shape, dtype: torch.dtype | None = None, scale: float = 1.0) -> Inputs:
    (gate,) = source.modulation(shape[0], shape[-1], 1, dtype)
    return {"x": source.normal(*shape), "y": source.normal(*shape, scale=scale), "gate": gate}


def _inputs_clip(source: Source, shape: Shape) -> Inputs:
    """Return inputs that, in float16, make the sum `x + gate * y` overflow in some elements."""
    return _inputs(source, shape, scale=65000.0 if source.dtype == torch.float16 else 1.0)


def _inputs_table(source: Source, shape: Shape) -> Inputs:
    return {**_inputs(source, shape), "gate_table": source.normal(6, shape[-1], scale=0.3)[2]}


def _row_gate(source: Source, shape: Shape, of_gate: Shape) -> Inputs:
    """Return inputs whose gate has only one column."""
    return {"x": source.normal(*shape), "y": source.normal(*shape), "gate": source.normal(*of_gate, 1)}


def _inputs_index(source: Source, shape: Shape) -> Inputs:
    """Return inputs with two rows of the gate, and the row for each token."""
    index = source.indices(shape[0] * shape[1], 2).view(shape[:2])
    gate = source.normal(2, shape[-1], scale=0.3)
    return {"x": source.normal(*shape), "y": source.normal(*shape), "gate": gate, "index": index}


def _inputs_wide(source: Source, shape: Shape) -> Inputs:
    """Return inputs with a float32 residual."""
    return _inputs(source, shape) | {"x": source.normal(*shape, dtype=torch.float32)}


def _eager(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Compute `x + gate * y` as `FluxTransformerBlock` does.

    Other models compute `y * gate` instead of `gate * y`, which gives the same bits.
    """
    return x + gate * y


def _wan(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Compute the gated residual as `WanTransformerBlock` does, with a float32 gate."""
    return (x.float() + y.float() * gate).type_as(x)


def _clip(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Compute the gated residual as `FluxSingleTransformerBlock` does. This block clips float16 sums to the
    finite range of float16."""
    total = x + gate * y
    return total.clip(-65504, 65504) if total.dtype == torch.float16 else total


def _reference(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return x + gate * y


def _ours(x: Tensor, y: Tensor, gate: Tensor, **options: object) -> Tensor:
    return oxiwarp.gated_residual(x, y, gate, **options)


FAMILY = "modulation"
FORMS = (
    Form(
        op="gated_residual",
        chain="Flux, SD3, LTX, HunyuanVideo, Qwen-Image",
        cases=(
            ("Flux", (1, 4608, 3072)),
            ("LTX 49 frames", (2, 2688, 2048)),
            ("LTX 161 frames", (2, 8064, 2048)),
            ("HunyuanVideo 720p", (1, 118800, 3072)),
        ),
        inputs=_inputs,
        eager=_eager,
        reference=_reference,
        ours=_ours,
    ),
    Form(
        op="gated_residual",
        chain="float32 gate: Wan",
        cases=(("Wan 1.3B", (1, 32760, 1536)), ("Wan 14B", (1, 32760, 5120))),
        inputs=lambda source, shape: _inputs(source, shape, torch.float32),
        eager=_wan,
        reference=_reference,
        ours=_ours,
    ),
    Form(
        op="gated_residual",
        chain="table + time embedding: LTX",
        cases=(("LTX 161 frames, table", (2, 8064, 2048)),),
        inputs=_inputs_table,
        eager=lambda x, y, gate, gate_table: _eager(x, y, gate_table + gate),
        reference=lambda x, y, gate, gate_table: _reference(x, y, gate_table + gate),
        ours=_ours,
        timed=False,
    ),
    Form(
        op="gated_residual",
        chain="clipped in float16: Flux, Qwen-Image",
        cases=(("Flux, single block", (1, 4608, 3072)),),
        inputs=_inputs_clip,
        eager=_clip,
        reference=lambda x, y, gate: _reference(x, y, gate).clip(-CLIP, CLIP),
        ours=lambda x, y, gate, mode: _ours(x, y, gate, clip=True, mode=mode),
        claims={"exact": BIT_EXACT},
        timed=False,
        dtypes=(torch.float16,),
    ),
    Form(
        op="gated_residual",
        chain="one number per token: Qwen3-Next, Qwen2-MoE",
        cases=(("Qwen3-Next, 8192 tokens", (1, 8192, 2048)), ("large", (1, 65536, 4096))),
        inputs=lambda source, shape: _row_gate(source, shape, shape[:2]),
        eager=_eager,
        reference=_reference,
        ours=_ours,
    ),
    Form(
        op="gated_residual",
        chain="gate chosen by token: Qwen-Image-Edit",
        cases=(("Qwen-Image-Edit", (1, 8192, 3072)),),
        inputs=_inputs_index,
        eager=lambda x, y, gate, index: _eager(x, y, by_token(gate, index)),
        reference=lambda x, y, gate, index: _reference(x, y, by_token(gate, index)),
        ours=lambda x, y, gate, index, mode: oxiwarp.gated_residual(x, y, gate, index=index, mode=mode),
        chunked=False,
    ),
    Form(
        op="gated_residual",
        chain="float32 residual, 16-bit branch",
        cases=(("Kandinsky 5 Lite", (1, 32760, 1792)),),
        inputs=_inputs_wide,
        eager=_eager,
        reference=_reference,
        ours=_ours,
        dtypes=(torch.bfloat16, torch.float16),
    ),
    Form(
        op="gated_residual",
        chain="one number: Llama 3.2 Vision",
        cases=(("Llama 3.2 11B, 8192 tokens", (1, 8192, 4096)),),
        inputs=lambda source, shape: _row_gate(source, shape, ()),
        eager=_eager,
        reference=_reference,
        ours=_ours,
    ),
)
