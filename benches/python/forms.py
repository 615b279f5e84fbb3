"""Defines what the benchmarks measure: a `Form` is one use of an op in models.

A form has the torch calls of the model (the chain), the oxiwarp call that replaces them, and a float64
reference. It also lists other libraries with the op (peers), and the models with their shapes. The bytes of a
call are the bytes of all inputs, each read once, and of all results, each written once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from exactness_cell import BIT_EXACT, ONE_ROUNDING
from exactness_cell import SAME_ROUNDINGS as SAME_ROUNDINGS
from torch import Tensor

DTYPE = torch.bfloat16
Shape = tuple[int, ...]
Inputs = dict[str, Tensor]
Result = Tensor | tuple[Tensor, ...]
Chain = Callable[..., Result]

EXACT_AND_FAST = {"exact": BIT_EXACT, "fast": ONE_ROUNDING}
NO_MODE = ""  # mode of an op without modes

CHUNK = 2**27  # maximum elements of a tensor per call of the float64 reference


@dataclass(frozen=True)
class Source:
    """Creates random inputs on a device in a dtype."""

    device: torch.device
    dtype: torch.dtype = DTYPE

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal values. They are scaled in place, because a tensor can take half of the GPU memory."""
        return torch.randn(shape, device=self.device, dtype=dtype or self.dtype).mul_(scale).add_(mean)

    def weight(self, cols: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a norm's weight with values from 0.5 to 1.5."""
        return torch.rand(cols, device=self.device, dtype=dtype or self.dtype).add_(0.5)

    def modulation(self, batch: int, cols: int, count: int, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Return `count` tensors `[batch, 1, cols]`. As in AdaLayerNormZero, they are slices of one larger tensor."""
        projection = self.normal(batch, 6 * cols, scale=0.3, dtype=dtype)
        return [part[:, None] for part in projection.chunk(6, dim=1)[:count]]

    def indices(self, count: int, below: int) -> Tensor:
        """Return class indices for a cross-entropy."""
        return torch.randint(below, (count,), device=self.device)


@dataclass(frozen=True)
class Peer:
    """Another library that has the op: its module, and a function that takes this module and the inputs of
    the form."""

    module: str
    call: Chain
    overwrites: bool = False
    """True: the call overwrites its inputs, so the check passes copies."""


@dataclass(frozen=True, eq=False)
class Form:
    """One use of an op: a chain of torch calls, the oxiwarp call that replaces it, and the shapes in models.

    `inputs` creates inputs for a shape, whose first two sizes are batch and tokens. These functions take the
    inputs as keyword arguments: `eager` (the model's torch calls), `reference` (in float64), `ours` (the
    oxiwarp call) and the functions of `peers` (other libraries). If the keys of the dict `claims` are modes,
    `ours` also takes the argument `mode`.
    """

    op: str
    chain: str
    cases: tuple[tuple[str, Shape], ...]
    inputs: Callable[[Source, Shape], Inputs]
    eager: Chain
    reference: Chain
    ours: Chain
    claims: Mapping[str, str] = field(default_factory=lambda: EXACT_AND_FAST)
    library: tuple[str, Chain] | None = None
    """Name and call of the torch function that computes the chain, if the chain does not use it."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    real: Chain | None = None
    """The chain by the classes of diffusers or transformers, which it imports when called."""
    floor: Chain | None = None
    """A kernel that only moves the form's bytes."""
    timed: bool = True
    chunked: bool = True
    """Whether tokens are independent, so that the reference may compute some at a time."""
    grains: tuple[int, ...] = ()
    """The number of tokens is a multiple of the largest of these values that does not exceed it."""
    token: Chain | None = None
    """oxiwarp's call for only the token `at` of `tokens`, if the result depends on the position of the token."""
    backward: bool = False
    """True: measure the gradients of the inputs for the input `grad` (and `grad2` for a second result)."""
    constants: tuple[str, ...] = ()
    """Names of the inputs without a gradient."""
    gradient: str = ""
    """Name of the gradient's operator, if it differs from `op`."""
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)

    @property
    def function(self) -> str:
        """Name of the measured public function."""
        return self.op.removesuffix("_backward")

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes of `ours`, the default first."""
        return tuple(self.claims)

    def call(self, mode: str) -> Chain:
        """Return oxiwarp's call in one mode."""
        return (lambda **inputs: self.ours(**inputs, mode=mode)) if mode != NO_MODE else self.ours


def tuple_of(result: Result) -> tuple[Tensor, ...]:
    """Return the result or results as a tuple."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def prepare(form: Form, provider: Chain, inputs: Inputs) -> Callable[[], Result]:
    """Return the call to time. For a gradient, run the forward pass here, and return a call of the backward pass."""
    if not form.backward:
        return lambda: provider(**inputs)
    grads = [x for name, x in inputs.items() if name.startswith("grad")]
    with torch.enable_grad():
        given = {name: x.detach() for name, x in inputs.items() if not name.startswith("grad")}
        leaves = [x.requires_grad_() for name, x in given.items() if name not in form.constants]
        results = provider(**given)
    return lambda: torch.autograd.grad(tuple_of(results), leaves, grads, retain_graph=True)


def bytes_of(*tensors: Tensor) -> int:
    """Return the bytes of all elements. A slice counts only its elements, not the storage that it is a part of."""
    return sum(x.numel() * x.element_size() for x in tensors)


def wide(x: Tensor) -> Tensor:
    """Convert to float64 or complex128. Return integers unchanged."""
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def parts(tensors: Mapping[Any, Tensor], tokens: int, chunked: bool) -> Iterator[dict[Any, Tensor]]:
    """Split tensors along the token dimension and yield the parts, so that their float64 copies stay small.

    A tensor without a token dimension is yielded completely each time.
    """
    largest = max(x.numel() for x in tensors.values())
    step = max(1, CHUNK * tokens // largest) if chunked else tokens
    where = {name: token_dimension(x, tokens) for name, x in tensors.items()}
    for start in range(0, tokens, step):
        size = min(step, tokens - start)
        yield {
            name: x if (dim := where[name]) is None or step >= tokens else x.narrow(dim, start, size)
            for name, x in tensors.items()
        }


def token_dimension(x: Tensor, tokens: int) -> int | None:
    """Return the first dimension of size `tokens`, or None.

    The last dimension counts only if `x` is one-dimensional.
    """
    leading = x.shape[:-1] if x.ndim > 1 else x.shape
    return leading.index(tokens) if tokens in leading else None
