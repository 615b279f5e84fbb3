"""The matrix product of 8-bit floats with scales: `torch.ops.oxiwarp.linear_fp8` and its public function."""

import torch
from torch import Tensor

from ._product import has_one_distance, matrix
from ._register import (
    OPTIONAL,
    define,
    dtype_name,
    explain,
    needs_grad,
    refuse_gradients,
    refuse_types,
    write,
)
from ._roles import Role

BLOCK = 128
K_MULTIPLE, N_MULTIPLE = 16, 8
"""K and N are multiples of these numbers, so that the rows of contiguous matrices are multiples of 16 bytes."""
ACCUMULATIONS = ("float32", "fast")
DTYPES = (torch.bfloat16, torch.float16)


def _check(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    fast: bool,
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> tuple[int, ...]:
    """Return the shape of the result, which has the dtype `dtype`. Raise RuntimeError if the kernels do not support
    one of the inputs. The check reads only shapes, dtypes and devices.
    """
    named = {"x_scale": x_scale, "weight": weight, "weight_scale": weight_scale, "bias": bias, "out": out}
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    for name, tensor in given.items():
        if tensor.device != x.device:
            raise RuntimeError(f"linear_fp8: {name} is on {tensor.device}, expected {x.device}, the device of x")
    if dtype not in DTYPES:
        raise RuntimeError(f"linear_fp8: out is {dtype_name(dtype)}, expected f16 or bf16")
    fp8 = torch.float8_e4m3fn
    dtypes = {"x": fp8, "weight": fp8, "bias": dtype, "x_scale": torch.float32, "weight_scale": torch.float32}
    for name, expected in dtypes.items():
        operand = {"x": x, **given}.get(name)
        if operand is not None and operand.dtype != expected:
            raise RuntimeError(f"linear_fp8: {name} is {dtype_name(operand.dtype)}, expected {dtype_name(expected)}")
    rows, depth = _sizes(x, weight)
    shape = (*x.shape[:-1], rows)
    row_blocks = -(-rows // BLOCK)
    per_block = weight_scale.shape[:1] == (row_blocks,) and (rows > 0 or weight_scale.shape[-1] != 1)
    blocks = -(-depth // BLOCK) if per_block else 1
    # The kernels check the shapes in this order.
    for name, wanted in (
        ("out", shape),
        ("bias", (rows,)),
        ("x_scale", (*x.shape[:-1], blocks)),
        ("weight_scale", (row_blocks if per_block else rows, blocks)),
    ):
        if name in given and given[name].shape != wanted:
            raise RuntimeError(f"linear_fp8: {name} has shape {list(given[name].shape)}, expected {list(wanted)}")
    if per_block and fast:
        raise RuntimeError("linear_fp8: fast accumulation needs scales per row, and the scales are per block")
    return shape


def _sizes(x: Tensor, weight: Tensor) -> tuple[int, int]:
    """Return N and K. Raise RuntimeError if the kernels do not support the shapes of the matrices."""
    depth = x.shape[-1] if x.dim() else 0
    if depth == 0 or depth % K_MULTIPLE != 0:
        allowed = f"[..., K] with K a positive multiple of {K_MULTIPLE}"
        raise RuntimeError(f"linear_fp8: x has shape {list(x.shape)}, expected {allowed}")
    rows = weight.shape[0] if weight.dim() == 2 else -1
    allowed = f"[{rows if rows >= 0 else 'N'}, {depth}]"
    if rows < 0 or weight.shape[1] != depth:
        raise RuntimeError(f"linear_fp8: weight has shape {list(weight.shape)}, expected {allowed}")
    if rows % N_MULTIPLE != 0:
        allowed = f"[N, {depth}] with N a multiple of {N_MULTIPLE}"
        raise RuntimeError(f"linear_fp8: weight has shape {list(weight.shape)}, expected {allowed}")
    return rows, depth


def _fake(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, fast: bool, f16: bool
) -> Tensor:
    dtype = torch.float16 if f16 else torch.bfloat16
    return x.new_empty(_check(x, x_scale, weight, weight_scale, bias, fast, dtype), dtype=dtype)


def _fake_out(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None, fast: bool, out: Tensor
) -> None:
    _check(x, x_scale, weight, weight_scale, bias, fast, out.dtype, out)


_ARGUMENTS = "Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale, Tensor? bias, bool fast"
_ROLES = {
    "x": Role.QUANTIZED,
    "x_scale": Role.SCALES,
    "weight": Role.QUANTIZED_MATRIX,
    "weight_scale": Role.MATRIX_SCALES,
    "bias": Role.BIAS,
}

op = define(f"linear_fp8({_ARGUMENTS}, bool f16) -> Tensor", _fake, **_ROLES)
# The dtype of the result is the dtype of `out`.
op_out = define(f"linear_fp8_out({_ARGUMENTS}, Tensor(a!) out) -> ()", _fake_out, **_ROLES, out=Role.OUTPUT)


def _scales(scales: Tensor) -> Tensor:
    """Return `scales`, or a contiguous copy if the kernels cannot read the scales with their strides."""
    if scales.dim() == 0 or scales.is_contiguous() or (scales.shape[-1] > 1 and has_one_distance(scales)):
        return scales
    return scales.contiguous()


def linear_fp8(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    accumulate: str = "float32",
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
) -> Tensor:
    """Compute the matrix product of 8-bit floats with scales: `(x * x_scale) @ (weight * weight_scale).T + bias`.

    `quantize_fp8` makes `x` and `x_scale`, and also `weight` and `weight_scale` with scales per row. With scales per
    block, each scale multiplies its 128 columns of `x`, or its 128 x 128 elements of `weight`. CUDA tensors need a
    Hopper GPU, such as H100 or H200. CPU tensors run on the CPU executor. The kernels have not run on a GPU yet: their
    results were checked only on the CPU executor.

    Args:
        x (Tensor): float8_e4m3fn, shape `[..., K]`, on the CPU or a CUDA device. K is a multiple of 16, and at least
            16. The number of rows may be 0. `x` may have any strides. If its last stride is not 1, or if `Tensor.view`
            cannot merge all dimensions except the last, a contiguous copy is made first. If no copy is made, the
            address of each row must be a multiple of 16 bytes.
        x_scale (Tensor): float32. `[..., 1]` is one scale per row, and `[..., ceil(K / 128)]` one scale per row and
            block of 128 columns. These are the scales of `quantize_fp8`. They may have any strides, and are copied if
            the kernels cannot read them with these strides.
        weight (Tensor): float8_e4m3fn, shape `[N, K]`. N is a multiple of 8. For the strides of `weight`, the rules are
            those for `x`.
        weight_scale (Tensor): float32, with any strides, as for `x_scale`. `[N, 1]` is one scale per row.
            `[ceil(N / 128), ceil(K / 128)]` is one scale per block of 128 rows and 128 columns. Either both operands
            have scales per row, or both have scales per block.
        bias (Tensor | None): shape `[N]`, contiguous, in the dtype `out_dtype`.
        accumulate (str): "float32" adds the sums of 128 products in float32. "fast" adds all products in the
            accumulator of the tensor core, which has fewer bits. It needs scales per row.
        out_dtype (torch.dtype): dtype of the result, torch.bfloat16 or torch.float16.
        out (Tensor | None): tensor with the shape and dtype of the result, and the device of `x`, to which the result
            is written. It may be a slice of a wider buffer. Its last stride must be 1, `Tensor.view` must be able to
            merge all dimensions before the last, and the address of each row must be a multiple of 16 bytes. It must
            not overlap an input.

    Returns:
        `out` if it is given. Otherwise, a contiguous Tensor with the dtype `out_dtype` and the shape `[..., N]`.

    Raises:
        RuntimeError: A shape, dtype, stride or device is not supported; the message names the argument, its value and
            the expected value. Also raised if an input requires grad, and in forward-mode AD. For CUDA tensors, also
            raised if the GPU is not a Hopper GPU or the CUDA driver is missing.
        ValueError: `accumulate` or `out_dtype` has an unknown value.
        TypeError: `x`, `x_scale`, `weight`, `weight_scale`, `bias` or `out` is not a tensor.
        torch.OutOfMemoryError: The result does not fit in GPU memory.

    Note:
        Exactness: A tensor core adds the products of a row of `x` and a row of `weight` in steps of 32 elements of K.
            Its accumulator keeps 14 significant bits. With `accumulate="float32"`, each accumulator adds the products
            of 128 elements, and these sums are added in float32. With `accumulate="fast"`, one accumulator adds all
            products, and the error grows with K. Scales per row are applied to the sum in float32:
            `x_scale * (weight_scale * sum)`. Scales per block are applied to the sum of each block of 128 elements. The
            bias is added in float32, and the result is rounded once. For at most 64 rows, "fast" computes the same as
            "float32". Apart from this, a row's result does not depend on the values or the number of the other rows.
        Gradients: There is no gradient, because fp8 is for inference. If an input requires grad, and in forward-mode
            AD, the function raises RuntimeError.
        Blocks of a weight: To quantize a weight with one scale per 128 x 128 elements, make each block a row of
            `quantize_fp8`, as the last example does.

    Source:
        `torch._scaled_mm`; DeepGEMM.

    Example:
        >>> x, x_scale = oxiwarp.quantize_fp8(torch.tensor([1.0, 2.0, 4.0, 8.0]).repeat(4))
        >>> weight, weight_scale = oxiwarp.quantize_fp8(torch.eye(8, 16))
        >>> oxiwarp.linear_fp8(x, x_scale, weight, weight_scale)
        tensor([1., 2., 4., 8., 1., 2., 4., 8.], dtype=torch.bfloat16)
        >>> def quantize_blocks(weight):
        ...     rows, columns = weight.shape
        ...     padded = torch.nn.functional.pad(weight, (0, -columns % 128, 0, -rows % 128))
        ...     blocks = padded.unflatten(0, (-1, 128)).unflatten(2, (-1, 128)).transpose(1, 2)
        ...     values, scales = oxiwarp.quantize_fp8(blocks.flatten(2))
        ...     values = values.view(blocks.shape).transpose(1, 2).reshape(padded.shape)
        ...     return values[:rows, :columns].contiguous(), scales[..., 0]
        >>> x, x_scale = oxiwarp.quantize_fp8(torch.ones(1, 144), block=128)
        >>> weight, weight_scale = quantize_blocks(torch.eye(8, 144))
        >>> oxiwarp.linear_fp8(x, x_scale, weight, weight_scale)
        tensor([[1., 1., 1., 1., 1., 1., 1., 1.]], dtype=torch.bfloat16)
    """
    operands = (x, x_scale, weight, weight_scale)
    if not (all(isinstance(tensor, Tensor) for tensor in operands) and isinstance(bias, OPTIONAL)):
        named = {"x": x, "x_scale": x_scale, "weight": weight, "weight_scale": weight_scale}
        refuse_types("linear_fp8", named, {"bias": bias})
    if not isinstance(out, OPTIONAL):
        refuse_types("linear_fp8", {}, {"out": out})
    if accumulate not in ACCUMULATIONS:
        raise ValueError(f"linear_fp8: accumulate is {accumulate!r}, expected 'float32' or 'fast'")
    if out_dtype not in DTYPES:
        raise ValueError(f"linear_fp8: out_dtype is {out_dtype!r}, expected torch.bfloat16 or torch.float16")
    if needs_grad(*operands, bias, out):
        refuse_gradients(
            "linear_fp8", x=x, x_scale=x_scale, weight=weight, weight_scale=weight_scale, bias=bias, out=out
        )
    if out is not None and out.dtype is not out_dtype:
        expected = dtype_name(out_dtype)
        raise RuntimeError(f"linear_fp8: out is {dtype_name(out.dtype)}, expected {expected}, the out_dtype")
    try:
        arguments = (matrix(x), _scales(x_scale), matrix(weight), _scales(weight_scale), bias, accumulate == "fast")
        if out is not None:
            write("linear_fp8", op_out, arguments, (out,), False)
            return out
        return op(*arguments, out_dtype is torch.float16)
    except RuntimeError as error:
        # The result has the size of this many tensors like `x`.
        strided = weight.dim() == 2 and not x.is_nested and x.dim() and x.numel()
        count = -(-2 * weight.shape[0] // x.shape[-1]) if strided and out is None else 0
        others = {"x_scale": x_scale, "weight": weight, "weight_scale": weight_scale, "bias": bias, "out": out}
        explain(error, "linear_fp8", count, x, **others)
        raise


__all__ = ["linear_fp8"]
