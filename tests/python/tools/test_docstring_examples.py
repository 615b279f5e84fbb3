"""Tests of the docstrings of public functions. The examples in them print the output that they show, and no
section is missing."""

import doctest
import inspect
import re

import pytest
import torch

import oxiwarp
from oxiwarp import ops

PUBLIC = {name: function for name in oxiwarp.__all__ if inspect.isfunction(function := getattr(oxiwarp, name))}
SECTIONS = ("Args", "Returns", "Raises", "Note", "Source", "Example")
# Docstring fields that docs/reference/operators.md needs for every operator.
NOTES = ("Exactness", "Gradients")


def examples(function):
    """Return the examples in a function's docstring as a doctest. The examples can use `torch` and `oxiwarp`."""
    names = {"torch": torch, "oxiwarp": oxiwarp}
    return doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", names, function.__name__, None, 0)


def lacking(function):
    """Return a list of what is missing in an operator's docstring: an example, a section, or an argument in
    the section "Args:"."""
    text = inspect.getdoc(function) or ""
    missing = [] if examples(function).examples else ["an example"]
    missing += [f"{name}:" for name in SECTIONS if not re.search(rf"^{name}:$", text, re.MULTILINE)]
    missing += [f"{name}:" for name in NOTES if not re.search(rf"^    {name}: ", text, re.MULTILINE)]
    arguments = inspect.signature(function).parameters
    return missing + [name for name in arguments if not re.search(rf"^    {name} \(.+\): ", text, re.MULTILINE)]


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_print_what_they_show(name):
    """The examples in the docstring of every public function print exactly the output that the docstring shows."""
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(examples(PUBLIC[name]), out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", ops.FUNCTIONS)
def test_no_section_is_missing(name):
    assert not lacking(ops.FUNCTIONS[name])


def test_what_is_left_out_is_named():
    def function(x, eps):
        """Compute nothing.

        Args:
            x (Tensor): anything.
        Returns: nothing.
        """

    assert lacking(function) == [
        *("an example", "Returns:", "Raises:", "Note:", "Source:", "Example:"),
        *("Exactness:", "Gradients:", "eps"),
    ]


def test_a_wrong_example_fails():
    def function():
        """Compute nothing.

        >>> torch.ones(1)
        tensor([2.])
        """

    runner = doctest.DocTestRunner(verbose=False)
    runner.run(examples(function), out=lambda text: None)
    assert runner.failures == 1
