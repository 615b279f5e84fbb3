"""The base of the operators' `torch.autograd.Function`s, and how they are applied."""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

compiling = torch.compiler.is_compiling


class Function(torch.autograd.Function):
    """A function whose `forward` and `backward` call operators.

    `forward` takes no context, and `setup_context` saves tensors for the backward: the transforms of torch.func require
    this form. torch.vmap maps both functions by the operators' own rules, with one call for each element of the batch.
    """

    generate_vmap_rule = True
    eager: type[torch.autograd.Function]
    """The same function with `forward(ctx, ...)`. torch binds the arguments of the other form to the signature of
    `forward`, which takes about 20 us a call."""

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
    """Calls `function` so that autograd records it: in eager code, under torch.compile and under torch.func."""
    if compiling():
        return function.apply(*distinct(arguments))
    if peek_interpreter_stack() is None:
        return function.eager.apply(*arguments)
    return function.apply(*arguments)


def distinct(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with a view in place of each repeated tensor, which Dynamo refuses to give an autograd.Function."""
    made: list[Any] = []
    for argument in arguments:
        repeated = isinstance(argument, Tensor) and any(argument is other for other in made)
        made.append(argument.view_as(argument) if repeated else argument)
    return tuple(made)


__all__ = ["Function", "apply"]
