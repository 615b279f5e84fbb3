//! Multiplies the accumulators by the scales of the operands, and then applies another epilogue.
use cuda_std::elem::Elem;
use cuda_std::mem::{self, Load};

use super::Epilogue;
use super::fragments::FragmentPlace;

/// Kernel argument: the scales of the rows of `x` and of the rows of `w`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScaleParams {
    /// One scale per row of `x`.
    pub x: *const f32,
    /// One scale per row of `w`.
    pub w: *const f32,
    /// Number of rows of `x`.
    pub x_rows: u32,
    /// Number of rows of `w`.
    pub w_rows: u32,
}

impl ScaleParams {
    /// Returns a scale, or 0 if there is no such row.
    ///
    /// # Safety
    /// `scales` has `rows` elements.
    #[inline(always)]
    unsafe fn load(scales: *const f32, row: u32, rows: u32) -> f32 {
        if row >= rows {
            return 0.0;
        }
        // SAFETY: the caller guarantees that the element exists.
        f32::from_bits(unsafe { mem::load_u32(scales.wrapping_add(row as usize).cast(), Load::ReadOnly) })
    }
}

/// `E` of `x_scale * (w_scale * sum) + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<E>(pub ScaleParams, pub E);

impl<E: Epilogue> Epilogue for Scaled<E> {
    const UNROLLED: bool = E::UNROLLED;
    const HALVES: bool = E::HALVES;
    const OPERAND: bool = E::OPERAND;
    const SCALED: bool = true;
    type Fetched = E::Fetched;

    #[inline(always)]
    fn starts(&self) -> [u32; 2] {
        self.1.starts()
    }

    #[inline(always)]
    unsafe fn scale(&self, sums: [f32; 8], at: FragmentPlace, start: u32) -> [f32; 8] {
        let s = &self.0;
        // SAFETY: the caller guarantees that the scales belong to this launch.
        let x = [0, 8].map(|row| unsafe { ScaleParams::load(s.x, at.row + row, s.x_rows) });
        let w = [0, 1, 8, 9].map(|column| {
            // SAFETY: as above.
            unsafe { ScaleParams::load(s.w, start + at.column + column, s.w_rows) }
        });
        core::array::from_fn(|i| x[i / 2 % 2] * (w[i / 4 * 2 + i % 2] * sums[i]))
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
