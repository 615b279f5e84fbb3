//! Products of small matrices by the threads of a warp together, on tensor cores: `mma.sync` and `ldmatrix`, from
//! sm_80 on.
//!
//! A matrix is spread over the lanes of a warp as *fragments*. With `g = lane / 4` and `t = lane % 4`, of `C += A B`
//!
//! | matrix | a lane holds | as |
//! | --- | --- | --- |
//! | A, 16 x 16 | rows `g` and `g + 8`, columns `2t, 2t + 1` and `2t + 8, 2t + 9` | [`A`]: `(g, 2t..)`, `(g + 8, 2t..)`, `(g, 2t + 8..)`, `(g + 8, 2t + 8..)` |
//! | B, 16 x 8 | rows `2t, 2t + 1` and `2t + 8, 2t + 9` of column `g` | [`B`] |
//! | C, 16 x 8, f32 | columns `2t, 2t + 1` of rows `g` and `g + 8` | [`C`] |
//!
//! where a word holds two elements, the first in its low half. So two neighbouring C, rounded and packed, are an A: that is
//! how one product feeds the next without leaving the registers.
//!
//! All lanes of the warp call together. The CPU executor multiplies exactly, adds in f64 and rounds once; a tensor core
//! adds in an order and a width of its own, so the last bits differ.
use half::{bf16, f16};

use crate::arch;
use crate::numeric::elem::Elem;
use crate::simt::shared::Shared;

/// A lane's part of a 16 x 16 matrix on the left.
pub type A = [u32; 4];
/// A lane's part of a 16 x 8 matrix on the right.
pub type B = [u32; 2];
/// A lane's part of a 16 x 8 sum.
pub type C = [f32; 4];

/// 16 bytes: eight elements of a row, what one lane names to [`load`].
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(pub [u32; 4]);

/// The element types that tensor cores multiply here.
pub trait MatrixElem: Elem {
    /// `c + a b`.
    fn mma(a: A, b: B, c: C) -> C;
    /// Two values, each rounded once, the first in the low half.
    fn pair(low: f32, high: f32) -> u32;
}
impl MatrixElem for f16 {
    #[inline(always)]
    fn mma(a: A, b: B, c: C) -> C {
        arch::mma_f16(a, b, c)
    }
    #[inline(always)]
    fn pair(low: f32, high: f32) -> u32 {
        arch::f32x2_to_f16x2(low, high)
    }
}
impl MatrixElem for bf16 {
    #[inline(always)]
    fn mma(a: A, b: B, c: C) -> C {
        arch::mma_bf16(a, b, c)
    }
    #[inline(always)]
    fn pair(low: f32, high: f32) -> u32 {
        arch::f32x2_to_bf16x2(low, high)
    }
}

/// Four 8 x 8 matrices of 16-bit elements: lane `8 i + r` names row `r` of matrix `i`, the chunk `at`; word `i` of the
/// result has elements `2t, 2t + 1` of row `g` of matrix `i`.
///
/// # Safety
/// `at` lies inside `rows` and the launch's shared memory; a barrier stands between this read and the writes of others.
#[inline(always)]
pub unsafe fn load(rows: &Shared<Chunk>, at: u32) -> [u32; 4] {
    // SAFETY: as the caller promises.
    unsafe { arch::load_matrices(rows.window(at)) }
}

/// As [`load`], with each matrix transposed: word `i` has rows `2t, 2t + 1` of column `g`.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub unsafe fn load_transposed(rows: &Shared<Chunk>, at: u32) -> [u32; 4] {
    // SAFETY: as the caller promises.
    unsafe { arch::load_matrices_transposed(rows.window(at)) }
}
