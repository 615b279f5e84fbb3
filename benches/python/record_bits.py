"""Records checksums of the bits of each op's results on a device, by default the GPU.

If an op has a bit-exact mode, the program also records the checksums of the model's eager code.

    python benches/python/record_bits.py [--only ada_norm,rope] [--device cpu] FILE

The inputs are small and come from a seed of torch's CPU generator, so that another machine can make the same
inputs. The file has checksums of the inputs and of the results. `differences` compares the results of another
device, such as the CPU executor, with a file.
"""

import argparse
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from exactness import own_result
from forms import BIT_EXACT, Form, Inputs, Result, Source, tuple_of
from ops import check_names, selected
from providers import has_ours
from torch import Tensor

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
    """Creates inputs that have the same bits on every CPU. `torch.randn` computes its values by other
    instructions on other CPUs, and their last bits differ."""

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Return sums of four uniform numbers, with mean `mean` and standard deviation `scale`."""
        total = torch.rand(shape)
        for _ in range(3):
            total += torch.rand(shape)
        return ((total - 2.0) * 3.0**0.5).to(dtype or self.dtype).mul_(scale).add_(mean)


def calls(only: list[str] | None) -> Iterator[tuple[str, Form, torch.dtype]]:
    """Yield a key, the use of an op, and the dtype of each recorded call."""
    for form in selected(only):
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


def checksums(result: Result) -> list[list[int]]:
    """Return the checksums of the bytes of each result. All NaN have the same bytes."""
    found = []
    for y in tuple_of(result):
        y = y.detach().cpu().contiguous()
        y = torch.view_as_real(y) if y.is_complex() else y
        y = torch.where(y.isnan(), torch.full_like(y, torch.nan), y) if y.is_floating_point() else y
        data = y.flatten().view(torch.uint8).numpy().tobytes()
        found.append([zlib.crc32(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)])
    return found


def recorded(only: list[str] | None, device: torch.device) -> Record:
    """Run all calls on a device and return their checksums."""
    record: Record = {}
    with torch.no_grad():
        for key, form, dtype in calls(only):
            inputs = inputs_of(form, dtype, device)
            record[key] = {mode: checksums(form.call(mode)(**inputs)) for mode in form.modes}
            record[key][INPUTS] = checksums(tuple(inputs.values()))
            if BIT_EXACT in form.claims.values():
                record[key][EAGER] = checksums(own_result(form, inputs)[0])
    return record


def differences(record: Mapping[str, Mapping[str, Any]], only: list[str] | None, device: torch.device) -> list[str]:
    """Run the calls of a record on a device. Return a line for each result whose bits differ from the record, or
    from the eager result if the op is documented as bit-exact."""
    lines = []
    with torch.no_grad():
        for key, form, dtype in calls(only):
            if key not in record:
                continue
            inputs = inputs_of(form, dtype, device)
            if checksums(tuple(inputs.values())) != record[key][INPUTS]:
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


def main() -> None:
    """Record the bits of all calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="OP,OP", type=lambda text: text.split(","), help="only these ops")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="default: cuda")
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    check_names(options.only)
    record = recorded(options.only, options.device)
    options.file.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    print(f"{len(record)} calls, {options.file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
