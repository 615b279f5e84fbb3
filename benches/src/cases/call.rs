//! The operands of one call: parts of the buffers of a pool.
use std::cell::Cell;

use half::bf16;
use oxiwarp::{Buffer, Result, View, ViewMut};

/// Inputs of a call, at most.
pub(super) const INPUTS: usize = 5;
/// Vectors of a row's columns.
pub(super) const VECTORS: usize = 4;
/// Results.
pub(super) const OUTPUTS: usize = 3;

/// What a call reads of a buffer: from some element on.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub(super) buffer: &'a Buffer<bf16>,
    pub(super) offset: usize,
    pub(super) viewed: &'a Cell<usize>,
}

/// What a call writes.
pub struct PartMut<'a> {
    pub(super) buffer: &'a mut Buffer<bf16>,
    pub(super) offset: usize,
    pub(super) viewed: &'a Cell<usize>,
}

impl<'a> Part<'a> {
    /// The elements as a tensor of `shape`.
    ///
    /// # Errors
    /// There are not so many.
    pub fn view(self, shape: &[i64]) -> Result<View<'a>> {
        count(self.viewed, shape);
        self.buffer.view_strided(self.offset, shape, &dense(shape))
    }
}

impl<'a> PartMut<'a> {
    /// The elements as a tensor of `shape`.
    ///
    /// # Errors
    /// There are not so many.
    pub fn view_mut(self, shape: &[i64]) -> Result<ViewMut<'a>> {
        count(self.viewed, shape);
        self.buffer.view_strided_mut(self.offset, shape, &dense(shape))
    }
}

/// Adds the elements of a tensor of `shape`.
fn count(viewed: &Cell<usize>, shape: &[i64]) {
    viewed.set(viewed.get() + shape.iter().product::<i64>() as usize);
}

/// The strides of rows without gaps.
fn dense(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

/// What one call reads and writes.
pub struct Operands<'a> {
    /// Rows of each tensor.
    pub rows: i64,
    /// Columns.
    pub cols: i64,
    /// Inputs.
    pub x: [Part<'a>; INPUTS],
    /// Results.
    pub y: [PartMut<'a>; OUTPUTS],
    pub(super) vectors: &'a [Buffer<bf16>; VECTORS],
    /// f32 results.
    pub singles: [&'a mut Buffer<f32>; 2],
    /// A class for each row.
    pub targets: &'a Buffer<i64>,
    /// f32 inputs: logarithms of sums of exponentials.
    pub logarithms: &'a Buffer<f32>,
    /// f32 inputs: the gradient of each row's loss.
    pub dloss: &'a Buffer<f32>,
    /// Memory between launches.
    pub workspace: &'a mut Buffer<f32>,
}

impl<'a> Operands<'a> {
    /// The shape of a tensor of rows.
    pub fn shape(&self) -> [i64; 2] {
        [self.rows, self.cols]
    }

    /// A vector of `len` values: a weight, a scale.
    ///
    /// # Errors
    /// There are not so many.
    pub fn vector(&self, number: usize, len: i64) -> Result<View<'a>> {
        self.vectors[number].view(&[len])
    }
}
