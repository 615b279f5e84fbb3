"""Giving one object another method, and taking it back.

A replaced object changes its class: to a subclass that has the same name and another `forward` (or, for an attention
processor, another `__call__`). So `isinstance`, names, parameters, buffers, hooks and the state dict stay what they
were, and a copy or an unpickled module is still replaced (unpickling imports oxiwarp). What the new method needs, a
recipe, belongs to the subclass: one is made for each class and recipe. `torch.compile` asks before each call whether an
object is of the class that it traced; of a recipe that many objects hold it would ask in Python whether each holds the
same one.

Tools that put a forward on the *instance* hold a bound method of the old class: accelerate's offloading in
`_old_forward`, diffusers' hooks (group offloading, caches) in their registry. Where it is exactly that, it is bound
anew; where an instance has any other forward, it is left alone.
"""

import copy
import copyreg
import sys
import threading
from collections.abc import Iterator
from types import MethodType
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from torch import nn

from .._cache import forget

RECIPE = "_oxiwarp"
BOUND = ("forward", "_old_forward")  # where an instance may hold a bound forward; the second is accelerate's
REGISTRY, REFERENCES = "_diffusers_hook", ("forward", "original_forward")  # the same for hooks of diffusers


class Unsuitable(Exception):
    """An object that keeps its own method; the text says why."""


class Recipe(Protocol):
    """How an object is replaced; can be hashed and pickled."""

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes of modules that the recipe refers to."""

    def methods(self, base: Any) -> dict[str, Any]:
        """Those of the subclass for a class, by name. They run `base`'s own where an object has no `RECIPE`."""


# The subclasses that objects have, by class and recipe. A subclass without objects stays if its classes can be
# imported, since those live as long as the process: an object that is patched again gets the class for which
# torch.compile has code. Other classes are freed: torch's parametrisations make a class that refers to a module.
_classes: WeakKeyDictionary[type, WeakValueDictionary[Recipe, type]] = WeakKeyDictionary()
_lasting: set[type] = set()
_lock = threading.RLock()


class Alike(type):
    """The class of a processor's subclass, which compares as the class that this is made of: diffusers looks for
    processors' classes in tuples (`set_default_attn_processor`)."""

    def __eq__(cls, other: object) -> bool:
        return own_class(cls) is own_class(other)

    def __hash__(cls) -> int:
        return type.__hash__(own_class(cls))


def replace(x: Any, recipe: Recipe) -> None:
    """Make `x` run the recipe's method, instead of another recipe's if it ran one. Raises `Unsuitable`."""
    old = type(x)
    if not is_replaced(x):
        check_instance_forward(x)
    elif recipe_of(x) == recipe:
        return
    # Where another tool's class stands over ours it is that which gets a subclass.
    new = class_for(base_of(x) if is_ours(old) else old, recipe)
    x.__class__ = new
    rebind(x, old, new)
    x.__dict__[RECIPE] = recipe


def restore(x: Any) -> bool:
    """Give `x` its own class and method back. False: it was not replaced."""
    if not is_replaced(x):
        return False
    if is_ours(type(x)):
        base = base_of(x)
        rebind(x, type(x), base)
        x.__class__ = base
    if isinstance(x, nn.Module):
        forget(x)
    del x.__dict__[RECIPE]  # where another tool made a subclass of ours: this alone brings the own method back
    return True


def recipe_of(x: Any) -> Any:
    """The recipe of a replaced object, otherwise None."""
    return getattr(x, "__dict__", {}).get(RECIPE)


def is_replaced(x: Any) -> bool:
    """Whether `x` runs a method of ours."""
    return recipe_of(x) is not None


def is_ours(cls: type) -> bool:
    """Whether this is a subclass that `class_for` made, not another's of such a one."""
    return "_oxiwarp_base" in vars(cls)


def base_of(x: Any) -> type:
    """The object's class, its own where it is replaced."""
    base: type = getattr(type(x), "_oxiwarp_base", type(x))
    return base


def own_class(cls: Any) -> Any:
    """The class that a subclass of ours is made of; any other is its own."""
    return vars(cls)["_oxiwarp_base"] if isinstance(cls, type) and is_ours(cls) else cls


