"""Benchmarks of the gradients of `ada_norm`, residuals, activations, softmax and cross-entropy. They are
derived from the benchmarks of the forward passes.

The gradient of RoPE is not measured. The benchmark counts the bytes of all inputs of the forward pass, but the backward
pass of RoPE does not read all of them. The reported bandwidth would be too high.
"""

from dataclasses import replace

from forms import ONE_ROUNDING, Chain, Form, Inputs, Shape, Source, tuple_of

from . import activations, ada_norm, gated_activations, gated_residual, losses, mochi


def _gradient_of(
    forms: tuple[Form, ...],
    op: str,
    case: tuple[str, Shape],
    gradient: str = "",
    constants: tuple[str, ...] = (),
) -> Form:
    """Create the benchmark of an op's gradient from the first benchmark of its forward pass. The op runs in
    its default mode."""
    return _derived(next(form for form in forms if form.op == op), op, (case,), gradient, constants)


def _derived(
    form: Form, op: str, cases: tuple[tuple[str, Shape], ...], gradient: str = "", constants: tuple[str, ...] = ()
) -> Form:
    def inputs(source: Source, shape: Shape) -> Inputs:
        given = form.inputs(source, shape)
        results = dict(zip(("grad", "grad2"), tuple_of(form.eager(**given)), strict=False))
        return given | {name: source.normal(*result.shape, dtype=result.dtype) for name, result in results.items()}

    return replace(
        form,
        op=f"{op}_backward",
        cases=cases,
        inputs=inputs,
        ours=form.call(form.modes[0]),
        claims={"": ONE_ROUNDING},
        peers={},
        real=None,
        floor=None,
        chunked=False,
        backward=True,
        constants=constants,
        gradient=gradient,
    )


def _gradient_of_residual(form: Form, branch: str, cases: tuple[tuple[str, Shape], ...], gradient: str) -> Form:
    """Create the benchmark of the gradients of a residual's branch and gate.

    The backward pass does not read the residual `x`, and the gradient of `x` is the incoming gradient. The inputs
    therefore do not contain `x`. In the forward pass, the output of the branch is used as `x`, because its values have
    no effect on the gradients. `branch` is the name of the branch's operand.
    """

    def with_x(chain: Chain) -> Chain:
        return lambda **given: chain(x=given[branch].detach(), **given)

    def inputs(source: Source, shape: Shape) -> Inputs:
        given = form.inputs(source, shape)
        return {name: tensor for name, tensor in given.items() if name != "x"}

    chains = {name: with_x(getattr(form, name)) for name in ("eager", "reference")}
    ours = with_x(form.call(form.modes[0]))
    without_x = replace(form, inputs=inputs, ours=ours, claims={"": ONE_ROUNDING}, **chains)
    return _derived(without_x, form.op, cases, gradient)


PER_GROUP, WITH_FLOAT32, *_, PER_ROW, _ = gated_residual.FORMS
_, RESIDUAL, RESIDUAL_AND_NORM, *_ = mochi.FORMS
FAMILY = "backward"
FORMS = (
    _gradient_of(ada_norm.FORMS, "ada_norm", ("Flux width", (1, 32768, 3072)), "layer_norm_backward"),
    _gradient_of_residual(
        PER_GROUP, "y", (("Flux", (1, 4608, 3072)), ("Flux width, large", (1, 32768, 3072))), "gated_residual_backward"
    ),
    _gradient_of_residual(WITH_FLOAT32, "y", (("Wan 14B", (1, 32760, 5120)),), "gated_residual_backward"),
    _gradient_of_residual(PER_ROW, "y", (("large", (1, 65536, 4096)),), "gated_residual_backward"),
    _gradient_of_residual(RESIDUAL, "x_res", mochi.CASES, "rms_norm_backward"),
    _derived(RESIDUAL_AND_NORM, RESIDUAL_AND_NORM.op, mochi.CASES, "rms_norm_backward"),
    _gradient_of(activations.FORMS, "gelu_tanh", ("Flux", (1, 4608, 12288)), "activation_backward"),
    _gradient_of(gated_activations.FORMS, "geglu", ("SDXL", (2, 4096, 2560)), "gated_activation_backward"),
    _gradient_of(losses.FORMS, "softmax", ("wide rows", (1, 8192, 32768))),
    _gradient_of(losses.FORMS, "cross_entropy", ("Gemma 3 vocabulary", (1, 2048, 262144)), constants=("target",)),
    _derived(losses.FORMS[-1], "cross_entropy", losses.FORMS[-1].cases[:1], constants=("target", "weight")),
)
