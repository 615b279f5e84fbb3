//! The gradient of [`softmax`](super::softmax) from its result: `dx = y * (dy - sum(dy * y))`; of its logarithm,
//! `dx = dy - exp(y) * sum(dy)`.
//!
//! One team a row, both rows in registers as far as they fit, and otherwise read twice, as in the forward.
use cuda_std::prelude::*;

use crate::softmax::online::SoftmaxParams;
use crate::softmax::online::exp;

/// The rows that a gradient is made of.
#[derive(Clone, Copy)]
struct GradientRows<T, const VECTOR: bool> {
    y: Row<T, VECTOR>,
    dy: Row<T, VECTOR>,
    log: bool,
}

/// A pack of each row.
#[derive(Clone, Copy)]
struct RowPacks<T> {
    y: Pack<T>,
    dy: Pack<T>,
}

impl<T: Elem, const VECTOR: bool> GradientRows<T, VECTOR> {
    /// The thread's packs of `N` tiles from `first` on; zeros past the end, which add nothing to the sum.
    #[inline(always)]
    fn load<const N: usize>(&self, first: u32) -> [RowPacks<T>; N] {
        let mut pairs = [RowPacks { y: Pack::ZERO, dy: Pack::ZERO }; N];
        for i in 0..N {
            let tile = first + i as u32;
            pairs[i] =
                RowPacks { y: self.y.load(tile, Load::ReadOnly), dy: self.dy.load(tile, Load::ReadOnly) };
        }
        pairs
    }

    /// What a pair adds to the sum.
    #[inline(always)]
    fn term(&self, RowPacks { y, dy }: RowPacks<T>) -> f32 {
        let dy = dy.lanes();
        if self.log { dy.sum() } else { y.lanes().zip(dy, |y, dy| y * dy).sum() }
    }

    /// The gradient, once the sum is known.
    #[inline(always)]
    fn gradient(&self, RowPacks { y, dy }: RowPacks<T>, sum: f32) -> Pack<T> {
        let (y, dy) = (y.opaque_lanes().lanes(), dy.opaque_lanes().lanes());
        Pack::from_lanes(if self.log {
            y.zip(dy, |y, dy| fma(-exp::<T>(y), sum, dy))
        } else {
            y.zip(dy, |y, dy| y * (dy - sum))
        })
    }
}

/// A row stays in `IN_REGISTERS` tiles, or goes by in steps of `STEP` tiles whose loads are in flight together.
///
/// # Safety
/// The host checked that `y`, `dy` and `dx` hold `p.rows` rows of `p.cols` elements, all `Rows::is_vector` if
/// `VECTOR`, and that `dx` overlaps nothing else.
#[inline(always)]
unsafe fn softmax_backward<T: Elem, const IN_REGISTERS: usize, const STEP: usize, const VECTOR: bool>(
    y: Rows,
    dy: Rows,
    dx: Rows,
    p: SoftmaxParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: as the caller promises; a team's row is its own.
    let (source, dx) = unsafe {
        let (y, dy) =
            (Row::<T, VECTOR>::of(&y, team, at, p.cols), Row::<T, VECTOR>::of(&dy, team, at, p.cols));
        (GradientRows { y, dy, log: p.log != 0 }, RowMut::<T, VECTOR>::of(&dx, team, at, p.cols))
    };
    let in_registers = source.load::<IN_REGISTERS>(0);
    let mut sum = 0.0;
    for tile in 0..IN_REGISTERS {
        sum += source.term(in_registers[tile]);
    }
    let steps = if IN_REGISTERS == 0 { dx.tiles().div_ceil(STEP as u32) } else { 0 };
    for step in 0..steps {
        let pairs = source.load::<STEP>(step * STEP as u32);
        for i in 0..STEP {
            sum += source.term(pairs[i]);
        }
    }
    let sum = team.sum(sum, &mut SharedMemory::of_launch());
    for tile in 0..IN_REGISTERS {
        dx.store(tile as u32, source.gradient(in_registers[tile], sum), Store::Default);
    }
    for step in (0..steps).rev() {
        let first = step * STEP as u32;
        let pairs = source.load::<STEP>(first);
        for i in 0..STEP {
            dx.store(first + i as u32, source.gradient(pairs[i], sum), Store::Default);
        }
    }
}

/// # Safety
/// As [`softmax_backward`], for any layout.
#[inline(always)]
unsafe fn any_layout<T: Elem>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the host sets `p.vector` only where every operand is.
    unsafe {
        if p.vector != 0 {
            softmax_backward::<T, 0, 4, true>(y, dy, dx, p)
        } else {
            softmax_backward::<T, 0, 1, false>(y, dy, dx, p)
        }
    }
}

/// # Safety
/// As [`softmax_backward`].
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    y: Rows,
    dy: Rows,
    dx: Rows,
    p: SoftmaxParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: as the caller promises.
    unsafe { softmax_backward::<T, IN_REGISTERS, 0, true>(y, dy, dx, p) }
}

entry! {
    softmax_backward_any<T: [f32, f16, bf16]>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams) => any_layout::<T>(y, dy, dx, p);
    softmax_backward_block2<T: [f32, f16, bf16]>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams)
        => in_registers::<T, 2, 256, 4>(y, dy, dx, p);
    softmax_backward_block4<T: [f32, f16, bf16]>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams)
        => in_registers::<T, 4, 1024, 1>(y, dy, dx, p)
}
