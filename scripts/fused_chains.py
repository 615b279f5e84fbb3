"""What docs/ shows of the fusions, made from them: `python scripts/fused_chains.py` writes it anew.

`tests/python/tools/test_docs.py` fails where they are stale.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from oxiwarp import patch
from oxiwarp.patching.fusions import FAMILIES, Fusion
from oxiwarp.patching.fusions.core.ops import INDUCTOR

DOCS = Path(__file__).parents[1] / "docs"
TITLE = re.compile(r" \(|[:;]|, (?=whose|with)")  # what ends a family's name in the first sentence of its module


def chains() -> Iterator[str]:
    """A table for each family: classes, chains with their operators, exactness by mode."""
    for family in FAMILIES:
        about = " ".join(family.__doc__.split("\n\n")[0].split())
        yield f"\n### {TITLE.split(about)[0].rstrip('.')}\n\n{about}\n"
        yield "| class | in one kernel: operator | exact | fast |"
        yield "| --- | --- | --- | --- |"
        yield from map(row, family.FUSIONS)
    yield ""


def row(fusion: Fusion) -> str:
    """A line of a family's table."""
    classes = "<br>".join(dict.fromkeys(f"`{pattern.rpartition('.')[2]}`" for pattern in fusion.classes))
    lines = [chain.rpartition(": ") for chain in fusion.chains]
    steps = "<br>".join(f"{steps}: `{op}`" if fusion.kernels else f"no kernel: {op}" for steps, _, op in lines)
    return f"| {classes} | {steps} | {fusion.promise('exact')} | {fusion.promise('fast')} |"


def inductor() -> Iterator[str]:
    """What Inductor runs, and in how much of our time."""
    yield "\n| operator | time of Inductor's kernel, in ours |"
    yield "| --- | --- |"
    yield from (f"| `{name}` | {share} |" for name, share in INDUCTOR.items())
    yield ""


def report() -> Iterator[str]:
    """That of the model at the top of the page."""
    import diffusers
    import torch

    with torch.device("meta"):
        model = diffusers.LTXVideoTransformer3DModel(
            num_layers=1, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=64
        )
    yield f"```text\n{patch(model)}\n```"


MADE = {
    "guide/patching.md": {"fused chains": chains, "a report": report},
    "guide/torch-compile.md": {"Inductor's": inductor},
}


def with_tables(name: str, text: str) -> str:
    """A document with what is between its marks made anew."""
    for mark, make in MADE[name].items():
        between = re.compile(rf"(<!-- {mark}, made by scripts/fused_chains.py -->\n).*?(<!-- end -->)", re.DOTALL)
        made = "\n".join(make()) + "\n"
        text, found = between.subn(lambda match, made=made: match[1] + made + match[2], text)
        if found != 1:
            raise ValueError(f"{name} has {found} places for {mark}, expected 1")
    return text


def main() -> None:
    """Write every table."""
    for name in MADE:
        path = DOCS / name
        path.write_text(with_tables(name, path.read_text()))


if __name__ == "__main__":
    main()
