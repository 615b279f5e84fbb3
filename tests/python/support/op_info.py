"""A table of the public operators. Tests make their calls from this table, as PyTorch's tests do from their
`OpInfo`.

`Operands` makes the tensors of a call. Each tensor operand has a role (`oxiwarp.ops._roles`), such as
`Role.VECTOR`, which determines its shape. `VALUES` maps the names of all other arguments to values. `SPECIAL`
lists operators with further properties.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import norms
import torch
from activations import ACTIVATIONS, GATED
from helpers import random
from torch import Tensor

from oxiwarp import ops
from oxiwarp.ops._roles import Role, roles_of

# Values to test, by argument name. For each value that is not the default, there is one `Form` (an operator
# call to test).
VALUES: dict[str, tuple[Any, ...]] = {
    "activation": ("silu", "sigmoid"),
    "approximate": ("none", "tanh"),
    "causal": (True,),
    "clip": (True,),
    "gate_first": (True,),
    "interleaved": (True, False),
    "label_smoothing": (0.1,),
    "log": (True,),
    "mode": ("exact", "fast"),
    "norm": ("layer_norm", "rms_norm"),
    "rounding": ("once", "before_weight"),
    "softcap": (5.0,),
    "theta": (100.0,),
    "threshold": (0.25,),
    "weight_offset": (1.0,),
    "window": (2,),
    "z_loss": (0.1,),
}
MADE = {  # the roles for which `Operands.make` makes tensors
    Role.ROWS,
    Role.BRANCH,
    Role.VECTOR,
    Role.ANY_VECTOR,
    Role.BIAS,
    Role.BROADCAST,
    Role.MODULATION,
    Role.PER_BATCH,
    Role.CLASSES,
    Role.HEADS,
    Role.HEAD_VECTOR,
    Role.TABLE,
    Role.POSITIONS,
    Role.FREQUENCIES,
    Role.MATRIX,
    Role.PRODUCT,
    Role.PRODUCT_GATE,
    Role.QUANTIZED,
    Role.SCALES,
    Role.QUANTIZED_MATRIX,
    Role.MATRIX_SCALES,
}
KERNELS, TORCH = "kernels", "torch's operators"
NO_GRADIENT = "none: fp8 is for inference"


@dataclass(frozen=True)
class OpInfo:
    """Properties of a public operator that do not follow from its signature and the roles of its operands."""

    name: str
    reference: Callable[..., Any] | None = None
    """A function that computes the result with eager torch operators, as models do. It takes the arguments
    of the operator."""
    gradient: str = KERNELS
    """Says what computes the gradient. This text also stands in the operator reference in docs."""
    result: int = 0
    """Index of the result that tests use if they need only one result. This result is not linear in the
    first operand."""
    linear: bool = False
    """True if the result is linear in the first operand, unless it is clamped."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of arguments, which replace the values in `VALUES`."""
    without: tuple[str, ...] = ()
    """Operands that cannot be combined with some other operands. Only the calls in `extra` pass them."""
    extra: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = field(default_factory=dict)
    """Additional test calls by name, each with its operands and options."""
    instead: Callable[[int], dict[str, Any]] = lambda tokens: {}
    """Takes a number of tokens, and returns options that replace the argument `positions`."""
    rows: dict[str, Any] | None = field(default_factory=dict)
    """Options with which the result of a row depends only on this row. None if there are no such options."""
    rows_of_gradient: bool = True
    """True if the bits of the gradient of a row depend only on this row, too. This is not the case if torch
    computes the gradient with a matrix product."""
    copied: tuple[str, ...] = ()
    """Operands that the function copies if their last dimension is not contiguous."""

    @property
    def function(self) -> Callable[..., Any]:
        return ops.FUNCTIONS[self.name]

    @property
    def roles(self) -> dict[str, Role]:
        return roles_of(self.function)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of the arguments that are not operands."""
        return tuple(name for name in inspect.signature(self.function).parameters if name not in self.roles)

    @property
    def differentiable(self) -> bool:
        """Return whether the operator has a gradient."""
        return self.gradient != NO_GRADIENT

    @property
    def first(self) -> str:
        """Return the name of the operand whose shape the results have."""
        return next(iter(self.roles))

    def operands(self, which: str) -> tuple[str, ...]:
        """Return the names of the operands in the group `which`: "required", "positional", "every" or "named".

        The group "named" consists of the operands without a default value. Some of them may be None.
        """
        made = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            role = self.roles.get(name)
            if role not in MADE or name in self.without:
                continue
            required = parameter.annotation is Tensor or (role is Role.TABLE and "cos" in made)
            by_position = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            named = parameter.default is parameter.empty
            if {"required": required, "positional": by_position or required, "every": True, "named": named}[which]:
                made.append(name)
        return tuple(made)

    def forms(self) -> "Iterator[Form]":
        """Yield the forms (test calls) of this operator.

        The first forms have the positional operands, the required operands, or all operands. Each further
        form has one more option value, or is listed in `extra`.
        """
        places = (Role.POSITIONS, Role.FREQUENCIES)
        most, seen = tuple(name for name in self.operands("every") if self.roles[name] not in places), set()
        for name, which in (("", "positional"), (", required operands", "required"), (", every operand", "every")):
            if (operands := self.operands(which)) not in seen:
                seen.add(operands)
                yield Form(self, self.name + name, operands, {})
        for name, parameter in inspect.signature(self.function).parameters.items():
            for value in {**VALUES, **self.values}.get(name, ()):
                if value != parameter.default:
                    yield Form(self, f"{self.name}, {name}={value}", most, {name: value})
        for name, (operands, options) in self.extra.items():
            yield Form(self, f"{self.name}, {name}", operands, options)


@dataclass(frozen=True)
class Form:
    """A test call of a public operator. It lists the operands and options that the call passes."""

    info: OpInfo
    name: str
    operands: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def roles(self) -> dict[str, Role]:
        return {name: self.info.roles[name] for name in self.operands}

    @property
    def linear(self) -> bool:
        return self.info.linear and not (self.options.get("clip") or self.options.get("epilogue"))

    def arguments(self, x: Tensor, others: "Operands", **options: Any) -> dict[str, Any]:
        """Return all arguments by name, for rows `x` of shape `[B, S, N]`. `options` replaces options of
        this test call."""
        positions = Role.POSITIONS in self.roles.values()
        made: dict[str, Any] = dict.fromkeys(self.info.operands("named"))
        made |= {} if positions else self.info.instead(x.shape[1])
        made |= {name: others.make(self, name, x) for name in self.operands}
        return made | dict(self.options) | options

    def call(self, x: Tensor, others: "Operands", **options: Any) -> tuple[Any, ...]:
        """Call the operator and return all results as a tuple."""
        results = self.info.function(**self.arguments(x, others, **options))
        return results if isinstance(results, tuple) else (results,)


class Operands:
    """Makes random operands for an operator whose input rows have shape `[B, S, N]`. The role of an operand,
    such as `Role.VECTOR`, determines its shape.

    Heads have at most `dim` columns.
    """

    def __init__(self, like: Tensor, dim: int = 128):
        batch, tokens, cols = like.shape
        device, dtype, dim = like.device, like.dtype, min(dim, cols)
        self.dim, self.dtype = dim, dtype
        self.rows = [random(like.shape, dtype, device, seed) for seed in (1, 2)]
        self.broadcast = [random((1, 1, cols), dtype, device, seed, 0.5) for seed in (3, 4, 5, 6, 7)]
        self.vectors = [random((cols,), dtype, device, seed, 0.5) for seed in (8, 9, 10, 11, 12)]
        self.bias = random((2 * cols,), dtype, device, 13)
        self.matrix = random((max(16, cols // 32 * 16), cols), dtype, device, 18, cols**-0.5)
        self.scales = random((batch, tokens, 1), torch.float32, device, 20).sigmoid()
        self.matrix_scales = random((len(self.matrix), 1), torch.float32, device, 21).sigmoid()
        self.product = random((batch, tokens, len(self.matrix)), dtype, device, 19)
        self.head_vectors = [random((heads * dim,), dtype, device, 14) for heads in (1, cols // dim)]
        angles = random((tokens, dim // 2), torch.float32, device, 15)
        self.tables = {"cos": angles.cos(), "sin": angles.sin()}
        self.frequencies = random((dim // 2,), torch.float32, device, 16).abs()
        self.positions = torch.arange(tokens, device=device) * 3
        self.coordinates = random((tokens, 3), torch.float32, device, 17).sigmoid()
        self.classes = (torch.arange(batch * tokens, device=device) * 5 % cols).view(batch, tokens)

    def make(self, form: Form, name: str, x: Tensor) -> Tensor:
        """Return the operand `name` of a test call.

        Operands with the same role have different values, with one exception: the fourth operand with the role ROWS has
        the values of the second.
        """
        role = form.roles[name]
        at = [other for other, of in form.roles.items() if of is role].index(name)
        match role:
            case Role.ROWS:
                return x if name == form.info.first else self.rows_like(x, at)
            case Role.BRANCH:
                return self.rows_like(x, 1)
            case Role.HEADS:
                return x if "head_dim" in form.options else self.heads(x)
            case Role.BROADCAST | Role.MODULATION | Role.PER_BATCH:
                return self.broadcast[at]
            case Role.VECTOR | Role.ANY_VECTOR:
                return self.vectors[at]
            case Role.MATRIX | Role.QUANTIZED_MATRIX:
                return self.matrix
            case Role.SCALES:
                return self.scales[: x.shape[0]].expand(*x.shape[:-1], -1).contiguous()
            case Role.MATRIX_SCALES:
                return self.matrix_scales
            case Role.QUANTIZED:
                return x
            case Role.PRODUCT:
                return self.product[: x.shape[0]].expand(*x.shape[:-1], -1).contiguous()
            case Role.PRODUCT_GATE:
                return self.product[:1, :1]
            case Role.BIAS if Role.MATRIX in form.info.roles.values():
                return self.bias[: len(self.matrix)]
            case Role.BIAS if Role.QUANTIZED_MATRIX in form.info.roles.values():
                return self.bias[: len(self.matrix)].bfloat16()
            case Role.BIAS:
                halves = [of for of in form.roles.values() if of is Role.ROWS]
                return self.bias[: len(halves) * x.shape[-1]]
            case Role.HEAD_VECTOR:
                return self.head_vectors[form.options.get("across_heads", False)]
            case Role.TABLE:
                return self.tables[name]
            case Role.FREQUENCIES:
                return self.frequencies
            case Role.POSITIONS:
                return self.coordinates if name == "coordinates" else self.positions
            case Role.CLASSES:
                return self.classes[: x.shape[0]]
        raise AssertionError(f"{form.name}: {name} is {role}")

    def rows_like(self, x: Tensor, at: int) -> Tensor:
        """Return the rows of operand number `at`, in the shape of `x`."""
        return self.rows[(at - 1) % len(self.rows)][: x.shape[0]].expand_as(x).contiguous()

    def heads(self, x: Tensor) -> Tensor:
        """Return `x` as heads of shape `[B, S, heads, D]`."""
        return x.unflatten(-1, (x.shape[-1] // self.dim, self.dim))


def _rope_grid(tokens: int) -> dict[str, Any]:
    return {"grid": (1, 2, tokens // 2)}


_SIXTEEN = (torch.float16, torch.bfloat16)
_NOT_TABLES = f"{KERNELS}; not of tables"
SPECIAL = {
    info.name: info
    for info in (
        OpInfo("ada_norm", norms.ada_norm),
        OpInfo("ada_norm_pair", norms.ada_norm_pair, result=1),
        OpInfo("attention", dtypes=_SIXTEEN, rows=None),
        OpInfo("cross_entropy", rows={"reduction": "none"}, copied=("weight",)),
        OpInfo("gated_residual", norms.gated_residual, linear=True),
        OpInfo("gated_residual_ada_norm", norms.gated_residual_ada_norm),
        OpInfo("layer_norm", norms.layer_norm),
        OpInfo(
            "linear",
            gradient=f"{TORCH}; {KERNELS} for activations",
            linear=True,
            dtypes=_SIXTEEN,
            rows_of_gradient=False,
            copied=("x", "weight", "residual"),
            without=("residual", "gate"),
            extra={
                "activation": (("x", "weight", "bias"), {"epilogue": "gelu_tanh"}),
                "gated activation": (("x", "weight", "bias"), {"epilogue": "silu_and_mul"}),
                "residual": (("x", "weight", "bias", "residual"), {}),
                "gated residual": (("x", "weight", "bias", "residual", "gate"), {}),
            },
        ),
        OpInfo(
            "linear_fp8",
            gradient=NO_GRADIENT,
            dtypes=(torch.float8_e4m3fn,),
            values={"accumulate": ("fast",), "out_dtype": (torch.float16,)},
            rows={"accumulate": "float32"},
            copied=("x", "x_scale", "weight", "weight_scale"),
            without=("bias",),  # its dtype is the dtype of the result
            extra={"bias": (("x", "x_scale", "weight", "weight_scale", "bias"), {})},
        ),
        OpInfo("modulate", norms.modulate, f"{TORCH}, in float32"),
        OpInfo("modulated_rms_norm", norms.mochi_modulated),
        OpInfo("norm_gated_residual", norms.norm_gated_residual, linear=True),
        OpInfo(
            "qk_norm_rope",
            gradient=_NOT_TABLES,
            values={"norm": ("llama_rms_norm", "mochi_rms_norm")},
            without=("q_bias", "k_bias"),
            extra={
                "LayerNorm": (("q", "q_weight", "q_bias"), {"norm": "layer_norm"}),
                "across heads": (("q", "cos", "sin", "q_weight"), {"across_heads": True}),
                "rotation": (("q", "k", "cos", "sin"), {"norm": None}),
            },
        ),
        # torch has few operators for 8-bit floats, so the tests use the second result, the scales.
        OpInfo(
            "quantize_fp8",
            gradient=NO_GRADIENT,
            result=1,
            values={"block": (128,), "dtype": (torch.float8_e5m2,)},
        ),
        OpInfo("residual_tanh_gated_rms_norm", norms.mochi_residual, linear=True),
        OpInfo("residual_tanh_gated_rms_norm_modulated", norms.mochi_chained),
        OpInfo("rms_norm_gated", norms.rms_norm_gated, f"{KERNELS}; {TORCH} for a sigmoid"),
        OpInfo("rope", gradient=_NOT_TABLES, linear=True),
        OpInfo("rope_1d", gradient=f"{KERNELS}; not of positions", linear=True),
        OpInfo(
            "rope_3d",
            gradient=f"{KERNELS}; not of coordinates",
            linear=True,
            instead=_rope_grid,
            extra={"without heads": (("q", "coordinates"), {"head_dim": None})},
        ),
        *(OpInfo(name, reference) for name, reference in ACTIVATIONS.items()),
        *(OpInfo(name, reference) for name, (_, reference) in GATED.items() if name in ops.FUNCTIONS),
    )
}
INFOS = {name: SPECIAL.get(name, OpInfo(name)) for name in ops.FUNCTIONS}
FORMS = {form.name: form for info in INFOS.values() for form in info.forms()}

__all__ = ["FORMS", "INFOS", "KERNELS", "NO_GRADIENT", "SPECIAL", "TORCH", "VALUES", "Form", "OpInfo", "Operands"]
