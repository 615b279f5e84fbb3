"""How a norm module rounds, found by asking the module itself.

There are some 200 RMSNorm classes in transformers and diffusers, in half a dozen roundings that their names do not
tell. So no table of classes is kept. A module whose class name says RMSNorm (or ends with T5LayerNorm) is *probed*: its
class's own `forward` runs on a small random CPU tensor, with random weights of the module's shape, for each pair of
dtypes (input, weight) that has a kernel, and the result is compared with the formulas that the kernel can compute. A
pair gets a kernel where a formula reproduces the module's own output; every other pair keeps the module's own forward.
Rows of several magnitudes make the probe see where `eps` is added; random weights make it see offsets and casts.

The module itself is only read: no weight is touched (it may be on a GPU, offloaded or on meta), no random state moves.
"""

import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ._register import PLAIN
from .replacement import Unsuitable

NAME = re.compile(r"rmsnorm|t5layernorm$", re.IGNORECASE)
EPS_NAMES = ("eps", "variance_epsilon")
DEFAULT_EPS = torch.finfo(torch.float32).eps  # torch.nn.RMSNorm with eps=None
PROBE_COLS = 64  # for a module that does not say how wide its input is
HALVES = (torch.bfloat16, torch.float16)

DtypePair = tuple[torch.dtype, torch.dtype | None]


@dataclass(frozen=True)
class Formula:
    """Arguments of `oxiwarp.rms_norm` that round as a module does."""

    uses_weight: bool
    weight_offset: float
    round_before_weight: bool


def is_candidate(module: nn.Module) -> bool:
    """Whether the class name says that this is an RMSNorm."""
    return NAME.search(type(module).__name__) is not None


def recognise(module: nn.Module) -> tuple[dict[DtypePair, Formula], str]:
    """Formulas per pair of dtypes and the name of the eps attribute. Raises `Unsuitable` with the reason."""
    check_forward(type(module))
    eps_name = next((name for name in EPS_NAMES if hasattr(module, name)), None)
    if eps_name is None:
        raise Unsuitable("it has neither eps nor variance_epsilon")
    if any(True for _ in module.children()):
        raise Unsuitable("it is made of other modules, which are looked at one by one")
    weight = check_tensors(module)
    key = cache_key(module, weight)
    formulas = _probed.get(key) if key is not None else None
    if formulas is None:
        formulas = probe(module, weight, eps_name)
        if key is not None:
            _probed[key] = formulas
    if not formulas:
        raise Unsuitable("its own forward rounds in a way that no kernel has")
    if weight is not None and not any(pair[1] == weight.dtype for pair in formulas):
        raise Unsuitable(f"its own forward rounds in a way that no kernel has for {weight.dtype} weights")
    return formulas, eps_name


_probed: dict[Any, dict[DtypePair, Formula]] = {}


