//! `sum = x + residual`, rounded to the element type; `y = rms_norm(sum)`: both results in one pass.
//!
//! The norm is that of `rms_norm` over the rounded sum, which is what a model computes that adds first and
//! normalises then.
use cuda_std::prelude::*;

use crate::rms::row::{Params, Source, hold, normalize};
use crate::rms::weight::Weight;

/// The rows `x + residual`, written to `sum` when they are first computed.
#[derive(Clone, Copy)]
struct Add<T, const VECTOR: bool> {
    x: Row<T, VECTOR>,
    residual: Row<T, VECTOR>,
    sum: RowMut<T, VECTOR>,
}

impl<T: Elem, const VECTOR: bool> Add<T, VECTOR> {
    #[inline(always)]
    fn add(&self, tile: u32, how: Load) -> Pack<T> {
        let (x, residual) = (self.x.load(tile, how), self.residual.load(tile, how));
        Pack::from_lanes(x.lanes().zip(residual.lanes(), |x, residual| x + residual))
    }
}

impl<T: Elem, const VECTOR: bool> Source<T> for Add<T, VECTOR> {
    const LOAD_FIRST: usize = 4;
    const FETCH_EARLY: usize = 2;
    type Held = Pack<T>;
    const KEPT: bool = true;
    #[inline(always)]
    fn load(&self, tile: u32, how: Load) -> Pack<T> {
        let sum = self.add(tile, how);
        self.sum.store(tile, sum, Store::Default);
        sum
    }
    #[inline(always)]
    fn first(&self) -> *const T {
        self.x.first()
    }
    /// Adds again: two reads from L2, where reading the sum back would wait for its write.
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Pack<T> {
        self.add(tile, Load::ReadOnly)
    }
    #[inline(always)]
    unsafe fn give_back(&self, tile: u32) {
        // SAFETY: as the caller promises.
        unsafe {
            self.x.give_back(tile);
            self.residual.give_back(tile);
        }
    }
}

/// # Safety
/// The host checked that `x`, `residual`, `y` and `sum` hold `p.rows` rows of `p.cols` elements and the
/// weight `p.cols`, all `Rows::is_vector` if `VECTOR`, and that `y` and `sum` overlap nothing else.
#[inline(always)]
unsafe fn add_rms_norm<T: Elem, const HELD: usize, const VECTOR: bool>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: Params,
) {
    let team = Team::of_block();
    let at = RowAt::of(team, p.rows, p.inner);
    // SAFETY: as the caller promises; a team's row is its own.
    unsafe {
        let source = Add {
            x: Row::<T, VECTOR>::of(&x, team, at, p.cols),
            residual: Row::<T, VECTOR>::of(&residual, team, at, p.cols),
            sum: RowMut::<T, VECTOR>::of(&sum, team, at, p.cols),
        };
        let held = hold::<T, HELD, _>(source, HELD <= Add::<T, VECTOR>::LOAD_FIRST, &p);
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        normalize::<T, HELD, VECTOR, _>(source, held, weight, y, team, p);
    }
}

/// # Safety
/// As [`add_rms_norm`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: Params) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            add_rms_norm::<T, 0, true>(x, residual, weight, y, sum, p)
        } else {
            add_rms_norm::<T, 0, false>(x, residual, weight, y, sum, p)
        }
    }
}

/// # Safety
/// As [`add_rms_norm`].
#[inline(always)]
unsafe fn held<T: Elem, const HELD: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: Params,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { add_rms_norm::<T, HELD, true>(x, residual, weight, y, sum, p) }
}

entry! {
    add_rms_norm<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: Params)
        => any_layout::<T>(x, residual, weight, y, sum, p);
    @overlap(Before) add_rms_norm_hold2<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: Params)
        => held::<T, 2, 256, 4>(x, residual, weight, y, sum, p);
    add_rms_norm_hold4<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: Params)
        => held::<T, 4, 1024, 1>(x, residual, weight, y, sum, p)
}
