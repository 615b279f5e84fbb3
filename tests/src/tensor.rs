//! Matrices with random values on a device, and the same values on the host in f64.
use oxiwarp::{Buffer, Device, Element, Scalar};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Returns a random number generator.
pub fn random(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Returns `len` values between -4 and 4, rounded to `T`.
pub fn values<T: Element>(random: &mut StdRng, len: usize) -> Vec<T> {
    (0..len).map(|_| T::from_f32(random.random_range(-4.0..4.0))).collect()
}

/// Returns the values in f64, for the reference.
pub fn wide<T: Element>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| f64::from(value.to_f32())).collect()
}

/// The memory layout of a matrix. The first row starts at element `offset`, and the starts of consecutive
/// rows are `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements before the first row: 1 gives an unaligned base.
    pub offset: usize,
    /// Elements from the start of a row to the start of the next row.
    pub stride: i64,
}

impl Layout {
    /// Returns the layout of rows without gaps.
    pub fn dense(cols: i64) -> Self {
        Self { offset: 0, stride: cols }
    }
}

/// A matrix on a device with the given layout.
pub struct Matrix<T> {
    /// The buffer that contains the rows.
    pub buffer: Buffer<T>,
    /// The position of the rows in the buffer.
    pub layout: Layout,
    /// `[rows, cols]`.
    pub shape: [i64; 2],
}

impl<T: Scalar> Matrix<T> {
    /// Uploads `values` with the layout `layout`. The other elements of the buffer, for example between rows,
    /// get a NaN bit pattern that no kernel writes.
    pub fn upload(device: &Device, values: &[T], shape: [i64; 2], layout: Layout) -> Self {
        let [rows, cols] = shape;
        let len = layout.offset + (rows * layout.stride).max(cols) as usize;
        let mut memory = vec![T::POISON; len];
        for row in 0..rows as usize {
            let (from, to) = (row * cols as usize, layout.offset + row * layout.stride as usize);
            memory[to..to + cols as usize].copy_from_slice(&values[from..from + cols as usize]);
        }
        Self { buffer: device.upload(&memory).expect("device memory"), layout, shape }
    }

    /// Makes a matrix for results. All elements of its buffer get a NaN bit pattern that no kernel writes.
    pub fn poisoned(device: &Device, shape: [i64; 2], layout: Layout) -> Self {
        let values = vec![T::POISON; (shape[0] * shape[1]) as usize];
        Self::upload(device, &values, shape, layout)
    }

    /// Returns a view for reading.
    pub fn view(&self) -> oxiwarp::View<'_> {
        self.buffer.view_strided(self.layout.offset, &self.shape, &[self.layout.stride, 1]).expect("inside")
    }

    /// Returns a view for writing.
    pub fn view_mut(&mut self) -> oxiwarp::ViewMut<'_> {
        self.buffer
            .view_strided_mut(self.layout.offset, &self.shape, &[self.layout.stride, 1])
            .expect("inside")
    }

    /// Returns a read-only view of shape `[batches, rows / batches, cols]`.
    pub fn view_batches(&self, batches: i64) -> oxiwarp::View<'_> {
        let (shape, strides) = self.batches(batches);
        self.buffer.view_strided(self.layout.offset, &shape, &strides).expect("inside")
    }

    /// Returns a view for writing, shaped as in [`Matrix::view_batches`].
    pub fn view_batches_mut(&mut self, batches: i64) -> oxiwarp::ViewMut<'_> {
        let (shape, strides) = self.batches(batches);
        self.buffer.view_strided_mut(self.layout.offset, &shape, &strides).expect("inside")
    }

    fn batches(&self, batches: i64) -> ([i64; 3], [i64; 3]) {
        let ([rows, cols], stride) = (self.shape, self.layout.stride);
        ([batches, rows / batches, cols], [rows / batches * stride, stride, 1])
    }
}

impl<T: Element> Matrix<T> {
    /// Returns the values of the matrix, row by row. Panics if a kernel wrote an element of the buffer
    /// outside the rows.
    pub fn download(&self) -> Vec<T> {
        let memory = self.buffer.download().expect("a kernel that ran");
        let [rows, cols] = self.shape.map(|size| size as usize);
        let mut values = Vec::with_capacity(rows * cols);
        let mut inside = vec![false; memory.len()];
        for row in 0..rows {
            let start = self.layout.offset + row * self.layout.stride as usize;
            values.extend_from_slice(&memory[start..start + cols]);
            inside[start..start + cols].fill(true);
        }
        let poison = T::POISON.to_bits();
        let hit = (0..memory.len()).find(|&at| !inside[at] && memory[at].to_bits() != poison);
        assert_eq!(hit, None, "an element outside the rows was written");
        values
    }
}
