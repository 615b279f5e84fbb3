"""Replaces a method of one object: the class of the object is set to a new subclass, and later restored.

The subclass has the same name as the original class, and a new `forward`, or a new `__call__` for an
attention processor. `isinstance`, names, parameters, buffers, hooks and the state dict stay the same. A copy
of a replaced module has the new method, too. A pickle of a replaced module also keeps the new method, because
unpickling imports oxiwarp.

A *recipe* is the data that the new method needs, such as the mode of `patch`. There is one subclass for each
pair of original class and recipe. The new method reads the recipe from this subclass. Therefore
`torch.compile` only guards on the class of an object, which is cheap. If the method read the recipe from the
object, `torch.compile` would add a slow guard in Python for each object.

Some tools store the bound method `forward` in the *instance*. For example, the offloading of accelerate
stores it as `_old_forward`. The hooks of diffusers (group offloading, caches) store it in their registry. The
function `replace` changes such a bound method to a bound method of the new class. If the instance stores a
`forward` that does not come from its class, `replace` raises `Unsuitable`.
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
    """Protocol of recipes.

    A recipe is the data that determines how a method of an object is replaced. It can be hashed and pickled.
    """

    @property
    def classes(self) -> tuple[type, ...]:
        """The classes to which the recipe refers, for example the classes of submodules that the new method
        does not call.
        """

    def methods(self, base: Any) -> dict[str, Any]:
        """Return the members of the subclass of `base` by name, such as the new method `forward`.

        The function `restore` deletes the attribute `RECIPE` of an object. Without this attribute, the new
        methods call the original methods of `base`.
        """


# `_classes` maps an original class and a recipe (the data of a replacement) to the subclass. `_lasting` keeps
# a subclass alive when no object uses it. An object that is patched again then gets the same subclass, for
# which torch.compile already has code. `_lasting` has only subclasses of importable classes, which exist
# until the process ends. A class that is not importable may refer to a module, and must be freed together
# with the module. For example, torch's parametrizations create such classes.
_classes: WeakKeyDictionary[type, WeakValueDictionary[Recipe, type]] = WeakKeyDictionary()
_lasting: set[type] = set()
_lock = threading.RLock()


class Alike(type):
    """Metaclass of the subclasses of attention processor classes. With this metaclass, a subclass compares
    equal to its original class.

    Equality is necessary because diffusers tests whether the class of a processor is in a tuple of classes
    (in `set_default_attn_processor`).
    """

    def __eq__(cls, other: object) -> bool:
        return own_class(cls) is own_class(other)

    def __hash__(cls) -> int:
        return type.__hash__(own_class(cls))


def replace(x: Any, recipe: Recipe) -> None:
    """Replace the current method of `x` by the method of `recipe`.

    Raise `Unsuitable` if the replacement is impossible.
    """
    old = type(x)
    if not is_replaced(x):
        check_instance_forward(x)
    elif recipe_of(x) == recipe:
        return
    # Another tool may have derived a class from the previous subclass. In this case, derive the new subclass
    # from the class of the tool.
    new = class_for(base_of(x) if is_ours(old) else old, recipe)
    x.__class__ = new
    rebind(x, old, new)
    x.__dict__[RECIPE] = recipe


def restore(x: Any) -> bool:
    """Restore the original class and method of `x`. Return False if `x` was not replaced."""
    if not is_replaced(x):
        return False
    if is_ours(type(x)):
        base = base_of(x)
        rebind(x, type(x), base)
        x.__class__ = base
    if isinstance(x, nn.Module):
        forget(x)
    # If another tool derived a class from the subclass, the class of `x` is unchanged here. The new method
    # then calls the original method, because the attribute is deleted.
    del x.__dict__[RECIPE]
    return True


def recipe_of(x: Any) -> Any:
    """Return the recipe of an object if its method was replaced, otherwise None."""
    return getattr(x, "__dict__", {}).get(RECIPE)


def is_replaced(x: Any) -> bool:
    """Return whether a method of `x` was replaced."""
    return recipe_of(x) is not None


def is_ours(cls: type) -> bool:
    """Return whether the function `class_for` made `cls`.

    The result is False if another tool derived `cls` from such a class.
    """
    return "_oxiwarp_base" in vars(cls)


def base_of(x: Any) -> type:
    """Return the original class of `x`: the class that `x` had before `patch` replaced a method."""
    base: type = getattr(type(x), "_oxiwarp_base", type(x))
    return base


def own_class(cls: Any) -> Any:
    """Return the original class of a subclass that `class_for` made. Return any other object unchanged."""
    return vars(cls)["_oxiwarp_base"] if isinstance(cls, type) and is_ours(cls) else cls


def check_instance_forward(x: Any) -> None:
    """Raise `Unsuitable` if the instance stores a `forward` that does not come from its class."""
    if "forward" not in x.__dict__:
        return
    own = getattr(type(x), "forward", None)
    if not any(isinstance(held[name], MethodType) and held[name].__func__ is own for held, name in bound(x)):
        raise Unsuitable("its forward was replaced on the instance: patch first")


def bound(x: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a pair (dict, key) for each `forward` that is stored in the instance or in one of its diffusers
    hooks.
    """
    for name in BOUND:
        if name in x.__dict__:
            yield x.__dict__, name
    for reference in getattr(x.__dict__.get(REGISTRY), "_fn_refs", ()):
        for name in REFERENCES:
            if name in reference.__dict__:
                yield reference.__dict__, name


def rebind(x: Any, old: type, new: type) -> None:
    """Wherever the instance stores the bound method `old.forward`, store the bound method `new.forward`
    instead.
    """
    for held, name in bound(x):
        method = held[name]
        if isinstance(method, MethodType) and method.__func__ is getattr(old, "forward", None):
            held[name] = MethodType(new.forward, method.__self__)  # type: ignore[attr-defined]


def class_for(base: type, recipe: Recipe) -> type:
    """Return the subclass of `base` with the methods of the recipe.

    For equal arguments, return the same subclass.
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
    """Return whether `cls` can be imported: its module has this class under the qualified name."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def make_apply(base: Any) -> Any:
    """Return a method `_apply` that also deletes the tensors that are cached for the module.

    `nn.Module.to` calls `_apply`.
    """

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        forget(self)
        return base._apply(self, *args, **kwargs)

    return apply


def tell_diffusers(base: type, subclass: type) -> None:
    """Register the subclass in diffusers' registries with the metadata of `base`.

    The caches of diffusers (FirstBlockCache, MagCache, ...) search these registries for the class of a block
    or processor. The entry of a class says which values the block or processor returns.
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
    """Return a method `__reduce_ex__` that stores the original class and the recipe in a pickle.

    When the pickle is loaded, the function `_new` creates the subclass again from the class and the recipe.
    This is necessary because pickle imports classes by name. It can import the original class, but not the
    subclass. If another tool derived a class from the subclass, the class of the tool must be importable.
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
