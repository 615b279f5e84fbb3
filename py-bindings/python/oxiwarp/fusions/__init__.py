"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from . import decoder, layer_norm, ltx
from ._fusion import FusedRecipe, Fusion, find, fingerprint, fingerprint_of

FUSIONS: dict[str, Fusion] = {fusion.name: fusion for family in (decoder, layer_norm, ltx) for fusion in family.FUSIONS}

__all__ = ["FUSIONS", "FusedRecipe", "Fusion", "find", "fingerprint", "fingerprint_of"]
