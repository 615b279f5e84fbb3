"""Replaces a method of one object: sets the object's class to a subclass, and later restores the class.

The new class is a subclass with the same name and a new `forward`, or a new `__call__` for an attention processor.
`isinstance`, names, parameters, buffers, hooks and the state dict stay the same. A copy of a replaced module is
replaced too. An unpickled module is replaced too, because unpickling imports oxiwarp.

A *recipe* is the data that the new method needs, such as the mode of `patch`. Each pair of class and recipe has one
subclass. The new method reads the recipe from this subclass. Therefore `torch.compile` only guards on the class of an
object, which is cheap. If the method read the recipe from the object, `torch.compile` would add a guard in Python for
each object.

Some tools store the bound `forward` of the class in the *instance*. accelerate's offloading stores it as
`_old_forward`, and diffusers' hooks (group offloading, caches) store it in their registry. `replace` exchanges such a
bound method for a bound method of the new class. `replace` rejects an object that stores any other forward in its
instance.
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
BOUND = ("forward", "_old_forward")  # instance attributes that may store a bound forward
REGISTRY, REFERENCES = (
    "_diffusers_hook",
    ("forward", "original_forward"),
)  # where diffusers' hooks store a forward


class Unsuitable(Exception):
    """Raised if an object must keep its original method. The message gives the reason."""


class Recipe(Protocol):
    """Data that determines how an object is replaced. A recipe can be hashed and pickled."""

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes that the recipe refers to. For example, the classes of submodules that are no longer called."""

    def methods(self, base: Any) -> dict[str, Any]:
        """Map names to methods of the subclass that replaces the class `base`.

        After `restore` has deleted the attribute `RECIPE` of an object, the methods call the original methods of
        `base`.
        """


# `_classes` maps an original class and a recipe (the data of a replacement) to the subclass. `_lasting` keeps
# a subclass alive when no object uses it. An object that is patched again then gets the subclass for which
# torch.compile has code. `_lasting` has only subclasses of importable classes, which live as long as the
# process. A class that is not importable may refer to a module, and must be freed with the module. For
# example, torch's parametrizations create such classes.
_classes: WeakKeyDictionary[type, WeakValueDictionary[Recipe, type]] = WeakKeyDictionary()
_lasting: set[type] = set()
_lock = threading.RLock()


class Alike(type):
    """Metaclass that makes the subclass of an attention processor's class compare equal to the original class.

    diffusers tests whether the class of a processor is in a tuple of classes (`set_default_attn_processor`).
    """

    def __eq__(cls, other: object) -> bool:
        return own_class(cls) is own_class(other)

    def __hash__(cls) -> int:
        return type.__hash__(own_class(cls))


def replace(x: Any, recipe: Recipe) -> None:
    """Make `x` run the method of `recipe` instead of its current method. Raise `Unsuitable` if that is impossible."""
    old = type(x)
    if not is_replaced(x):
        check_instance_forward(x)
    elif recipe_of(x) == recipe:
        return
    # If another tool has derived a class from the previous subclass of oxiwarp, derive the new subclass from
    # the tool's class.
    new = class_for(base_of(x) if is_ours(old) else old, recipe)
    x.__class__ = new
    rebind(x, old, new)
    x.__dict__[RECIPE] = recipe


def restore(x: Any) -> bool:
    """Give `x` its original class and method back. Return whether `x` was replaced before the call."""
    if not is_replaced(x):
        return False
    if is_ours(type(x)):
        base = base_of(x)
        rebind(x, type(x), base)
        x.__class__ = base
    if isinstance(x, nn.Module):
        forget(x)
    del x.__dict__[RECIPE]  # if another tool derived a class from oxiwarp's subclass, this restores the method
    return True


def recipe_of(x: Any) -> Any:
    """Return the recipe of a replaced object, otherwise None."""
    return getattr(x, "__dict__", {}).get(RECIPE)


def is_replaced(x: Any) -> bool:
    """Whether `x` runs an oxiwarp method."""
    return recipe_of(x) is not None


def is_ours(cls: type) -> bool:
    """Whether oxiwarp made `cls` to replace a method. False if another tool derived `cls` from a class of oxiwarp."""
    return "_oxiwarp_base" in vars(cls)


def base_of(x: Any) -> type:
    """Return the class of `x`. If `patch` replaced a method of `x`, return the class that `x` had before."""
    base: type = getattr(type(x), "_oxiwarp_base", type(x))
    return base


def own_class(cls: Any) -> Any:
    """Return the original class of a subclass that `class_for` made. Return any other object unchanged."""
    return vars(cls)["_oxiwarp_base"] if isinstance(cls, type) and is_ours(cls) else cls


def check_instance_forward(x: Any) -> None:
    """Raise `Unsuitable` if the instance stores a `forward`, but no bound method of the `forward` of its class."""
    if "forward" not in x.__dict__:
        return
    own = getattr(type(x), "forward", None)
    if not any(isinstance(held[name], MethodType) and held[name].__func__ is own for held, name in bound(x)):
        raise Unsuitable("its forward was replaced on the instance: patch first")


def bound(x: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (dict, key) for each `forward` that the instance or one of its diffusers hooks stores."""
    for name in BOUND:
        if name in x.__dict__:
            yield x.__dict__, name
    for reference in getattr(x.__dict__.get(REGISTRY), "_fn_refs", ()):
        for name in REFERENCES:
            if name in reference.__dict__:
                yield reference.__dict__, name


def rebind(x: Any, old: type, new: type) -> None:
    """If the instance stores the bound method `old.forward`, store the bound method `new.forward` instead."""
    for held, name in bound(x):
        method = held[name]
        if isinstance(method, MethodType) and method.__func__ is getattr(old, "forward", None):
            held[name] = MethodType(new.forward, method.__self__)  # type: ignore[attr-defined]


def class_for(base: type, recipe: Recipe) -> type:
    """Return the subclass of `base` with the recipe's methods. Equal arguments always give the same subclass."""
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
    """Create a subclass of `base` with the recipe's methods."""
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
    """Whether `cls` can be imported: the module of `cls` defines it under its qualified name."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def make_apply(base: Any) -> Any:
    """Return an `_apply` that also drops the tensors cached for the module. `nn.Module.to` calls `_apply`."""

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        forget(self)
        return base._apply(self, *args, **kwargs)

    return apply


def tell_diffusers(base: type, subclass: type) -> None:
    """Register the subclass in diffusers' registries with the metadata of `base`.

    The caches of diffusers (FirstBlockCache, MagCache, ...) look up the class of a block or processor in these
    registries. The entry says which values the block or processor returns.
    """
    helpers = sys.modules.get("diffusers.hooks._helpers")
    for name in ("TransformerBlockRegistry", "AttentionProcessorRegistry"):
        registry = getattr(helpers, name, None)
        if registry is None:
            continue
        try:
            registry.register(subclass, copy.copy(registry.get(base)))
        except ValueError:  # the class is not registered
            continue


def make_reduce(base: type, recipe: Recipe) -> Any:
    """Return a `__reduce_ex__` that stores the base class and the recipe, from which `_new` creates the subclass.

    pickle imports classes by name. It can import the base class, but not the subclass that oxiwarp made. If another
    tool derived a class from oxiwarp's subclass, the tool's class must be importable.
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
