"""Makes the arguments for a call of any operator that oxiwarp registers in torch, from the operator's schema.

Each tensor operand has a role, such as `Role.VECTOR`, which determines its shape. `NUMBERS` maps the names of all other
arguments to values.
"""

from collections.abc import Callable
from typing import Any

import torch
from helpers import random
from torch import Tensor

from oxiwarp.ops._roles import OPERATORS, Operator, Role

SHAPE, BF16 = (4, 3, 32), torch.bfloat16
HEADS, HEAD_DIM = 2, 64
MATRIX_ROWS = 16
# Values of arguments that are not tensors, by name.
NUMBERS = {
    "across_heads": False,
    "after": -1,
    "angles": 0,
    "before": -1,
    "causal": False,
    "clip": False,
    "conjugate": False,
    "dbias": True,
    "dgate": True,
    "dweight": True,
    "e5m2": False,
    "eps": 1e-6,
    "exact": True,
    "f16": False,
    "fast": False,
    "gate_first": True,
    "head_dim": 0,
    "heads_first": False,
    "ignore_index": -100,
    "interleaved": True,
    "kind": 0,
    "label_smoothing": 0.1,
    "log": False,
    "norm": 2,
    "offset": -1,
    "per_block": True,
    "rms": False,
    "rotary_dim": 0,
    "round_before_weight": True,
    "scale": 0.125,
    "sigmoid": False,
    "softcap": 0.0,
    "threshold": 0.0,
    "weight_offset": 0.0,
    "with_lse": True,
    "z_loss": 0.01,
}
# Optional operands that are never passed: biases of LayerNorm, masks, packed sequences and positions. They
# cannot be combined with some other operands.
EXCLUDED = ("index", "positions", "q_bias", "k_bias", "mask", "cu_seqlens_q", "cu_seqlens_k")


class Tensors:
    """Makes a tensor for each role (kind of operand), for example `[B, S, N]` rows or `[B, S, H, D]` heads."""

    def __init__(self, device):
        self.device, self.count = device, 0

    def random(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        self.count += 1
        return random(shape, dtype, self.device, self.count)

    def make(self, operator: Operator, name: str, given: set[str]) -> Tensor:
        role, (batch, tokens, cols) = operator.roles[name], SHAPE
        roles = set(operator.roles.values())
        of_heads, of_matrix = Role.HEADS in roles, bool(roles & {Role.MATRIX, Role.QUANTIZED_MATRIX})
        # The operand has half of the columns of x.
        halves = "second" in operator.roles and "second" not in given
        match role:
            case Role.OUTPUT if of_heads:
                return self.strided(batch, tokens, HEADS, HEAD_DIM)
            case Role.OUTPUT if Role.FACTOR in operator.roles.values():
                return self.random(batch * tokens, cols)
            case Role.OUTPUT if of_matrix:
                gated = operator.name.startswith("linear_gated_activation")
                return self.strided(batch, tokens, MATRIX_ROWS // 2 if gated else MATRIX_ROWS)
            case Role.OUTPUT:
                return self.strided(batch, tokens, cols // 2 if halves else cols)
            case Role.QUANTIZED:
                return self.strided(batch, tokens, cols).to(torch.float8_e4m3fn)
            case Role.SCALES:
                return self.random(batch, tokens, -(-cols // 128), dtype=torch.float32)
            case Role.ROWS if Role.FACTOR in operator.roles.values():
                return self.random(batch * tokens, cols)
            case Role.ROWS | Role.BRANCH:
                return self.random(batch, tokens, cols // 2 if halves and name == "dy" else cols)
            case Role.VECTOR | Role.ANY_VECTOR:
                return self.random(cols)
            case Role.BIAS if of_matrix:
                return self.random(MATRIX_ROWS)
            case Role.BIAS:
                return self.random(2 * cols if "second" in given else cols)
            case Role.BROADCAST if operator.name == "gated_residual_backward":
                return self.random(batch, cols)  # a row per group of rows
            case Role.BROADCAST | Role.MODULATION:
                return self.random(batch, 1, cols)
            case Role.CLASSES:
                return torch.zeros(batch, tokens, dtype=torch.long, device=self.device)
            case Role.PER_ROW:
                return self.random(batch, tokens, dtype=torch.float32)
            case Role.PER_HEAD:
                return self.random(batch, HEADS, tokens, dtype=torch.float32)
            case Role.HEADS:
                return self.random(batch, tokens, HEADS, HEAD_DIM)
            case Role.HEAD_VECTOR:
                return self.random(HEAD_DIM)
            case Role.TABLE:
                return self.random(tokens, HEAD_DIM // 2, dtype=torch.float32)
            case Role.MATRIX:
                return self.random(MATRIX_ROWS, cols)
            case Role.QUANTIZED_MATRIX:
                return self.random(MATRIX_ROWS, cols).to(torch.float8_e4m3fn)
            case Role.MATRIX_SCALES:
                return self.random(MATRIX_ROWS, 1, dtype=torch.float32)
            case Role.PRODUCT:
                return self.random(batch, tokens, MATRIX_ROWS)
            case Role.PRODUCT_GATE:
                return self.random(batch, 1, MATRIX_ROWS)
            case Role.FACTOR:
                return self.random(cols, cols)
        raise AssertionError(f"{operator.name}: {name} is {role}")

    def strided(self, *shape: int) -> Tensor:
        """Return a slice of a wider tensor."""
        return self.random(*shape[:-1], 2 * shape[-1])[..., : shape[-1]]


def arguments(operator: Operator, device, optional: bool) -> tuple[Any, ...]:
    """Return all arguments in the order of the schema. If `optional` is false, all optional operands are None."""
    schema = [(argument.name, str(argument.type)) for argument in operator.overload._schema.arguments]
    given = {name for name, kind in schema if name in operator.roles and (optional or "Optional" not in kind)}
    given -= set(EXCLUDED)
    if "norm" not in dict(schema):  # An operator without a norm only rotates, so it requires tables.
        given |= {name for name, role in operator.roles.items() if role is Role.TABLE}
    tensors, numbers = Tensors(device), dict(NUMBERS)
    # If the weight is not passed, it has no gradient.
    if "weight" in operator.roles and "weight" not in given:
        numbers |= {"dweight": False, "dbias": False}
    made: dict[str, Any] = {name: tensors.make(operator, name, given) for name in operator.roles if name in given}
    return tuple(made.get(name) if name in operator.roles else numbers[name] for name, _ in schema)


def calls() -> dict[str, Callable[[Any], tuple[Operator, tuple[Any, ...]]]]:
    """Return a dict of functions, each of which makes a call of an operator.

    Each function takes a device, and returns an operator and arguments for this operator. An operator with
    optional operands has two functions: one with these operands and one without.
    """
    made: dict[str, Any] = {}
    for name, operator in OPERATORS.items():
        made[name] = lambda device, operator=operator: (operator, arguments(operator, device, True))
        if any("Optional" in str(argument.type) for argument in operator.overload._schema.arguments):
            made[f"{name}, required operands"] = lambda device, operator=operator: (
                operator,
                arguments(operator, device, False),
            )
    return made


__all__ = ["NUMBERS", "calls"]
