//! One kernel computes two results: `sum = x + residual`, rounded to the element type, and
//! `y = rms_norm(sum)`.
//!
//! The norm uses the rounded sum. Both results are therefore the same as with two separate operators, an
//! addition and then `rms_norm`.
use cuda_std::prelude::*;

use crate::rms::row::{RmsParams, RowSource, load_registers, normalize};
use crate::rms::weight::Weight;

/// The rows `x + residual`. When the kernel loads a tile (16 bytes per thread) for the first time, it also
/// writes the tile of the sum to `sum`.
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

impl<T: Elem, const VECTOR: bool> RowSource<T> for Add<T, VECTOR> {
    const LOAD_FIRST: usize = 4;
    const FETCH_EARLY: usize = 2;
    type RegisterTile = Pack<T>;
    const USES_L2_POLICY: bool = true;
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
    /// Compute the sum again from `x` and `residual`, which are in L2. Loading `sum` instead would be slower,
    /// because the load would wait for the store of `sum`.
    #[inline(always)]
    fn load_again(&self, tile: u32) -> Pack<T> {
        self.add(tile, Load::ReadOnly)
    }
    #[inline(always)]
    unsafe fn demote(&self, tile: u32) {
        // SAFETY: `demote` requires rows that start and end at the boundary of an L2 line. The caller
        // guarantees this.
        unsafe {
            self.x.demote(tile);
            self.residual.demote(tile);
        }
    }
}

/// # Safety
/// The host checked that `x`, `residual`, `y` and `sum` hold `p.rows` rows of `p.cols` elements, and that the
/// weight has `p.cols` elements. If `VECTOR` is true, all these operands allow 16-byte accesses
/// (`Rows::is_vector`). `y` and `sum` overlap no other operand.
#[inline(always)]
unsafe fn add_rms_norm<T: Elem, const IN_REGISTERS: usize, const VECTOR: bool>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: RmsParams,
) {
    let team = Team::of_block();
    let at = RowIndex::of(team, p.rows, p.inner);
    // SAFETY: the kernel accesses only its operands. The host checked the rows of all operands, and the
    // weight. No thread outside of the calling team (the threads that share a row) writes row `at` of `y` and
    // `sum`.
    unsafe {
        let source = Add {
            x: Row::<T, VECTOR>::of(&x, team, at, p.cols),
            residual: Row::<T, VECTOR>::of(&residual, team, at, p.cols),
            sum: RowMut::<T, VECTOR>::of(&sum, team, at, p.cols),
        };
        let in_registers =
            load_registers::<T, IN_REGISTERS, _>(source, IN_REGISTERS <= Add::<T, VECTOR>::LOAD_FIRST, &p);
        let y = RowMut::<T, VECTOR>::of(&y, team, at, p.cols);
        normalize::<T, IN_REGISTERS, VECTOR, _>(source, in_registers, weight, y, team, p);
    }
}

/// # Safety
/// The requirements of [`add_rms_norm`] apply. If `p.vector` is 1, all operands allow 16-byte accesses
/// (`Rows::is_vector`).
#[inline(always)]
unsafe fn any_layout<T: Elem>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams) {
    thread::launch_bounds::<512, 1>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. The host sets `p.vector` to 1 only if all operands allow 16-byte accesses.
    unsafe {
        if p.vector != 0 {
            add_rms_norm::<T, 0, true>(x, residual, weight, y, sum, p)
        } else {
            add_rms_norm::<T, 0, false>(x, residual, weight, y, sum, p)
        }
    }
}

/// # Safety
/// The requirements of [`add_rms_norm`] apply, and all operands allow 16-byte accesses (`Rows::is_vector`).
#[inline(always)]
unsafe fn in_registers<T: Elem, const IN_REGISTERS: usize, const MAX_THREADS: u32, const MIN_BLOCKS: u32>(
    x: Rows,
    residual: Rows,
    weight: Weight,
    y: Rows,
    sum: Rows,
    p: RmsParams,
) {
    thread::launch_bounds::<MAX_THREADS, MIN_BLOCKS>();
    // SAFETY: the kernel body accesses only its operands, and the host checked their shapes, dtypes and
    // alignment. All operands allow 16-byte accesses.
    unsafe { add_rms_norm::<T, IN_REGISTERS, true>(x, residual, weight, y, sum, p) }
}

entry! {
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_any<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => any_layout::<T>(x, residual, weight, y, sum, p);
    @overlap(Before) @shared(|block| Team::shared_bytes(block))
    add_rms_norm_block2<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => in_registers::<T, 2, 256, 4>(x, residual, weight, y, sum, p);
    @shared(|block| Team::shared_bytes(block))
    add_rms_norm_block4<T: [f32, f16, bf16]>(x: Rows, residual: Rows, weight: Weight, y: Rows, sum: Rows, p: RmsParams)
        => in_registers::<T, 4, 1024, 1>(x, residual, weight, y, sum, p)
}
