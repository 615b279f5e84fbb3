"""Describes the installation (`python -m oxiwarp info`), and checks it (`python -m oxiwarp doctor`)."""

import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from .. import __version__, _native, kernel_info
from ..ops import add_rms_norm, rms_norm

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def info() -> int:
    """Print versions, driver, devices and the table of kernels."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for name, value in facts():
        console.print(f"{name:14}{value}", highlight=False, markup=False, soft_wrap=True)
    table = Table("op", "dtypes", "PTX for", title="kernels", title_justify="left")
    for op in sorted({kernel["op"] for kernel in kernel_info()}):
        own = [kernel for kernel in kernel_info() if kernel["op"] == op]
        table.add_row(op, *(", ".join(sorted({kernel[key] for kernel in own})) for key in ("dtype", "arch")))
    console.print(table)
    return 0


def facts() -> Iterator[tuple[str, str]]:
    """Yield pairs (name, value), such as the versions of torch and of the driver. `info` prints these lines
    above the table of kernels.
    """
    yield "oxiwarp", __version__
    yield "python", platform.python_version()
    yield "torch", f"{torch.__version__} (CUDA {torch.version.cuda or 'no'})"
    for package in ("diffusers", "transformers"):
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"
    try:
        yield "driver", f"CUDA {_native.driver()}"
        for device in _native.devices():
            runs = f"runs {device['ptx']}" if device["ptx"] else device["error"]
            yield f"cuda:{device['index']}", f"{device['name'] or ''} {runs}".strip()
    except RuntimeError as error:
        yield "driver", str(error)


def check_torch() -> str:
    """Check that the torch version is at least 2.10. Return a text with the versions of torch and Python."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
        raise RuntimeError(f"torch {torch.__version__}: pip install 'torch>=2.10'")
    return f"torch {torch.__version__}, Python {sys.version.split()[0]}: the operators are registered"


def check_driver() -> str:
    """Check that a CUDA driver is installed. Return its version."""
    try:
        return f"CUDA {_native.driver()}"
    except RuntimeError as error:
        raise RuntimeError(f"{error}: install a current NVIDIA driver for GPU kernels") from None


def check_torch_cuda() -> str:
    """Check that torch is built with CUDA and finds a GPU."""
    if torch.version.cuda is None:
        raise RuntimeError("this torch was built without CUDA: install a CUDA build of torch")
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU: see torch.cuda.init() and CUDA_VISIBLE_DEVICES")
    return f"{torch.cuda.device_count()} GPU, torch's CUDA {torch.version.cuda}"


def check_ptx(index: int) -> str:
    """Check that GPU number `index` loads oxiwarp's PTX."""
    device = _native.devices()[index]
    if device["error"]:
        raise RuntimeError(f"{device['error']}: a GPU of sm_75 (Turing) or newer and a newer driver may help")
    return f"{device['name']} runs the {device['ptx']} PTX"


def check_op(device: str) -> str:
    """Check the results of `rms_norm` and `add_rms_norm` on one device against a reference that is computed
    in float64.

    The largest permitted relative error is 2 eps in a 16-bit dtype, and 16 eps in float32. eps is the machine
    epsilon of the dtype.
    """
    worst = 0.0
    for dtype in DTYPES:
        generator = torch.Generator("cpu").manual_seed(0)
        cpu = [torch.randn(shape, generator=generator).to(dtype) for shape in ((5, 640), (5, 640), (640,))]
        x, residual, weight = (tensor.to(device) for tensor in cpu)
        total = (cpu[0] + cpu[1]).double()
        with torch.no_grad():
            results = [(rms_norm(x, weight), cpu[0].double()), (add_rms_norm(x, residual, weight)[0], total)]
        for y, source in results:
            right = source * torch.rsqrt(source.pow(2).mean(-1, keepdim=True) + 1e-6) * cpu[2].double()
            error = ((y.cpu().double() - right).abs() / right.abs().clamp_min(1e-3)).max().item() / torch.finfo(
                dtype
            ).eps
            worst = max(worst, error)
            if not error <= (16 if dtype == torch.float32 else 2):
                raise RuntimeError(
                    f"wrong in {dtype}: off by {error:.1f} eps; please report it, with the driver's version"
                )
    return f"rms_norm and add_rms_norm are right (largest relative error {worst:.2f} eps)"


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name and the function of each check. The order of the checks shows the cause of a failure
    first: later checks can fail for the same reason.
    """
    yield "torch", check_torch
    yield "CPU executor", lambda: check_op("cpu")
    yield "driver", check_driver
    yield "torch and CUDA", check_torch_cuda
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        yield f"PTX on cuda:{index}", partial(check_ptx, index)
        yield f"ops on cuda:{index}", partial(check_op, f"cuda:{index}")


def doctor() -> int:
    """Run all checks and print one line per check.

    The line of a failed check names a remedy. Return 1 if any check failed, otherwise 0.
    """
    failed = 0
    for name, check in checks():
        try:
            print(f"ok    {name}: {check()}")
        except Exception as error:  # noqa: BLE001  a check reports whatever is wrong
            failed += 1
            print(f"FAIL  {name}: {error}")
    if failed:
        print(f"{failed} of the checks failed; without a GPU the kernels run on the CPU executor only")
    return min(failed, 1)


__all__ = ["doctor", "info"]
