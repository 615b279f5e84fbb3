"""Runs the original `forward` of RMSNorm modules on a small tensor, to find out which formula each module
computes and where it rounds.

transformers and diffusers have about 200 RMSNorm classes, which round in about six ways. The class name does not
determine the rounding, so oxiwarp has no table of classes. Instead, a module is *probed* if its class name contains
RMSNorm or L2Norm, or ends with T5LayerNorm. The probe executes the original `forward` of the class on a small random
CPU tensor, with a random weight of the same length as the module's weight. It does this for each pair (input dtype,
weight dtype) for which a kernel exists, and compares each result with those of the formulas that the kernel can
compute. If a formula gives the same result, calls with this pair of dtypes run the kernel. All other calls run the
original `forward`.

A probe does not change the module or torch's random state. It does not read the module's weights, which may be on a
GPU, offloaded or on the meta device.
"""

import inspect
import re
from typing import Any

import torch
from torch import Tensor, nn

from ...ops._register import PLAIN, is_eps
from ..class_swap import RECIPE, Unsuitable, base_of
from .probe import DtypePair, Formula, probe

NAME = re.compile(r"rmsnorm|l2norm|t5layernorm$", re.IGNORECASE)
EPS_NAMES = ("eps", "variance_epsilon")
DEFAULT_EPS = torch.finfo(torch.float32).eps  # what torch.nn.RMSNorm with eps=None uses for float32
Probed = dict[Any, dict[DtypePair, Formula]]
"""Type of a map from a `cache_key` to the result of a probe. Modules with the same key share the result.

Each `patch` call uses a new map, because the code of a class may change between two `patch` calls."""

# Attributes of a module that do not influence the result of a probe (a test run of a norm's `forward`). The
# probe sets some of them itself, such as `training`. The others, such as hooks, have no influence, because
# the probe calls the `forward` of the class directly.
NOT_READ = frozenset(vars(nn.Module())) | {RECIPE, "forward"}


def is_candidate(module: nn.Module) -> bool:
    """Return whether the class name indicates an RMSNorm."""
    return NAME.search(type(module).__name__) is not None


def recognise(module: nn.Module, probed: Probed | None = None) -> tuple[dict[DtypePair, Any], str]:
    """Return two values: the formulas of a norm, and the name of its eps attribute.

    The formulas are a dict that maps pairs (input dtype, weight dtype) to a `Formula`, or for a norm with a
    gate to a `GatedFormula`. If no formula reproduces the results of the original `forward`, raise
    `Unsuitable` with the reason. `probed` caches the formulas, so that modules with the same `cache_key` are
    probed only once.
    """
    check_forward(base_of(module))
    eps_name, eps = eps_of(module)
    if any(True for _ in module.children()):
        raise Unsuitable("it is made of other modules, which are looked at one by one")
    weight, name = check_tensors(module), weight_name(module)
    key = None if probed is None else cache_key(module, weight, name)
    formulas = None if probed is None or key is None else probed.get(key)
    if formulas is None:
        formulas = probe(module, weight, eps, name, takes_gate(base_of(module)))
        if probed is not None and key is not None:
            probed[key] = formulas
    if not formulas:
        raise Unsuitable("its own forward rounds in a way that no kernel has")
    if weight is not None and not any(pair[1] == weight.dtype for pair in formulas):
        raise Unsuitable(f"its own forward rounds in a way that no kernel has for {weight.dtype} weights")
    return formulas, eps_name


def input_names(cls: type[nn.Module]) -> list[str]:
    """Return the argument names of `cls.forward`. The arguments must be one tensor, or a tensor and a gate.

    Raise `Unsuitable` if the `forward` takes other arguments.
    """
    _self, *parameters = inspect.signature(cls.forward).parameters.values()
    names = ", ".join(str(parameter) for parameter in parameters)
    known = all(parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    if not known or not (len(parameters) == 1 or (len(parameters) == 2 and "gate" in parameters[1].name)):
        raise Unsuitable(f"its forward takes ({names}), expected one tensor, or a tensor and a gate")
    return [parameter.name for parameter in parameters]


def takes_gate(cls: type[nn.Module]) -> bool:
    """Return whether the class's `forward` takes a tensor and a gate."""
    return len(input_names(cls)) == 2


def check_forward(cls: type[nn.Module]) -> None:
    """Raise `Unsuitable` unless the arguments of `cls.forward` are one tensor, or a tensor and a gate."""
    try:
        input_names(cls)
    except (TypeError, ValueError) as error:
        raise Unsuitable(f"the signature of its forward cannot be read: {error}") from None


def eps_of(module: nn.Module) -> tuple[str, float]:
    """Return the name and the value of a norm's eps attribute. Raise `Unsuitable` if there is no such
    attribute, or if the operator does not accept its value.
    """
    name = next((name for name in EPS_NAMES if hasattr(module, name)), None)
    if name is None:
        raise Unsuitable("it has neither eps nor variance_epsilon")
    eps = getattr(module, name)
    if eps is None:
        return name, DEFAULT_EPS
    if not isinstance(eps, (int, float)):
        raise Unsuitable(f"its {name} is a {type(eps).__name__}, expected a number")
    if not is_eps(eps):
        raise Unsuitable(f"its {name} is {eps:g}, expected a finite number of 0 or more")
    return name, float(eps)


def weight_name(module: nn.Module) -> str:
    """Return the name of a norm's weight parameter.

    This is "weight", unless the module has exactly one parameter and this parameter has another name, such as
    "gamma".
    """
    names = [name for name, parameter in module._parameters.items() if parameter is not None]
    return names[0] if len(names) == 1 and getattr(module, "weight", None) is None else "weight"


def check_tensors(module: nn.Module) -> Tensor | None:
    """Return the module's weight, or None if it has no weight.

    Raise `Unsuitable` if the weight is not supported, or if the module has other parameters or buffers.
    """
    tensors = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    weight = tensors.pop(weight_name(module), None)
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
    if len(weight) == 1:
        raise Unsuitable("its weight is a single number, which broadcasts over a row of any width")
    return weight


def is_sharded(weight: Tensor) -> bool:
    """Return whether the weight is a DTensor.

    For example, FSDP2 shards weights as DTensors. It gathers the whole weight during each call of the module.
    """
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def cache_key(module: nn.Module, weight: Tensor | None, name: str) -> Any:
    """Return a key for the cache of probe results, where a probe is a test run of a norm's `forward`. Modules with
    equal keys have the same probe result.

    The key contains the class, the name, length and dtype of the weight, and the attributes that the `forward` may
    read. If one of these attributes is not a plain value such as a number, return None: the result of the probe must
    then not be cached.
    """
    own = {name: value for name, value in module.__dict__.items() if name not in NOT_READ}
    if not all(isinstance(value, (int, float, str, bool, tuple, torch.dtype, type(None))) for value in own.values()):
        return None
    key = (
        base_of(module),
        name,
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


__all__ = ["DEFAULT_EPS", "Formula", "Probed", "input_names", "is_candidate", "recognise", "takes_gate", "weight_name"]
