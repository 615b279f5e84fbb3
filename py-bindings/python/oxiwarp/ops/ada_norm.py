"""Modulated norm, `norm(x) * (1 + scale) + shift`: `torch.ops.oxiwarp.ada_norm` and its public function."""

from typing import Any

from torch import Tensor

from ._checks.rows import check_index, check_modulations, check_norm, is_exact, is_rms
from ._frames import frames_of
from ._function import Function, apply
from ._mixed import plain, widened
from ._modulation_backward import Norm, ada_norm_gradients, modulations
from ._once_differentiable import once
from ._register import OPTIONAL, before_weight, define, explain, needs_grad, refuse_forward_mode, refuse_types
from ._roles import Role


def check(
    op: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mixed: bool = False,
    index: Tensor | None = None,
    **modulations: tuple[Tensor | None, Tensor | None],
) -> None:
    """Raise RuntimeError if the kernels do not support one of the operands of a modulated norm.

    The function `check_modulations` describes `mixed`, `index` and `modulations`.
    """
    check_norm(op, x, weight, bias, eps, mixed)
    check_modulations(op, x, index, mixed, modulations)


def _check(
    x: Tensor,
    scale: Tensor,
    scale_table: Tensor | None,
    shift: Tensor | None,
    shift_table: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    index: Tensor | None,
    eps: float,
) -> None:
    modulations: Any = dict(scale=(scale, scale_table), shift=(shift, shift_table))
    check("ada_norm", x, weight, bias, eps, True, index, **modulations)
    check_index("ada_norm", index, x)


def _fake(
    x: Tensor,
    scale: Tensor,
    scale_table: Tensor | None,
    shift: Tensor | None,
    shift_table: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    index: Tensor | None,
    rms: bool,
    eps: float,
    exact: bool,
    round_before_weight: bool,
) -> Tensor:
    _check(x, scale, scale_table, shift, shift_table, weight, bias, index, eps)
    return x.new_empty(x.shape)


op = define(
    "ada_norm(Tensor x, Tensor scale, Tensor? scale_table, Tensor? shift, Tensor? shift_table, Tensor? weight, "
    "Tensor? bias, Tensor? index, bool rms, float eps, bool exact, bool round_before_weight) -> Tensor",
    _fake,
    x=Role.ROWS,
    scale=Role.MODULATION,
    scale_table=Role.ANY_VECTOR,
    shift=Role.MODULATION,
    shift_table=Role.ANY_VECTOR,
    weight=Role.ANY_VECTOR,
    bias=Role.ANY_VECTOR,
    index=Role.INDEX,
)


class _AdaNorm(Function):
    """Autograd function that saves the operands. The backward recomputes the norm from `x`."""

    @staticmethod
    def forward(
        x: Tensor,
        scale: Tensor,
        scale_table: Tensor | None,
        shift: Tensor | None,
        shift_table: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        rms: bool,
        eps: float,
        exact: bool,
        before: bool,
    ) -> Tensor:
        y: Tensor = op(x, scale, scale_table, shift, shift_table, weight, bias, None, rms, eps, exact, before)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.rms, ctx.eps, _, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, scale_table, shift, shift_table, weight, bias = ctx.saved_tensors
        norm, by = Norm(ctx.rms, ctx.eps, weight, bias), modulations(scale, scale_table, shift, shift_table)
        return *ada_norm_gradients(dy, x, norm, by, None, ctx.needs_input_grad[:7]), None, None, None, None


