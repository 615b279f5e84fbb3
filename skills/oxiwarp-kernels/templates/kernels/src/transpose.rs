//! `y[c, r] = x[r, c]`: transposes a matrix through shared memory.
use cuda_std::prelude::*;

/// Rows and columns of a tile.
pub const TILE: u32 = 32;
/// Rows of threads in a block. Each thread copies `TILE / ROWS` elements.
pub const ROWS: u32 = 8;
/// Elements from one row of the tile to the next. The additional element places a column of the tile in 32
/// different banks of shared memory. With 32 elements, all elements of a column would be in one bank.
const PITCH: u32 = TILE + 1;

/// Each block transposes one tile of 32 x 32 elements. Without the tile, either the loads or the stores of a
/// warp would not be coalesced.
///
/// The launch has `[32, 8]` threads per block. The grid is one-dimensional, with one block per tile of `x`:
/// the tiles of the first 32 rows come first.
///
/// # Safety
/// `x` has `rows` rows of `cols` elements, `x_stride` elements apart. `y` has `cols` rows of `rows` elements,
/// `y_stride` elements apart, and overlaps no other memory that the kernel uses.
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
            // SAFETY: the element lies inside `x`, and `at * PITCH + lane` inside the tile. Each thread has
            // its own elements of the tile.
            unsafe {
                tile.set(at * PITCH + lane, x.add((u64::from(row) * x_stride) as usize + col as usize).read())
            };
        }
    }
    // The threads read elements that other threads wrote. Threads outside of `x` must reach the barrier too.
    block::sync();
    for step in 0..TILE / ROWS {
        let at = first + step * ROWS;
        let (row, col) = (row0 + lane, col0 + at);
        if row < rows && col < cols {
            // SAFETY: the element lies inside `y`, and only this thread writes it. The barrier separates the
            // read from the write of the same element of the tile.
            unsafe {
                y.add((u64::from(col) * y_stride) as usize + row as usize).write(tile.get(lane * PITCH + at))
            };
        }
    }
}

entry!(@shared(|_block| TILE * PITCH * size_of::<T>() as u32)
    transpose<T: [f32, f16, bf16]>(x: *const T, y: *mut T, rows: u32, cols: u32, x_stride: u64, y_stride: u64)
        => transpose::<T>(x, y, rows, cols, x_stride, y_stride));
