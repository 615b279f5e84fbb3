"""The variants of a model that `bench` compares, and their names."""

from dataclasses import dataclass

STOCK = "eager"
COMPILED = "compiled"


@dataclass(frozen=True)
class Variant:
    """How a model runs."""

    name: str
    """For the command line and results files: lower-case words with hyphens between them."""
    mode: str | None = None
    """Of `oxiwarp.patch`, or None for the stock model."""
    compiled: bool = False
    """Whether torch.compile compiles the model."""
    attention: bool | None = None
    """Of `oxiwarp.patch`."""


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

# Names in the results files of 2026-11-25 and before, and in the commands that these files hold.
OLD_NAMES = {
    "torch.compile": COMPILED,
    "patched + attention": "patched-attention",
    "patched, fast": "patched-fast",
    "patched + compile": "patched-compiled",
    "patched + attention + compile": "patched-attention-compiled",
    "patched, fast + compile": "patched-fast-compiled",
}


def current_name(name: str) -> str:
    """The name of today for a name of any results file."""
    return OLD_NAMES.get(name, name)


__all__ = ["COMPILED", "STOCK", "VARIANTS", "Variant", "current_name"]
