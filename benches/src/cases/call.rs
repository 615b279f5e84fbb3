//! The operands of one benchmark call: slices of the buffers of a `Pool`.
use std::cell::Cell;

use half::bf16;
use oxiwarp::{Buffer, Result, View, ViewMut};

/// Maximum number of inputs per call.
pub(super) const INPUTS: usize = 5;
/// Number of vectors with one value per column.
pub(super) const VECTORS: usize = 4;
/// Maximum number of results per call.
pub(super) const OUTPUTS: usize = 3;

/// An input of a call: a buffer from element `offset` on.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub(super) buffer: &'a Buffer<bf16>,
    pub(super) offset: usize,
    pub(super) viewed: &'a Cell<usize>,
}

/// A result of a call: a buffer from element `offset` on.
pub struct PartMut<'a> {
    pub(super) buffer: &'a mut Buffer<bf16>,
    pub(super) offset: usize,
    pub(super) viewed: &'a Cell<usize>,
}

impl<'a> Part<'a> {
    /// Returns a contiguous tensor of `shape` that starts at the first element of this input.
    ///
    /// # Errors
    /// Returns an error if the buffer has too few elements.
    pub fn view(self, shape: &[i64]) -> Result<View<'a>> {
        count(self.viewed, shape);
        self.buffer.view_strided(self.offset, shape, &dense(shape))
    }
}

impl<'a> PartMut<'a> {
    /// Returns a contiguous mutable tensor of `shape` that starts at the first element of this result.
    ///
    /// # Errors
    /// Returns an error if the buffer has too few elements.
    pub fn view_mut(self, shape: &[i64]) -> Result<ViewMut<'a>> {
        count(self.viewed, shape);
        self.buffer.view_strided_mut(self.offset, shape, &dense(shape))
    }
}

/// Adds the number of elements of a tensor of `shape` to `viewed`, which counts the elements that calls use.
fn count(viewed: &Cell<usize>, shape: &[i64]) {
    viewed.set(viewed.get() + shape.iter().product::<i64>() as usize);
}

/// Returns the strides of a contiguous tensor of `shape`.
fn dense(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

/// The inputs and results of one call.
pub struct Operands<'a> {
    /// Rows of each tensor.
    pub rows: i64,
    /// Columns of each tensor.
    pub cols: i64,
    /// The inputs.
    pub x: [Part<'a>; INPUTS],
    /// The bf16 results.
    pub y: [PartMut<'a>; OUTPUTS],
    pub(super) vectors: &'a [Buffer<bf16>; VECTORS],
    /// The f32 results.
    pub singles: [&'a mut Buffer<f32>; 2],
    /// The target class of each row.
    pub targets: &'a Buffer<i64>,
    /// f32 input: the log-sum-exp of each row.
    pub logarithms: &'a Buffer<f32>,
    /// f32 input: the gradient of each row's loss.
    pub dloss: &'a Buffer<f32>,
    /// Scratch memory that the launches of one call share.
    pub workspace: &'a mut Buffer<f32>,
}

impl<'a> Operands<'a> {
    /// Returns the shape of a row tensor, `[rows, cols]`.
    pub fn shape(&self) -> [i64; 2] {
        [self.rows, self.cols]
    }

    /// Returns the first `len` values of the vector with index `number`. The op uses this vector for all
    /// rows, for example as its weight or scale.
    ///
    /// # Errors
    /// Returns an error if the vector has fewer than `len` values.
    pub fn vector(&self, number: usize, len: i64) -> Result<View<'a>> {
        self.vectors[number].view(&[len])
    }
}
