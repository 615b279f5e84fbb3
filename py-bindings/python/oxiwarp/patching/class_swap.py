"""Replaces a method of one object by changing the class of the object to a new subclass. The original class can be
restored later.

The subclass has the name of the original class. It has a new `forward` or, for an attention processor, a new
`__call__`. The results of `isinstance`, the names, parameters, buffers and hooks, and the state dict stay the same.
Copies of a replaced module have the new method, too. So have unpickled modules, because unpickling imports oxiwarp.

A *recipe* is the data that the new method needs, such as the mode of `patch`. There is one subclass for each pair of
original class and recipe. The recipe is stored in the subclass, so that `torch.compile` only guards on the class of an
object, which is cheap. If the new method read the recipe from the object, `torch.compile` would add a slow guard in
Python for each object.

Some tools store the bound method `forward` of an object in the object. For example, the offloading of
accelerate stores it as `_old_forward`. The hooks of diffusers (group offloading, caches) store it in their
registry. The function `replace` replaces such a stored method by the bound `forward` of the new class. If an
object stores a `forward` that is not from its class, `replace` raises `Unsuitable`.
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
)  # diffusers' hooks store a forward there


class Unsuitable(Exception):
    """Raised if an object must keep its original method. The message gives the reason."""


class Recipe(Protocol):
    """The interface (protocol) of recipes.

    A recipe is the data that the new method of an object needs. Recipes must support hashing and pickling.
    """

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes to which the recipe has references, for example the classes of submodules that the new
        method does not call.
        """

    def methods(self, base: Any) -> dict[str, Any]:
        """Return a dict with the members of the new subclass of `base`, such as the new method `forward`.

        The new methods must call the original methods of `base` if the object has no attribute `RECIPE`. The
        function `restore` deletes this attribute.
        """


# `_classes` maps an original class and a recipe (the data that the new method needs) to the subclass that
# `patch` made for this pair. `_lasting` keeps subclasses alive while no object uses them. If an object is
# unpatched and patched again, it gets the same subclass, for which torch.compile already has code. `_lasting`
# has only subclasses of importable classes, because importable classes exist until the process ends. A class
# that is not importable, e.g. a class made by torch's parametrizations, may refer to a module. It must be
# freed together with this module, so `_lasting` has no subclass of it.
_classes: WeakKeyDictionary[type, WeakValueDictionary[Recipe, type]] = WeakKeyDictionary()
_lasting: set[type] = set()
_lock = threading.RLock()


class Alike(type):
    """Metaclass of the subclasses that replace the classes of attention processors. With this metaclass, such
    a subclass compares equal to the original class.

    diffusers needs this in `set_default_attn_processor`, where it tests whether the class of a processor is in a tuple
    of classes.
    """

    def __eq__(cls, other: object) -> bool:
        return own_class(cls) is own_class(other)

    def __hash__(cls) -> int:
        return type.__hash__(own_class(cls))


def replace(x: Any, recipe: Recipe) -> None:
    """Replace the method of `x` by the new method that `recipe` describes.

    Raise `Unsuitable` if the replacement is impossible.
    """
    old = type(x)
    if not is_replaced(x):
        check_instance_forward(x)
    elif recipe_of(x) == recipe:
        return
    # Another tool may have derived the class of `x` from the subclass that an earlier call of `patch` made.
    # If so, derive the new subclass from the tool's class. Otherwise, derive it from the original class.
    new = class_for(base_of(x) if is_ours(old) else old, recipe)
    x.__class__ = new
    rebind(x, old, new)
    x.__dict__[RECIPE] = recipe


def restore(x: Any) -> bool:
    """Restore the original class and method of `x`. Return False if no method of `x` was replaced."""
    if not is_replaced(x):
        return False
    if is_ours(type(x)):
        base = base_of(x)
        rebind(x, type(x), base)
        x.__class__ = base
    if isinstance(x, nn.Module):
        forget(x)
    # If another tool derived the class of `x` from the subclass that `patch` made, `x` keeps the tool's
    # class. Delete the attribute `RECIPE`, so that the new method calls the original method.
    del x.__dict__[RECIPE]
    return True


