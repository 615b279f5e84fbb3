"""Tables of measurements that decide for which sizes a patched model runs `oxiwarp.linear` with an epilogue (an
activation or a residual in the same kernel).

`benches/python/linear_tables.py` measures the entries and writes the two JSON files next to this module:

1. `equal_bits.json` has the sizes at which `oxiwarp.linear` gave the same bits as `F.linear`. Its first level
   is the environment: GPU, torch version and cuBLAS version. The second level is the dtype, with ", bias" if
   the linear has a bias. The third level is "NxK", and its value is the list of M. M is the number of rows of
   the input, K its number of columns, and N the number of columns of the result.
2. `linear_speed.json` is the launch table. Its first level is the compute capability, the second the fused operations
   after the product (the kind), the third "NxK". The value is a list of `[M, fused, separate, library]`, sorted by M.
   The last three are times in microseconds: of `oxiwarp.linear` with an epilogue, of cuBLAS with a separate oxiwarp
   kernel, and of cuBLASLt with its own epilogue. The last one is null if cuBLASLt has no such epilogue.
"""

import ctypes
import functools
import json
import os
from bisect import bisect_left
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

import torch

BLAS = torch._C._BlasBackend
EQUAL_BITS, LAUNCHES = "equal_bits.json", "linear_speed.json"
GATED_RESIDUAL = "gated_residual"
"""The kind of a product after which `residual + gate * product` is computed. The other kinds are the names of
activations, as in the argument `epilogue` of `oxiwarp.linear`."""
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
MARGIN = 0.99
"""The fused product counts as faster if it takes at most this fraction of the time of the alternative."""
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "DISABLE_ADDMM_CUDA_LT",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Environment variables that change which kernel cuBLAS runs. The table of equal bits is for their defaults."""


class Product(NamedTuple):
    """The size and type of a matrix product, and the operations that follow it (the kind)."""

    kind: str
    dtype: torch.dtype
    m: int
    n: int
    k: int
    bias: bool

    def __str__(self) -> str:
        dtype = next(name for name, dtype in DTYPES.items() if dtype is self.dtype)
        return f"{self.m} x {self.k} x {self.n} in {dtype}{' with bias' * self.bias}"


class Launch(NamedTuple):
    """Times in microseconds for a product of M rows. `library` is None if cuBLASLt has no such epilogue."""

    m: int
    fused: float
    separate: float
    library: float | None

    def is_faster(self, fast: bool) -> bool:
        """Return whether the fused product was the fastest. The epilogue of cuBLASLt rounds only once, so its time
        counts only in mode "fast" (if `fast` is True).
        """
        others = [self.separate, *([self.library] if fast and self.library is not None else [])]
        return self.fused <= MARGIN * min(others)


Sizes = dict[tuple[torch.dtype, bool], frozenset[tuple[int, int, int]]]
Equal = dict[str, Sizes]
Launches = dict[str, dict[tuple[str, int, int], list[Launch]]]


def read(name: str) -> Any:
    """Return the content of a JSON file of this folder."""
    return json.loads(files(__package__).joinpath(name).read_text())


def equal_from(content: Mapping[str, Any]) -> Equal:
    """Return the table of the sizes with equal bits, from the content of its JSON file. A size is (M, N, K)."""
    return {
        environment: {
            (DTYPES[kind.partition(",")[0]], kind.endswith("bias")): frozenset(
                (m, *size_of(size)) for size, rows in sizes.items() for m in rows
            )
            for kind, sizes in kinds.items()
        }
        for environment, kinds in content.items()
    }


def launches_from(content: Mapping[str, Any]) -> Launches:
    """Return the launch table from the content of its file."""
    return {
        capability: {
            (kind, *size_of(size)): sorted(Launch(*row) for row in rows)
            for kind, sizes in kinds.items()
            if kind != "measured"
            for size, rows in sizes.items()
        }
        for capability, kinds in content.items()
    }


def size_of(text: str) -> tuple[int, int]:
    """Return N and K of the text "NxK"."""
    n, k = text.split("x")
    return int(n), int(k)


EQUAL: Equal = equal_from(read(EQUAL_BITS))
SPEED: Launches = launches_from(read(LAUNCHES))


@functools.cache
def capability_of(index: int) -> str:
    """Return the compute capability of a GPU, such as "9.0". `index` is the result of `Tensor.get_device`. For
    the CPU, it is -1, and the result is "cpu"."""
    return "cpu" if index < 0 else "{}.{}".format(*torch.cuda.get_device_capability(index))


@functools.cache
def environment_of(index: int) -> str | None:
    """Return the key of the table of equal bits for a GPU: GPU, torch version and cuBLAS version. Return None if the
    version of cuBLAS is not known, or if an environment variable changes which kernel cuBLAS runs.
    """
    if index < 0:
        return f"cpu, torch {torch.__version__}"
    version = cublas_version()
    if version is None or any(os.environ.get(name) for name in VARIABLES):
        return None
    return f"{torch.cuda.get_device_name(index)}, torch {torch.__version__}, cuBLAS {version}"


def cublas_version() -> int | None:
    """Return the version of the loaded cuBLASLt library, such as 130100. Return None if there is not exactly one
    such library in this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "libcublasLt.so" in line}
    if len(paths) != 1:
        return None
    version = ctypes.CDLL(paths.pop()).cublasLtGetVersion
    version.restype = ctypes.c_size_t
    found: int = version()
    return found


