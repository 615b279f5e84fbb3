"""Records checksums of the bits of each op's results on a GPU, or compares results with such a record.

    python benches/python/record_bits.py [--only ada_norm,rope] [--device cpu] FILE
    python benches/python/record_bits.py --compare [--only ada_norm,rope] [--device cuda] FILE

If an op has a bit-exact mode, the program also records the checksums of the model's eager code. The file is JSON
with two entries. `facts` has the GPU, driver, versions and commit. `calls` has the checksums of the inputs and
results of each call. A file whose name ends in `.xz` is compressed.

The inputs are small and come from a seed of torch's CPU generator, so that another machine can make the same
inputs. `--compare` runs the calls on the CPU executor, or on another device. It prints a line for each result
whose bits differ, and exits with 1 if there is one. With `OXIWARP_EXECUTOR_HOPPER=1`, the executor runs the
kernels that a Hopper GPU runs.
"""

import argparse
import contextlib
import importlib
import json
import lzma
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from environment import environment
from exactness import own_result
from forms import BIT_EXACT, NO_MODE, SAME_ROUNDINGS, Form, Inputs, Result, Shape, Source, tuple_of
from ops import check_names, selected
from providers import has_ours
from torch import Tensor

import oxiwarp

TOKENS = 24
"""Number of tokens. With fewer than 16 rows, an RMSNorm may not add its terms in torch's order."""
BATCH = 2
CHUNK = 4096
"""Bytes per checksum."""
EAGER, INPUTS = "eager", "inputs"
Record = dict[str, dict[str, list[list[int]]]]
"""Maps a call to the checksums of its inputs and of its results: of oxiwarp by mode, and of the model's eager
code."""


class PortableSource(Source):
    """Creates inputs that have the same bits on every CPU and in every version of torch.

    `torch.randn` uses different instructions on different CPUs, so the last bits of its values differ. For
    16-bit types, its values also depend on the version of torch.
    """

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Return sums of four uniform numbers, with mean `mean` and standard deviation `scale`."""
        total = torch.rand(shape)
        for _ in range(3):
            total += torch.rand(shape)
        return ((total - 2.0) * 3.0**0.5).to(dtype or self.dtype).mul_(scale).add_(mean)

    def weight(self, cols: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.rand(cols).add_(0.5).to(dtype or self.dtype)


def attention_form(columns: int, causal: bool) -> Form:
    """Return a call of attention with `columns` columns per head.

    No sequence length is a multiple of the number of rows of a tile, so that the record also covers
    incomplete tiles.
    """

    def inputs(source: Source, shape: Shape) -> Inputs:
        batch, tokens, heads = shape
        return {name: source.normal(batch, 8 * tokens + 8, heads, columns) for name in ("q", "k", "v")}

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        of_heads = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*of_heads, is_causal=causal).transpose(1, 2)

    return Form(
        op="attention",
        chain=f"{columns} columns" + ", causal" * causal,
        cases=(("two heads", (BATCH, TOKENS, 2)),),
        inputs=inputs,
        eager=eager,
        reference=eager,
        ours=lambda q, k, v: oxiwarp.attention(q, k, v, causal=causal),
        claims={NO_MODE: SAME_ROUNDINGS},
        dtypes=(torch.bfloat16, torch.float16),
    )


ATTENTION = tuple(attention_form(columns, causal) for columns in (64, 72, 128, 256) for causal in (False, True))
"""Calls of attention. `bench.py` does not measure it, so it is not an op of the benchmarks."""


def calls(only: list[str] | None) -> Iterator[tuple[str, Form, torch.dtype]]:
    """Yield three values for each recorded call: its key, the `Form` (a use of an op), and the dtype."""
    attention = ATTENTION if only is None or "attention" in only else ()
    for form in (*selected(only), *attention):
        if form.backward or not has_ours(form):
            continue
        for dtype in form.dtypes:
            yield f"{form.op}/{form.chain}/{str(dtype).removeprefix('torch.')}", form, dtype


def inputs_of(form: Form, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Return the inputs of a call. Their values come from the CPU, so they are equal for all devices."""
    _, shape = form.cases[0]
    torch.manual_seed(0)
    inputs = form.inputs(PortableSource(torch.device("cpu"), dtype), (min(BATCH, shape[0]), TOKENS, *shape[2:]))
    return {name: x.to(device) for name, x in inputs.items()}


