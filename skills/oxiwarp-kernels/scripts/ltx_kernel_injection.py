"""Patch LTX-Video's transformer: print the report, compare the bits of the outputs, and measure the time.

The steps of the stock model and of the patched model alternate.

python ltx_kernel_injection.py
"""

import argparse
import copy

import torch
from common import alternating, console, count, default_device, plot, show

import oxiwarp
from oxiwarp.cli.bench.workloads import WORKLOADS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("exact", "fast"), default="exact")
    parser.add_argument("--rounds", type=count, default=10)
    parser.add_argument("--plot", default="ltx_kernel_injection.png")
    parser.add_argument("--small", action="store_true", help="a tiny model, for a test")
    options = parser.parse_args()

    device, workload = default_device(), WORKLOADS["ltx"]
    dtype, small = (torch.bfloat16, options.small) if device.type == "cuda" else (torch.float32, True)
    torch.manual_seed(0)
    with torch.no_grad():
        with device:
            stock = torch.nn.Module.to(workload.build(small), dtype).eval().requires_grad_(False)
        arguments = workload.arguments(stock, small, device, dtype)
        patched = copy.deepcopy(stock, {id(p): p for p in stock.parameters()})
        console.print(oxiwarp.patch(patched, mode=options.mode, cpu_kernels=device.type == "cpu"))
        y, expected = patched(**arguments)[0], stock(**arguments)[0]
        equal = (y == expected).double().mean().item()
        calls = {"stock": lambda: stock(**arguments), "patched": lambda: patched(**arguments)}
        times = alternating(calls, device, options.rounds, 2, "stock and patched")
    largest = (y.double() - expected.double()).abs().max().item()
    rows = [(name, f"{time:.2f}", f"{times['stock'] / time:.2f} x") for name, time in times.items()]
    show(
        f"one step on {device}: {equal:.2%} of the values equal, largest difference {largest:.2g}", ("", "ms", ""), rows
    )
    plot(options.plot, "LTX-Video, one transformer step", times, "ms")
    oxiwarp.unpatch(patched)


if __name__ == "__main__":
    main()
