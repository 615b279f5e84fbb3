"""Base class of the operators' autograd functions, and the function `apply`, which calls such an autograd
function.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

compiling = torch.compiler.is_compiling


class Function(torch.autograd.Function):
    """Base class of autograd functions whose `forward` and `backward` call operators.

    The transforms of torch.func require two separate methods: `forward`, which takes no context, and `setup_context`,
    which saves the tensors for the backward. Under torch.vmap, torch applies the vmap rule of each operator, which
    calls the operator once per batch element.
    """

    generate_vmap_rule = True
    eager: type[torch.autograd.Function]
    """An equivalent autograd function for eager calls, whose `forward` takes the context as first argument.

    If a function has a separate `setup_context`, torch binds the arguments to the signature of `forward` in
    every call. This takes about 20 µs. The equivalent function avoids this time.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        run: Any = cls.forward
        save: Any = cls.setup_context

        def forward(ctx: Any, *arguments: Any) -> Any:
            output = run(*arguments)
            save(ctx, arguments, output)
            return output

        members = {"forward": staticmethod(forward), "backward": staticmethod(cls.backward)}
        cls.eager = type(cls.__name__, (torch.autograd.Function,), members)


def apply(function: type[Function], *arguments: Any) -> Any:
    """Call the autograd function `function`, in eager mode, under torch.compile or under torch.func."""
    if compiling():
        return function.apply(*distinct(arguments))
    if peek_interpreter_stack() is None:
        return function.eager.apply(*arguments)
    return function.apply(*arguments)


def distinct(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `arguments`. If a tensor occurs several times in them, each occurrence after the first is
    replaced by a view.

    Dynamo rejects a call of an autograd function with the same tensor twice.
    """
    made: list[Any] = []
    for argument in arguments:
        repeated = isinstance(argument, Tensor) and any(argument is other for other in made)
        made.append(argument.view_as(argument) if repeated else argument)
    return tuple(made)


__all__ = ["Function", "apply"]