def checksums(result: Result, chunk: int = CHUNK) -> list[list[int]]:
    """Return the checksums of each result, one per `chunk` bytes. Before the checksum, every NaN is replaced by the
    same NaN.
    """
    found = []
    for y in tuple_of(result):
        y = y.detach().cpu().contiguous()
        y = torch.view_as_real(y) if y.is_complex() else y
        y = torch.where(y.isnan(), torch.full_like(y, torch.nan), y) if y.is_floating_point() else y
        data = y.flatten().view(torch.uint8).numpy().tobytes()
        found.append([zlib.crc32(data[at : at + chunk]) for at in range(0, len(data), chunk)])
    return found


def input_checksums(inputs: Inputs) -> list[list[int]]:
    """Return one checksum per input."""
    return checksums(tuple(inputs.values()), sys.maxsize)


def recorded(only: list[str] | None, device: torch.device) -> Record:
    """Run all calls on a device and return their checksums."""
    record: Record = {}
    with torch.no_grad():
        for key, form, dtype in calls(only):
            inputs = inputs_of(form, dtype, device)
            record[key] = {mode: checksums(form.call(mode)(**inputs)) for mode in form.modes}
            record[key][INPUTS] = input_checksums(inputs)
            if BIT_EXACT in form.claims.values():
                record[key][EAGER] = checksums(own_result(form, inputs)[0])
    return record


@contextlib.contextmanager
def erf_of(facts: Mapping[str, Any]) -> Iterator[None]:
    """Make oxiwarp's GELU use the `erf` of the torch version that made a record.

    The bits of torch's `erf` changed with CUDA 13.2. By default, oxiwarp uses the `erf` of the installed
    torch.
    """
    version = facts.get("cuda") or torch.version.cuda or "0"
    kind = int(tuple(int(part) for part in version.split(".")[:2]) >= (13, 2))
    with contextlib.ExitStack() as changes:
        for name in ("activation", "gated_activation"):
            changes.enter_context(mock.patch.object(importlib.import_module(f"oxiwarp.ops.{name}"), "GELU", kind))
        yield


def differences(record: Mapping[str, Mapping[str, Any]], only: list[str] | None, device: torch.device) -> list[str]:
    """Run the calls of a record on a device. Return a line for each result whose bits differ from the record, or
    from the eager result if the op is documented as bit-exact.

    If the inputs of a call have other bits, the line says so, and the results are not compared.
    """
    lines = []
    with torch.no_grad():
        for key, form, dtype in calls(only):
            if key not in record:
                continue
            inputs = inputs_of(form, dtype, device)
            if input_checksums(inputs) != record[key][INPUTS]:
                lines.append(f"{key}: the inputs differ from those on the GPU's machine")
                continue
            for mode in form.modes:
                got = checksums(form.call(mode)(**inputs))
                others = {f"oxiwarp's on the GPU, mode {mode!r}": record[key][mode]}
                if form.claims[mode] == BIT_EXACT:
                    others["the eager code's on the GPU"] = record[key][EAGER]
                for whose, right in others.items():
                    wrong = sum(
                        a != b for one, other in zip(got, right, strict=True) for a, b in zip(one, other, strict=True)
                    )
                    if wrong:
                        lines.append(f"{key}: {wrong} of {sum(map(len, got))} chunks differ from {whose}")
    return lines


def read(file: Path) -> tuple[dict[str, Any], Record]:
    """Return the facts and the calls of a file."""
    data = file.read_bytes()
    found = json.loads(lzma.decompress(data) if file.suffix == ".xz" else data)
    return found["facts"], found["calls"]


def write(file: Path, facts: Mapping[str, Any], record: Record) -> None:
    """Write a file for `read`."""
    data = json.dumps({"facts": facts, "calls": record}, separators=(",", ":")).encode() + b"\n"
    file.write_bytes(lzma.compress(data, preset=9) if file.suffix == ".xz" else data)


def main() -> int:
    """Record the bits of all calls, or compare them with a record. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="OP,OP", type=lambda text: text.split(","), help="only these ops")
    parser.add_argument("--compare", action="store_true", help="compare results with the file")
    parser.add_argument("--device", type=torch.device, help="default: cuda, or cpu with --compare")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    check_names([op for op in options.only or () if op != "attention"])
    device = options.device or torch.device("cpu" if options.compare else "cuda")
    if options.compare:
        facts, record = read(options.file)
        with erf_of(facts):
            lines = differences(record, options.only, device)
        print(*lines, sep="\n")
        return int(bool(lines))
    record = recorded(options.only, device)
    write(options.file, environment(), record)
    print(f"{len(record)} calls, {options.file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
