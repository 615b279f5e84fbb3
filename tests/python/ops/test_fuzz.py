"""Tests of the fuzzer, which calls operators with random arguments, and tests that use the fuzzer.

The public operators must pass the checks of the fuzzer. Intentionally wrong operators must fail them.
"""

import inspect
import os
import random

import fuzz
import pytest
import torch
from fuzz.__main__ import main

import oxiwarp
from oxiwarp import ops

# Each test run has a new seed, except in CI. There, a change must not fail because of a new random case.
SEED = int(os.environ.get("OXIWARP_SEED", 0 if os.environ.get("CI") else random.randrange(2**31)))
MUTANT_CASES = 150  # The fuzzer must detect each faulty operator with at most 150 random calls.


def test_every_operator_has_a_generator():
    without = set(ops.__all__) - set(fuzz.OPERATORS)
    assert not without, f"a generator in tests/python/fuzz, registered there, for {', '.join(sorted(without))}"
    assert set(fuzz.OPERATORS) <= set(ops.__all__)


@pytest.mark.parametrize("name", sorted(fuzz.OPERATORS))
def test_random_calls(name, device):
    failures = []
    for number in range(fuzz.OPERATORS[name].cases):
        outcome, failure = fuzz.run_number(name, SEED, number, device.type)
        if outcome.failure is not None:
            failures.append(failure)
    if failures:
        pytest.fail(f"{len(failures)} cases, OXIWARP_SEED={SEED}. The first:\n{failures[0]}", pytrace=False)


def test_cases_repeat():
    """If a random case runs again, or its recorded random choices are replayed, it has the same arguments and
    results."""
    operator, key = fuzz.OPERATORS["rms_norm"], fuzz.key_of("rms_norm", 3, 5)
    first, again = fuzz.run_case(operator, key), fuzz.run_case(operator, key)
    replayed = fuzz.run_case(operator, key, first.choices)
    for other in (again, replayed):
        assert other.choices == first.choices and other.worst == first.worst
        assert torch.equal(other.case.tensors["x"], first.case.tensors["x"])


# The following functions are or return intentionally wrong operators. A wrong operator takes the correct
# operator and the arguments of a call. It returns a wrong result or has a wrong gradient or side effect.


def first_result(change):
    """Return a wrong operator that applies `change` to the first result."""

    def wrong(right, *args, **options):
        y = right(*args, **options)
        if isinstance(y, tuple):
            return (change(y[0]), *y[1:])
        return change(y)

    return wrong


def one_element(y):
    y = y.clone()
    y.view(-1)[-1:] += 1e-3
    return y


def another_row(right, x, *args, **options):
    return right(x.roll(1, 0) if x.dim() > 1 else x, *args, **options)


def without_gradient(name):
    def wrong(right, **arguments):
        x = arguments[name]
        return right(**{**arguments, name: x if x is None else x.detach()})

    return wrong


def scaled_gradient(right, x, **options):
    y = right(x, **options)
    return y + 0.02 * (x - x.detach()) if x.requires_grad and "out" not in options else y


