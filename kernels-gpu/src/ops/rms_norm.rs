//! `y[r, c] = x[r, c] / sqrt(mean_c(x[r, c]^2) + eps) * (offset + w[c])`, with an optional weight `w`.
//! `offset` is a number that is added to the weight, for example 1 for Gemma models.
//!
//! A team (the threads that share a row) computes one row, in tiles of one 16-byte pack per thread. Each
//! thread adds the squares in f32, with one accumulator per element of a pack.
//!
//! - `rms_norm_any_<dtype>` takes any layout. It reads the row twice, the second time mostly from L2.
//! - `rms_norm_block<n>_<dtype>` keeps up to `n` packs per thread in registers, in their element type. It
//!   therefore reads each row only once. The rows must allow 16-byte accesses ([`Rows::is_vector`]).
//! - `rms_norm_cluster8_<dtype>` keeps a row in the registers of a cluster of eight blocks.
//!
//! The kernels `rms_norm_affine` also add a bias. Their weight and bias may differ between heads: if the rows
//! are those of a tensor `[..., heads, cols]`, they have the shape `[heads, cols]`.
use cuda_std::prelude::*;

use crate::rms::row::{RmsParams, RowSource, load_registers, normalize, scale};
use crate::rms::weight::{AnyKind, HeadVectors, Weight, WeightAndBias};

/// # Safety
/// The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements, and that the weight has
/// `p.cols` elements. If `VECTOR` is true, all these operands allow 16-byte accesses (`Rows::is_vector`). `y`
/// overlaps no other operand.
#[inline(always)]
unsafe fn rms_norm<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(
    x: Rows,
    weight: Weight,
    y: Rows,
    p: RmsParams,
    team: Team,
) {
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads `x` and the weight and writes `y`. The host checked all three. No thread
    // outside of the calling team (the threads that share a row) writes row `at` of `y`.
    unsafe {
        let x = Row::<T, VECTOR>::of(&x, team, at, p.cols);
        let in_registers =
            load_registers::<T, IN_REGISTERS, _>(x, IN_REGISTERS <= Row::<T, VECTOR>::LOAD_FIRST, &p);
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        normalize::<T, IN_REGISTERS, VECTOR, _>(x, in_registers, weight, y, team, p);
    }
}

/// # Safety
/// The requirements of [`rms_norm`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, weight: Weight, y: Rows, p: RmsParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            rms_norm::<T, 0, true>(x, weight, y, p, Team::of_block())
        } else {
            rms_norm::<T, 0, false>(x, weight, y, p, Team::of_block())
        }
    }
}

/// # Safety
/// The requirements of [`rms_norm`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    weight: Weight,
    y: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { rms_norm::<T, IN_REGISTERS, true>(x, weight, y, p, Team::of_block()) }
}

/// # Safety
/// The requirements of [`rms_norm`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn cluster<T: Elem>(x: Rows, weight: Weight, y: Rows, p: RmsParams) {
    thread::launch_bounds::<1024, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { rms_norm::<T, 8, true>(x, weight, y, p, Team::of_cluster()) }
}

/// # Safety The host checked that `x` and `y` hold `p.rows` rows of `p.cols` elements. `weight` and `bias`
/// are absent, or have `p.cols` elements for each of their heads. If `VECTOR` is true, all these operands
/// allow 16-byte accesses (`Rows::is_vector`). `y` overlaps no other operand.
#[inline(always)]
unsafe fn affine<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(
    x: Rows,
    weight: HeadVectors,
    bias: HeadVectors,
    y: Rows,
    p: RmsParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads `x`, the weight and the bias, and writes `y`. The host checked all four. No
    // thread outside of the calling team (the threads that share a row) writes row `at` of `y`.
    unsafe {
        let x = Row::<T, VECTOR>::of(&x, team, at, p.cols);
        let in_registers =
            load_registers::<T, IN_REGISTERS, _>(x, IN_REGISTERS <= Row::<T, VECTOR>::LOAD_FIRST, &p);
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        let [weight, bias] = [weight, bias].map(|vectors| {
            let vector = vectors.of::<T>(team.row, p.cols);
            let rows = Rows::single(vector.base);
            AnyKind::<T, VECTOR> {
                kind: vector.kind,
                same: Row::of(&rows, team, RowIndex::FIRST, p.cols),
                single: Row::of(&rows, team, RowIndex::FIRST, p.cols),
            }
        });
        scale::<T, IN_REGISTERS, VECTOR, _, _>(x, in_registers, WeightAndBias { weight, bias }, y, team, p);
    }
}

/// # Safety
/// The requirements of [`affine`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn affine_any<T: Elem>(x: Rows, weight: HeadVectors, bias: HeadVectors, y: Rows, p: RmsParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            affine::<T, 0, true>(x, weight, bias, y, p)
        } else {
            affine::<T, 0, false>(x, weight, bias, y, p)
        }
    }
}

/// # Safety
/// The requirements of [`affine`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn affine_in_registers<
    T: Elem,
    const IN_REGISTERS: usize,
    const MAX_THREADS: u32,
    const MIN_BLOCKS: u32,
>(
    x: Rows,
    weight: HeadVectors,
    bias: HeadVectors,
    y: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { affine::<T, IN_REGISTERS, true>(x, weight, bias, y, p) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    rms_norm_any<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams) => any_layout::<T>(x, weight, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_block2<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4>(x, weight, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_block4<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 4, 512, 2>(x, weight, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_block8<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => in_registers::<T, 8, 1024, 1>(x, weight, y, p);
    @shared(|block| Team::cluster_shared_bytes(block))
    rms_norm_cluster8<T: [f32, f16, bf16]>(x: Rows, weight: Weight, y: Rows, p: RmsParams)
        => cluster::<T>(x, weight, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_affine_any<T: [f32, f16, bf16]>(x: Rows, weight: HeadVectors, bias: HeadVectors, y: Rows, p: RmsParams)
        => affine_any::<T>(x, weight, bias, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_affine_block2<T: [f32, f16, bf16]>(x: Rows, weight: HeadVectors, bias: HeadVectors, y: Rows, p: RmsParams)
        => affine_in_registers::<T, 2, 256, 4>(x, weight, bias, y, p);
    @shared(|block| Team::shared_bytes(block))
    rms_norm_affine_block4<T: [f32, f16, bf16]>(x: Rows, weight: HeadVectors, bias: HeadVectors, y: Rows, p: RmsParams)
        => affine_in_registers::<T, 4, 1024, 1>(x, weight, bias, y, p)
}
