"""What is measured: an op as models use it.

A `Form` is one chain that model code writes, the oxiwarp call that replaces it, its float64 reference, the peers that
have it, and the models whose shapes it is measured at. Bytes are counted from the tensors themselves: every input read
once, every result written once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

DTYPE = torch.bfloat16
Shape = tuple[int, ...]
Inputs = dict[str, Tensor]
Result = Tensor | tuple[Tensor, ...]
Chain = Callable[..., Result]

# What an op guarantees against the eager chain, by mode: the exactness table checks the first and measures the others.
BIT_EXACT, SAME_ROUNDINGS, ONE_ROUNDING = "bit-exact", "same roundings", "one rounding"
EXACT_AND_FAST = {"exact": BIT_EXACT, "fast": ONE_ROUNDING}
NO_MODE = ""  # of an op without modes

CHUNK = 2**27  # elements of the largest tensor that the float64 reference sees at once


@dataclass(frozen=True)
class Source:
    """Where a form takes its random inputs from."""

    device: torch.device
    dtype: torch.dtype = DTYPE

    def normal(self, *shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Normally distributed; in place, since the largest take half of a GPU's memory."""
        return torch.randn(shape, device=self.device, dtype=dtype or self.dtype).mul_(scale).add_(mean)

    def weight(self, cols: int, dtype: torch.dtype | None = None) -> Tensor:
        """A norm's weight: around 1, never 1."""
        return torch.rand(cols, device=self.device, dtype=dtype or self.dtype).add_(0.5)

    def modulation(self, batch: int, cols: int, count: int, dtype: torch.dtype | None = None) -> list[Tensor]:
        """`count` of the six slices `[batch, 1, cols]` that AdaLayerNormZero cuts from one projection."""
        projection = self.normal(batch, 6 * cols, scale=0.3, dtype=dtype)
        return [part[:, None] for part in projection.chunk(6, dim=1)[:count]]

    def indices(self, count: int, below: int) -> Tensor:
        """Classes of a cross-entropy."""
        return torch.randint(below, (count,), device=self.device)


@dataclass(frozen=True)
class Peer:
    """A library that has the op: its module, and a call that takes the module and the form's inputs."""

    module: str
    call: Chain
    overwrites: bool = False
    """Writes its results over the inputs: the check gives it copies."""


@dataclass(frozen=True, eq=False)
class Form:
    """One chain of an op, at the shapes of the models that use it.

    `inputs` makes fresh ones for a shape, whose first two sizes are batch and tokens. `eager`, `reference` (in
    float64), `ours` and the peers take them by name; `ours` takes `mode` where `claims` names more than one.
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
    """torch's own function for the chain, where it is another one than the chain."""
    peers: Mapping[str, Peer] = field(default_factory=dict)
    real: Chain | None = None
    """The chain through the classes of diffusers or transformers, imported when called."""
    floor: Chain | None = None
    """A kernel that only moves the form's bytes."""
    timed: bool = True
    chunked: bool = True
    """Whether tokens are independent of their number, so that the reference may see some at a time."""
    grains: tuple[int, ...] = ()
    """Tokens come in multiples of the largest of these that is no larger than their number."""
    token: Chain | None = None
    """Ours on the one token `at` of `tokens`, its inputs alone given, where its place is part of the result."""
    backward: bool = False
    """Measure the gradients of the inputs for the given `grad` (`grad2` of a second result), not the call."""
    constants: tuple[str, ...] = ()
    """Inputs that have no gradient."""
    gradient: str = ""
    """The operator of the gradient, where it is not called as the form's op."""
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)

    @property
    def function(self) -> str:
        """The public function that is measured."""
        return self.op.removesuffix("_backward")

    @property
    def modes(self) -> tuple[str, ...]:
        """Of `ours`, the default first."""
        return tuple(self.claims)

    def call(self, mode: str) -> Chain:
        """Ours in one mode."""
        return (lambda **inputs: self.ours(**inputs, mode=mode)) if mode != NO_MODE else self.ours


def tuple_of(result: Result) -> tuple[Tensor, ...]:
    """Results as a tuple, also where there is one."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def prepare(form: Form, provider: Chain, inputs: Inputs) -> Callable[[], Result]:
    """What is called and timed. For a backward form the provider runs here, and the call is its gradient."""
    if not form.backward:
        return lambda: provider(**inputs)
    grads = [x for name, x in inputs.items() if name.startswith("grad")]
    with torch.enable_grad():
        given = {name: x.detach() for name, x in inputs.items() if not name.startswith("grad")}
        leaves = [x.requires_grad_() for name, x in given.items() if name not in form.constants]
        results = provider(**given)
    return lambda: torch.autograd.grad(tuple_of(results), leaves, grads, retain_graph=True)


def bytes_of(*tensors: Tensor) -> int:
    """Of the elements, not of the storage that they are slices of."""
    return sum(x.numel() * x.element_size() for x in tensors)


def wide(x: Tensor) -> Tensor:
    """In float64, or complex128; integers as they are."""
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def parts(tensors: Mapping[Any, Tensor], tokens: int, chunked: bool) -> Iterator[dict[Any, Tensor]]:
    """The tensors, some tokens at a time, so that float64 copies stay small. Tensors without tokens come whole."""
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
    """The first dimension of that size, the last one aside (but for a vector's); None where there is none."""
    leading = x.shape[:-1] if x.ndim > 1 else x.shape
    return leading.index(tokens) if tokens in leading else None
