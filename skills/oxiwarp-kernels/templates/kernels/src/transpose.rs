//! The kernel `y[c, r] = x[r, c]`, which transposes a matrix through shared memory.
use cuda_std::prelude::*;

/// Number of rows, and of columns, of a tile.
pub const TILE: u32 = 32;
/// Number of threads per block in the y dimension. A block has `TILE` threads in the x dimension, so each
/// thread copies `TILE / ROWS` elements of a tile.
pub const ROWS: u32 = 8;
/// Distance, in elements, between the starts of consecutive rows of the tile in shared memory. With a
/// distance of 33, the elements of a column lie in different banks (f32). With a distance of 32, they would
/// all lie in one bank (f32) or in two banks (16-bit types).
const PITCH: u32 = TILE + 1;

/// Transposes a matrix. Each block transposes one tile of 32 x 32 elements in shared memory. Without shared
/// memory, either the loads or the stores of a warp would not be coalesced.
///
/// Each block has `[32, 8]` threads. The grid is one-dimensional, with one block per tile of `x`. Tiles are
/// numbered row by row, so the tiles of the first 32 rows of `x` come first.
///
/// # Safety
/// `x` has `rows` rows of `cols` elements, and consecutive rows start `x_stride` elements apart. `y` has
/// `cols` rows of `rows` elements, and consecutive rows start `y_stride` elements apart. The rows of `y` do
/// not overlap each other or `x`.
#[inline(always)]
unsafe fn transpose<T: Elem>(x: *const T, y: *mut T, rows: u32, cols: u32, x_stride: u64, y_stride: u64) {
    let tile: Shared<T> = SharedMemory::of_launch().take(TILE * PITCH);
    let ([lane, first, _], block) = (thread::index(), thread::block_index()[0]);
    let across = cols.div_ceil(TILE);
    let (row0, col0) = (block / across * TILE, block % across * TILE);
    for step in 0..TILE / ROWS {
        let at = first + step * ROWS;
        let (row, col) = (row0 + at, col0 + lane);
        if row < rows && col < cols {
            // SAFETY: the element lies inside `x`, and the index `at * PITCH + lane` lies inside the tile.
            // Each thread writes different elements of the tile.
            unsafe {
                tile.set(at * PITCH + lane, x.add((u64::from(row) * x_stride) as usize + col as usize).read())
            };
        }
    }
    // After the barrier, each thread reads elements that other threads wrote. Threads without elements of `x`
    // must also reach the barrier.
    block::sync();
    for step in 0..TILE / ROWS {
        let at = first + step * ROWS;
        let (row, col) = (row0 + lane, col0 + at);
        if row < rows && col < cols {
            // SAFETY: the element of `y` lies inside `y`, and only this thread writes it. The barrier
            // separates this read of the tile from the write of the same element of the tile.
            unsafe {
                y.add((u64::from(col) * y_stride) as usize + row as usize).write(tile.get(lane * PITCH + at))
            };
        }
    }
}

entry!(@shared(|_block| TILE * PITCH * size_of::<T>() as u32)
    transpose<T: [f32, f16, bf16]>(x: *const T, y: *mut T, rows: u32, cols: u32, x_stride: u64, y_stride: u64)
        => transpose::<T>(x, y, rows, cols, x_stride, y_stride));
