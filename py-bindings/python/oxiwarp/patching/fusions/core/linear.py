"""Computes a linear layer and the operations after it in one kernel, `oxiwarp.linear` with an epilogue, if tables of
measurements allow it.

The operations after the linear are an activation, or `residual + gate * y`. The methods that `patch` installs call the
function `later` instead of the linear. `later` returns a `LaterLinear` (a placeholder for the product) if these
conditions hold:

- The launch table says that the fused product is faster (see `linear_tables.py`).
- The linear is a plain `nn.Linear` without hooks, and no gradient is recorded.
- In mode "exact", the table of equal bits has the size, the GPU and the versions of torch and cuBLAS.

In mode "exact", the first call of each size also computes the linear and the operations after it separately, and
compares the bits. If they differ, this process no longer uses the kernel for products of this size. There is no
comparison during the capture of a CUDA graph, and none in a distributed job. There, all ranks must decide alike, but a
rank does not know which sizes the other ranks compare. In a distributed job, the decision therefore depends only on the
tables, the size, and the options of `patch`.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .... import ops
from ....ops._register import PLAIN, may_write, needs_grad
from ...sites import RAN, Site
from .linear_tables import DTYPES, GATED_RESIDUAL, SPEED, Product, capability_of, has_default_settings, refused
from .modules import hooked

FORWARD, LINEAR = nn.Linear.forward, F.linear
ALIGNED = 256
"""If addresses are multiples of this number of bytes, cuBLASLt's choice of a kernel does not depend on them."""
HALVES = frozenset(DTYPES.values())
COMPARED: dict[tuple[Product, int], bool] = {}
"""Whether the bits of a product were equal in the comparison of this process. The key also has the GPU."""
FIRST = "the first call of a size, which compared the bits"
DIFFERS = "the comparison at the first call of the size found other bits than those of the linear by itself"
SETTINGS = "torch's settings for cuBLAS do not have their default values"

compiling = torch.compiler.is_compiling


class LaterLinear:
    """A placeholder for the product `module(x)`, which `oxiwarp.linear` can compute together with the
    operations after it."""

    __slots__ = ("compare", "dtype", "key", "mode", "module", "parameters", "shape", "site", "x")

    def __init__(
        self,
        module: nn.Linear,
        x: Tensor,
        parameters: tuple[Tensor, Tensor | None],
        key: tuple[Product, int],
        mode: str,
        site: Site,
    ) -> None:
        self.module, self.x, self.parameters, self.key, self.mode, self.site = module, x, parameters, key, mode, site
        self.shape, self.dtype = torch.Size((*x.shape[:-1], key[0].n)), x.dtype
        self.compare = mode == "exact" and key not in COMPARED and may_compare(x)

    def now(self) -> Tensor:
        """Compute the product by itself, with the module."""
        made: Tensor = self.module(self.x)
        return made

    def activated(self, separate: Callable[..., Tensor], out: Tensor | None = None) -> Tensor:
        """Apply an activation function to the product and return the result. If `out` is given, write the
        result to it.

        If one kernel cannot compute both, the operator `separate` computes the activation from the product.
        """

        def apart() -> Tensor:
            return separate(self.now(), mode=self.mode, out=out)

        return self.fused(apart, out, epilogue=self.key[0].kind)

    def added(self, residual: Tensor, gate: Tensor, separate: Callable[[Tensor], Tensor]) -> Tensor:
        """Return `residual + gate * product`. If one kernel cannot compute it, the function `separate`
        computes it from the product.
        """
        like = type(residual) in PLAIN and residual.shape == self.shape and residual.dtype == self.dtype
        if like and type(gate) in PLAIN and gate.dtype in (self.dtype, torch.float32):
            return self.fused(lambda: separate(self.now()), None, residual=residual, gate=gate)
        self.site.note("the residual or the gate has another shape or dtype than the product")
        return separate(self.now())

    def fused(self, apart: Callable[[], Tensor], out: Tensor | None, **epilogue: Any) -> Tensor:
        """Return the result of `oxiwarp.linear` with an epilogue. The function `apart` computes the same result with
        separate operators, and writes it to `out`.

        At the first call of a size, compare the bits of both results, and return the result of `apart`. If
        `oxiwarp.linear` rejects an operand, also return the result of `apart`.
        """
        right = apart() if self.compare else None
        try:
            made = ops.linear(self.x, *self.parameters, **epilogue, mode=self.mode, out=None if self.compare else out)
        except torch.OutOfMemoryError:
            if right is None:
                raise
            return right  # the comparison needs memory for a second result
        except RuntimeError as error:
            self.site.note(str(error).splitlines()[0])
            return apart() if right is None else right
        if right is None:
            self.site.note(RAN)
            return made
        COMPARED[self.key] = have_same_bits(made, right)
        self.site.note(FIRST)
        return right


def may_defer() -> bool:
    """Return whether `later` may return a placeholder for a linear. It may not under torch.compile, or if the launch
    table (measured times) is empty.
    """
    return not compiling() and bool(SPEED)


