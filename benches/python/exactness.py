"""Compares the bits of each op's results with the results of the models' eager code, with the GPU and the
torch of this machine.

    python benches/python/exactness.py [--only ada_norm,rope] [--seconds N] [--out FOLDER]

For every op, mode, dtype and model, the program runs oxiwarp and the model's eager code on the same random
inputs, and counts equal elements. The eager code is a class of diffusers or transformers. If these packages
are missing, it is an equivalent sequence of torch calls. The program writes exactness.csv and exactness.md.
`scripts/figures.py` makes the table of docs/reference/exactness.md from the CSV file. The exit code is 1 if
an operator is documented as bit-exact and its bits differ.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from clock import Clock, add_seconds
from environment import begin, title_of
from exactness_cell import cell
from forms import BIT_EXACT, CHUNK, NO_MODE, ONE_ROUNDING, Form, Result, Shape, Source, tuple_of
from ops import check_names, selected
from providers import has_ours

INTRODUCTION = """# Exactness

Each op guarantees one of these relations to the model's PyTorch code in eager mode on a GPU. It depends on the mode.

- **bit-exact**: all bits are equal. **FAIL** marks a case in which they differ.
- **same roundings**: the same casts in the same places, but sums in another order.
- **one rounding**: the chain is computed in float32, with one cast at the end. The result is closer to the true value
  than the result of eager mode.

Bit-exact means equal to torch 2.11. Norms are bit-exact for aligned rows whose number of columns is divisible by 4. The
RMSNorm of `ada_norm`, `gated_residual_ada_norm`, `norm_gated_residual` and Mochi's ops is bit-exact for at least 16
rows of 128 to 8128 columns. Every model in the table meets these conditions. GELU (erf) follows the installed torch,
whose bits change with CUDA 13.2.

