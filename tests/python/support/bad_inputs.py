"""Makes invalid calls of operators. Each invalid call differs from a valid call in one operand.

The role of an operand, such as `Role.VECTOR`, determines which shapes and dtypes are valid or invalid.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from op_info import Form, Operands
from torch import Tensor

from oxiwarp.ops._roles import Role

Change = Callable[[Tensor], Tensor]
DTYPES: dict[str, Change] = {
    f"as {name}": lambda t, dtype=dtype: t.to(dtype)
    for name, dtype in (
        ("double", torch.float64),
        ("half", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("integers", torch.int32),
        ("bool", torch.bool),
    )
}
SHAPES: dict[str, Change] = {
    "a column less": lambda t: t[..., :-1],
    "one column": lambda t: t[..., :1],
    "no columns": lambda t: t[..., :0],
    "twice the columns": lambda t: torch.cat([t, t], -1),
    "one dimension more": lambda t: t[None],
    "one dimension less": lambda t: t[0],
    "a number": lambda t: t.flatten()[0],
}
BATCHES: dict[str, Change] = {
    "a batch less": lambda t: t[:-1],
    "a batch more": lambda t: torch.cat([t, t[:1]]),
    "no batches": lambda t: t[:0],
    "a token less": lambda t: t[:, :-1],
    "two of each token": lambda t: t.repeat_interleave(2, 1),
}
NUMBERS: dict[str, tuple[Any, ...]] = {
    "eps": (-1.0, -0.25, float("nan"), float("-inf")),
    "label_smoothing": (-1.0, 2.0),
    "z_loss": (-0.5, float("nan")),
    "rotary_dim": (7, 18),
    "offset": (1, 100),
    "head_dim": (5,),
}


def changes(role: Role) -> dict[str, Change]:
    """Return functions that make an operand of this role invalid. The keys of the dict describe the
    changes."""
    if role in (Role.BRANCH, Role.ANY_VECTOR, Role.MODULATION):
        dtypes = {what: DTYPES[what] for what in ("as double", "as integers", "as bool")}
        shapes = {what: change for what, change in SHAPES.items() if what != "one column"}
        return (
            dtypes
            | (SHAPES if role is not Role.MODULATION else shapes)
            | (BATCHES if role is not Role.ANY_VECTOR else {})
        )
    if role in (Role.VECTOR, Role.BIAS, Role.HEAD_VECTOR, Role.FREQUENCIES):
        return DTYPES | SHAPES
    if role in (Role.POSITIONS, Role.CLASSES):  # several dtypes are valid
        return SHAPES | BATCHES
    return DTYPES | SHAPES | BATCHES


def bad_calls(form: Form, x: Tensor) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield invalid calls of an operator. Each item consists of three values: the name of the changed
    argument, a description of the fault, and all arguments of the call."""
    right = form.arguments(x, Operands(x))
    for name, role in form.roles.items():
        for what, change in changes(role).items():
            try:
                changed = change(right[name])
            except (IndexError, RuntimeError):  # the tensor has no such dimension
                continue
            yield name, what, {**right, name: changed}
    for name, values in NUMBERS.items():
        if name in form.info.options:
            for value in values:
                yield name, str(value), {**right, name: value}


__all__ = ["bad_calls", "changes"]
