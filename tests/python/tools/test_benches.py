"""Tests of the torch code and the float64 references with which the benchmarks compare oxiwarp. The tests
need no GPU.

The tests use few tokens. They find a wrong formula before a benchmark runs on a GPU.
"""

import inspect
import sys

import pytest
import torch
import torch.nn.functional as F
from checkout import ROOT

sys.path.append(str(ROOT / "benches" / "python"))

import exactness  # noqa: E402
import ops  # noqa: E402
from bench import right_providers  # noqa: E402
from check import EAGER_LIMIT, LEAST, error_of, run  # noqa: E402
from environment import PACKAGES  # noqa: E402
from forms import BIT_EXACT, NO_MODE, Form, Inputs, Shape, Source, parts, prepare, tuple_of  # noqa: E402
from ops import FORMS, timed_cases  # noqa: E402
from providers import has_ours, name_of  # noqa: E402
from results import Results  # noqa: E402

import oxiwarp  # noqa: E402

TOKENS = 7
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def name(form: Form) -> str:
    return f"{form.op}-{form.chain}"


CPU = torch.device("cpu")
# Factor by which the error limit is multiplied. On the CPU, float32 results have larger errors. The reasons
# are sums of up to 262,144 terms, other rounding errors of exp and tanh, and large angles.
SLACK = {torch.bfloat16: 1, torch.float32: 8}


def few(form: Form) -> Shape:
    """Return the first benchmark shape of an op, reduced to `TOKENS` tokens."""
    _, shape = form.cases[0]
    return (shape[0], TOKENS, *shape[2:])


def inputs_of(form: Form, dtype: torch.dtype) -> Inputs:
    torch.manual_seed(0)
    return form.inputs(Source(CPU, dtype), few(form))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=name)
def test_chain_and_reference_are_the_same_formula(form, dtype):
    inputs = inputs_of(form, dtype)
    error = error_of(form, few(form), inputs, run(form, form.eager, inputs))
    assert error.within(SLACK[dtype] * EAGER_LIMIT * LEAST[dtype]), error


@pytest.mark.parametrize("form", [form for form in FORMS if form.library], ids=lambda form: form.op)
def test_library_and_reference_are_the_same_formula(form):
    inputs = inputs_of(form, torch.float32)
    error = error_of(form, few(form), inputs, run(form, form.library[1], inputs))
    assert error.within(SLACK[torch.float32] * EAGER_LIMIT * LEAST[torch.float32]), error


