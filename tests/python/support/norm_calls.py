"""One call of every norm of a diffusion transformer: all its operands by name, ours and the eager formula."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from helpers import random
from norms import EPS, ada_norm, gated_residual, layer_norm, mochi_modulated, mochi_residual, rms_norm_gated

import oxiwarp


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


def _pair(x, scale, shift, scale2, shift2, **options):
    return ada_norm(x, scale, shift, **options), ada_norm(x, scale2, shift2, **options)


def _both(x, y, gate, scale, shift, *, gate_table, norm="layer_norm", **options):
    total = gated_residual(x, y, gate, gate_table=gate_table)
    return ada_norm(total, scale, shift, norm=norm, **options), total


def _chained(x, x_res, gate, scale):
    total = mochi_residual(x, x_res, gate)
    return mochi_modulated(total, scale), total


def _rms(function):
    return lambda *args, **options: function(*args, **options, norm="rms_norm")


TABLES, AFFINE = ("scale_table", "shift_table"), ("weight", "bias")
BY, BY2 = ("scale", "shift"), ("scale", "shift", "scale2", "shift2")
CALLS = {
    "layer_norm": Call(functools.partial(oxiwarp.layer_norm, eps=EPS), layer_norm, vectors=AFFINE),
    "ada_norm": Call(oxiwarp.ada_norm, ada_norm, modulations=BY, vectors=TABLES + AFFINE),
    "ada_norm, RMS": Call(_rms(oxiwarp.ada_norm), _rms(ada_norm), modulations=BY, vectors=TABLES + AFFINE),
    "ada_norm_pair": Call(oxiwarp.ada_norm_pair, _pair, modulations=BY2, vectors=AFFINE),
    "gated_residual": Call(oxiwarp.gated_residual, gated_residual, ("y",), ("gate",), ("gate_table",)),
    "gated_residual_ada_norm": Call(
        oxiwarp.gated_residual_ada_norm, _both, ("y",), ("gate", *BY), ("gate_table", *TABLES, *AFFINE)
    ),
    "gated_residual_ada_norm, RMS": Call(
        _rms(oxiwarp.gated_residual_ada_norm), _rms(_both), ("y",), ("gate", *BY), ("gate_table", *TABLES, *AFFINE)
    ),
    "modulated_rms_norm": Call(oxiwarp.modulated_rms_norm, mochi_modulated, modulations=("scale",)),
    "residual_tanh_gated_rms_norm": Call(oxiwarp.residual_tanh_gated_rms_norm, mochi_residual, ("x_res",), ("gate",)),
    "rms_norm_gated": Call(oxiwarp.rms_norm_gated, rms_norm_gated, ("gate",), vectors=("weight",)),
    "rms_norm_gated, gate first": Call(
        functools.partial(oxiwarp.rms_norm_gated, gate_first=True, rounding="once"),
        functools.partial(rms_norm_gated, gate_first=True, rounding="once"),
        ("gate",),
        vectors=("weight",),
    ),
    "rms_norm_gated, sigmoid": Call(
        functools.partial(oxiwarp.rms_norm_gated, activation="sigmoid"),
        functools.partial(rms_norm_gated, activation="sigmoid"),
        ("gate",),
        vectors=("weight",),
    ),
    "residual_tanh_gated_rms_norm_modulated": Call(
        oxiwarp.residual_tanh_gated_rms_norm_modulated, _chained, ("x_res",), ("gate", "scale")
    ),
}


def op_of(name):
    """The operator of a call, whose name its errors have."""
    return "ada_norm" if name == "modulated_rms_norm" else name.split(",")[0]


def results(value):
    """One result or two as a tuple."""
    return value if isinstance(value, tuple) else (value,)
