"""A gated residual connection: `torch.ops.oxiwarp.gated_residual` and its public function."""

from torch import Tensor

from .._operands import check_modulation, check_types, in_one_dtype, is_exact, summed
from .._register import check_rows, define, explain, needs_grad

CLIP = 65504.0


def _check(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None) -> None:
    check_rows("gated_residual", x, None, y=y)
    check_modulation("gated_residual", "gate", gate, gate_table, x)


def _fake(x: Tensor, y: Tensor, gate: Tensor, gate_table: Tensor | None, exact: bool, clip: bool) -> Tensor:
    _check(x, y, gate, gate_table)
    return x.new_empty(x.shape)


op = define(
    "gated_residual(Tensor x, Tensor y, Tensor gate, Tensor? gate_table, bool exact, bool clip) -> Tensor", _fake
)


def formula(x: Tensor, y: Tensor, gate: Tensor | None, gate_table: Tensor | None, exact: bool, clip: bool) -> Tensor:
    """What the blocks of diffusers compute, in torch's operators."""
    wide, (y, gate) = in_one_dtype(exact, x, y, summed(gate, gate_table))
    total = (wide + (y if gate is None else gate * y)).to(x.dtype)
    return total.clip(-CLIP, CLIP) if clip else total


def gated_residual(
    x: Tensor,
    y: Tensor,
    gate: Tensor,
    *,
    gate_table: Tensor | None = None,
    clip: bool = False,
    mode: str = "exact",
) -> Tensor:
    """`x + gate * y`, in one pass.

    Args:
        x, y: float32, float16 or bfloat16, both of shape `[..., N]` with N at least 1, on one device, with last
            dimension of stride 1.
        gate: broadcasts against `x` and has its last dimension (`[B, 1, N]`, `[B, S, N]`, `[N]`, strided slices), in
            `x`'s dtype or float32. `x`, `y` and gate must be reachable by two strides of rows.
        gate_table: `[N]`, added to the gate in the kernel.
        clip: clamp the sum to ±65504, as Flux and Qwen-Image do in float16.
        mode: "exact" rounds the product and the sum, as torch's operators do in one dtype; with a float32 gate (Wan)
            the sum alone. "fast" rounds the sum alone in any case.

    Returns:
        A contiguous tensor of `x`'s shape and dtype.

    Where a gradient is needed the formula runs in torch's own operators.

    Raises:
        RuntimeError, TypeError, ValueError, torch.OutOfMemoryError: as `ada_norm`.

    Source: the gates of adaLN-Zero, arXiv:2212.09748.
    """
    name = "gated_residual"
    check_types(name, {"x": x, "y": y, "gate": gate}, {"gate_table": gate_table})
    exact = is_exact(name, mode)
    if needs_grad(x, y, gate, gate_table):
        _check(x, y, gate, gate_table)
        return formula(x, y, gate, gate_table, exact, clip)
    try:
        return op(x, y, gate, gate_table, exact, clip)  # type: ignore[no-any-return]
    except RuntimeError as error:
        explain(error, name, 1, x, y=y, gate=gate, gate_table=gate_table)
        raise


__all__ = ["formula", "gated_residual", "op"]
