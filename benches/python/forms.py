"""Defines what the benchmarks measure: a `Form` is one use of an op in models.

A form contains three functions: the torch calls of the model (the chain), the oxiwarp call that replaces them, and a
float64 reference. A form also lists other libraries that have the op (peers), and models with the shapes of their
tensors. The byte count of a call assumes that each input is read once and each result is written once.
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

CHUNK = 2**27  # maximum number of elements of a tensor per call of the float64 reference


@dataclass(frozen=True)
class Source:
    """Creates random inputs on a device in a dtype."""

    device: torch.device
    dtype: torch.dtype = DTYPE

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Return normally distributed values. They are scaled in place, because the tensor can take half of
        the GPU memory."""
        return torch.randn(shape, device=self.device, dtype=dtype or self.dtype).mul_(scale).add_(mean)

    def weight(self, cols: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return the weight of a norm, with values from 0.5 to 1.5."""
        return torch.rand(cols, device=self.device, dtype=dtype or self.dtype).add_(0.5)

    def modulation(self, batch: int, cols: int, count: int, dtype: torch.dtype | None = None) -> list[Tensor]:
        """Return `count` tensors `[batch, 1, cols]`. As in diffusers' AdaLayerNormZero, they are slices of
        one larger tensor."""
        projection = self.normal(batch, 6 * cols, scale=0.3, dtype=dtype)
        return [part[:, None] for part in projection.chunk(6, dim=1)[:count]]

    def indices(self, count: int, below: int) -> Tensor:
        """Return random class indices for a cross-entropy."""
        return torch.randint(below, (count,), device=self.device)


@dataclass(frozen=True)
class Peer:
    """Another library that has the op.

    `module` is the name of the library's Python module. `call` is a function that takes the imported module
    and the op's inputs.
    """

    module: str
    call: Chain
    overwrites: bool = False
    """True if the call overwrites its inputs. The check then passes copies."""


@dataclass(frozen=True, eq=False)
class Form:
    """One use of an op: a chain of torch calls, the oxiwarp call that replaces it, and the shapes in models.

    `inputs` creates inputs for a shape, whose first two dimensions are batch and tokens. Four kinds of functions take
    these inputs as keyword arguments: `eager` (the model's torch calls), `reference` (the same in float64), `ours` (the
    oxiwarp call) and the functions of `peers` (other libraries). If the op has modes, `ours` also takes the argument
    `mode`, and `claims` maps each mode to its documented guarantee, such as "bit-exact".
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
    """Name and call of a torch function with the same result as the model's torch calls, if the model does
    not use it."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    real: Chain | None = None
    """A function with the same result as `eager` that calls the classes of diffusers or transformers. It
    imports them when it is called."""
    floor: Chain | None = None
    """A call of a kernel that only moves as many bytes as the op."""
    timed: bool = True
    chunked: bool = True
    """True if the results of tokens are independent. The reference is then computed for a few tokens at a
    time."""
    grains: tuple[int, ...] = ()
    """The number of tokens is rounded up to a multiple of a value from this list, the largest value that
    is at most the number."""
    token: Chain | None = None
    """An oxiwarp call for the token with index `at` of `tokens` tokens. Needed if the result depends on
    the position of the token."""
    backward: bool = False
    """True if the gradients are measured. `grad` is then the incoming gradient, and `grad2` that of a
    second result."""
    constants: tuple[str, ...] = ()
    """Names of the inputs without a gradient."""
    gradient: str = ""
    """Name of the operator that computes the gradient, if the name differs from `op`."""
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)

    @property
    def function(self) -> str:
        """Return the name of the measured public function."""
        return self.op.removesuffix("_backward")

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the modes of `ours`, the default mode first."""
        return tuple(self.claims)

    def call(self, mode: str) -> Chain:
        """Return a function that calls oxiwarp in one mode."""
        return (lambda **inputs: self.ours(**inputs, mode=mode)) if mode != NO_MODE else self.ours


def tuple_of(result: Result) -> tuple[Tensor, ...]:
    """Return one or several results as a tuple."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def prepare(form: Form, provider: Chain, inputs: Inputs) -> Callable[[], Result]:
    """Return a callable that runs the work to time. For a gradient, run the forward pass here, and return a
    callable that runs the backward pass."""
    if not form.backward:
        return lambda: provider(**inputs)
    grads = [x for name, x in inputs.items() if name.startswith("grad")]
    with torch.enable_grad():
        given = {name: x.detach() for name, x in inputs.items() if not name.startswith("grad")}
        leaves = [x.requires_grad_() for name, x in given.items() if name not in form.constants]
        results = provider(**given)
    return lambda: torch.autograd.grad(tuple_of(results), leaves, grads, retain_graph=True)


def bytes_of(*tensors: Tensor) -> int:
    """Return the total size of the tensors in bytes. A slice counts only its own elements, not the rest of
    its storage."""
    return sum(x.numel() * x.element_size() for x in tensors)


def wide(x: Tensor) -> Tensor:
    """Convert a tensor to float64 or complex128. Return integer tensors unchanged."""
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def parts(tensors: Mapping[Any, Tensor], tokens: int, chunked: bool) -> Iterator[dict[Any, Tensor]]:
    """Split tensors along the token dimension and yield the slices, so that their float64 copies stay small.

    Each result is a dict with one range of tokens of every tensor. A tensor without a token dimension is not
    split.
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
    """Return the index of the first dimension whose size is `tokens`, or None if there is no such dimension.

    The last dimension is considered only if `x` is one-dimensional.
    """
    leading = x.shape[:-1] if x.ndim > 1 else x.shape
    return leading.index(tokens) if tokens in leading else None
