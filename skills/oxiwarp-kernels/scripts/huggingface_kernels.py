"""Use oxiwarp through Hugging Face Kernels: build the kernel repository, load it, and use its layers in a model.

    python huggingface_kernels.py

Needs `pip install kernels`.
"""

import argparse
import tempfile
from pathlib import Path

import kernels
import torch
import torch.nn.functional as F
from common import alternating, console, count, default_device, plot, show
from torch import nn

from oxiwarp.hub import build


@kernels.use_kernel_forward_from_hub("SiluAndMul")
class SiluAndMul(nn.Module):
    """A layer of a model without any reference to oxiwarp."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=count, default=8192)
    parser.add_argument("--cols", type=count, default=14336)
    parser.add_argument("--rounds", type=count, default=20)
    parser.add_argument("--plot", default="huggingface_kernels.png")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oxiwarp-hub-") as folder:
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    """Build the kernel repository in `folder`, run the model with it, and time both versions."""
    device = default_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    console.print(f"kernel repository: {build(folder)}")
    ours = kernels.get_local_kernel(folder, backend="cuda")
    console.print(f"loaded as {ours.__name__}: {', '.join(name for name in ours.__all__)}")

    x = torch.randn(options.rows, 2 * options.cols, device=device, dtype=torch.float32).to(dtype)
    out = torch.empty(options.rows, options.cols, device=device, dtype=dtype)
    stock = nn.Sequential(SiluAndMul())
    layer = kernels.LocalLayerRepository(folder, layer_name="SiluAndMul")
    with kernels.use_kernel_mapping({"SiluAndMul": {device.type: layer}}, inherit_mapping=False):
        model = kernels.kernelize(nn.Sequential(SiluAndMul()), mode=kernels.Mode.INFERENCE, device=device.type)
    assert torch.allclose(model(x).float(), stock(x).float(), rtol=0.01, atol=0.01)
    calls = {
        "stock layer": lambda: stock(x),
        "kernelized layer": lambda: model(x),
        "silu_and_mul(out, x)": lambda: ours.silu_and_mul(out, x),
    }
    times = alternating(calls, device, options.rounds, 2, "SiLU and product")
    show(f"{options.rows} x {options.cols}, {device}", ("", "ms"), [(name, f"{t:.3f}") for name, t in times.items()])
    plot(options.plot, "SiLU and product", times, "ms")


if __name__ == "__main__":
    main()
