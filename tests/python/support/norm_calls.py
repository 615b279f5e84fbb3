"""Lists the norms of diffusion transformers: the operator, its formula in eager torch, and its operands.

The list is made from the table of the module `op_info`. An operator is in the list if it has a reference
function, and all of its operands are rows, vectors or modulations. Modulations are scale, shift and gate.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from helpers import random
from norms import EPS
from op_info import INFOS

from oxiwarp.ops._roles import Role


@dataclass(frozen=True)
class Call:
    """A public function, its formula in eager torch, and the names of its operands besides `x`.

    Operands in `like_x` have the shape of `x`, `[B, S, N]`. Operands in `modulations` have shape `[B, 1, N]`,
    and operands in `vectors` have shape `[N]`.
    """

    ours: Callable
    formula: Callable
    like_x: tuple[str, ...] = ()
    modulations: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()

    def operands(self, shape, dtype, device, single=()):
        """Return random operands by name. Operands named in `single` are float32, and all other operands
        have the dtype `dtype`."""
        batch, _, cols = shape
        shapes = {"x": shape, **dict.fromkeys(self.like_x, shape)}
        shapes |= dict.fromkeys(self.modulations, (batch, 1, cols)) | dict.fromkeys(self.vectors, (cols,))
        return {
            name: random(of, torch.float32 if name in single else dtype, device, seed, 0.5)
            for seed, (name, of) in enumerate(shapes.items())
        }

    @property
    def names(self):
        return ("x", *self.like_x, *self.modulations, *self.vectors)


ROWS = (Role.ROWS, Role.BRANCH)
MODULATIONS = (Role.BROADCAST, Role.MODULATION, Role.PER_BATCH)
VECTORS = (Role.VECTOR, Role.ANY_VECTOR)
# Options that select another formula. For each of these options of an operator, the list has one more entry.
OPTIONS = {"norm": ("RMS", "rms_norm"), "gate_first": ("gate first", True), "activation": ("sigmoid", "sigmoid")}


def made():
    calls = {}
    for info in INFOS.values():
        roles = {name: role for name, role in list(info.roles.items())[1:] if role is not Role.INDEX}
        if info.reference is None or not {*roles.values()} <= {*ROWS, *VECTORS, *MODULATIONS}:
            continue
        operands = [
            tuple(name for name, role in roles.items() if role in kind) for kind in (ROWS, MODULATIONS, VECTORS)
        ]
        ours = functools.partial(info.function, eps=EPS) if info.name == "layer_norm" else info.function
        calls[info.name] = Call(ours, info.reference, *operands)
        for option, (what, value) in OPTIONS.items():
            if option in info.options:
                options = {option: value, **({"rounding": "once"} if option == "gate_first" else {})}
                both = (functools.partial(function, **options) for function in (info.function, info.reference))
                calls[f"{info.name}, {what}"] = Call(*both, *operands)
    return calls


CALLS = made()


def op_of(name):
    """Return the operator name with which the error messages of the call `name` begin."""
    return "ada_norm" if name == "modulated_rms_norm" else name.split(",")[0]


def results(value):
    """Return one or two results as a tuple."""
    return value if isinstance(value, tuple) else (value,)
