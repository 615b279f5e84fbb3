"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from .._few import MOST
from . import (
    ada_layer_norm,
    attention_module,
    basic,
    cogvideox,
    decoder,
    decoder_attention,
    decoder_model,
    falcon,
    feed_forward,
    flux,
    flux2,
    hunyuan_video,
    hunyuan_video_replace,
    layer_norm,
    ltx,
    ltx2,
    ltx2_attention,
    ltx_rope,
    mochi,
    qwen_image,
    sd3,
    timesteps,
    wan,
)
from ._attention import attention_note
from ._attention import measured as attention_measured
from ._chains import INDUCTOR
from ._find import dotted, find
from ._fusion import FusedRecipe, Fusion
from ._source import fingerprint, fingerprint_of

FAMILIES = (
    ada_layer_norm,
    attention_module,
    basic,
    cogvideox,
    decoder,
    decoder_attention,
    decoder_model,
    falcon,
    feed_forward,
    flux,
    flux2,
    hunyuan_video,
    hunyuan_video_replace,
    layer_norm,
    ltx,
    ltx2,
    ltx2_attention,
    ltx_rope,
    mochi,
    qwen_image,
    sd3,
    timesteps,
    wan,
)
FUSIONS: dict[str, Fusion] = {fusion.name: fusion for family in FAMILIES for fusion in family.FUSIONS}


def notes(ops: set[str], decoder: bool) -> list[str]:
    """What a report says of these operators besides its rows; `decoder`: some serve a model of transformers."""
    given = sorted(ops & INDUCTOR.keys())
    if "layer_norm" in ops:
        given.append("layer_norm by itself or with a sum before it that has no gate")  # see layer_norm.py, _stream.py
    if decoder:
        given.append(f"up to {MOST} elements on a GPU, in models of transformers")  # see ../_few.py
    return [f"left to Inductor under torch.compile: {', '.join(given)}"] if given else []


__all__ = [
    "FAMILIES",
    "FUSIONS",
    "FusedRecipe",
    "Fusion",
    "attention_measured",
    "attention_note",
    "dotted",
    "find",
    "fingerprint",
    "fingerprint_of",
    "notes",
]