@pytest.mark.parametrize("form", [form for form in FORMS if form.real], ids=name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chain_has_the_bits_of_the_models_own_classes(form, dtype):
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    inputs = inputs_of(form, dtype)
    with torch.no_grad():
        for chain, real in zip(tuple_of(form.eager(**inputs)), tuple_of(form.real(**inputs)), strict=True):
            assert torch.equal(chain, real)


@pytest.mark.parametrize("form", FORMS, ids=name)
def test_ours_is_right(form):
    """In every mode, oxiwarp's result has the shape of the eager result. The error of oxiwarp's result is
    within the error limit of the benchmark."""
    if not has_ours(form):
        pytest.skip(f"{form.function}: not in this build")
    inputs = inputs_of(form, torch.bfloat16)
    eager = run(form, form.eager, inputs)
    for mode in form.modes:
        outputs = run(form, form.call(mode), inputs, eager)
        for x, y in zip(outputs, eager, strict=True):
            assert x.shape == y.shape and x.dtype in (y.dtype, torch.bfloat16), name_of(mode, form)
        error, allowed = (error_of(form, few(form), inputs, results) for results in (outputs, eager))
        assert error.allowed_by(allowed, torch.bfloat16), (name_of(mode, form), error, allowed)


def test_alone():
    """With the option `alone`, the benchmark measures only oxiwarp, in every mode. This is sufficient to
    compare two builds of oxiwarp."""
    form, results = next(form for form in FORMS if len(form.modes) > 1), Results()
    inputs = inputs_of(form, torch.bfloat16)
    right, _ = right_providers(form, few(form), inputs, results, alone=True)
    assert list(right) == ["oxiwarp", "oxiwarp fast"] and not results.wrong


def test_a_wrong_formula_is_found():
    """The accuracy check of the benchmark rejects wrong results: NaN in all elements, and the result for a
    slightly different scale.
    """
    form = next(form for form in FORMS if form.op == "ada_norm")
    inputs = inputs_of(form, torch.bfloat16)
    right = run(form, form.eager, inputs)
    for wrong in (
        lambda scale, **rest: form.eager(scale=scale + 0.05, **rest),
        lambda x, **_: torch.full_like(x, float("nan")),
    ):
        error = error_of(form, few(form), inputs, run(form, wrong, inputs))
        assert not error.within(EAGER_LIMIT * LEAST[torch.bfloat16])
        assert not error.allowed_by(error_of(form, few(form), inputs, right), torch.bfloat16)


@pytest.mark.parametrize("form", [form for form in FORMS if form.chunked], ids=name)
def test_reference_of_parts_is_that_of_the_whole(form, monkeypatch):
    """The float64 reference gives the same results whether it is computed for a few tokens at a time or for
    all at once."""
    inputs = inputs_of(form, torch.float32)
    whole = tuple_of(prepare(form, form.reference, inputs)())
    monkeypatch.setattr("forms.CHUNK", 3 * max(x.numel() for x in inputs.values()) // TOKENS)
    names = dict(enumerate(whole))
    pieces = list(parts({**inputs, **names}, TOKENS, chunked=True))
    if form.op != "rms_norm" or few(form)[0] == 1:
        assert len(pieces) == 3
    for piece in pieces:
        found = tuple_of(form.reference(**{name: x for name, x in piece.items() if isinstance(name, str)}))
        for at, x in enumerate(found):
            torch.testing.assert_close(x, piece[at])


def test_every_op_is_measured_and_has_a_family():
    assert {form.op for form, _, _ in timed_cases(None, quick=False)} == set(ops.OPS) == set(ops.FAMILY_OF)
    quick = [form.op for form, _, _ in timed_cases(None, quick=True)]
    assert quick == list(dict.fromkeys(quick))


@pytest.mark.parametrize("form", [form for form in FORMS if form.timed and not form.backward], ids=name)
def test_both_modes_are_measured_where_there_are_two(form):
    """If a public function has the modes "exact" and "fast", its op is measured in both modes. `linear` without an
    activation or residual is the exception, because its modes give the same result.
    """
    if not has_ours(form):
        pytest.skip(f"{form.function}: not in this build")
    both = "mode" in inspect.signature(getattr(oxiwarp, form.function)).parameters and form.eager is not F.linear
    assert form.modes == (("exact", "fast") if both else (NO_MODE,))


def test_distance_in_units_in_the_last_place():
    ones = torch.ones(4, dtype=torch.bfloat16)
    other = torch.tensor([1.0, 1.0078125, 0.99609375, 1.0], dtype=torch.bfloat16)
    assert exactness.distance(other, ones) == (0.5, 1)
    zeros = torch.tensor([0.0, -0.0, 1e-45])
    assert exactness.distance((zeros, zeros), (zeros, -zeros)) == (0.5, 2)


def test_the_table_names_what_failed():
    form = next(form for form in FORMS if "exact" in form.claims and form.claims["exact"] == BIT_EXACT)
    rows = [
        exactness.Row(form, "exact", "Flux", (1, 2, 3), "bfloat16", "chain", share, ulps)
        for share, ulps in ((1.0, 0), (0.99999999, 1))
    ]
    facts = {"gpu": "a GPU", "date": "2026-11-20", "commit": "0", "versions": dict.fromkeys(PACKAGES, "1")}
    table = exactness.markdown(rows, ["FAIL another"], facts)
    assert "99.99999 %, 1 ulp **FAIL**" in table and "- FAIL another" in table
    assert "**FAIL**" not in exactness.markdown(rows[:1], [], facts).partition("| --- ")[2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", [form for form in FORMS if BIT_EXACT in form.claims.values()], ids=name)
def test_bits_of_eager_where_they_are_promised(form, dtype, cuda):
    if not has_ours(form) or dtype not in form.dtypes:
        pytest.skip("not in this build, or not in this dtype")
    for row in exactness.rows_of(form, cuda, dtype, most=1000):
        assert not row.failed, (row.model, row.mode, row.cell)
