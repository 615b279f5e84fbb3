//! The definition of scale, rounding and saturation of all results in 8-bit floats. A kernel that quantizes
//! its result writes the same bytes as `quantize_fp8` writes for this result.
//!
//! A scale belongs to a group of elements `x`: a row, or 128 columns of a row. `x` is rounded to the element
//! type of the result that would be written without quantization. `MAX` is the largest value of the 8-bit
//! format, 448 for e4m3. All operations are in f32 and round to nearest even:
//!
//! ```text
//! peak    = max |x|
//! scale   = max(peak / MAX, 2^-126)
//! inverse = 1 / scale
//! value   = fp8(x * inverse)         rounded to nearest even, and at most MAX in magnitude
//! ```
//!
//! `value * scale` is approximately `x`. DeepGEMM has the same formulas, with 1e-4 as the smallest `peak`. The
//! values are products with `inverse`, because a division would take about ten instructions per element.
//!
//! - The minimum of `scale` is the smallest normal f32. The scale of a group of zeros is therefore not 0, and
//!   `inverse` is finite.
//! - If the group contains a NaN, `peak` is NaN, and so are the scale and all values.
//! - If the group contains an infinity, but no NaN, the scale is infinite. Infinities become NaN, and finite
//!   elements become 0. The product of a value and the scale is NaN for all elements.
use cuda_std::prelude::*;

/// Number of columns that share a scale, if a row has several scales.
pub const BLOCK: u32 = 128;

/// The largest magnitude of the elements that a thread, or a group of threads, has seen.
///
/// The type stores the bits of the magnitude. As integers, the bits of a NaN are larger than those of all
/// numbers. The maximum of the bits is therefore NaN if any element is NaN. `max.f32` would return a number.
#[derive(Clone, Copy)]
pub struct Peak(u32);

impl Peak {
    /// The peak of no elements.
    pub const NONE: Self = Self(0);

    /// Returns the larger of this peak and the magnitudes of `lanes`.
    #[inline(always)]
    pub fn with<L: F32Vec>(self, lanes: L) -> Self {
        let mut peak = self.0;
        for i in 0..L::LEN {
            peak = peak.max(lanes.get(i as usize).to_bits() & 0x7fff_ffff);
        }
        Self(peak)
    }

    /// Returns the peak of all threads of the team (the threads that share a row). The conditions of
    /// [`Team::reduce`] apply.
    #[inline(always)]
    pub fn of_team(self, team: Team) -> Self {
        Self(team.reduce(self.0, 0, &mut SharedMemory::of_launch(), Ord::max))
    }

    /// Returns the peak of each group of `width` neighbouring lanes. Every lane of the warp must call this
    /// function.
    #[inline(always)]
    pub fn of_lanes(self, width: u32) -> Self {
        Self(warp::reduce(self.0, width, Ord::max))
    }

    /// Returns the scale of the elements, for the 8-bit format `E`.
    #[inline(always)]
    pub fn scale<E: Fp8>(self) -> Scale {
        let scale = f32::from_bits(self.0) / E::MAX;
        // `f32::max` would replace a NaN by the minimum.
        let scale = if scale < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { scale };
        Scale { scale, inverse: 1.0 / scale }
    }
}

/// The scale of a group of elements.
#[derive(Clone, Copy)]
pub struct Scale {
    /// The number by which the quantized values are multiplied in a matrix product.
    pub scale: f32,
    inverse: f32,
}

impl Scale {
    /// Returns the values to round to the 8-bit format.
    #[inline(always)]
    pub fn apply<L: F32Vec>(self, lanes: L) -> L {
        lanes.map(|x| x * self.inverse)
    }
}
