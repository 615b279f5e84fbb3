//! Gradient of [`softmax`](super::softmax), computed from its result `y`: `dx = y * (dy - sum(dy * y))`. For
//! the logarithm of the softmax, the gradient is `dx = dy - exp(y) * sum(dy)`.
//!
//! A team (the threads that share a row) computes one row. `y` and `dy` stay in registers if they fit.
//! Otherwise the kernel reads `y` and `dy` twice: for the sum, and again for `dx`.
use cuda_std::prelude::*;

use crate::softmax::online::SoftmaxParams;
use crate::softmax::online::exp;

/// The rows `y` and `dy`, which the gradient is computed from.
#[derive(Clone, Copy)]
struct GradientRows<T, const VECTOR: bool> {
    y: Row<T, VECTOR>,
    dy: Row<T, VECTOR>,
    log: bool,
}

/// A pack (16 bytes) of `y`, and the pack of `dy` with the same columns.
#[derive(Clone, Copy)]
struct RowPacks<T> {
    y: Pack<T>,
    dy: Pack<T>,
}

impl<T: Elem, const VECTOR: bool> GradientRows<T, VECTOR> {
    /// Loads the thread's packs (16 bytes each) of `N` tiles from `first` on. Columns past the end of the row
    /// are 0 and add nothing to the sum.
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

    /// Returns the contribution of a pack (16 bytes) of `y`, and of the pack of `dy` with the same columns,
    /// to the row's sum.
    #[inline(always)]
    fn term(&self, RowPacks { y, dy }: RowPacks<T>) -> f32 {
        let dy = dy.lanes();
        if self.log { dy.sum() } else { y.lanes().zip(dy, |y, dy| y * dy).sum() }
    }

    /// Returns the gradient for a pack (16 bytes) of `y` and the pack of `dy` with the same columns. `sum` is
    /// the row's sum of `dy * y`, or of `dy` for the logarithm of the softmax.
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

/// Computes the row of the calling team (the threads that share the row). If `IN_REGISTERS` is not 0, each
/// thread keeps its elements of the row in `IN_REGISTERS` packs (16 bytes each). Otherwise each pass loads
/// the row in steps of `STEP` packs per thread.
///
/// # Safety
/// The host checked that `y`, `dy` and `dx` hold `p.rows` rows of `p.cols` elements. If `VECTOR` is true, all
/// these operands allow 16-byte accesses (`Rows::is_vector`). `dx` overlaps no other operand.
#[inline(always)]
unsafe fn softmax_backward<T: Elem, const IN_REGISTERS: usize, const STEP: usize, const VECTOR: bool>(
    y: Rows,
    dy: Rows,
    dx: Rows,
    p: SoftmaxParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel reads `y` and `dy` and writes `dx`. The host checked the rows of all three. No
    // thread outside of the calling team (the threads that share a row) writes row `at` of `dx`.
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
/// The requirements of [`softmax_backward`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            softmax_backward::<T, 0, 4, true>(y, dy, dx, p)
        } else {
            softmax_backward::<T, 0, 1, false>(y, dy, dx, p)
        }
    }
}

/// # Safety
/// The requirements of [`softmax_backward`] apply, and all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    y: Rows,
    dy: Rows,
    dx: Rows,
    p: SoftmaxParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { softmax_backward::<T, IN_REGISTERS, 0, true>(y, dy, dx, p) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    softmax_backward_any<T: [f32, f16, bf16]>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams) => any_layout::<T>(y, dy, dx, p);
    @shared(|block| Team::shared_bytes(block))
    softmax_backward_block2<T: [f32, f16, bf16]>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams)
        => in_registers::<T, 2, 256, 4>(y, dy, dx, p);
    @shared(|block| Team::shared_bytes(block))
    softmax_backward_block4<T: [f32, f16, bf16]>(y: Rows, dy: Rows, dx: Rows, p: SoftmaxParams)
        => in_registers::<T, 4, 1024, 1>(y, dy, dx, p)
}
