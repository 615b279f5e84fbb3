"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from . import ada_layer_norm, flux, ltx
from ._fusion import FusedRecipe, Fusion, find, fingerprint

FUSIONS: dict[str, Fusion] = {
    fusion.name: fusion for family in (ada_layer_norm, flux, ltx) for fusion in family.FUSIONS
}

__all__ = ["FUSIONS", "FusedRecipe", "Fusion", "find", "fingerprint"]
