"""The base of the operators' `torch.autograd.Function`s, and how they are applied."""

from typing import Any

import torch
from torch import Tensor

compiling = torch.compiler.is_compiling


class Function(torch.autograd.Function):
    """A function whose `forward` and `backward` call operators.

    `forward` takes no context, and `setup_context` saves for the backward: torch.func's transforms ask for this form.
    torch.vmap maps both functions by the operators' own rules, one call for each element of the batch.
    """

    generate_vmap_rule = True


def apply(function: type[Function], *arguments: Any) -> Any:
    """`function.apply(*arguments)`, also under torch.compile with one tensor in several places."""
    if compiling():
        arguments = distinct(arguments)
    return function.apply(*arguments)


def distinct(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with a view in place of each repeated tensor, which Dynamo refuses to give an autograd.Function."""
    made: list[Any] = []
    for argument in arguments:
        repeated = isinstance(argument, Tensor) and any(argument is other for other in made)
        made.append(argument.view_as(argument) if repeated else argument)
    return tuple(made)


__all__ = ["Function", "apply"]
