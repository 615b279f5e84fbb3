"""Tests of batch invariance: the bits of a row's result and gradient do not depend on other rows.

The tests cover every operator whose rows are independent of each other.
"""

import pytest
import torch
from helpers import random, same_bits
from op_info import FORMS, Form, Operands
from torch import Tensor

from oxiwarp import ops
from oxiwarp.ops._roles import Role

# Each operand has a role, which determines its shape. Operands with a role in `OF_ROWS` have one entry per
# row of `x`. Operands with a role in `BROADCAST`, such as a scale, may broadcast. If the name of a test case
# ends with `TOKEN`, each row has a separate scale.
OF_ROWS = (Role.ROWS, Role.BRANCH, Role.HEADS, Role.CLASSES, Role.TABLE, Role.POSITIONS, Role.QUANTIZED, Role.SCALES)
BROADCAST = (Role.BROADCAST, Role.MODULATION, Role.PER_BATCH)
TOKEN = ", scale of a token"


def by_row(form: Form) -> Form | None:
    """Return `form` (one way to call an operator) with an explicit argument for token positions. Return None
    if the operator's rows depend on each other."""
    if form.info.rows is None:
        return None
    positions = [name for name, role in form.info.roles.items() if role is Role.POSITIONS]
    options = {**form.options, **form.info.rows}
    return Form(form.info, form.name, (*form.operands, *[x for x in positions if x not in form.operands]), options)


def cases() -> dict[str, tuple[Form, bool]]:
    """Map the name of each test case to a pair: a form (one way to call an operator), and a bool. The bool is
    True if each row has a separate scale."""
    made = {}
    for name, plain in FORMS.items():
        if (form := by_row(plain)) is None:
            continue
        made[name] = (form, False)
        if any(role in BROADCAST and operand.startswith("scale") for operand, role in form.roles.items()):
            made[name + TOKEN] = (form, True)
    return made


CASES = cases()


class Rows(Operands):
    """Makes the operands for a call with `x` of shape `[rows, cols]`. The method `part` restricts all
    operands to a range of rows."""

    def __init__(self, like: Tensor, own_scale: bool):
        super().__init__(like[None])
        self.own_scale, self.begin, self.end = own_scale, 0, len(like)

    def part(self, begin: int, end: int) -> "Rows":
        self.begin, self.end = begin, end
        return self

    def make(self, form: Form, name: str, x: Tensor) -> Tensor:
        role = form.roles[name]
        if role in BROADCAST and (self.own_scale or not name.startswith("scale")):
            return self.rows[len(name) % 2][:, self.begin : self.end]
        if role is Role.TABLE:
            return self.tables[name][self.begin : self.end]
        if role is Role.CLASSES:
            return self.classes[:, self.begin : self.end]
        if role is Role.PRODUCT:
            return self.product[:, self.begin : self.end]
        if role is Role.SCALES:
            return self.scales[:, self.begin : self.end]
        made = super().make(form, name, x)
        return made[self.begin : self.end] if role is Role.POSITIONS else made

    def rows_like(self, x: Tensor, at: int) -> Tensor:
        return self.rows[at - 1][:, self.begin : self.end]


def results_of(form: Form, x: Tensor, others: Rows) -> list[Tensor]:
    """Return an operator's results and the gradient of its input `x`. Each of these tensors is a matrix with
    one row per row of `x`.

    The gradient is left out if the operator has none. It is also left out in two cases, in which a row alone may
    give other bits:

    - `info.rows_of_gradient` is false: torch computes the gradient with a matrix product.
    - Each row has a separate scale. The backward pass of several rows then rounds the product of incoming gradient
      and scale. The backward pass of a single row does not round it.
    """
    leaf = x.detach().requires_grad_(form.info.differentiable)
    with torch.enable_grad():
        results = form.call(leaf[None], others)
    lines = [result.detach().reshape(len(x), -1) for result in results]
    if others.own_scale or not (form.info.rows_of_gradient and form.info.differentiable):
        return lines
    dy = others.rows_like(x, 1)[0]
    back = [dy[:, : line.shape[1]].reshape(result.shape) for line, result in zip(lines, results, strict=True)]
    return [*lines, *torch.autograd.grad(results, leaf, back)]


def check(name: str, count: int, cols: int, dtype: torch.dtype, device: torch.device) -> None:
    form, own_scale = CASES[name]
    x = random((count, cols), dtype, device)
    others = Rows(x, own_scale)
    together = results_of(form, x, others)
    for begin, end in ((0, 1), (0, 7), (count // 2, count // 2 + 1), (count - 1, count)):
        apart = results_of(form, x[begin:end], others.part(begin, end))
        for at, (whole, alone) in enumerate(zip(together, apart, strict=True)):
            assert same_bits(whole[begin:end], alone), f"{name}, rows {begin} to {end}, result {at}"


def test_every_op_on_rows_is_here():
    assert {form.info.name for form, _ in CASES.values()} == set(ops.__all__) - {"attention"}


@pytest.mark.parametrize("name", CASES)
def test_rows_alone(name):
    dtypes = CASES[name][0].info.dtypes
    check(name, 3001, 16, torch.bfloat16 if torch.bfloat16 in dtypes else dtypes[0], torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rows_alone_cuda(name, dtype, cuda):
    """The bits of a row do not depend on other rows, even if a launch has more rows than the GPU processes at
    once."""
    if dtype not in CASES[name][0].info.dtypes:
        pytest.skip(f"no rows in {dtype}")
    check(name, 100_000, 512, dtype, cuda)
