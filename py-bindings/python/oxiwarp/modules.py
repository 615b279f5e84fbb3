"""Giving one module another forward, and taking it back.

A replaced module changes its class: to a subclass, made once per class, that has the same name and another `forward`.
So `isinstance`, names, parameters, buffers, hooks and the state dict stay what they were, `torch.compile` traces it as
any module, and a copy or an unpickled module is still replaced (unpickling imports oxiwarp). What the new forward
needs, a `Recipe`, is an attribute of the module.

Tools that put a forward on the *instance* (accelerate's offloading keeps the class's in `_old_forward`) hold a bound
method of the old class. Where it is exactly that, it is bound anew; where an instance has any other forward, it is left
alone.
"""

import copyreg
import functools
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ._register import needs_grad
from .ops.rms_norm import call
from .recognise import DEFAULT_EPS, Recipe, Unsuitable, input_name

RECIPE = "_oxiwarp"
MAX_RANK = 8  # of a tensor that the host takes
BOUND = ("forward", "_old_forward")  # where an instance may hold a bound forward; the second is accelerate's

_classes: dict[type[nn.Module], type[nn.Module]] = {}


def replace(module: nn.Module, recipe: Recipe) -> None:
    """Make `module` run the kernel. A module that does so already gets the new recipe. Raises `Unsuitable`."""
    if not is_replaced(module):
        base = type(module)
        check_instance_forward(module)
        subclass = class_for(base)
        module.__class__ = subclass
        rebind(module, base.forward, subclass.forward)
    module.__dict__[RECIPE] = recipe


def restore(module: nn.Module) -> bool:
    """Give `module` its own class and forward back. False: it was not replaced."""
    if not is_replaced(module):
        return False
    base = getattr(type(module), "_oxiwarp_base", None)
    if base is not None and _classes.get(base) is type(module):
        rebind(module, type(module).forward, base.forward)
        module.__class__ = base
    del module.__dict__[RECIPE]  # where another tool made a subclass of ours: this alone brings the own forward back
    return True


def is_replaced(module: nn.Module) -> bool:
    """Whether `module` runs a kernel."""
    return RECIPE in module.__dict__


def base_of(module: nn.Module) -> type[nn.Module]:
    """The module's class, its own where it is replaced."""
    base: type[nn.Module] = getattr(type(module), "_oxiwarp_base", type(module))
    return base


def check_instance_forward(module: nn.Module) -> None:
    """Raise `Unsuitable` where calling the module would not come to its class's forward."""
    for name in BOUND:
        bound = module.__dict__.get(name)
        if bound is None or (isinstance(bound, MethodType) and bound.__func__ is type(module).forward):
            continue
        if name == "forward" and "_old_forward" in module.__dict__:
            continue  # accelerate's wrapper, which calls _old_forward
        raise Unsuitable("its forward was replaced on the instance: patch first")


def rebind(module: nn.Module, old: Any, new: Any) -> None:
    """Where the instance holds `old` as a bound method, hold `new`."""
    for name in BOUND:
        bound = module.__dict__.get(name)
        if isinstance(bound, MethodType) and bound.__func__ is old:
            module.__dict__[name] = MethodType(new, bound.__self__)


def class_for(base: type[nn.Module]) -> type[nn.Module]:
    """The subclass of `base` that runs the kernel: one per base, so that modules of one class stay of one class."""
    if base not in _classes:
        members = {
            "forward": make_forward(base),
            "extra_repr": lambda self: ", ".join(filter(None, (base.extra_repr(self), "oxiwarp"))),
            "__reduce_ex__": make_reduce(base),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "_oxiwarp_base": base,
        }
        metaclass: Any = type(base)
        _classes[base] = metaclass(base.__name__, (base,), members)
    return _classes[base]


def make_reduce(base: type[nn.Module]) -> Any:
    """Pickle and copy through the base class, which can be imported; ours cannot.

    A class that another tool derived from ours is that tool's to import.
    """

    def reduce(self: nn.Module, protocol: int) -> Any:
        ours = _classes[base]
        reduced: Any = super(ours, self).__reduce_ex__(protocol)
        function, arguments, *rest = reduced
        if function is copyreg.__newobj__ and arguments[0] is ours:  # type: ignore[attr-defined]
            function, arguments = _new, (base, *arguments[1:])
        return (function, arguments, *rest)

    return reduce


def _new(base: type[nn.Module], *arguments: Any) -> nn.Module:
    cls = class_for(base)
    return cls.__new__(cls, *arguments)


def make_forward(base: type[nn.Module]) -> Any:
    """The forward of `base`'s subclass: the kernel where there is one for this call, otherwise the own forward."""
    own_forward = base.forward
    argument = input_name(base)

    @functools.wraps(own_forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) == 1:
            x = args[0] if args else kwargs.get(argument)
            y = run(self, x)
            if y is not None:
                return y
        return own_forward(self, *args, **kwargs)

    return forward


def run(module: nn.Module, x: Any) -> Tensor | None:
    """The kernel's result, or None where this call is the own forward's: another device or dtype, a subclass, autocast,
    a needed gradient, a layout that is not rows."""
    recipe: Recipe | None = module.__dict__.get(RECIPE)
    if recipe is None or type(x) not in (Tensor, nn.Parameter):
        return None
    if not (x.is_cuda or (recipe.cpu_kernels and x.is_cpu)) or not 0 < x.dim() <= MAX_RANK:
        return None
    weight = getattr(module, "weight", None)
    if weight is not None and type(weight) not in (Tensor, nn.Parameter):
        return None
    formula = recipe.formulas.get((x.dtype, None if weight is None else weight.dtype))
    if formula is None or needs_grad(x, weight) or torch.is_autocast_enabled(x.device.type):
        return None
    order = None
    if not x.is_contiguous():
        order = row_order(x)
        if order is None:
            return None
        x = x.permute(order)
    eps = getattr(module, recipe.eps_name)
    y = call(
        x,
        weight if formula.uses_weight else None,
        DEFAULT_EPS if eps is None else eps,
        formula.weight_offset,
        formula.round_before_weight,
    )
    return y if order is None else y.permute(inverse(order))


def row_order(x: Tensor) -> list[int] | None:
    """The order of dimensions in which `x` lies in memory, or None where the kernel cannot read it so.

    A transposed `[B, H, S, D]` is read as the `[B, S, H, D]` that it is, and its result transposed back: the strides
    that an elementwise chain in torch gives, and no copy. The kernel takes what two (size, stride) pairs over the rows
    describe.
    """
    strides, shape = x.stride(), x.shape
    last = len(strides) - 1
    if strides[last] != 1 or 0 in strides:
        return None
    order = sorted(range(last), key=lambda dim: -strides[dim])
    levels, run_stride = 0, None
    for dim in reversed(order):
        if shape[dim] == 1:
            continue
        if strides[dim] != run_stride:
            levels += 1
        run_stride = strides[dim] * shape[dim]
    return [*order, last] if levels <= 2 else None


def inverse(order: list[int]) -> list[int]:
    """The permutation that undoes `order`."""
    return [order.index(dim) for dim in range(len(order))]


__all__ = ["RECIPE", "base_of", "is_replaced", "replace", "restore"]
