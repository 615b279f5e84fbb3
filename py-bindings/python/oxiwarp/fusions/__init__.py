"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from . import (
    ada_layer_norm,
    attention_module,
    basic,
    cogvideox,
    decoder,
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
from ._fusion import FusedRecipe, Fusion, find, recipe
from ._source import fingerprint, fingerprint_of

FAMILIES = (
    ada_layer_norm,
    attention_module,
    basic,
    cogvideox,
    decoder,
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


def notes(ops: set[str]) -> list[str]:
    """What a report says of these operators besides its rows."""
    given = sorted(ops & INDUCTOR.keys())
    if "layer_norm" in ops:
        given.append("layer_norm by itself")  # see layer_norm.py
    return [f"left to Inductor under torch.compile: {', '.join(given)}"] if given else []


__all__ = [
    "FAMILIES",
    "FUSIONS",
    "FusedRecipe",
    "Fusion",
    "attention_measured",
    "attention_note",
    "find",
    "fingerprint",
    "fingerprint_of",
    "notes",
    "recipe",
]