def ada_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None = None,
    *,
    norm: str = "layer_norm",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    rounding: str = "before_weight",
    scale_table: Tensor | None = None,
    shift_table: Tensor | None = None,
    index: Tensor | None = None,
    mode: str = "exact",
) -> Tensor:
    """Compute a modulated norm over the last dimension: `norm(x) * (1 + scale) + shift`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA device. If
            the last stride is not 1, a contiguous copy is made first.
        scale (Tensor): float32, float16 or bfloat16; broadcasts to `x`. Its last dimension is N. Without a table, it
            may also be 1, or `scale` may have no dimension. Examples are `[B, 1, N]` (per batch), `[B, S, N]` (per
            token), `[N]`, and a slice of `[B, S, 6, N]`. For `x` of shape `[B, S, N]`, another example is `[B, F, 1,
            N]` (per frame). Then F must divide S, and each frame has S / F consecutive tokens. For `x` of shape `[A, B,
            C, N]`, `scale` may be broadcast along the first dimensions (`[B, C, N]`, `[C, N]`). Or it may be broadcast
            along the last dimensions before N (`[A, 1, 1, N]`, `[A, B, 1, N]`). Broadcasting only in the middle (`[A,
            1, C, N]`) or at both ends (`[1, B, 1, N]`) is not supported.
        shift (Tensor | None): tensor that is added last. It may have the shapes and dtypes that `scale` may
            have. If `scale` and `shift` are both broadcast along some, but not all, dimensions before the
            last, both must be broadcast along the same dimensions. `Tensor.view` must be able to merge all
            dimensions of `x` before the last into at most two, and to merge the same dimensions of `scale`
            and `shift`.
        norm (str): "layer_norm" or "rms_norm". RMSNorm is `x * rsqrt(mean(x**2) + eps)`.
        weight (Tensor | None): weight of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        bias (Tensor | None): bias of the norm: float32, float16 or bfloat16, contiguous, shape `[N]`.
        eps (float): added to the variance (LayerNorm) or to the mean of squares (RMSNorm); finite, 0 or more.
        rounding (str): when an RMSNorm rounds in mode "exact". "before_weight" rounds before and after the
            multiplication by the weight, as the RMSNorm modules of diffusers do. "once" rounds only after the
            multiplication, as torch.nn.RMSNorm does. The two also sum the squares of a row in the order of
            these modules. This argument has no effect on LayerNorm.
        scale_table (Tensor | None): vector of shape `[N]` that the kernel adds to `scale`, as in diffusers'
            `scale_shift_table + temb`.
        shift_table (Tensor | None): vector of shape `[N]` that the kernel adds to `shift`.
        index (Tensor | None): int64 or int32, contiguous, shape `x.shape[:-1]`. If it is given,
            `scale` and `shift` have the shape `[R, N]`. A row of `x` then uses the row of both that its integer
            names. A negative integer, or R or more, names row R - 1.
        mode (str): "exact" or "fast". The section "Exactness" describes both.

    Returns:
        Contiguous Tensor with the shape and dtype of `x`. A row of the result depends, in every bit, only on the same
        row of `x`, on this row's scale and shift, and on the norm's parameters.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised in
            forward-mode AD.
        ValueError: `norm`, `rounding` or `mode` has an unknown value.
        TypeError: An operand is not a tensor, or `eps` is not a number.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: "exact" rounds at the same points as the modules of diffusers. If all operands have the
            dtype of `x`, it rounds after the norm, after `1 + scale`, after the product and after the sum. An
            RMSNorm with `rounding="before_weight"` is also rounded before the multiplication by its weight, as
            in diffusers' `RMSNorm`. If an operand has another dtype than `x`, as in Wan, "exact" computes in
            float32 and rounds only the result. "fast" always rounds only the result. In both modes,
            `scale + scale_table` is rounded if `scale` and `scale_table` have one 16-bit dtype. The same holds
            for `shift + shift_table`.
            With `rounding="once"`, a weight in the dtype of `x` and N divisible by 4, the norm has the bits of
            torch.nn.RMSNorm on a GPU, for any number of rows.
        Gradients: All operands have gradients, also the tables. The gradients are computed in float32, as if
            the forward pass had no intermediate roundings. Gradients that are sums over rows are
            deterministic. If consecutive rows of `x` share scale and shift (shape `[B, 1, N]` or `[N]`), one
            pass over the rows computes all gradients. If a gradient is needed, torch's operators first convert
            operands of the other 16-bit dtype, and select rows with `index`. A second
            derivative and forward-mode AD raise RuntimeError.

    Source:
        adaLN of Peebles and Xie, "Scalable Diffusion Models with Transformers" (arXiv:2212.09748).

    Example:
        >>> x, shift = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([0.0, 0.0, 0.0, 10.0])
        >>> oxiwarp.ada_norm(x, torch.ones(4), shift)
        tensor([[-2.6833, -0.8944,  0.8944, 12.6833]])
    """
    name = "ada_norm"
    affine = isinstance(weight, OPTIONAL) and isinstance(bias, OPTIONAL)
    tables = isinstance(scale_table, OPTIONAL) and isinstance(shift_table, OPTIONAL) and isinstance(index, OPTIONAL)
    if not (isinstance(x, Tensor) and isinstance(scale, Tensor) and isinstance(shift, OPTIONAL) and affine and tables):
        others = {"shift": shift, "weight": weight, "bias": bias, "index": index}
        refuse_types(name, {"x": x, "scale": scale}, {**others, "scale_table": scale_table, "shift_table": shift_table})
    if index is None and (frames := frames_of(x, scale, shift)):
        options: Any = dict(norm=norm, weight=weight, bias=bias, eps=eps, rounding=rounding, mode=mode)
        tables_of: Any = dict(scale_table=scale_table, shift_table=shift_table, index=None)
        x, scale, shift = frames.split(x), frames.split(scale), frames.split(shift)
        return ada_norm(x, scale, shift, **options, **tables_of).flatten(-3, -2)
    rms, exact, before = is_rms(name, norm), is_exact(name, mode), before_weight(name, rounding)
    try:
        if needs_grad(x, scale, scale_table, shift, shift_table, weight, bias):
            refuse_forward_mode(name)
            _check(x, scale, scale_table, shift, shift_table, weight, bias, index, eps)
            by = *plain(x, scale, scale_table, index), *plain(x, shift, shift_table, index)
            return apply(_AdaNorm, x, *by, widened(x, weight), widened(x, bias), rms, eps, exact, before)
        return op(x, scale, scale_table, shift, shift_table, weight, bias, index, rms, eps, exact, before)
    except RuntimeError as error:
        named = {"scale": scale, "shift": shift, "scale_table": scale_table, "shift_table": shift_table}
        explain(error, name, 1, x, **named, weight=weight, bias=bias, index=index)
        raise


__all__ = ["ada_norm"]
