"""Time RMSNorm in oxiwarp and in torch, eager and compiled, and compute the error of each against float64.

python benchmark_rmsnorm.py --rows 4096 --cols 3072
"""

import argparse

import torch
import torch.nn.functional as F
from common import console, count, default_device, milliseconds, plot, show

import oxiwarp


def chain(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute RMSNorm with torch operators, as model code does."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=count, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--cols", type=count, default=3072)
    parser.add_argument("--rounds", type=count, default=50)
    parser.add_argument("--warmup-iterations", type=int, default=5)
    parser.add_argument("--plot", default="benchmark_rmsnorm.png")
    options = parser.parse_args()

    device, eps, bars = default_device(), 1e-6, {}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    weight = torch.rand(options.cols, device=device).add(0.5).to(dtype)
    # dynamic=False makes torch compile each shape separately. The comparison is then fair, because oxiwarp
    # also chooses a launch configuration per shape.
    compiled = torch.compile(chain, dynamic=False, backend="inductor" if device.type == "cuda" else "aot_eager")
    calls = {
        "written in torch": chain,
        "torch.compile": compiled,
        "F.rms_norm": lambda x, w, e: F.rms_norm(x, (x.shape[-1],), w, e),
        "oxiwarp": lambda x, w, e: oxiwarp.rms_norm(x, w, e, rounding="before_weight"),
    }
    table = []
    for rows in options.rows:
        x = torch.randn(rows, options.cols, device=device, dtype=torch.float32).to(dtype)
        right = F.rms_norm(x.double(), (options.cols,), weight.double(), eps)
        for name, call in calls.items():
            error = (call(x, weight, eps).double() - right).abs().max().item()
            title = f"{rows} x {options.cols}, {name}"
            time = milliseconds(
                lambda call=call, x=x: call(x, weight, eps), device, options.rounds, options.warmup_iterations, title
            )
            rate = 2 * x.nbytes / time / 1e6
            table.append((f"{rows} x {options.cols}", name, f"{time * 1e3:.1f}", f"{rate:.0f}", f"{error:.2g}"))
            bars[title] = rate
    show(
        f"RMSNorm, {dtype}, {device}: calls one by one, launch included",
        ("shape", "", "µs", "GB/s", "largest error"),
        table,
    )
    plot(options.plot, "RMSNorm", bars, "GB/s, launch included")
    console.print("Kernel times without launches: `make bench`.")


if __name__ == "__main__":
    main()