def writes_beside_out(right, x, out=None, **options):
    if out is None:
        return right(x, **options)
    y = right(x, out=out, **options)
    store = y.as_strided((y.untyped_storage().nbytes() // y.element_size(),), (1,), 0)
    at = y.storage_offset() + sum((size - 1) * stride for size, stride in zip(y.shape, y.stride(), strict=True)) + 1
    store[at : at + 1] = 0.0
    return y


def forgets_out(right, x, out=None, **options):
    y = right(x, **options)
    if out is not None and y.numel():
        out.copy_(y)
        out.view(-1)[-1] = 5.0 if out.is_contiguous() else out.view(-1)[-1]
    return y if out is None else out


class Counts:
    """An intentionally wrong operator: in every second call, it changes the last bit of its float32
    results."""

    def __init__(self):
        self.calls = 0

    def __call__(self, right, x, **options):
        self.calls += 1
        y = right(x, **options)
        return torch.nextafter(y, y + 1) if self.calls % 2 and y.dtype == torch.float32 else y


def writes_to_input(right, x, **options):
    y = right(x, **options)
    if not x.requires_grad and x.numel() and x.dim():
        x.narrow(0, 0, 1).fill_(2.0)
    return y


def other_under_vmap(right, x, **options):
    y = right(x, **options)
    return y + 1 if torch._C._functorch.is_functorch_wrapped_tensor(x) else y


def refuses_strides(right, x, **options):
    if x.dim() > 2:
        raise RuntimeError("layer_norm: x of shape has strides: two strides must reach all its rows")
    return right(x, **options)


def causal_by_one(right, causal=False, window=None, **options):
    if causal and window is None:
        return right(causal=False, window=(None, 1), **options)
    return right(causal=causal, window=window, **options)


def other(**changed):
    """Return a wrong operator that replaces the options in `changed`."""
    return lambda right, *args, **options: right(*args, **{**options, **changed})


def tail_of_packed(right, cu_seqlens=None, **options):
    """Call attention wrongly: treat the padding tokens after the last packed sequence as one more sequence."""
    if isinstance(cu_seqlens, torch.Tensor) and cu_seqlens[-1] < len(options["q"]) and options["layout"] == "bshd":
        end = cu_seqlens.new_tensor([len(options["q"])])
        cu_seqlens = torch.cat((cu_seqlens, end))
    return right(cu_seqlens=cu_seqlens, **options)


def counts_ignored(right, target=None, **options):
    """Compute a wrong mean loss: divide by the number of all rows, including the ignored rows."""
    loss = right(target=target, **options)
    if options["reduction"] != "mean" or options["return_lse"] or not target.numel():
        return loss
    return loss * (target != options["ignore_index"]).float().mean()


MUTANTS = {
    "one element": ("softmax", first_result(one_element)),
    "a small factor": ("gelu", first_result(lambda y: y * 1.00001)),
    "no NaN": ("softmax", first_result(lambda y: y.nan_to_num(0.0))),
    "no infinity": ("gated_residual", first_result(lambda y: y.clamp(-3e38, 3e38) if y.dtype != torch.float16 else y)),
    "another dtype": ("silu", first_result(lambda y: y.float())),
    "another row": ("rms_norm", another_row),
    "NaN in all rows": ("add_rms_norm", first_result(lambda y: y + 0 * y.sum())),
    "weight without a gradient": ("layer_norm", without_gradient("weight")),
    "scale without a gradient": ("ada_norm", without_gradient("scale")),
    "values without a gradient": ("attention", without_gradient("v")),
    "gradient 2 % off": ("silu", scaled_gradient),
    "beside out": ("gelu_tanh", writes_beside_out),
    "one element of out": ("rms_norm", forgets_out),
    "bits of a second call": ("softmax", Counts()),
    "writes to an input": ("gelu_new", writes_to_input),
    "under vmap": ("gelu_fast", other_under_vmap),
    "refuses strides": ("layer_norm", refuses_strides),
    "no eps": ("rms_norm", other(eps=0.0)),
    "no bias of a norm": ("rms_norm", other(bias=None)),
    "rounds before the weight": ("rms_norm", other(rounding="before_weight")),
    "mode exact": ("swiglu", other(mode="exact")),
    "no clip": ("gated_residual", other(clip=False)),
    "tanh for erf": ("geglu", other(approximate="tanh")),
    "one rounding": ("sigmoid_and_mul", other(mode="fast")),
    "threshold 0": ("fatrelu_and_mul", other(threshold=0.0)),
    "causal by one key": ("attention", causal_by_one),
    "no softcap": ("attention", other(softcap=None)),
    "no mask": ("attention", other(mask=None)),
    "padding of packed sequences": ("attention", tail_of_packed),
    "a mean of all rows": ("cross_entropy", counts_ignored),
    "no smoothing": ("cross_entropy", other(label_smoothing=0.0)),
    "no z_loss": ("cross_entropy", other(z_loss=0.0)),
    "no weights of classes": ("cross_entropy", other(weight=None)),
    "no bias": ("linear", other(bias=None)),
    "no gate of a norm": ("norm_gated_residual", other(gate=None)),
    "no epilogue": ("linear", other(epilogue=None)),
    "no gate of a residual": ("linear", other(gate=None)),
    "more roundings of a product": ("linear", other(mode="exact")),
    "matrix without a gradient": ("linear", without_gradient("weight")),
    "bias of an 8-bit product": ("linear_fp8", other(bias=None)),
    "scale of a weight": ("linear_fp8", lambda right, weight_scale, **o: right(weight_scale=1.5 * weight_scale, **o)),
    "no blocks": ("quantize_fp8", other(block=None)),
    "one scale off": ("quantize_fp8", lambda right, **options: (lambda y, s: (y, s * 1.0001))(*right(**options))),
    "other pairs": ("rope", other(interleaved=False)),
    "tables without positions": ("rope", other(positions=None)),
    "norm without positions": ("qk_norm_rope", other(positions=None)),
    "theta": ("rope_1d", other(theta=10001.0)),
    "theta of a grid": ("rope_3d", other(theta=10000.0)),
    "norm per head": ("qk_norm_rope", other(across_heads=False)),
    "another norm": ("qk_norm_rope", other(norm="rms_norm")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_fuzzer_notices(mutant, monkeypatch):
    """For each intentionally wrong operator, at least one of `MUTANT_CASES` random cases fails."""
    name, wrong = MUTANTS[mutant]
    right = getattr(oxiwarp, name)

    def mutated(*args, **options):
        return wrong(right, *args, **options)

    mutated.__signature__ = inspect.signature(right)
    monkeypatch.setattr(oxiwarp, name, mutated)
    for number in range(MUTANT_CASES):
        outcome, _ = fuzz.run_number(name, 1, number, smaller=False)
        if outcome.failure is not None:
            return
    pytest.fail(f"{MUTANT_CASES} cases of {name} passed")


def test_small_cases(monkeypatch):
    """The fuzzer simplifies a failing case to a smaller case that also fails. It reports this case, and the
    command that runs it again."""
    right = oxiwarp.softmax
    monkeypatch.setattr(oxiwarp, "softmax", lambda x, log=False: one_element(right(x, log=log)))
    number = next(n for n in range(MUTANT_CASES) if fuzz.run_number("softmax", 1, n, smaller=False)[0].failure)
    outcome, described = fuzz.run_number("softmax", 1, number)
    assert outcome.failure is not None
    assert f"python tests/python/fuzz --op softmax --seed 1 --case {number}" in described
    assert "x = float32 [1], strides [1]: [" in described


def test_command(monkeypatch, capsys):
    """The fuzzer's command exits with 1 if a case failed, and otherwise with 0."""
    assert main(["--seconds", "1", "--op", "silu", "--seed", "1"]) == 0
    assert "silu" in capsys.readouterr().out
    assert main(["--op", "silu", "--seed", "1", "--case", "4"]) == 0
    assert "silu, seed 1, case 4: " in capsys.readouterr().out
    right = oxiwarp.silu
    monkeypatch.setattr(oxiwarp, "silu", lambda x, *args, out=None, **options: one_element(right(x, *args, **options)))
    assert main(["--seconds", "2", "--op", "silu", "--seed", "1"]) == 1
    assert "python tests/python/fuzz --op silu --seed 1 --case " in capsys.readouterr().out
