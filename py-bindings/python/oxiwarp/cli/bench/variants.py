"""The variants of a model that `bench` compares, and their names."""

from dataclasses import dataclass

STOCK = "eager"
COMPILED = "compiled"


@dataclass(frozen=True)
class Variant:
    """A variant of a model: whether and how it is patched, and whether it is compiled."""

    name: str
    """Name in the command line and results files: lower-case words with hyphens between them."""
    mode: str | None = None
    """The argument `mode` of `oxiwarp.patch`, or None for the unpatched model."""
    compiled: bool = False
    """Whether torch.compile compiles the model."""
    attention: bool | None = None
    """The argument `attention` of `oxiwarp.patch`, which selects oxiwarp's attention kernels."""


VARIANTS = (
    Variant(STOCK),
    Variant(COMPILED, compiled=True),
    Variant("patched", "exact"),
    Variant("patched-attention", "exact", attention=True),
    Variant("patched-fast", "fast"),
    Variant("patched-compiled", "exact", compiled=True),
    Variant("patched-attention-compiled", "exact", compiled=True, attention=True),
    Variant("patched-fast-compiled", "fast", compiled=True),
)

# Maps old names of variants to their current names. The old names occur in results files that were written
# until 2026-11-25. They also occur in the commands that these files record.
OLD_NAMES = {
    "torch.compile": COMPILED,
    "patched + attention": "patched-attention",
    "patched, fast": "patched-fast",
    "patched + compile": "patched-compiled",
    "patched + attention + compile": "patched-attention-compiled",
    "patched, fast + compile": "patched-fast-compiled",
}


def current_name(name: str) -> str:
    """Return the current name of a variant. `name` is the current name, or an old name that occurs in results
    files.
    """
    return OLD_NAMES.get(name, name)


__all__ = ["COMPILED", "STOCK", "VARIANTS", "Variant", "current_name"]
