"""Checks `oxiwarp.attention` and torch's attention against float64 on a GPU. Then times them alternately and
reports TFLOP/s.

    python benches/python/attention.py [--rounds N] [--out FOLDER] [--flash-attention-3 LIBRARY]
    OXIWARP_ARCH=sm_80 python benches/python/attention.py  # use the sm_80 kernels on a Hopper GPU

Two baselines are backends of `F.scaled_dot_product_attention`: cuDNN and FlashAttention-2. If a case has a
mask, the memory-efficient backend replaces FlashAttention-2. All tensors are `[B, H, S, D]`.

With the option `--flash-attention-3`, FlashAttention-3 is a third baseline. The value of the option is the
path of a shared library with FlashAttention-3. No package contains only this library. The wheel of vLLM
contains it: `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so`. Use the version of vLLM that requires the installed
torch, for example vLLM 0.24.0 for torch 2.11. FlashAttention-3 is not measured if a case has a mask.

The program writes attention.csv and attention.json. It also writes attention_accuracy.csv, which has the errors for the
inputs of attention_inputs.py, and no times. These inputs lead to large rounding errors. The exit code is 1 if a result
of oxiwarp is wrong or missing. Another program, attention_table.py, determines the sizes for which `oxiwarp.patch` uses
`oxiwarp.attention`.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention_inputs import INPUTS, Sizes, relative_error
from environment import begin
from forms import DTYPE, Inputs, Result
from timing import race_calls
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

OURS, CUDNN, FLASH, FLASH_3 = "oxiwarp", "cuDNN", "FlashAttention-2", "FlashAttention-3"
BACKENDS = {
    CUDNN: SDPBackend.CUDNN_ATTENTION,
    FLASH: SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CHECKED = 32  # Errors are computed for this many queries at the start and at the end of a sequence.
# Upper limit of oxiwarp's error divided by FlashAttention-2's error. If FlashAttention-2 did not run, the
# divisor is the smallest error of a baseline.
LIMIT = 1.02


@dataclass(frozen=True)
class Case:
    """One attention call, usually with the sizes of a model."""

    what: str
    sizes: Sizes
    causal: bool = False
    padded: bool = False

    @property
    def operations(self) -> float:
        """Return the number of floating-point operations of QKᵀ and PV. A causal call counts half as many as
        a call without a mask."""
        b, h, sq, sk, d = self.sizes
        return 4.0 * b * h * sq * sk * d / (2 if self.causal else 1)


# The benchmark sizes of the FlashAttention-3 paper (arXiv:2407.08608, section 4.1). All sequences of a batch
# together have 16384 tokens. The head dimension times the number of heads is 2048.
PAPER = tuple(
    Case(f"paper, {d} columns{', causal' * causal}", (16384 // s, 2048 // d, s, s, d), causal)
    for d in (64, 128, 256)
    for causal in (False, True)
    for s in (512, 1024, 2048, 4096, 8192, 16384)
)
CASES = (
    Case("FLUX", (1, 24, 4608, 4608, 128)),
    Case("long", (1, 16, 16384, 16384, 128)),
    Case("long, causal", (1, 16, 16384, 16384, 128), causal=True),
    Case("LTX-Video, 49 frames", (2, 32, 2688, 2688, 64)),
    Case("LTX-Video, 49 frames, text", (2, 32, 2688, 128, 64), padded=True),
    Case("LTX-Video, 161 frames", (2, 32, 8064, 8064, 64)),
    Case("LTX-Video, 161 frames, text", (2, 32, 8064, 128, 64), padded=True),
    Case("64 columns", (2, 32, 4096, 4096, 64)),
    Case("64 columns, long", (1, 32, 8192, 8192, 64)),
    Case("64 columns, causal", (1, 32, 8192, 8192, 64), causal=True),
    Case("Wan 1.3B", (1, 12, 32760, 32760, 128)),
    Case("72 columns", (1, 16, 4096, 4096, 72)),
    Case("96 columns", (1, 24, 8192, 8192, 96)),
    Case("256 columns", (1, 16, 8192, 8192, 256)),
    Case("256 columns, short", (4, 16, 1024, 1024, 256)),
    Case("a token and its cache", (8, 32, 1, 32768, 128)),
    Case("a token and its cache, one batch", (1, 32, 1, 32768, 128)),
    *PAPER,
)


@dataclass(frozen=True)
class Row:
    """Result of one attention implementation in one case. Times are in microseconds."""

    case: str
    sizes: str
    provider: str
    us: float
    low_us: float
    high_us: float
    tflops: float
    of_cudnn: float
    relative_error: float


@dataclass(frozen=True)
class Accuracy:
    """Error of one attention implementation on one kind of inputs from attention_inputs.py."""

    inputs: str
    sizes: str
    provider: str
    relative_error: float


ACCURACY_SIZES = ((1, 8, 1024, 4096, 64), (1, 8, 1024, 4096, 128), (8, 8, 1, 4096, 128))


def inputs_of(case: Case) -> Inputs:
    """Return normally distributed q, k and v. If the case is padded, also return a mask that excludes the
    last keys of each batch entry."""
    b, h, sq, sk, d = case.sizes
    inputs = {
        name: torch.randn(b, h, s, d, device="cuda", dtype=DTYPE) for name, s in (("q", sq), ("k", sk), ("v", sk))
    }
    if case.padded:
        lengths = torch.randint(sk // 4, sk, (b, 1), device="cuda")
        inputs["mask"] = (torch.arange(sk, device="cuda") < lengths).view(b, 1, 1, sk)
    return inputs


def providers_of(case: Case) -> dict[str, Callable[[Inputs], Callable[[], Result]]]:
    """Map the name of each implementation to a function. This function takes a dict of inputs, and returns a
    callable that runs attention on them."""
    import oxiwarp

    def ours(x: Inputs) -> Callable[[], Result]:
        return lambda: oxiwarp.attention(x["q"], x["k"], x["v"], causal=case.causal, mask=x.get("mask"), layout="bhsd")

    def torchs(backend: SDPBackend) -> Callable[[Inputs], Callable[[], Result]]:
        def call(x: Inputs) -> Result:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    x["q"], x["k"], x["v"], attn_mask=x.get("mask"), is_causal=case.causal
                )

        return lambda x: lambda: call(x)

    def flash_3(x: Inputs) -> Callable[[], Result]:
        return flash_attention_3(x["q"], x["k"], x["v"], case.causal)

    left_out = "FlashAttention-2" if case.padded else "memory-efficient"  # FlashAttention-2 supports no mask
    found = {OURS: ours} | {name: torchs(backend) for name, backend in BACKENDS.items() if name != left_out}
    return found | {FLASH_3: flash_3} if hasattr(torch.ops._vllm_fa3_C, "fwd") and not case.padded else found


def flash_attention_3(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensor]:
    """Return a callable that runs FlashAttention-3 on tensors `[B, H, S, D]`. It copies no tensor.

    vLLM's library requires packed sequences, in a tensor `[B * S, H, D]`. The other options, such as the
    softmax scale, have the defaults of `flash_attn_varlen_func` in
    https://github.com/Dao-AILab/flash-attention.
    """
    forward = torch.ops._vllm_fa3_C.fwd.default
    options = dict.fromkeys(argument.name for argument in forward._schema.arguments)
    for name, x in (("q", q), ("k", k), ("v", v)):
        options[name] = x.transpose(1, 2).flatten(0, 1)
    for name, x in (("q", q), ("k", k)):
        options[f"max_seqlen_{name}"] = x.shape[2]
        options[f"cu_seqlens_{name}"] = torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device) * x.shape[2]
    options |= {"softmax_scale": q.shape[-1] ** -0.5, "is_causal": causal, "is_rotary_interleaved": True}
    options |= {"window_size_left": -1, "window_size_right": -1, "softcap": 0.0}
    options |= {"num_splits": 1 if q.shape[2] > 1 else 0, "sm_margin": 0, "cp_world_size": 1, "cp_rank": 0}
    return lambda: forward(**options)[0].unflatten(0, (q.shape[0], -1)).transpose(1, 2)


def error_of(case: Case, x: Inputs, result: Tensor) -> float:
    """Return the relative error of attention against float64, for the first and the last `CHECKED` queries.

    If the call has at least `CHECKED` queries, check only the first and the last head, to save time.
    """
    queries = range(case.sizes[2])
    ends = sorted({*queries[:CHECKED], *queries[-CHECKED:]})
    heads = slice(None) if len(ends) < CHECKED else [0, -1]
    q, k, v = (x[name][:, heads].double() for name in "qkv")
    scores = q[:, :, ends] @ k.mT / case.sizes[4] ** 0.5
    if "mask" in x:
        scores = scores.masked_fill(~x["mask"], -torch.inf)
    if case.causal:
        later = torch.arange(case.sizes[3], device="cuda") > torch.tensor(ends, device="cuda")[:, None]
        scores = scores.masked_fill(later, -torch.inf)
    expected = scores.softmax(-1) @ v
    return float((result[:, heads][:, :, ends].double() - expected).norm() / expected.norm())


def errors_of(case: Case, x: Inputs, error: Callable[[Tensor], float]) -> dict[str, float]:
    """Map the name of every implementation to its error. If an implementation does not run, print its name
    and omit it."""
    errors = {}
    for name, provider in providers_of(case).items():
        try:
            result = provider(x)()
            assert isinstance(result, Tensor)
            errors[name] = error(result)
        except RuntimeError as failure:
            print(f"{case.what}, {name}: not measured ({str(failure).strip()[:200]})")
    return errors


def is_wrong(rows: Sequence[Row | Accuracy]) -> bool:
    """Return True if oxiwarp's error is missing, is NaN, or exceeds `LIMIT` times the error of the
    baseline."""
    errors = {row.provider: row.relative_error for row in rows}
    least = min((error for name, error in errors.items() if name != OURS), default=0.0)
    return not errors.get(OURS, float("nan")) <= LIMIT * errors.get(FLASH, least)


def accuracy(kind: str, sizes: Sizes, device: torch.device) -> list[Accuracy]:
    """Return the relative error of each attention implementation for the inputs that `INPUTS[kind]` makes.
    The error is computed over all elements of the result."""
    q, k, v = INPUTS[kind](sizes, DTYPE, device)
    errors = errors_of(Case(kind, sizes), {"q": q, "k": k, "v": v}, lambda y: relative_error(y, q, k, v))
    return [Accuracy(kind, said(sizes), name, error) for name, error in errors.items()]


def said(sizes: Sizes) -> str:
    return " x ".join(map(str, sizes))


def measure(case: Case, rounds: int) -> list[Row]:
    """Measure every attention implementation that runs on this GPU."""
    first = inputs_of(case)
    errors, providers = errors_of(case, first, lambda y: error_of(case, first, y)), providers_of(case)
    ran = {name: providers[name] for name in errors}
    times = race_calls(ran, first, lambda: inputs_of(case), first["q"].nbytes, rounds)
    cudnn = times[CUDNN].median if CUDNN in times else float("nan")
    return [
        Row(case.what, said(case.sizes), name, time.median, time.low, time.high,
            case.operations / time.median * 1e-6, cudnn / time.median, errors[name])
        for name, time in times.items()
    ]  # fmt: skip


def write(path: Path, kind: type, rows: Sequence[Any]) -> None:
    """Write a CSV file with one line for each element of `rows`."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(kind)])
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def main() -> int:
    """Measure all cases, print a table and mark wrong results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds; each round has every provider once")
    parser.add_argument("--out", type=Path, default=None, help="default: out/<gpu>/<date>")
    parser.add_argument("--flash-attention-3", type=Path, metavar="LIBRARY", help="measure FlashAttention-3 too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("attention: no CUDA device: nothing measured")
        return 0
    if options.flash_attention_3:
        torch.ops.load_library(options.flash_attention_3)
    facts, out = begin(options.out)
    torch.manual_seed(0)
    rows, accuracies, wrong = list[Row](), list[Accuracy](), 0
    for case in CASES:
        found = measure(case, options.rounds)
        bad = is_wrong(found)
        wrong += bad
        print(f"{case.what}: {said(case.sizes)}" + ", causal" * case.causal + ", padded" * case.padded)
        for row in sorted(found, key=lambda row: row.us):
            print(f"    {row.provider:18} {row.us:9.1f} us {row.tflops:5.0f} TFLOP/s {row.of_cudnn:6.3f} x cuDNN,"
                  f" error {row.relative_error:.2e}" + "  WRONG" * (bad and row.provider == OURS))  # fmt: skip
        rows += found
        torch.cuda.empty_cache()
    for kind in INPUTS:
        for sizes in ACCURACY_SIZES:
            errors = accuracy(kind, sizes, torch.device("cuda"))
            bad = is_wrong(errors)
            wrong += bad
            print(f"{kind}: {said(sizes)}" + "  WRONG" * bad)
            for error in errors:
                print(f"    {error.provider:18} error {error.relative_error:.2e}")
            accuracies += errors
    (out / "attention.json").write_text(json.dumps(facts, indent=2) + "\n")
    write(out / "attention.csv", Row, rows)
    write(out / "attention_accuracy.csv", Accuracy, accuracies)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
