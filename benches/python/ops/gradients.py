"""Benchmarks of the gradients of `ada_norm`, activations, softmax and cross-entropy. They are derived from
the benchmarks of the forward passes.

The gradients of RoPE and gated residuals are not measured. Their backward passes do not read all inputs of
the forward pass, but the benchmark counts the bytes of all inputs. For these gradients, it would report a
bandwidth that is too high.
"""

from dataclasses import replace

from forms import ONE_ROUNDING, Form, Inputs, Shape, Source, tuple_of

from . import activations, ada_norm, gated_activations, losses


def _gradient_of(
    forms: tuple[Form, ...],
    op: str,
    case: tuple[str, Shape],
    gradient: str = "",
    constants: tuple[str, ...] = (),
) -> Form:
    """Create the benchmark of an op's gradient from the first benchmark of its forward pass. The op runs in
    its default mode."""
    form = next(form for form in forms if form.op == op)

    def inputs(source: Source, shape: Shape) -> Inputs:
        given = form.inputs(source, shape)
        (result,) = tuple_of(form.eager(**given))
        return {**given, "grad": source.normal(*result.shape, dtype=result.dtype)}

    return replace(
        form,
        op=f"{op}_backward",
        cases=(case,),
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


FAMILY = "backward"
FORMS = (
    _gradient_of(ada_norm.FORMS, "ada_norm", ("Flux width", (1, 32768, 3072)), "layer_norm_backward"),
    _gradient_of(activations.FORMS, "gelu_tanh", ("Flux", (1, 4608, 12288)), "activation_backward"),
    _gradient_of(gated_activations.FORMS, "geglu", ("SDXL", (2, 4096, 2560)), "gated_activation_backward"),
    _gradient_of(losses.FORMS, "softmax", ("wide rows", (1, 8192, 32768))),
    _gradient_of(losses.FORMS, "cross_entropy", ("Gemma 3 vocabulary", (1, 2048, 262144)), constants=("target",)),
)
