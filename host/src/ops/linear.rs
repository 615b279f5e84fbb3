//! The matrix product `y = x wᵀ + bias`.
use std::num::NonZero;

use kernels_gpu::gemm::mma::params::{LinearParams, MatrixRows, THREADS, WarpTile};
use kernels_gpu::ops::linear::{launch, tiles};

use super::linear_hopper::{Operands, linear_hopper};
use crate::launch::launch_override;
use crate::library::{LaunchSite, library};
use crate::operands::matrix::Matrix;
use crate::operands::overlap::expect_disjoint;
use crate::plan::attention::block_shape;
use crate::{Arch, Device, Dtype, Error, Result, Stream, View, ViewMut};

const OP: &str = "linear";
/// The columns of `x` and the rows of `weight` are multiples of this number, so that rows of all matrices
/// are multiples of 16 bytes.
const MULTIPLE: i64 = 8;
/// Rows of tiles per group of the order of tiles.
const GROUP_ROWS: u32 = 8;

/// A function that launches a kernel.
type LinearLaunch = unsafe fn(LaunchSite, LinearParams) -> Result<()>;
/// A kernel and its tile size.
type PortableKernel = (LinearLaunch, WarpTile);

/// The kernel for tiles of 128 x 128.
const LARGE: PortableKernel = (launch::linear_128x128_smem, tiles::T128);
/// The kernel for tiles of 64 x 64.
const SMALL: PortableKernel = (launch::linear_64x64_smem, tiles::T64);
/// The kernel that supports every alignment.
const GENERAL: PortableKernel = (launch::linear_64x64_general_smem, tiles::T64);

/// Computes `y = x wᵀ + bias`, the formula of `torch.nn.functional.linear`.
///
/// `x` has the shape `[..., K]`, `weight` `[N, K]`, `bias` `[N]`, and `y` `[..., N]`. All have the same
/// dtype, f16 or bf16. `K` and `N` are multiples of 8. The last dimension of each tensor is contiguous.
/// All rows of `x` and of `y` have one distance. Calls are faster if all rows are aligned to 16 bytes.
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
    let inputs = [Some(("x", &x)), Some(("weight", &weight)), bias.as_ref().map(|bias| ("bias", bias))];
    expect_disjoint(OP, ("out", y), &inputs)?;
    if operands.y.rows == 0 || operands.y.columns == 0 {
        return Ok(());
    }
    expect_linear_kernels(device)?;
    let mut skip = launch_override(device).skip;
    if linear_hopper(device, &operands, &mut skip, stream)? {
        return Ok(());
    }
    launch_portable(device, &operands, skip, stream)
}

/// Returns an error if the GPU is older than sm_80. The tensor cores of older GPUs lack the instructions
/// that the kernels use.
fn expect_linear_kernels(device: &Device) -> Result<()> {
    if library(device)?.arch() != Some(Arch::Sm75) {
        return Ok(());
    }
    let why = format!(
        "{} runs the PTX for sm_75, and the kernels need sm_80 or newer; use torch's F.linear",
        device.name()
    );
    Err(Error::Unsupported { op: OP, why })
}

/// Launches a kernel that also runs on GPUs other than Hopper. Of the kernels that support the call, the
/// function skips the first `skip` kernels, and launches the next kernel. If no kernel is left, it launches
/// the general kernel, which supports every call.
fn launch_portable(device: &Device, a: &Operands, skip: usize, stream: Stream) -> Result<()> {
    let tiles_of = |(_, tile): &PortableKernel| {
        let [rows, columns] = [a.y.rows.div_ceil(tile.rows()), a.y.columns.div_ceil(tile.columns())];
        (rows, columns, u64::from(rows) * u64::from(columns))
    };
    // A large tile loads fewer bytes per multiplication, but with few large tiles, some SMs have no work.
    let small = a.y.rows <= tiles::T64.rows()
        || a.y.columns <= tiles::T64.columns()
        || tiles_of(&LARGE).2 < device.multiprocessors().unwrap_or(1).into();
    let able = if small { [SMALL, LARGE] } else { [LARGE, SMALL] };
    let able = if a.x.is_vector() && a.weight.is_vector() { &able[..] } else { &[] };
    let kernel = able.get(skip).unwrap_or(&GENERAL);
    let (tile_rows, tile_columns, count) = tiles_of(kernel);
    let Ok(blocks) = i32::try_from(count) else {
        let expected = "at most 2^31 - 1 tiles of rows and columns";
        return Err(Error::Value { op: OP, arg: "out", got: count as f64, expected });
    };
    let group_rows = NonZero::new(GROUP_ROWS.min(tile_rows)).expect("there are rows");
    let params = LinearParams {
        x: rows_of(&a.x),
        w: rows_of(&a.weight),
        y: a.y.base,
        y_row_bytes: a.y.row_bytes,
        bias: a.bias,
        depth: a.x.columns,
        vector_y: u32::from(a.y.is_vector()),
        tile_rows,
        group_rows,
        group_tiles: group_rows.saturating_mul(NonZero::new(tile_columns).expect("there are columns")),
    };
    let site = LaunchSite::new(device, a.y.dtype, block_shape(blocks as u32, THREADS), stream)?;
    // SAFETY: the kernel accesses only the tensors that its parameters point to. The caller has checked
    // the shape, dtype, strides and device of each of these tensors. The general kernel supports every
    // alignment, and the others are launched only if all rows of `x` and of `weight` are aligned to 16
    // bytes.
    unsafe { (kernel.0)(site, params) }
}

/// Returns an operand as a kernel argument.
fn rows_of(matrix: &Matrix) -> MatrixRows {
    MatrixRows { base: matrix.base.cast_const(), row_bytes: matrix.row_bytes, rows: matrix.rows }
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
