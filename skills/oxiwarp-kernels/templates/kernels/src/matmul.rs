//! The kernel `c[m, n] = sum_k a[m, k] * b[n, k]`: a matrix product on tensor cores, with f32 accumulators.
use cuda_std::copy;
use cuda_std::mma::{self, Chunk, MatrixElem};
use cuda_std::prelude::*;

/// Number of rows, and of columns, of the tile of `c` that a block computes. Each of the four warps of a
/// block computes a quarter of the tile, 32 x 32 elements.
pub const TILE: u32 = 64;
/// Threads per block.
pub const THREADS: u32 = 128;
/// Number of columns of `a` and `b` that a block stages in shared memory at a time.
const DEPTH: u32 = 32;
/// Number of elements in a chunk (16 bytes).
const CHUNK: u32 = 8;
const CHUNKS: u32 = DEPTH / CHUNK;
/// Distance, in chunks (16 bytes), between the starts of consecutive rows of a tile in shared memory. Because
/// this number is odd, the eight rows that `ldmatrix` reads together lie in different banks.
const PITCH: u32 = CHUNKS + 1;

/// A row-major matrix of 16-bit elements, as a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Address of the first element.
    pub base: *mut u8,
    /// Distance, in elements, between consecutive rows.
    pub stride: u64,
    /// Number of rows.
    pub rows: u32,
    /// Number of columns.
    pub cols: u32,
}

impl Matrix {
    #[inline(always)]
    fn at<T>(&self, row: u32, col: u32) -> *mut T {
        self.base.cast::<T>().wrapping_add((u64::from(row) * self.stride) as usize + col as usize)
    }
}

/// Computes `c = a bᵀ`. Each block computes one tile of 64 x 64 elements of `c`.
///
/// Each block has 128 threads. The grid is one-dimensional, with one block per tile of `c`. Tiles are
/// numbered row by row, so the tiles of the first 64 rows of `c` come first. If `VECTOR` is true, the kernel
/// copies 16 bytes at a time to shared memory (`cp.async`).
///
/// # Safety
/// `a`, `b` and `c` describe readable matrices of `T`, and `c` is writable. `a` and `b` have the same number
/// of columns. `c` has a row for each row of `a`, and a column for each row of `b`. `c` does not overlap `a`
/// or `b`. If `VECTOR` is true, base address, row size and stride of `a` and `b` are multiples of 16 bytes.
#[inline(always)]
unsafe fn matmul<T: MatrixElem, const VECTOR: bool>(a: Matrix, b: Matrix, c: Matrix) {
    thread::launch_bounds::<THREADS, 4>();
    let mut memory = SharedMemory::of_launch();
    let (a_tile, b_tile) = (memory.take(TILE * PITCH), memory.take(TILE * PITCH));
    let (lane, warp, block) = (warp::lane(), thread::index()[0] / warp::SIZE, thread::block_index()[0]);
    let across = c.cols.div_ceil(TILE);
    let (row0, col0) = (block / across * TILE, block % across * TILE);
    let (warp_row, warp_col) = (warp / 2 * 32, warp % 2 * 32);
    // A fragment of `c` has 16 x 8 elements. A warp computes 32 x 32 elements, so it has 2 x 4 fragments.
    let mut sums = [[[0.0_f32; 4]; 4]; 2];
    for step in 0..a.cols.div_ceil(DEPTH) {
        let k = step * DEPTH;
        // SAFETY: `a_tile` and `b_tile` have `TILE` rows. The barrier at the end of the loop separates these
        // writes from the reads of the previous iteration.
        unsafe {
            stage::<T, VECTOR>(&a_tile, &a, row0, k);
            stage::<T, VECTOR>(&b_tile, &b, col0, k);
        }
        // Wait for the copies of the calling thread. After the barrier, the copies of all threads are
        // visible.
        copy::wait();
        block::sync();
        for half in 0..DEPTH / 16 {
            // SAFETY: the chunk index lies inside `a_tile`, which the block wrote before the barrier.
            let left = [0, 16].map(|row| unsafe {
                mma::load(&a_tile, (warp_row + row + lane % 16) * PITCH + half * 2 + lane / 16)
            });
            for pair in 0..2 {
                let row = warp_col + pair as u32 * 16 + lane % 8 + lane / 16 * 8;
                // SAFETY: the chunk index lies inside `b_tile`, which the block wrote before the barrier.
                let [b0, b1, b2, b3] = unsafe { mma::load(&b_tile, row * PITCH + half * 2 + lane / 8 % 2) };
                for row16 in 0..2 {
                    let [even, odd] = [2 * pair, 2 * pair + 1];
                    sums[row16][even] = T::mma(left[row16], [b0, b1], sums[row16][even]);
                    sums[row16][odd] = T::mma(left[row16], [b2, b3], sums[row16][odd]);
                }
            }
        }
        // After this barrier, all warps have read the tiles, so the next iteration may overwrite the tiles.
        block::sync();
    }
    for row16 in 0..2 {
        for col8 in 0..4 {
            for part in 0..4 {
                let row = row0 + warp_row + row16 as u32 * 16 + lane / 4 + part as u32 / 2 * 8;
                let col = col0 + warp_col + col8 as u32 * 8 + lane % 4 * 2 + part as u32 % 2;
                if row < c.rows && col < c.cols {
                    // SAFETY: the element lies inside `c`, and only this thread writes it.
                    unsafe { c.at::<T>(row, col).write(T::from_f32(sums[row16][col8][part])) };
                }
            }
        }
    }
}

