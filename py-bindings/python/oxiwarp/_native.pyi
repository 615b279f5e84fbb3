from typing import Any

__all__ = ["devices", "driver", "kernel_info", "kernel_names", "prepare_kernel", "register"]

# Registers the kernels of operators with torch. `operators` has pairs: a schema, and the role names of its
# tensors. Raises TypeError if a kernel is missing or does not match, and RuntimeError if torch is too old.
def register(libtorch_cpu_path: str, namespace: str, operators: list[tuple[str, list[str]]]) -> None: ...

# One dict per op, dtype and architecture: op, dtype, arch, entries.
def kernel_info() -> list[dict[str, Any]]: ...

# Names of the kernels that a CUDA device can launch. Raises RuntimeError if it can launch none.
def kernel_names(index: int) -> list[str]: ...

# Loads a kernel without launching it, so that the driver compiles its PTX. Raises RuntimeError.
def prepare_kernel(index: int, name: str) -> None: ...

# One dict per CUDA device: index, name, ptx (architecture of its kernels), error (why no kernels run).
# Raises RuntimeError without a CUDA driver. Creates no CUDA context.
def devices() -> list[dict[str, Any]]: ...

# Version of the CUDA driver, such as "13.0". Raises RuntimeError without a CUDA driver.
def driver() -> str: ...
