//! `y[r] = x[r] / max(|x[r]|, eps)`: rows of length 1, `torch.nn.functional.normalize` with `p = 2`.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use cuda_std::prelude::*;

/// A warp for each row, which it reads twice: for the sum of squares, in f32, and (from the L1) for the result.
///
/// A block is `[32, rows of the block]` threads. With `VECTOR` a thread reads 16 bytes at a time.
///
/// # Safety
/// `x` and `y` have `rows` rows of `cols` elements, `Rows::is_vector` if `VECTOR`; `y` overlaps nothing.
#[inline(always)]
unsafe fn l2_normalize<T: Elem, const VECTOR: bool>(x: Rows, y: Rows, rows: u64, cols: u32, eps: f32) {
    let team = Team::of_block();
    let at = RowIndex::of(team, rows, 0);
    // SAFETY: as the caller promises; a team's row is its own.
    let (x, y) =
        unsafe { (Row::<T, VECTOR>::of(&x, team, at, cols), RowMut::<T, VECTOR>::of(&y, team, at, cols)) };
    let mut squares = 0.0;
    for tile in 0..x.tiles() {
        squares += x.load(tile, Load::ReadOnly).lanes().map(|x| x * x).sum();
    }
    // Each lane of the warp gets the sum of all. A thread whose row is past the end goes along: the others need its lane.
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
