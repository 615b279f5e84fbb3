//! Matrix multiplication by a warp on tensor cores: `mma.sync` and `ldmatrix`, from sm_80 on.
//!
//! A matrix is distributed over the lanes of a warp as *fragments*. Let `g = lane / 4` and `t = lane % 4`.
//! For `C += A B`, each lane has these elements:
//!
//! | matrix | elements of a lane | type and order of words |
//! | --- | --- | --- |
//! | A, 16 x 16 | rows `g` and `g + 8`, columns `2t, 2t + 1` and `2t + 8, 2t + 9` | [`A`], order: see text |
//! | B, 16 x 8 | rows `2t, 2t + 1` and `2t + 8, 2t + 9` of column `g` | [`B`] |
//! | C, 16 x 8, f32 | columns `2t, 2t + 1` of rows `g` and `g + 8` | [`C`] |
//!
//! The fragment of A consists of four 32-bit words. Each word contains two adjacent elements of a row. In
//! order, the first elements of the words have the rows and columns `(g, 2t)`, `(g + 8, 2t)`, `(g, 2t + 8)`
//! and `(g + 8, 2t + 8)`. A word of A or B contains two adjacent elements. The first of them is in the low
//! half of the word.
//!
//! The results of two adjacent multiplications (16 x 8 each) can be operand A (16 x 16) of the next
//! multiplication. This needs no exchange between lanes. For this purpose, each lane rounds its C fragments
//! to 16 bits and packs them in pairs.
//!
//! If one lane of a warp calls a function of this module, all lanes must call it. On the CPU executor,
//! products have the same bits as on Hopper's tensor cores.
use half::{bf16, f16};

use crate::arch;
use crate::numeric::elem::Elem;
use crate::simt::shared::Shared;

/// A lane's fragment of the left operand, a 16 x 16 matrix.
pub type A = [u32; 4];
/// A lane's fragment of the right operand, a 16 x 8 matrix.
pub type B = [u32; 2];
/// A lane's fragment of the accumulator, a 16 x 8 matrix.
pub type C = [f32; 4];

/// A chunk: 16 bytes, which are eight consecutive elements of a matrix row. When a warp calls [`load`], each
/// lane passes the index of one chunk.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(pub [u32; 4]);

/// The element types of matrix operands.
pub trait MatrixElem: Elem<F32Vec = [f32; 8]> {
    /// Computes `c + a b`.
    fn mma(a: A, b: B, c: C) -> C;
    /// Packs two values into a 32-bit word, with `low` in the low half. Each value is rounded once to 16
    /// bits.
    fn pair(low: f32, high: f32) -> u32;
}
impl MatrixElem for f16 {
    #[inline(always)]
    #[track_caller]
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
    #[track_caller]
    fn mma(a: A, b: B, c: C) -> C {
        arch::mma_bf16(a, b, c)
    }
    #[inline(always)]
    fn pair(low: f32, high: f32) -> u32 {
        arch::f32x2_to_bf16x2(low, high)
    }
}

/// Loads four 8 x 8 matrices of 16-bit elements (`ldmatrix.x4`).
///
/// Lane `8 i + r` passes in `at` the index of the chunk (16 bytes) that contains row `r` of matrix `i`. Let
/// `g = lane / 4` and `t = lane % 4`. Word `i` of a lane's result has the elements `2t` and `2t + 1` of row
/// `g` of matrix `i`.
///
/// # Safety
/// The chunk `at` lies inside `rows` and inside the launch's shared memory. A barrier separates this read
/// from the writes of other threads to the chunk.
#[inline(always)]
#[track_caller]
pub unsafe fn load(rows: &Shared<Chunk>, at: u32) -> [u32; 4] {
    // SAFETY: the caller passes a chunk inside the launch's shared memory.
    unsafe { arch::load_matrices(rows.window(at)) }
}

/// Loads four 8 x 8 matrices of 16-bit elements, as [`load`] does, and transposes each matrix. Let
/// `g = lane / 4` and `t = lane % 4`. Word `i` of a lane's result has the elements `2t` and `2t + 1` of
/// column `g` of matrix `i`.
///
/// # Safety
/// The chunk `at` lies inside `rows` and inside the launch's shared memory. A barrier separates this read
/// from the writes of other threads to the chunk.
#[inline(always)]
#[track_caller]
pub unsafe fn load_transposed(rows: &Shared<Chunk>, at: u32) -> [u32; 4] {
    // SAFETY: the caller passes a chunk inside the launch's shared memory.
    unsafe { arch::load_matrices_transposed(rows.window(at)) }
}
