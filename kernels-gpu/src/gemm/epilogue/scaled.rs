//! Multiplies the accumulators by the scales of the operands, before another epilogue.
use cuda_std::elem::Elem;
use cuda_std::mem::{self, Load};

use super::Epilogue;
use super::fragments::FragmentPlace;

/// Elements of K, and rows of `w`, that share a scale in products with scales per block.
pub const BLOCK: u32 = 128;

/// The scales of the operands of a product `x wᵀ`.
pub(crate) trait Scales: Copy {
    /// Whether `x` has a scale per row and [`BLOCK`] elements of K, and `w` one per [`BLOCK`] rows and
    /// [`BLOCK`] elements of K. Otherwise, both have one scale per row.
    const PER_BLOCK: bool;

    /// Multiplies the sums of a fragment by the scales. Only called for scales per row.
    ///
    /// # Safety
    /// The scales belong to this launch.
    unsafe fn scale(&self, sums: [f32; 8], at: FragmentPlace, start: u32) -> [f32; 8];

    /// Returns the scale of a row of `x` for block `block` of K. Only called for scales per block.
    ///
    /// # Safety
    /// The scales belong to this launch.
    unsafe fn x(&self, row: u32, block: u32) -> f32;

    /// Does the same as `x`, for a row of `w`.
    ///
    /// # Safety
    /// The scales belong to this launch.
    unsafe fn w(&self, row: u32, block: u32) -> f32;
}

/// Kernel argument: the scales of the rows of `x` and of the rows of `w`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowScales {
    /// One scale per row of `x`.
    pub x: *const f32,
    /// One scale per row of `w`.
    pub w: *const f32,
    /// Number of rows of `x`.
    pub x_rows: u32,
    /// Number of rows of `w`.
    pub w_rows: u32,
}

impl Scales for RowScales {
    const PER_BLOCK: bool = false;

    /// `x_scale * (w_scale * sum)`
    #[inline(always)]
    unsafe fn scale(&self, sums: [f32; 8], at: FragmentPlace, start: u32) -> [f32; 8] {
        // SAFETY: the caller guarantees that the scales belong to this launch.
        let x = [0, 8].map(|row| unsafe { self.x(at.row + row, 0) });
        // SAFETY: as above.
        let w = [0, 1, 8, 9].map(|column| unsafe { self.w(start + at.column + column, 0) });
        core::array::from_fn(|i| x[i / 2 % 2] * (w[i / 4 * 2 + i % 2] * sums[i]))
    }

    #[inline(always)]
    unsafe fn x(&self, row: u32, _block: u32) -> f32 {
        // SAFETY: the caller guarantees that the scales belong to this launch.
        unsafe { load(self.x, row, self.x_rows, row as usize) }
    }

    #[inline(always)]
    unsafe fn w(&self, row: u32, _block: u32) -> f32 {
        // SAFETY: as above.
        unsafe { load(self.w, row, self.w_rows, row as usize) }
    }
}

/// Kernel argument: the scales of blocks of `x` and `w`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BlockScales {
    /// One scale per row of `x` and block of K.
    pub x: *const f32,
    /// One scale per block of rows of `w` and block of K.
    pub w: *const f32,
    /// Number of rows of `x`.
    pub x_rows: u32,
    /// Number of rows of `w`.
    pub w_rows: u32,
    /// Distances in elements between the scales of consecutive rows of `x`, and of consecutive blocks of K.
    pub x_strides: [u32; 2],
    /// Distances in elements between the scales of consecutive blocks of rows of `w`, and of consecutive
    /// blocks of K.
    pub w_strides: [u32; 2],
}

impl Scales for BlockScales {
    const PER_BLOCK: bool = true;

    #[inline(always)]
    unsafe fn scale(&self, sums: [f32; 8], _at: FragmentPlace, _start: u32) -> [f32; 8] {
        sums
    }

    #[inline(always)]
    unsafe fn x(&self, row: u32, block: u32) -> f32 {
        let [row_stride, block_stride] = self.x_strides.map(u64::from);
        let offset = u64::from(row) * row_stride + u64::from(block) * block_stride;
        // SAFETY: the caller guarantees that the scales belong to this launch.
        unsafe { load(self.x, row, self.x_rows, offset as usize) }
    }

    #[inline(always)]
    unsafe fn w(&self, row: u32, block: u32) -> f32 {
        let [row_stride, block_stride] = self.w_strides.map(u64::from);
        let offset = u64::from(row / BLOCK) * row_stride + u64::from(block) * block_stride;
        // SAFETY: as above.
        unsafe { load(self.w, row, self.w_rows, offset as usize) }
    }
}

/// Loads the scale `scales[offset]` of row `row`, or returns 0 if there is no such row.
///
/// # Safety
/// If `row` is less than `rows`, the element exists.
#[inline(always)]
unsafe fn load(scales: *const f32, row: u32, rows: u32, offset: usize) -> f32 {
    if row >= rows {
        return 0.0;
    }
    // SAFETY: the caller guarantees that the element exists.
    f32::from_bits(unsafe { mem::load_u32(scales.wrapping_add(offset).cast(), Load::ReadOnly) })
}

/// The epilogue `E` of the scaled product.
#[derive(Clone, Copy)]
pub(crate) struct ScaledProduct<S, E>(pub S, pub E);

impl<S: Scales, E: Epilogue> Epilogue for ScaledProduct<S, E> {
    const UNROLLED: bool = E::UNROLLED;
    const HALVES: bool = E::HALVES;
    const OPERAND: bool = E::OPERAND;
    const ROW_SCALES: bool = !S::PER_BLOCK;
    const BLOCK_SCALES: bool = S::PER_BLOCK;
    type Fetched = E::Fetched;

    #[inline(always)]
    fn starts(&self) -> [u32; 2] {
        self.1.starts()
    }

    #[inline(always)]
    unsafe fn scale(&self, sums: [f32; 8], at: FragmentPlace, start: u32) -> [f32; 8] {
        // SAFETY: the caller satisfies the requirements.
        unsafe { self.0.scale(sums, at, start) }
    }

    #[inline(always)]
    unsafe fn block_scales(&self, x_row: u32, w_row: u32, block: u32) -> [f32; 2] {
        // SAFETY: the caller satisfies the requirements.
        unsafe { [self.0.x(x_row, block), self.0.w(w_row, block)] }
    }

    #[inline(always)]
    unsafe fn operand(&self, at: FragmentPlace) -> [u32; 4] {
        // SAFETY: the caller satisfies the requirements.
        unsafe { self.1.operand(at) }
    }

    #[inline(always)]
    unsafe fn fetch(&self, at: FragmentPlace) -> E::Fetched {
        // SAFETY: the caller satisfies the requirements.
        unsafe { self.1.fetch(at) }
    }

    #[inline(always)]
    fn apply<T: Elem<F32Vec = [f32; 8]>>(
        &self,
        sums: [[f32; 8]; 2],
        operand: [u32; 4],
        fetched: E::Fetched,
    ) -> [u32; 4] {
        self.1.apply::<T>(sums, operand, fetched)
    }
}