def computed(x: Tensor | LaterLinear) -> Tensor:
    """If `x` is a placeholder for the result of a linear, compute and return this result. Return a tensor unchanged."""
    return x.now() if isinstance(x, LaterLinear) else x


def later(how: Any, kind: str, module: Any, x: Any, site: Site | None = None) -> LaterLinear | None:
    """Return a placeholder for `module(x)` if `oxiwarp.linear` may compute it together with the operations of
    `kind` after it. Otherwise return None: the caller then calls the module.

    `how` has the options of `patch`: `mode` and `cpu_kernels`. `site` counts for the report how often the kernel ran,
    or why not. The default is `how.linears`. Calls are not counted if the launch table (measured times) has no entry
    for the GPU, or if `module` is not a kind of linear. Linears, quantised linears and adapters of linears are
    recognised by their attribute `in_features`.
    """
    if not may_defer() or type(x) not in PLAIN or not hasattr(module, "in_features"):
        return None
    site = how.linears if site is None else site
    index = x.get_device()
    if not (x.is_cuda or (how.cpu_kernels and x.is_cpu)) or capability_of(index) not in SPEED:
        return None
    found = parameters_of(module)
    why = found if isinstance(found, str) else unfit(x, *found)
    if isinstance(found, str) or why is not None:
        site.note(str(why))
        return None
    weight, bias = found
    n, k = weight.shape
    product = Product(kind, x.dtype, x.numel() // k, n, k, bias is not None)
    why = refused(product, index, how.mode == "fast") or recorded(x, weight, bias)
    if why is None and how.mode == "exact":
        why = unequal(product, index, x, weight, bias)
    if why is not None:
        site.note(why)
        return None
    return LaterLinear(module, x, (weight, bias), (product, index), how.mode, site)


def parameters_of(module: Any) -> tuple[Tensor, Tensor | None] | str:
    """Return weight and bias if `module` is an unmodified linear. Otherwise, return the reason why `module` must be
    called.
    """
    if type(module) is not nn.Linear:
        return f"the linear is a {type(module).__name__}"
    held = module.__dict__
    if hooked(module) or held.get("_compiled_call_impl") is not None:
        return "the linear has hooks, or is compiled by itself"
    if nn.Linear.forward is not FORWARD or F.linear is not LINEAR:
        return "F.linear was replaced"
    parameters = held["_parameters"]
    if not ("weight" in parameters and "bias" in parameters) or "weight" in held or "bias" in held:
        return "the linear's weight or bias is not a parameter"
    return parameters["weight"], parameters["bias"]


def unfit(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Return the reason why `oxiwarp.linear` does not support the operands of a linear, or None.

    `F.linear` with a bias rounds twice if `x` is not contiguous, so `x` must be contiguous.
    """
    if x.dtype not in HALVES:
        return f"the input of the linear is {x.dtype}"
    for tensor in (weight, bias):
        if tensor is None:
            continue
        if type(tensor) not in PLAIN:
            return f"a parameter of the linear is a {type(tensor).__name__}"
        if tensor.device != x.device or tensor.dtype != x.dtype or not tensor.is_contiguous():
            return "a parameter of the linear has another device or dtype than its input, or is not contiguous"
    if not x.is_contiguous() or x.numel() == 0 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        return "the input of the linear is empty, not contiguous, or has another width"
    return None


def recorded(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Return the reason why the linear must be called as a torch operation, for example because autograd records it. If
    there is none, return None.
    """
    if needs_grad(x, weight, bias) or not may_write(x):
        return "a gradient is recorded, or a transform of torch.func is active"
    if torch.is_autocast_enabled("cuda" if x.is_cuda else "cpu") or torch._C._get_tracing_state() is not None:
        return "autocast or torch.jit.trace is active"
    return None


def unequal(product: Product, index: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """Return the reason why the table of equal bits is not valid for this call, or None if it is valid.

    The table says for which sizes `oxiwarp.linear` and `F.linear` gave the same bits. It was measured with torch's
    default settings, and with addresses that are multiples of `ALIGNED`.
    """
    if COMPARED.get((product, index)) is False:
        return f"{DIFFERS}: {product}"
    if not has_default_settings():
        return SETTINGS
    if x.is_cuda:
        for tensor in (x, weight, bias):
            if tensor is not None and tensor.data_ptr() % ALIGNED:
                return f"an address is not a multiple of {ALIGNED}"
    return None


def may_compare(x: Tensor) -> bool:
    """Return whether this call may compare the bits.

    During the capture of a CUDA graph, no result can be read. In a distributed job, all ranks must decide alike, but
    they would compare different data.
    """
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return not is_distributed()


def is_distributed() -> bool:
    """Return whether this process is one of several ranks. This is also True before the process joins its
    process group.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return True
    group = torch.distributed
    return group.is_available() and group.is_initialized() and group.get_world_size() > 1


def have_same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two 16-bit tensors are equal in every bit. Here, NaN equals NaN, and 0 differs from -0."""
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


__all__ = ["GATED_RESIDUAL", "LaterLinear", "computed", "later", "may_defer"]
