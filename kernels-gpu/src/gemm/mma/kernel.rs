//! The main loop of the matrix products with `mma.sync`.
use core::marker::PhantomData;

use cuda_std::copy;
use cuda_std::mma::MatrixElem;
use cuda_std::prelude::*;

use super::loader::PASS_ROWS;
use super::multiply::{StepOperands, Sums, WarpLanes};
use super::params::{BUFFER_DEPTH, BUFFERS, LinearParams, WarpTile};
use super::ring::Ring;
use super::swizzle::SwizzledRows;
use super::write::Results;
use crate::gemm::epilogue::Epilogue;

/// Steps per buffer. In a step, the MMAs multiply 16 elements of K of each row.
const STEPS: usize = BUFFER_DEPTH as usize / 16;

/// Computes one tile of `y = epilogue(x wᵀ + bias)`. A warp has `16 * M16` rows and `16 * N16` columns of the
/// tile of `x wᵀ`. `CHUNKS` is the number of 16-byte chunks per row of the warp's results: `2 * N16`, or
/// `N16` if the epilogue combines two halves (`HALVES`). If `VECTOR` is true, all rows of `x` and `w` must be
/// aligned to 16 bytes.
///
/// # Safety
/// The host created `p` and the argument of the epilogue for this launch. The launch has as many bytes of
/// shared memory as [`WarpTile::shared_bytes`] returns.
#[inline(always)]
pub(crate) unsafe fn multiply_tile<
    T: MatrixElem,
    E: Epilogue,
    const M16: usize,
    const N16: usize,
    const CHUNKS: u32,
    const VECTOR: bool,
    const HALVES: bool,
>(
    p: &LinearParams,
    epilogue: E,
) {
    // A tile of `w` has rows of two halves of `w`. Each warp needs rows of the first half and the
    // corresponding rows of the second half.
    const { assert!(HALVES == E::HALVES && (!HALVES || 8 * N16 == PASS_ROWS as usize)) };
    let size = const { WarpTile { rows16: M16, columns16: N16 } };
    let (rows, columns) = (size.rows(), if HALVES { size.columns() / 2 } else { size.columns() });
    let [tile_row, tile_column] = p.order.place(thread::block_index()[0]);
    let (row, column) = (tile_row * rows, tile_column * columns);
    // All lanes of a warp have the same warp index, but ptxas treats the index as warp-uniform only after a
    // shuffle from lane 0.
    let warp = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE, 0);
    let lanes = WarpLanes::of([warp / 2 * (rows / 2), warp % 2 * (size.columns() / 2)]);
    let [first, second] = epilogue.starts();
    let mut ring = Ring::<VECTOR, HALVES>::new(size, [row, column], second as i32 - first as i32, p);
    // SAFETY: the copies read `x` and `w`, which are readable because the host created `p` for this launch.
    // The whole block executes this code.
    let sums = unsafe { multiply::<T, M16, N16, VECTOR, HALVES>(&mut ring, lanes, p.depth) };

    let tile = SwizzledRows::<CHUNKS>::at(ring.chunks(), warp * (rows / 2) * CHUNKS);
    let place = [row + warp / 2 * (rows / 2), column + warp % 2 * (columns / 2)];
    let results =
        Results::<T, E, M16, N16, CHUNKS> { sums: &sums, tile, place, p, epilogue, element: PhantomData };
    // SAFETY: `write` stages results in the shared memory that contained operand tiles, and stores them to
    // `y`. All copies to this memory and all reads of it are complete, and each warp has its own part of it.
    // The host created `p` and the argument of the epilogue for this launch.
    unsafe { results.write() };
}

/// Computes a warp's accumulators of a tile of `x wᵀ`. `ring` is the ring of buffers in shared memory through
/// which the block copies the operands.
///
/// # Safety
/// The kernel argument from which `ring` was created belongs to this launch. The whole block calls this
/// function.
#[inline(always)]
unsafe fn multiply<
    T: MatrixElem,
    const M16: usize,
    const N16: usize,
    const VECTOR: bool,
    const HALVES: bool,
>(
    ring: &mut Ring<VECTOR, HALVES>,
    lanes: WarpLanes,
    depth: u32,
) -> Sums<M16, N16> {
    let passes = ring.passes();
    for _ in 0..BUFFERS - 1 {
        for pass in 0..passes {
            // SAFETY: the copies read `x` and `w`, which the caller guarantees to be readable. They write to
            // a buffer in shared memory that no thread has read yet.
            unsafe { ring.copy_pass(pass) };
        }
        ring.advance();
    }
    copy::wait_for_groups::<{ BUFFERS - 2 }>();
    block::sync();

    let mut read_at = 0;
    let mut sums: Sums<M16, N16> = [[[[0.0; 4]; 2]; N16]; M16];
    // SAFETY: the load reads the first buffer of operand tiles in shared memory. The copies to it are
    // complete, and a barrier followed.
    let mut operands = unsafe { StepOperands::<M16, N16>::load(&ring.buffer(read_at), lanes, 0) };
    for _ in 0..depth.div_ceil(BUFFER_DEPTH) {
        for step in 0..STEPS {
            if step + 1 == STEPS {
                // After this wait, the copies to the next buffer are complete. After the barrier, all warps
                // have read all operands of the current buffer, so new copies may overwrite it.
                copy::wait_for_groups::<{ BUFFERS - 2 }>();
                block::sync();
                read_at = ring.next(read_at);
            }
            // SAFETY: the load reads a buffer of operand tiles in shared memory. The copies to it are
            // complete, and a barrier followed. After the last tile, the buffer contains zeros, and no
            // multiplication uses them.
            let ahead =
                unsafe { StepOperands::<M16, N16>::load(&ring.buffer(read_at), lanes, (step + 1) % STEPS) };
            // During the multiplications of the first step, the block issues the copies to the next buffer, a
            // few after each row of MMAs. After the last tile of K, these copies read nothing and write
            // zeros, because this costs less than a branch.
            operands.multiply::<T>(&mut sums, |row| {
                let every = passes / M16 as u32;
                for pass in 0..if step == 0 { every } else { 0 } {
                    // SAFETY: the copy overwrites a buffer in shared memory. The last barrier separates this
                    // copy from the reads of the buffer's previous contents.
                    unsafe { ring.copy_pass(row as u32 * every + pass) };
                }
            });
            if step == 0 {
                ring.advance();
            }
            operands = ahead;
        }
    }
    copy::wait();
    block::sync();
    sums
}
