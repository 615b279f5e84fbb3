//! A kernel that scales each row to length 1: `y[r] = x[r] / max(|x[r]|, eps)`. The formula is the same as in
//! `torch.nn.functional.normalize` with `p = 2`.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use cuda_std::prelude::*;

/// Each warp processes one row. It reads the row twice: first for the sum of squares in f32, then for the
/// result. The second read hits the L1 cache.
///
/// Each block has `[32, rows per block]` threads. If `VECTOR` is true, a thread loads 16 bytes at a time.
///
/// # Safety
/// `x` and `y` have `rows` rows of `cols` elements. If `VECTOR` is true, the rows of `x` and of `y` satisfy
/// `Rows::is_vector` (16-byte alignment). The rows of `y` do not overlap each other or `x`.
#[inline(always)]
unsafe fn l2_normalize<T: Elem, const VECTOR: bool>(x: Rows, y: Rows, rows: u64, cols: u32, eps: f32) {
    let team = Team::of_block();
    let at = RowIndex::of(team, rows, 0);
    // SAFETY: the kernel reads the rows of `x` and writes the rows of `y`. The caller passes `x` and `y` with
    // `rows` rows of `cols` elements. Each team (the threads that share a row, here a warp) processes a
    // different row.
    let (x, y) =
        unsafe { (Row::<T, VECTOR>::of(&x, team, at, cols), RowMut::<T, VECTOR>::of(&y, team, at, cols)) };
    // Columns past the end of the row read as 0, which adds 0 to a sum of squares. For a sum of another
    // function `f` with `f(0)` not 0, call `load_or` with a value at which `f` is 0.
    let mut squares = 0.0;
    for tile in 0..x.tiles() {
        squares += x.load(tile, Load::ReadOnly).lanes().map(|x| x * x).sum();
    }
    // Every lane gets the sum of its warp. A warp whose row does not exist also executes this reduction, and
    // adds zeros.
    let inverse = rsqrt(warp::sum(squares, warp::SIZE));
    let scale = if inverse > 1.0 / eps { 1.0 / eps } else { inverse };
    for tile in 0..x.tiles() {
        let scaled = x.load(tile, Load::ReadOnly).lanes().map(|x| x * scale);
        y.store(tile, Pack::from_lanes(scaled), Store::Streaming);
    }
}

entry! {
    l2_normalize<T: [f32, f16, bf16]>(x: Rows, y: Rows, rows: u64, cols: u32, eps: f32)
        => l2_normalize::<T, false>(x, y, rows, cols, eps);
    l2_normalize_vector<T: [f32, f16, bf16]>(x: Rows, y: Rows, rows: u64, cols: u32, eps: f32)
        => l2_normalize::<T, true>(x, y, rows, cols, eps)
}
