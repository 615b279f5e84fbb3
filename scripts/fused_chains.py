"""Writes the tables of fusions and the reports of `patch` into README.md and docs: `python
scripts/fused_chains.py`.

A fusion replaces a method of a model class. The new method calls an oxiwarp operator instead of a sequence of
torch operators. `tests/python/tools/test_docs.py` fails if a page is out of date.
"""

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from generated import ROOT, table, write

from oxiwarp import patch
from oxiwarp.patching.fusions import FAMILIES, Fusion
from oxiwarp.patching.fusions.core.ops import INDUCTOR
from oxiwarp.patching.report import NO_KERNEL

MEASURED = ROOT / "benches/results/decisions/families.txt"
# The name of a model family is at the start of a module docstring, and ends at a match of this pattern.
TITLE = re.compile(r" \(|[:;]|, (?=whose|with)")


def chains() -> Iterator[str]:
    """Yield one table per family of models. A row names model classes, the torch calls of these classes that one kernel
    computes, and the exactness in each mode.
    """
    for family in FAMILIES:
        about = " ".join(family.__doc__.split("\n\n")[0].split())
        yield f"\n## {TITLE.split(about)[0].rstrip('.')}\n\n{about}\n"
        yield from table(
            ["class", "steps in one kernel: operator", 'mode="exact"', 'mode="fast"'], map(cells, family.FUSIONS)
        )
    yield ""


def figures() -> Iterator[str]:
    """Yield two tables from `MEASURED`: the time of a step of a rewritten model, divided by the time with its fusions,
    and the numbers of operators that a step of a tiny model dispatches."""
    tables = [part for part in MEASURED.read_text().split("\n\n") if part.startswith("| ")]
    times, counts = ([line.strip("| ").split(" | ") for line in part.splitlines()[2:]] for part in tables)
    yield from table(
        ["model", "mode", "time of a step, rewritten / with fusions"], ([row[0], row[1], row[6]] for row in times)
    )
    yield ""
    yield from table(
        ["tiny model", "file of fusions", "operators of a step", "without this file"],
        ([f"`{row[0]}`", f"`{row[3]}`", row[2], row[4]] for row in counts if "removed" not in row[3]),
    )


def cells(fusion: Fusion) -> list[str]:
    """Return the row of a fusion in its family's table."""
    classes = "<br>".join(dict.fromkeys(f"`{pattern.rpartition('.')[2]}`" for pattern in fusion.classes))
    chains = [chain.rpartition(": ") for chain in fusion.chains]
    steps = "<br>".join(f"{steps}: `{op}`" if fusion.kernels else f"no kernel: {op}" for steps, _, op in chains)
    return [classes, steps, fusion.promise("exact"), fusion.promise("fast")]


def inductor() -> Iterator[str]:
    """Yield the table of operators for which, under `torch.compile`, `patch` lets Inductor generate the
    kernel. The second column is the time of Inductor's kernel divided by oxiwarp's."""
    yield from table(
        ["operator", "time of Inductor's kernel / time of oxiwarp's"],
        ([f"`{name}`", ratio] for name, ratio in INDUCTOR.items()),
    )


def ltx_report() -> Any:
    """Patch a small LTX-Video transformer on the meta device (without weights), and return the report of
    `patch`.

    The report has the text that it has on a machine with a GPU.
    """
    import diffusers
    import torch

    with torch.device("meta"):
        model = diffusers.LTXVideoTransformer3DModel(
            num_layers=1, num_attention_heads=4, attention_head_dim=16, cross_attention_dim=64
        )
    report = patch(model)
    report.warning = ""
    return report


def report() -> Iterator[str]:
    """Yield the whole report of the small model."""
    yield f"```text\n{ltx_report()}\n```"


def short_report() -> Iterator[str]:
    """Yield a short report: the summary line, and those classes of the Python module `transformer_ltx` that
    run oxiwarp kernels."""
    report = ltx_report()
    labels = {row.label for row in report.rows if row.op != NO_KERNEL}
    summary, *lines = str(report).splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith("transformer_ltx"))
    yield from ("```text", summary, lines[at])
    shown = False
    for line in takewhile(lambda line: line.startswith(" "), lines[at + 1 :]):
        if not line.startswith("   "):  # the first line of a class
            shown = any(line.strip().startswith(label) for label in labels)
        if shown:
            yield line
    yield "```"


PAGES = {
    "README.md": {"a short report": short_report},
    "docs/guide/patching.md": {"a report": report},
    "docs/guide/torch-compile.md": {"Inductor's": inductor},
    "docs/reference/fusions.md": {"figures": figures, "fused chains": chains},
}

if __name__ == "__main__":
    write("fused_chains", PAGES)
