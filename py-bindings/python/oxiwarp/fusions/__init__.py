"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from . import basic, cogvideox, ltx, mochi, wan
from ._fusion import FusedRecipe, Fusion, find, fingerprint

FUSIONS: dict[str, Fusion] = {
    fusion.name: fusion for family in (ltx, wan, mochi, cogvideox, basic) for fusion in family.FUSIONS
}

__all__ = ["FUSIONS", "FusedRecipe", "Fusion", "find", "fingerprint"]
