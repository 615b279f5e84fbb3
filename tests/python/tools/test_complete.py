"""Tests that every public function and operator has test calls, and that each of its tensor parameters has a
role.

The role of a tensor parameter, e.g. "rows" or "weight", determines which tensor the tests pass for it.
"""

import inspect

import pytest
import torch
from op_info import FORMS, INFOS, SPECIAL
from operator_calls import NUMBERS, calls
from torch import Tensor

from oxiwarp import _native, ops
from oxiwarp._namespace import NAMESPACE
from oxiwarp.ops._roles import OPERATORS


@pytest.mark.parametrize("name", ops.FUNCTIONS)
def test_every_tensor_has_a_role(name):
    """Every tensor parameter of a public function has a role, e.g. rows or weight.

    The list of test calls (`FORMS`) has a call of the function with all required tensors.
    """
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


@pytest.mark.parametrize("key", ("CPU", "CUDA", "Meta"))
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_kernels(name, key):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", key)


@pytest.mark.parametrize(
    "schema, roles, text",
    (
        ("nothing(Tensor x) -> Tensor", ["ROWS"], "nothing: the table in py-bindings/src/ops.rs has no row for it"),
        ("softmax(Tensor x) -> Tensor", ["ROWS"], "softmax: the host function takes another bool"),
        ("softmax(Tensor x, bool log, int n) -> Tensor", ["ROWS"], "softmax: the host function does not take the last"),
        ("softmax(Tensor x, bool log) -> Tensor", [], "softmax: x has no role"),
        ("softmax(Tensor x, bool log) -> Tensor", ["FACTOR"], "softmax: no kernel takes a tensor of the role FACTOR"),
    ),
)
def test_an_operator_that_does_not_fit_is_refused(schema, roles, text):
    """`_native.register` raises TypeError if the schema or the tensor roles of an operator do not match
    the Rust function."""
    with pytest.raises(TypeError, match=f"^{text}"):
        _native.register("libtorch_cpu.so", NAMESPACE, [(schema, roles)])
