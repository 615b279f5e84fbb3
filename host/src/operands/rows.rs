//! Checks tensors and describes them as rows of columns. Kernels of ops such as `softmax` read tensors in
//! this layout. The last dimension of a tensor is its columns. All other dimensions are merged into at most
//! two dimensions, as in `x.view(n, m, columns)`.
use cuda_std::row::Rows;
use kernels_gpu::layout::operand_kind::OperandKind;
use kernels_gpu::rms::weight::{HeadVectors, Weight};

use crate::View;
use crate::{Device, Dtype, Error, Result};

/// An argument of a row op: its name and its view.
pub(crate) type Operand<'v, 'a> = (&'static str, &'v View<'a>);

/// The memory layout of the operands of one launch. All operands have the same shape.
pub(crate) struct RowLayout<const N: usize> {
    /// Number of rows of each operand.
    pub rows: u64,
    /// The size `m` if the operands are viewed as `[n, m, columns]`. The value is 0 if one row stride per
    /// operand is enough, because the distance between consecutive rows is the same for all rows.
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
    /// Checks the operands of a launch and returns their layout. All operands must have the same dtype, the
    /// same shape and contiguous columns. All operands must be viewable as `[n, m, columns]`, with the same
    /// `n` and `m`.
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
        Self::of_columns(op, device, operands, [true; N])
    }

    /// Does the same as [`RowLayout::of_mixed`], but some operands may have only one value per row.
    /// `has_columns` says which operands have a value for each column. All other operands have the stride 0
    /// in the last dimension, and the function does not check their alignment.
    pub fn of_columns(
        op: &'static str,
        device: &Device,
        operands: [Operand; N],
        has_columns: [bool; N],
    ) -> Result<Self> {
        let (arg, x) = operands[0];
        let (cols, rank) = (columns(op, arg, x)?, x.shape().len());
        for (&(arg, view), has_columns) in operands.iter().zip(has_columns) {
            view.expect_on(op, arg, device)?;
            view.expect_shape(op, arg, x.shape())?;
            if has_columns && view.strides()[rank - 1] != 1 && cols > 1 {
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
        let all = |may: fn(&Rows, u32, usize) -> bool| {
            (0..N).all(|i| !has_columns[i] || may(&rows_of[i], cols, sizes[i]))
        };
        let (vector, vec4s) = (all(Rows::is_vector), all(Rows::is_vec4s));
        Ok(Self { rows, inner, cols, dtype, vector, vec4s, operands: rows_of })
    }
}

impl<const N: usize> RowLayout<N> {
    /// Checks a weight with one element per column of `x`, in the dtype of `x` or in f32, and returns it as a
    /// kernel argument. Sets `vector` to false if the weight does not allow 16-byte accesses.
    pub fn column_weight(
        &mut self,
        op: &'static str,
        device: &Device,
        x: Operand,
        weight: Option<&View>,
    ) -> Result<Weight> {
        let Some(weight) = weight else { return Ok(Weight::ABSENT) };
        let cols = &x.1.shape()[x.1.shape().len() - 1..];
        self.vectors(op, device, x, ("weight", weight), cols)
    }

    /// Checks a weight or bias, and returns it as a kernel argument. Its shape is `[columns]`, or
    /// `[heads, columns]` for an `x` of shape `[..., heads, columns]`. Sets `vector` to false if it does not
    /// allow 16-byte accesses.
    pub fn head_vectors(
        &mut self,
        op: &'static str,
        device: &Device,
        (name, x): Operand,
        (arg, vectors): (&'static str, Option<&View>),
    ) -> Result<HeadVectors> {
        let Some(vectors) = vectors else { return Ok(HeadVectors { first: Weight::ABSENT, heads: 1 }) };
        let (rank, shape) = (vectors.shape().len().clamp(1, 2), x.shape());
        let expected = &shape[shape.len().saturating_sub(rank)..];
        let first = self.vectors(op, device, (name, x), (arg, vectors), expected)?;
        let heads = if rank == 2 { expected[0] } else { 1 };
        let heads = u32::try_from(heads).map_err(|_| {
            let expected = "fewer than 2^32 heads".into();
            Error::Shape { op, arg, got: vectors.shape().to_vec(), expected }
        })?;
        Ok(HeadVectors { first, heads })
    }

    /// Checks that `vectors` is contiguous, has the shape `expected`, and the dtype of `x` or f32.
    fn vectors(
        &mut self,
        op: &'static str,
        device: &Device,
        (name, x): Operand,
        (arg, vectors): Operand,
        expected: &[i64],
    ) -> Result<Weight> {
        vectors.expect_on(op, arg, device)?;
        vectors.expect_shape(op, arg, expected)?;
        let (&cols, strides) = (expected.last().unwrap_or(&1), vectors.strides());
        let dense = cols <= 1 || strides.last() == Some(&1);
        if !dense || expected.len() == 2 && expected[0] > 1 && strides[0] != cols {
            return Err(vectors.bad_strides(op, arg, "it must be contiguous"));
        }
        let kind = match vectors.dtype() {
            dtype if dtype == x.dtype() => OperandKind::SAME,
            Dtype::F32 => OperandKind::F32,
            got => return Err(Error::Dtype { op, arg, got, expected: x.dtype().or_f32(name) }),
        };
        self.vector &= (vectors.ptr() as usize).is_multiple_of(16);
        Ok(Weight { base: vectors.ptr().cast(), kind })
    }

    /// Returns the number of 16-byte packs per row.
    pub fn packs(&self) -> u64 {
        (u64::from(self.cols) * self.dtype.size() as u64).div_ceil(16)
    }
}

/// Returns the number of columns of `x`. Fails if the number is 0 or at least 2^31, or if `x` is not f32, f16
/// or bf16.
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

/// One of the two dimensions `n` and `m` into which the row dimensions are merged. Its size is the same for
/// all operands. Its stride differs between operands.
#[derive(Clone, Copy)]
struct Level<const N: usize> {
    count: i64,
    strides: [i64; N],
}

/// Merges the row dimensions (all except the last) of all operands into at most two dimensions, starting with
/// the last row dimension. Two adjacent dimensions can be merged if torch's `view` can merge them in every
/// operand without a copy.
fn collapse<const N: usize>(
    op: &'static str,
    operands: &[Operand; N],
    sizes: &[i64],
) -> Result<[Level<N>; 2]> {
    merge(operands.map(|(_, view)| view), sizes).ok_or_else(|| apart(op, operands, sizes))
}

/// Merges the row dimensions (all except the last) of `views` into at most two dimensions. Returns `None` if
/// more than two dimensions are left after merging.
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

/// Returns the error for operands whose row dimensions the function [`merge`] cannot merge. If `merge` fails
/// for a single operand, the error names this operand. Otherwise the error names two operands: `merge`
/// succeeds for each of the two, but not for both together.
fn apart<const N: usize>(op: &'static str, operands: &[Operand; N], sizes: &[i64]) -> Error {
    if let Some((arg, view)) = operands.iter().find(|(_, view)| merge([view], sizes).is_none()) {
        return view.bad_strides(op, arg, LEVELS);
    }
    let differ = |a: usize, b: usize| merge([operands[a].1, operands[b].1], sizes).is_none();
    // Here, `merge` succeeds for each single operand, so it divides the row dimensions of the operand into
    // one or two groups of adjacent dimensions. For all operands together, it fails, because the boundary
    // between the groups is not at the same dimension in all operands. `merge` therefore also fails for two
    // operands with different boundaries. Find two such operands.
    let (a, b) =
        (0..N).flat_map(|b| (0..b).map(move |a| (a, b))).find(|&(a, b)| differ(a, b)).unwrap_or((0, N - 1));
    let ((arg, view), (other, theirs)) = (operands[b], operands[a]);
    let (strides, other_strides) = (view.strides().to_vec(), theirs.strides().to_vec());
    Error::StridesOfTwo { op, arg, other, shape: view.shape().to_vec(), strides, other_strides }
}

/// Returns whether the rows of `view` can be addressed with two strides, as in `x.view(n, m, columns)`.
pub(crate) fn has_two_levels(view: &View) -> bool {
    merge([view], &view.shape()[..view.shape().len() - 1]).is_some()
}
