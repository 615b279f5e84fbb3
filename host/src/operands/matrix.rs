//! Operands of matrix products.
use crate::{Dtype, Error, Result, View};

/// A matrix in memory. Its columns are contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub base: *mut u8,
    pub dtype: Dtype,
    pub rows: u32,
    pub columns: u32,
    /// Distance in bytes from the start of one row to the start of the next row. If there is only one row,
    /// the value is 16.
    pub row_bytes: u64,
}

impl Matrix {
    /// Converts a tensor to a matrix, in which the last dimension is the columns. All other dimensions
    /// together are the rows.
    pub fn of(op: &'static str, arg: &'static str, view: &View) -> Result<Self> {
        let (shape, strides) = (view.shape(), view.strides());
        let Some((&columns, leading)) = shape.split_last() else {
            return Err(Error::Shape { op, arg, got: vec![], expected: "at least one dimension".into() });
        };
        let limit = i64::from(u32::MAX / 2);
        let rows: i64 = leading.iter().product();
        if columns > limit || rows > limit {
            let expected = "fewer than 2^31 columns, and fewer than 2^31 rows in all".into();
            return Err(Error::Shape { op, arg, got: shape.to_vec(), expected });
        }
        if columns > 1 && rows > 0 && strides[leading.len()] != 1 {
            return Err(view.bad_strides(op, arg, "its last dimension must be contiguous"));
        }
        let stride = row_distance(op, arg, view)?;
        let row_bytes = stride.map_or(16, |stride| stride.unsigned_abs() * view.dtype().size() as u64);
        Ok(Self {
            base: view.ptr().cast_mut().cast(),
            dtype: view.dtype(),
            rows: rows as u32,
            columns: columns as u32,
            row_bytes,
        })
    }

    /// Returns the same memory as a matrix of pairs of 8-bit elements. The dtype of the pairs is bf16,
    /// because there is no other dtype of 16 bits for which the driver makes tensor maps.
    pub fn pairs(self) -> Self {
        Self { dtype: Dtype::Bf16, columns: self.columns / 2, ..self }
    }

    /// Returns whether all rows are aligned to 16 bytes.
    pub fn is_vector(&self) -> bool {
        (self.base as usize).is_multiple_of(16) && self.row_bytes.is_multiple_of(16)
    }

    /// Returns whether TMA can copy parts of the matrix. The matrix must have elements, and its address must
    /// be a multiple of 16 bytes. The distance from row to row must be a positive multiple of 16 bytes.
    pub fn is_tma(&self) -> bool {
        self.is_vector()
            && self.row_bytes > 0
            && self.row_bytes < 1 << 40
            && self.rows > 0
            && self.columns > 0
    }
}

/// Returns the distance in elements between consecutive rows, where all dimensions except the last are the
/// rows. Returns `None` if there is at most one row. It is an error if the rows have different distances.
pub(crate) fn row_distance(op: &'static str, arg: &'static str, view: &View) -> Result<Option<i64>> {
    let (mut stride, mut next) = (None, None);
    let Some((_, leading)) = view.shape().split_last() else { return Ok(None) };
    let is_empty = leading.contains(&0);
    for (&size, &own) in leading.iter().zip(view.strides()).rev().filter(|(size, _)| **size != 1) {
        if next.is_some_and(|next| next != own) && !is_empty {
            return Err(view.bad_strides(op, arg, "its rows must have one distance: make it contiguous"));
        }
        stride = stride.or(Some(own));
        next = own.checked_mul(size);
    }
    Ok(stride)
}
