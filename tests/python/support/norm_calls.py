"""One call of every norm of a diffusion transformer: all its operands by name, ours and the eager formula.

Made of `op_info`: the operators whose operands are rows, vectors and modulations, and which have a formula there.
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
    """An op's public function, what it computes, and its operands beside x: of its shape, `[B, 1, N]`, and `[N]`."""

    ours: Callable
    formula: Callable
    like_x: tuple[str, ...] = ()
    modulations: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()

    def operands(self, shape, dtype, device, single=()):
        """Random ones; those named in `single` are float32."""
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


MODULATIONS = (Role.BROADCAST, Role.PER_BATCH)
# Of an option that chooses another formula: a call of its own.
OPTIONS = {"norm": ("RMS", "rms_norm"), "gate_first": ("gate first", True), "activation": ("sigmoid", "sigmoid")}


def made():
    calls = {}
    for info in INFOS.values():
        roles = dict(list(info.roles.items())[1:])
        if info.reference is None or not {*roles.values()} <= {Role.ROWS, Role.VECTOR, *MODULATIONS}:
            continue
        operands = [
            tuple(name for name, role in roles.items() if role in kind)
            for kind in ((Role.ROWS,), MODULATIONS, (Role.VECTOR,))
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
    """The operator of a call, whose name its errors have."""
    return "ada_norm" if name == "modulated_rms_norm" else name.split(",")[0]


def results(value):
    """One result or two as a tuple."""
    return value if isinstance(value, tuple) else (value,)
