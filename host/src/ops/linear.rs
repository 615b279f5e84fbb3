//! The matrix product `y = x wᵀ + bias`.
use super::linear_hopper::{Operands, linear_hopper};
use crate::launch::launch_override;
use crate::operands::matrix::Matrix;
use crate::operands::overlap::expect_disjoint;
use crate::{Device, Dtype, Error, Result, Stream, View, ViewMut};

const OP: &str = "linear";
/// The columns of `x` and the rows of `weight` are multiples of this number, so that rows of all matrices are
/// multiples of 16 bytes.
const MULTIPLE: i64 = 8;

/// Computes `y = x wᵀ + bias`, the formula of `torch.nn.functional.linear`.
///
/// `x` has the shape `[..., K]`, `weight` `[N, K]`, `bias` `[N]`, and `y` `[..., N]`. All have the same dtype,
/// f16 or bf16. `K` and `N` are multiples of 8. The last dimension of each tensor is contiguous. All rows of
/// `x` and of `y` have one distance, a multiple of 8 elements.
///
/// The products of a row and a column are added in f32, in the order of K. The bias is added in f32. The sum
/// is rounded once.
///
/// # Errors
/// Returns an error, and writes nothing, if a shape, dtype or stride is not supported or if `y` overlaps
/// another argument. [`Error`](crate::Error) lists further errors, such as those of the GPU driver.
pub fn linear(
    device: &Device,
    x: View,
    weight: View,
    bias: Option<View>,
    y: ViewMut,
    stream: Stream,
) -> Result<()> {
    let y = y.as_view();
    let operands = check(device, &x, &weight, bias.as_ref(), y)?;
    let mut skip = launch_override(device).skip;
    let inputs = [Some(("x", &x)), Some(("weight", &weight)), bias.as_ref().map(|bias| ("bias", bias))];
    expect_disjoint(OP, ("out", y), &inputs)?;
    if operands.y.rows == 0 || operands.y.columns == 0 || linear_hopper(device, &operands, &mut skip, stream)?
    {
        return Ok(());
    }
    let why = format!("{} is no Hopper GPU, or a tensor is not aligned to 16 bytes", device.name());
    Err(Error::Unsupported { op: OP, why })
}

/// Checks the tensors of a call.
fn check(device: &Device, x: &View, weight: &View, bias: Option<&View>, y: &View) -> Result<Operands> {
    let dtype = x.dtype();
    if !matches!(dtype, Dtype::F16 | Dtype::Bf16) {
        return Err(Error::Dtype { op: OP, arg: "x", got: dtype, expected: "f16 or bf16".into() });
    }
    for (arg, view) in [("x", Some(x)), ("weight", Some(weight)), ("bias", bias), ("out", Some(y))] {
        if let Some(view) = view {
            view.expect_on(OP, arg, device)?;
            view.expect_dtype(OP, arg, dtype)?;
        }
    }
    let depth = x.shape().last().copied().unwrap_or(0);
    let shape_error =
        |arg, view: &View, expected| Err(Error::Shape { op: OP, arg, got: view.shape().to_vec(), expected });
    if depth == 0 || depth % MULTIPLE != 0 {
        return shape_error("x", x, format!("[..., K] with K a positive multiple of {MULTIPLE}"));
    }
    let &[columns, _] = weight.shape() else {
        return shape_error("weight", weight, format!("[N, {depth}]"));
    };
    weight.expect_shape(OP, "weight", &[columns, depth])?;
    if columns % MULTIPLE != 0 {
        return shape_error("weight", weight, format!("[N, {depth}] with N a multiple of {MULTIPLE}"));
    }
    let mut shape = x.shape().to_vec();
    shape.splice(x.shape().len() - 1.., [columns]);
    y.expect_shape(OP, "out", &shape)?;
    if let Some(bias) = bias {
        bias.expect_shape(OP, "bias", &[columns])?;
        if bias.strides()[0] != 1 && columns > 1 {
            return Err(bias.bad_strides(OP, "bias", "it must be contiguous"));
        }
    }
    Ok(Operands {
        x: Matrix::of(OP, "x", x)?,
        weight: Matrix::of(OP, "weight", weight)?,
        y: Matrix::of(OP, "out", y)?,
        bias: bias.map_or(std::ptr::null(), |bias| bias.ptr().cast()),
    })
}