def check_instance_forward(x: Any) -> None:
    """Raise `Unsuitable` where calling the object would not come to its class's forward."""
    if "forward" not in x.__dict__:
        return
    own = getattr(type(x), "forward", None)
    if not any(isinstance(held[name], MethodType) and held[name].__func__ is own for held, name in bound(x)):
        raise Unsuitable("its forward was replaced on the instance: patch first")


def bound(x: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Where a forward of the instance is held: dicts, and the names in them."""
    for name in BOUND:
        if name in x.__dict__:
            yield x.__dict__, name
    for reference in getattr(x.__dict__.get(REGISTRY), "_fn_refs", ()):
        for name in REFERENCES:
            if name in reference.__dict__:
                yield reference.__dict__, name


def rebind(x: Any, old: type, new: type) -> None:
    """Where the instance holds the forward of class `old` as a bound method, hold that of `new`."""
    for held, name in bound(x):
        method = held[name]
        if isinstance(method, MethodType) and method.__func__ is getattr(old, "forward", None):
            held[name] = MethodType(new.forward, method.__self__)  # type: ignore[attr-defined]


def class_for(base: type, recipe: Recipe) -> type:
    """The subclass of `base` with the recipe's methods, one: objects that are replaced alike stay of one class."""
    with _lock:
        of_base = _classes.setdefault(base, WeakValueDictionary())
        made = of_base.get(recipe)
        if made is None:
            made = of_base[recipe] = subclass_of(base, recipe)
            tell_diffusers(base, made)
            if all(is_importable(cls) for cls in (base, *recipe.classes)):
                _lasting.add(made)
    return made


def subclass_of(base: type, recipe: Recipe) -> type:
    """A new subclass of `base` with the recipe's methods."""
    members = {
        **recipe.methods(base),
        "__reduce_ex__": make_reduce(base, recipe),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_oxiwarp_base": base,
    }
    if issubclass(base, nn.Module):
        members["extra_repr"] = lambda self: ", ".join(filter(None, (base.extra_repr(self), "oxiwarp")))
        members["_apply"] = make_apply(base)
    metaclass: Any = type(base) if issubclass(base, nn.Module) or type(base) is not type else Alike
    made: type = metaclass(base.__name__, (base,), members)
    return made


def is_importable(cls: type) -> bool:
    """Whether the class is what its module has under its name."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def make_apply(base: Any) -> Any:
    """What `to`, `cpu`, ... call, which let go what is kept of a module beside its parameters."""

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        forget(self)
        return base._apply(self, *args, **kwargs)

    return apply


def tell_diffusers(base: type, subclass: type) -> None:
    """Diffusers' caches (FirstBlockCache, MagCache, ...) look up by class what a block or a processor returns."""
    helpers = sys.modules.get("diffusers.hooks._helpers")
    for name in ("TransformerBlockRegistry", "AttentionProcessorRegistry"):
        registry = getattr(helpers, name, None)
        if registry is None:
            continue
        try:
            registry.register(subclass, copy.copy(registry.get(base)))
        except ValueError:  # nothing is known of the class
            continue


def make_reduce(base: type, recipe: Recipe) -> Any:
    """Pickle and copy through the base class, which can be imported; ours cannot.

    A class that another tool derived from ours is that tool's to import.
    """

    def reduce(self: Any, protocol: int) -> Any:
        ours: Any = class_for(base, recipe)
        reduced: Any = super(ours, self).__reduce_ex__(protocol)
        function, arguments, *rest = reduced
        if function is copyreg.__newobj__ and arguments[0] is ours:  # type: ignore[attr-defined]
            function, arguments = _new, (base, recipe, *arguments[1:])
        return (function, arguments, *rest)

    return reduce


def _new(base: type, recipe: Recipe, *arguments: Any) -> Any:
    cls = class_for(base, recipe)
    return cls.__new__(cls, *arguments)


__all__ = ["RECIPE", "Unsuitable", "base_of", "is_replaced", "recipe_of", "replace", "restore"]
