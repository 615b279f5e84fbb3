"""Blocks and attention processors of models, with kernels that take several steps at once: one file for each family."""

from . import feed_forward, ltx
from ._chains import INDUCTOR
from ._fusion import FusedRecipe, Fusion, find, fingerprint

FAMILIES = (feed_forward, ltx)
FUSIONS: dict[str, Fusion] = {fusion.name: fusion for family in FAMILIES for fusion in family.FUSIONS}


def notes(ops: set[str]) -> list[str]:
    """What a report says of these operators besides its rows."""
    given = [f"{op}{INDUCTOR[op].only}" for op in sorted(ops & INDUCTOR.keys())]
    return [f"under torch.compile Inductor runs {', '.join(given)}, no slower there"] if given else []


__all__ = ["FAMILIES", "FUSIONS", "FusedRecipe", "Fusion", "find", "fingerprint", "notes"]
