"""Measures for which sizes `oxiwarp.attention` is faster than torch's attention, and writes these sizes to a table that
`oxiwarp.patch` reads.

    python benches/python/attention_table.py [--rounds N] [--out FOLDER]  measures, writes attention_table.csv and .json
    python benches/python/attention_table.py --from FOLDER                writes the package's table from these files

The baseline is `F.scaled_dot_product_attention` without a forced backend. All inputs are bf16 `[B, S, H, D]`,
as in diffusers. In the cases with padded keys, the call has an additive mask that is repeated for each head,
like LTX-Video's text mask. The exit code is 1 if a result of oxiwarp differs from torch's result by more than
`CLOSE`.
"""

import argparse
import csv
import json
import pprint
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_regions import Faster, Ratios, Size, faster
from environment import ROOT, begin
from forms import DTYPE, Inputs
from timing import race_calls

TABLE = ROOT / "py-bindings" / "python" / "oxiwarp" / "patching" / "fusions" / "core" / "attention_table.py"
COLUMNS = (64, 128)  # head dimensions of the models whose attention `patch` can replace
QUERIES = (512, 1024, 2048, 2688, 4608, 8064)
KEYS = (77, 128, 256, 512, 1024, 2048, 4608, 8064)
# The numbers of batches and heads of Wan 1.3B, FLUX, SDXL and LTX-Video.
HEADS = ((1, 12), (1, 24), (2, 20), (2, 32))
WIDTH = 118  # Lines of the written table have at most this many columns.
CLOSE = 0.01  # Results of oxiwarp and torch may differ by this much. Two torch backends differ by up to 0.005.


@dataclass(frozen=True)
class Row:
    """Result for one size; times in microseconds."""

    columns: int
    padded: bool
    queries: int
    keys: int
    batches: int
    heads: int
    ours_us: float
    torch_us: float
    difference: float

    @property
    def size(self) -> Size:
        """Return two numbers: queries per head, and queries over all batches and heads. The second number
        determines how many SMs are busy."""
        return self.queries, self.queries * self.batches * self.heads

    @property
    def ratio(self) -> float:
        """Time of oxiwarp divided by time of torch. A value below 1 means that oxiwarp is faster."""
        return self.ours_us / self.torch_us