def has_default_settings() -> bool:
    """Return whether torch's settings for cuBLAS have their default values.

    With other values, cuBLAS may use another kernel or another accumulation in `F.linear`, which changes its bits.
    torch's TunableOp also chooses another kernel. This function does not use the getters of `torch.backends`, because
    they would take 10 µs more.
    """
    backend, reductions = torch._C._get_blas_preferred_backend(), (True, (True, True))  # older torch: one bool
    return (
        backend in (BLAS.Default, BLAS.Cublas)
        and torch._C._get_cublas_allow_bf16_reduced_precision_reduction() in reductions
        and torch._C._get_cublas_allow_fp16_reduced_precision_reduction() in reductions
        and not torch._C._get_cublas_allow_fp16_accumulation()
        and not torch.cuda.tunable.is_enabled()
    )


def is_equal(product: Product, index: int) -> bool:
    """Return whether the bits of `oxiwarp.linear` and `F.linear` were equal for a product on the GPU
    `index`."""
    sizes = EQUAL.get(environment_of(index) or "", {})
    return (product.m, product.n, product.k) in sizes.get((product.dtype, product.bias), ())


def is_faster(product: Product, capability: str, fast: bool) -> bool:
    """Return whether the launch table (measured times) says that the fused product is faster. `fast` is True for
    `mode="fast"` of `patch`.

    N and K must be equal to measured numbers. M, the number of rows, may be between two measured numbers, if the fused
    product was faster for both. For an M outside of the measured range, the result is False. A bias and the choice
    between bfloat16 and float16 do not affect the time.
    """
    rows = SPEED.get(capability, {}).get((product.kind, product.n, product.k), [])
    at = bisect_left(rows, product.m, key=lambda row: row.m)
    if at == len(rows):
        return False
    if rows[at].m == product.m:
        return rows[at].is_faster(fast)
    return at > 0 and rows[at - 1].is_faster(fast) and rows[at].is_faster(fast)


@functools.lru_cache(maxsize=4096)  # the number of rows may be another one in each call
def refused(product: Product, index: int, fast: bool) -> str | None:
    """Return the reason why these tables do not allow `oxiwarp.linear` for a product, or None if they allow it. `index`
    is the index of the GPU.

    The result depends only on the tables, the GPU and the size, so all ranks of a distributed job with equal
    GPUs decide alike.
    """
    if not is_faster(product, capability_of(index), fast):
        return f"the launch table does not say that {product.kind} in the product {product} is faster"
    if not fast and not is_equal(product, index):
        return f"the bits of the product {product} were not compared with cuBLAS's ({environment_of(index)})"
    return None


__all__ = [
    "DTYPES",
    "EQUAL",
    "GATED_RESIDUAL",
    "SPEED",
    "Launch",
    "Product",
    "capability_of",
    "environment_of",
    "equal_from",
    "has_default_settings",
    "launches_from",
    "refused",
]
