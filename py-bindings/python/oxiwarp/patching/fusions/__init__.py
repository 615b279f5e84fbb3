"""Collects the fusions for all model families, such as Flux. Each family has one file.

A fusion replaces a method of a transformer block or attention processor. In the new method, one kernel
computes several operations of the original method.
"""

from ..inductor import MOST
from .core.attention import attention_note
from .core.attention import measured as attention_measured
from .core.fusion import Fusion
from .core.ops import INDUCTOR
from .core.recipe import FusedRecipe
from .core.registry import FUSIONS, dotted, find
from .core.source import fingerprint, fingerprint_of
from .diffusers import (
    basic_transformer_block,
    cogvideox,
    flux,
    hunyuan_video,
    hunyuan_video_i2v,
    layer_norm,
    ltx,
    ltx2,
    ltx2_attention,
    ltx_rope,
    mochi,
    qwen_image,
    timesteps,
    wan,
)
from .shared import feed_forward
from .transformers import decoder, decoder_attention

FAMILIES = (
    basic_transformer_block,
    cogvideox,
    decoder,
    decoder_attention,
    feed_forward,
    flux,
    hunyuan_video,
    hunyuan_video_i2v,
    layer_norm,
    ltx,
    ltx2,
    ltx2_attention,
    ltx_rope,
    mochi,
    qwen_image,
    timesteps,
    wan,
)
FUSIONS.update({fusion.name: fusion for family in FAMILIES for fusion in family.FUSIONS})


def notes(ops: set[str], decoder: bool) -> list[str]:
    """Return a note for the report of `patch`. The note lists the operators in `ops` that Inductor computes
    under torch.compile.

    If there are no such operators, the note is empty. `decoder` is True if `patch` replaced a module of the library
    transformers.
    """
    given = sorted(ops & INDUCTOR.keys())
    if "layer_norm" in ops:
        given.append(
            "layer_norm by itself or with a sum before it that has no gate"
        )  # see layer_norm.py, residual_layer_norm.py
    if decoder:
        given.append(f"up to {MOST} elements on a GPU, in models of transformers")  # see inductor.py
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
