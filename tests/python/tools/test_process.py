"""Tests of oxiwarp at the level of a process: import, type stubs, exported symbols, command line, fork and
threads."""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import make_weight, random

import oxiwarp
from oxiwarp import _native


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, **options)


def test_import_is_lean():
    """`import oxiwarp` does not initialise CUDA, and imports no large package.

    The test checks rich, diffusers, transformers, accelerate, matplotlib and SymPy.
    """
    done = python(
        "-c",
        "import sys, torch; before = set(sys.modules); import oxiwarp; new = set(sys.modules) - before\n"
        "assert not torch.cuda.is_initialized()\n"
        "heavy = {'rich', 'diffusers', 'transformers', 'accelerate', 'matplotlib', 'sympy'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in new}))",
    )
    assert done.returncode == 0 and done.stdout.strip() == "[]", done.stdout + done.stderr


def test_stubs(tmp_path):
    """The type stub `_native.pyi` matches the native module `_native`.

    mypy checks copies of these two files in another folder, because in the folder of the package it would also analyse
    torch.
    """
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    native = Path(_native.__file__)
    for file in (native, native.parent / "_native.pyi"):
        shutil.copy(file, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "MYPYPATH": str(tmp_path)}
    done = python("-m", "mypy.stubtest", "_native", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_symbols_of_the_driver():
    """The native library must not export functions with the names of CUDA driver functions.

    The native library defines functions with these names itself. If it exported them, other libraries in the
    process could call them instead of the driver's functions.
    """
    library = ctypes.CDLL(_native.__file__)
    assert hasattr(library, "PyInit__native")
    assert not [name for name in ("cuInit", "cuCtxSetCurrent", "cuGetErrorString") if hasattr(library, name)]


def test_kernel_info():
    """Every op has kernels for the same dtypes on all architectures of this build. Every op is also an operator in
    `torch.ops.oxiwarp`.

    Two architectures are exceptions: sm_75 has no kernels of attention and of matrix products, and only some ops have
    kernels for sm_90a. `linear_fp8` has kernels only for sm_90a.
    """
    every = {(row["op"], row["dtype"], row["arch"]) for row in oxiwarp.kernel_info()}
    kernels = {row for row in every if not row[2].endswith("a")}
    hopper_only = {row[:2] for row in every - kernels} - {row[:2] for row in kernels}
    assert hopper_only == {("linear_fp8", "f16"), ("linear_fp8", "bf16")}
    ops, archs = {op for op, _, _ in kernels}, {arch for _, _, arch in kernels}
    assert ops >= {"rms_norm", "layer_norm", "ada_norm", "gated_residual"} and "sm_90" in archs
    tiled = {row for row in kernels if row[0].startswith(("attention", "linear"))}
    assert {arch for _, _, arch in tiled} == archs - {"sm_75"}
    kernels -= tiled
    assert kernels == {(op, dtype, arch) for op, dtype, _ in kernels for arch in archs}
    for op in ops | {op for op, _ in hopper_only}:
        assert hasattr(torch.ops.oxiwarp, op), op
    assert all(row["entries"] for row in oxiwarp.kernel_info())


def test_no_driver():
    """Without a CUDA driver, `_native.driver` and `_native.devices` raise RuntimeError, which gives the reason."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for question in (_native.driver, _native.devices):
        with pytest.raises(RuntimeError, match="CUDA"):
            question()


def test_devices(cuda):
    devices = _native.devices()
    assert len(devices) == torch.cuda.device_count()
    assert devices[0]["ptx"].startswith("sm_") and devices[0]["error"] is None
    assert devices[0]["name"] == torch.cuda.get_device_name(0)
    assert re.fullmatch(r"\d+\.\d+", _native.driver())


def test_info():
    done = python("-m", "oxiwarp", "info")
    assert done.returncode == 0, done.stderr
    for text in ("oxiwarp", torch.__version__, "driver", "add_rms_norm", "sm_90"):
        assert text in done.stdout


def test_doctor():
    """`python -m oxiwarp doctor` prints "ok" for components that work. Without a GPU, the command prints a
    remedy and exits with 1."""
    done = python("-m", "oxiwarp", "doctor")
    assert "ok    CPU executor" in done.stdout and not done.stderr, done.stdout + done.stderr
    assert done.returncode == (0 if torch.cuda.is_available() else 1), done.stdout
    if done.returncode:
        assert "FAIL  driver" in done.stdout and "install" in done.stdout


def test_demo(tmp_path):
    """`python -m oxiwarp demo` runs on the CPU executor, prints `demo: ok` at the end, and writes a picture."""
    for package in ("diffusers", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    picture = tmp_path / "new" / "demo.png"
    done = python("-m", "oxiwarp", "demo", "--steps", "2", "--device", "cpu", "--out", str(picture))
    assert done.returncode == 0 and done.stdout.rstrip().endswith("demo: ok"), done.stdout + done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG" and "modules replaced" in done.stdout


def test_demo_without_matplotlib(monkeypatch, capsys):
    """Without matplotlib, `python -m oxiwarp demo` succeeds, and prints a line which says that it writes
    no picture."""
    pytest.importorskip("diffusers")
    from oxiwarp.__main__ import main

    # Another test in this process may have imported matplotlib.
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)

    def missing(name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=missing), *sys.meta_path])
    assert main(["demo", "--steps", "1", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert "no picture: matplotlib is missing" in lines and lines[-2] == "demo: ok"


@pytest.mark.parametrize(
    "arguments",
    [("--steps", "0"), ("--steps=-1",), ("--steps", "few"), ("--device", "toaster"), ("--device", "cuda:99")],
)
def test_demo_arguments(arguments, capsys):
    from oxiwarp.__main__ import main

    with pytest.raises(SystemExit) as caught:
        main(["demo", *arguments])
    name = arguments[0].partition("=")[0]
    assert caught.value.code == 2 and f"demo: error: argument {name}: " in capsys.readouterr().err


def test_demo_can_fail():
    """The demo reports a problem if the patched model's latents have a relative error of 1e-2 or are NaN. It
    accepts a relative error of 1e-4."""
    from oxiwarp.cli.demo import Job, Outcome

    stock = random((1, 8, 4), torch.float32, "cpu")
    job = Job({}, (1, 2, 4), torch.bfloat16, 1)
    wide = stock + random((1, 8, 4), torch.float32, "cpu", seed=1, scale=1e-3)
    assert not Outcome(job, wide, stock, stock * 1.0001, [1.0], [1.0]).problem()
    assert "differ" in Outcome(job, wide, stock, stock * 1.01, [1.0], [1.0]).problem()
    assert "finite" in Outcome(job, wide, stock, stock * float("nan"), [1.0], [1.0]).problem()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_after_use():
    """After a fork, the child process computes the same result as the parent process.

    The worker threads of the CPU executor do not exist in the child process, so the child process uses only
    one thread.
    """
    x, weight = random((300, 640), torch.float32, "cpu"), make_weight("same", 640, torch.float32, "cpu")
    expected = oxiwarp.rms_norm(x, weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            os._exit(0 if torch.equal(oxiwarp.rms_norm(x, weight), expected) else 3)
        except BaseException:  # noqa: BLE001  the child must not return into pytest
            os._exit(4)
    timer = threading.Timer(60, os.kill, (child, 9))
    timer.start()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(oxiwarp.rms_norm(x, weight), expected)


def test_threads(device):
    """If eight threads call `rms_norm` at the same time, each thread gets the result of its own input."""
    inputs = [random((64, 320), torch.bfloat16, device, seed=seed) for seed in range(8)]
    expected = [oxiwarp.rms_norm(x) for x in inputs]
    wrong = []

    def work(at):
        with torch.no_grad():
            wrong.extend(at for _ in range(10) if not torch.equal(oxiwarp.rms_norm(inputs[at]), expected[at]))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
