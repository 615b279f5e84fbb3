"""Tests of `python -m oxiwarp warmup`. Most tests replace functions of the native module by stubs and need no
GPU."""

import threading

import pytest
import torch

import oxiwarp
from oxiwarp import _native, kernel_info
from oxiwarp.__main__ import main
from oxiwarp.cli import warmup


@pytest.fixture
def two_gpus(monkeypatch):
    """Simulate two GPUs that can launch the kernels of sm_90. Return two lists: the names of these kernels,
    and a record of loaded kernels."""
    loaded, lock = [], threading.Lock()
    names = sorted({entry for kernel in kernel_info() if kernel["arch"] == "sm_90" for entry in kernel["entries"]})

    def prepare(index, name):
        with lock:
            loaded.append((index, name))

    devices = [{"index": index, "name": f"GPU {index}", "ptx": "sm_90", "error": None} for index in range(2)]
    monkeypatch.delenv("CUDA_CACHE_DISABLE", raising=False)
    monkeypatch.setattr(_native, "devices", lambda: devices)
    monkeypatch.setattr(_native, "kernel_names", lambda index: names)
    monkeypatch.setattr(_native, "prepare_kernel", prepare)
    if not names:
        pytest.skip("this build has no PTX for sm_90")
    return names, loaded


def test_all_kernels(two_gpus, capsys):
    """Every kernel of every GPU is loaded once."""
    names, loaded = two_gpus
    assert main(["warmup"]) == 0
    assert sorted(loaded) == [(index, name) for index in range(2) for name in names]
    said = capsys.readouterr().out
    assert f"GPU 0: {len(names)} kernels ready" in said and f"GPU 1: {len(names)} kernels ready" in said


def test_one_operator(two_gpus, capsys):
    names, loaded = two_gpus
    assert main(["warmup", "--op", "softmax"]) == 0
    assert loaded and all(name.startswith("softmax_") for _, name in loaded) and len(loaded) < 2 * len(names)
    with pytest.raises(SystemExit):
        main(["warmup", "--op", "sofmax"])
    assert "there are no kernels of 'sofmax', expected one of activation" in capsys.readouterr().err


def test_failures(two_gpus, monkeypatch, capsys):
    """If one kernel or one GPU fails, `warmup` still processes all other kernels and GPUs, and exits with
    1."""
    names, loaded = two_gpus
    prepare = _native.prepare_kernel

    def reject(index, name):
        if name == names[0]:
            raise RuntimeError("the driver rejects the PTX")
        prepare(index, name)

    monkeypatch.setattr(_native, "prepare_kernel", reject)
    _native.devices()[0]["error"] = "GPU 0 is too old"
    assert main(["warmup"]) == 1
    said = capsys.readouterr().err
    assert "GPU 0 is too old" in said and f"{names[0]}: the driver rejects the PTX" in said
    assert sorted(loaded) == [(1, name) for name in names[1:]]


def test_nothing_to_do(two_gpus, monkeypatch, capsys):
    """If there is no GPU or no driver, or the driver's cache is disabled, the error message of `warmup` gives
    this reason."""

    def no_driver():
        raise RuntimeError("no CUDA driver")

    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    assert main(["warmup"]) == 1 and "CUDA_CACHE_DISABLE=1" in capsys.readouterr().err
    monkeypatch.delenv("CUDA_CACHE_DISABLE")
    for devices, expected in ((list, "no CUDA GPU"), (no_driver, "no CUDA driver")):
        monkeypatch.setattr(_native, "devices", devices)
        assert main(["warmup"]) == 1 and expected in capsys.readouterr().err
    assert not two_gpus[1]


def test_on_a_gpu(cuda):
    """`warmup` compiles the kernels of an operator into the driver's cache.

    After `warmup`, the kernels can be launched.
    """
    index = cuda.index or 0
    with pytest.raises(RuntimeError, match=r"there is no kernel softmaxx"):
        _native.prepare_kernel(index, "softmaxx")
    names = _native.kernel_names(index)
    assert len(names) == len(set(names)) > 100 and "gelu" not in names
    assert warmup.warmup(["softmax"]) == 0
    assert torch.isfinite(oxiwarp.softmax(torch.ones(2, 8, device=cuda))).all()
