//! The main loop of the matrix products with `mma.sync`.
use cuda_std::copy;
use cuda_std::mma::{Chunk, MatrixElem};
use cuda_std::prelude::*;

use super::loader::{Loader, ROW_CHUNKS};
use super::multiply::{RingBuffer, StepOperands, Sums, WarpLanes};
use super::params::{BUFFER_DEPTH, BUFFERS, LinearParams, WarpTile};
use super::swizzle::SwizzledRows;
use super::tile_order::tile_of_block;
use super::write::write;
use crate::gemm::epilogue::Epilogue;

/// Steps per buffer. A step is the depth of an MMA, 16 elements of K.
const STEPS: usize = BUFFER_DEPTH as usize / 16;

/// Computes one tile of `y = epilogue(x wᵀ + bias)`. A warp has `16 * M16` rows and `16 * N16` columns of the
/// tile, and `CHUNKS` is `2 * N16`. If `VECTOR` is true, all rows of `x` and `w` must be aligned to 16 bytes.
///
/// # Safety
/// The host created `p` for this launch. The launch has as many bytes of shared memory as
/// [`WarpTile::shared_bytes`] returns.
#[inline(always)]
pub(crate) unsafe fn multiply_tile<
    T: MatrixElem,
    E: Epilogue,
    const M16: usize,
    const N16: usize,
    const CHUNKS: u32,
    const VECTOR: bool,
>(
    p: &LinearParams,
) {
    let size = const { WarpTile { rows16: M16, columns16: N16 } };
    let (rows, columns) = (size.rows(), size.columns());
    let [tile_row, tile_column] = tile_of_block(p);
    let (row, column) = (tile_row * rows, tile_column * columns);
    let buffer_chunks = (rows + columns) * ROW_CHUNKS;
    let ring: Shared<Chunk> = SharedMemory::of_launch().take(BUFFERS * buffer_chunks);
    let buffer = |first: u32| RingBuffer {
        x: SwizzledRows::at(ring, first),
        w: SwizzledRows::at(ring, first + rows * ROW_CHUNKS),
    };
    let next = |first: u32| if first == (BUFFERS - 1) * buffer_chunks { 0 } else { first + buffer_chunks };
    // All lanes of a warp have the same warp index, but ptxas treats the index as warp-uniform only after a
    // shuffle from lane 0.
    let warp = warp::shuffle(warp::ALL, thread::index()[0] / warp::SIZE, 0);
    let own = [warp / 2 * (rows / 2), warp % 2 * (columns / 2)];
    let lanes = WarpLanes::of(own);
    let mut x = Loader::<VECTOR>::of(&p.x, row, p.depth);
    let mut w = Loader::<VECTOR>::of(&p.w, column, p.depth);
    // SAFETY: the host checked that the operands are readable. The ring has the rows of each pass. The
    // barriers below separate a copy to a buffer from the reads of its previous contents.
    let copy_pass = |x: &Loader<VECTOR>, w: &Loader<VECTOR>, to: RingBuffer, pass: u32| unsafe {
        if pass < Loader::<VECTOR>::passes(rows) {
            x.copy(to.x, pass);
        } else {
            w.copy(to.w, pass - Loader::<VECTOR>::passes(rows));
        }
    };
    let passes = Loader::<VECTOR>::passes(rows + columns);

    let mut write_at = 0;
    for _ in 0..BUFFERS - 1 {
        for pass in 0..passes {
            copy_pass(&x, &w, buffer(write_at), pass);
        }
        copy::commit();
        x.advance();
        w.advance();
        write_at += buffer_chunks;
    }
    copy::wait_for_groups::<{ BUFFERS - 2 }>();
    block::sync();

    let mut read_at = 0;
    let mut sums: Sums<M16, N16> = [[[[0.0; 4]; 2]; N16]; M16];
    // SAFETY: the copies to the first buffer are complete, and a barrier followed.
    let mut operands = unsafe { StepOperands::<M16, N16>::load(&buffer(read_at), lanes, 0) };
    for _ in 0..p.depth.div_ceil(BUFFER_DEPTH) {
        for step in 0..STEPS {
            if step + 1 == STEPS {
                // The next buffer is complete after this wait. After the barrier, all warps have read the
                // operands of the current buffer, and its copies may be replaced.
                copy::wait_for_groups::<{ BUFFERS - 2 }>();
                block::sync();
                read_at = next(read_at);
            }
            // SAFETY: the copies to the buffer are complete, and a barrier followed. After the last tile, the
            // buffer contains zeros, and no multiplication uses them.
            let ahead =
                unsafe { StepOperands::<M16, N16>::load(&buffer(read_at), lanes, (step + 1) % STEPS) };
            // The copies are spread over the multiplications of the first step. After the last tile of K,
            // they write zeros, because no branch is cheaper than copies that read nothing.
            let to = buffer(write_at);
            operands.multiply::<T>(&mut sums, |row| {
                let every = passes / M16 as u32;
                for pass in 0..if step == 0 { every } else { 0 } {
                    copy_pass(&x, &w, to, row as u32 * every + pass);
                }
            });
            if step == 0 {
                copy::commit();
                x.advance();
                w.advance();
                write_at = next(write_at);
            }
            operands = ahead;
        }
    }
    copy::wait();
    block::sync();

    let staging = SwizzledRows::<CHUNKS>::at(ring, warp * (rows / 2) * CHUNKS);
    // SAFETY: the host created `p` for this launch. All copies to the ring and all reads of it are complete,
    // and each warp has its own part for its results.
    unsafe { write::<T, E, M16, N16, CHUNKS>(&sums, staging, [row + own[0], column + own[1]], p) };
}