Each cell shows the share of elements with equal bits. If some bits differ, it also shows the largest distance in units
in the last place (ulp). The cell is the worst case of all shapes of the row's models. Inputs are random. Large
distances occur at elements near zero, where larger numbers cancel. For this reason, "one rounding" has no distance.
"""


@dataclass(frozen=True)
class Row:
    """Comparison of one op with the eager code of one model, in one mode and dtype."""

    form: Form
    mode: str
    model: str
    shape: Shape
    dtype: str
    against: str
    equal: float
    """Fraction of elements with equal bits."""
    ulps: int
    """Largest difference in units in the last place (ulp)."""

    @property
    def claim(self) -> str:
        """Return the documented guarantee of the op in this mode, for example "bit-exact"."""
        return self.form.claims[self.mode]

    @property
    def failed(self) -> bool:
        """Return True if the op is documented as bit-exact and differs from eager mode."""
        return self.claim == BIT_EXACT and self.equal < 1

    @property
    def cell(self) -> str:
        """Return the text of the result in the table."""
        return cell(self.equal, self.ulps, self.claim)


def distance(ours: Result, eager: Result) -> tuple[float, int]:
    """Return the fraction of elements with equal bits, and the largest difference in units in the last place (ulp)."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    equal = total = furthest = 0
    for y, own in zip(tuple_of(ours), tuple_of(eager), strict=True):
        if (y.shape, y.dtype) != (own.shape, own.dtype):
            raise RuntimeError(f"{y.dtype} {tuple(y.shape)}, eager gives {own.dtype} {tuple(own.shape)}")
        bits = [x.contiguous().view(integers[x.element_size()]).flatten() for x in (y, own)]
        for mine, right in zip(*(x.split(CHUNK // 4) for x in bits), strict=True):
            total += mine.numel()
            equal += int((mine == right).sum())
            furthest = max(furthest, int((_ordered(mine) - _ordered(right)).abs().max()))
    return equal / total, furthest


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Map the bits of floating-point values to integers in the same order. The difference of two integers
    is then in ulp."""
    lowest = torch.iinfo(bits.dtype).min
    wide = bits.long()
    return torch.where(wide < 0, lowest - wide, wide)


def own_result(form: Form, inputs: dict[str, Any]) -> tuple[Result, str]:
    """Return two values: the result of the model's eager code, and the source of this code.

    The source is "classes" for classes of diffusers or transformers, or "chain" for equivalent torch calls.
    """
    if form.real is not None:
        try:
            return form.real(**inputs), "classes"
        except ImportError:
            pass
    return form.eager(**inputs), "chain"


def rows_of(form: Form, device: torch.device, dtype: torch.dtype, most: int | None = None) -> Iterator[Row]:
    """Compare oxiwarp with eager mode for one use of an op, in one dtype. Yield a result for each model and
    mode. `most` is the largest number of tokens."""
    for model, shape in form.cases:
        if most is not None:
            shape = (shape[0], min(most, shape[1]), *shape[2:])
        torch.manual_seed(0)
        inputs = form.inputs(Source(device, dtype), shape)
        own, against = own_result(form, inputs)
        for mode in form.modes:
            ours = tuple_of(form.call(mode)(**inputs))
            # the result may have a different dtype than the eager result
            if form.claims[mode] == ONE_ROUNDING:
                own = tuple(right.to(y.dtype) for y, right in zip(ours, tuple_of(own), strict=True))
            equal, ulps = distance(ours, own)
            yield Row(form, mode, model, shape, str(dtype).removeprefix("torch."), against, equal, ulps)


def measured(only: list[str] | None, device: torch.device, clock: Clock) -> Iterator[Row | str]:
    """Yield every comparison. Also yield a message for each op that is not in this build, fails, or is
    skipped for time."""
    missing = set()
    for form in selected(only):
        if form.backward or form.op in missing:
            continue
        if clock.is_over:
            yield f"{form.op} ({form.chain}): left out, no time"
            continue
        if not has_ours(form):
            missing.add(form.op)
            yield f"{form.op}: not in this build"
            continue
        for dtype in form.dtypes:
            try:
                yield from rows_of(form, device, dtype)
            except Exception as error:  # continue with the other ops
                yield f"FAIL {form.op} ({form.chain}), {dtype}: {type(error).__name__}: {error}"
            torch.cuda.empty_cache()


COLUMNS = ("op", "mode", "chain", "model", "shape", "dtype", "against", "guarantee", "equal", "max_ulp", "met")


def fields_of(row: Row) -> tuple[object, ...]:
    """Return the fields of a row's line in the CSV file."""
    shape = "x".join(map(str, row.shape))
    where = (row.form.op, row.mode, row.form.chain, row.model, shape, row.dtype, row.against)
    return (*where, row.claim, f"{row.equal:.9f}", row.ulps, "FAIL" if row.failed else "yes")


def markdown(rows: list[Row], lines: list[str], facts: dict[str, Any]) -> str:
    """Return a Markdown page: an introduction, and a table with a line for each op, model code and mode."""
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("diffusers", "transformers"))
    dtypes = ("bfloat16", "float16", "float32")
    text = [INTRODUCTION, f"{title_of(facts)}, {versions}, {facts['date'][:10]}.", ""]
    text += [f"| op | as in | mode | guarantee | {' | '.join(dtypes)} |", "| --- " * (4 + len(dtypes)) + "|"]
    for form, mode in dict.fromkeys((row.form, row.mode) for row in rows):
        own = [row for row in rows if row.form is form and row.mode == mode]
        cells = [
            min(cases, key=lambda row: (row.equal, -row.ulps)).cell
            if (cases := [row for row in own if row.dtype == dtype])
            else "–"
            for dtype in dtypes
        ]
        shown = "–" if mode == NO_MODE else mode
        text.append(f"| `{form.op}` | {form.chain} | {shown} | {own[0].claim} | {' | '.join(cells)} |")
    return "\n".join([*text, *([""] if lines else []), *(f"- {line}" for line in lines)]) + "\n"


def main() -> int:
    """Compare all ops, print the results and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="OP,OP", type=lambda text: text.split(","), help="only these ops")
    add_seconds(parser)
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    options = parser.parse_args()
    check_names(options.only)
    if not torch.cuda.is_available():
        print("exactness: no CUDA device: nothing compared")
        return 0
    clock, rows, lines = Clock(options.seconds), list[Row](), list[str]()
    facts, folder = begin(options.out)
    with torch.no_grad(), (folder / "exactness.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for found in measured(options.only, torch.device("cuda"), clock):
            if isinstance(found, str):
                lines.append(found)
                print(found, flush=True)
            else:
                rows.append(found)
                writer.writerow(fields_of(found))
                file.flush()
                print(
                    f"{found.form.op} {found.mode} {found.model} {found.dtype}: {found.claim}, {found.cell}", flush=True
                )
    (folder / "exactness.md").write_text(markdown(rows, lines, facts))
    print((folder / "exactness.md").read_text())
    failed = [row for row in rows if row.failed]
    print(f"{len(rows)} cases, {len(failed)} bit-exact claims that do not hold; results: {folder}")
    return 1 if failed or any(line.startswith("FAIL") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
