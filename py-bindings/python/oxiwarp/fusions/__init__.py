"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from . import (
    ada_layer_norm,
    flux,
    flux2,
    hunyuan_video,
    hunyuan_video_replace,
    ltx,
    ltx2,
    ltx2_attention,
    qwen_image,
    sd3,
)
from ._fusion import FusedRecipe, Fusion, find, fingerprint

FAMILIES = (
    ada_layer_norm,
    flux,
    flux2,
    hunyuan_video,
    hunyuan_video_replace,
    ltx,
    ltx2,
    ltx2_attention,
    qwen_image,
    sd3,
)
FUSIONS: dict[str, Fusion] = {fusion.name: fusion for family in FAMILIES for fusion in family.FUSIONS}

__all__ = ["FUSIONS", "FusedRecipe", "Fusion", "find", "fingerprint"]
