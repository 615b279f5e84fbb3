//! The softcap of logits, `cap * tanh(x / cap)`, as in Gemma 2.
use cuda_std::libdevice::tanh;
use cuda_std::prelude::*;

/// Kernel argument: a softcap. A kernel that has no softcap ignores it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Softcap {
    /// The limit of the logits.
    pub cap: f32,
    /// `1 / cap`.
    pub inverse: f32,
}

impl Softcap {
    /// The argument of kernels without a softcap.
    pub(crate) const NONE: Self = Self { cap: 0.0, inverse: 0.0 };

    /// Returns the softcap with the limit `cap`.
    pub fn of(cap: f32) -> Self {
        Self { cap, inverse: 1.0 / cap }
    }

    /// Returns `cap * tanh(x / cap)`, and the derivative of this value with respect to `x`.
    #[inline(always)]
    pub(crate) fn value_and_slope(&self, x: f32) -> [f32; 2] {
        let tanh = tanh(x * self.inverse);
        [self.cap * tanh, fma(-tanh, tanh, 1.0)]
    }

    /// Returns `cap * tanh(x / cap)` if `CAPPED` is true. Otherwise, returns `x`.
    #[inline(always)]
    pub(crate) fn value<const CAPPED: bool>(&self, x: f32) -> f32 {
        if CAPPED { self.value_and_slope(x)[0] } else { x }
    }
}