def recipe_of(x: Any) -> Any:
    """Return the recipe of `x`, or None if no method of `x` was replaced."""
    return getattr(x, "__dict__", {}).get(RECIPE)


def is_replaced(x: Any) -> bool:
    """Return whether a method of `x` was replaced."""
    return recipe_of(x) is not None


def is_ours(cls: type) -> bool:
    """Return whether `cls` is a subclass that the function `class_for` created.

    For a class that another tool derived from such a subclass, the result is False.
    """
    return "_oxiwarp_base" in vars(cls)


def base_of(x: Any) -> type:
    """Return the original class of `x`: the class that `x` had before `patch` replaced a method."""
    base: type = getattr(type(x), "_oxiwarp_base", type(x))
    return base


def own_class(cls: Any) -> Any:
    """If `class_for` created the class `cls`, return its original class. Otherwise, return `cls` unchanged."""
    return vars(cls)["_oxiwarp_base"] if isinstance(cls, type) and is_ours(cls) else cls


def check_instance_forward(x: Any) -> None:
    """Raise `Unsuitable` if the object `x` has an attribute `forward` that is not the bound method of its
    class.
    """
    if "forward" not in x.__dict__:
        return
    own = getattr(type(x), "forward", None)
    if not any(isinstance(held[name], MethodType) and held[name].__func__ is own for held, name in bound(x)):
        raise Unsuitable("its forward was replaced on the instance: patch first")


def bound(x: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a pair (dict, key) for each place where `x` or one of its diffusers hooks stores a `forward`. The stored
    `forward` is `dict[key]`.
    """
    for name in BOUND:
        if name in x.__dict__:
            yield x.__dict__, name
    for reference in getattr(x.__dict__.get(REGISTRY), "_fn_refs", ()):
        for name in REFERENCES:
            if name in reference.__dict__:
                yield reference.__dict__, name


def rebind(x: Any, old: type, new: type) -> None:
    """Wherever `x` or one of its hooks stores the bound `forward` of the class `old`, store the bound
    `forward` of the class `new` instead.
    """
    for held, name in bound(x):
        method = held[name]
        if isinstance(method, MethodType) and method.__func__ is getattr(old, "forward", None):
            held[name] = MethodType(new.forward, method.__self__)  # type: ignore[attr-defined]


def class_for(base: type, recipe: Recipe) -> type:
    """Return the subclass of `base` that has the methods of `recipe`.

    Calls with equal arguments return the same subclass.
    """
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
    """Create a subclass of `base` with the methods of the recipe."""
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
    """Return whether `cls` can be imported by name: whether its module has this class under its qualified
    name.
    """
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def make_apply(base: Any) -> Any:
    """Return a method `_apply` for a subclass of `base`. The method deletes the tensors that are cached for
    the module, and then calls `base._apply`.

    `nn.Module.to` calls `_apply`. Deleting the cached tensors ensures that no tensors for the previous device or dtype
    are used.
    """

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        forget(self)
        return base._apply(self, *args, **kwargs)

    return apply


def tell_diffusers(base: type, subclass: type) -> None:
    """Register the subclass in diffusers' registries with the metadata of `base`.

    The caches of diffusers (FirstBlockCache, MagCache, ...) look up the class of a block or processor in
    these registries. The metadata of a class says which values the block or processor returns.
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
    """Return a method `__reduce_ex__` for the subclass of `base`. For a pickle, it stores the original class
    and the recipe instead of the subclass.

    When the pickle is loaded, the function `_new` creates the subclass again from the class and the recipe. The pickle
    cannot name the subclass, because pickle imports classes by name, and only the original class can be imported. If
    another tool derived a class from the subclass, the tool's class must be importable.
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
