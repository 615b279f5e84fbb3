"""Every op has a kernel, host, binding, Python, tests, bench and documentation. A failure names what is missing."""

import inspect

import pytest
from checkout import ROOT
from op_info import FORMS, INFOS, SPECIAL
from operator_calls import NUMBERS, calls
from pieces import UNITS, missing
from torch import Tensor

from oxiwarp import ops
from oxiwarp.ops._roles import OPERATORS


@pytest.mark.skipif(not (ROOT / UNITS).exists(), reason="a bundle has no sources")
def test_no_piece_is_missing():
    lacking = missing(ROOT)
    assert not lacking, "missing:\n" + "\n".join(lacking)


@pytest.mark.parametrize("name", ops.FUNCTIONS)
def test_every_tensor_has_a_role(name):
    """Of a public function: a parameter whose type is a tensor. Forms give all that are required."""
    info = INFOS[name]
    for parameter in inspect.signature(info.function).parameters.values():
        if "Tensor" in str(parameter.annotation):
            assert parameter.name in info.roles, f"{parameter.name}: a role by its name in an operator, or in ROLES"
        if parameter.annotation is Tensor:
            assert parameter.name in FORMS[name].operands, f"{parameter.name}: its role, {info.roles[parameter.name]}"


def test_every_function_and_operator_is_called():
    assert {form.info.name for form in FORMS.values()} == ops.FUNCTIONS.keys() >= SPECIAL.keys()
    assert {name.partition(",")[0] for name in calls()} == OPERATORS.keys()
    for name, operator in OPERATORS.items():
        numbers = {argument.name for argument in operator.overload._schema.arguments} - operator.roles.keys()
        assert numbers <= NUMBERS.keys(), f"{name}: a value in NUMBERS for {', '.join(numbers - NUMBERS.keys())}"