def inputs_of(columns: int, padded: bool, queries: int, keys: int, batches: int, heads: int) -> Inputs:
    """Return normally distributed q, k and v. If `padded` is true, also return a mask that excludes the last
    keys of each batch entry."""
    sizes = {"q": queries, "k": keys, "v": keys}
    inputs = {
        name: torch.randn(batches, size, heads, columns, device="cuda", dtype=DTYPE) for name, size in sizes.items()
    }
    if padded:
        lengths = torch.randint(keys // 4, keys, (batches, 1), device="cuda")
        hidden = torch.arange(keys, device="cuda") >= lengths
        mask = hidden.to(DTYPE).mul_(-10000.0).view(batches, 1, 1, keys)
        inputs["mask"] = mask.repeat(1, heads, 1, 1)
    return inputs


def ours(x: Inputs) -> torch.Tensor:
    """Call `oxiwarp.attention` as the attention processors of a patched model do."""
    import oxiwarp

    return oxiwarp.attention(x["q"], x["k"], x["v"], mask=x.get("mask"))  # type: ignore[return-value]


def torchs(x: Inputs) -> torch.Tensor:
    """Call torch's attention as diffusers' native backend does."""
    q, k, v = (x[name].transpose(1, 2) for name in "qkv")
    return F.scaled_dot_product_attention(q, k, v, attn_mask=x.get("mask")).transpose(1, 2)


def measure(columns: int, padded: bool, queries: int, keys: int, batches: int, heads: int, rounds: int) -> Row:
    """Compare oxiwarp's result with torch's result, and time both for one size. The timed calls rotate
    through several sets of inputs."""
    size = (columns, padded, queries, keys, batches, heads)
    first = inputs_of(*size)
    # This tensor of NaN is freed at once, and oxiwarp's result then gets its memory. An element of the result
    # that oxiwarp does not write is therefore NaN.
    torch.full_like(first["q"], torch.nan)
    mine, right = ours(first).float(), torchs(first).float()
    difference = float((mine - right).norm() / right.norm())
    ways = {"ours": ours, "torchs": torchs}
    calls = {name: lambda x, way=way: lambda: way(x) for name, way in ways.items()}
    times = race_calls(calls, first, lambda: inputs_of(*size), first["q"].nbytes, rounds)
    ours_us, torch_us = (round(times[name].median, 2) for name in ways)
    return Row(*size, ours_us, torch_us, float(f"{difference:.1e}"))


def by_kind(rows: Iterable[Row]) -> Ratios:
    """Return the ratios of oxiwarp's time to torch's time in nested dicts. The levels are (head dimension,
    padded), number of attention keys, and size."""
    found: Ratios = {}
    for row in rows:
        found.setdefault((row.columns, row.padded), {}).setdefault(row.keys, {})[row.size] = row.ratio
    return found


def read(folder: Path) -> tuple[dict[str, str], Faster]:
    """Read a results folder.

    Return two values: facts of the run (such as the GPU's name), and the sizes at which oxiwarp is faster
    than torch.
    """
    with (folder / "attention_table.csv").open(newline="") as file:
        rows = [row_of(line) for line in csv.DictReader(file)]
    facts = json.loads((folder / "attention_table.json").read_text())
    said = {
        "capability": facts["compute_capability"],
        "gpu": facts["gpu"],
        "driver": facts["driver"],
        "torch": facts["versions"]["torch"],
        "date": facts["date"][:10],
        "results": folder.resolve().relative_to(ROOT).as_posix(),
    }
    return said, faster(by_kind(rows))


def row_of(line: dict[str, str]) -> Row:
    """Convert a line of the CSV file."""
    sizes = {name: int(line[name]) for name in ("columns", "queries", "keys", "batches", "heads")}
    numbers = {name: float(line[name]) for name in ("ours_us", "torch_us", "difference")}
    return Row(padded=line["padded"] == "True", **sizes, **numbers)  # type: ignore[arg-type]


def write(measured: dict[str, dict[str, str]], tables: dict[str, Faster]) -> None:
    """Write a Python module of the package oxiwarp. It has the sizes at which oxiwarp is faster, for each
    compute capability."""
    facts, faster = (pprint.pformat(x, width=WIDTH, compact=True, sort_dicts=True) for x in (measured, tables))
    head = TABLE.read_text().partition("\nMEASURED")[0]
    TABLE.write_text(f"{head}\nMEASURED = {facts}\nFASTER: dict[str, dict[tuple[int, bool], Sizes]] = (\n{faster}\n)\n")


def adopt(folder: Path) -> None:
    """Replace one GPU architecture's entry in the table of the package oxiwarp by the measurement in
    `folder`."""
    names: dict[str, Any] = {}
    # Execute the file. An import statement would load the table of the installed package instead.
    exec(TABLE.read_text(), names)
    said, table = read(folder)
    capability = said.pop("capability")
    write(names["MEASURED"] | {capability: said}, names["FASTER"] | {capability: table})


def show(rows: list[Row]) -> None:
    """Print a table of oxiwarp's time divided by torch's time.

    Each line is for a number of queries and heads, and each column for a number of keys.
    """
    for kind, by_keys in by_kind(rows).items():
        print(f"{kind[0]} columns{', padded' * kind[1]}: time of oxiwarp / time of torch")
        print("   queries, of all heads" + "".join(f"{keys:7}" for keys in KEYS) + " keys")
        for queries, (batches, heads) in product(QUERIES, HEADS):
            size = queries, queries * batches * heads
            print("{:10} {:13}".format(*size) + "".join(f"{by_keys[keys][size]:7.3f}" for keys in KEYS))


def sweep(rounds: int) -> Iterator[Row]:
    """Measure all sizes."""
    for columns, padded, queries in product(COLUMNS, (False, True), QUERIES):
        for keys, (batches, heads) in product(KEYS, HEADS):
            yield measure(columns, padded, queries, keys, batches, heads, rounds)
        torch.cuda.empty_cache()


def main() -> int:
    """Measure all sizes and write the results. With `--from`, only write the package's table from existing results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds; each round has oxiwarp and torch once")
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    parser.add_argument("--from", type=Path, default=None, dest="source", help="results for the package's table")
    options = parser.parse_args()
    if options.source is not None:
        adopt(options.source)
        return 0
    if not torch.cuda.is_available():
        print("attention_table: no CUDA device: nothing measured")
        return 0
    facts, out = begin(options.out)
    torch.manual_seed(0)
    (out / "attention_table.json").write_text(json.dumps(facts, indent=2) + "\n")
    rows = list[Row]()
    with (out / "attention_table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for row in sweep(options.rounds):
            rows.append(row)
            writer.writerow(asdict(row))
            file.flush()
    show(rows)
    wrong = [row for row in rows if not row.difference < CLOSE]
    for row in wrong:
        print(f"WRONG: {row}")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
