//! Host code of four kernels that you can copy. Each module checks the arguments of one kernel and launches
//! it.
pub mod log_sum_exp;
pub mod matmul;
pub mod softplus;
pub mod transpose;

use oxiwarp_runtime::{Arch, Device, Error, Result, View};

/// The PTX that the build script compiles: one text per architecture, with the oldest architecture first.
const PTX: &[(Arch, &str)] = &[
    (Arch::Sm75, include_str!(concat!(env!("OUT_DIR"), "/sm_75.ptx"))),
    (Arch::Sm80, include_str!(concat!(env!("OUT_DIR"), "/sm_80.ptx"))),
    (Arch::Sm90, include_str!(concat!(env!("OUT_DIR"), "/sm_90.ptx"))),
];

/// Checks that `view` is a matrix on `device` with a column stride of 1. Returns the number of rows, the
/// number of columns, and the distance in elements between consecutive rows.
fn matrix(op: &'static str, arg: &'static str, view: &View, device: &Device) -> Result<(u32, u32, u64)> {
    view.expect_on(op, arg, device)?;
    let shape =
        |expected: &str| Err(Error::Shape { op, arg, got: view.shape().to_vec(), expected: expected.into() });
    let (&[rows, cols], &[stride, step]) = (view.shape(), view.strides()) else {
        return shape("[rows, columns]");
    };
    // Kernels add the size of a tile to a 32-bit index. The sum does not overflow if the number of rows or
    // columns is less than 2^31.
    let (Ok(rows), Ok(cols)) = (i32::try_from(rows), i32::try_from(cols)) else {
        return shape("at most 2^31 - 1 rows and columns");
    };
    if step != 1 && cols > 1 {
        return Err(view.bad_strides(op, arg, "columns must lie side by side"));
    }
    Ok((rows as u32, cols as u32, stride as u64))
}

/// Returns an error if the rows of an output share memory.
fn expect_separate_rows(
    op: &'static str,
    arg: &'static str,
    view: &View,
    (rows, cols, stride): (u32, u32, u64),
) -> Result<()> {
    if rows > 1 && stride < u64::from(cols) {
        return Err(view.bad_strides(op, arg, "the rows of an output must not overlap"));
    }
    Ok(())
}

/// Returns `blocks` as a `u32`, for the size of a grid in x. Returns an error if a GPU cannot launch so many
/// blocks.
fn blocks(op: &'static str, arg: &'static str, view: &View, blocks: u64) -> Result<u32> {
    let error = || Error::Shape {
        op,
        arg,
        got: view.shape().to_vec(),
        expected: "a tensor for which 2^31 - 1 blocks are enough".into(),
    };
    i32::try_from(blocks).map(|blocks| blocks as u32).map_err(|_| error())
}
