"""Quantization to 8-bit floats: `torch.ops.oxiwarp.quantize_fp8` and its public function."""

import math

import torch
from torch import Tensor

from ._register import (
    check_rows,
    define,
    define_lazy,
    dtype_name,
    explain,
    needs_grad,
    refuse_gradients,
    refuse_types,
    write,
)
from ._roles import Role

BLOCK = 128
ROLES = {"out": Role.OUTPUT}
DTYPES = {torch.float8_e4m3fn: False, torch.float8_e5m2: True}
_NAMES = " or ".join(map(dtype_name, DTYPES))


def scales_layout(x: Tensor, per_block: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the strides of the scales of `x`. The Rust function `Fp8Scaling::layout` returns the
    same.
    """
    lead = x.shape[:-1]
    strides = x.new_empty(lead).stride()  # a meta tensor, as this function is called by fake kernels
    if not per_block:
        return (*lead, 1), (*strides, 1)
    return (*lead, -(-x.shape[-1] // BLOCK)), (*strides, -(-math.prod(lead) // 4) * 4)


def _fake(x: Tensor, per_block: bool, e5m2: bool) -> tuple[Tensor, Tensor]:
    check_rows("quantize_fp8", x, None)
    shape, strides = scales_layout(x, per_block)
    dtype = torch.float8_e5m2 if e5m2 else torch.float8_e4m3fn
    return x.new_empty(x.shape, dtype=dtype), x.new_empty_strided(shape, strides, dtype=torch.float32)


def _fake_out(x: Tensor, per_block: bool, values: Tensor, scales: Tensor) -> None:
    check_rows("quantize_fp8", x, None)
    for name, out in (("values", values), ("scales", scales)):
        if out.device != x.device:
            raise RuntimeError(f"quantize_fp8: {name} is on {out.device}, expected {x.device}, the device of x")
    if values.dtype not in DTYPES:
        raise RuntimeError(f"quantize_fp8: values is {dtype_name(values.dtype)}, expected {_NAMES}")
    if scales.dtype is not torch.float32:
        raise RuntimeError(f"quantize_fp8: scales is {dtype_name(scales.dtype)}, expected f32")
    for name, out, expected in (
        ("scales", scales, scales_layout(x, per_block)[0]),
        ("values", values, x.shape),
    ):
        if out.shape != expected:
            raise RuntimeError(f"quantize_fp8: {name} has shape {list(out.shape)}, expected {list(expected)}")


op = define(
    "quantize_fp8(Tensor x, bool per_block, bool e5m2) -> (Tensor, Tensor)",
    _fake,
    x=Role.ROWS,
)
# The dtype of the values is the dtype of `values`.
op_out = define(
    "quantize_fp8_out(Tensor x, bool per_block, Tensor(a!) values, Tensor(b!) scales) -> ()",
    _fake_out,
    x=Role.ROWS,
    values=Role.QUANTIZED,
    scales=Role.SCALES,
)


def _resolve_out(x: Tensor, per_block: bool, values: Tensor, scales: Tensor) -> None:
    for name, out in (("values", values), ("scales", scales)):
        if out.is_neg() or out.is_conj():
            raise RuntimeError(
                f"quantize_fp8: {name} is a lazily negated (or conjugated) view, expected a plain tensor; call "
                ".resolve_neg() first"
            )
    op_out(x.resolve_conj().resolve_neg(), per_block, values, scales)


define_lazy("quantize_fp8_out", _resolve_out)


def quantize_fp8(
    x: Tensor,
    *,
    block: int | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Quantize rows to 8-bit floats: `values = x * (1 / scale)`, with `scale = max(abs(x)) / MAX`.

    `MAX` is the largest value of `dtype`, 448 for float8_e4m3fn. `values * scale` is approximately `x`.

    Args:
        x (Tensor): float32, float16 or bfloat16, shape `[..., N]` with N at least 1, on the CPU or a CUDA device. If
            the last stride is not 1, a contiguous copy is made first. Otherwise, `Tensor.view` must be able to merge
            all dimensions except the last into at most two, as in slices and chunks of a contiguous tensor. The number
            of rows may be 0.
        block (int | None): number of consecutive columns that share a scale: None for all columns of a row, or 128. The
            last block of a row may have fewer columns.
        dtype (torch.dtype): dtype of the values, torch.float8_e4m3fn or torch.float8_e5m2.
        out (tuple[Tensor, Tensor] | None): pair of tensors to which values and scales are written. They have the
            shapes, dtypes and device of the results. The scales may have any strides. The tensors must not overlap each
            other or `x`.

    Returns:
        `(values, scales)`: `out` if it is given. Otherwise, `values` is contiguous and has the shape of `x`. `scales`
        is float32. Without `block`, its shape is `[..., 1]`, and it is contiguous. With `block`, its shape is
        `[..., ceil(N / 128)]`. The scales of one block are contiguous over all rows, and consecutive blocks are
        `ceil(rows / 4) * 4` elements apart. A row's result does not depend on the number of rows.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if the GPU is older than sm_75 or the CUDA driver is missing. Also raised if
            `x` requires grad, and in forward-mode AD.
        ValueError: `block` is neither None nor 128, `dtype` is not an 8-bit dtype of this function, or `out` is not a
            pair.
        TypeError: `x` or an element of `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: Each step is computed in float32 and rounded to nearest even. `scale` is `max(abs(x)) / MAX`, but at
            least 2^-126. The values are `x * (1 / scale)`, rounded to nearest even. Values beyond `MAX` become `MAX`.
            DeepGEMM uses the same formulas, except that its scale is at least 1e-4 / 448. The kernels have not run on a
            GPU yet: their results were checked only on the CPU executor.
        Gradients: There is no gradient, because fp8 is for inference. If `x` requires grad, and in forward-mode AD, the
            function raises RuntimeError.
        Special values: The scale of a row or block of zeros is 2^-126, and its values are 0. If a row or block contains
            NaN, its scale and its values are NaN. If it contains an infinity, its scale is infinite, the value of the
            infinity is NaN, and the values of finite elements are 0.
        Products: `torch._scaled_mm` takes the scales without `block` directly, after `flatten(0, -2)` if `x` has more
            than two dimensions. DeepGEMM takes the scales with `block` directly. `torch._scaled_mm` takes them if the
            number of rows is a multiple of four.

    Source:
        DeepGEMM's `per_token_cast_to_fp8`; Micikevicius et al., "FP8 Formats for Deep Learning" (arXiv:2209.05433).

    Example:
        >>> oxiwarp.quantize_fp8(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))[1]
        tensor([[0.0089]])
    """
    if not isinstance(x, Tensor):
        refuse_types("quantize_fp8", {"x": x}, {})
    if block not in (None, BLOCK):
        raise ValueError(f"quantize_fp8: block is {block!r}, expected None or {BLOCK}")
    if dtype not in DTYPES:
        raise ValueError(f"quantize_fp8: dtype is {dtype!r}, expected torch.float8_e4m3fn or torch.float8_e5m2")
    if needs_grad(x):
        refuse_gradients("quantize_fp8", x=x)
    if out is not None:
        _write(x, block is not None, dtype, out)
        return out
    try:
        return op(x, block is not None, DTYPES[dtype])
    except RuntimeError as error:
        explain(error, "quantize_fp8", 1, x)
        raise


def _write(x: Tensor, per_block: bool, dtype: torch.dtype, out: tuple[Tensor, Tensor]) -> None:
    """Call the operator that writes to the pair `out`. Raise an error unless `out` is a pair of tensors, with values
    of the dtype `dtype`.
    """
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise ValueError("quantize_fp8: out is not a pair, expected the tensors for values and for scales")
    values, scales = out
    if not (isinstance(values, Tensor) and isinstance(scales, Tensor)):
        refuse_types("quantize_fp8", {"out[0]": values, "out[1]": scales}, {})
    if values.dtype is not dtype:
        expected = dtype_name(dtype)
        raise RuntimeError(f"quantize_fp8: values is {dtype_name(values.dtype)}, expected {expected}, the dtype")
    try:
        write("quantize_fp8", op_out, (x, per_block), (values, scales), False)
    except RuntimeError as error:
        explain(error, "quantize_fp8", 0, x, values=values, scales=scales)
        raise


__all__ = ["quantize_fp8"]