/// Copies 64 rows and 32 columns of the matrix `from` to `tile` in shared memory. The first copied row is
/// `row0`, and the first column is `col0`. Elements outside of the matrix become zero, so they do not change
/// the product.
///
/// # Safety
/// `tile` has `TILE` rows, and a barrier separates these writes from other accesses to the tile. `from`
/// satisfies the conditions of [`matmul`] for `a` and `b`.
#[inline(always)]
unsafe fn stage<T: MatrixElem, const VECTOR: bool>(
    tile: &Shared<Chunk>,
    from: &Matrix,
    row0: u32,
    col0: u32,
) {
    for step in 0..TILE * CHUNKS / THREADS {
        let at = thread::index()[0] + step * THREADS;
        let (row, chunk) = (at / CHUNKS, at % CHUNKS);
        let (to, row, col) = (row * PITCH + chunk, row0 + row, col0 + chunk * CHUNK);
        if VECTOR {
            let inside = row < from.rows && col < from.cols;
            // SAFETY: the rows of `from` consist of whole, aligned chunks. A chunk that starts inside the
            // matrix is therefore readable. `to` lies inside the tile.
            unsafe { tile.copy_or_zero(to, from.at::<T>(row, col).cast(), inside) };
            continue;
        }
        let bits = |col: u32| {
            if row < from.rows && col < from.cols {
                // SAFETY: the element lies inside the matrix.
                unsafe { from.at::<T>(row, col).read() }.to_bits()
            } else {
                0
            }
        };
        let words = [0, 2, 4, 6].map(|pair| bits(col + pair) | bits(col + pair + 1) << 16);
        // SAFETY: `to` lies inside the tile, and only this thread writes it.
        unsafe { tile.set(to, Chunk(words)) };
    }
}

/// Bytes of shared memory for the two tiles of a block.
#[cfg(not(target_arch = "nvptx64"))]
const SHARED: u32 = 2 * TILE * PITCH * size_of::<Chunk>() as u32;

entry! {
    @shared(|_block| SHARED) matmul<T: [f16, bf16]>(a: Matrix, b: Matrix, c: Matrix)
        => matmul::<T, false>(a, b, c);
    @shared(|_block| SHARED) matmul_vector<T: [f16, bf16]>(a: Matrix, b: Matrix, c: Matrix)
        => matmul::<T, true>(a, b, c)
}
