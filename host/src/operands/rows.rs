//! Tensors as rows. The last dimension is the columns. All other dimensions collapse to at most two levels
//! of rows, each with one stride.
use cuda_std::row::Rows;

use crate::tensor::view::View;
use crate::{Device, Dtype, Error, Result};

/// An argument of a row op: its name and its view.
pub(crate) type Operand<'v, 'a> = (&'static str, &'v View<'a>);

/// The memory layout of the operands of one launch. The first operand determines the shape.
pub(crate) struct RowLayout<const N: usize> {
    /// Number of rows of each operand.
    pub rows: u64,
    /// Rows per step of the outer stride, or 0 if one stride reaches all rows.
    pub inner: u32,
    /// Columns per row.
    pub cols: u32,
    /// The dtype of the first operand.
    pub dtype: Dtype,
    /// Whether every operand supports 16-byte vector access.
    pub vector: bool,
    /// Whether every operand supports vec4 access (four elements).
    pub vec4s: bool,
    /// The kernel arguments, in the order of the operands.
    pub operands: [Rows; N],
}

const LAST: &str = "its last dimension must be contiguous";
const LEVELS: &str = "two strides must reach all its rows: make it contiguous";

impl<const N: usize> RowLayout<N> {
    /// Checks the operands of a launch and returns their layout. All must have the dtype and shape of the
    /// first one, contiguous columns, and rows that two strides reach.
    pub fn of(op: &'static str, device: &Device, operands: [Operand; N]) -> Result<Self> {
        columns(op, operands[0].0, operands[0].1)?;
        for (arg, view) in &operands {
            view.expect_on(op, arg, device)?;
            view.expect_dtype(op, arg, operands[0].1.dtype())?;
        }
        Self::of_mixed(op, device, operands)
    }

    /// Like [`RowLayout::of`], but each operand may have its own dtype.
    pub fn of_mixed(op: &'static str, device: &Device, operands: [Operand; N]) -> Result<Self> {
        let (arg, x) = operands[0];
        let (cols, rank) = (columns(op, arg, x)?, x.shape().len());
        for &(arg, view) in &operands {
            view.expect_on(op, arg, device)?;
            view.expect_shape(op, arg, x.shape())?;
            if view.strides()[rank - 1] != 1 && cols > 1 {
                return Err(view.bad_strides(op, arg, LAST));
            }
        }
        let levels = collapse(op, &operands, &x.shape()[..rank - 1])?;
        let rows = levels.iter().map(|level| level.count as u64).product();
        let inner = if levels[1].count == 1 { 0 } else { levels[0].count as u32 };
        let sizes: [usize; N] = std::array::from_fn(|i| operands[i].1.dtype().size());
        let rows_of: [Rows; N] = std::array::from_fn(|i| Rows {
            base: operands[i].1.ptr().cast_mut().cast(),
            inner_stride: levels[0].strides[i],
            outer_stride: levels[1].strides[i],
        });
        let dtype = x.dtype();
        let all = |may: fn(&Rows, u32, usize) -> bool| (0..N).all(|i| may(&rows_of[i], cols, sizes[i]));
        let (vector, vec4s) = (all(Rows::is_vector), all(Rows::is_vec4s));
        Ok(Self { rows, inner, cols, dtype, vector, vec4s, operands: rows_of })
    }
}

impl<const N: usize> RowLayout<N> {
    /// Returns the number of 16-byte packs per row.
    pub fn packs(&self) -> u64 {
        (u64::from(self.cols) * self.dtype.size() as u64).div_ceil(16)
    }
}

/// Returns the number of columns of `x`. Fails if it exceeds the range of the kernels or if the dtype is
/// not a float.
pub(crate) fn columns(op: &'static str, arg: &'static str, x: &View) -> Result<u32> {
    if !Dtype::FLOATS.contains(&x.dtype()) {
        return Err(Error::Dtype { op, arg, got: x.dtype(), expected: "f32, f16 or bf16".into() });
    }
    let Some(&cols) = x.shape().last() else {
        return Err(Error::Shape { op, arg, got: vec![], expected: "at least one dimension".into() });
    };
    if cols == 0 || cols > i64::from(u32::MAX / 2) {
        let expected = "a last dimension between 1 and 2^31 - 1".into();
        return Err(Error::Shape { op, arg, got: x.shape().to_vec(), expected });
    }
    Ok(cols as u32)
}

/// A level of rows: one stride per operand, and the number of steps.
#[derive(Clone, Copy)]
struct Level<const N: usize> {
    count: i64,
    strides: [i64; N],
}

/// Merges the row dimensions of all operands into two levels, from the innermost outwards. Two dimensions
/// merge if the outer one continues the inner one in all operands.
fn collapse<const N: usize>(
    op: &'static str,
    operands: &[Operand; N],
    sizes: &[i64],
) -> Result<[Level<N>; 2]> {
    merge(operands.map(|(_, view)| view), sizes).ok_or_else(|| apart(op, operands, sizes))
}

/// Does the work of [`collapse`]. Returns `None` if two levels are not enough.
fn merge<const N: usize>(views: [&View; N], sizes: &[i64]) -> Option<[Level<N>; 2]> {
    let mut levels = [Level { count: 1, strides: [0; N] }; 2];
    if sizes.contains(&0) {
        levels[0].count = 0;
        return Some(levels);
    }
    let mut used = 0;
    for dim in (0..sizes.len()).rev().filter(|&dim| sizes[dim] != 1) {
        let strides: [i64; N] = std::array::from_fn(|i| views[i].strides()[dim]);
        if used > 0 {
            let level = &mut levels[used - 1];
            if (0..N).all(|i| strides[i] == level.strides[i] * level.count) {
                level.count *= sizes[dim];
                continue;
            }
        }
        if used == 2 || (used == 1 && levels[0].count > i64::from(u32::MAX)) {
            return None;
        }
        levels[used] = Level { count: sizes[dim], strides };
        used += 1;
    }
    Some(levels)
}

/// Returns the error for operands that cannot be [merged](merge). It names one operand that cannot be
/// merged by itself, or two operands that need different levels.
fn apart<const N: usize>(op: &'static str, operands: &[Operand; N], sizes: &[i64]) -> Error {
    if let Some((arg, view)) = operands.iter().find(|(_, view)| merge([view], sizes).is_none()) {
        return view.bad_strides(op, arg, LEVELS);
    }
    let differ = |a: usize, b: usize| merge([operands[a].1, operands[b].1], sizes).is_none();
    // Each operand has at most one dimension where its levels divide. If all pairs agree on it, all
    // operands do, so some pair differs.
    let (a, b) =
        (0..N).flat_map(|b| (0..b).map(move |a| (a, b))).find(|&(a, b)| differ(a, b)).unwrap_or((0, N - 1));
    let ((arg, view), (other, theirs)) = (operands[b], operands[a]);
    let (strides, other_strides) = (view.strides().to_vec(), theirs.strides().to_vec());
    Error::StridesOfTwo { op, arg, other, shape: view.shape().to_vec(), strides, other_strides }
}

/// Returns whether two strides reach all rows of `view`.
pub(crate) fn has_two_levels(view: &View) -> bool {
    merge([view], &view.shape()[..view.shape().len() - 1]).is_some()
}

/// Returns an error if an output shares memory with `others`, or if its own rows share memory.
pub(crate) fn expect_disjoint(
    op: &'static str,
    (arg, out): Operand,
    others: &[Option<Operand>],
) -> Result<()> {
    if repeats(out) {
        return Err(out.bad_strides(op, arg, "an output must not repeat its elements"));
    }
    let Some(range) = out.byte_range() else { return Ok(()) };
    for &(other, view) in others.iter().flatten() {
        let Some(theirs) = view.byte_range() else { continue };
        if range.0 <= theirs.1 && theirs.0 <= range.1 && !interleaved(out, view) {
            return Err(Error::Overlap { op, arg, other });
        }
    }
    Ok(())
}

/// Returns whether two indices of a tensor may reach the same element. They cannot if each stride is larger
/// than the extent of all smaller strides together.
fn repeats(view: &View) -> bool {
    if view.shape().contains(&0) {
        return false;
    }
    let mut dims: Vec<_> = view.shape().iter().zip(view.strides()).filter(|(size, _)| **size > 1).collect();
    dims.sort_unstable_by_key(|(_, stride)| **stride);
    let mut reach = 0;
    dims.iter().any(|(size, stride)| {
        let within = **stride <= reach;
        reach += (*size - 1) * *stride;
        within
    })
}

/// Returns whether two tensors of the same shape and strides are disjoint column ranges of wider rows, as
/// two slices of one buffer are.
fn interleaved(a: &View, b: &View) -> bool {
    let (rank, size) = (a.shape().len(), a.dtype().size() as i64);
    if rank < 2 || a.dtype() != b.dtype() || a.shape() != b.shape() || a.strides() != b.strides() {
        return false;
    }
    let (cols, pitch) = (a.shape()[rank - 1], a.strides()[rank - 2]);
    // A dimension of size 1 may have any stride.
    let Some(pitch_bytes) = pitch.max(1).checked_mul(size) else { return false };
    let nested = (0..rank - 2).all(|dim| pitch > 0 && a.strides()[dim] % pitch == 0);
    let apart = (b.ptr() as i64 - a.ptr() as i64).rem_euclid(pitch_bytes);
    nested && apart >= cols * size && apart <= (pitch - cols) * size
}
