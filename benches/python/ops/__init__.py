"""Every op that is measured, family by family: a family is a plot."""

from collections.abc import Iterator

from forms import Form, Shape

from . import (
    activations,
    ada_norm,
    ada_norm_pair,
    add_rms_norm,
    backward,
    gated_activations,
    gated_residual,
    gated_residual_ada_norm,
    gradients,
    layer_norm,
    losses,
    mochi,
    qk_norm_rope,
    rms_norm,
    rms_norm_gated,
    rope,
    rope_positions,
)

FAMILIES: dict[str, tuple[Form, ...]] = {
    "norms": rms_norm.FORMS + add_rms_norm.FORMS + rms_norm_gated.FORMS + layer_norm.FORMS,
    "modulation": ada_norm.FORMS
    + ada_norm_pair.FORMS
    + gated_residual.FORMS
    + gated_residual_ada_norm.FORMS
    + mochi.FORMS,
    "rope": qk_norm_rope.FORMS + rope.FORMS + rope_positions.FORMS,
    "activations": activations.FORMS + gated_activations.FORMS,
    "losses": losses.FORMS,
    "backward": backward.FORMS + gradients.FORMS,
}
FORMS = tuple(form for forms in FAMILIES.values() for form in forms)
OPS = tuple(dict.fromkeys(form.op for form in FORMS))
FAMILY_OF = {form.op: family for family, forms in FAMILIES.items() for form in forms}


def check_names(only: list[str] | None) -> None:
    """Ends the program where an op that is asked for is none: a run of nothing would look like one that went well."""
    if unknown := sorted(set(only or ()) - set(OPS)):
        raise SystemExit(f"--only {', '.join(unknown)}: no such op; there are {', '.join(OPS)}")


def selected(only: list[str] | None) -> list[Form]:
    """The forms of these ops, or all."""
    return [form for form in FORMS if only is None or form.op in only]


def timed_cases(only: list[str] | None, quick: bool) -> Iterator[tuple[Form, str, Shape]]:
    """Form, model and shape of every measurement; quick: the first of each op."""
    seen = set()
    for form in selected(only):
        for model, shape in form.cases if form.timed else ():
            if quick and form.op in seen:
                continue
            seen.add(form.op)
            yield form, model, shape


__all__ = ["FAMILIES", "FAMILY_OF", "FORMS", "OPS", "check_names", "selected", "timed_cases"]