def input_name(cls: type[nn.Module]) -> str:
    """Name of the only argument of a class's forward; `Unsuitable` where there are others."""
    _self, *parameters = inspect.signature(cls.forward).parameters.values()
    names = ", ".join(str(parameter) for parameter in parameters)
    if len(parameters) != 1 or parameters[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise Unsuitable(f"its forward takes ({names}), expected one tensor")
    return parameters[0].name


def check_forward(cls: type[nn.Module]) -> None:
    """Raise `Unsuitable` unless `cls.forward` takes one tensor."""
    try:
        input_name(cls)
    except (TypeError, ValueError) as error:
        raise Unsuitable(f"the signature of its forward cannot be read: {error}") from None


def check_tensors(module: nn.Module) -> Tensor | None:
    """The module's weight, if it has one. Raises `Unsuitable` for other tensors and for weights that are not rows."""
    tensors = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    weight = tensors.pop("weight", None)
    if tensors:
        raise Unsuitable(f"it has {', '.join(sorted(tensors))} besides a weight")
    if weight is None:
        if isinstance(getattr(module, "weight", None), Tensor):
            raise Unsuitable("its weight is neither a parameter nor a buffer")
        return None
    if type(weight) not in PLAIN and not is_sharded(weight):
        raise Unsuitable(f"its weight is a {type(weight).__name__}")
    if weight.dim() != 1:
        raise Unsuitable(f"its weight has shape {list(weight.shape)}, expected one dimension")
    return weight


def is_sharded(weight: Tensor) -> bool:
    """Whether FSDP2 holds the weight, which is whole during a call."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def cache_key(module: nn.Module, weight: Tensor | None) -> Any:
    """What a probe depends on: class, weight, plain attributes. None: do not cache."""
    own = {k: v for k, v in module.__dict__.items() if not k.startswith("_") and k not in ("training", "forward")}
    if not all(isinstance(v, (int, float, str, bool, tuple, torch.dtype, type(None))) for v in own.values()):
        return None
    key = (
        type(module),
        None if weight is None else len(weight),
        weight is not None and weight.dtype,
        *sorted(own.items()),
    )
    return key if all(_hashable(part) for part in key) else None


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def probe(module: nn.Module, weight: Tensor | None, eps_name: str) -> dict[DtypePair, Formula]:
    """Run the class's own forward for every pair of dtypes and find the formula that it computes."""
    eps = getattr(module, eps_name)
    shape = getattr(module, "normalized_shape", None)
    cols = len(weight) if weight is not None else shape[-1] if shape else PROBE_COLS
    found: dict[DtypePair, Formula] = {}
    with torch.no_grad(), torch.autocast("cpu", enabled=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.nn.RMSNorm warns about a weight of another dtype
        for pair in pairs(weight is not None):
            x, w = probe_tensors(cols, pair, DEFAULT_EPS if eps is None else float(eps))
            formula = match(own_forward(module, x, w), x, w, DEFAULT_EPS if eps is None else float(eps))
            if formula is not None:
                found[pair] = formula
    return found


def pairs(with_weight: bool) -> Iterator[DtypePair]:
    """The pairs (input, weight) that have a kernel."""
    for dtype in (torch.float32, *HALVES):
        yield dtype, dtype if with_weight else None
        if with_weight and dtype in HALVES:
            yield dtype, torch.float32


def probe_tensors(cols: int, pair: DtypePair, eps: float) -> tuple[Tensor, Tensor | None]:
    """`[2, 4, cols]` random values with rows of magnitude 1, 30, sqrt(eps) and 0.03, and a weight around 1."""
    generator = torch.Generator("cpu").manual_seed(0)
    scale = torch.tensor([1.0, 30.0, max(eps, 1e-8) ** 0.5, 0.03], device="cpu")[None, :, None]
    x = torch.randn(2, 4, cols, generator=generator, device="cpu") * scale
    w = torch.randn(cols, generator=generator, device="cpu") * 0.5 + 1.0
    return x.to(pair[0]), None if pair[1] is None else w.to(pair[1])


def own_forward(module: nn.Module, x: Tensor, w: Tensor | None) -> Any:
    """The class's `forward` on a copy of the module with `w` as its weight, or the error that it raises."""
    cls = type(module)
    copy = cls.__new__(cls)
    copy.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers"):
        held = dict(module.__dict__[name])
        if held.get("weight") is not None:
            held["weight"] = nn.Parameter(w, requires_grad=False) if name == "_parameters" and w is not None else w
        copy.__dict__[name] = held
    try:
        return cls.forward(copy, x)
    except Exception as error:  # noqa: BLE001  whatever it raises, it is not a formula
        return error


def match(y: Any, x: Tensor, w: Tensor | None, eps: float) -> Formula | None:
    """The formula that gives `y`, or None."""
    if not isinstance(y, Tensor) or y.dtype != x.dtype or y.shape != x.shape:
        return None
    weighted = [Formula(True, offset, before) for offset in (0.0, 1.0) for before in (False, True)]
    for formula in [*(weighted if w is not None else []), Formula(False, 0.0, False)]:
        if same_roundings(y, reference(x, w, eps, formula)):
            return formula
    return None


def reference(x: Tensor, w: Tensor | None, eps: float, formula: Formula) -> Tensor:
    """`oxiwarp.rms_norm` in plain torch, cast by cast."""
    h = x.float()
    n = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if w is None or not formula.uses_weight:
        return n.to(x.dtype)
    if formula.round_before_weight:
        n = n.to(x.dtype).float()
    return (n * (w.float() + formula.weight_offset)).to(x.dtype)


def same_roundings(y: Tensor, r: Tensor) -> bool:
    """Whether two results differ by no more than the order of a float32 sum explains.

    In 16 bits such a difference flips fewer than one value in a thousand, by one unit in the last place; a cast more or
    less flips every fourth. One in a hundred separates the two.
    """
    if y.dtype == torch.float32:
        return torch.allclose(y, r, rtol=2e-6, atol=1e-30)
    off = (y.view(torch.int16).int() - r.view(torch.int16).int()).abs()
    return bool(off.max() <= 1 and (off != 0).float().mean() <= 0.01)


__all__ = ["DEFAULT_EPS", "Formula", "input_name", "is_candidate", "recognise"]
