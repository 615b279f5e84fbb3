"""Exits with 0 if CUDA can use a GPU. Otherwise prints the reason and exits with 1."""

import ctypes
import sys


def reason_for_none() -> str | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"the NVIDIA driver is not available: {error}"
    count = ctypes.c_int()
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return f"the NVIDIA driver finds no device: error {code}"
    return None if count.value else "the NVIDIA driver finds no device"


if reason := reason_for_none():
    print(f"no GPU, nothing to measure: {reason}")
    sys.exit(1)
