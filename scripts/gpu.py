"""Print the PTX architectures of this machine's GPUs as a value of OXIWARP_PTX: "sm_90,sm_90a", or "none".

`gpu.py --require` prints nothing if CUDA finds a GPU. Otherwise it prints the reason and exits with 1.
"""

import ctypes
import sys

ARCHS = {"sm_75": 75, "sm_80": 80, "sm_90": 90}
# Maps a compute capability to PTX that runs only on GPUs of this capability. They load it in addition to the
# PTX of `ARCHS`.
NATIVE = {90: ["sm_90a"]}
MAJOR, MINOR = 75, 76  # CUdevice_attribute values of the compute capability: major, minor.


def capabilities() -> list[int]:
    """Return the compute capability of each GPU, times ten (90 for 9.0). Raise RuntimeError if CUDA finds no
    GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"the NVIDIA driver is not available: {error}") from None
    count, value = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        raise RuntimeError(f"the NVIDIA driver finds no device: error {code}")
    if not count.value:
        raise RuntimeError("the NVIDIA driver finds no device")

    def attribute(number: int, device: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    return [10 * attribute(MAJOR, device) + attribute(MINOR, device) for device in range(count.value)]


def selection(capabilities: list[int]) -> str:
    """Return the names of the PTX versions that oxiwarp loads on GPUs with these compute capabilities.

    For each GPU, these are the newest PTX of `ARCHS` that the GPU can run, and the PTX that `NATIVE` lists
    for its compute capability.

    >>> selection([90, 89])
    'sm_80,sm_90,sm_90a'
    >>> selection([70])
    'none'
    """
    names = set()
    for capability in capabilities:
        runs = [name for name, oldest in ARCHS.items() if oldest <= capability]
        names |= {*runs[-1:], *NATIVE.get(capability, ())}
    return ",".join(sorted(names)) or "none"


if __name__ == "__main__":
    require = sys.argv[1:] == ["--require"]
    try:
        found = capabilities()
    except RuntimeError as error:
        if require:
            print(f"no GPU here, so nothing to measure: {error}")
            sys.exit(1)
        found = []
    if not require:
        print(selection(found))
